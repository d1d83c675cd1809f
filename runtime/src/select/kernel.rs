//! Arithmetic of one cached row: moduli with their floors, products with the mean query, sums in eight lanes.

use lockstep_traces::Aggregation;

use super::Keys;
use super::phase;
use super::trig::{Block, LANES};
use super::weights::Head;

/// How the direct form rounds and floors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Direct {
    /// |z| = sqrt(max(., 1e-8)); E after the reduction over offsets.
    Native,
    /// |z| = sqrt(. + 1e-8); E inside each offset.
    Triton,
    /// |z| rounded step by step to the cache dtype, no floor; E after the reduction.
    Torch,
}

pub(super) fn moduli(form: Direct, keys: &Keys<'_>, xs: &[f32], ys: &[f32], out: &mut [f32]) {
    for ((modulus, x), y) in out.iter_mut().zip(xs).zip(ys) {
        *modulus = match form {
            Direct::Native => (x * x + y * y).max(1e-8).sqrt(),
            Direct::Triton => (x * x + y * y + 1e-8).sqrt(),
            Direct::Torch => {
                let sum = keys.round(keys.round(x * x) + keys.round(y * y));
                keys.round(sum.sqrt())
            }
        };
    }
}

/// s * Re and s * Im of mu * conj(z).
pub(super) fn products(head: &Head, xs: &[f32], ys: &[f32], along: &mut [f32], across: &mut [f32]) {
    let stats = head.re.iter().zip(&head.im).zip(&head.scale);
    let out = along.iter_mut().zip(across);
    for ((((re, im), scale), (x, y)), (along, across)) in stats.zip(xs.iter().zip(ys)).zip(out) {
        *along = (re * x + im * y) * scale;
        *across = (im * x - re * y) * scale;
    }
}

/// sum(a * b).
pub(super) fn dot(a: &[f32], b: &[f32]) -> f32 {
    let mut lanes = [0.0_f32; LANES];
    let (a, a_rest) = a.as_chunks::<LANES>();
    let (b, b_rest) = b.as_chunks::<LANES>();
    for (a, b) in a.iter().zip(b) {
        for lane in 0..LANES {
            lanes[lane] += a[lane] * b[lane];
        }
    }
    for ((lane, a), b) in lanes.iter_mut().zip(a_rest).zip(b_rest) {
        *lane += a * b;
    }
    fold(&lanes)
}

/// sum(a * cos - b * sin).
pub(super) fn turned_dot(a: &[f32], cos: &[f32], b: &[f32], sin: &[f32]) -> f32 {
    let mut lanes = [0.0_f32; LANES];
    let (a, a_rest) = a.as_chunks::<LANES>();
    let (b, b_rest) = b.as_chunks::<LANES>();
    let (cos, cos_rest) = cos.as_chunks::<LANES>();
    let (sin, sin_rest) = sin.as_chunks::<LANES>();
    for (((a, b), cos), sin) in a.iter().zip(b).zip(cos).zip(sin) {
        for lane in 0..LANES {
            lanes[lane] += a[lane] * cos[lane] - b[lane] * sin[lane];
        }
    }
    let rest = a_rest.iter().zip(b_rest).zip(cos_rest).zip(sin_rest);
    for (lane, (((a, b), cos), sin)) in lanes.iter_mut().zip(rest) {
        *lane += a * cos - b * sin;
    }
    fold(&lanes)
}

pub(super) fn fold(lanes: &Block) -> f32 {
    let pairs: [f32; 4] = std::array::from_fn(|lane| lanes[lane] + lanes[lane + 4]);
    (pairs[0] + pairs[2]) + (pairs[1] + pairs[3])
}

pub(super) fn aggregate(how: Aggregation, values: impl ExactSizeIterator<Item = f32>) -> f32 {
    let count = phase::widen(values.len());
    match how {
        Aggregation::Mean => values.sum::<f32>() / count,
        // A NaN wins, so that it is seen later on.
        Aggregation::Max => values.fold(f32::NEG_INFINITY, |best, value| {
            if value > best || value.is_nan() { value } else { best }
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_maximum_floor_leaves_larger_moduli_alone_and_the_added_one_does_not() {
        let key = [1e-3, 0.0];
        let mut modulus = [0.0];
        moduli(Direct::Native, &Keys::F32(&key), &key[..1], &key[1..], &mut modulus);
        assert!((modulus[0] - 1e-3).abs() < 1e-9);
        moduli(Direct::Triton, &Keys::F32(&key), &key[..1], &key[1..], &mut modulus);
        assert!((modulus[0] - 1.01e-6_f32.sqrt()).abs() < 1e-9);
    }

    #[test]
    fn the_torch_scorer_rounds_moduli_to_the_cache_dtype() {
        use half::bf16;
        let (x, y) = (bf16::from_f32(1.117_187_5), bf16::from_f32(0.707_031_25));
        let mut modulus = [0.0];
        let row = [x, y];
        moduli(Direct::Torch, &Keys::Bf16(&row), &[x.to_f32()], &[y.to_f32()], &mut modulus);
        // 1.248 -> 1.25, 0.49989 -> 0.5, 1.75 -> 1.75, sqrt 1.32288 -> 1.3203125.
        assert_eq!(modulus[0].to_bits(), 1.320_312_5_f32.to_bits());
    }

    #[test]
    fn sums_take_every_element_whatever_the_length() {
        for length in [1_u8, 7, 8, 9, 16, 19] {
            let ones = vec![1.0; usize::from(length)];
            let zeros = vec![0.0; usize::from(length)];
            assert!((dot(&ones, &ones) - f32::from(length)).abs() < 1e-6);
            let turned = turned_dot(&ones, &ones, &ones, &zeros);
            assert!((turned - f32::from(length)).abs() < 1e-6);
            let turned = turned_dot(&ones, &zeros, &ones, &ones);
            assert!((turned + f32::from(length)).abs() < 1e-6);
        }
    }

    #[test]
    fn offsets_are_averaged_or_the_largest_is_taken_and_a_nan_is_never_lost() {
        let of = |how, values: [f32; 3]| aggregate(how, values.into_iter());
        assert!((of(Aggregation::Mean, [1.0, 2.0, 6.0]) - 3.0).abs() < 1e-6);
        assert!((of(Aggregation::Max, [1.0, 6.0, 2.0]) - 6.0).abs() < 1e-6);
        assert!(of(Aggregation::Max, [1.0, f32::NAN, 2.0]).is_nan());
        assert!(of(Aggregation::Max, [f32::NAN, 1.0, 2.0]).is_nan());
    }
}
