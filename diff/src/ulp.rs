//! Units in the last place, value grids, and what printed digits can tell apart.

use half::{bf16, f16};
use lockstep_traces::DType;
use lockstep_traces::limits::Values;
use lockstep_traces::manifest::{Manifest, ValueEncoding};

use crate::precision::Precision;

/// Distance of neighbouring values of `dtype` at the size of `value`: 2^(e - fraction bits), with e the exponent of
/// `value`, not below the smallest normal one. `None` for integer types and values that are not finite.
#[must_use]
pub fn ulp(dtype: DType, value: f64) -> Option<f64> {
    let (fraction, lowest) = match dtype {
        DType::F64 => (52, -1022),
        DType::F32 => (23, -126),
        DType::F16 => (10, -14),
        DType::Bf16 => (7, -126),
        DType::I32 | DType::I16 | DType::I64 | DType::U8 => return None,
    };
    if !value.is_finite() {
        return None;
    }
    let biased = i32::try_from((value.to_bits() >> 52) & 0x7ff).ok()?;
    let exponent = if biased == 0 { -1022 } else { biased - 1023 };
    Some(2f64.powi(exponent.max(lowest) - fraction))
}

/// Is `value` exactly representable in `dtype`?
#[must_use]
pub fn on_grid(dtype: DType, value: f32) -> bool {
    match dtype {
        DType::Bf16 => bf16::from_f32(value).to_f32().to_bits() == value.to_bits(),
        DType::F16 => f16::from_f32(value).to_f32().to_bits() == value.to_bits(),
        DType::F32 | DType::F64 => true,
        DType::I32 | DType::I16 | DType::I64 | DType::U8 => false,
    }
}

/// Rounds to six significant decimal digits, as C++ streams print by default.
#[must_use]
pub fn six_digits(value: f32) -> f32 {
    if !value.is_finite() {
        return value;
    }
    format!("{value:.5e}").parse().unwrap_or(value)
}

/// The step by which two stored logits are judged as tied, nearly tied or apart.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Step {
    /// Declared or inferred dtype of the logits.
    pub dtype: DType,
    /// Where the dtype comes from: `declared`, `encoding` or `values`.
    pub source: &'static str,
    /// False where a side stores rounded values or log-probabilities: then equal values are not an exact tie.
    pub exact: bool,
    /// A side stores six significant digits.
    pub six_digits: bool,
    /// Below this no two values can be told apart, whatever their dtype: both errors of a printed or coded value, or the
    /// rounding of an f32 log-softmax.
    pub least: f64,
}

/// Distance of neighbouring f32 values at the size of a log-sum-exp (below 64): log-probabilities are rounded there, and two
/// different logits may give one of them.
const LOGPROB_STEP: f64 = 1.0 / 262_144.0;

impl Step {
    /// Takes the coarser declared dtype of the two sides; without one, the grid that an importer snapped to; without
    /// that, the coarsest of bf16 and f16 on which all of `values` lie, else f32.
    pub fn choose(left: &Manifest, right: &Manifest, values: impl Fn(DType) -> bool) -> Self {
        let sides = [left, right];
        let logits = |side: &&Manifest| side.limits.values == Values::Logits;
        let exact = sides.iter().all(|side| side.encoding.exact() && logits(side));
        let six_digits = sides.iter().any(|side| side.encoding == ValueEncoding::Digits6);
        let least = sides
            .iter()
            .map(|side| {
                let coded = match Precision::of(side) {
                    Precision::Within(error) => 2.0 * error,
                    _ => 0.0,
                };
                if logits(side) { coded } else { coded.max(LOGPROB_STEP) }
            })
            .fold(0.0, f64::max);
        let step = |dtype, source| Self { dtype, source, exact, six_digits, least };
        let snapped = |side: &Manifest| match side.encoding {
            ValueEncoding::SnappedBf16 => Some(DType::Bf16),
            ValueEncoding::SnappedF16 => Some(DType::F16),
            _ => None,
        };
        if let Some(dtype) = coarser(left.dtype, right.dtype) {
            return step(dtype, "declared");
        }
        if let Some(dtype) = coarser(snapped(left), snapped(right)) {
            return step(dtype, "encoding");
        }
        let dtype = [DType::Bf16, DType::F16].into_iter().find(|dtype| values(*dtype));
        step(dtype.unwrap_or(DType::F32), "values")
    }

