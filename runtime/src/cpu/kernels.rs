//! Choice of instruction set, and the same kernels in portable code.

use half::{bf16, f16};

use super::simd::{LANES, fold};

/// Instruction set of the kernels. All give the same bits; they differ in speed.
///
/// A value exists only where its features were detected on this machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Isa(Set);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Set {
    Portable,
    #[cfg(target_arch = "x86_64")]
    Avx2,
    #[cfg(target_arch = "x86_64")]
    Avx512,
}

impl Isa {
    /// Plain Rust.
    pub const PORTABLE: Self = Self(Set::Portable);

    /// The fastest that this machine has.
    #[must_use]
    pub fn detect() -> Self {
        Self::available().last().copied().unwrap_or(Self::PORTABLE)
    }

    /// All that this machine has, slowest first.
    #[must_use]
    pub fn available() -> &'static [Self] {
        #[cfg(target_arch = "x86_64")]
        {
            if is_x86_feature_detected!("avx2")
                && is_x86_feature_detected!("fma")
                && is_x86_feature_detected!("f16c")
            {
                if is_x86_feature_detected!("avx512f") {
                    return &[Self::PORTABLE, Self(Set::Avx2), Self(Set::Avx512)];
                }
                return &[Self::PORTABLE, Self(Set::Avx2)];
            }
        }
        &[Self::PORTABLE]
    }

    const fn has_32_vectors(self) -> bool {
        match self.0 {
            #[cfg(target_arch = "x86_64")]
            Set::Avx2 => false,
            #[cfg(target_arch = "x86_64")]
            Set::Avx512 => true,
            Set::Portable => true,
        }
    }

    /// Lower-case name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self.0 {
            Set::Portable => "portable",
            #[cfg(target_arch = "x86_64")]
            Set::Avx2 => "avx2",
            #[cfg(target_arch = "x86_64")]
            Set::Avx512 => "avx512",
        }
    }
}

/// An element type that kernels widen while they read.
pub(super) trait Element: Copy + Default + Send + Sync + 'static {
    /// `out[r][c] = dot(w[r], x[c])`; all slices have one length.
    fn tile<const R: usize, const C: usize>(
        isa: Isa,
        w: [&[Self]; R],
        x: [&[f32]; C],
    ) -> [[f32; C]; R];

    /// `out[d] = sum over t of p[t] * rows[t * dim + at + d]`, t rising, for `16 * W` dimensions.
    fn mix<const W: usize>(isa: Isa, block: MixBlock<'_, Self>, p: &[f32], out: &mut [f32]);

    /// Exact.
    fn widen(self) -> f32;
}

/// Rows of `dim` elements, and the first dimension of the block that is summed.
#[derive(Clone, Copy)]
pub(super) struct MixBlock<'a, T> {
    pub(super) rows: &'a [T],
    pub(super) dim: usize,
    pub(super) at: usize,
}

macro_rules! element {
    ($element:ty, $avx512:ident, $avx2:ident, $widen:expr) => {
        impl Element for $element {
            #[inline]
            #[expect(unsafe_code, reason = "vector instructions chosen at run time")]
            fn tile<const R: usize, const C: usize>(
                isa: Isa,
                w: [&[Self]; R],
                x: [&[f32]; C],
            ) -> [[f32; C]; R] {
                match isa.0 {
                    // SAFETY: an `Isa` holds a set only where its features were detected; its field is private.
                    #[cfg(target_arch = "x86_64")]
                    Set::Avx512 => unsafe { super::simd::$avx512::tile(w, x) },
                    // SAFETY: as above.
                    #[cfg(target_arch = "x86_64")]
                    Set::Avx2 => unsafe { super::simd::$avx2::tile(w, x) },
                    Set::Portable => portable_tile(w, x),
                }
            }

            #[inline]
            #[expect(unsafe_code, reason = "vector instructions chosen at run time")]
            fn mix<const W: usize>(
                isa: Isa,
                MixBlock { rows, dim, at }: MixBlock<'_, Self>,
                p: &[f32],
                out: &mut [f32],
            ) {
                match isa.0 {
                    // SAFETY: as in `tile`.
                    #[cfg(target_arch = "x86_64")]
                    Set::Avx512 => unsafe { super::simd::$avx512::mix::<W>(rows, dim, at, p, out) },
                    // SAFETY: as in `tile`.
                    #[cfg(target_arch = "x86_64")]
                    Set::Avx2 => unsafe { super::simd::$avx2::mix::<W>(rows, dim, at, p, out) },
                    Set::Portable => portable_mix(MixBlock { rows, dim, at }, p, out),
                }
            }

            #[inline]
            fn widen(self) -> f32 {
                let widen: fn(Self) -> f32 = $widen;
                widen(self)
            }
        }
    };
}

