//! Arguments of `claim`.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use lockstep_traces::claims::Window;

/// `claim`.
#[derive(Debug, Subcommand)]
pub(crate) enum ClaimCommand {
    /// Append a claim with the artifacts that it stands on, each by path and sha256.
    Add(Box<ClaimAddArgs>),
    /// Show the ledger: every claim with its scope and whether it still stands.
    List(ClaimLedgerArgs),
    /// Hash the artifacts again: exit 1 where a claim no longer stands or is wider than its evidence.
    Check(ClaimLedgerArgs),
}

/// Where the ledger is.
#[derive(Debug, Args)]
pub(crate) struct ClaimLedgerArgs {
    /// Ledger file; its folder is what artifact paths are relative to.
    #[arg(long, value_name = "FILE", default_value = "claims.toml")]
    pub(crate) ledger: PathBuf,
}

/// `claim add`.
#[derive(Debug, Args)]
pub(crate) struct ClaimAddArgs {
    /// What is claimed, in words.
    pub(crate) text: String,
    #[command(flatten)]
    pub(crate) ledger: ClaimLedgerArgs,
    /// Artifact: a run folder, the JSON answer of a verb, any other file. Repeat it for several.
    #[arg(long, value_name = "PATH")]
    pub(crate) evidence: Vec<PathBuf>,
    /// Samples that the claim is about; `all` for every sample.
    #[arg(long, value_delimiter = ',', value_name = "ID")]
    pub(crate) samples: Vec<String>,
    /// Compaction ordinals that it is about (1-based): `2`, `1,3`, `1-4`.
    #[arg(long, value_name = "SET")]
    pub(crate) ordinals: Option<lockstep_traces::Choice>,
    /// Windows of positions that it is about: `7150-7190`.
    #[arg(long, value_delimiter = ',', value_name = "A-B")]
    pub(crate) windows: Vec<Window>,
    /// Modes that it is about: greedy, sampled, a policy, a rule set, a dtype, a device, or words of your own.
    #[arg(long, value_delimiter = ',', value_name = "WORD")]
    pub(crate) modes: Vec<String>,
    /// A claim that this one replaces.
    #[arg(long, value_name = "ID")]
    pub(crate) supersedes: Vec<String>,
    /// A claim that this one follows from; it falls with it.
    #[arg(long, value_name = "ID")]
    pub(crate) rests_on: Vec<String>,
    /// Name of the claim; made from its content without it.
    #[arg(long)]
    pub(crate) id: Option<String>,
    /// Date to write beside it.
    #[arg(long)]
    pub(crate) date: Option<String>,
}
