//! Arguments of `bench`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::{BenchMergeArgs, BenchRunArgs, DeviceArg, ScoreArgs};

/// What `bench` does besides measuring Lockstep itself.
#[derive(Debug, Subcommand)]
pub(crate) enum BenchCommand {
    /// Run a model over a dataset, under one or several cache policies, with a response cache to go on from.
    Run(Box<BenchRunArgs>),
    /// Put shards of a bench together; a row that is there twice or not at all is named.
    Merge(BenchMergeArgs),
    /// Score answers of files or runs; two or more are paired, the baseline first.
    Score(ScoreArgs),
}

/// `bench`.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub(crate) struct BenchArgs {
    /// What to do; without it --self.
    #[command(subcommand)]
    pub(crate) command: Option<BenchCommand>,
    /// Measure Lockstep itself; prints ratios within one run.
    #[arg(long = "self", required = true)]
    pub(crate) itself: bool,
    /// Where to compute: `cuda` measures the GPU's figures (with --random), anything else the CPU's.
    #[arg(long, value_enum, default_value_t = DeviceArg::Cpu)]
    pub(crate) device: DeviceArg,
    /// Shape of the random model on a GPU: qwen3-8b, qwen3-tiny.
    #[arg(long, value_name = "SHAPE", default_value = "qwen3-8b")]
    pub(crate) random: String,
    /// Which figures: `decode`, `replay`, `gather`, `diff`, `import`, `tensors`; on a GPU `decode`, `long`, `batch`, `compaction`, `prefill`, `dump`,
    /// `ledger`, `sampling`; all without it.
    #[arg(long, value_delimiter = ',')]
    pub(crate) only: Vec<String>,
    /// Megabytes of weights of the random Qwen3 model for `decode`.
    #[arg(long, default_value_t = 500)]
    pub(crate) model_mb: u64,
    /// Megabytes of dumps for `gather`.
    #[arg(long, default_value_t = 4000)]
    pub(crate) dump_mb: u64,
    /// Megabytes of each side for `tensors`.
    #[arg(long, default_value_t = 8000)]
    pub(crate) mb: u64,
    /// Folder for the made data; a temporary one without it.
    #[arg(long)]
    pub(crate) scratch: Option<PathBuf>,
}
