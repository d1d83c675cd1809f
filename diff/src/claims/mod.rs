//! Which claims of a ledger still stand on their evidence, and which are wider than it.
//!
//! Pure: the ledger and what was found at the cited paths go in ([`lockstep_traces::claims`] reads both), a judgement comes
//! out. A claim whose artifact changed, is missing, is void or proves nothing, or which a later claim superseded, is
//! unsupported, and so is every claim that rests on it, until a new record proves it again.

mod judge;
mod scope;
#[cfg(test)]
mod tests;

use lockstep_traces::Verdict;
use lockstep_traces::claims::{Found, Ledger, Scope};
use serde::{Deserialize, Serialize};

pub use judge::judge;

/// Whether a claim stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ClaimStatus {
    /// Every artifact is what was cited, and none says that it proves nothing.
    Supported,
    /// It does not stand: see the reasons.
    Unsupported,
}

/// Why a claim does not stand.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "kind")]
pub enum Reason {
    /// Another content than was cited.
    Changed {
        /// Artifact.
        path: String,
        /// sha256 now.
        sha256: String,
    },
    /// Nothing is there.
    Missing {
        /// Artifact.
        path: String,
    },
    /// It is there and cannot be looked into.
    Unreadable {
        /// Artifact.
        path: String,
        /// Why.
        why: String,
    },
    /// Parts of it are void.
    Void {
        /// Artifact.
        path: String,
        /// Which parts.
        parts: Vec<String>,
    },
    /// Its own verdict says that nothing was shown.
    ProvesNothing {
        /// Artifact.
        path: String,
        /// That verdict.
        verdict: String,
    },
    /// A later claim replaces it.
    Superseded {
        /// That claim.
        by: String,
    },
    /// A claim that it rests on does not stand.
    RestsOnUnsupported {
        /// That claim.
        claim: String,
    },
    /// It names no evidence and rests on no claim.
    NoEvidence,
    /// The record is not what was written: its digest does not fit.
    Edited,
}

impl Reason {
    /// One line for people.
    #[must_use]
    pub fn line(&self) -> String {
        match self {
            Self::Changed { path, .. } => format!("{path} has changed since it was cited"),
            Self::Missing { path } => format!("{path} is missing"),
            Self::Unreadable { path, why } => format!("{path} cannot be looked into: {why}"),
            Self::Void { path, parts } => format!("{path} holds a void: {}", parts.join(", ")),
            Self::ProvesNothing { path, verdict } => {
                format!("{path} proves nothing: its verdict is {verdict}")
            }
            Self::Superseded { by } => format!("superseded by {by}"),
            Self::RestsOnUnsupported { claim } => format!("rests on {claim}, which does not stand"),
            Self::NoEvidence => "names no evidence".to_owned(),
            Self::Edited => {
                "the record was edited after it was written (its digest does not fit)".to_owned()
            }
        }
    }
}

/// A part of the scope that the evidence does not cover.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Wider {
    /// `samples`, `ordinals`, `windows` or `modes`.
    pub dimension: String,
    /// Claimed and not covered.
    pub claimed: Vec<String>,
    /// What the evidence covers of that dimension; empty where it does not say.
    pub covered: Vec<String>,
}

/// An artifact as cited and as found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EvidenceState {
    /// Path as in the ledger.
    pub path: String,
    /// sha256 as cited.
    pub cited_sha256: String,
    /// sha256 now; `null` where nothing can be read.
    pub found_sha256: Option<String>,
    /// Verdict when it was cited.
    pub cited_verdict: Option<String>,
    /// Verdict now.
    pub found_verdict: Option<String>,
}

/// One claim, judged.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JudgedClaim {
    /// Name.
    pub id: String,
    /// What is claimed.
    pub text: String,
    /// Date as written.
    pub date: Option<String>,
    /// Whether it stands.
    pub status: ClaimStatus,
    /// Why it does not; empty where it does.
    pub reasons: Vec<Reason>,
    /// Where its scope goes beyond its evidence.
    pub wider: Vec<Wider>,
    /// The claim that replaced it.
    pub superseded_by: Option<String>,
    /// Claims that it replaced.
    pub supersedes: Vec<String>,
    /// Claims that it rests on.
    pub rests_on: Vec<String>,
    /// Scope.
    pub scope: Scope,
    /// Scope as one line, to stand beside the verdict.
    pub scope_line: String,
    /// What it stands on.
    pub evidence: Vec<EvidenceState>,
    /// What the evidence does not say, one line each.
    pub notes: Vec<String>,
}

impl JudgedClaim {
    /// True where it stands and claims no more than its evidence covers.
    #[must_use]
    pub const fn holds(&self) -> bool {
        matches!(self.status, ClaimStatus::Supported) && self.wider.is_empty()
    }
}

/// A ledger, judged. Claims stand in the order of the ledger.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClaimsReport {
    /// Ledger as given.
    pub ledger: String,
    /// Claims, oldest first.
    pub claims: Vec<JudgedClaim>,
    /// Claims that stand.
    pub supported: u64,
    /// Claims that do not, superseded ones not counted.
    pub unsupported: u64,
    /// Claims wider than their evidence, superseded ones not counted.
    pub wider: u64,
    /// Claims that a later one replaced: retracted, and no open fault.
    pub superseded: u64,
    /// `identical` where all that were not superseded hold, `diverged` where one does not, `incomparable` where there is none.
    pub verdict: Verdict,
    /// One line for people.
    pub summary: String,
}

/// What was found for each claim's evidence, in the ledger's order.
pub type FoundFor = Vec<Vec<Found>>;

/// Looks at every artifact of a ledger that lies in the folder `base`, and judges. The only function here that reads files.
#[must_use]
pub fn check(label: &str, ledger: &Ledger, base: &std::path::Path) -> ClaimsReport {
    // An artifact cited twice is hashed once.
    let mut seen = std::collections::BTreeMap::new();
    let found = ledger
        .claims
        .iter()
        .map(|claim| {
            let each = claim.evidence.iter().map(|cited| {
                seen.entry(cited.path.clone())
                    .or_insert_with(|| lockstep_traces::claims::look(base, cited))
                    .clone()
            });
            each.collect()
        })
        .collect();
    judge(label, ledger, &found)
}
