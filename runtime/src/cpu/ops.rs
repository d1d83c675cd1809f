//! Elementwise operations and reductions of the forward pass, with the rounding points of the arithmetic.
//!
//! In f16 and bf16 arithmetic values are kept in f32 and rounded to the dtype (nearest even) where Hugging Face
//! transformers on PyTorch stores a tensor: after each projection, each norm step, each product and sum of RoPE, the scaled
//! scores, the softmax, and each product and sum of MLP and residual. Norm statistics and softmax are f32 inside.

use lockstep_traces::DType;

use super::simd::{LANES, fold};

/// Rounds to the arithmetic's dtype; f32 stays.
pub(super) fn round(dtype: DType, values: &mut [f32]) {
    match dtype {
        DType::F16 => values.iter_mut().for_each(|value| *value = to_f16(*value)),
        DType::Bf16 => values.iter_mut().for_each(|value| *value = to_bf16(*value)),
        _ => {}
    }
}

/// One value rounded as by [`round`].
#[inline(always)]
pub(super) fn rounded(dtype: DType, value: f32) -> f32 {
    match dtype {
        DType::F16 => to_f16(value),
        DType::Bf16 => to_bf16(value),
        _ => value,
    }
}

/// The nearest bfloat16, even on ties, as f32. By bits, so that loops over it become vector code.
#[inline(always)]
fn to_bf16(value: f32) -> f32 {
    let bits = value.to_bits();
    let even = 0x7FFF + ((bits >> 16) & 1);
    let nearest = f32::from_bits(bits.wrapping_add(even) & 0xFFFF_0000);
    // Adding could carry a NaN's payload into the sign.
    if value.is_nan() { value } else { nearest }
}

/// The nearest binary16, even on ties, as f32; by bits as [`to_bf16`].
#[inline(always)]
fn to_f16(value: f32) -> f32 {
    let bits = value.to_bits();
    let size = f32::from_bits(bits & 0x7FFF_FFFF);
    let even = 0x0FFF + ((bits >> 13) & 1);
    let normal = f32::from_bits((bits & 0x7FFF_FFFF).wrapping_add(even) & 0xFFFF_E000);
    // Below the normal range steps are 2^-24, which is the step of f32 from 0.5 to 1.
    let small = (size + 0.5) - 0.5;
    let nearest = if size < 6.103_515_6e-5 { small } else { normal };
    let nearest = if nearest > 65_504.0 { f32::INFINITY } else { nearest };
    if value.is_nan() { value } else { f32::from_bits(nearest.to_bits() | (bits & 0x8000_0000)) }
}

/// Exponential, computed in f64 by plain products and sums (so that every machine has the same bits) and rounded to f32:
/// relative error of the f64 value below 1e-11.
#[inline]
pub(super) fn exp(x: f32) -> f32 {
    const MAGIC: f64 = 6_755_399_441_055_744.0; // 1.5 * 2^52: adding it rounds to an integer
    const LN2_HIGH: f64 = 0.693_147_180_369_123_8;
    const LN2_LOW: f64 = 1.908_214_929_270_587_7e-10;
    // Outside this range the f32 result is 0 or infinity; NaN passes through `clamp`.
    let x = f64::from(x).clamp(-120.0, 120.0);
    let shifted = x * std::f64::consts::LOG2_E + MAGIC;
    let n = shifted - MAGIC;
    let r = (x - n * LN2_HIGH) - n * LN2_LOW;
    let mut sum = 1.0 / 3_628_800.0;
    for inverse in [
        1.0 / 362_880.0,
        1.0 / 40_320.0,
        1.0 / 5_040.0,
        1.0 / 720.0,
        1.0 / 120.0,
        1.0 / 24.0,
        1.0 / 6.0,
        0.5,
        1.0,
        1.0,
    ] {
        sum = sum * r + inverse;
    }
    let scale = f64::from_bits(shifted.to_bits().wrapping_add(1023) << 52);
    (sum * scale) as f32
}