    /// Length of one step at the size of `value`: one ULP, or what the stored values can tell apart where that is more (one unit
    /// of the sixth digit, both errors of a printed or coded value).
    #[must_use]
    pub fn size(self, value: f64) -> Option<f64> {
        let ulp = ulp(self.dtype, value)?.max(self.least);
        if !self.six_digits || value == 0.0 {
            return Some(ulp);
        }
        let digit = 10f64.powf(value.abs().log10().floor() - 5.0);
        Some(ulp.max(digit))
    }

    /// `gap` in steps at the size of the larger of the two values.
    #[must_use]
    pub fn count(self, gap: f64, larger: f64) -> Option<f64> {
        let size = self.size(larger)?;
        gap.is_finite().then(|| gap / size)
    }
}

fn coarser(left: Option<DType>, right: Option<DType>) -> Option<DType> {
    let rank = |dtype: DType| match dtype {
        DType::Bf16 => 3,
        DType::F16 => 2,
        DType::F32 => 1,
        _ => 0,
    };
    match (left, right) {
        (Some(left), Some(right)) => Some(if rank(right) > rank(left) { right } else { left }),
        (one, other) => one.or(other),
    }
}

#[cfg(test)]
mod tests {
    use lockstep_traces::manifest::Producer;

    use super::*;

    #[test]
    fn ulps_follow_the_exponent_and_stop_at_the_smallest_normal_value() {
        assert_eq!(ulp(DType::Bf16, 18.25), Some(0.125));
        assert_eq!(ulp(DType::Bf16, 32.0), Some(0.25));
        assert_eq!(ulp(DType::F16, -20.0), Some(0.015_625));
        assert_eq!(ulp(DType::F32, 1.0), Some(f64::from(f32::EPSILON)));
        assert_eq!(ulp(DType::F16, 0.0), Some(2f64.powi(-24)));
        assert_eq!(ulp(DType::F32, f64::NAN), None);
        assert_eq!(ulp(DType::I32, 1.0), None);
    }

    #[test]
    fn six_digits_round_as_a_stream_prints() {
        assert_eq!(six_digits(27.531_25).to_bits(), 27.5312_f32.to_bits());
        assert_eq!(six_digits(20.906_25).to_bits(), 20.9062_f32.to_bits());
        assert_eq!(six_digits(-0.5).to_bits(), (-0.5_f32).to_bits());
        assert!(six_digits(f32::NAN).is_nan());
    }

    #[test]
    fn the_step_comes_from_the_declared_dtype_then_the_encoding_then_the_values() {
        let mut left = Manifest::new(Producer::default(), "cpu");
        let mut right = left.clone();
        let none = Step::choose(&left, &right, |dtype| dtype == DType::F16);
        assert_eq!((none.dtype, none.source), (DType::F16, "values"));
        right.encoding = ValueEncoding::SnappedBf16;
        let snapped = Step::choose(&left, &right, |_| false);
        assert_eq!((snapped.dtype, snapped.source), (DType::Bf16, "encoding"));
        left.dtype = Some(DType::F32);
        right.dtype = Some(DType::F16);
        let declared = Step::choose(&left, &right, |_| false);
        assert_eq!((declared.dtype, declared.source), (DType::F16, "declared"));
    }

    #[test]
    fn six_stored_digits_make_the_step_one_unit_of_the_sixth_digit() {
        let step = Step {
            dtype: DType::F32,
            source: "declared",
            exact: false,
            six_digits: true,
            least: 0.0,
        };
        let size = step.size(27.5312).unwrap();
        assert!((size - 1e-4).abs() < 1e-12, "{size}");
        assert!((step.count(2e-4, 27.5312).unwrap() - 2.0).abs() < 1e-9);
    }
}
