//! Arguments of `bench run` and `bench merge`.

use std::path::PathBuf;

use clap::Args;
use lockstep_diff::answers::{Normalise, Rule};
use lockstep_traces::DType;
use lockstep_traces::dataset::Shard;

use super::DeviceArg;
use super::run::{DeviceArgs, PolicyArgs, SamplingArgs};

/// `bench run`.
#[derive(Debug, Args)]
pub(crate) struct BenchRunArgs {
    /// Dataset (JSON lines: TensorRT-Model-Connect, GSM8K, AIME and MATH, lm-eval logs, messages, or `prompt`), or `ledger` for the
    /// embedded problems.
    #[arg(long, value_name = "FILE|ledger")]
    pub(crate) dataset: PathBuf,
    /// Model folder, or `ledger` for the embedded model.
    #[arg(long, value_name = "DIR|ledger")]
    pub(crate) model: PathBuf,
    /// Rows of the dataset: `3`, `0-9`, or sample ids with commas.
    #[arg(long)]
    pub(crate) select: Option<String>,
    /// The first so many of them.
    #[arg(long)]
    pub(crate) limit: Option<usize>,
    /// Of these, the rows whose index in the dataset leaves i when divided by n.
    #[arg(long, value_name = "i/n")]
    pub(crate) shard: Option<Shard>,
    /// Configurations over the same rows: dense, recent, random, triattention, and reference, which replays dense. Without it --policy alone.
    #[arg(long, value_delimiter = ',', value_name = "LIST")]
    pub(crate) compare: Vec<String>,
    /// Values for the policies that compact, every combination a configuration: `budget=256,512:divide=32,64:window=16`.
    #[arg(long, value_name = "KEY=A,B:KEY=C,D")]
    pub(crate) sweep: Option<String>,
    #[command(flatten)]
    pub(crate) prompts: PromptArgs,
    #[command(flatten)]
    pub(crate) stop: StopArgs,
    #[command(flatten)]
    pub(crate) policy: PolicyArgs,
    #[command(flatten)]
    pub(crate) sampling: SamplingArgs,
    #[command(flatten)]
    pub(crate) scoring: ScoringArgs,
    /// Arithmetic and activations: f32, f16, bf16; the checkpoint's dtype without it (f32 for the embedded model).
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
    /// Rows decoded together, 1 to 8.
    #[arg(long, default_value_t = 1)]
    pub(crate) batch: usize,
    /// Ids and logits kept in each step row.
    #[arg(long, default_value_t = 8, value_name = "K")]
    pub(crate) trace_top_k: usize,
    /// Folder of the response caches, one file for each configuration; `responses` in --out without it.
    #[arg(long, value_name = "DIR")]
    pub(crate) cache: Option<PathBuf>,
    /// Go on with what lies in --out: rows in the response caches are not computed again.
    #[arg(long)]
    pub(crate) resume: bool,
    /// Folder to write: a run for each configuration, summary.json, summary.txt.
    #[arg(long)]
    pub(crate) out: PathBuf,
}

/// How rows become token ids.
#[derive(Debug, Args)]
pub(crate) struct PromptArgs {
    /// `auto` (the model's chat template where it has one), `model` (it must have one), `none`, or a template file.
    #[arg(long, default_value = "auto", value_name = "auto|model|none|FILE")]
    pub(crate) chat_template: String,
    /// Define `enable_thinking` for the template; undefined without it.
    #[arg(long, value_name = "true|false")]
    pub(crate) enable_thinking: Option<bool>,
    /// Leave the opening of the assistant's turn out.
    #[arg(long)]
    pub(crate) no_generation_prompt: bool,
    /// Text put behind bare questions (GSM8K, AIME), after a blank line; `none` for nothing.
    #[arg(long, value_name = "TEXT|none")]
    pub(crate) instruction: Option<String>,
}

/// When a row ends, besides at the end-of-sequence ids.
#[derive(Debug, Args)]
pub(crate) struct StopArgs {
    /// Most tokens to generate for each row.
    #[arg(long, default_value_t = 2048)]
    pub(crate) max_new_tokens: usize,
    /// Stop token ids; the model's end-of-sequence ids without it.
    #[arg(long, value_delimiter = ',')]
    pub(crate) stop_ids: Option<Vec<u32>>,
    /// Text that ends a row; may be given several times.
    #[arg(long = "stop", value_name = "TEXT")]
    pub(crate) strings: Vec<String>,
    /// End a row when its answer is there: a closed `\boxed{...}`, or `Final answer:` with text behind it.
    #[arg(long)]
    pub(crate) stop_on_answer: bool,
    /// Tokens between two looks for the answer.
    #[arg(long, default_value_t = 16, value_name = "TOKENS")]
    pub(crate) stop_check_interval: usize,
}

/// How completions are scored.
#[derive(Debug, Args)]
pub(crate) struct ScoringArgs {
    /// How the answer is read: strict-boxed, strict-boxed-fbox, trtmc-cpp, trtmc-python.
    #[arg(long, visible_alias = "rule", default_value = "strict-boxed", value_parser = rule)]
    pub(crate) answer_rule: Rule,
    /// What makes two answers equal: integer, integer:LOW..HIGH, number, text.
    #[arg(long, default_value = "number")]
    pub(crate) normalise: Normalise,
}

/// `bench merge`.
#[derive(Debug, Args)]
pub(crate) struct BenchMergeArgs {
    /// Folders that `bench run --shard` wrote.
    #[arg(required = true, value_name = "DIR")]
    pub(crate) shards: Vec<PathBuf>,
    #[command(flatten)]
    pub(crate) scoring: ScoringArgs,
    /// Folder to write.
    #[arg(long)]
    pub(crate) out: PathBuf,
}

fn rule(text: &str) -> Result<Rule, String> {
    let read = Rule::from_slug(text).filter(|rule| *rule != Rule::Recorded);
    read.ok_or_else(|| {
        let known =
            Rule::ALL.iter().filter(|rule| **rule != Rule::Recorded).map(|rule| rule.slug());
        format!("`{text}` is none of {}", known.collect::<Vec<_>>().join(", "))
    })
}
