//! `run --cache`: the selector alone over cached keys that somebody brings, recorded as a run with one compaction.
//!
//! The file holds `k_rot` `[layers, kv_heads, rows, head_dim]` (f32, f16 or bf16, as stored, rotated) and `positions` i32 `[kv_heads, rows]`.

use std::path::Path;

use anyhow::Context as _;
use half::{bf16, f16};
use lockstep_runtime::RotaryTable;
use lockstep_runtime::select::{CacheView, Dims, Keys, Rules, SelectInput, Selection, Selector};
use lockstep_traces::hash::sha256_file;
use lockstep_traces::store::{DumpFile, RunWriter, TensorView};
use lockstep_traces::{
    Cause, DType, Dump, DumpId, EventRow, Manifest, PolicyKind, PolicySpec, RecordPlan, SampleRow,
    Tensor, TraceSink as _,
};
use serde_json::json;

use super::{recording, run};
use crate::cli::{Format, RunArgs};
use crate::console;
use crate::exit::{Status, usage};

const SAMPLE: &str = "cache";

/// Keys in their stored element type.
enum Stored {
    F32(Vec<f32>),
    F16(Vec<f16>),
    Bf16(Vec<bf16>),
}

impl Stored {
    fn read(view: &TensorView<'_>) -> anyhow::Result<Self> {
        let halves =
            || view.bytes.chunks_exact(2).map(|pair| u16::from_le_bytes([pair[0], pair[1]]));
        Ok(match view.dtype {
            DType::F32 => Self::F32(view.to_f32()?),
            DType::F16 => Self::F16(halves().map(f16::from_bits).collect()),
            DType::Bf16 => Self::Bf16(halves().map(bf16::from_bits).collect()),
            other => {
                return Err(view
                    .error(format!("keys of {}; f32, f16 or bf16 is wanted", other.name()))
                    .into());
            }
        })
    }

    fn head(&self, index: usize, size: usize) -> Keys<'_> {
        let range = index * size..(index + 1) * size;
        match self {
            Self::F32(values) => Keys::F32(&values[range]),
            Self::F16(values) => Keys::F16(&values[range]),
            Self::Bf16(values) => Keys::Bf16(&values[range]),
        }
    }
}

/// A cache as it was brought.
struct Cache {
    dims: Dims,
    rows: usize,
    dtype: DType,
    keys: Stored,
    bytes: Vec<u8>,
    positions: Vec<Vec<u32>>,
}

impl Cache {
    fn read(file: &DumpFile, q_heads: usize) -> anyhow::Result<Self> {
        let keys = file.get("k_rot")?;
        let [layers, kv_heads, rows, head_dim] = keys.shape[..] else {
            return Err(keys.error("is not [layers, kv_heads, rows, head_dim]").into());
        };
        let positions = file.get("positions")?;
        positions.expect(DType::I32, &[kv_heads, rows])?;
        let values = positions.to_i32()?;
        let mut list = Vec::with_capacity(kv_heads);
        for head in values.chunks(rows.max(1)) {
            let head: Result<Vec<u32>, _> =
                head.iter().map(|&position| u32::try_from(position)).collect();
            list.push(head.map_err(|_| positions.error("holds a negative position"))?);
        }
        Ok(Self {
            dims: Dims { layers, kv_heads, q_heads, head_dim },
            rows,
            dtype: keys.dtype,
            keys: Stored::read(&keys)?,
            bytes: keys.bytes.to_vec(),
            positions: list,
        })
    }

    fn view(&self) -> CacheView<'_> {
        let size = self.rows * self.dims.head_dim;
        CacheView {
            rows: self.rows,
            keys: (0..self.dims.layers * self.dims.kv_heads)
                .map(|index| self.keys.head(index, size))
                .collect(),
            positions: self.positions.iter().map(Vec::as_slice).collect(),
        }
    }

    fn next_position(&self) -> u32 {
        self.positions.iter().flatten().max().map_or(0, |last| last + 1)
    }
}

/// One selection over brought keys.
pub(crate) struct CacheJob<'a> {
    pub(crate) cache: &'a Path,
    pub(crate) stats: &'a Path,
    pub(crate) spec: &'a PolicySpec,
    pub(crate) plan: &'a RecordPlan,
    pub(crate) plant: Option<Cause>,
    pub(crate) out: &'a Path,
}

/// What was selected.
pub(crate) struct Chosen {
    rows: usize,
    kept: usize,
    next: u32,
    shape: Vec<usize>,
}

pub(crate) fn execute(
    args: &RunArgs,
    plant: Option<Cause>,
    format: Format,
) -> anyhow::Result<Status> {
    let cache = args.source.cache.as_deref().context("--cache is needed")?;
    let stats = args.policy.stats.as_deref().ok_or_else(|| usage("--cache needs --stats"))?;
    if args.policy.policy != PolicyKind::Triattention {
        return Err(usage("--cache runs the selector: give --policy triattention"));
    }
    let (spec, plan) = (run::policy_spec(&args.policy), run::record_plan(&args.record));
    let job = CacheJob { cache, stats, spec: &spec, plan: &plan, plant, out: &args.out };
    let chosen = record(&job)?;
    let text = format!(
        "{}: kept {} of {} rows per KV head, N = {}\n",
        args.out.display(),
        chosen.kept,
        chosen.rows,
        chosen.next
    );
    let answer = json!({"run": args.out.display().to_string(), "rows_before": chosen.rows, "rows_after": chosen.kept,
        "absolute_position": chosen.next, "keep_shape": chosen.shape});
    console::answer(format, &text, &answer)?;
    Ok(Status::Parity)
}

