//! Positions, RoPE indices, row counts, triggers and protected rows of one run against its own manifest.
//!
//! Three parts: the step table (gapless positions, `rope_index == position`, row arithmetic, the trigger), the tables of
//! events and samples (round starts, what contradicts itself), and every dumped keep-set (positions gathered by it, window
//! and prefix kept). What the run should hold and does not never passes. Rules that the manifest does not name are not
//! checked and said so; they never count as passed.

mod collect;
mod rules;
mod sets;
mod steps;
mod tables;

use lockstep_traces::store::{RunReader, StepColumn, StepQuery};
use lockstep_traces::{CheckKind, CheckReport, TraceError, Verdict};
use serde_json::json;

use collect::Collector;
pub(crate) use rules::Rules;

/// Checks one run.
///
/// # Errors
/// [`TraceError`] where the run or a dump cannot be read or contradicts its own sizes.
pub fn check(run: &RunReader) -> Result<CheckReport, TraceError> {
    if !run.manifest().limits.rows {
        return Ok(not_counted());
    }
    let query = StepQuery {
        columns: Some(vec![
            StepColumn::Phase,
            StepColumn::TokenId,
            StepColumn::NextToken,
            StepColumn::RowsBefore,
            StepColumn::RowsAfter,
            StepColumn::Compaction,
            StepColumn::RopeIndex,
        ]),
        ..StepQuery::default()
    };
    let (columns, events, samples) = (run.steps(&query)?, run.events(None)?, run.samples()?);
    let rules = Rules::of(run.manifest());
    let mut found = Collector::default();
    let table = steps::Table { columns: &columns, events: &events, samples: &samples };
    let rows = steps::check(&table, &rules, &mut found);
    tables::check(&table, &rules, &mut found);
    let heads = sets::check(run, &events, &samples, &rules, &mut found)?;
    let (skipped, missing) = (found.skipped, found.missing.take());
    let (findings, limits, different) = found.finish();
    let compared = rows + heads;
    let verdict = if !findings.is_empty() {
        Verdict::Diverged
    } else if compared == 0 && missing.is_none() {
        Verdict::Incomparable {
            why: "the run holds no rows and no keep-sets: nothing was checked".to_owned(),
        }
    } else if let Some(first) = missing {
        Verdict::Incomparable { why: format!("{first} ({skipped} such in all)") }
    } else {
        Verdict::Identical
    };
    Ok(CheckReport {
        kind: CheckKind::Positions,
        verdict,
        compared,
        different,
        skipped,
        unit: "step rows and head keep-sets".to_owned(),
        findings,
        limits,
        detail: json!({
            "step_rows": rows,
            "head_keep_sets": heads,
            "compactions": events.len(),
            "samples": columns.sample_ids,
            "ordinals": events.iter().map(|event| event.ordinal).collect::<std::collections::BTreeSet<_>>(),
            "trigger_checked": rules.trigger_known(),
            "window": rules.window,
            "prefix_protected": rules.protects,
        }),
    })
}

/// The answer where the source does not count rows: placeholders would agree with every rule.
fn not_counted() -> CheckReport {
    let why = "rows: not available: the source of this run does not count them".to_owned();
    CheckReport {
        kind: CheckKind::Positions,
        verdict: Verdict::Incomparable { why: why.clone() },
        compared: 0,
        different: 0,
        skipped: 0,
        unit: "step rows and head keep-sets".to_owned(),
        findings: Vec::new(),
        limits: vec![why],
        detail: json!({"step_rows": 0, "head_keep_sets": 0}),
    }
}

#[cfg(test)]
mod tests;
