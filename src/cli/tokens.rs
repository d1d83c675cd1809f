//! Arguments of the verbs that compare tokens and log-probabilities.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::DiffArgs;

/// `diff`: two traces, or one of the parts below.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub(crate) struct DiffVerb {
    /// What else than two traces.
    #[command(subcommand)]
    pub(crate) what: Option<DiffCommand>,
    /// Two traces.
    #[command(flatten)]
    pub(crate) traces: Option<DiffArgs>,
}

/// What `diff` compares besides traces.
#[derive(Debug, Subcommand)]
pub(crate) enum DiffCommand {
    /// Two token sequences: doubled start tokens, other ids for the same text, texts that lost blanks.
    Tokens(DiffTokensArgs),
    /// Two files of log-probabilities, as servers answer them.
    Logprobs(DiffLogprobsArgs),
    /// A target against a KLD base file of llama-perplexity: its figures, errors by chunk, what its codes can hide.
    Kld(super::DiffKldArgs),
    /// Two sets of tensors: files or folders of dumps, matched by name or by rule.
    Tensors(Box<super::DiffTensorsArgs>),
}

/// `diff tokens`.
#[derive(Debug, Args)]
pub(crate) struct DiffTokensArgs {
    /// Baseline: FILE, or FILE#/pointer for a part of a JSON file (ids, pieces, a text, or an object of these).
    pub(crate) baseline: String,
    /// Target, as the baseline.
    pub(crate) target: String,
    /// Pieces by id as JSON; beside two texts, the list of pieces that they were put together from.
    #[arg(long, value_name = "FILE", conflicts_with = "tokenizer")]
    pub(crate) pieces: Option<String>,
    /// tokenizer.json or its folder.
    #[arg(long, value_name = "PATH")]
    pub(crate) tokenizer: Option<PathBuf>,
    /// Id of the start token; without it any id that stands twice at the front counts as doubled.
    #[arg(long, value_name = "ID")]
    pub(crate) bos: Option<u32>,
}

/// `diff logprobs`.
#[derive(Debug, Args)]
pub(crate) struct DiffLogprobsArgs {
    /// Baseline: a file of log-probabilities; FILE#name for one list of a file of lists.
    pub(crate) baseline: String,
    /// Target, as the baseline.
    pub(crate) target: String,
    /// Temperature after which the target's values stand; read off the values without it.
    #[arg(long)]
    pub(crate) temperature: Option<f64>,
    /// Largest difference that counts as noise; one unit of the last printed digit without it.
    #[arg(long)]
    pub(crate) tolerance: Option<f64>,
}

/// `check tokens`.
#[derive(Debug, Args)]
pub(crate) struct CheckTokensArgs {
    /// Run folder, foreign trace, or a token sequence as `diff tokens` takes it.
    pub(crate) input: String,
    /// tokenizer.json or its folder.
    #[arg(long, value_name = "PATH", conflicts_with = "tokenizer_size")]
    pub(crate) tokenizer: Option<PathBuf>,
    /// Ids that the tokenizer knows: 0 up to this, not included.
    #[arg(long, value_name = "N")]
    pub(crate) tokenizer_size: Option<u32>,
    /// Columns of the logits; config.json's vocab_size as a rule.
    #[arg(long, value_name = "N")]
    pub(crate) logits_width: Option<u32>,
    /// Id of the start token, for a token sequence.
    #[arg(long, value_name = "ID")]
    pub(crate) bos: Option<u32>,
}
