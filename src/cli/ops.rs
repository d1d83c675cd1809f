//! Arguments of `ops`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

/// Where the catalog runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum OpsDevice {
    /// The first NVIDIA GPU.
    Cuda,
    /// The kernels as C++ on the CPU: their logic, at no speed, and no receipt.
    Emulated,
}

/// Which cells run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum OpsCells {
    /// All that the device can run.
    All,
    /// The small ones.
    Quick,
}

/// `ops`.
#[derive(Debug, Args)]
pub(crate) struct OpsArgs {
    /// Entries or kernel files; all without one.
    pub(crate) names: Vec<String>,
    /// Run the entries instead of listing them.
    #[arg(long)]
    pub(crate) run: bool,
    /// Device to run on.
    #[arg(long, value_enum, default_value_t = OpsDevice::Cuda, requires = "run")]
    pub(crate) device: OpsDevice,
    /// Cells to run.
    #[arg(long, value_enum, default_value_t = OpsCells::All, requires = "run")]
    pub(crate) cells: OpsCells,
    /// Folder of receipts to bring up to date; needs a GPU and all cells.
    #[arg(long, value_name = "FOLDER", requires = "run")]
    pub(crate) write_receipts: Option<PathBuf>,
}
