//! Which of the recorded shifts reached the keys.

use serde::Serialize;

use super::moves::Moved;

/// Shifts of which every subset is tried.
const MOST_SUBSETS: usize = 10;

/// A hypothesis about what was applied.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Hypothesis {
    pub(super) name: &'static str,
    /// Operations that were applied, from 0; empty for those that are no subset.
    pub(super) ops: Vec<usize>,
    pub(super) words: String,
    /// Applied shift by cell.
    pub(super) applied: Vec<i64>,
}

/// How far a hypothesis goes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct RotationFit {
    /// Angles: `no_rotation`, `only_first_shift`, `only_last_shift`, `only_shifts`, `only_when_rows_leave`, `turned_backwards`,
    /// `turned_twice`, `earlier_shifts_again`. Positions: `no_shift`, `only_first_shift`, `only_last_shift`, `only_shifts`.
    pub name: String,
    /// In words.
    pub title: String,
    /// Operations that were applied, from 1.
    pub ops: Vec<usize>,
    /// Cells that it explains.
    pub cells: usize,
    /// Cells compared.
    pub of: usize,
}

impl RotationFit {
    pub(super) const fn all(&self) -> bool {
        self.cells == self.of && self.of > 0
    }
}

/// Proper subsets of `ops`: all where they are few, else none, each alone, and all but one.
pub(super) fn subsets(ops: &[usize]) -> Vec<Vec<usize>> {
    if ops.len() <= MOST_SUBSETS {
        let pick = |mask: usize| {
            let of = ops.iter().enumerate().filter(|(bit, _)| mask >> bit & 1 == 1);
            of.map(|(_, op)| *op).collect()
        };
        return (0..(1_usize << ops.len()).saturating_sub(1)).map(pick).collect();
    }
    let mut out = vec![Vec::new()];
    for op in ops {
        out.push(vec![*op]);
        out.push(ops.iter().filter(|other| *other != op).copied().collect());
    }
    out
}

/// The name and words of a subset.
pub(super) fn named(
    subset: &[usize],
    ops: &[usize],
    nothing: &'static str,
) -> (&'static str, String) {
    let one = |op: Option<&usize>| op.is_some_and(|op| subset == [*op]);
    if subset.is_empty() {
        let words =
            if nothing == "no_rotation" { "no rotation at all" } else { "no operation at all" };
        (nothing, words.to_owned())
    } else if one(ops.last()) {
        ("only_last_shift", "only the last operation was applied".to_owned())
    } else if one(ops.first()) {
        ("only_first_shift", "only the first operation was applied".to_owned())
    } else {
        let list: Vec<String> = subset.iter().map(|op| (op + 1).to_string()).collect();
        ("only_shifts", format!("only operations {} were applied", list.join(", ")))
    }
}

/// Ways in which rotations go wrong while positions are right.
pub(super) fn of_angles(right: &Moved) -> Vec<Hypothesis> {
    let cells = right.positions.len();
    let moving = right.moving();
    let sum = |weight: &dyn Fn(usize) -> i64| -> Vec<i64> {
        let of = |cell: usize| {
            right
                .deltas
                .iter()
                .enumerate()
                .map(|(op, deltas)| deltas[cell].saturating_mul(weight(op)))
                .fold(0_i64, i64::saturating_add)
        };
        (0..cells).map(of).collect()
    };
    let mut out = Vec::new();
    for subset in subsets(&moving) {
        let (name, words) = named(&subset, &moving, "no_rotation");
        let applied = sum(&|op| i64::from(subset.contains(&op)));
        out.push(Hypothesis { name, ops: subset, words, applied });
    }
    let mut add = |name, words: &str, weight: &dyn Fn(usize) -> i64| {
        out.push(Hypothesis {
            name,
            ops: Vec::new(),
            words: words.to_owned(),
            applied: sum(weight),
        });
    };
    add(
        "only_when_rows_leave",
        "keys are turned only where rows were removed before the shift",
        &|op| {
            let start = moving.iter().rev().find(|other| **other < op).map_or(0, |other| other + 1);
            i64::from(right.removing[start..op].contains(&true))
        },
    );
    add("turned_backwards", "keys are turned the other way", &|_| -1);
    add("turned_twice", "every shift is applied twice", &|_| 2);
    if moving.len() > 1 {
        add("earlier_shifts_again", "every shift applies the earlier ones again", &|op| {
            moving.iter().filter(|later| **later >= op).count() as i64
        });
    }
    out
}
