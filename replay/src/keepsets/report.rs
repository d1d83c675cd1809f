//! What the recomputation says.

use lockstep_traces::Verdict;
use lockstep_traces::forms::{KeepSpec, KeptRows};
use serde::Serialize;

use super::times::Time;
use super::{FORMULA, common, select_at};

/// A margin between the last row that stays and the first that goes below which f64 does not decide, relative to the sum of the
/// amplitudes: a cosine of an argument below 2^20 is off by at most 2^20 * 2^-53 from the rounding of the argument.
const EDGE: f64 = 1.2e-10;

/// One compaction.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct KeptCheck {
    /// Ordinal.
    pub compaction: u64,
    /// Position of the next token.
    pub absolute_position: u64,
    /// Rows before.
    pub rows: usize,
    /// Rows kept by the spec from the rows that the engine had.
    pub reference: Vec<u64>,
    /// Rows kept by the engine.
    pub engine: Vec<u64>,
    /// Rows in both.
    pub matches: usize,
    /// Rows kept by the spec.
    pub of: usize,
    /// The sets are equal.
    pub right: bool,
    /// Rows of the spec that the engine dropped.
    pub missing: Vec<u64>,
    /// Rows of the engine that the spec drops.
    pub surplus: Vec<u64>,
    /// Score of the last row that stays less score of the first that goes.
    pub edge_margin: Option<f64>,
}

/// A time that was tried.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TimeFit {
    /// Name.
    pub name: String,
    /// In words.
    pub title: String,
    /// t at each compaction.
    pub t: Vec<f64>,
    /// Rows in common with the engine at each compaction.
    pub matches: Vec<usize>,
    /// Compactions whose whole set it gives.
    pub exact: usize,
    /// Compactions at which t and p are those of the claimed time: they cannot tell the two apart.
    pub same_as_claimed: Vec<u64>,
    /// Compactions at which it keeps the rows that the claimed time keeps.
    pub same_keep_as_claimed: Vec<u64>,
}

/// Something that a reader must know.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct KeepFinding {
    /// `keeps_differ`, the name of a time, `cannot_show`, `kept_not_in_rows`, `kept_count`, `rows_not_from_kept`.
    pub name: String,
    /// Compactions that it is about.
    pub compactions: Vec<u64>,
    /// One line.
    pub title: String,
}

/// Answer.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct KeepReport {
    /// The score.
    pub formula: String,
    /// What t is claimed to be.
    pub claimed_time: String,
    /// Rows kept.
    pub budget: usize,
    /// Compactions.
    pub compactions: Vec<KeptCheck>,
    /// Other times.
    pub hypotheses: Vec<TimeFit>,
    /// Times that give every set, where the claimed one does not.
    pub recognised: Vec<String>,
    /// Times that give every set as well as the claimed one: this evidence does not exclude them.
    pub not_excluded: Vec<String>,
    /// What was found.
    pub findings: Vec<KeepFinding>,
    /// What the evidence does not cover.
    pub limits: Vec<String>,
    /// Outcome.
    pub verdict: Verdict,
    /// One line.
    pub summary: String,
}

pub(super) fn compactions(spec: &KeepSpec, claimed: Time, records: &[KeptRows]) -> Vec<KeptCheck> {
    let one = |(at, record): (usize, &KeptRows)| {
        let reference = select_at(spec, claimed, records, at)?;
        let without = |list: &[u64], other: &[u64]| -> Vec<u64> {
            list.iter().filter(|row| other.binary_search(row).is_err()).copied().collect()
        };
        Some(KeptCheck {
            compaction: record.compaction,
            absolute_position: record.absolute_position,
            rows: record.rows.len(),
            matches: common(&reference.kept, &record.kept),
            of: reference.kept.len(),
            right: reference.kept == record.kept,
            missing: without(&reference.kept, &record.kept),
            surplus: without(&record.kept, &reference.kept),
            edge_margin: reference.margin,
            reference: reference.kept,
            engine: record.kept.clone(),
        })
    };
    records.iter().enumerate().filter_map(one).collect()
}

pub(super) fn time_fit(
    spec: &KeepSpec,
    time: Time,
    claimed: Time,
    records: &[KeptRows],
) -> Option<TimeFit> {
    let (mut t, mut matches, mut exact) = (Vec::new(), Vec::new(), 0);
    let (mut same, mut same_keep) = (Vec::new(), Vec::new());
    for (at, record) in records.iter().enumerate() {
        let given = select_at(spec, time, records, at)?;
        t.push(time.value(spec, records, at)?);
        matches.push(common(&given.kept, &record.kept));
        exact += usize::from(given.kept == record.kept);
        if time.same_as(claimed, spec, records, at) {
            same.push(record.compaction);
        }
        if select_at(spec, claimed, records, at).is_some_and(|other| other.kept == given.kept) {
            same_keep.push(record.compaction);
        }
    }
    Some(TimeFit {
        name: time.name().to_owned(),
        title: time.words().to_owned(),
        t,
        matches,
        exact,
        same_as_claimed: same,
        same_keep_as_claimed: same_keep,
    })
}

