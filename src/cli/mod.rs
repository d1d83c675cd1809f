//! Arguments as they are typed. What they mean is resolved in `commands`.

mod audit;
mod bench;
mod check;
mod claim;
mod evaluate;
mod foreign;
mod kld;
mod loose;
mod ops;
mod parse;
mod run;
mod sampler;
mod score;
mod states;
mod tensors;
mod tokens;

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};

pub(crate) use audit::{AsideArgs, AuditArgs, AuditCommand, AuditVerb};
pub(crate) use bench::{BenchArgs, BenchCommand};
pub(crate) use check::{
    CheckArgs, CheckCommand, ConformanceArgs, DiffArgs, ForwardArgs, ReplayCommand, ReplayPolicy,
    SelectorArgs, Side,
};
pub(crate) use claim::{ClaimAddArgs, ClaimCommand};
pub(crate) use evaluate::{BenchMergeArgs, BenchRunArgs, PromptArgs, ScoringArgs};
pub(crate) use foreign::{ExportArgs, ExportKind, ImportArgs, ImportKind, LabelsArg, ValuesArg};
pub(crate) use kld::DiffKldArgs;
pub(crate) use loose::{CheckCompactionArgs, CheckLogitsArgs, StyleArg};
pub(crate) use ops::{OpsArgs, OpsCells, OpsDevice};
pub(crate) use parse::{Refused, parse};
pub(crate) use run::{
    CalibrateArgs, DemoArgs, DeviceArgs, PolicyArgs, RecordArgs, RunArgs, SamplingArgs,
};
pub(crate) use sampler::SamplerArgs;
pub(crate) use score::{GateReference, ScoreArgs};
pub(crate) use states::{ArmsArgs, FormArgs, KeepsetsArgs, RopeArgs};
pub(crate) use tensors::{DetailArg, DiffTensorsArgs};
pub(crate) use tokens::{CheckTokensArgs, DiffCommand, DiffLogprobsArgs, DiffTokensArgs, DiffVerb};

/// Finds out why one LLM runtime's output is not another's.
#[derive(Debug, Parser)]
#[command(name = "lockstep", version, about, long_about = None, max_term_width = 110)]
pub(crate) struct Cli {
    /// Print the chain of causes below an error.
    #[arg(long, global = true)]
    pub(crate) verbose: bool,
    /// Form of the answer on stdout.
    #[arg(long, global = true, value_enum, default_value_t = Format::Text)]
    pub(crate) format: Format,
    /// What to do.
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// Form of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// For people; what passed is hidden.
    Text,
    /// One JSON document.
    Json,
    /// One line of JSON.
    Jsonl,
}

/// Where the runtime computes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum DeviceArg {
    /// What is there; the answer says what was taken.
    Auto,
    /// The CPU backend.
    Cpu,
    /// An NVIDIA GPU.
    Cuda,
    /// The kernels of the CUDA backend as C++ on the host: slow, for tests of their logic.
    Emulated,
}

/// The verbs.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Record the embedded model dense and compressed, replay, compare, check and report.
    Demo(DemoArgs),
    /// Run a model under a cache policy and record what it did.
    Run(Box<RunArgs>),
    /// Execute a recorded run again on the independent reference.
    #[command(subcommand)]
    Replay(ReplayCommand),
    /// Find the first places where two traces part. The baseline comes first.
    Diff(DiffVerb),
    /// Audit runs and artifacts: do they prove what they are used for?
    Audit(AuditVerb),
    /// Check one run against what must hold.
    #[command(subcommand)]
    Check(CheckCommand),
    /// The ledger of claims and the evidence that each stands on.
    #[command(subcommand)]
    Claim(ClaimCommand),
    /// Write the HTML report, its figures and report.json.
    Report(ReportArgs),
    /// Collect the selector's query statistics from dense runs.
    Calibrate(CalibrateArgs),
    /// Run the golden vectors of a folder through runtime and reference.
    Conformance(ConformanceArgs),
    /// Turn a foreign trace or dump into a run.
    Import(ImportArgs),
    /// Write a run in a foreign layout.
    Export(ExportArgs),
    /// Show what a run holds.
    Inspect(InspectArgs),
    /// Show what this machine offers and what is missing.
    Doctor,
    /// List the CUDA kernels with what each promises, or run them and show that it holds.
    Ops(OpsArgs),
    /// Run a model over a dataset, merge shards of it, score answers, or measure this build on this machine.
    Bench(BenchArgs),
}

/// `report`.
#[derive(Debug, Args)]
pub(crate) struct ReportArgs {
    /// One run, or a baseline and a target, or the JSON answer of `diff`.
    #[arg(required_unless_present = "claims", num_args = 1..=4, value_name = "RUN|DIFF")]
    pub(crate) inputs: Vec<PathBuf>,
    /// Folder to write to.
    #[arg(long)]
    pub(crate) out: PathBuf,
    /// Model folder or GGUF file, for token texts.
    #[arg(long)]
    pub(crate) model: Option<PathBuf>,
    /// Ledger of claims to show as the investigation's time line.
    #[arg(long, value_name = "FILE")]
    pub(crate) claims: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) aside: AsideArgs,
}

/// `inspect`.
#[derive(Debug, Args)]
pub(crate) struct InspectArgs {
    /// Run folder, foreign trace, safetensors file or GGUF file.
    pub(crate) run: PathBuf,
    /// Print the step rows of this sample.
    #[arg(long)]
    pub(crate) sample: Option<String>,
    /// Positions to print, `100-120`.
    #[arg(long)]
    pub(crate) positions: Option<String>,
    /// Request that a file of log-probabilities answers (JSON), for the number of candidates asked for.
    #[arg(long, value_name = "FILE")]
    pub(crate) request: Option<PathBuf>,
    /// Logits of each row, `{"logits": [[..], ..]}`: tells which transform gave the log-probabilities of each entry.
    #[arg(long, value_name = "FILE")]
    pub(crate) logits: Option<PathBuf>,
    /// Temperature that the transform may have used.
    #[arg(long)]
    pub(crate) temperature: Option<f64>,
    /// Top-p that the transform may have used.
    #[arg(long)]
    pub(crate) top_p: Option<f64>,
}
