//! Arguments of `diff tensors`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use lockstep_diff::tensor_sets::Preset;
use lockstep_traces::Choice;
use lockstep_traces::tensor_files::RawSpec;

/// Figures that need a second pass over the values.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum DetailArg {
    /// For no pair.
    None,
    /// For pairs that diverged.
    Failed,
    /// For every pair that differs.
    All,
}

/// `diff tensors`.
#[derive(Debug, Args)]
pub(crate) struct DiffTensorsArgs {
    /// Baseline: safetensors, .npy, .npz, .pt, JSON numbers, raw bytes, or a folder of these (SGLang, msProbe, TensorRT-LLM dumps,
    /// shards with their index).
    pub(crate) baseline: PathBuf,
    /// Target, as the baseline.
    pub(crate) target: PathBuf,
    /// Rules for names, layouts, order, roles and tolerances, as YAML or JSON.
    #[arg(long, value_name = "FILE")]
    pub(crate) map: Option<PathBuf>,
    /// Same-dtype control of the baseline, which is then the high-precision truth: differences are judged by ratio.
    #[arg(long, value_name = "PATH")]
    pub(crate) control: Option<PathBuf>,
    /// What is allowed where the map says nothing: exact, torch, deepgemm, nmse.
    #[arg(long, value_name = "PRESET", default_value = "exact")]
    pub(crate) tolerance: Preset,
    /// Type and shape of raw files: `f32:8x128`, `k.bin=bf16:36x8x128`, `k.bin=f32:8x4:big:+64`; may be given several times.
    #[arg(long, value_name = "[FILES=]TYPE:SHAPE")]
    pub(crate) raw: Vec<RawSpec>,
    /// Names that may be without a partner (whole names); may be given several times.
    #[arg(long, value_name = "REGEX")]
    pub(crate) allow_skip: Vec<String>,
    /// Only names in which this is found.
    #[arg(long, value_name = "REGEX")]
    pub(crate) only: Option<String>,
    /// Only tensors of these layers, `0-3`.
    #[arg(long, value_name = "SET")]
    pub(crate) layers: Option<Choice>,
    /// For which pairs quantiles, ULP histogram, worst place and mean relative difference are taken.
    #[arg(long, value_enum, default_value_t = DetailArg::Failed)]
    pub(crate) detail: DetailArg,
    /// NaN at the same places on both sides counts as equal.
    #[arg(long)]
    pub(crate) nan_equal: bool,
    /// Failures that the text shows with all figures; every failure is listed.
    #[arg(long, value_name = "N", default_value_t = 20)]
    pub(crate) show: usize,
}
