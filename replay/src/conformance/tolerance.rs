//! How far a figure may lie from the expected one, and why.

use lockstep_traces::{Aggregation, PolicySpec, RuleSet, SelectionMode};

/// Limits of one case.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Tolerance {
    /// Raw scores: largest difference over largest expected modulus.
    pub(crate) raw: f64,
    /// Ranked scores (and rows after z-score), anywhere.
    pub(crate) far: f64,
    /// Ranked scores within [`NEAR`] of the threshold.
    pub(crate) near: f64,
    /// How far from the threshold a row may lie that is chosen otherwise.
    pub(crate) tie: f64,
}

/// Direct scorers: f32 sums of 2F products in another order differ by about 2e-7 of the largest score; a factor of five.
pub(crate) const RAW_DIRECT: f64 = 1e-6;

/// hf: the f32 phase `(N - p + offset) * w + angle` is rounded at up to 7e4, half a ULP there being 4e-3 rad, and angles
/// go through f32 atan2; two implementations were measured 2e-5 apart.
pub(crate) const RAW_HF: f64 = 5e-5;

/// `trt` on vectors of `vllm`: plain phases against table rows with angle addition; measured 3.7e-5 on raw scores.
pub(crate) const RAW_OTHER_PHASES: f64 = 5e-5;

/// Raw differences divided by the deviation of a row grow in far outliers; upstream's own two forms of the deviation
/// (one pass, two passes) differ by 1e-4 there.
pub(crate) const FAR: f64 = 1e-4;

/// Unnormalised scores are in raw units, up to 250 in the vectors: 5e-4 is 2e-6 of that.
pub(crate) const FAR_RAW_UNITS: f64 = 5e-4;

/// What "near the threshold" means, in units of the ranked score.
pub(crate) const NEAR: f64 = 0.2;

/// Means over layers average the rounding of each layer.
pub(crate) const NEAR_MEAN: f64 = 2e-5;

/// One layer alone, or the maximum over layers, carries the rounding of its largest.
pub(crate) const NEAR_SINGLE: f64 = 5e-5;

/// cos and sin of f32 phases from two mathematical libraries: 1 ULP each, and two products.
pub(crate) const TRIG: f64 = 2e-7;

/// Means over tokens in f32 against f64.
pub(crate) const CALIBRATION: f64 = 2e-7;

/// Limits by rule set and mode.
pub(crate) fn tolerance(spec: &PolicySpec) -> Tolerance {
    let single = spec.mode != Some(SelectionMode::PerHead) && spec.mode.is_some();
    let by_max = spec.layer_aggregation == Some(Aggregation::Max);
    let raw_units = spec.normalize == Some(false);
    let raw = if spec.rule_set == Some(RuleSet::Hf) { RAW_HF } else { RAW_DIRECT };
    if raw_units {
        return Tolerance { raw, far: FAR_RAW_UNITS, near: FAR_RAW_UNITS, tie: FAR_RAW_UNITS };
    }
    let near = if single || by_max { NEAR_SINGLE } else { NEAR_MEAN };
    Tolerance { raw, far: FAR, near, tie: near }
}
