//! A small `trt` selector in f32, written apart from the reference, that records runs with one mistake at a time.

use std::path::{Path, PathBuf};

use lockstep_traces::manifest::{ModelId, Producer};
use lockstep_traces::stats::{QueryStats, write_safetensors};
use lockstep_traces::store::RunWriter;
use lockstep_traces::{
    Cause, Dump, DumpId, EventRow, FinishReason, Manifest, Phase, RecordPlan, SampleRow, StepRow,
    Tensor, TraceSink,
};

pub(super) const LAYERS: usize = 3;
const HEADS: usize = 4;
const KV: usize = 2;
const FREQS: usize = 4;
const WIDTH: usize = 8;
pub(super) const BUDGET: usize = 32;
const STEP: usize = 16;
const PROMPT: usize = 6;

/// What is recorded and what is wrong.
#[derive(Debug, Clone, Copy)]
pub(super) struct Recipe {
    pub(super) fault: Option<Cause>,
    pub(super) window: usize,
    /// With [`Cause::WindowRowLost`]: the newest row is ranked last, not merely unprotected.
    pub(super) dropped: bool,
    /// Rows come in fives of equal keys.
    pub(super) fives: bool,
    pub(super) scores: bool,
    pub(super) keys: bool,
    pub(super) compactions: u32,
}

impl Recipe {
    pub(super) const fn clean() -> Self {
        Self {
            fault: None,
            window: 4,
            dropped: false,
            fives: false,
            scores: true,
            keys: true,
            compactions: 2,
        }
    }

    pub(super) const fn with(fault: Cause) -> Self {
        Self { fault: Some(fault), ..Self::clean() }
    }
}

/// Numbers in [-1, 1), the same every time.
struct Stream(u64);

impl Stream {
    fn next(&mut self) -> f32 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let top = u16::try_from(self.0 >> 48).unwrap();
        f32::from(top) / 32768.0 - 1.0
    }
}

pub(super) fn stats() -> QueryStats {
    let mut stream = Stream(11);
    let cells = LAYERS * HEADS * FREQS;
    let q_mean_real: Vec<f32> = (0..cells).map(|_| stream.next()).collect();
    let q_mean_imag: Vec<f32> = (0..cells).map(|_| stream.next()).collect();
    let modulus = |(a, b): (&f32, &f32)| a.hypot(*b) + 0.25;
    QueryStats {
        layers: vec![0, 1, 2],
        heads: vec![0, 1, 2, 3],
        freqs: FREQS,
        q_abs_mean: q_mean_real.iter().zip(&q_mean_imag).map(modulus).collect(),
        q_mean_real,
        q_mean_imag,
        inv_freq: Some(vec![1.0, 0.1, 0.01, 0.001]),
        freq_scale_sq: Some(vec![1.0; FREQS]),
        sampled: (0..3).flat_map(|layer| (0..4).map(move |head| (layer, head))).collect(),
        metadata: std::collections::BTreeMap::new(),
    }
}

/// A cache: `keys[layer][kv][row]`, positions by KV head.
#[derive(Clone)]
struct Cache {
    keys: Vec<Vec<Vec<[f32; WIDTH]>>>,
    positions: Vec<Vec<i32>>,
}

struct Stages {
    raw: Vec<f32>,
    z: Vec<f32>,
    group: Vec<f32>,
    ranked: Vec<Vec<f32>>,
    keep: Vec<Vec<usize>>,
}

fn score(
    stats: &QueryStats,
    layer: usize,
    head: usize,
    key: &[f32; WIDTH],
    round_start: usize,
) -> f32 {
    let at = (layer * HEADS + head) * FREQS;
    let mut waves = 0.0f32;
    let mut own = 0.0f32;
    for f in 0..FREQS {
        let (a, b, m) =
            (stats.q_mean_real[at + f], stats.q_mean_imag[at + f], stats.q_abs_mean[at + f]);
        let (x, y) = (key[f], key[f + FREQS]);
        let w = [1.0f32, 0.1, 0.01, 0.001][f];
        for j in 0..17 {
            let phase = (round_start + (1 << j)) as f32 * w;
            waves += (a * x + b * y) * phase.cos() - (b * x - a * y) * phase.sin();
        }
        own += (m - (a * a + b * b).max(1e-8).sqrt()) * (x * x + y * y).max(1e-8).sqrt();
    }
    waves / 17.0 + own
}

