//! The floating-point types of up to 32 bits: blocks compared with the widest vectors that the processor has.

use super::block::Sums;
use super::stored::Stored;
use super::tally::{TILE, Tally};
use super::tile::{Running, Scratch, alone, differences};

/// What a block gave.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Compared {
    pub(crate) sums: Sums,
    /// Sum of `|left - right| / |left|` where left is not 0; only with a tally.
    pub(crate) relative: f64,
    /// No value of either side is infinite or NaN.
    pub(crate) finite: bool,
}

#[inline(always)]
fn run<S: Stored<N>, const N: usize>(
    left: &[u8],
    right: &[u8],
    mut tally: Option<&mut Tally>,
) -> Compared {
    let mut running = Running::new();
    let mut scratch = Scratch::new(S::NONE);
    let (lefts, rest_l) = left.as_chunks::<N>().0.as_chunks::<TILE>();
    let (rights, rest_r) = right.as_chunks::<N>().0.as_chunks::<TILE>();
    for (at, tiles) in lefts.iter().zip(rights).enumerate() {
        let start = (at * TILE) as u64;
        running.tile::<S, N>(tiles, (start, TILE), &mut scratch, tally.as_deref_mut());
    }
    if !rest_l.is_empty() {
        // The rest is filled up with zeros, which add nothing.
        let (mut l, mut r) = ([[0; N]; TILE], [[0; N]; TILE]);
        for (slot, bytes) in l.iter_mut().zip(rest_l) {
            *slot = *bytes;
        }
        for (slot, bytes) in r.iter_mut().zip(rest_r) {
            *slot = *bytes;
        }
        let place = ((lefts.len() * TILE) as u64, rest_l.len());
        running.tile::<S, N>((&l, &r), place, &mut scratch, tally);
    }
    let (sums, relative) = running.finish();
    Compared { sums, relative, finite: running.finite }
}

/// Runs a body with the widest vectors that the processor has: one function, compiled three times.
macro_rules! widest {
    ($body:ident::<$s:ident, $n:ident>($($name:ident: $kind:ty),*) -> $out:ty) => {{
        #[cfg(target_arch = "x86_64")]
        {
            #[target_feature(enable = "avx2")]
            fn wide<$s: Stored<$n>, const $n: usize>($($name: $kind),*) -> $out {
                $body::<$s, $n>($($name),*)
            }
            #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
            fn widest<$s: Stored<$n>, const $n: usize>($($name: $kind),*) -> $out {
                $body::<$s, $n>($($name),*)
            }
            let has_512 = std::is_x86_feature_detected!("avx512f")
                && std::is_x86_feature_detected!("avx512bw")
                && std::is_x86_feature_detected!("avx512dq")
                && std::is_x86_feature_detected!("avx512vl");
            if has_512 {
                #[expect(unsafe_code, reason = "the vector form of safe code, chosen at run time")]
                // SAFETY: the processor has the four features, the only precondition.
                return unsafe { widest::<$s, $n>($($name),*) };
            }
            if std::is_x86_feature_detected!("avx2") {
                #[expect(unsafe_code, reason = "the vector form of safe code, chosen at run time")]
                // SAFETY: the processor has AVX2, the only precondition.
                return unsafe { wide::<$s, $n>($($name),*) };
            }
        }
        $body::<$s, $n>($($name),*)
    }};
}

/// Compares two blocks of equal length, of fewer than 2^32 elements; with a tally, what it counts is counted.
pub(crate) fn compare<S: Stored<N>, const N: usize>(
    left: &[u8],
    right: &[u8],
    tally: Option<&mut Tally>,
) -> Compared {
    widest!(run::<S, N>(left: &[u8], right: &[u8], tally: Option<&mut Tally>) -> Compared)
}

/// Of a block that both sides share: the sum of the squares of its finite values, their number, and how many of them are not 0.
pub(crate) fn shared<S: Stored<N>, const N: usize>(bytes: &[u8]) -> (f64, u64, u64) {
    #[inline(always)]
    fn body<S: Stored<N>, const N: usize>(bytes: &[u8]) -> (f64, u64, u64) {
        alone::<S, N>(bytes.as_chunks::<N>().0)
    }
    widest!(body::<S, N>(bytes: &[u8]) -> (f64, u64, u64))
}

/// Appends the bits of every finite `|left - right|` of two blocks whose bits above `shift` are one of `wanted`.
pub(crate) fn picked<S: Stored<N>, const N: usize>(
    left: &[u8],
    right: &[u8],
    wanted: &Wanted,
    out: &mut Vec<u64>,
) {
    widest!(picked_body::<S, N>(left: &[u8], right: &[u8], wanted: &Wanted, out: &mut Vec<u64>) -> ());
}