/// Sum over 16 lanes, folded by halves.
pub(super) fn lane_sum(values: &[f32], of: impl Fn(f32) -> f32) -> f32 {
    let mut lanes = [0.0_f32; LANES];
    let (chunks, rest) = values.as_chunks::<LANES>();
    for chunk in chunks {
        for (lane, value) in lanes.iter_mut().zip(chunk) {
            *lane += of(*value);
        }
    }
    for (lane, value) in lanes.iter_mut().zip(rest) {
        *lane += of(*value);
    }
    fold(lanes)
}

/// `weight * round(x / sqrt(mean(x^2) + eps))`, rounded; statistics in f32.
pub(super) fn rms_norm(dtype: DType, x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]) {
    let mean = lane_sum(x, |value| value * value) / x.len() as f32;
    let scale = 1.0 / (mean + eps).sqrt();
    for ((out, x), weight) in out.iter_mut().zip(x).zip(weight) {
        *out = rounded(dtype, *weight * rounded(dtype, x * scale));
    }
}

/// Turns one head, half pairing: `x[i], x[i + d/2]` by the angle of frequency `i`. Each product and the sum are rounded.
pub(super) fn rotate(dtype: DType, head: &mut [f32], cos: &[f32], sin: &[f32]) {
    let (low, high) = head.split_at_mut(cos.len());
    for (((low, high), cos), sin) in low.iter_mut().zip(high).zip(cos).zip(sin) {
        let (x, y) = (*low, *high);
        let product = |a: f32, b: f32| rounded(dtype, a * b);
        *low = rounded(dtype, product(x, *cos) + product(-y, *sin));
        *high = rounded(dtype, product(y, *cos) + product(x, *sin));
    }
}

/// Softmax in place, f32 inside, then rounded.
pub(super) fn softmax(dtype: DType, scores: &mut [f32]) {
    let largest = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    for score in scores.iter_mut() {
        *score = exp(*score - largest);
    }
    let sum = lane_sum(scores, |value| value);
    for score in scores.iter_mut() {
        *score /= sum;
    }
    round(dtype, scores);
}

/// `gate = round(round(silu(gate)) * up)`.
pub(super) fn swiglu(dtype: DType, gate: &mut [f32], up: &[f32]) {
    for (gate, up) in gate.iter_mut().zip(up) {
        let silu = *gate / (1.0 + exp(-*gate));
        *gate = rounded(dtype, rounded(dtype, silu) * up);
    }
}

/// `x = round(x + y)`.
pub(super) fn add(dtype: DType, x: &mut [f32], y: &[f32]) {
    for (x, y) in x.iter_mut().zip(y) {
        *x = rounded(dtype, *x + y);
    }
}

#[cfg(test)]
mod tests {
    use half::{bf16, f16};

    use super::*;

    #[test]
    fn rounding_by_bits_is_that_of_the_half_crate() {
        let mut compared = 0;
        let mut check = |value: f32| {
            let same = |found: f32, wanted: f32| {
                found.to_bits() == wanted.to_bits() || (found.is_nan() && wanted.is_nan())
            };
            assert!(same(to_f16(value), f16::from_f32(value).to_f32()), "f16 {value:e}");
            assert!(same(to_bf16(value), bf16::from_f32(value).to_f32()), "bf16 {value:e}");
            compared += 1;
        };
        // Every 16-bit number, the midpoint to the next one, and the neighbours of both.
        for code in 0..=u16::MAX {
            for start in [f16::from_bits(code).to_f32(), bf16::from_bits(code).to_f32()] {
                for half_step in [0, 0x1000, 0x8000] {
                    for step in [u32::MAX, 0, 1] {
                        let bits = start.to_bits().wrapping_add(half_step);
                        check(f32::from_bits(bits.wrapping_add(step)));
                    }
                }
            }
        }
        for bits in (0..u32::MAX).step_by(65_521) {
            check(f32::from_bits(bits));
        }
        // Subnormal halves have their midpoints elsewhere.
        for step in 0..4096_u16 {
            check(f32::from(step) * 2_f32.powi(-26));
            check(-f32::from(step) * 2_f32.powi(-26));
        }
        assert!(compared > 1_000_000);
    }

