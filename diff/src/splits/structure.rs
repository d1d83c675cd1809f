//! Rows held, compactions, and constant offsets between the two sides.

use std::collections::BTreeMap;

use lockstep_traces::EventRow;

use crate::side::Row;

/// How the two sides count rows.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RowsRule {
    /// Both sides' row counts are the source's own; nothing is compared otherwise.
    pub(crate) known: bool,
    pub(crate) left_exact: bool,
    pub(crate) right_exact: bool,
    /// Rows are rounded up to multiples of this where a side is not exact.
    pub(crate) bucket: u32,
}

impl RowsRule {
    /// Which count differs, in words; `None` where the counts agree as far as they are known.
    pub(crate) fn difference(self, left: &Row<'_>, right: &Row<'_>) -> Option<String> {
        if !self.known {
            return None;
        }
        let before = |row: &Row<'_>, exact: bool| {
            if exact { row.rows_before } else { row.rows_bucketed.unwrap_or(row.rows_before) }
        };
        let (lb, rb) = (before(left, self.left_exact), before(right, self.right_exact));
        let before_differs = !self.agree(lb, rb);
        let after_differs = !self.agree(left.rows_after, right.rows_after);
        let words = if self.left_exact && self.right_exact { "" } else { " (buckets)" };
        match (before_differs, after_differs) {
            (false, false) => None,
            (false, true) => Some(format!(
                "rows after {} against {}{words}, rows before equal ({lb}): the row itself still saw the same cache",
                left.rows_after, right.rows_after
            )),
            (true, _) => Some(format!(
                "rows before {lb} against {rb}{words}, rows after {} against {}: this row already saw another cache",
                left.rows_after, right.rows_after
            )),
        }
    }

    /// Both sides count every row.
    pub(crate) const fn exact(self) -> bool {
        self.known && self.left_exact && self.right_exact
    }

    fn agree(self, left: u32, right: u32) -> bool {
        let up =
            |rows: u32| rows.max(1).div_ceil(self.bucket.max(1)).saturating_mul(self.bucket.max(1));
        match (self.left_exact, self.right_exact) {
            (true, true) | (false, false) => left == right,
            (true, false) => left == right || up(left) == right,
            (false, true) => left == right || up(right) == left,
        }
    }
}

/// Right rows minus left rows over the compared rows, where this is a constant or steps once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Offsets {
    /// One constant over all rows.
    Constant(i64),
    /// 0 first, then a positive constant from this left position on, with no compaction there.
    From(u32, i64),
    /// Neither.
    Mixed,
}

/// Looks for a constant offset of the row counts.
pub(crate) fn offsets<'a>(pairs: impl Iterator<Item = (Row<'a>, Row<'a>)>) -> Option<Offsets> {
    let mut first: Option<i64> = None;
    let mut later: Option<(u32, i64)> = None;
    let mut seen = 0_usize;
    for (left, right) in pairs {
        seen += 1;
        let before = i64::from(right.rows_before) - i64::from(left.rows_before);
        let start = *first.get_or_insert(before);
        match later {
            None if before == start => {}
            None => {
                let compacted = left.compaction.is_some() || right.compaction.is_some();
                if start != 0 || before <= 0 || compacted {
                    return Some(Offsets::Mixed);
                }
                later = Some((left.position, before));
            }
            Some((_, constant)) if before == constant => {}
            Some(_) => return Some(Offsets::Mixed),
        }
    }
    if seen < 2 {
        return None;
    }
    match later {
        Some((position, constant)) => Some(Offsets::From(position, constant)),
        None => first.map(Offsets::Constant),
    }
}

/// First compaction that the two event tables tell differently: left position of its row, in words.
pub(crate) fn event_difference(
    left: &BTreeMap<u32, &EventRow>,
    right: &BTreeMap<u32, &EventRow>,
    offset: i64,
) -> Option<(u32, String)> {
    let row_of = |event: &EventRow| event.absolute_position.saturating_sub(1);
    for (ordinal, l) in left {
        let Some(r) = right.get(ordinal) else {
            return Some((row_of(l), format!("compaction {ordinal} happened on the left only")));
        };
        let shifted = i64::from(r.absolute_position) - offset;
        if i64::from(l.absolute_position) != shifted {
            let text = format!(
                "compaction {ordinal} at N = {} against {}",
                l.absolute_position, r.absolute_position
            );
            let first = l.absolute_position.min(r.absolute_position);
            return Some((first.saturating_sub(1), text));
        }
        if (l.rows_before, l.rows_after) != (r.rows_before, r.rows_after) {
            let text = format!(
                "compaction {ordinal} took {} to {} rows against {} to {}",
                l.rows_before, l.rows_after, r.rows_before, r.rows_after
            );
            return Some((row_of(l), text));
        }
        if let Some((a, b)) = l.round_start.zip(r.round_start)
            && a != b
        {
            return Some((
                row_of(l),
                format!("compaction {ordinal} scored from round start {a} against {b}"),
            ));
        }
    }
    let extra = right.iter().find(|(ordinal, _)| !left.contains_key(ordinal))?;
    let text = format!("compaction {} happened on the right only", extra.0);
    let position = i64::from(row_of(extra.1)) - offset;
    Some((u32::try_from(position).unwrap_or(0), text))
}
