//! Arguments of `import` and `export`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use crate::exit::usage;

/// Layouts that become a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ImportKind {
    /// Step trace of TensorRT-Model-Connect (JSON lines), and the traces that look like it.
    TrtmcTrace,
    /// Keep dump of TensorRT-Model-Connect (JSON) with its `.bin` files.
    TrtmcDump,
    /// Output rows of TensorRT-Model-Connect's benchmark, of any date, and rows that look like them.
    TrtmcRows,
    /// Comparison summary of its Hugging Face driver; one method becomes a run (`--method`).
    TrtmcSummary,
    /// Engine bundle: header, section hashes, ladder, declared policy.
    TrtmcBundle,
    /// Ladder of profiles: a `config.json` with the bundle builder's keys.
    TrtmcLadder,
    /// Calibration statistics, `.pt` or safetensors.
    TrtmcStats,
    /// Effective configuration.
    TrtmcConfig,
    /// Samples of lm-eval (`samples_<task>_<time>.jsonl`).
    LmEval,
}

/// Layouts in which a run is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ExportKind {
    /// Step trace of TensorRT-Model-Connect (JSON lines).
    TrtmcTrace,
    /// Keep dump of TensorRT-Model-Connect (JSON) with its `.bin` files.
    TrtmcDump,
    /// Samples of lm-eval (JSON lines).
    LmEval,
    /// JUnit XML: of a run's answers, or of the answer of check, audit, diff or bench score (`--format json`).
    Junit,
    /// Timeline as Chrome trace events, for ui.perfetto.dev.
    Perfetto,
}

/// `import`.
#[derive(Debug, Args)]
#[command(override_usage = "lockstep import [OPTIONS] --out <OUT> [KIND] <PATH>")]
pub(crate) struct ImportArgs {
    /// Layout of PATH; guessed from its content when not given.
    #[arg(value_name = "KIND", help = kinds_help())]
    first: PathBuf,
    /// File or folder to read.
    #[arg(value_name = "PATH")]
    second: Option<PathBuf>,
    /// Run folder to write.
    #[arg(long)]
    pub(crate) out: PathBuf,
    /// Prompt length, where the source does not say.
    #[arg(long)]
    pub(crate) prompt_len: Option<u32>,
    /// Divide length of the run, which a keep dump does not hold.
    #[arg(long)]
    pub(crate) divide_length: Option<u32>,
    /// Filter of lm-eval whose answers the samples get; without it the first one of the file.
    #[arg(long, value_name = "NAME")]
    pub(crate) filter: Option<String>,
    /// Method of a comparison summary: dense, tri or hf.
    #[arg(long, value_name = "NAME")]
    pub(crate) method: Option<String>,
}

impl ImportArgs {
    /// The layout as given, and the path.
    pub(crate) fn what(&self) -> anyhow::Result<(Option<ImportKind>, &PathBuf)> {
        let Some(path) = &self.second else { return Ok((None, &self.first)) };
        let name = self.first.to_string_lossy();
        let kind = ImportKind::from_str(&name, false).map_err(|_| {
            usage(format!("no layout `{name}`; there are {}", names::<ImportKind>().join(", ")))
        })?;
        Ok((Some(kind), path))
    }
}

fn names<K: ValueEnum>() -> Vec<String> {
    K::value_variants()
        .iter()
        .filter_map(ValueEnum::to_possible_value)
        .map(|value| value.get_name().to_owned())
        .collect()
}

fn kinds_help() -> String {
    format!(
        "Layout of PATH; guessed from its content when not given. One of {}",
        names::<ImportKind>().join(", ")
    )
}

/// `export`.
#[derive(Debug, Args)]
pub(crate) struct ExportArgs {
    /// Layout to write.
    #[arg(value_enum)]
    pub(crate) kind: ExportKind,
    /// Run to read; for junit also the answer of a verb.
    pub(crate) run: PathBuf,
    /// File to write (for a dump also the prefix of its `.bin` files).
    #[arg(long)]
    pub(crate) out: PathBuf,
    /// Sample, where the run holds several.
    #[arg(long)]
    pub(crate) sample: Option<String>,
    /// Compaction to write (1-based).
    #[arg(long, default_value_t = 1)]
    pub(crate) ordinal: u32,
    /// Print six significant digits, as that runtime does.
    #[arg(long)]
    pub(crate) digits6: bool,
    /// Round row counts up to a multiple of this.
    #[arg(long)]
    pub(crate) bucket_rows: Option<u32>,
}
