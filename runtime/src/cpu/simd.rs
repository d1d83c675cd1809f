//! Dot-product tiles and weighted sums with AVX-512 and with AVX2 + FMA + F16C.
//!
//! Each function states the features it needs; `kernels` calls it only after detecting them. Both sets compute what the
//! portable code in `kernels` computes, bit for bit: 16 lanes, lane `l` takes the elements `l, l + 16, ...` by fused
//! multiply-add in rising order, a tail is padded with zeros, and lanes are folded by halves.

/// Lanes of every sum.
pub(super) const LANES: usize = 16;

/// Folds the lanes of one sum by halves: 16 to 8 to 4 to 2 to 1.
#[inline]
pub(super) fn fold(mut lanes: [f32; LANES]) -> f32 {
    let mut width = LANES / 2;
    while width > 0 {
        for lane in 0..width {
            lanes[lane] += lanes[lane + width];
        }
        width /= 2;
    }
    lanes[0]
}

/// The last, incomplete 16 elements of a slice, padded with zeros.
#[cfg(target_arch = "x86_64")]
#[inline]
fn padded<T: Copy + Default>(rest: &[T]) -> [T; LANES] {
    let mut padded = [T::default(); LANES];
    for (slot, value) in padded.iter_mut().zip(rest) {
        *slot = *value;
    }
    padded
}

/// Bytes that memory hands out together.
#[cfg(target_arch = "x86_64")]
const CACHE_LINE: usize = 64;

/// Asks for the cache line at `address`, which need not be readable.
#[cfg(target_arch = "x86_64")]
#[inline]
fn prefetch(address: *const u8) {
    use std::arch::x86_64::{_MM_HINT_T1, _mm_prefetch};
    // SAFETY: a prefetch is a hint; it never faults.
    unsafe { _mm_prefetch::<_MM_HINT_T1>(address.cast()) };
}

/// Defines, for one instruction set and element type, `tile` (R weight rows by C inputs) and `mix` (W vectors of a weighted sum of rows).
/// `$load` widens 16 elements into a vector of `$ops`.
#[cfg(target_arch = "x86_64")]
macro_rules! kernels {
    ($name:ident, $features:literal, $element:ty, $ops:ident, $load:ident) => {
        pub(in crate::cpu) mod $name {
            use super::{CACHE_LINE, LANES, padded, prefetch, $ops};

            /// `out[r][c] = dot(w[r], x[c])`; all slices have one length.
            #[target_feature(enable = $features)]
            pub(in crate::cpu) fn tile<const R: usize, const C: usize>(
                w: [&[$element]; R],
                x: [&[f32]; C],
            ) -> [[f32; C]; R] {
                let length = x[0].len();
                assert!(w.iter().all(|row| row.len() == length), "weight rows of one length");
                assert!(x.iter().all(|row| row.len() == length), "inputs of one length");
                let mut sums = whole_blocks(&w, &x);
                let whole = length / LANES * LANES;
                if whole < length {
                    for r in 0..R {
                        let weights = $ops::$load(&padded(&w[r][whole..]));
                        for c in 0..C {
                            let wide = $ops::f32s(&padded(&x[c][whole..]));
                            sums[r][c] = $ops::fma(weights, wide, sums[r][c]);
                        }
                    }
                }
                let mut out = [[0.0; C]; R];
                for r in 0..R {
                    for c in 0..C {
                        out[r][c] = $ops::fold(sums[r][c]);
                    }
                }
                out
            }

            /// Lanes of the sums over the whole blocks of 16. On its own, so that nothing else makes the compiler keep sums in memory.
            #[inline(never)]
            #[target_feature(enable = $features)]
            fn whole_blocks<const R: usize, const C: usize>(
                w: &[&[$element]; R],
                x: &[&[f32]; C],
            ) -> [[$ops::Vector; C]; R] {
                let length = x[0].len();
                let mut sums = [[$ops::zero(); C]; R];
                for at in 0..length / LANES {
                    if C == 1 {
                        // One input is a pass over the weights at the speed of memory. Its rows lie one after the other, and so
                        // do the next ones, which are asked for here line by line in the order of memory.
                        let step = size_of::<[[$element; LANES]; R]>();
                        let next = w[0].as_ptr().wrapping_add(R * length).cast::<u8>();
                        for line in (0..step).step_by(CACHE_LINE) {
                            prefetch(next.wrapping_add(at * step + line));
                        }
                    }
                    let mut wide = [$ops::zero(); C];
                    for c in 0..C {
                        // SAFETY: block `at` is whole in every slice of this length, which the caller checked.
                        let block = unsafe { x[c].as_chunks::<LANES>().0.get_unchecked(at) };
                        wide[c] = $ops::f32s(block);
                    }
                    for r in 0..R {
                        // SAFETY: as above.
                        let block = unsafe { w[r].as_chunks::<LANES>().0.get_unchecked(at) };
                        let weights = $ops::$load(block);
                        for c in 0..C {
                            sums[r][c] = $ops::fma(weights, wide[c], sums[r][c]);
                        }
                    }
                }
                sums
            }

            /// `out[d] = sum over t of p[t] * rows[t * dim + d]`, t rising, for the dimensions `at..at + 16 * W`.
            #[target_feature(enable = $features)]
            pub(in crate::cpu) fn mix<const W: usize>(
                rows: &[$element],
                dim: usize,
                at: usize,
                p: &[f32],
                out: &mut [f32],
            ) {
                let mut sums = [$ops::zero(); W];
                for (row, weight) in rows.chunks_exact(dim).zip(p) {
                    let weight = $ops::splat(*weight);
                    let (blocks, _) = row[at..at + W * LANES].as_chunks::<LANES>();
                    for w in 0..W {
                        sums[w] = $ops::fma(weight, $ops::$load(&blocks[w]), sums[w]);
                    }
                }
                for (out, sum) in out.as_chunks_mut::<LANES>().0.iter_mut().zip(sums) {
                    *out = $ops::lanes(sum);
                }
            }
        }
    };
}

