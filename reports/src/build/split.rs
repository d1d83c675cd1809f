//! The split's two sides and the tokens around it.

use std::collections::BTreeMap;

use lockstep_diff::report::{RowView, Split, SplitClass, SplitKind};
use lockstep_traces::store::StepColumns;
use lockstep_traces::{Phase, UNKNOWN_TOKEN};

use super::TokenText;
use crate::model::{Candidate, SplitSide, SplitView, Token, TokenCell, TokenStrip};
use crate::num::Num;

/// Names of the two sides in the report.
#[derive(Debug, Clone, Copy)]
pub struct Labels<'a> {
    /// Baseline.
    pub left: &'a str,
    /// Target.
    pub right: &'a str,
}

/// A split with the text of its candidates.
#[must_use]
pub fn split_view(
    sample_id: &str,
    split: &Split,
    labels: Labels<'_>,
    text: &TokenText<'_>,
) -> SplitView {
    SplitView {
        sample_id: sample_id.to_owned(),
        kind: match split.kind {
            SplitKind::Structural => "structural",
            SplitKind::Logit => "logit",
            SplitKind::Argmax => "argmax",
            SplitKind::Token => "token",
        }
        .to_owned(),
        class: match split.class {
            SplitClass::Tie => "tie",
            SplitClass::NearTie => "near_tie",
            SplitClass::Clear => "clear",
            SplitClass::NonFinite => "non_finite",
            SplitClass::Policy => "policy",
            SplitClass::Plain => "plain",
        }
        .to_owned(),
        row: split.position,
        fed_at: split.fed_at,
        ulp_dtype: split.ulp_dtype.clone(),
        left: split.left.as_ref().map(|row| side(labels.left, row, split.kind, text)),
        right: split.right.as_ref().map(|row| side(labels.right, row, split.kind, text)),
        note: split.note.clone(),
    }
}

fn side(label: &str, row: &RowView, kind: SplitKind, text: &TokenText<'_>) -> SplitSide {
    // The argmax split is about the largest logit, whatever the sampler drew.
    let chosen = if kind == SplitKind::Argmax { Some(row.argmax) } else { row.chosen };
    SplitSide {
        label: label.to_owned(),
        chosen,
        margin: row.margin.map(Num),
        gap: row.gap.map(Num),
        gap_ulps: row.gap_ulps.map(Num),
        uniform: row.uniform.map(Num::from),
        rows_before: row.rows_before,
        candidates: row
            .top
            .iter()
            .map(|entry| Candidate {
                token: Token::new(entry.id, &text(entry.id)),
                logit: entry.logit.map(Num::from),
            })
            .collect(),
    }
}

struct Fed {
    id: u32,
    prompt: bool,
    compaction: Option<u32>,
}

/// The rows of a sample; a side with one sample has it under its own id, which the other side need not share.
fn fed(steps: &StepColumns, sample_id: &str, low: u32, high: u32) -> BTreeMap<u32, Fed> {
    let sample_id = match steps.sample_ids.as_slice() {
        [lone] => lone,
        _ => sample_id,
    };
    (0..steps.len)
        .filter(|index| steps.sample_id(*index) == Some(sample_id))
        .filter_map(|index| {
            let position = *steps.position.get(index)?;
            let fed = Fed {
                id: *steps.token_id.get(index)?,
                prompt: steps.phase.get(index) == Some(&Phase::Prompt),
                compaction: steps.compaction.get(index).copied().flatten(),
            };
            (low..=high).contains(&position).then_some((position, fed))
        })
        .collect()
}

/// Tokens fed from `around` positions before the deciding row to as many after it. `steps` need position, phase, token id
/// and compaction. Without a split, `row` is the middle and nothing is marked as fed.
#[must_use]
pub fn strip(
    sample_id: &str,
    sides: (&StepColumns, &StepColumns),
    labels: Labels<'_>,
    (row, around): (u32, u32),
    text: &TokenText<'_>,
) -> TokenStrip {
    let (low, high) = (row.saturating_sub(around), row.saturating_add(around));
    let left = fed(sides.0, sample_id, low, high);
    let right = fed(sides.1, sample_id, low, high);
    let mut positions: Vec<u32> = left.keys().chain(right.keys()).copied().collect();
    positions.sort_unstable();
    positions.dedup();
    // A position at which no side knows its token says nothing.
    let known = |fed: Option<&Fed>| fed.is_some_and(|fed| fed.id != UNKNOWN_TOKEN);
    positions.retain(|at| known(left.get(at)) || known(right.get(at)));
    let token = |fed: Option<&Fed>| fed.map(|fed| Token::new(fed.id, &text(fed.id)));
    let cells: Vec<TokenCell> = positions
        .into_iter()
        .map(|position| {
            let (a, b) = (left.get(&position), right.get(&position));
            TokenCell {
                position,
                left: token(a),
                right: token(b),
                same: a.map(|fed| fed.id) == b.map(|fed| fed.id),
                prompt: a.or(b).is_some_and(|fed| fed.prompt),
                compaction: b.and_then(|fed| fed.compaction),
            }
        })
        .collect();
    let fed_at = cells.iter().find(|cell| !cell.same).map(|cell| cell.position);
    TokenStrip {
        sample_id: sample_id.to_owned(),
        left_label: labels.left.to_owned(),
        right_label: labels.right.to_owned(),
        row: fed_at.is_some().then_some(row),
        fed_at,
        cells,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lockstep_traces::StepRow;

    fn row(position: u32, token_id: u32) -> StepRow {
        StepRow {
            phase: if position < 2 { Phase::Prompt } else { Phase::Decode },
            compaction: (position == 3).then_some(1),
            ..StepRow::bare("s", position, token_id)
        }
    }

    #[test]
    fn the_strip_marks_where_the_first_other_token_is_fed() {
        let left: Vec<StepRow> = (0..6).map(|p| row(p, p + 10)).collect();
        let mut right: Vec<StepRow> =
            (0..5).map(|p| row(p, if p < 4 { p + 10 } else { 99 })).collect();
        // The other side's only sample has an id of its own.
        right.iter_mut().for_each(|row| row.sample_id = "cmpl-7".into());
        let (left, right) = (StepColumns::from_rows(&left), StepColumns::from_rows(&right));
        let text = |id: u32| vec![u8::try_from(id).unwrap_or(b'?')];
        let strip = strip("s", (&left, &right), Labels { left: "a", right: "b" }, (3, 2), &text);
        assert_eq!((strip.row, strip.fed_at), (Some(3), Some(4)));
        let positions: Vec<u32> = strip.cells.iter().map(|cell| cell.position).collect();
        assert_eq!(positions, [1, 2, 3, 4, 5]);
        let flags: Vec<(bool, bool)> =
            strip.cells.iter().map(|cell| (cell.same, cell.prompt)).collect();
        assert_eq!(
            flags,
            [(true, true), (true, false), (true, false), (false, false), (false, false)]
        );
        assert_eq!(strip.cells[2].compaction, Some(1));
        assert_eq!(strip.cells[4].right, None);
        assert_eq!(
            strip.cells[0].left,
            Some(Token { id: 11, text: "\\x0b".into(), hex: Some("0b".into()) })
        );
    }
}
