//! Curves and firsts from the comparison of one sample.

use lockstep_diff::report::{SampleDiff, SeriesPoint, Splits};

use super::split::Labels;
use crate::model::{Curve, Firsts};
use crate::num::Num;

/// Positions of the four firsts.
#[must_use]
pub fn firsts(splits: &Splits) -> Firsts {
    Firsts {
        structural: splits.structural.as_ref().map(|split| split.position),
        logit: splits.logit.as_ref().map(|split| split.position),
        argmax: splits.argmax.as_ref().map(|split| split.position),
        token: splits.token.as_ref().map(|split| split.position),
    }
}

/// Margins and differences of one sample, as the comparison thinned them (every extreme stays).
#[must_use]
pub fn curve(sample: &SampleDiff, labels: Labels<'_>) -> Curve {
    let points = &sample.series.points;
    let list = |value: fn(&SeriesPoint) -> Option<f64>| {
        points.iter().map(|point| value(point).map(Num)).collect::<Vec<_>>()
    };
    Curve {
        sample_id: sample.sample_id.clone(),
        left_label: labels.left.to_owned(),
        right_label: labels.right.to_owned(),
        position: points.iter().map(|point| point.position).collect(),
        margin_left: list(|point| point.left_margin),
        margin_right: list(|point| point.right_margin),
        logit_diff: list(|point| if point.dependent { None } else { point.max_diff }),
        dependent_from: sample.dependent_from,
        prompt_len: sample.prompt_len,
        rows: sample.series.rows,
        firsts: firsts(&sample.splits),
    }
}
