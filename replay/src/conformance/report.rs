//! What a conformance run answers.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Outcome of one case.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "status")]
pub enum CaseStatus {
    /// Everything within its tolerance, keep-sets equal.
    Pass,
    /// As [`CaseStatus::Pass`], but rows whose expected scores tie at the threshold were chosen otherwise.
    TieEquivalent {
        /// Rows in the symmetric differences.
        rows: u64,
    },
    /// Something differs or is missing.
    Fail {
        /// What.
        why: String,
    },
}

/// One case.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CaseReport {
    /// Name in the index.
    pub name: String,
    /// Group.
    pub group: String,
    /// Outcome.
    #[serde(flatten)]
    pub status: CaseStatus,
    /// Largest raw difference over largest expected raw modulus.
    pub max_raw_rel: Option<f64>,
    /// Largest difference of ranked scores.
    pub max_agg_abs: Option<f64>,
    /// Keep-sets compared.
    pub keep_rows: u64,
    /// Keep-sets equal as sets.
    pub keep_equal: u64,
    /// Numbers compared in all: a case that compares none fails.
    pub compared: u64,
    /// Remarks, one line each.
    pub notes: Vec<String>,
}

impl CaseReport {
    pub(crate) fn new(name: &str, group: &str) -> Self {
        Self {
            name: name.to_owned(),
            group: group.to_owned(),
            status: CaseStatus::Pass,
            max_raw_rel: None,
            max_agg_abs: None,
            keep_rows: 0,
            keep_equal: 0,
            compared: 0,
            notes: Vec::new(),
        }
    }

    /// Keeps the first failure.
    pub(crate) fn fail(&mut self, why: impl Into<String>) {
        if !matches!(self.status, CaseStatus::Fail { .. }) {
            self.status = CaseStatus::Fail { why: why.into() };
        }
    }

    pub(crate) fn tie(&mut self, more: u64) {
        match &mut self.status {
            CaseStatus::Pass if more > 0 => self.status = CaseStatus::TieEquivalent { rows: more },
            CaseStatus::TieEquivalent { rows } => *rows += more,
            CaseStatus::Pass | CaseStatus::Fail { .. } => {}
        }
    }

    /// Fails where nothing was compared.
    pub(crate) fn close(mut self) -> Self {
        if self.compared == 0 {
            self.fail("nothing was compared");
        }
        self
    }
}

/// Totals of one group.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct GroupReport {
    /// Cases.
    pub cases: u64,
    /// Of these passed.
    pub passed: u64,
    /// Of these tie-equivalent.
    pub tie_equivalent: u64,
    /// Of these failed.
    pub failed: u64,
    /// Keep-sets compared.
    pub keep_rows: u64,
    /// Keep-sets equal.
    pub keep_equal: u64,
    /// Largest over the cases.
    pub max_raw_rel: Option<f64>,
    /// Largest over the cases.
    pub max_agg_abs: Option<f64>,
}

/// Answer of a conformance run.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct ConformanceReport {
    /// Which implementation ran the cases.
    pub implementation: String,
    /// Cases that the index lists.
    pub listed: u64,
    /// Cases in order of the index; the group `trt` after them.
    pub cases: Vec<CaseReport>,
    /// Totals by group.
    pub groups: BTreeMap<String, GroupReport>,
    /// Vectors that this verb does not run, one line each; never counted as passed.
    pub not_covered: Vec<String>,
}

impl ConformanceReport {
    pub(crate) fn new(implementation: &str, listed: usize, cases: Vec<CaseReport>) -> Self {
        let mut groups: BTreeMap<String, GroupReport> = BTreeMap::new();
        for case in &cases {
            groups.entry(case.group.clone()).or_default().add(case);
        }
        Self {
            implementation: implementation.to_owned(),
            listed: u64::try_from(listed).unwrap_or(u64::MAX),
            cases,
            groups,
            not_covered: Vec::new(),
        }
    }

    /// Something was compared and nothing failed.
    #[must_use]
    pub fn passed(&self) -> bool {
        !self.cases.is_empty()
            && !self.cases.iter().any(|case| matches!(case.status, CaseStatus::Fail { .. }))
    }

    /// Process exit status: 0 all cases agree, 1 one does not, 4 nothing here is covered.
    #[must_use]
    pub fn exit_code(&self) -> u8 {
        match (self.cases.is_empty(), self.passed()) {
            (true, _) => 4,
            (false, true) => 0,
            (false, false) => 1,
        }
    }
}

impl GroupReport {
    fn add(&mut self, case: &CaseReport) {
        self.cases += 1;
        match case.status {
            CaseStatus::Pass => self.passed += 1,
            CaseStatus::TieEquivalent { .. } => self.tie_equivalent += 1,
            CaseStatus::Fail { .. } => self.failed += 1,
        }
        self.keep_rows += case.keep_rows;
        self.keep_equal += case.keep_equal;
        self.max_raw_rel = larger(self.max_raw_rel, case.max_raw_rel);
        self.max_agg_abs = larger(self.max_agg_abs, case.max_agg_abs);
    }
}

pub(crate) fn larger(held: Option<f64>, other: Option<f64>) -> Option<f64> {
    match (held, other) {
        (Some(held), Some(other)) => Some(if other > held { other } else { held }),
        (held, other) => held.or(other),
    }
}
