//! Positions that were shifted, and keys that should have been turned with them.

use std::f64::consts::{PI, TAU};

use lockstep_traces::Verdict;
use lockstep_traces::forms::Shifts;
use serde::Serialize;

use super::moves::{Moved, carry_out};
use super::rotations::{Hypothesis, RotationFit, named, of_angles, subsets};
use super::{StateFinding, ranges};

/// Largest error of an angle of one radian or less, relative beyond: f32 rounds theta, the product and the two components from which an
/// angle is read, 2^-24 each, with room for four such roundings.
const TOLERANCE: f64 = 4.8e-7;

/// One cell.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct CellShift {
    /// Position before.
    pub before: i64,
    /// Position after all operations; `null`: gone.
    pub position: Option<i64>,
    /// Position after less position before.
    pub total_delta: Option<i64>,
    /// Angle that its key must have, in radians.
    pub angle: Option<f64>,
}

/// One list of observed positions.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct PositionList {
    /// Its name.
    pub name: String,
    /// Every cell is right.
    pub right: bool,
    /// Cells that are not.
    pub wrong_cells: Vec<u64>,
    /// Subsets of the operations that give every cell, where all of them do not.
    pub recognised: Vec<String>,
    /// Hypotheses that give every cell or have a name of their own.
    pub hypotheses: Vec<RotationFit>,
}

/// One list of observed angles.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct AngleList {
    /// Its name.
    pub name: String,
    /// Every cell is right.
    pub right: bool,
    /// Cells that are not.
    pub wrong_cells: Vec<u64>,
    /// Observed less expected angle by cell, in radians; `null` where either is not there.
    pub errors: Vec<Option<f64>>,
    /// The same in positions.
    pub errors_in_positions: Vec<Option<f64>>,
    /// Hypotheses that give every cell, where the right shifts do not.
    pub recognised: Vec<String>,
    /// Hypotheses that would give the same angles, where all are right.
    pub not_excluded: Vec<String>,
    /// Hypotheses that give every cell or have a name of their own.
    pub hypotheses: Vec<RotationFit>,
}

/// Answer.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ShiftReport {
    /// Cells.
    pub cells: Vec<CellShift>,
    /// Positions after all operations.
    pub positions: Vec<Option<i64>>,
    /// Cells whose position changed.
    pub shifted_cells: Vec<u64>,
    /// No operation removed a cell.
    pub nothing_removed: bool,
    /// Observed positions.
    pub observed_positions: Vec<PositionList>,
    /// Observed angles.
    pub observed_angles: Vec<AngleList>,
    /// What was found.
    pub findings: Vec<StateFinding>,
    /// What the evidence does not cover.
    pub limits: Vec<String>,
    /// Outcome.
    pub verdict: Verdict,
    /// One line.
    pub summary: String,
}

/// Carries out the operations and holds what was observed against them.
#[must_use]
pub fn check(form: &Shifts) -> ShiftReport {
    let right = carry_out(&form.cells, &form.ops, |_| true);
    let cells: Vec<CellShift> = form
        .cells
        .iter()
        .zip(&right.positions)
        .zip(&form.theta)
        .map(|((before, position), theta)| CellShift {
            before: *before,
            position: *position,
            total_delta: position.map(|position| position - before),
            angle: position.map(|position| theta * position as f64),
        })
        .collect();
    let shifted = |cell: &CellShift| cell.total_delta.is_some_and(|delta| delta != 0);
    let hypotheses = of_angles(&right);
    let mut report = ShiftReport {
        positions: right.positions.clone(),
        shifted_cells: indices(cells.iter().map(shifted)),
        nothing_removed: !right.removing.contains(&true),
        observed_positions: form
            .positions
            .iter()
            .map(|list| positions(form, &right, list))
            .collect(),
        observed_angles: form
            .angles
            .iter()
            .map(|(name, list)| angles(form, &cells, &hypotheses, name, list))
            .collect(),
        cells,
        findings: Vec::new(),
        limits: Vec::new(),
        verdict: Verdict::Identical,
        summary: String::new(),
    };
    report.findings = findings(&report);
    conclude(form, &mut report);
    report
}

