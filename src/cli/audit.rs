//! Arguments of `audit`, and of setting an audit aside.

use std::path::PathBuf;

use clap::{Args, Subcommand};

/// `audit`: evidence, or one of the parts below.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub(crate) struct AuditVerb {
    /// What else than runs and artifacts.
    #[command(subcommand)]
    pub(crate) what: Option<AuditCommand>,
    /// Runs and artifacts.
    #[command(flatten)]
    pub(crate) evidence: AuditArgs,
}

/// What `audit` judges besides runs and artifacts.
#[derive(Debug, Subcommand)]
pub(crate) enum AuditCommand {
    /// Arms of an experiment: may a difference of scores be put down to one factor?
    ///
    /// [{"arm": "dense", FACTOR: level, .., "score": 0.95}, ..], a list or one a line. Two arms control a factor where they differ in nothing
    /// else; an absent factor and null are the same level. Exit 0 where every controlled pair differs, 1 where none does, 4 where the factor
    /// is confounded with others or controls disagree.
    Arms(super::ArmsArgs),
}

/// `audit`.
#[derive(Debug, Args)]
pub(crate) struct AuditArgs {
    /// Run folders, foreign traces and artifacts, answers of checks. `A+B` are files about one run. Of two runs the first is the
    /// baseline.
    #[arg(required_unless_present_any = ["list", "self_test", "pair"], value_name = "PATH")]
    pub(crate) paths: Vec<String>,
    /// Only these audits, by number or slug; without evidence for one of them the exit status is 4.
    #[arg(long, value_delimiter = ',', value_name = "AUDIT")]
    pub(crate) only: Vec<String>,
    /// Baseline and target, where the order of PATHs does not say it.
    #[arg(long, num_args = 2, value_names = ["L", "R"])]
    pub(crate) pair: Vec<String>,
    /// Log of the target, or of the only run.
    #[arg(long, value_name = "FILE")]
    pub(crate) log: Option<PathBuf>,
    /// Commits of the code under test, newest first, one a line.
    #[arg(long, value_name = "FILE", requires = "touched")]
    pub(crate) history: Option<PathBuf>,
    /// The commit that last touched what is checked; evidence from before it is stale.
    #[arg(long, value_name = "COMMIT", requires = "history")]
    pub(crate) touched: Option<String>,
    #[command(flatten)]
    pub(crate) aside: AsideArgs,
    /// Print the audits and what each compares.
    #[arg(long, conflicts_with_all = ["paths", "pair", "self_test"])]
    pub(crate) list: bool,
    /// Run every audit on its own controls: planted faults and clean evidence.
    #[arg(long, conflicts_with_all = ["paths", "pair"])]
    pub(crate) self_test: bool,
}

/// Audits set aside.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct AsideArgs {
    /// Set an audit aside; the reason goes into the answer.
    #[arg(long, value_name = "AUDIT=REASON")]
    pub(crate) ignore_audit: Vec<String>,
}