pub(super) fn conclude(spec: &KeepSpec, records: &[KeptRows], report: &mut KeepReport) {
    structure(spec, records, report);
    let structural = report.findings.len();
    let wrong: Vec<&KeptCheck> = report.compactions.iter().filter(|one| !one.right).collect();
    let mut found = Vec::new();
    if !wrong.is_empty() {
        let list: Vec<String> = report
            .compactions
            .iter()
            .map(|one| format!("{} {}/{}", one.compaction, one.matches, one.of))
            .collect();
        found.push(KeepFinding {
            name: "keeps_differ".to_owned(),
            compactions: wrong.iter().map(|one| one.compaction).collect(),
            title: format!("rows in common by compaction: {}", list.join(", ")),
        });
    }
    for fit in report.hypotheses.iter().filter(|fit| report.recognised.contains(&fit.name)) {
        found.push(KeepFinding {
            name: fit.name.clone(),
            compactions: records.iter().map(|record| record.compaction).collect(),
            title: format!(
                "{}: this gives every kept row of all {} compactions",
                fit.title,
                records.len()
            ),
        });
        if !fit.same_as_claimed.is_empty() {
            let list: Vec<String> = fit.same_as_claimed.iter().map(u64::to_string).collect();
            found.push(KeepFinding {
                name: "cannot_show".to_owned(),
                compactions: fit.same_as_claimed.clone(),
                title: format!(
                    "compaction {} cannot show this fault: t is the same there as for {}",
                    list.join(", "),
                    report.claimed_time
                ),
            });
        }
    }
    report.findings.extend(found);
    limits(spec, report);
    let differs = report.compactions.iter().any(|one| !one.right) || structural > 0;
    let why = if records.is_empty() {
        Some("there is no compaction".to_owned())
    } else if records.iter().all(|record| record.rows.len() <= spec.budget) {
        Some(format!("no compaction has more rows than the budget of {}", spec.budget))
    } else {
        None
    };
    report.verdict = match (differs, why) {
        (true, _) => Verdict::Diverged,
        (false, Some(why)) => Verdict::Incomparable { why },
        (false, None) => Verdict::Identical,
    };
    let right = report.compactions.iter().filter(|one| one.right).count();
    report.summary = match &report.verdict {
        Verdict::Incomparable { why } => why.clone(),
        _ if report.recognised.is_empty() => format!(
            "{right} of {} keep-sets are those of the score with t = {}",
            records.len(),
            report.claimed_time
        ),
        _ => format!(
            "{right} of {} keep-sets are those of the score with t = {}; all are with t = {}",
            records.len(),
            report.claimed_time,
            report.recognised.join(" or ")
        ),
    };
}

/// Faults of the recording that no score explains.
fn structure(spec: &KeepSpec, records: &[KeptRows], report: &mut KeepReport) {
    let mut add = |name: &str, record: &KeptRows, title: String| {
        let compactions = vec![record.compaction];
        report.findings.push(KeepFinding { name: name.to_owned(), compactions, title });
    };
    for record in records {
        let at = record.compaction;
        if let Some(row) = record.kept.iter().find(|row| !record.rows.contains(row)) {
            add(
                "kept_not_in_rows",
                record,
                format!("compaction {at} keeps row {row}, which was not there"),
            );
        }
        let wanted = spec.budget.min(record.rows.len());
        if record.kept.len() != wanted {
            add(
                "kept_count",
                record,
                format!("compaction {at} keeps {} rows and not {wanted}", record.kept.len()),
            );
        }
    }
    for pair in records.windows(2) {
        let [before, after] = pair else { continue };
        let mut wanted = before.kept.clone();
        // A recording may leave compactions out.
        if after.compaction != before.compaction + 1 {
            continue;
        }
        // More positions than rows are never all there, and one more shows it.
        let most = before.absolute_position.saturating_add(after.rows.len() as u64 + 1);
        wanted.extend(before.absolute_position..after.absolute_position.min(most));
        wanted.sort_unstable();
        let mut rows = after.rows.clone();
        rows.sort_unstable();
        if wanted != rows {
            let title = format!(
                "rows of compaction {} are not the rows kept by compaction {} and those appended since",
                after.compaction, before.compaction
            );
            add("rows_not_from_kept", after, title);
        }
    }
}

fn limits(spec: &KeepSpec, report: &mut KeepReport) {
    let plain = |text: &str| text.chars().filter(|c| !c.is_whitespace()).collect::<String>();
    if let Some(said) = &spec.score
        && !plain(said).starts_with(&plain(FORMULA))
    {
        report.limits.push(format!(
            "the spec describes its score as `{said}`, which is not read; {FORMULA} was used"
        ));
    }
    let scale: f64 = spec.amp.iter().map(|amp| amp.abs()).sum();
    for one in &report.compactions {
        if one.edge_margin.is_some_and(|margin| margin <= EDGE * scale) {
            report.limits.push(format!(
                "compaction {}: the last row that stays and the first that goes score the same in f64",
                one.compaction
            ));
        }
        if spec.trigger_rows.is_some_and(|rows| rows != one.rows) {
            report.limits.push(format!(
                "compaction {} had {} rows, not those of the trigger",
                one.compaction, one.rows
            ));
        }
    }
    if !report.not_excluded.is_empty() {
        let list = report.not_excluded.join(", ");
        report.limits.push(format!("the same sets would also come from t = {list}"));
    }
    if report.compactions.iter().any(|one| !one.right) && report.recognised.is_empty() {
        report.limits.push("no time that was tried gives every set".to_owned());
    }
}
