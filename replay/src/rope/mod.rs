//! Tables of inverse frequencies against the configurations that ask for them.
//!
//! The reference resolves a configuration and computes its frequencies in f64; an engine's table is held against them band by band, and
//! against the tables that known mistakes give: a base that fell back to 10000, a scaling that was dropped or read as another one.

mod config;
mod report;
#[cfg(test)]
mod tests;
mod variants;

use lockstep_traces::Verdict;

pub use config::RopeConfig;
pub use report::{ConfigTable, PhaseError, RopeFinding, RopeReport, TableCheck, TableFit};

/// An engine's table.
#[derive(Debug, Clone, PartialEq)]
pub struct EngineTable {
    /// Name in its file.
    pub name: String,
    /// Inverse frequencies, fastest band first.
    pub values: Vec<f64>,
}

/// What is asked of the tables.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct RopeQuestion {
    /// Positions at which phase errors are given.
    pub positions: Vec<u64>,
    /// Largest relative difference of a band that counts as none; that of f32 arithmetic without it.
    pub tolerance: Option<f64>,
}

/// What f32 arithmetic may make of a frequency, relative: rounding the exponent moves a power of theta by ln(theta) * 2^-24, and the power,
/// its reciprocal and two operations of a scaling round once each.
fn rounding(theta: f64) -> f64 {
    (theta.max(10_000.0).ln() + 4.0) * 2f64.powi(-24)
}

/// Computes the table of every configuration and compares the engine's with those that they belong to. `pairs` gives for each
/// configuration its engine table, where there is one.
#[must_use]
pub fn check(
    configs: &[RopeConfig],
    pairs: &[Option<&EngineTable>],
    question: &RopeQuestion,
) -> RopeReport {
    let tables: Vec<ConfigTable> = configs
        .iter()
        .zip(pairs)
        .map(|(config, engine)| {
            let engine = engine.map(|engine| report::table(config, engine, question));
            ConfigTable::new(config, engine)
        })
        .collect();
    let mut out = RopeReport {
        same_table: report::groups(&tables),
        configs: tables,
        findings: Vec::new(),
        limits: Vec::new(),
        verdict: Verdict::Identical,
        summary: String::new(),
    };
    report::conclude(&mut out);
    out
}
