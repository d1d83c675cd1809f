//! A small made-up cache in which rows come in equal pairs, and a budget that cuts through a pair: the one input on which the
//! order of ties can be tested. Real keys never tie exactly.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use lockstep_replay::selector::{self, SelectorOptions};
use lockstep_traces::stats::QueryStats;
use lockstep_traces::store::{RunReader, write_safetensors};
use lockstep_traces::{
    Cause, CheckReport, Choice, PolicyKind, PolicySpec, RecordPlan, RuleSet, Tensor,
};

use crate::commands::selection::{self, CacheJob};

const LAYERS: usize = 2;
const KV_HEADS: usize = 2;
const Q_HEADS: usize = 4;
const HEAD_DIM: usize = 16;
const ROWS: usize = 96;
/// Odd, with an even window, so that an odd number of candidates is taken and the cut falls inside a pair.
const BUDGET: usize = 41;
const WINDOW: usize = 4;

/// Writes the probe, lets the runtime select, and checks the selection.
pub(super) fn run(out: &Path, plant: Option<Cause>) -> anyhow::Result<CheckReport> {
    let dir = out.join("tie-probe");
    std::fs::create_dir_all(&dir)?;
    let (cache, stats) = (dir.join("cache.safetensors"), dir.join("stats.safetensors"));
    write_cache(&cache)?;
    lockstep_traces::stats::write_safetensors(&made_stats(), &stats)?;
    let spec = PolicySpec {
        kind: Some(PolicyKind::Triattention),
        rule_set: Some(RuleSet::Trt),
        kv_budget: Some(BUDGET),
        recent_window: Some(WINDOW),
        ..PolicySpec::default()
    };
    let plan = RecordPlan { cache: Choice::All, scores: Choice::All, ..RecordPlan::default() };
    let run = dir.join("run");
    let job = CacheJob {
        cache: &cache,
        stats: &stats,
        spec: &spec,
        plan: &plan,
        plant: plant.filter(|cause| *cause == Cause::TieOrder),
        out: &run,
    };
    selection::record(&job)?;
    check(&run, stats)
}

fn check(run: &Path, stats: PathBuf) -> anyhow::Result<CheckReport> {
    let options = SelectorOptions { stats: Some(stats), ..SelectorOptions::default() };
    Ok(selector::check(&RunReader::open(run)?, &options)?)
}

/// Values in [-1, 1) on a grid of 1/128 from a counter: exact in every dtype, the same on every machine.
fn values(count: usize, seed: u64) -> Vec<f32> {
    let mut state = seed;
    (0..count)
        .map(|_| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            f32::from(i16::from((state >> 56) as u8 as i8)) / 128.0
        })
        .collect()
}

fn write_cache(path: &Path) -> anyhow::Result<()> {
    let single = values(LAYERS * KV_HEADS * ROWS / 2 * HEAD_DIM, 7);
    let keys: Vec<f32> = single.chunks(HEAD_DIM).flat_map(|row| [row, row].concat()).collect();
    let last = i32::try_from(ROWS).unwrap_or(i32::MAX);
    let positions: Vec<i32> = (0..KV_HEADS).flat_map(|_| 0..last).collect();
    let tensors = [
        Tensor::from_f32("k_rot", vec![LAYERS, KV_HEADS, ROWS, HEAD_DIM], &keys),
        Tensor::from_i32("positions", vec![KV_HEADS, ROWS], &positions),
    ];
    Ok(write_safetensors(path, &BTreeMap::new(), &tensors)?)
}

fn made_stats() -> QueryStats {
    let freqs = HEAD_DIM / 2;
    let count = LAYERS * Q_HEADS * freqs;
    let (real, imag) = (values(count, 11), values(count, 13));
    let modulus = real.iter().zip(&imag).map(|(a, b)| (a * a + b * b).sqrt() + 0.25).collect();
    let head = |index: usize| u32::try_from(index).unwrap_or(u32::MAX);
    #[expect(clippy::cast_precision_loss, reason = "frequency indices below 8")]
    let inv_freq = (0..freqs).map(|f| 10_000_f32.powf(-(f as f32) / freqs as f32)).collect();
    QueryStats {
        layers: (0..LAYERS).map(head).collect(),
        heads: (0..Q_HEADS).map(head).collect(),
        freqs,
        q_mean_real: real,
        q_mean_imag: imag,
        q_abs_mean: modulus,
        inv_freq: Some(inv_freq),
        freq_scale_sq: Some(vec![1.0; freqs]),
        sampled: (0..LAYERS)
            .flat_map(|layer| (0..Q_HEADS).map(move |h| (layer, h)))
            .map(|(l, h)| (head(l), head(h)))
            .collect(),
        metadata: BTreeMap::new(),
    }
}
