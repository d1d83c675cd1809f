//! Arguments of `diff kld`.

use std::path::PathBuf;

use clap::Args;

/// `diff kld`.
#[derive(Debug, Args)]
pub(crate) struct DiffKldArgs {
    /// Base: KLD base file of llama-perplexity; or logits as the target, which are then coded as it would.
    pub(crate) baseline: PathBuf,
    /// Target: another KLD base file, a run with the logits of every scored row, a .npy or safetensors file of logits [rows, vocab],
    /// or one row of f32 without a header.
    pub(crate) target: PathBuf,
    /// Tokens of a chunk, where neither side is a KLD base file: a run's samples are cut into windows of this length.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(3..=1 << 24))]
    pub(crate) chunk_tokens: Option<u32>,
    /// Entries of a row, for files without a header where no KLD base file says it.
    #[arg(long, value_name = "N")]
    pub(crate) vocab: Option<u32>,
    /// Print each chunk by itself.
    #[arg(long)]
    pub(crate) by_chunk: bool,
}
