//! The floating-point types of up to 32 bits, eight elements at a time.
//!
//! The arithmetic is the same with AVX-512, AVX2 and without: eight running sums per block, joined in a fixed order, no
//! fused operation. The wide forms only make it faster.

use super::block::Sums;

const LANES: usize = 8;
const EXPONENT: u32 = 0x7f80_0000;

/// An element as it is stored: widened to f32 exactly, and ranked among the values of its type.
pub(crate) trait Stored<const N: usize> {
    /// Bits of the f32 of equal value.
    fn widen(bytes: [u8; N]) -> u32;
    /// Neighbouring values differ by 1; +0 and -0 are one.
    fn rank(bytes: [u8; N]) -> u32;
}

/// IEEE binary32.
pub(crate) struct Single;
/// bfloat16.
pub(crate) struct Brain;
/// IEEE binary16.
pub(crate) struct Half;

const fn rank16(bits: u32) -> u32 {
    let magnitude = bits & 0x7fff;
    if bits & 0x8000 == 0 { 0x8000 + magnitude } else { 0x8000 - magnitude }
}

impl Stored<4> for Single {
    #[inline]
    fn widen(bytes: [u8; 4]) -> u32 {
        u32::from_le_bytes(bytes)
    }
    #[inline]
    fn rank(bytes: [u8; 4]) -> u32 {
        let bits = u32::from_le_bytes(bytes);
        let magnitude = bits & 0x7fff_ffff;
        if bits >> 31 == 0 { 0x8000_0000 + magnitude } else { 0x8000_0000 - magnitude }
    }
}

impl Stored<2> for Brain {
    #[inline]
    fn widen(bytes: [u8; 2]) -> u32 {
        u32::from(u16::from_le_bytes(bytes)) << 16
    }
    #[inline]
    fn rank(bytes: [u8; 2]) -> u32 {
        rank16(u32::from(u16::from_le_bytes(bytes)))
    }
}

impl Stored<2> for Half {
    #[inline]
    fn widen(bytes: [u8; 2]) -> u32 {
        let bits = u32::from(u16::from_le_bytes(bytes));
        // Exponent and fraction moved into place are the value times 2^-112, subnormal values included.
        let scaled = f32::from_bits((bits & 0x7fff) << 13) * f32::from_bits((112 + 127) << 23);
        let special = if bits & 0x7c00 == 0x7c00 { EXPONENT } else { 0 };
        scaled.to_bits() | special | (bits & 0x8000) << 16
    }
    #[inline]
    fn rank(bytes: [u8; 2]) -> u32 {
        rank16(u32::from(u16::from_le_bytes(bytes)))
    }
}

#[derive(Clone, Copy)]
struct Running {
    different: [u32; LANES],
    non_finite: [u32; LANES],
    max_ulp: [u32; LANES],
    max_abs: [f64; LANES],
    square_diff: [f64; LANES],
    sum_abs: [f64; LANES],
    square_left: [f64; LANES],
    square_right: [f64; LANES],
    max_rel: f64,
}

impl Running {
    const fn new() -> Self {
        Self {
            different: [0; LANES],
            non_finite: [0; LANES],
            max_ulp: [0; LANES],
            max_abs: [0.0; LANES],
            square_diff: [0.0; LANES],
            sum_abs: [0.0; LANES],
            square_left: [0.0; LANES],
            square_right: [0.0; LANES],
            max_rel: 0.0,
        }
    }

    #[inline(always)]
    fn step<S: Stored<N>, const N: usize>(
        &mut self,
        left: &[[u8; N]; LANES],
        right: &[[u8; N]; LANES],
    ) {
        // Divides only where a quotient could be the largest so far.
        let mut larger = 0_u32;
        for at in 0..LANES {
            let (l, r) = (S::widen(left[at]), S::widen(right[at]));
            let differs = left[at] != right[at];
            let finite_left = l & EXPONENT != EXPONENT;
            let finite_right = r & EXPONENT != EXPONENT;
            let finite = finite_left && finite_right;
            self.different[at] += u32::from(differs);
            self.non_finite[at] += u32::from(differs && !finite);
            let (a, b) = (f64::from(f32::from_bits(l)), f64::from(f32::from_bits(r)));
            let distance = if finite { (a - b).abs() } else { 0.0 };
            larger |= u32::from(distance > self.max_rel * a.abs());
            self.square_diff[at] += distance * distance;
            self.sum_abs[at] += distance;
            self.square_left[at] += if finite_left { a * a } else { 0.0 };
            self.square_right[at] += if finite_right { b * b } else { 0.0 };
            self.max_abs[at] =
                if distance > self.max_abs[at] { distance } else { self.max_abs[at] };
            let ulp = S::rank(left[at]).abs_diff(S::rank(right[at]));
            let ulp = if finite { ulp } else { 0 };
            self.max_ulp[at] = self.max_ulp[at].max(ulp);
        }
        if larger != 0 {
            self.max_rel = relative::<S, N>(self.max_rel, left, right);
        }
    }

