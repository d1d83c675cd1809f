//! Keep-sets under a trigonometric score of positions alone: recomputed from the rows that the engine really had, at the claimed time and
//! at every time that an engine may have taken for it.
//!
//! The score is the one that a selection by rotated keys has where the keys say nothing: the sum over f of
//! `amp[f] * cos(omega[f] * (t - p) + phase[f])`, in f64, the largest kept, ties to the smaller position.

mod report;
#[cfg(test)]
mod tests;
mod times;

use lockstep_traces::Verdict;
use lockstep_traces::forms::{KeepSpec, KeptRows};

pub use report::{KeepFinding, KeepReport, KeptCheck, TimeFit};
pub use times::{TIMES, Time};

use crate::ReplayError;

/// The formula in words.
pub const FORMULA: &str = "sum_f amp[f]*cos(omega[f]*(t-p)+phase[f])";

/// A selection.
#[derive(Debug, Clone, PartialEq)]
struct Selected {
    /// Positions, rising.
    kept: Vec<u64>,
    /// Score of the last that stays less score of the first that goes; `None` where nothing goes.
    margin: Option<f64>,
}

/// Keeps the `budget` rows of the largest score at time `t`; `places` are what the score takes for their positions.
fn select(spec: &KeepSpec, t: f64, rows: &[u64], places: &[f64]) -> Selected {
    let score = |place: f64| -> f64 {
        let waves = spec.amp.iter().zip(&spec.omega).zip(&spec.phase);
        waves.map(|((amp, omega), phase)| amp * (omega * (t - place) + phase).cos()).sum()
    };
    let mut scored: Vec<(f64, u64)> =
        rows.iter().zip(places).map(|(row, place)| (score(*place), *row)).collect();
    scored.sort_by(|l, r| r.0.total_cmp(&l.0).then(l.1.cmp(&r.1)));
    let margin = scored.get(spec.budget).zip(scored.get(spec.budget.wrapping_sub(1)));
    let margin = margin.map(|(gone, kept)| kept.0 - gone.0);
    let mut kept: Vec<u64> = scored.iter().take(spec.budget).map(|(_, row)| *row).collect();
    kept.sort_unstable();
    Selected { kept, margin }
}

/// The selection at one compaction, with time and places as a hypothesis has them.
fn select_at(spec: &KeepSpec, time: Time, records: &[KeptRows], at: usize) -> Option<Selected> {
    let record = records.get(at)?;
    let t = time.value(spec, records, at)?;
    Some(select(spec, t, &record.rows, &time.places(record)))
}

/// Rows that two rising lists share.
fn common(left: &[u64], right: &[u64]) -> usize {
    left.iter().filter(|row| right.binary_search(row).is_ok()).count()
}

/// Recomputes every compaction and tries every time.
///
/// # Errors
/// [`ReplayError::Options`] where the claimed time is not known.
pub fn check(
    spec: &KeepSpec,
    records: &[KeptRows],
    time: Option<&str>,
) -> Result<KeepReport, ReplayError> {
    let name = time.or(spec.time.as_deref()).unwrap_or("absolute_position");
    let claimed = Time::named(name).ok_or_else(|| ReplayError::Options {
        what: format!("time `{name}` is not known; known are {}", names()),
    })?;
    let compactions = report::compactions(spec, claimed, records);
    let times: Vec<TimeFit> = TIMES
        .iter()
        .filter(|time| **time != claimed)
        .filter_map(|time| report::time_fit(spec, *time, claimed, records))
        .collect();
    let right = !compactions.is_empty() && compactions.iter().all(|one| one.right);
    let fitting = |wanted: bool| -> Vec<String> {
        let all = times
            .iter()
            .filter(|fit| right == wanted && fit.exact == records.len() && !records.is_empty());
        all.map(|fit| fit.name.clone()).collect()
    };
    let (recognised, not_excluded) = (fitting(false), fitting(true));
    let mut out = KeepReport {
        formula: FORMULA.to_owned(),
        claimed_time: name.to_owned(),
        budget: spec.budget,
        compactions,
        hypotheses: times,
        recognised,
        not_excluded,
        findings: Vec::new(),
        limits: Vec::new(),
        verdict: Verdict::Identical,
        summary: String::new(),
    };
    report::conclude(spec, records, &mut out);
    Ok(out)
}

fn names() -> String {
    TIMES.map(Time::name).join(", ")
}
