//! Arguments of the verbs that run a model.

use std::path::PathBuf;

use clap::Args;
use lockstep_traces::{Aggregation, DType, PolicyKind, RuleSet, SelectionMode, Trigger};

use super::DeviceArg;

/// `demo`.
#[derive(Debug, Args)]
pub(crate) struct DemoArgs {
    /// Folder for runs and report.
    #[arg(long, default_value = "lockstep-demo")]
    pub(crate) out: PathBuf,
    /// Where to compute.
    #[arg(long, value_enum, default_value_t = DeviceArg::Auto)]
    pub(crate) device: DeviceArg,
    /// Plant this mistake and see it found; `list` prints them all.
    #[arg(long, value_name = "FAULT")]
    pub(crate) plant: Option<String>,
}

/// Where token ids come from.
#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
pub(crate) struct TokenSource {
    /// Prompt as text.
    #[arg(long)]
    pub(crate) prompt: Option<String>,
    /// File of prompt token ids: a JSON list, or numbers with blanks between.
    #[arg(long)]
    pub(crate) prompt_ids: Option<PathBuf>,
    /// JSON lines with `prompt` or `prompt_ids`, and optionally `sample_id`, `answer`, `seed_index`.
    #[arg(long)]
    pub(crate) dataset: Option<PathBuf>,
    /// No model run: select over the cached keys in this safetensors file (`k_rot` `[layers, kv_heads, rows, head_dim]`, `positions`).
    #[arg(long)]
    pub(crate) cache: Option<PathBuf>,
}

/// `run`.
#[derive(Debug, Args)]
pub(crate) struct RunArgs {
    /// Model folder (config.json, safetensors, tokenizer.json) or GGUF file. Not needed with --cache or --random.
    #[arg(long, required_unless_present_any = ["cache", "random"])]
    pub(crate) model: Option<PathBuf>,
    /// Random weights of a known shape, made on the GPU: qwen3-8b, qwen3-tiny.
    #[arg(long, value_name = "SHAPE", conflicts_with_all = ["model", "cache"])]
    pub(crate) random: Option<String>,
    #[command(flatten)]
    pub(crate) source: TokenSource,
    /// Rows of the dataset: `3`, `0-9`, or sample ids with commas.
    #[arg(long)]
    pub(crate) select: Option<String>,
    #[command(flatten)]
    pub(crate) policy: PolicyArgs,
    #[command(flatten)]
    pub(crate) sampling: SamplingArgs,
    #[command(flatten)]
    pub(crate) record: RecordArgs,
    /// Arithmetic and activations: f32, f16, bf16; the checkpoint's dtype without it.
    #[arg(long)]
    pub(crate) dtype: Option<DType>,
    /// Element type of the KV cache; as --dtype without it.
    #[arg(long)]
    pub(crate) cache_dtype: Option<DType>,
    /// Where to compute.
    #[arg(long, value_enum, default_value_t = DeviceArg::Auto)]
    pub(crate) device: DeviceArg,
    #[command(flatten)]
    pub(crate) on_device: DeviceArgs,
    /// Most tokens to generate for each sample.
    #[arg(long, default_value_t = 512)]
    pub(crate) max_new_tokens: usize,
    /// Stop token ids; the model's end-of-sequence ids without it.
    #[arg(long, value_delimiter = ',')]
    pub(crate) stop_ids: Option<Vec<u32>>,
    /// Samples decoded together; changes no number of any sample.
    #[arg(long, default_value_t = 1)]
    pub(crate) batch: usize,
    /// Run folder to write.
    #[arg(long)]
    pub(crate) out: PathBuf,
    /// Go on with an interrupted run in --out.
    #[arg(long)]
    pub(crate) resume: bool,
    /// Plant this mistake in the engine.
    #[arg(long, value_name = "FAULT")]
    pub(crate) plant: Option<String>,
}

/// Choices of a run on a GPU; the CPU backend has none of them.
#[derive(Debug, Args)]
pub(crate) struct DeviceArgs {
    /// Fixed splits of the attention: a sequence's bits depend on nothing but the sequence.
    #[arg(long)]
    pub(crate) deterministic: bool,
    /// Launch every kernel of every step; nothing is recorded and replayed.
    #[arg(long)]
    pub(crate) no_cuda_graph: bool,
    /// Batch sizes that steps are recorded for, e.g. 1,2,4,8.
    #[arg(long, value_delimiter = ',', value_name = "LADDER")]
    pub(crate) batch_buckets: Option<Vec<usize>>,
    /// Live rows that steps are recorded for, e.g. 256,1024,4096; beyond the last they double.
    #[arg(long, value_delimiter = ',', value_name = "LADDER")]
    pub(crate) row_buckets: Option<Vec<usize>>,
    /// Rows are chosen by the CPU's selector from downloaded keys.
    #[arg(long)]
    pub(crate) host_selection: bool,
    /// Rows are moved by the CPU.
    #[arg(long)]
    pub(crate) host_gather: bool,
    /// Prompt rows of one pass.
    #[arg(long, value_name = "ROWS")]
    pub(crate) prefill_rows: Option<usize>,
}

