//! Arguments of `check sampler` and `replay sampler`.

use std::path::PathBuf;

use clap::Args;

/// `check sampler` and `replay sampler`.
#[derive(Debug, Args)]
pub(crate) struct SamplerArgs {
    /// Run folder, or a file: rows with tokens (JSON or JSON lines), kept sets, reported log-probabilities, or two devices (JSON).
    #[arg(required_unless_present = "devices")]
    pub(crate) run: Option<PathBuf>,
    /// Second file with the tokens of a file of rows: a list of ids, or an object of lists, the baseline named `reference` or `baseline`.
    #[arg(long, value_name = "FILE")]
    pub(crate) tokens: Option<PathBuf>,
    /// Only these samples.
    #[arg(long, value_delimiter = ',')]
    pub(crate) sample: Vec<String>,
    /// Temperature in place of the recorded one.
    #[arg(long)]
    pub(crate) temperature: Option<f32>,
    /// top-k in place of the recorded one; 0 and below: off.
    #[arg(long, allow_negative_numbers = true)]
    pub(crate) top_k: Option<i64>,
    /// top-p in place of the recorded one.
    #[arg(long)]
    pub(crate) top_p: Option<f32>,
    /// min-p in place of the recorded one.
    #[arg(long)]
    pub(crate) min_p: Option<f32>,
    /// Base seed in place of the recorded one.
    #[arg(long)]
    pub(crate) seed: Option<u64>,
    /// Sampler to hold the tokens against: argmax, xorshift, torch-cuda, torch-cuda-slice, torch-cpu, gumbel.
    #[arg(long)]
    pub(crate) sampler: Option<String>,
    /// Filters to hold the tokens against: native, hf.
    #[arg(long)]
    pub(crate) filters: Option<String>,
    /// Multiprocessors of the GPU whose draws are reproduced.
    #[arg(long)]
    pub(crate) sm_count: Option<u32>,
    /// Two GPUs as multiprocessors x threads each (40x1024,58x1536): from which element on the same seed gives other numbers.
    #[arg(long, value_delimiter = ',', num_args = 1, value_parser = device, conflicts_with = "run", requires = "elements")]
    pub(crate) devices: Vec<(u32, u32)>,
    /// Elements of the fill for --devices: the vocabulary, times rows of a batch.
    #[arg(long)]
    pub(crate) elements: Option<u64>,
}

fn device(text: &str) -> Result<(u32, u32), String> {
    let parts = text.split_once('x').and_then(|(multiprocessors, threads)| {
        Some((multiprocessors.trim().parse().ok()?, threads.trim().parse().ok()?))
    });
    parts.ok_or_else(|| {
        format!("`{text}` is no device; write multiprocessors x threads, as 132x2048")
    })
}