#[cfg(target_arch = "x86_64")]
mod avx512 {
    use std::arch::x86_64::{
        __m256i, __m512, _mm_add_ps, _mm_add_ss, _mm_cvtss_f32, _mm_movehl_ps, _mm_shuffle_ps,
        _mm256_add_ps, _mm256_castpd_ps, _mm256_castps256_ps128, _mm256_extractf128_ps,
        _mm512_castps_pd, _mm512_castps512_ps256, _mm512_castsi512_ps, _mm512_cvtepu16_epi32,
        _mm512_cvtph_ps, _mm512_extractf64x4_pd, _mm512_fmadd_ps, _mm512_set1_ps,
        _mm512_setzero_ps, _mm512_slli_epi32,
    };
    use std::mem::transmute;

    use half::{bf16, f16};

    /// Lanes 0..16.
    pub(super) type Vector = __m512;

    #[inline]
    #[target_feature(enable = "avx512f")]
    pub(super) fn zero() -> __m512 {
        _mm512_setzero_ps()
    }
    #[inline]
    #[target_feature(enable = "avx512f")]
    pub(super) fn splat(value: f32) -> __m512 {
        _mm512_set1_ps(value)
    }
    #[inline]
    #[target_feature(enable = "avx512f")]
    pub(super) fn fma(a: __m512, b: __m512, sum: __m512) -> __m512 {
        _mm512_fmadd_ps(a, b, sum)
    }
    #[inline]
    #[target_feature(enable = "avx512f")]
    pub(super) fn lanes(vector: __m512) -> [f32; 16] {
        // SAFETY: both are 16 f32.
        unsafe { transmute(vector) }
    }
    /// By halves, as the portable fold.
    #[inline]
    #[target_feature(enable = "avx512f")]
    pub(super) fn fold(vector: __m512) -> f32 {
        let high = _mm256_castpd_ps(_mm512_extractf64x4_pd::<1>(_mm512_castps_pd(vector)));
        let eight = _mm256_add_ps(_mm512_castps512_ps256(vector), high);
        let four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps::<1>(eight));
        let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
        _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps::<1>(two, two)))
    }
    #[inline]
    #[target_feature(enable = "avx512f")]
    pub(super) fn f32s(values: &[f32; 16]) -> __m512 {
        // SAFETY: both are 16 f32.
        unsafe { transmute(*values) }
    }
    #[inline]
    #[target_feature(enable = "avx512f")]
    pub(super) fn f16s(values: &[f16; 16]) -> __m512 {
        // SAFETY: both are 32 bytes without invalid patterns.
        let bits: __m256i = unsafe { transmute(*values) };
        _mm512_cvtph_ps(bits)
    }
    #[inline]
    #[target_feature(enable = "avx512f")]
    pub(super) fn bf16s(values: &[bf16; 16]) -> __m512 {
        // SAFETY: both are 32 bytes without invalid patterns.
        let bits: __m256i = unsafe { transmute(*values) };
        _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(bits)))
    }
}