#[inline(always)]
fn picked_body<S: Stored<N>, const N: usize>(
    left: &[u8],
    right: &[u8],
    wanted: &Wanted,
    out: &mut Vec<u64>,
) {
    let mut apart = [0.0; TILE];
    let (lefts, rights) = (left.as_chunks::<N>().0, right.as_chunks::<N>().0);
    for (l, r) in lefts.chunks(TILE).zip(rights.chunks(TILE)) {
        differences::<S, N>(l, r, &mut apart);
        let apart = apart.get(..l.len()).unwrap_or_default();
        let (eights, rest) = apart.as_chunks::<8>();
        for eight in eights {
            let mut hit = [0_u64; 8];
            for (hit, value) in hit.iter_mut().zip(eight) {
                let above = value.to_bits() >> wanted.shift;
                for prefix in wanted.prefixes {
                    *hit |= u64::from(above == prefix);
                }
            }
            if hit.iter().fold(0, |any, one| any | one) != 0 {
                wanted.take(eight, out);
            }
        }
        wanted.take(rest, out);
    }
}

/// Leading bits of the differences that are looked for; fewer than five are filled up with bits that no difference has.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Wanted {
    /// Bits below the leading ones.
    pub(crate) shift: u32,
    /// The leading bits.
    pub(crate) prefixes: [u64; 5],
}

impl Wanted {
    /// Appends the bits of those that are looked for.
    #[inline(always)]
    pub(crate) fn take(&self, values: &[f64], out: &mut Vec<u64>) {
        for value in values {
            let bits = value.to_bits();
            if self.prefixes.contains(&(bits >> self.shift)) {
                out.push(bits);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::stored::{Brain, Half, Single};
    use super::*;

    fn bytes(seed: u32, length: usize) -> Vec<u8> {
        let mut state = seed;
        (0..length)
            .map(|_| {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                (state >> 24) as u8
            })
            .collect()
    }

    /// Both forms of one type on the same bytes.
    fn both<S: Stored<N>, const N: usize>(left: &[u8], right: &[u8]) -> Compared {
        let (mut a, mut b) = (Tally::new(None, true), Tally::new(None, true));
        let fast = compare::<S, N>(left, right, Some(&mut a));
        let plain = run::<S, N>(left, right, Some(&mut b));
        assert_eq!(format!("{fast:?}"), format!("{plain:?}"));
        assert_eq!((a.classes, a.relative), (b.classes, b.relative));
        assert!((1..1400).all(|rank| a.histogram.rank(rank) == b.histogram.rank(rank)));
        // Without a tally the figures are the same.
        assert_eq!(
            format!("{:?}", compare::<S, N>(left, right, None).sums),
            format!("{:?}", fast.sums)
        );
        fast
    }

    #[test]
    fn the_vector_form_gives_the_plain_form_bit_for_bit() {
        let (left, right) = (bytes(1, 4 * 1403), bytes(2, 4 * 1403));
        both::<Single, 4>(&left, &right);
        let found = both::<Half, 2>(&left, &right);
        assert!(found.sums.non_finite > 0 && found.sums.max_ulp > 0 && !found.finite);
        both::<Brain, 2>(&left, &right);
    }

    /// Values of many sizes, zeros among them, and the same a little off.
    fn noisy(length: usize) -> (Vec<f32>, Vec<f32>) {
        let random = bytes(3, 2 * length);
        let value = |at: usize| match random[2 * at] {
            0..20 => 0.0,
            n => (f32::from(n) - 130.0) * (1.0 + f32::from(random[2 * at + 1]) / 7.0),
        };
        let left: Vec<f32> = (0..length).map(value).collect();
        let right = left.iter().zip(&random).map(|(v, n)| v * (1.0 + f32::from(*n) / 65536.0));
        let right = right.collect();
        (left, right)
    }

    #[test]
    fn near_tiles_give_the_figures_of_plain_f64_arithmetic() {
        let (left, right) = noisy(5000);
        let narrow = |values: &[f32], digits: u32| -> (Vec<u8>, Vec<f64>) {
            let bits = |v: &f32| v.to_bits() & (u32::MAX << digits);
            let skip = digits as usize / 8;
            let bytes = values.iter().flat_map(|v| bits(v).to_le_bytes().into_iter().skip(skip));
            (bytes.collect(), values.iter().map(|v| f64::from(f32::from_bits(bits(v)))).collect())
        };
        for digits in [0, 16] {
            let ((l, lefts), (r, rights)) = (narrow(&left, digits), narrow(&right, digits));
            let found =
                if digits == 0 { both::<Single, 4>(&l, &r) } else { both::<Brain, 2>(&l, &r) };
            let (mut most, mut largest, mut sum) = (0.0_f64, 0.0_f64, 0.0);
            for (a, b) in lefts.iter().zip(&rights).filter(|(a, _)| a.abs() > 0.0) {
                largest = largest.max((a - b).abs());
                most = most.max((a - b).abs() / a.abs());
                sum += (a - b).abs() / a.abs();
            }
            assert_eq!((found.sums.max_abs, found.sums.max_rel), (largest, most));
            assert!(sum > 1.0 && (found.relative - sum).abs() < 3e-7 * sum);
        }
    }
}
