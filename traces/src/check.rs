//! Results of checks and comparisons: the words in which every tool of the workbench answers.

use serde::{Deserialize, Serialize};

use crate::Cause;

/// Outcome of a comparison. Nothing skipped or missing ever counts as equal.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "kind")]
pub enum Verdict {
    /// Bit for bit equal, and the stored encoding can prove it.
    Identical,
    /// Different by no more than the same-dtype control.
    WithinNoise,
    /// Only choices among exactly equal values differ.
    Tie,
    /// Different.
    Diverged,
    /// Not decidable from what was given.
    Incomparable {
        /// The reason, one line.
        why: String,
    },
}

impl Verdict {
    /// `identical`, `within noise`, `tie`, `diverged` or `incomparable`.
    #[must_use]
    pub const fn word(&self) -> &'static str {
        match self {
            Self::Identical => "identical",
            Self::WithinNoise => "within noise",
            Self::Tie => "tie",
            Self::Diverged => "diverged",
            Self::Incomparable { .. } => "incomparable",
        }
    }

    /// Process exit status: 0 parity, 1 differs, 4 inconclusive.
    #[must_use]
    pub const fn exit_code(&self) -> u8 {
        match self {
            Self::Identical | Self::WithinNoise | Self::Tie => 0,
            Self::Diverged => 1,
            Self::Incomparable { .. } => 4,
        }
    }

    /// The graver of two verdicts: diverged > incomparable > tie > within noise > identical.
    #[must_use]
    pub fn worst(self, other: Self) -> Self {
        let rank = |verdict: &Self| match verdict {
            Self::Identical => 0,
            Self::WithinNoise => 1,
            Self::Tie => 2,
            Self::Incomparable { .. } => 3,
            Self::Diverged => 4,
        };
        if rank(&other) > rank(&self) { other } else { self }
    }
}

/// Which check was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CheckKind {
    /// `post == pre[keep]`, bit for bit, K and V.
    Gather,
    /// Keep-sets and score stages against a rule set.
    Selector,
    /// Positions, RoPE indices, protected rows.
    Positions,
    /// Forward pass against the reference.
    Forward,
    /// Token stream against a sampler.
    Sampler,
}

/// Where something was found. Fields that do not apply are `None`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Location {
    /// Sample.
    pub sample_id: Option<String>,
    /// Absolute position of the row.
    pub position: Option<u32>,
    /// Compaction ordinal, 1-based.
    pub ordinal: Option<u32>,
    /// Layer, 0-based.
    pub layer: Option<u32>,
    /// Head, 0-based: KV head in cache and keep-set findings, attention head in score findings.
    pub head: Option<u32>,
    /// Row in the cache (physical index), 0-based.
    pub row: Option<u32>,
    /// Stage: `q_norm`, `attn_out`, `scores.z`, `keep`, `gather.v`, ...
    pub stage: Option<String>,
}

/// One named figure behind a finding.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Evidence {
    /// What was measured.
    pub name: String,
    /// The figure, as text or number.
    pub value: serde_json::Value,
}

/// Something wrong, where it is, and what names it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Finding {
    /// The known cause that the evidence names, if it names one.
    pub cause: Option<Cause>,
    /// One line for people.
    pub title: String,
    /// Where.
    pub location: Location,
    /// Figures that carry the finding.
    pub evidence: Vec<Evidence>,
}

/// Answer of one check over one run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CheckReport {
    /// Which check.
    pub kind: CheckKind,
    /// Outcome over everything compared.
    pub verdict: Verdict,
    /// Units compared (heads, rows, tensors: `unit` says which).
    pub compared: u64,
    /// Units that differ.
    pub different: u64,
    /// Units that could not be compared; never counted as equal.
    pub skipped: u64,
    /// What one unit is.
    pub unit: String,
    /// What is wrong, gravest first.
    pub findings: Vec<Finding>,
    /// What the evidence does not cover, one line each.
    pub limits: Vec<String>,
    /// Kind-specific figures with stable keys.
    pub detail: serde_json::Value,
}
