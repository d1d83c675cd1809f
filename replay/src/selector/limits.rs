//! How far a recorded stage may lie from the reference, and why.

use lockstep_reference::select::{KeyForm, Recipe, Selection, kth};
use lockstep_traces::{Aggregation, RuleSet, SelectionMode};

/// Limits of the four stages and of ties.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Limits {
    /// Raw (relative to the largest modulus), z, group, final (absolute).
    pub(super) stage: [f64; 4],
    /// How far from the threshold a row may lie that is chosen otherwise.
    pub(super) tie: f64,
    /// The rule set orders rows of equal scores (`trt`); elsewhere any of them may stay.
    pub(super) ties_are_ruled: bool,
    /// Figures of the f32 control, where it was run.
    pub(super) control: Option<[f64; 4]>,
}

/// f32 sums of 2F + J terms in another order: about 2e-7 of the largest score was measured between programs, times five.
const RAW_DIRECT: f64 = 1e-6;
/// hf adds phase and angle in f32 at up to 7e4, where half a ULP is 4e-3 rad; programs were measured 2e-5 apart.
const RAW_UNROTATED: f64 = 5e-5;
/// Unnormalised scores of all stages, by the largest of them: upstream's and another program's were 5e-4 apart at most on
/// scores of up to 250.
const RAW_UNITS: f64 = 2e-6;
/// Normalised scores far out: upstream's own one-pass and two-pass deviations differ by this much.
const FAR: f64 = 1e-4;
/// Near the threshold of a mean over layers.
const TIE_MEAN: f64 = 2e-5;
/// Near the threshold of one layer or of a maximum over layers.
const TIE_SINGLE: f64 = 5e-5;
/// Another order of f32 operations may lie on the other side of the exact value and round worse at each step: the
/// control's error is taken four times before a difference is called wrong.
const CONTROL_FACTOR: f64 = 4.0;

impl Limits {
    /// Limits that need no control.
    pub(super) fn floors(recipe: &Recipe, rule_set: RuleSet, raw: Option<f64>) -> Self {
        let default = match recipe.keys {
            KeyForm::Rotated => RAW_DIRECT,
            KeyForm::Unrotated => RAW_UNROTATED,
        };
        let raw = raw.unwrap_or(default);
        let single = recipe.mode != SelectionMode::PerHead || recipe.layers == Aggregation::Max;
        let tie = if single { TIE_SINGLE } else { TIE_MEAN };
        let ties_are_ruled = rule_set == RuleSet::Trt;
        Self { stage: [raw, FAR, FAR, FAR], tie, ties_are_ruled, control: None }
    }

    /// Unnormalised scores keep the units of raw ones: the relative limit becomes absolute by their size.
    pub(super) fn in_raw_units(mut self, exact: &Selection) -> Self {
        let Some(stages) = &exact.stages else { return self };
        let scale = stages
            .raw
            .values
            .iter()
            .filter(|value| value.is_finite())
            .fold(0.0f64, |held, v| held.max(v.abs()));
        let limit = RAW_UNITS * scale;
        self.stage = [self.stage[0], limit, limit, limit];
        self.tie = self.tie.max(limit);
        self
    }

    /// Widens the limits to what the reference itself loses in f32.
    pub(super) fn with_control(mut self, exact: &Selection, rough: &Selection) -> Self {
        let (Some(a), Some(b)) = (&exact.stages, &rough.stages) else { return self };
        let largest = |a: &[f64], b: &[f64]| {
            let finite = a.iter().zip(b).filter(|(a, b)| a.is_finite() && b.is_finite());
            finite.fold(0.0f64, |held, (a, b)| held.max((a - b).abs()))
        };
        let scale =
            a.raw.values.iter().filter(|v| v.is_finite()).fold(0.0f64, |held, v| held.max(v.abs()));
        let raw = largest(&a.raw.values, &b.raw.values);
        let control = [
            if scale > 0.0 { raw / scale } else { raw },
            largest(&a.z.values, &b.z.values),
            largest(&a.group.values, &b.group.values),
            largest(&a.final_scores.values, &b.final_scores.values),
        ];
        for (limit, control) in self.stage.iter_mut().zip(control) {
            *limit = limit.max(CONTROL_FACTOR * control);
        }
        self.tie = self.tie.max(CONTROL_FACTOR * near_threshold(exact, rough));
        self.control = Some(control);
        self
    }
}

/// Largest f32 error within 0.2 of a threshold.
fn near_threshold(exact: &Selection, rough: &Selection) -> f64 {
    let (Some(a), Some(b), Some(keep)) = (&exact.stages, &rough.stages, &exact.keep) else {
        return 0.0;
    };
    let mut worst = 0.0f64;
    for (index, (a_row, b_row)) in a.final_scores.rows().zip(b.final_scores.rows()).enumerate() {
        let kept = keep.sets.get(index).map_or(0, Vec::len).saturating_sub(a.score_row_offset);
        let Some(threshold) = kth(a_row, kept) else { continue };
        for (a, b) in a_row.iter().zip(b_row) {
            if (a - threshold).abs() <= 0.2 {
                worst = worst.max((a - b).abs());
            }
        }
    }
    worst
}
