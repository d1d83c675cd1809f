//! What a run is asked to do: cache policy, selector rules, sampling. Every field is optional and nothing has a
//! default here; each side resolves `None` by its own table and records the value in force.

use serde::{Deserialize, Serialize};

/// Which program's selection rules (`TRIATTENTION.md` section 0).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RuleSet {
    /// The native runtime (TH/TG).
    Trt,
    /// Upstream's Hugging Face patch (HF).
    Hf,
    /// Upstream's vLLM selector (VL).
    Vllm,
    /// Upstream's SGLang path (SG).
    Sglang,
}

/// What is done when the cache is to be compacted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PolicyKind {
    /// Keep every row.
    Dense,
    /// Keep the prompt and the newest rows.
    Recent,
    /// Keep the prompt and random rows, drawn per KV head.
    Random,
    /// TriAttention.
    Triattention,
}

/// Mean or maximum.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Aggregation {
    /// Arithmetic mean.
    Mean,
    /// Maximum.
    Max,
}

/// Shape of the keep-sets and how scores become them (`TRIATTENTION.md` 4.2, 5.3).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SelectionMode {
    /// One set per KV head, shared by all layers.
    PerHead,
    /// One set per layer and KV head.
    PerLayerPerHead,
    /// One set per layer (vllm).
    PerLayer,
    /// One set for everything (hf union).
    Union,
    /// vllm `legacy_layer_local`: statistics averaged over the group, one set per layer and KV head.
    LegacyLayerLocal,
}

/// When a compaction is due (`TRIATTENTION.md` 7).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Trigger {
    /// Rows reach budget + divide length.
    Slack,
    /// Rows reach the budget and N is a multiple of the divide length.
    Interval,
}

/// Cache policy and selector rules as asked for.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct PolicySpec {
    /// `dense`, `recent`, `random`, `triattention`.
    pub kind: Option<PolicyKind>,
    /// Rule set of `triattention`.
    pub rule_set: Option<RuleSet>,
    /// Rows kept.
    pub kv_budget: Option<usize>,
    /// Rows between compactions.
    pub divide_length: Option<usize>,
    /// Newest rows kept outright.
    pub recent_window: Option<usize>,
    /// Keep prompt rows outright.
    pub protect_prefill: Option<bool>,
    /// Prompt rows count towards the trigger (and, in `trt`, the budget).
    pub count_prompt_tokens: Option<bool>,
    /// vllm: prompt rows spend the budget.
    pub include_prefill_in_budget: Option<bool>,
    /// hf: prompt rows may be dropped.
    pub allow_prefill_compression: Option<bool>,
    /// Largest offset; offsets are 1, 2, 4, ... up to it.
    pub offset_max_length: Option<usize>,
    /// Reduction over offsets.
    pub score_aggregation: Option<Aggregation>,
    /// Reduction over layers (`trt`, `sglang`; vllm env override).
    pub layer_aggregation: Option<Aggregation>,
    /// Reduction over the GQA group in per-layer-per-head modes.
    pub group_aggregation: Option<Aggregation>,
    /// z-score.
    pub normalize: Option<bool>,
    /// Shape of keep-sets.
    pub mode: Option<SelectionMode>,
    /// Trigger form (hf).
    pub trigger: Option<Trigger>,
    /// Drop the modulus correction.
    pub disable_mlr: Option<bool>,
    /// Drop the trigonometric term.
    pub disable_trig: Option<bool>,
    /// hf: seed of the 1e-6 noise; `-1` turns it off.
    pub noise_seed: Option<i64>,
    /// Seed of `random`.
    pub policy_seed: Option<u64>,
    /// Capacity of the cache in bytes over all layers, K and V.
    pub kv_cache_bytes: Option<u64>,
    /// Capacity of the cache in rows.
    pub max_rows: Option<usize>,
}

/// Sampling as asked for.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct SamplingSpec {
    /// 0 (or below 1e-6): argmax.
    pub temperature: Option<f32>,
    /// At most 0: all.
    pub top_k: Option<i64>,
    /// Nucleus mass.
    pub top_p: Option<f32>,
    /// Floor relative to the largest probability.
    pub min_p: Option<f32>,
    /// Base seed; `None` or negative: unseeded.
    pub seed: Option<i64>,
    /// `argmax`, `xorshift`, `torch-cuda`, `torch-cuda-slice`, `torch-cpu`, `gumbel`: which draw.
    pub sampler: Option<String>,
    /// `native`, `hf`: whose filters.
    pub filters: Option<String>,
    /// Streaming multiprocessors of the device whose draws `torch-cuda` reproduces.
    pub sm_count: Option<u32>,
}