element!(f32, avx512_f32, avx2_f32, |value| value);
element!(f16, avx512_f16, avx2_f16, f16::to_f32);
element!(bf16, avx512_bf16, avx2_bf16, bf16::to_f32);

fn portable_tile<T: Element, const R: usize, const C: usize>(
    w: [&[T]; R],
    x: [&[f32]; C],
) -> [[f32; C]; R] {
    w.map(|row| x.map(|input| portable_dot(row, input)))
}

fn portable_dot<T: Element>(row: &[T], input: &[f32]) -> f32 {
    assert_eq!(row.len(), input.len(), "slices of one length");
    let mut lanes = [0.0_f32; LANES];
    let (rows, row_rest) = row.as_chunks::<LANES>();
    let (inputs, input_rest) = input.as_chunks::<LANES>();
    let mut add = |row: &[T; LANES], input: &[f32; LANES]| {
        for lane in 0..LANES {
            lanes[lane] = row[lane].widen().mul_add(input[lane], lanes[lane]);
        }
    };
    for (row, input) in rows.iter().zip(inputs) {
        add(row, input);
    }
    if !row_rest.is_empty() {
        let (mut row, mut input) = ([T::default(); LANES], [0.0; LANES]);
        row[..row_rest.len()].copy_from_slice(row_rest);
        input[..input_rest.len()].copy_from_slice(input_rest);
        add(&row, &input);
    }
    fold(lanes)
}

/// Any number of dimensions: those of `out`.
fn portable_mix<T: Element>(block: MixBlock<'_, T>, p: &[f32], out: &mut [f32]) {
    out.fill(0.0);
    for (t, weight) in p.iter().enumerate() {
        let start = t * block.dim + block.at;
        let row = &block.rows[start..start + out.len()];
        for (sum, value) in out.iter_mut().zip(row) {
            *sum = weight.mul_add(value.widen(), *sum);
        }
    }
}

/// `out[d] = sum over t of p[t] * rows[t][d]` for rows of `out.len()` elements, t rising, fused.
pub(super) fn weighted_sum<T: Element>(isa: Isa, rows: &[T], p: &[f32], out: &mut [f32]) {
    let dim = out.len();
    let mut at = 0;
    while dim - at >= 4 * LANES {
        T::mix::<4>(isa, MixBlock { rows, dim, at }, p, &mut out[at..at + 4 * LANES]);
        at += 4 * LANES;
    }
    while dim - at >= LANES {
        T::mix::<1>(isa, MixBlock { rows, dim, at }, p, &mut out[at..at + LANES]);
        at += LANES;
    }
    if at < dim {
        portable_mix(MixBlock { rows, dim, at }, p, &mut out[at..]);
    }
}

/// Dot products of weight rows (`cols` elements each) with `inputs` rows, `out[r * inputs.len() + i]`.
///
/// The tile shapes below change speed only: every product is summed alone. They are the largest whose sums, weights and inputs
/// stay in registers.
pub(super) fn dots<T: Element>(isa: Isa, w: &[T], x: &[f32], cols: usize, out: &mut [f32]) {
    if cols == 0 {
        out.fill(0.0);
        return;
    }
    let inputs = x.len() / cols;
    let wide = isa.has_32_vectors();
    let mut start = 0;
    while start < inputs {
        let take = match inputs - start {
            4.. if wide => 4,
            2.. => 2,
            _ => 1,
        };
        let part = Strip { x: &x[start * cols..(start + take) * cols], start, inputs, cols };
        match (take, wide) {
            (4, _) => strip::<T, 4, 4>(isa, w, part, out),
            (2, true) => strip::<T, 4, 2>(isa, w, part, out),
            (2, false) => strip::<T, 2, 2>(isa, w, part, out),
            // Eight sums hide the latency of one.
            (_, true) => strip::<T, 8, 1>(isa, w, part, out),
            (_, false) => strip::<T, 4, 1>(isa, w, part, out),
        }
        start += take;
    }
}

/// Some inputs out of `inputs`, from number `start` on.
#[derive(Clone, Copy)]
struct Strip<'a> {
    x: &'a [f32],
    start: usize,
    inputs: usize,
    cols: usize,
}

