//! Two sides chose otherwise: tie, near tie, or a real split.

use crate::report::{Split, SplitClass, SplitKind};
use crate::side::Row;
use crate::ulp::Step;

use super::view::{plain_split, row_view};

/// What one side chose and from which row.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Choice<'a> {
    pub(crate) row: Row<'a>,
    /// The id whose choice is compared (argmax or token).
    pub(crate) id: u32,
    /// The token chosen, where known.
    pub(crate) chosen: Option<u32>,
}

/// Builds the split of two different choices.
///
/// The gap of a side is its logit of its own choice minus its logit of the other's. Both gaps 0 (or one 0 and the other
/// at most one step), with exact values: a tie. At least one of them at most one step: near tie. `draws` is true where
/// tokens were drawn at random; a draw is never a tie.
pub(crate) fn choose(
    kind: SplitKind,
    left: &Choice<'_>,
    right: &Choice<'_>,
    step: Step,
    draws: bool,
) -> Split {
    let (mut l, mut r) =
        (row_view(&left.row, left.chosen, step), row_view(&right.row, right.chosen, step));
    let note;
    let mut class = SplitClass::Clear;
    let mut smaller = None;
    if left.row.non_finite() || right.row.non_finite() {
        class = SplitClass::NonFinite;
        note = format!(
            "a side has no finite logits here: {} against {} says nothing, argmax over NaN is no choice",
            left.id, right.id
        );
    } else {
        let gap_l = gap(&left.row, left.id, right.id);
        let gap_r = gap(&right.row, right.id, left.id);
        (l.gap, r.gap) = (gap_l.map(|gap| gap.0), gap_r.map(|gap| gap.0));
        l.gap_ulps = gap_l.and_then(|(gap, larger)| step.count(gap, larger));
        r.gap_ulps = gap_r.and_then(|(gap, larger)| step.count(gap, larger));
        smaller = match (l.gap_ulps, r.gap_ulps) {
            (Some(l), Some(r)) => Some(l.min(r)),
            (one, other) => one.or(other),
        };
        let own_best = is_best(&left.row, left.id) && is_best(&right.row, right.id);
        if own_best || kind == SplitKind::Argmax {
            class = classify(l.gap_ulps, r.gap_ulps, step.exact);
        }
        if draws && class == SplitClass::Tie {
            class = SplitClass::NearTie;
        }
        note = describe(kind, left, right, class, draws);
    }
    let mut split = plain_split(kind, class, Some(l), Some(r), step, note);
    split.margin_ulps = smaller;
    split
}

fn gap(row: &Row<'_>, own: u32, other: u32) -> Option<(f64, f64)> {
    let (own, other) = (row.logit(own)?, row.logit(other)?);
    let gap = own - other;
    gap.is_finite().then_some((gap, own.max(other)))
}

fn is_best(row: &Row<'_>, id: u32) -> bool {
    match (row.top2(), row.logit(id)) {
        (Some([best, _]), Some(logit)) => logit >= best.1,
        _ => row.argmax == id,
    }
}

fn classify(left: Option<f64>, right: Option<f64>, exact: bool) -> SplitClass {
    // A side may have chosen against its own list: its gap is negative then, and as far from a tie as a positive one.
    let (left, right) = (left.map(f64::abs), right.map(f64::abs));
    let (Some(left), Some(right)) = (left, right) else {
        let near = left.or(right).is_some_and(|gap| gap <= 1.0);
        return if near { SplitClass::NearTie } else { SplitClass::Clear };
    };
    let (least, most) = (left.min(right), left.max(right));
    if least <= 0.0 && most <= 1.0 && exact {
        SplitClass::Tie
    } else if least <= 1.0 {
        SplitClass::NearTie
    } else {
        SplitClass::Clear
    }
}

fn describe(
    kind: SplitKind,
    left: &Choice<'_>,
    right: &Choice<'_>,
    class: SplitClass,
    draws: bool,
) -> String {
    let what = if kind == SplitKind::Argmax { "argmax" } else { "token" };
    let pair = format!("{what} {} against {}", left.id, right.id);
    let mut text = match class {
        SplitClass::Tie => format!("{pair}: a choice among exactly equal logits, no split"),
        SplitClass::NearTie => {
            format!("{pair}: near tie, no more than one step of the stored precision")
        }
        _ => format!("{pair}: beyond one step of the stored precision"),
    };
    if kind == SplitKind::Token && draws {
        let number =
            |value: Option<f32>| value.map_or("not recorded".to_owned(), |u| u.to_string());
        text.push_str("; drawn with ");
        text.push_str(&number(left.row.uniform));
        text.push_str(" and ");
        text.push_str(&number(right.row.uniform));
        let offsets = left.row.rng_offset.zip(right.row.rng_offset);
        if offsets.is_some_and(|(l, r)| l != r) {
            text.push_str(": the random streams stand at different offsets");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_choice_against_its_own_list_is_no_near_tie() {
        assert_eq!(classify(Some(-1_125_514.0), Some(40.0), true), SplitClass::Clear);
        assert_eq!(classify(Some(-40.0), None, true), SplitClass::Clear);
        assert_eq!(classify(Some(-1.0), Some(40.0), true), SplitClass::NearTie);
        assert_eq!(classify(Some(0.0), Some(0.0), true), SplitClass::Tie);
    }
}
