//! Arguments of the checks of written-down evidence: states of caches, visible keys, shifts, keep-sets, rotary tables, arms.

use std::path::PathBuf;

use clap::Args;

/// `check states`, `check visible` and `check shifts`.
#[derive(Debug, Args)]
pub(crate) struct FormArgs {
    /// JSON file in the form above; gzip is read through.
    pub(crate) file: PathBuf,
}

/// `check keepsets`.
#[derive(Debug, Args)]
pub(crate) struct KeepsetsArgs {
    /// The score: amp, omega and phase by frequency, and the budget.
    pub(crate) spec: PathBuf,
    /// Compactions: what was there and what was kept.
    pub(crate) keeps: PathBuf,
    /// What t is claimed to be, `rows` for example; the spec's `time`, else absolute_position.
    #[arg(long)]
    pub(crate) time: Option<String>,
}

/// `check rope`.
#[derive(Debug, Args)]
pub(crate) struct RopeArgs {
    /// config.json files, folders with one, or GGUF files.
    #[arg(required = true)]
    pub(crate) configs: Vec<PathBuf>,
    /// The engine's inverse frequencies: JSON, safetensors, .npy, .npz or .pt. A table belongs to the configuration whose file or folder
    /// name (with or without its ending) it bears, or which is the only one.
    #[arg(long, value_name = "FILE")]
    pub(crate) engine: Option<PathBuf>,
    /// Name of the engine's table for a single configuration, where the file holds several.
    #[arg(long, value_name = "NAME", requires = "engine")]
    pub(crate) tensor: Option<String>,
    /// Positions at which phase errors are given.
    #[arg(long, value_delimiter = ',', default_values_t = [100_u64, 8000_u64])]
    pub(crate) positions: Vec<u64>,
    /// Width of a head, where the configuration does not say.
    #[arg(long, value_name = "N")]
    pub(crate) head_dim: Option<usize>,
    /// Largest relative difference of a frequency that counts as none; what f32 arithmetic may cost without it.
    #[arg(long)]
    pub(crate) tolerance: Option<f64>,
}

/// `audit arms`.
#[derive(Debug, Args)]
pub(crate) struct ArmsArgs {
    /// JSON list of arms (or one a line): `arm` names it, the effect is a number, everything else is a factor.
    pub(crate) file: PathBuf,
    /// Factor to which the difference would be put down.
    #[arg(long, value_name = "FACTOR")]
    pub(crate) of: String,
    /// Key of the score.
    #[arg(long, value_name = "KEY", default_value = "score")]
    pub(crate) effect: String,
    /// Level of the factor in the baseline (`null` for none); that of the first arm without it.
    #[arg(long, value_name = "LEVEL")]
    pub(crate) baseline: Option<String>,
    /// Keys that are no factors: seeds, times, notes.
    #[arg(long, value_delimiter = ',', value_name = "KEY")]
    pub(crate) ignore: Vec<String>,
    /// Largest difference of two scores that counts as none.
    #[arg(long, default_value_t = 0.0)]
    pub(crate) tolerance: f64,
    /// Lengths that are no multiple of this are named.
    #[arg(long, value_name = "ROWS", default_value_t = 32)]
    pub(crate) block: u64,
}
