//! Arithmetic of a replay and where it rounds.

use lockstep_traces::DType;

/// Arithmetic of the forward pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Precision {
    /// Everything in f32.
    F32,
    /// Everything in f64; the truth that errors are measured against.
    F64,
    /// f32 arithmetic with weights and the result of every operation rounded to bfloat16, as a model cast to that
    /// dtype computes: norms and softmax run in f32 inside and round at their end, products accumulate in f32.
    Bf16,
    /// As [`Precision::Bf16`] with binary16.
    F16,
}

impl Precision {
    /// How results of operations are rounded.
    #[must_use]
    pub const fn rounding(self) -> Rounding {
        match self {
            Self::F32 | Self::F64 => Rounding::None,
            Self::Bf16 => Rounding::Bf16,
            Self::F16 => Rounding::F16,
        }
    }

    /// The dtype that a replay in this precision claims.
    #[must_use]
    pub const fn dtype(self) -> DType {
        match self {
            Self::F32 => DType::F32,
            Self::F64 => DType::F64,
            Self::Bf16 => DType::Bf16,
            Self::F16 => DType::F16,
        }
    }

    /// The precision for a floating dtype; `None` for integers.
    #[must_use]
    pub const fn of(dtype: DType) -> Option<Self> {
        match dtype {
            DType::F32 => Some(Self::F32),
            DType::F64 => Some(Self::F64),
            DType::Bf16 => Some(Self::Bf16),
            DType::F16 => Some(Self::F16),
            _ => None,
        }
    }

    /// Unit roundoff: the largest relative error of one rounding.
    #[must_use]
    pub const fn unit_roundoff(self) -> f64 {
        match self {
            Self::F32 => 1.0 / 16_777_216.0,
            Self::F64 => f64::EPSILON / 2.0,
            Self::Bf16 => 1.0 / 256.0,
            Self::F16 => 1.0 / 2048.0,
        }
    }

    pub(crate) const fn element(self) -> candle_core::DType {
        match self {
            Self::F64 => candle_core::DType::F64,
            _ => candle_core::DType::F32,
        }
    }
}

/// Rounding after an operation, to nearest, ties to even.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rounding {
    /// Results stay as computed.
    None,
    /// To bfloat16.
    Bf16,
    /// To binary16; what exceeds its range becomes infinite.
    F16,
}

impl Rounding {
    /// One rounded value.
    #[inline]
    #[must_use]
    pub fn f32(self, value: f32) -> f32 {
        match self {
            Self::None => value,
            Self::Bf16 => half::bf16::from_f32(value).to_f32(),
            Self::F16 => half::f16::from_f32(value).to_f32(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounding_is_to_nearest_even_on_the_grid_of_the_dtype() {
        assert!((Rounding::Bf16.f32(1.0 + 1.0 / 256.0) - 1.0).abs() < f32::EPSILON);
        assert!((Rounding::Bf16.f32(1.0 + 3.0 / 256.0) - (1.0 + 1.0 / 64.0)).abs() < f32::EPSILON);
        assert!((Rounding::F16.f32(1.0 + 1.0 / 2048.0) - 1.0).abs() < f32::EPSILON);
        assert!(Rounding::F16.f32(70_000.0).is_infinite());
        assert!((Rounding::None.f32(0.1) - 0.1).abs() < f32::EPSILON);
    }

    #[test]
    fn unit_roundoff_is_half_the_gap_above_one() {
        for precision in [Precision::Bf16, Precision::F16] {
            let half_gap = 1.0 + precision.unit_roundoff() as f32;
            let rounding = precision.rounding();
            assert!((rounding.f32(half_gap) - 1.0).abs() < f32::EPSILON);
            assert!(rounding.f32(half_gap * (1.0 + f32::EPSILON)) > 1.0);
        }
    }
}