fn indices(hits: impl Iterator<Item = bool>) -> Vec<u64> {
    (0_u64..).zip(hits).filter(|(_, hit)| *hit).map(|(at, _)| at).collect()
}

fn positions(
    form: &Shifts,
    right: &Moved,
    (name, observed): &(String, Vec<Option<i64>>),
) -> PositionList {
    let wrong_cells = indices(right.positions.iter().zip(observed).map(|(l, r)| l != r));
    let acting: Vec<usize> = (0..form.ops.len())
        .filter(|op| right.removing[*op] || right.deltas[*op].iter().any(|delta| *delta != 0))
        .collect();
    let mut hypotheses = Vec::new();
    if !wrong_cells.is_empty() {
        for subset in subsets(&acting) {
            let (slug, title) = named(&subset, &acting, "no_shift");
            let given = carry_out(&form.cells, &form.ops, |op| subset.contains(&op)).positions;
            hypotheses.push(RotationFit {
                name: slug.to_owned(),
                title,
                ops: subset.iter().map(|op| op + 1).collect(),
                cells: given.iter().zip(observed).filter(|(l, r)| l == r).count(),
                of: observed.len(),
            });
        }
    }
    hypotheses.retain(|fit| fit.all() || fit.name != "only_shifts");
    PositionList {
        name: name.clone(),
        right: wrong_cells.is_empty(),
        recognised: fitting(&hypotheses),
        wrong_cells,
        hypotheses,
    }
}

fn fitting(hypotheses: &[RotationFit]) -> Vec<String> {
    hypotheses.iter().filter(|fit| fit.all()).map(|fit| fit.name.clone()).collect()
}

/// Observed less expected; to the nearest turn where angles are known up to turns.
fn error(form: &Shifts, observed: f64, expected: f64) -> f64 {
    let error = observed - expected;
    if form.wrapped { error - TAU * ((error + PI) / TAU).ceil() + TAU } else { error }
}

fn tolerance(angle: f64) -> f64 {
    TOLERANCE * angle.abs().max(1.0)
}

fn angles(
    form: &Shifts,
    cells: &[CellShift],
    hypotheses: &[Hypothesis],
    name: &str,
    observed: &[Option<f64>],
) -> AngleList {
    let errors: Vec<Option<f64>> = cells
        .iter()
        .zip(observed)
        .map(|(cell, observed)| Some(error(form, (*observed)?, cell.angle?)))
        .collect();
    let wrong_cells =
        indices(cells.iter().zip(&errors).map(|(cell, error)| match (cell.angle, error) {
            (Some(angle), Some(error)) => error.abs() > tolerance(angle),
            (Some(_), None) => true,
            (None, _) => false,
        }));
    let right = wrong_cells.is_empty();
    let mut fits: Vec<RotationFit> = hypotheses
        .iter()
        .map(|hypothesis| {
            let (mut hit, mut of) = (0, 0);
            let each = cells.iter().zip(&form.theta).zip(observed).zip(&hypothesis.applied);
            for (((cell, theta), observed), applied) in each {
                if cell.angle.is_some() {
                    let given = theta * cell.before.saturating_add(*applied) as f64;
                    of += 1;
                    let close = |seen: f64| error(form, seen, given).abs() <= tolerance(given);
                    hit += usize::from(observed.is_some_and(close));
                }
            }
            RotationFit {
                name: hypothesis.name.to_owned(),
                title: hypothesis.words.clone(),
                ops: hypothesis.ops.iter().map(|op| op + 1).collect(),
                cells: hit,
                of,
            }
        })
        .collect();
    fits.retain(|fit| fit.all() || fit.name != "only_shifts");
    let (recognised, not_excluded) =
        if right { (Vec::new(), fitting(&fits)) } else { (fitting(&fits), Vec::new()) };
    let in_positions =
        errors.iter().zip(&form.theta).map(|(error, theta)| error.map(|e| e / theta));
    AngleList {
        name: name.to_owned(),
        right,
        wrong_cells,
        errors_in_positions: in_positions.collect(),
        errors,
        recognised,
        not_excluded,
        hypotheses: fits,
    }
}

