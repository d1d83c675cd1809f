//! Random values and f64 formulas for the catalog's references: one splitmix64 stream, nothing of the runtime's arithmetic.

use half::{bf16, f16};
use lockstep_traces::DType;
use rayon::prelude::*;

/// Step of the stream's state.
const GAMMA: u64 = 0x9E37_79B9_7F4A_7C15;

/// Values that one core takes at a time.
const CHUNK: usize = 1 << 14;

/// 23 bits, centred: an odd multiple of 2^-23 in (-1, 1), exact in f32.
fn centred(bits: u64) -> f32 {
    #[expect(clippy::cast_precision_loss, reason = "23 bits and a half are exact in f32")]
    let value = (bits >> 41) as f32;
    (value + 0.5) / 4_194_304.0 - 1.0
}

/// Stream of test values.
#[derive(Debug, Clone)]
pub struct Values(u64);

impl Values {
    /// Stream of a seed.
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(GAMMA) ^ 0x5851_F42D_4C95_7F2D)
    }

    /// 64 random bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(GAMMA);
        lockstep_traces::hash::splitmix64(self.0)
    }

    /// Uniform in (-1, 1).
    pub fn unit(&mut self) -> f32 {
        centred(self.bits())
    }

    /// `count` values uniform in (-scale, scale): those that as many calls of [`Self::unit`] give, made on every core.
    pub fn many(&mut self, count: usize, scale: f32) -> Vec<f32> {
        let start = self.0;
        let state = |index: usize| start.wrapping_add(GAMMA.wrapping_mul(index as u64 + 1));
        self.0 = start.wrapping_add(GAMMA.wrapping_mul(count as u64));
        let value = |index| centred(lockstep_traces::hash::splitmix64(state(index))) * scale;
        (0..count).into_par_iter().with_min_len(CHUNK).map(value).collect()
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
    let mut bytes = vec![0; values.len() * dtype.size()];
    let chunks = bytes.par_chunks_mut(CHUNK * dtype.size()).zip(values.par_chunks(CHUNK));
    chunks.for_each(|(bytes, values)| match dtype {
        DType::F16 => put(bytes, values, |value| f16::from_f32(value).to_bits().to_le_bytes()),
        DType::Bf16 => put(bytes, values, |value| bf16::from_f32(value).to_bits().to_le_bytes()),
        _ => put(bytes, values, |value| value.to_bits().to_le_bytes()),
    });
    bytes
}

fn put<const N: usize>(bytes: &mut [u8], values: &[f32], of: impl Fn(f32) -> [u8; N]) {
    let (places, _) = bytes.as_chunks_mut::<N>();
    places.iter_mut().zip(values).for_each(|(place, &value)| *place = of(value));
}

/// Bytes of `dtype` as values.
#[must_use]
pub fn decode(dtype: DType, bytes: &[u8]) -> Vec<f32> {
    match dtype {
        DType::F16 => take(bytes, |b| f16::from_bits(u16::from_le_bytes(b)).to_f32()),
        DType::Bf16 => take(bytes, |b| bf16::from_bits(u16::from_le_bytes(b)).to_f32()),
        _ => take(bytes, f32::from_le_bytes),
    }
}

fn take<const N: usize>(bytes: &[u8], value: impl Fn([u8; N]) -> f32 + Sync) -> Vec<f32> {
    bytes.as_chunks::<N>().0.par_iter().with_min_len(CHUNK).map(|bytes| value(*bytes)).collect()
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_values_are_those_of_the_stream() {
        let (mut one, mut many) = (Values::new(5), Values::new(5));
        let wanted: Vec<f32> = (0..40_000).map(|_| one.unit() * 3.0).collect();
        assert_eq!(many.many(40_000, 3.0), wanted);
        assert_eq!(many.bits(), one.bits());
        assert!(wanted.iter().all(|value| value.abs() < 3.0));
    }

    #[test]
    fn the_ends_of_the_range_are_not_reached() {
        assert_eq!(centred(u64::MAX), 1.0 - f32::EPSILON);
        assert_eq!(centred(0), -1.0 + f32::EPSILON);
    }

    #[test]
    fn bytes_of_values_are_little_endian_and_rounded_to_even() {
        assert_eq!(encode(DType::Bf16, &[1.0, -2.0]), [0x80, 0x3f, 0x00, 0xc0]);
        assert_eq!(encode(DType::F16, &[1.0, 0.5]), [0x00, 0x3c, 0x00, 0x38]);
        let values: Vec<f32> = (0..50_000_u16).map(f32::from).collect();
        assert_eq!(decode(DType::F32, &encode(DType::F32, &values)), values);
    }
}