#[cfg(target_arch = "x86_64")]
mod avx2 {
    use std::arch::x86_64::{
        __m128i, __m256, _mm_add_ps, _mm_add_ss, _mm_cvtss_f32, _mm_movehl_ps, _mm_shuffle_ps,
        _mm256_add_ps, _mm256_castps256_ps128, _mm256_castsi256_ps, _mm256_cvtepu16_epi32,
        _mm256_cvtph_ps, _mm256_extractf128_ps, _mm256_fmadd_ps, _mm256_set1_ps, _mm256_setzero_ps,
        _mm256_slli_epi32,
    };
    use std::mem::transmute;

    use half::{bf16, f16};

    /// Lanes 0..8 and 8..16.
    pub(super) type Vector = [__m256; 2];

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    pub(super) fn zero() -> Vector {
        [_mm256_setzero_ps(); 2]
    }
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    pub(super) fn splat(value: f32) -> Vector {
        [_mm256_set1_ps(value); 2]
    }
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    pub(super) fn fma(a: Vector, b: Vector, sum: Vector) -> Vector {
        [_mm256_fmadd_ps(a[0], b[0], sum[0]), _mm256_fmadd_ps(a[1], b[1], sum[1])]
    }
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    pub(super) fn lanes(pair: Vector) -> [f32; 16] {
        // SAFETY: both are 16 f32.
        unsafe { transmute(pair) }
    }
    /// By halves, as the portable fold.
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    pub(super) fn fold(pair: Vector) -> f32 {
        let eight = _mm256_add_ps(pair[0], pair[1]);
        let four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps::<1>(eight));
        let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
        _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps::<1>(two, two)))
    }
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    pub(super) fn f32s(values: &[f32; 16]) -> Vector {
        // SAFETY: both are 16 f32.
        unsafe { transmute(*values) }
    }
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    pub(super) fn f16s(values: &[f16; 16]) -> Vector {
        // SAFETY: both are 32 bytes without invalid patterns.
        let bits: [__m128i; 2] = unsafe { transmute(*values) };
        [_mm256_cvtph_ps(bits[0]), _mm256_cvtph_ps(bits[1])]
    }
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    pub(super) fn bf16s(values: &[bf16; 16]) -> Vector {
        // SAFETY: both are 32 bytes without invalid patterns.
        let bits: [__m128i; 2] = unsafe { transmute(*values) };
        [widen(bits[0]), widen(bits[1])]
    }
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    fn widen(bits: __m128i) -> __m256 {
        _mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(bits)))
    }
}

#[cfg(target_arch = "x86_64")]
kernels!(avx512_f32, "avx512f", f32, avx512, f32s);
#[cfg(target_arch = "x86_64")]
kernels!(avx512_f16, "avx512f", half::f16, avx512, f16s);
#[cfg(target_arch = "x86_64")]
kernels!(avx512_bf16, "avx512f", half::bf16, avx512, bf16s);
#[cfg(target_arch = "x86_64")]
kernels!(avx2_f32, "avx2,fma,f16c", f32, avx2, f32s);
#[cfg(target_arch = "x86_64")]
kernels!(avx2_f16, "avx2,fma,f16c", half::f16, avx2, f16s);
#[cfg(target_arch = "x86_64")]
kernels!(avx2_bf16, "avx2,fma,f16c", half::bf16, avx2, bf16s);