    fn finish(&self) -> Sums {
        let total = |lanes: &[u32; LANES]| lanes.iter().map(|lane| u64::from(*lane)).sum::<u64>();
        let (different, non_finite) = (total(&self.different), total(&self.non_finite));
        Sums {
            different,
            non_finite,
            finite: different - non_finite,
            max_abs: self.max_abs.iter().copied().fold(0.0, f64::max),
            max_rel: self.max_rel,
            max_ulp: self.max_ulp.iter().copied().max().map_or(0, u64::from),
            square_diff: self.square_diff.iter().sum(),
            sum_abs: self.sum_abs.iter().sum(),
            square_right: self.square_right.iter().sum(),
            square_left: self.square_left.iter().sum(),
            first: None,
        }
    }
}

/// Largest quotient of eight elements. It computes them anew from the bytes, so that the running sums of the caller stay
/// in registers.
#[cold]
#[inline(never)]
fn relative<S: Stored<N>, const N: usize>(
    so_far: f64,
    left: &[[u8; N]; LANES],
    right: &[[u8; N]; LANES],
) -> f64 {
    let value = |bytes: &[u8; N]| f64::from(f32::from_bits(S::widen(*bytes)));
    let pairs = left.iter().zip(right).map(|(l, r)| (value(l), value(r)));
    let known = |(a, b): &(f64, f64)| a.is_finite() && b.is_finite() && a.abs() > 0.0;
    pairs.filter(known).fold(so_far, |max, (a, b)| max.max((a - b).abs() / a.abs()))
}

#[inline(always)]
fn run<S: Stored<N>, const N: usize>(left: &[u8], right: &[u8]) -> Sums {
    let mut running = Running::new();
    let (lefts, rights) = (left.as_chunks::<N>().0, right.as_chunks::<N>().0);
    let (whole_l, rest_l) = lefts.as_chunks::<LANES>();
    let (whole_r, rest_r) = rights.as_chunks::<LANES>();
    for (l, r) in whole_l.iter().zip(whole_r) {
        running.step::<S, N>(l, r);
    }
    // The rest is filled up with zeros, which add nothing.
    let (mut l, mut r) = ([[0; N]; LANES], [[0; N]; LANES]);
    for (slot, bytes) in l.iter_mut().zip(rest_l) {
        *slot = *bytes;
    }
    for (slot, bytes) in r.iter_mut().zip(rest_r) {
        *slot = *bytes;
    }
    running.step::<S, N>(&l, &r);
    let mut sums = running.finish();
    sums.first = lefts.iter().zip(rights).position(|(l, r)| l != r).map(|at| at as u64);
    sums
}

/// Compares two blocks of equal length, of fewer than 2^32 elements.
pub(crate) fn compare<S: Stored<N>, const N: usize>(left: &[u8], right: &[u8]) -> Sums {
    #[cfg(target_arch = "x86_64")]
    {
        #[target_feature(enable = "avx2")]
        fn wide<S: Stored<N>, const N: usize>(left: &[u8], right: &[u8]) -> Sums {
            run::<S, N>(left, right)
        }
        #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
        fn widest<S: Stored<N>, const N: usize>(left: &[u8], right: &[u8]) -> Sums {
            run::<S, N>(left, right)
        }
        let has_512 = std::is_x86_feature_detected!("avx512f")
            && std::is_x86_feature_detected!("avx512bw")
            && std::is_x86_feature_detected!("avx512dq")
            && std::is_x86_feature_detected!("avx512vl");
        if has_512 {
            #[expect(unsafe_code, reason = "the vector form of safe code, chosen at run time")]
            // SAFETY: the processor has the four features, the only precondition.
            return unsafe { widest::<S, N>(left, right) };
        }
        if std::is_x86_feature_detected!("avx2") {
            #[expect(unsafe_code, reason = "the vector form of safe code, chosen at run time")]
            // SAFETY: the processor has AVX2, the only precondition.
            return unsafe { wide::<S, N>(left, right) };
        }
    }
    run::<S, N>(left, right)
}

#[cfg(test)]
mod tests {
    use half::{bf16, f16};

    use super::*;

    #[test]
    fn every_half_value_widens_exactly() {
        for bits in 0..=u16::MAX {
            let (narrow, wide) =
                (f16::from_bits(bits), f32::from_bits(Half::widen(bits.to_le_bytes())));
            let expected = narrow.to_f32();
            assert!(
                wide.to_bits() == expected.to_bits() || (wide.is_nan() && expected.is_nan()),
                "{bits:04x}"
            );
            let brain = f32::from_bits(Brain::widen(bits.to_le_bytes()));
            let expected = bf16::from_bits(bits).to_f32();
            assert!(brain.to_bits() == expected.to_bits() || (brain.is_nan() && expected.is_nan()));
        }
    }

    #[test]
    fn the_vector_form_gives_the_plain_form_bit_for_bit() {
        let bytes = |seed: u32| -> Vec<u8> {
            let mut state = seed;
            (0..4 * 1003)
                .map(|_| {
                    state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                    (state >> 24) as u8
                })
                .collect()
        };
        let (left, right) = (bytes(1), bytes(2));
        let (fast, plain) = (compare::<Single, 4>(&left, &right), run::<Single, 4>(&left, &right));
        assert_eq!(format!("{fast:?}"), format!("{plain:?}"));
        let (fast, plain) = (compare::<Half, 2>(&left, &right), run::<Half, 2>(&left, &right));
        assert_eq!(format!("{fast:?}"), format!("{plain:?}"));
        assert!(fast.non_finite > 0 && fast.max_ulp > 0);
    }
}