    #[test]
    fn the_exponential_is_rounded_correctly_over_its_whole_range() {
        let mut worst = 0;
        for step in -1_060_000..=900_000_i32 {
            let x = step as f32 * 1e-4;
            let wanted = f64::from(x).exp() as f32;
            let found = exp(x);
            worst = worst.max(wanted.to_bits().abs_diff(found.to_bits()));
        }
        assert_eq!(worst, 0);
        assert_eq!(exp(0.0).to_bits(), 1.0_f32.to_bits());
        assert_eq!(exp(f32::NEG_INFINITY).to_bits(), 0);
        assert_eq!(exp(1e9).to_bits(), f32::INFINITY.to_bits());
        assert!(exp(f32::NAN).is_nan());
    }

    #[test]
    fn rms_norm_divides_by_the_root_of_the_mean_square() {
        let mut out = [0.0; 2];
        rms_norm(DType::F32, &[3.0, 4.0], &[1.0, 2.0], 0.0, &mut out);
        // mean square 12.5
        let root = 12.5_f32.sqrt();
        assert!((out[0] - 3.0 / root).abs() < 1e-6 && (out[1] - 8.0 / root).abs() < 1e-6);
        rms_norm(DType::F32, &[3.0, 4.0], &[1.0, 1.0], 12.5, &mut out);
        assert!((out[0] - 0.6).abs() < 1e-6 && (out[1] - 0.8).abs() < 1e-6);
    }

    #[test]
    fn rms_norm_rounds_before_and_after_the_weight() {
        let mut out = [0.0; 2];
        rms_norm(DType::Bf16, &[1.0, 3.0], &[1.007_812_5, 1.0], 0.0, &mut out);
        let scale = 1.0 / 5.0_f32.sqrt();
        let inner = bf16::from_f32(scale).to_f32();
        assert_eq!(out[0].to_bits(), bf16::from_f32(1.007_812_5 * inner).to_f32().to_bits());
        assert_eq!(out[1].to_bits(), bf16::from_f32(3.0 * scale).to_f32().to_bits());
    }

    #[test]
    fn rotation_pairs_the_two_halves() {
        // A quarter turn: (x, y) becomes (-y, x).
        let mut head = [1.0, 2.0, 3.0, 4.0];
        rotate(DType::F32, &mut head, &[0.0, 1.0], &[1.0, 0.0]);
        assert_eq!(head.map(f32::to_bits), [-3.0, 2.0, 1.0, 4.0].map(f32::to_bits));
    }

    #[test]
    fn softmax_and_swiglu_match_hand_values() {
        let mut scores = [0.0, 2_f32.ln(), f32::NEG_INFINITY];
        softmax(DType::F32, &mut scores);
        assert!((scores[0] - 1.0 / 3.0).abs() < 1e-7 && (scores[1] - 2.0 / 3.0).abs() < 1e-7);
        assert_eq!(scores[2].to_bits(), 0);
        let mut gate = [0.0, 3_f32.ln()];
        swiglu(DType::F32, &mut gate, &[5.0, 2.0]);
        // silu(ln 3) = ln 3 * 3/4
        assert_eq!(gate[0].to_bits(), 0);
        assert!((gate[1] - 3_f32.ln() * 1.5).abs() < 1e-6);
    }

    #[test]
    fn sixteen_bit_sums_round_to_nearest_even() {
        let mut x = [256.0, 2048.0];
        add(DType::Bf16, &mut x[..1], &[1.0]);
        add(DType::F16, &mut x[1..], &[1.0]);
        assert_eq!(x.map(f32::to_bits), [256.0, 2048.0].map(f32::to_bits));
    }
}