/// Cache policy.
#[derive(Debug, Args)]
pub(crate) struct PolicyArgs {
    /// What to do when the cache is to be compacted.
    #[arg(long, value_parser = policy_kind, default_value = "dense")]
    pub(crate) policy: PolicyKind,
    /// Rule set of TriAttention: trt (default), hf, vllm, sglang.
    #[arg(long, value_parser = rule_set)]
    pub(crate) rule_set: Option<RuleSet>,
    /// Rows kept by a compaction.
    #[arg(long)]
    pub(crate) kv_budget: Option<usize>,
    /// Rows between compactions.
    #[arg(long)]
    pub(crate) divide_length: Option<usize>,
    /// Newest rows that are always kept.
    #[arg(long)]
    pub(crate) recent_window: Option<usize>,
    /// Query statistics, `.pt` or `.safetensors`.
    #[arg(long)]
    pub(crate) stats: Option<PathBuf>,
    /// Keep prompt rows outright.
    #[arg(long)]
    pub(crate) protect_prefill: Option<bool>,
    /// Prompt rows count towards the trigger.
    #[arg(long)]
    pub(crate) count_prompt_tokens: Option<bool>,
    /// vllm: prompt rows spend the budget.
    #[arg(long)]
    pub(crate) include_prefill_in_budget: Option<bool>,
    /// hf: prompt rows may be dropped.
    #[arg(long)]
    pub(crate) allow_prefill_compression: Option<bool>,
    /// Largest offset of the score.
    #[arg(long)]
    pub(crate) offset_max_length: Option<usize>,
    /// Reduction over offsets: mean or max.
    #[arg(long, value_parser = aggregation)]
    pub(crate) score_aggregation: Option<Aggregation>,
    /// Reduction over layers: mean or max.
    #[arg(long, value_parser = aggregation)]
    pub(crate) layer_aggregation: Option<Aggregation>,
    /// Reduction over the GQA group: mean or max.
    #[arg(long, value_parser = aggregation)]
    pub(crate) group_aggregation: Option<Aggregation>,
    /// z-score before ranking.
    #[arg(long)]
    pub(crate) normalize: Option<bool>,
    /// Shape of the keep-sets: `per-head`, `per-layer-per-head`, `per-layer`, `union`, `legacy-layer-local`.
    #[arg(long, value_parser = mode)]
    pub(crate) mode: Option<SelectionMode>,
    /// hf: slack or interval.
    #[arg(long, value_parser = trigger)]
    pub(crate) trigger: Option<Trigger>,
    /// Drop the modulus correction of the score.
    #[arg(long)]
    pub(crate) disable_mlr: Option<bool>,
    /// Drop the trigonometric term of the score.
    #[arg(long)]
    pub(crate) disable_trig: Option<bool>,
    /// hf: seed of the noise, -1 for none.
    #[arg(long, allow_negative_numbers = true)]
    pub(crate) noise_seed: Option<i64>,
    /// Seed of the `random` policy.
    #[arg(long)]
    pub(crate) policy_seed: Option<u64>,
    /// Capacity of the KV cache in bytes; K, M and G suffixes are powers of 1024.
    #[arg(long, value_parser = bytes)]
    pub(crate) kv_cache_size: Option<u64>,
    /// Capacity of the KV cache in rows.
    #[arg(long)]
    pub(crate) max_rows: Option<usize>,
}

/// Sampling.
#[derive(Debug, Args)]
pub(crate) struct SamplingArgs {
    /// 0 takes the largest logit.
    #[arg(long)]
    pub(crate) temperature: Option<f32>,
    /// 0 and below: the whole vocabulary.
    #[arg(long, allow_negative_numbers = true)]
    pub(crate) top_k: Option<i64>,
    /// Nucleus mass.
    #[arg(long)]
    pub(crate) top_p: Option<f32>,
    /// Floor relative to the largest probability.
    #[arg(long)]
    pub(crate) min_p: Option<f32>,
    /// Base seed; a row's seed is this plus its index.
    #[arg(long, allow_negative_numbers = true)]
    pub(crate) seed: Option<i64>,
    /// argmax, xorshift, torch-cuda, torch-cuda-slice, torch-cpu or gumbel; the last three on --device cpu only.
    #[arg(long)]
    pub(crate) sampler: Option<String>,
    /// Whose filters: native (exactly k ids survive top-k) or hf (transformers: ties survive; --device cpu only).
    #[arg(long)]
    pub(crate) filters: Option<String>,
    /// Multiprocessors of the GPU whose draws torch-cuda reproduces.
    #[arg(long)]
    pub(crate) sm_count: Option<u32>,
}

