//! Arguments of the checks of loose tensor files.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

/// Pairing of dimensions in a rotation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum StyleArg {
    /// d with d + dim/2.
    HalfSplit,
    /// 2d with 2d + 1.
    Interleaved,
}

/// `check compaction`.
#[derive(Debug, Args)]
pub(crate) struct CheckCompactionArgs {
    /// File with K and V before, each `[head][row][dim]`.
    pub(crate) before: PathBuf,
    /// File with K and V after.
    pub(crate) after: PathBuf,
    /// Kept rows, in the order of the rows after.
    #[arg(long, value_delimiter = ',', required = true, value_name = "ROW")]
    pub(crate) keep: Vec<usize>,
    /// Position of the next query.
    #[arg(long)]
    pub(crate) next_position: Option<u64>,
    /// Position of the first row before.
    #[arg(long, default_value_t = 0)]
    pub(crate) first_position: u64,
    /// Base of the rotary embedding, to recognise keys that were turned to their new rows.
    #[arg(long)]
    pub(crate) rope_base: Option<f64>,
    /// Pairing of its dimensions.
    #[arg(long, value_enum, default_value_t = StyleArg::HalfSplit)]
    pub(crate) rope_style: StyleArg,
    /// Name of K in both files.
    #[arg(long, default_value = "k")]
    pub(crate) key: String,
    /// Name of V in both files.
    #[arg(long, default_value = "v")]
    pub(crate) value: String,
}

/// `check logits`.
#[derive(Debug, Args)]
pub(crate) struct CheckLogitsArgs {
    /// File with context logits, `[row][vocabulary]`.
    pub(crate) file: PathBuf,
    /// JSON: `prompt_ids`, and where they are not given here `continuation_len` and `block_size`; or a file of ids alone.
    #[arg(long, value_name = "FILE")]
    pub(crate) request: PathBuf,
    /// Tokens to score, at the end of the prompt.
    #[arg(long, value_name = "N")]
    pub(crate) last: Option<usize>,
    /// Rows of a block of the prefix cache, whose first blocks an engine may leave out.
    #[arg(long, value_name = "ROWS")]
    pub(crate) block: Option<usize>,
    /// Prompt position of row 0, where it is known.
    #[arg(long)]
    pub(crate) first_position: Option<usize>,
    /// Name of the tensor, where the file holds several.
    #[arg(long, default_value = "logits")]
    pub(crate) tensor: String,
}