fn findings(report: &ShiftReport) -> Vec<StateFinding> {
    let mut out = Vec::new();
    for list in report.observed_positions.iter().filter(|list| !list.right) {
        let title = format!("positions of cells {} are wrong", ranges(&list.wrong_cells));
        out.push(StateFinding::new("positions_wrong", &list.name, title));
        named_fits(&mut out, &list.name, &list.recognised, &list.hypotheses);
    }
    for list in report.observed_angles.iter().filter(|list| !list.right) {
        let wrong = list.wrong_cells.iter().filter_map(|cell| usize::try_from(*cell).ok());
        let mut each: Vec<String> = wrong
            .map(|cell| match list.errors_in_positions.get(cell).copied().flatten() {
                Some(error) => format!("{error:+.3}"),
                None => "no angle".to_owned(),
            })
            .collect();
        each.dedup();
        let each = match each.as_slice() {
            [one] => format!("{one} positions each"),
            many => format!("{} positions", many.join(", ")),
        };
        let title = format!("angles of cells {} are off by {each}", ranges(&list.wrong_cells));
        out.push(StateFinding::new("angles_wrong", &list.name, title));
        named_fits(&mut out, &list.name, &list.recognised, &list.hypotheses);
    }
    let angles_wrong = report.observed_angles.iter().any(|list| !list.right);
    if angles_wrong && report.nothing_removed {
        let title = "nothing was removed before or between the shifts: a shift that runs only when rows leave would do nothing";
        out.push(StateFinding::new("nothing_removed", "", title));
    }
    out
}

fn named_fits(out: &mut Vec<StateFinding>, of: &str, names: &[String], fits: &[RotationFit]) {
    for fit in fits.iter().filter(|fit| fit.all() && names.contains(&fit.name)) {
        out.push(StateFinding::new(&fit.name, of, fit.title.clone()));
    }
}

fn conclude(form: &Shifts, report: &mut ShiftReport) {
    let slow = report.cells.iter().zip(&form.theta).filter(|(cell, theta)| {
        // Two hypotheses that differ by one position must be told apart at this angle.
        cell.angle.is_some_and(|angle| theta.abs() <= 2.0 * tolerance(angle))
    });
    let slow = slow.count();
    if slow > 0 {
        report
            .limits
            .push(format!("{slow} cells turn too little a position to show a shift by one"));
    }
    if form.angles.is_empty() {
        report
            .limits
            .push("no angle was observed: whether keys were turned is not shown".to_owned());
    }
    for list in report.observed_angles.iter().filter(|list| !list.not_excluded.is_empty()) {
        let names = list.not_excluded.join(", ");
        report.limits.push(format!("{}: these angles would also come from {names}", list.name));
    }
    for list in
        report.observed_angles.iter().filter(|list| !list.right && list.recognised.is_empty())
    {
        report.limits.push(format!("{}: no known mistake gives all of its angles", list.name));
    }
    let wrong: Vec<&str> = (report.observed_positions.iter().filter(|list| !list.right))
        .map(|list| list.name.as_str())
        .chain(
            report.observed_angles.iter().filter(|list| !list.right).map(|list| list.name.as_str()),
        )
        .collect();
    let lists = form.positions.len() + form.angles.len();
    let why = if lists == 0 {
        Some("nothing was observed: no observed_pos.. and no observed_angle..")
    } else if report.shifted_cells.is_empty() && report.nothing_removed {
        Some("no operation moves or removes a cell")
    } else {
        (slow > 0 && !form.angles.is_empty())
            .then_some("cells turn too little to show a shift by one")
    };
    report.summary = match (wrong.is_empty(), why) {
        (true, Some(why)) => why.to_owned(),
        (true, None) => format!("{lists} observed lists agree with {} operations", form.ops.len()),
        (false, _) => format!("wrong: {}", wrong.join(", ")),
    };
    report.verdict = match (wrong.is_empty(), why) {
        (false, _) => Verdict::Diverged,
        (true, Some(why)) => Verdict::Incomparable { why: why.to_owned() },
        (true, None) => Verdict::Identical,
    };
}
