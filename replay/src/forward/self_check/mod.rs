//! Does the harness itself stand on the right row? Asked before any number of a replay is believed.
//!
//! Everything here is found in the rows that a replay wrote, beside the recording; no option of the replay is consulted.

mod alignment;
mod dtype;
mod offsets;

use std::path::Path;

use lockstep_reference::forward::Precision;
use lockstep_traces::store::{RunReader, StepQuery};
use lockstep_traces::{
    CheckKind, CheckReport, EventRow, Evidence, Finding, Location, MemorySink, StepRow, Verdict,
};
use serde_json::json;

use super::recording::Recording;
use crate::ReplayError;

/// Rows and compactions of a replay, by sample.
#[derive(Debug, Clone, Default)]
pub struct Replayed {
    /// Sample ids with their rows in order.
    pub samples: Vec<(String, Vec<StepRow>)>,
    /// Compactions.
    pub events: Vec<EventRow>,
}

impl Replayed {
    /// From a run directory.
    ///
    /// # Errors
    /// Unreadable tables.
    pub fn from_run(run: &RunReader) -> Result<Self, ReplayError> {
        let columns = run.steps(&StepQuery::default())?;
        let rows = (0..columns.len).filter_map(|index| columns.row(index)).collect();
        Ok(Self { samples: grouped(rows), events: run.events(None)? })
    }

    /// From memory.
    #[must_use]
    pub fn from_sink(sink: &MemorySink) -> Self {
        Self { samples: grouped(sink.steps.clone()), events: sink.events.clone() }
    }

    /// Live rows when the step of this row began, from the replay's own compactions. One that came before the forward of a
    /// row belongs to that row's step and has not happened yet.
    fn expected_rows(&self, row: &StepRow) -> i64 {
        let own = self.events.iter().filter(|event| event.sample_id == row.sample_id);
        let dropped: i64 = own
            .filter(|event| {
                let own_step = row.compaction == Some(event.ordinal);
                event.absolute_position < row.position
                    || (event.absolute_position == row.position && !own_step)
            })
            .map(|event| i64::from(event.rows_before) - i64::from(event.rows_after))
            .sum();
        i64::from(row.position) - dropped
    }

    fn first_event(&self, sample: &str) -> Option<u32> {
        let own = self.events.iter().filter(|event| event.sample_id == sample);
        own.map(|event| event.absolute_position).min()
    }
}

fn grouped(rows: Vec<StepRow>) -> Vec<(String, Vec<StepRow>)> {
    let mut samples: Vec<(String, Vec<StepRow>)> = Vec::new();
    for row in rows {
        match samples.iter_mut().find(|(id, _)| *id == row.sample_id) {
            Some((_, rows)) => rows.push(row),
            None => samples.push((row.sample_id.clone(), vec![row])),
        }
    }
    samples
}

/// What the replay says about itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Claim {
    /// Arithmetic.
    pub precision: Precision,
    /// Rows of the first sample that are computed again in the claimed arithmetic and in f64, to judge the claim.
    pub control_rows: usize,
}

impl Claim {
    /// A claim judged on 48 rows.
    #[must_use]
    pub const fn of(precision: Precision) -> Self {
        Self { precision, control_rows: 48 }
    }
}

/// Findings and tallies of the self-check.
#[derive(Debug, Default)]
struct Tally {
    compared: u64,
    different: u64,
    skipped: u64,
    findings: Vec<Finding>,
    limits: Vec<String>,
}

impl Tally {
    fn finding(
        &mut self,
        cause: Option<lockstep_traces::Cause>,
        title: String,
        location: Location,
        evidence: Vec<Evidence>,
    ) {
        self.findings.push(Finding { cause, title, location, evidence });
    }
}

/// One figure.
pub(super) fn figure(name: &str, value: impl Into<serde_json::Value>) -> Evidence {
    Evidence { name: name.to_owned(), value: value.into() }
}

/// The recording counts its rows itself, every one of them.
fn counted(run: &RunReader) -> bool {
    run.manifest().rows_exact && run.manifest().limits.rows
}

/// Checks the harness: rows against positions, fed tokens against recorded ones, values against the claimed dtype.
///
/// Units are rows. The verdict is `diverged` where the harness made a mistake, `within noise` where it made none that
/// shows, `incomparable` where there was nothing to look at.
///
/// # Errors
/// Unreadable recordings, or a model that cannot be loaded for the control.
pub fn self_check(
    run: &RunReader,
    replayed: &Replayed,
    model_dir: &Path,
    claim: &Claim,
) -> Result<CheckReport, ReplayError> {
    let mut tally = Tally::default();
    let mut first = None;
    for (sample, rows) in &replayed.samples {
        let recording = Recording::read(run, sample)?;
        offsets::check(&recording, replayed, rows, counted(run), &mut tally);
        alignment::check(&recording, rows, &mut tally);
        first = first.or(Some((recording, rows)));
    }
    let mut dtype = json!(null);
    match first {
        // Figures of rows that stand elsewhere say nothing about arithmetic.
        Some((recording, rows)) if tally.findings.is_empty() => {
            let end = replayed.first_event(&recording.sample_id);
            dtype = dtype::check(&recording, rows, end, model_dir, claim, &mut tally)?;
        }
        _ => {
            tally
                .limits
                .push("arithmetic not judged: rows are not where they should be".to_owned());
        }
    }
    let verdict = if !tally.findings.is_empty() {
        Verdict::Diverged
    } else if tally.compared == 0 {
        Verdict::Incomparable { why: "the replay holds no row of the recording".to_owned() }
    } else {
        Verdict::WithinNoise
    };
    Ok(CheckReport {
        kind: CheckKind::Forward,
        verdict,
        compared: tally.compared,
        different: tally.different,
        skipped: tally.skipped,
        unit: "row".to_owned(),
        findings: tally.findings,
        limits: tally.limits,
        detail: json!({
            "check": "harness",
            "samples": replayed.samples.len(),
            "claimed_dtype": claim.precision.dtype().name(),
            "dtype": dtype,
        }),
    })
}
