//! Both sides of a deciding row, in full.

use crate::report::{RowView, Split, SplitClass, SplitKind, TopEntry};
use crate::side::Row;
use crate::ulp::Step;

/// One side of a row for the report; `chosen` is its token.
pub(crate) fn row_view(row: &Row<'_>, chosen: Option<u32>, step: Step) -> RowView {
    let margin = row.margin();
    RowView {
        position: row.position,
        token_id: row.token_id,
        chosen,
        argmax: row.argmax,
        top: row
            .ids
            .iter()
            .zip(row.logits)
            .map(|(id, logit)| TopEntry { id: *id, logit: logit.is_finite().then_some(*logit) })
            .collect(),
        margin: margin.map(|(margin, _)| margin),
        margin_ulps: margin.and_then(|(margin, largest)| step.count(margin, largest)),
        gap: None,
        gap_ulps: None,
        uniform: row.uniform,
        rng_offset: row.rng_offset,
        rows_before: row.rows().map(|rows| rows.0),
        rows_after: row.rows().map(|rows| rows.1),
        compaction: row.compaction,
        finite: !row.non_finite(),
    }
}

/// A split without a gap between two ids.
pub(crate) fn plain_split(
    kind: SplitKind,
    class: SplitClass,
    left: Option<RowView>,
    right: Option<RowView>,
    step: Step,
    note: String,
) -> Split {
    let position = left.as_ref().or(right.as_ref()).map_or(0, |view| view.position);
    Split {
        kind,
        class,
        position,
        fed_at: position.saturating_add(1),
        left,
        right,
        margin_ulps: None,
        ulp_dtype: step.dtype.name().to_owned(),
        near_tie: class == SplitClass::NearTie,
        max_abs_diff: None,
        note,
    }
}