fn select(stats: &QueryStats, cache: &Cache, n: usize, recipe: Recipe) -> Stages {
    let rows = cache.positions[0].len();
    let is = |cause| recipe.fault == Some(cause);
    let round_start = if is(Cause::RoundStartRows) { rows } else { n };
    let prefix = |row: usize| cache.positions[0][row] < i32::try_from(PROMPT).unwrap();
    let window_end = if is(Cause::WindowRowLost) { rows - 1 } else { rows };
    let guarded: Vec<bool> = (0..rows)
        .map(|row| prefix(row) || (row >= rows - recipe.window && row < window_end))
        .collect();
    let mut stages = Stages { raw: vec![], z: vec![], group: vec![], ranked: vec![], keep: vec![] };
    let mut totals = vec![vec![if is(Cause::LayerMax) { f32::MIN } else { 0.0 }; rows]; KV];
    for layer in 0..LAYERS {
        let mut groups = vec![vec![f32::MIN; rows]; KV];
        for head in 0..HEADS {
            let kv = head / 2;
            let raw: Vec<f32> = cache.keys[layer][kv]
                .iter()
                .map(|key| score(stats, layer, head, key, round_start))
                .collect();
            let z = normalise(&raw, &guarded, recipe);
            for row in 0..rows {
                groups[kv][row] = groups[kv][row].max(z[row]);
            }
            stages.raw.extend(raw);
            stages.z.extend(z);
        }
        for kv in 0..KV {
            for row in 0..rows {
                let total = &mut totals[kv][row];
                *total = if is(Cause::LayerMax) {
                    total.max(groups[kv][row])
                } else {
                    *total + groups[kv][row]
                };
            }
            stages.group.extend(&groups[kv]);
        }
    }
    for total in &mut totals {
        for (row, value) in total.iter_mut().enumerate() {
            if !is(Cause::LayerMax) {
                *value /= LAYERS as f32;
            }
            if guarded[row] {
                *value = f32::INFINITY;
            }
            if recipe.dropped && row + 1 == rows {
                *value = f32::NEG_INFINITY;
            }
        }
        stages.keep.push(choose(total, is(Cause::TieOrder)));
    }
    stages.ranked = totals;
    stages
}

fn normalise(raw: &[f32], guarded: &[bool], recipe: Recipe) -> Vec<f32> {
    let only_free = recipe.fault == Some(Cause::ZscoreRows);
    let counted: Vec<f32> = raw
        .iter()
        .zip(guarded)
        .filter(|(_, guarded)| !(only_free && **guarded))
        .map(|(value, _)| *value)
        .collect();
    let n = counted.len() as f32;
    let mean = counted.iter().sum::<f32>() / n;
    let squares: f32 = counted.iter().map(|value| (value - mean) * (value - mean)).sum();
    let divisor = if recipe.fault == Some(Cause::ZscorePopulation) { n } else { n - 1.0 };
    let std = (squares / divisor).sqrt();
    raw.iter().map(|value| (value - mean) / std).collect()
}

fn choose(scores: &[f32], higher_first: bool) -> Vec<usize> {
    let mut rows: Vec<usize> = (0..scores.len()).collect();
    rows.sort_by(|a, b| {
        let by_row = if higher_first { b.cmp(a) } else { a.cmp(b) };
        scores[*b].total_cmp(&scores[*a]).then(by_row)
    });
    rows.truncate(BUDGET);
    rows.sort_unstable();
    rows
}