/// What to record beyond the step rows. Sets are `none`, `all`, `3,7,12`, `100-200` or `100-200/10`.
#[derive(Debug, Args)]
pub(crate) struct RecordArgs {
    /// Compactions whose K and V before and after are dumped.
    #[arg(long, default_value = "none", value_name = "SET")]
    pub(crate) record_cache: lockstep_traces::Choice,
    /// Compactions whose scores, keep-sets and positions are dumped.
    #[arg(long, default_value = "all", value_name = "SET")]
    pub(crate) record_scores: lockstep_traces::Choice,
    /// Positions whose hidden states are dumped.
    #[arg(long, default_value = "none", value_name = "SET")]
    pub(crate) record_hidden: lockstep_traces::Choice,
    /// Layers of those hidden states.
    #[arg(long, default_value = "all", value_name = "SET")]
    pub(crate) record_hidden_layers: lockstep_traces::Choice,
    /// Positions whose full logits are dumped.
    #[arg(long, default_value = "none", value_name = "SET")]
    pub(crate) record_logits: lockstep_traces::Choice,
    /// Ids and logits kept in each step row.
    #[arg(long, default_value_t = 8, value_name = "K")]
    pub(crate) trace_top_k: usize,
}

/// `calibrate`.
#[derive(Debug, Args)]
pub(crate) struct CalibrateArgs {
    /// Model folder or GGUF file.
    #[arg(long)]
    pub(crate) model: PathBuf,
    /// JSON lines with `prompt` or `prompt_ids`; `gold_completion_ids` are fed where present, else the model's own tokens.
    #[arg(long, required_unless_present = "run", conflicts_with = "run")]
    pub(crate) dataset: Option<PathBuf>,
    /// A recorded run whose tokens are fed again.
    #[arg(long)]
    pub(crate) run: Option<PathBuf>,
    /// Rows of the dataset: `3`, `0-9`, or sample ids with commas.
    #[arg(long)]
    pub(crate) select: Option<String>,
    /// Leave prompt rows out.
    #[arg(long)]
    pub(crate) decode_only: bool,
    /// Arithmetic: f32, f16, bf16; the checkpoint's dtype without it.
    #[arg(long)]
    pub(crate) dtype: Option<DType>,
    /// File to write: `.pt` (upstream's layout) or `.safetensors`.
    #[arg(long, required = true)]
    pub(crate) out: Vec<PathBuf>,
}

fn named<T: serde::de::DeserializeOwned>(text: &str, choices: &str) -> Result<T, String> {
    let snake = text.replace('-', "_");
    serde_json::from_value(serde_json::Value::String(snake))
        .map_err(|_| format!("`{text}` is none of {choices}"))
}

fn policy_kind(text: &str) -> Result<PolicyKind, String> {
    named(text, "dense, recent, random, triattention")
}

fn rule_set(text: &str) -> Result<RuleSet, String> {
    named(text, "trt, hf, vllm, sglang")
}

fn aggregation(text: &str) -> Result<Aggregation, String> {
    named(text, "mean, max")
}

fn mode(text: &str) -> Result<SelectionMode, String> {
    named(text, "per-head, per-layer-per-head, per-layer, union, legacy-layer-local")
}

fn trigger(text: &str) -> Result<Trigger, String> {
    named(text, "slack, interval")
}

fn bytes(text: &str) -> Result<u64, String> {
    let bad = || format!("`{text}` is no size; write bytes, or a number with K, M or G");
    let (digits, shift) = match text.trim().to_ascii_uppercase().chars().last() {
        Some('K') => (&text.trim()[..text.trim().len() - 1], 10),
        Some('M') => (&text.trim()[..text.trim().len() - 1], 20),
        Some('G') => (&text.trim()[..text.trim().len() - 1], 30),
        _ => (text.trim(), 0),
    };
    let count: u64 = digits.parse().map_err(|_| bad())?;
    count.checked_mul(1 << shift).ok_or_else(bad)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_take_binary_suffixes_and_refuse_nonsense() {
        assert_eq!(bytes("4096"), Ok(4096));
        assert_eq!(bytes("3k"), Ok(3072));
        assert_eq!(bytes("2G"), Ok(2 << 30));
        assert!(bytes("G").is_err());
        assert!(bytes("99999999999G").is_err());
    }

    #[test]
    fn names_take_dashes_or_underscores() {
        assert_eq!(mode("per-layer-per-head"), Ok(SelectionMode::PerLayerPerHead));
        assert_eq!(rule_set("trt"), Ok(RuleSet::Trt));
        assert!(rule_set("vLLM2").is_err());
    }
}
