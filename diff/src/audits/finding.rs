//! What an audit says.

use serde::{Deserialize, Serialize};

/// Outcome of one audit. A missing fact is never a pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// Looked at, and it holds.
    Pass,
    /// A fact is not recorded; the finding names it.
    NoEvidence,
    /// Worth a look; the comparison may stand.
    Flag,
    /// The comparison proves nothing.
    Void,
}

impl Outcome {
    /// `pass`, `no evidence`, `flag`, `void`.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Pass => "pass",
            Self::NoEvidence => "no evidence",
            Self::Flag => "flag",
            Self::Void => "void",
        }
    }
}

/// One thing that an audit looked at, before the driver adds which audit it was.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Note {
    /// Outcome.
    pub outcome: Outcome,
    /// Labels of the subjects; empty: those that the audit was asked about.
    pub subjects: Vec<String>,
    /// What was held against what, with the values.
    pub compared: String,
    /// Sample, position, line, key: where it was found.
    pub place: Option<String>,
    /// What to do about it.
    pub remedy: Option<String>,
}

impl Note {
    fn new(outcome: Outcome, compared: impl Into<String>) -> Self {
        Self { outcome, subjects: Vec::new(), compared: compared.into(), place: None, remedy: None }
    }

    /// It holds.
    #[must_use]
    pub fn pass(compared: impl Into<String>) -> Self {
        Self::new(Outcome::Pass, compared)
    }

    /// The comparison proves nothing.
    #[must_use]
    pub fn void(compared: impl Into<String>) -> Self {
        Self::new(Outcome::Void, compared)
    }

    /// Worth a look.
    #[must_use]
    pub fn flag(compared: impl Into<String>) -> Self {
        Self::new(Outcome::Flag, compared)
    }

    /// `field` is not recorded by `label`.
    #[must_use]
    pub fn missing(field: &str, label: &str) -> Self {
        Self::new(Outcome::NoEvidence, format!("`{field}` is not recorded")).of([label])
    }

    /// Nothing can be said, for a reason that names what is missing.
    #[must_use]
    pub fn no_evidence(why: impl Into<String>) -> Self {
        Self::new(Outcome::NoEvidence, why)
    }

    /// Where it was found.
    #[must_use]
    pub fn at(mut self, place: impl Into<String>) -> Self {
        self.place = Some(place.into());
        self
    }

    /// What to do.
    #[must_use]
    pub fn remedy(mut self, remedy: impl Into<String>) -> Self {
        self.remedy = Some(remedy.into());
        self
    }

    /// Which subjects it is about, where these are not all that the audit was asked about.
    #[must_use]
    pub fn of<'s>(mut self, labels: impl IntoIterator<Item = &'s str>) -> Self {
        self.subjects = labels.into_iter().map(str::to_owned).collect();
        self
    }
}

/// One thing that an audit found. Keys are stable.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    /// Number of the audit.
    pub audit: u8,
    /// Its slug.
    pub slug: String,
    /// Its title.
    pub title: String,
    /// Outcome.
    pub verdict: Outcome,
    /// Labels of the subjects.
    pub subjects: Vec<String>,
    /// What was held against what, with the values.
    pub compared: String,
    /// Sample, position, line, key: where.
    #[serde(rename = "where")]
    pub place: Option<String>,
    /// What to do about it.
    pub remedy: Option<String>,
}

impl Finding {
    /// One line for people: `audit 16 (one-seed) void: ...; remedy`.
    #[must_use]
    pub fn line(&self) -> String {
        let mut out = format!(
            "audit {} ({}) {}: {}",
            self.audit,
            self.slug,
            self.verdict.word(),
            self.compared
        );
        if !self.subjects.is_empty() {
            out.push_str(" [");
            out.push_str(&self.subjects.join(" | "));
            out.push(']');
        }
        if let Some(place) = &self.place {
            out.push_str(" at ");
            out.push_str(place);
        }
        if let Some(remedy) = &self.remedy {
            out.push_str("; ");
            out.push_str(remedy);
        }
        out
    }
}