fn append(cache: &mut Cache, n: usize, fives: bool, stream: &mut Stream) {
    for layer in 0..LAYERS {
        for kv in 0..KV {
            let key: [f32; WIDTH] = std::array::from_fn(|_| stream.next());
            let rows = &mut cache.keys[layer][kv];
            let twin = rows.last().copied().filter(|_| fives && !n.is_multiple_of(5));
            rows.push(twin.unwrap_or(key));
        }
    }
    for positions in &mut cache.positions {
        positions.push(i32::try_from(n).unwrap());
    }
}

fn gather(cache: &Cache, keep: &[Vec<usize>]) -> Cache {
    let mut after = cache.clone();
    for (kv, keep) in keep.iter().enumerate() {
        for layer in 0..LAYERS {
            after.keys[layer][kv] = keep.iter().map(|row| cache.keys[layer][kv][*row]).collect();
        }
        after.positions[kv] = keep.iter().map(|row| cache.positions[kv][*row]).collect();
    }
    after
}

fn manifest(recipe: Recipe, stats_sha256: String) -> Manifest {
    let mut manifest = Manifest::new(Producer::default(), "test");
    manifest.model = ModelId { stats_sha256: Some(stats_sha256), ..ModelId::default() };
    for (key, value) in [("kind", "triattention"), ("rule_set", "trt"), ("mode", "per_head")] {
        manifest.set(&format!("policy.{key}"), value, "flag");
    }
    for (key, value) in
        [("kv_budget", BUDGET), ("divide_length", STEP), ("recent_window", recipe.window)]
    {
        manifest.set(&format!("policy.{key}"), value, "flag");
    }
    manifest.set("model.num_attention_heads", HEADS, "config.json");
    manifest.set("model.rope_theta", 10_000.0, "config.json");
    manifest.set("model.head_dim", WIDTH, "config.json");
    manifest
}

fn narrow(value: usize) -> u32 {
    u32::try_from(value).unwrap()
}

fn flat(rows: &[Vec<f32>]) -> Vec<f32> {
    rows.concat()
}

fn dump(ordinal: u32, n: usize, cache: &Cache, stages: &Stages, recipe: Recipe) -> Dump {
    let rows = cache.positions[0].len();
    let whole = |rows: &[Vec<usize>]| -> Vec<i32> {
        rows.concat().into_iter().map(|row| i32::try_from(row).unwrap()).collect()
    };
    let mut tensors = vec![
        Tensor::from_i32("positions.pre", vec![KV, rows], &cache.positions.concat()),
        Tensor::from_i32("keep", vec![KV, BUDGET], &whole(&stages.keep)),
    ];
    for layer in (0..LAYERS).filter(|_| recipe.keys) {
        let keys: Vec<f32> = cache.keys[layer].iter().flatten().flatten().copied().collect();
        tensors.push(Tensor::from_f32(
            format!("pre.k.layer{layer:02}"),
            vec![KV, rows, WIDTH],
            &keys,
        ));
    }
    if recipe.scores {
        tensors.push(Tensor::from_f32("scores.raw", vec![LAYERS, HEADS, rows], &stages.raw));
        tensors.push(Tensor::from_f32("scores.z", vec![LAYERS, HEADS, rows], &stages.z));
        tensors.push(Tensor::from_f32("scores.group", vec![LAYERS, KV, rows], &stages.group));
        tensors.push(Tensor::from_f32("scores.final", vec![KV, rows], &flat(&stages.ranked)));
    }
    let fault = recipe.fault == Some(Cause::RoundStartRows);
    let metadata = [
        ("sample_id", "one".to_owned()),
        ("ordinal", ordinal.to_string()),
        ("absolute_position", n.to_string()),
        ("round_start", (if fault { rows } else { n }).to_string()),
        ("rows_before", rows.to_string()),
        ("rows_after", BUDGET.to_string()),
        ("score_row_offset", "0".to_owned()),
        ("rule_set", "trt".to_owned()),
        ("mode", "per_head".to_owned()),
        ("prompt_len", PROMPT.to_string()),
        ("score_layers", "0,1,2".to_owned()),
        ("score_heads", "0,1,2,3".to_owned()),
    ];
    Dump {
        id: DumpId::Compaction { sample_id: "one".to_owned(), ordinal },
        metadata: metadata.into_iter().map(|(key, value)| (key.to_owned(), value)).collect(),
        tensors,
    }
}

