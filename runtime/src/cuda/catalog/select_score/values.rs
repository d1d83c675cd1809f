//! Random inputs and the element types that they are stored in.

use half::{bf16, f16};
use lockstep_traces::DType;

/// Small deterministic numbers (splitmix64).
pub(in crate::cuda::catalog) struct Random(pub(in crate::cuda::catalog) u64);

impl Random {
    pub(in crate::cuda::catalog) fn word(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// Below `bound`, which is small.
    pub(in crate::cuda::catalog) fn below(&mut self, bound: usize) -> usize {
        (self.word() % bound.max(1) as u64) as usize
    }

    /// In (-1, 1), odd multiples of 2^-24.
    pub(in crate::cuda::catalog) fn value(&mut self) -> f32 {
        ((self.word() >> 40) as f32 + 0.5) / (1 << 23) as f32 - 1.0
    }

    pub(in crate::cuda::catalog) fn values(&mut self, count: usize) -> Vec<f32> {
        (0..count).map(|_| self.value()).collect()
    }
}

/// Rounds to a dtype.
pub(super) fn rounded(dtype: DType, value: f32) -> f32 {
    match dtype {
        DType::F16 => f16::from_f32(value).to_f32(),
        DType::Bf16 => bf16::from_f32(value).to_f32(),
        _ => value,
    }
}

/// Bytes of a tensor of a dtype.
pub(super) fn bytes(dtype: DType, values: &[f32]) -> Vec<u8> {
    let mut out = Vec::with_capacity(values.len() * dtype.size());
    for &value in values {
        match dtype {
            DType::F16 => out.extend_from_slice(&f16::from_f32(value).to_bits().to_le_bytes()),
            DType::Bf16 => out.extend_from_slice(&bf16::from_f32(value).to_bits().to_le_bytes()),
            _ => out.extend_from_slice(&value.to_le_bytes()),
        }
    }
    out
}
