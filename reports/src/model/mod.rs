//! A report as data: `report.json`, the one source of each number that a page, a figure or the terminal shows.

mod figures;
mod tables;

pub use figures::{
    Candidate, CompactionPoint, Curve, DriftMap, Firsts, KeepCounts, KeepHead, KeepMap, RowClass,
    SplitSide, SplitView, Timeline, TimelineRun,
};
pub(crate) use tables::verdict_sentence;
pub use tables::{Paragraph, ParagraphKind, PolicyRow, RunSummary, Token, TokenCell, TokenStrip};

use lockstep_diff::claims::ClaimsReport;
use lockstep_diff::report::{DiffReport, DriftReport, KeepSetReport, NoiseReport};
use lockstep_traces::{CheckReport, Finding, Verdict};
use serde::{Deserialize, Serialize};

/// Everything a report says. Absent parts are empty lists, and are not shown.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// Title of the page.
    pub title: String,
    /// Command line that made it, as text.
    pub command: String,
    /// Outcome over everything.
    pub verdict: Verdict,
    /// The story in order of reading.
    #[serde(default)]
    pub story: Vec<Paragraph>,
    /// Runs, baseline first.
    #[serde(default)]
    pub runs: Vec<RunSummary>,
    /// Comparisons of two runs.
    #[serde(default)]
    pub diffs: Vec<DiffReport>,
    /// Judgements against a same-dtype control.
    #[serde(default)]
    pub noise: Vec<NoiseReport>,
    /// Checks of one run.
    #[serde(default)]
    pub checks: Vec<CheckReport>,
    /// What was found, gravest first.
    #[serde(default)]
    pub findings: Vec<Finding>,
    /// Policies beside each other.
    #[serde(default)]
    pub policy_table: Vec<PolicyRow>,
    /// Rows held over positions.
    #[serde(default)]
    pub timelines: Vec<Timeline>,
    /// Margins and differences over positions.
    #[serde(default)]
    pub curves: Vec<Curve>,
    /// The two sides of a split.
    #[serde(default)]
    pub splits_view: Vec<SplitView>,
    /// Tokens around a split.
    #[serde(default)]
    pub strips: Vec<TokenStrip>,
    /// Hidden-state drift.
    #[serde(default)]
    pub drift: Vec<DriftMap>,
    /// Drift answers behind the maps.
    #[serde(default)]
    pub drift_reports: Vec<DriftReport>,
    /// Rows kept and dropped.
    #[serde(default)]
    pub keep_maps: Vec<KeepMap>,
    /// Keep-set answers behind the maps.
    #[serde(default)]
    pub keep_reports: Vec<KeepSetReport>,
    /// The ledger of claims, oldest first: the time line of the investigation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub claims: Option<ClaimsReport>,
    /// What the evidence does not cover, one line each.
    #[serde(default)]
    pub limits: Vec<String>,
}

impl Report {
    /// A report with a title and an outcome, and nothing else yet.
    #[must_use]
    pub fn new(title: impl Into<String>, command: impl Into<String>, verdict: Verdict) -> Self {
        Self {
            title: title.into(),
            command: command.into(),
            verdict,
            story: Vec::new(),
            runs: Vec::new(),
            diffs: Vec::new(),
            noise: Vec::new(),
            checks: Vec::new(),
            findings: Vec::new(),
            policy_table: Vec::new(),
            timelines: Vec::new(),
            curves: Vec::new(),
            splits_view: Vec::new(),
            strips: Vec::new(),
            drift: Vec::new(),
            drift_reports: Vec::new(),
            keep_maps: Vec::new(),
            keep_reports: Vec::new(),
            claims: None,
            limits: Vec::new(),
        }
    }
}
