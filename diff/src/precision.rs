//! How far a stored value may lie from the source's own, and on which scale two sides hold their values against each other.

use lockstep_traces::DType;
use lockstep_traces::limits::Values;
use lockstep_traces::manifest::{Manifest, ValueEncoding};

use crate::ulp::ulp;

/// Half a unit of f32 at 1.
const HALF_UNIT: f64 = 1.0 / 16_777_216.0;

/// Error of `logit - logsumexp` in f32 arithmetic: the shift by the largest, the logarithm and the last subtraction round
/// once each at the size of the largest of the three numbers; a pairwise sum over 2^17 entries rounds 17 times at 1.
pub(crate) fn softmax_rounding(largest: f64) -> f64 {
    HALF_UNIT * (3.0 * largest + 17.0)
}

/// Error of two log-sum-exps of one vector: rounding at the size of the sum on either side, and sums that add up to 256 terms
/// one by one in f32 (a thread's share of 2^17 entries on a block of 512 or more threads).
pub(crate) fn sum_rounding(sum: f64) -> f64 {
    HALF_UNIT * (2.0 * sum.abs() + 256.0)
}

/// What separates a stored value from the source's own.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Precision {
    /// Nothing.
    Exact,
    /// Six significant digits.
    Digits6,
    /// At most this, in nats.
    Within(f64),
}

impl Precision {
    pub(crate) fn of(manifest: &Manifest) -> Self {
        let limits = &manifest.limits;
        match manifest.encoding {
            encoding if encoding.exact() => Self::Exact,
            ValueEncoding::Decimals => Self::Within(
                limits
                    .decimals
                    .map_or(f64::INFINITY, |digits| 0.5 * 10f64.powi(-i32::from(digits))),
            ),
            ValueEncoding::Codes16 => Self::Within(
                limits.value_error.filter(|error| *error >= 0.0).unwrap_or(f64::INFINITY),
            ),
            _ => Self::Digits6,
        }
    }

    pub(crate) const fn exact(self) -> bool {
        matches!(self, Self::Exact)
    }

    /// Largest distance of a stored `value` from the source's own.
    pub(crate) fn error(self, value: f64) -> f64 {
        match self {
            Self::Exact => 0.0,
            Self::Digits6 if value == 0.0 || !value.is_finite() => 0.0,
            Self::Digits6 => 0.5 * 10f64.powf(value.abs().log10().floor() - 5.0),
            // The number was also rounded to the f32 that holds it.
            Self::Within(error) => error + 0.5 * ulp(DType::F32, value).unwrap_or(0.0),
        }
    }
}

/// On which scale values are held against each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Scale {
    /// As they stand: both sides store the same thing.
    Same,
    /// Logits against log-probabilities: the logits less their log-sum-exp, and where that is not known both less their largest.
    Normalised {
        /// The logits are on the left.
        logits_left: bool,
    },
    /// Only the order of the values means something on both sides.
    Ranks,
    /// A side has no values, or none whose precision is known.
    Nothing,
}

impl Scale {
    /// `same_sampling`: the sampling settings of the two sides are not known to differ.
    pub(crate) fn of(left: &Manifest, right: &Manifest, same_sampling: bool) -> Self {
        let (l, r) = (left.limits.values, right.limits.values);
        let vague = |side| matches!(Precision::of(side), Precision::Within(error) if error == f64::INFINITY);
        match (l, r) {
            (Values::Nothing, _) | (_, Values::Nothing) => Self::Nothing,
            _ if vague(left) || vague(right) => Self::Nothing,
            (Values::ProcessedLogprobs, Values::ProcessedLogprobs) if same_sampling => Self::Same,
            (Values::ProcessedLogprobs, _) | (_, Values::ProcessedLogprobs) => Self::Ranks,
            (Values::Logits, Values::Logits) => Self::Same,
            (Values::Logits, _) => Self::Normalised { logits_left: true },
            (_, Values::Logits) => Self::Normalised { logits_left: false },
            _ => Self::Same,
        }
    }
}

#[cfg(test)]
mod tests {
    use lockstep_traces::manifest::Producer;

    use super::*;

    fn manifest(values: Values) -> Manifest {
        let mut manifest = Manifest::new(Producer::default(), "x");
        manifest.limits.values = values;
        manifest
    }

    #[test]
    fn scales_follow_what_the_sources_say() {
        use Values::{
            Logits, Logprobs, Nothing, ProcessedLogprobs as Processed, UnsaidLogprobs as Unsaid,
        };
        let scale = |l, r| Scale::of(&manifest(l), &manifest(r), true);
        assert_eq!(scale(Logits, Logits), Scale::Same);
        assert_eq!(scale(Logprobs, Unsaid), Scale::Same);
        assert_eq!(scale(Logits, Unsaid), Scale::Normalised { logits_left: true });
        assert_eq!(scale(Logprobs, Logits), Scale::Normalised { logits_left: false });
        assert_eq!(scale(Processed, Processed), Scale::Same);
        assert_eq!(Scale::of(&manifest(Processed), &manifest(Processed), false), Scale::Ranks);
        for other in [Logits, Logprobs, Unsaid] {
            assert_eq!(
                (scale(Processed, other), scale(other, Processed)),
                (Scale::Ranks, Scale::Ranks)
            );
        }
        assert_eq!(scale(Nothing, Processed), Scale::Nothing);
        let mut vague = manifest(Logprobs);
        vague.encoding = ValueEncoding::Decimals;
        assert_eq!(Scale::of(&vague, &manifest(Logprobs), true), Scale::Nothing);
    }

    #[test]
    fn half_of_the_last_digit_is_the_error() {
        let mut printed = manifest(Values::Logprobs);
        printed.encoding = ValueEncoding::Decimals;
        printed.limits.decimals = Some(4);
        let error = Precision::of(&printed).error(-1.5);
        assert!((error - 0.5e-4).abs() < 1e-7, "{error}");
        printed.encoding = ValueEncoding::Codes16;
        printed.limits.value_error = Some(1.22e-4);
        let error = Precision::of(&printed).error(-1.5);
        assert!((error - 1.22e-4).abs() < 1e-7, "{error}");
        printed.encoding = ValueEncoding::Digits6;
        assert!((Precision::of(&printed).error(20.9) - 0.5e-4).abs() < 1e-12);
    }
}