/// Selects and records.
pub(crate) fn record(job: &CacheJob<'_>) -> anyhow::Result<Chosen> {
    let stats = lockstep_traces::stats::read(job.stats)?;
    let inv_freq = stats.inv_freq.clone().with_context(|| {
        format!(
            "{}: no inv_freq; statistics for --cache must hold the rotary frequencies",
            job.stats.display()
        )
    })?;
    let attention_scaling =
        stats.freq_scale_sq.as_ref().and_then(|list| list.first()).map_or(1.0, |s| s.sqrt());
    let rotary = RotaryTable { inv_freq, attention_scaling };
    let cache = Cache::read(&DumpFile::open(job.cache)?, stats.heads.len())?;
    let rules = Rules::resolve(job.spec)?;
    let keep = rules.kv_budget;
    let selector = Selector::new(rules, &stats, &rotary, cache.dims, job.plant)?;
    let next = cache.next_position();
    let input = SelectInput { cache: &cache.view(), round_start: next, prompt_len: 0, keep };
    let chosen = selector.select(&input, selector.noise().as_mut(), true)?;
    let selection = chosen.context("the rule set declines to compact this cache")?;
    let mut writer =
        RunWriter::create(job.out, manifest(job, &cache, &selector)?, job.plan.clone())?;
    writer.dump(dump(&cache, next, &selection))?;
    writer.event(event(&cache, next, &selection))?;
    writer.sample(SampleRow { prompt_len: Some(0), ..SampleRow::bare(SAMPLE) })?;
    writer.finish()?;
    Ok(Chosen { rows: cache.rows, kept: selection.keep.len(), next, shape: selection.keep.shape() })
}

fn manifest(job: &CacheJob<'_>, cache: &Cache, selector: &Selector) -> anyhow::Result<Manifest> {
    let mut manifest = Manifest::new(recording::producer("lockstep-runtime"), "cpu");
    manifest.created_at = recording::now();
    manifest.cache_dtype = Some(cache.dtype);
    manifest.dtype = Some(DType::F32);
    manifest.includes_prompt = false;
    manifest.model.stats_sha256 = Some(sha256_file(job.stats)?);
    manifest.set("policy.kind", "triattention", "flag");
    manifest.set("policy.stats", job.stats.display().to_string(), "flag");
    for setting in selector.rules().effective() {
        manifest.set(setting.key, setting.value.clone(), setting.source);
    }
    for (key, value) in [
        ("model.num_attention_heads", cache.dims.q_heads),
        ("model.num_key_value_heads", cache.dims.kv_heads),
        ("model.num_hidden_layers", cache.dims.layers),
        ("model.head_dim", cache.dims.head_dim),
    ] {
        manifest.set(key, value, "cache");
    }
    if let Some(cause) = job.plant {
        manifest.set("plant", cause.slug(), "flag");
    }
    manifest.remarks.push(format!(
        "selection alone over the cached keys of {}; no model was run",
        job.cache.display()
    ));
    Ok(manifest)
}

fn dump(cache: &Cache, next: u32, selection: &Selection) -> Dump {
    let Dims { layers, kv_heads, head_dim, .. } = cache.dims;
    let layer_bytes = kv_heads * cache.rows * head_dim * cache.dtype.size();
    let mut tensors: Vec<Tensor> = (0..layers)
        .map(|layer| Tensor {
            name: format!("pre.k.layer{layer:02}"),
            dtype: cache.dtype,
            shape: vec![kv_heads, cache.rows, head_dim],
            data: cache.bytes[layer * layer_bytes..(layer + 1) * layer_bytes].to_vec(),
        })
        .collect();
    let positions: Vec<i32> =
        cache.positions.iter().flatten().filter_map(|&at| i32::try_from(at).ok()).collect();
    tensors.push(Tensor::from_i32("positions.pre", vec![kv_heads, cache.rows], &positions));
    let keep = selection.keep.to_i32();
    tensors.push(Tensor::from_i32("keep", selection.keep.shape(), &keep));
    let mut metadata = std::collections::BTreeMap::new();
    if let Some(stages) = &selection.stages {
        tensors.extend(stages.tensors());
        metadata = stages.metadata();
    }
    for (key, value) in [
        ("sample_id", SAMPLE.to_owned()),
        ("ordinal", "1".to_owned()),
        ("absolute_position", next.to_string()),
        ("round_start", selection.round_start.unwrap_or(next).to_string()),
        ("rows_before", cache.rows.to_string()),
        ("rows_after", selection.keep.len().to_string()),
        ("prompt_len", "0".to_owned()),
    ] {
        metadata.insert(key.to_owned(), value);
    }
    Dump { id: DumpId::Compaction { sample_id: SAMPLE.to_owned(), ordinal: 1 }, metadata, tensors }
}

fn event(cache: &Cache, next: u32, selection: &Selection) -> EventRow {
    let count = |rows: usize| u32::try_from(rows).unwrap_or(u32::MAX);
    let id = DumpId::Compaction { sample_id: SAMPLE.to_owned(), ordinal: 1 };
    EventRow {
        sample_id: SAMPLE.to_owned(),
        ordinal: 1,
        absolute_position: next,
        round_start: selection.round_start,
        rows_before: count(cache.rows),
        rows_after: count(selection.keep.len()),
        protected: selection.protected,
        candidates: selection.candidates,
        score_seconds: selection.seconds.score,
        reduce_seconds: selection.seconds.reduce,
        select_seconds: selection.seconds.select,
        gather_seconds: 0.0,
        dump: Some(id.relative_path()),
    }
}