/// Writes a run below `dir`; returns its directory and the statistics file.
pub(super) fn record(dir: &Path, recipe: Recipe) -> (PathBuf, PathBuf) {
    let (run, path) = (dir.join("run"), dir.join("stats.safetensors"));
    let stats = stats();
    write_safetensors(&stats, &path).unwrap();
    let sha256 = lockstep_traces::hash::sha256_file(&path).unwrap();
    let mut writer =
        RunWriter::create(&run, manifest(recipe, sha256), RecordPlan::default()).unwrap();
    let mut stream = Stream(7);
    let mut cache =
        Cache { keys: vec![vec![Vec::new(); KV]; LAYERS], positions: vec![Vec::new(); KV] };
    let mut ordinal = 0;
    for position in 0.. {
        let before = cache.positions[0].len();
        append(&mut cache, position, recipe.fives, &mut stream);
        let n = position + 1;
        let compacts = cache.positions[0].len() == BUDGET + STEP;
        if compacts {
            ordinal += 1;
            let stages = select(&stats, &cache, n, recipe);
            writer.event(event(ordinal, n, cache.positions[0].len(), recipe)).unwrap();
            writer.dump(dump(ordinal, n, &cache, &stages, recipe)).unwrap();
            cache = gather(&cache, &stages.keep);
        }
        writer
            .step(step(position, before, cache.positions[0].len(), compacts.then_some(ordinal)))
            .unwrap();
        if ordinal == recipe.compactions {
            break;
        }
    }
    writer.sample(sample()).unwrap();
    writer.finish().unwrap();
    (run, path)
}

fn event(ordinal: u32, n: usize, rows: usize, recipe: Recipe) -> EventRow {
    let fault = recipe.fault == Some(Cause::RoundStartRows);
    let id = DumpId::Compaction { sample_id: "one".to_owned(), ordinal };
    EventRow {
        sample_id: "one".to_owned(),
        ordinal,
        absolute_position: narrow(n),
        round_start: Some(narrow(if fault { rows } else { n })),
        rows_before: narrow(rows),
        rows_after: narrow(BUDGET),
        protected: 0,
        candidates: 0,
        score_seconds: 0.0,
        reduce_seconds: 0.0,
        select_seconds: 0.0,
        gather_seconds: 0.0,
        dump: Some(id.relative_path()),
    }
}

fn step(position: usize, before: usize, after: usize, compaction: Option<u32>) -> StepRow {
    StepRow {
        sample_id: "one".to_owned(),
        position: narrow(position),
        phase: if position < PROMPT { Phase::Prompt } else { Phase::Decode },
        token_id: 1,
        next_token: Some(1),
        rows_before: narrow(before),
        rows_after: narrow(after),
        rows_bucketed: None,
        compaction,
        rope_index: Some(narrow(position)),
        argmax: 1,
        top_ids: vec![1],
        top_logits: vec![1.0],
        logsumexp: None,
        top2_margin: None,
        finite: true,
        logits_hash: None,
        rng_offset: None,
        uniform: None,
    }
}

fn sample() -> SampleRow {
    SampleRow {
        sample_id: "one".to_owned(),
        prompt_ids: vec![1; PROMPT],
        prompt_ids_sha256: lockstep_traces::hash::ids_sha256(&[1; PROMPT]),
        prompt_text_sha256: None,
        prompt_len: Some(narrow(PROMPT)),
        base_seed: None,
        seed_index: None,
        effective_seed: None,
        generated_ids: vec![1],
        text: None,
        gold: None,
        answer: None,
        answer_rule: None,
        finish: FinishReason::Length,
        prefill_seconds: 0.0,
        decode_seconds: 0.0,
    }
}