fn strip<T: Element, const R: usize, const C: usize>(
    isa: Isa,
    w: &[T],
    strip: Strip<'_>,
    out: &mut [f32],
) {
    let Strip { x, start, inputs, cols } = strip;
    let x: [&[f32]; C] = std::array::from_fn(|c| &x[c * cols..(c + 1) * cols]);
    let mut blocks = w.chunks_exact(R * cols);
    let mut lines = out.chunks_exact_mut(R * inputs);
    for (block, lines) in (&mut blocks).zip(&mut lines) {
        let sums = T::tile::<R, C>(isa, split(block, cols), x);
        for (line, sums) in lines.chunks_exact_mut(inputs).zip(&sums) {
            line[start..start + C].copy_from_slice(sums);
        }
    }
    let rest = blocks.remainder().chunks_exact(cols);
    for (row, line) in rest.zip(lines.into_remainder().chunks_exact_mut(inputs)) {
        let [sums] = T::tile::<1, C>(isa, [row], x);
        line[start..start + C].copy_from_slice(&sums);
    }
}

fn split<T, const R: usize>(block: &[T], cols: usize) -> [&[T]; R] {
    std::array::from_fn(|row| &block[row * cols..(row + 1) * cols])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn noise(count: usize, seed: u32) -> Vec<f32> {
        let mut state = seed.wrapping_mul(2_654_435_761).max(1);
        let mut next = || {
            state ^= state << 13;
            state ^= state >> 17;
            state ^= state << 5;
            (state >> 8) as f32 / 8_388_608.0 - 1.0
        };
        (0..count).map(|_| next()).collect()
    }

    fn all_bits<T: Element>(convert: fn(f32) -> T) {
        for cols in [1, 7, 16, 33, 64, 100] {
            for (rows, inputs) in [(1, 1), (9, 1), (5, 2), (6, 3), (4, 7), (13, 13)] {
                let w: Vec<T> = noise(rows * cols, 1).into_iter().map(convert).collect();
                let x = noise(inputs * cols, 2);
                let mut wanted = vec![0.0; rows * inputs];
                for row in 0..rows {
                    for input in 0..inputs {
                        let w = &w[row * cols..(row + 1) * cols];
                        let x = &x[input * cols..(input + 1) * cols];
                        wanted[row * inputs + input] = portable_dot(w, x);
                        let exact: f64 = w
                            .iter()
                            .zip(x)
                            .map(|(w, x)| f64::from(w.widen()) * f64::from(*x))
                            .sum();
                        assert!((f64::from(portable_dot(w, x)) - exact).abs() < 1e-5);
                    }
                }
                for isa in Isa::available() {
                    let mut out = vec![f32::NAN; rows * inputs];
                    dots(*isa, &w, &x, cols, &mut out);
                    let same = out.iter().zip(&wanted).all(|(a, b)| a.to_bits() == b.to_bits());
                    assert!(same, "{} {rows}x{cols} by {inputs}", isa.name());
                }
                let p = noise(rows, 3);
                let mut wanted = vec![0.0; cols];
                portable_mix(MixBlock { rows: &w, dim: cols, at: 0 }, &p, &mut wanted);
                for isa in Isa::available() {
                    let mut out = vec![f32::NAN; cols];
                    weighted_sum(*isa, &w, &p, &mut out);
                    let same = out.iter().zip(&wanted).all(|(a, b)| a.to_bits() == b.to_bits());
                    assert!(same, "{} mix of {rows} rows by {cols}", isa.name());
                }
            }
        }
    }

    #[test]
    fn every_instruction_set_gives_the_same_bits_for_every_element_type() {
        all_bits::<f32>(|value| value);
        all_bits::<f16>(f16::from_f32);
        all_bits::<bf16>(bf16::from_f32);
    }

    #[test]
    fn a_dot_product_is_summed_over_sixteen_lanes() {
        // Lane 0 holds 1e8 and -1e8 (elements 0 and 16), so the 1 of element 1 survives; left to right it would not.
        let mut row = vec![0.0_f32; 17];
        (row[0], row[1], row[16]) = (1e8, 1.0, -1e8);
        let ones = vec![1.0; 17];
        assert_eq!(portable_dot(&row, &ones).to_bits(), 1.0_f32.to_bits());
    }

    #[test]
    fn subnormal_and_infinite_halves_are_widened_exactly() {
        let w = [f16::from_bits(1), f16::INFINITY, f16::NEG_ZERO, f16::from_bits(0x03FF)];
        for isa in Isa::available() {
            for value in &w {
                let mut out = [f32::NAN];
                dots(*isa, &[*value], &[1.0], 1, &mut out);
                let wanted = if *value == f16::NEG_ZERO { 0.0 } else { value.to_f32() };
                assert_eq!(out[0].to_bits(), wanted.to_bits(), "{}", isa.name());
            }
        }
    }
}
