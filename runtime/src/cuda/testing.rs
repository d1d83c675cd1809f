//! Random values and f64 formulas for the catalog's references: one splitmix64 stream, nothing of the runtime's arithmetic.

use half::{bf16, f16};
use lockstep_traces::DType;

/// Stream of test values.
#[derive(Debug, Clone)]
pub struct Values(u64);

impl Values {
    /// Stream of a seed.
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ 0x5851_F42D_4C95_7F2D)
    }

    /// 64 random bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        lockstep_traces::hash::splitmix64(self.0)
    }

    /// Uniform in (-1, 1).
    pub fn unit(&mut self) -> f32 {
        #[expect(clippy::cast_precision_loss, reason = "24 bits are exact in f32")]
        let value = (self.bits() >> 40) as f32;
        (value + 0.5) / 8_388_608.0 - 1.0
    }

    /// `count` values uniform in (-scale, scale).
    pub fn many(&mut self, count: usize, scale: f32) -> Vec<f32> {
        (0..count).map(|_| self.unit() * scale).collect()
    }

    /// An integer below `end`.
    pub fn below(&mut self, end: u64) -> u64 {
        self.bits() % end.max(1)
    }
}

/// The nearest value of `dtype` (f32, f16, bf16), even on ties.
#[must_use]
pub fn rounded(dtype: DType, value: f32) -> f32 {
    match dtype {
        DType::F16 => f16::from_f32(value).to_f32(),
        DType::Bf16 => bf16::from_f32(value).to_f32(),
        _ => value,
    }
}

/// Values as the bytes of `dtype`, rounded to it.
#[must_use]
pub fn encode(dtype: DType, values: &[f32]) -> Vec<u8> {
    values
        .iter()
        .flat_map(|&value| match dtype {
            DType::F16 => f16::from_f32(value).to_bits().to_le_bytes().to_vec(),
            DType::Bf16 => bf16::from_f32(value).to_bits().to_le_bytes().to_vec(),
            _ => value.to_bits().to_le_bytes().to_vec(),
        })
        .collect()
}

/// Bytes of `dtype` as values.
#[must_use]
pub fn decode(dtype: DType, bytes: &[u8]) -> Vec<f32> {
    let half = |pair: &[u8]| u16::from_le_bytes([pair[0], pair[1]]);
    match dtype {
        DType::F16 => bytes.chunks_exact(2).map(|b| f16::from_bits(half(b)).to_f32()).collect(),
        DType::Bf16 => bytes.chunks_exact(2).map(|b| bf16::from_bits(half(b)).to_f32()).collect(),
        _ => bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect(),
    }
}

/// Half a unit in the last place of `dtype`, relative: the largest error of one rounding.
#[must_use]
pub const fn half_ulp(dtype: DType) -> f64 {
    match dtype {
        DType::F16 => 1.0 / 2048.0,
        DType::Bf16 => 1.0 / 256.0,
        _ => 1.0 / 16_777_216.0,
    }
}
