//! Dot-product tiles and weighted sums with AVX-512 and with AVX2 + FMA + F16C.
//!
//! Each function states the features it needs; `kernels` calls it only after detecting them. Both sets compute what the
//! portable code in `kernels` computes, bit for bit: 16 lanes, lane `l` takes the elements `l, l + 16, ...` by fused
//! multiply-add in rising order, a tail is padded with zeros, and lanes are folded by halves.

/// Lanes of every sum.
pub(super) const LANES: usize = 16;

/// Folds the lanes of one sum by halves: 16 to 8 to 4 to 2 to 1.
#[inline(always)]
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

#[cfg(target_arch = "x86_64")]
/// The last, incomplete 16 elements of a slice, padded with zeros.
#[inline(always)]
fn tail<T: Copy + Default>(values: &[T], from: usize) -> [T; LANES] {
    let mut padded = [T::default(); LANES];
    for (slot, value) in padded.iter_mut().zip(&values[from..]) {
        *slot = *value;
    }
    padded
}

/// Defines, for one instruction set and element type, `tile` (R weight rows by C inputs) and `mix` (C weighted sums of rows).
///
/// `$load` widens 16 elements at a pointer into a vector of `$ops`.
#[cfg(target_arch = "x86_64")]
macro_rules! kernels {
    ($name:ident, $features:literal, $element:ty, $ops:ident, $load:ident) => {
        pub(in crate::cpu) mod $name {
            use super::{LANES, fold, tail, $ops};

            /// `out[r][c] = dot(w[r], x[c])`; all slices have one length.
            #[target_feature(enable = $features)]
            pub(in crate::cpu) fn tile<const R: usize, const C: usize>(
                w: [&[$element]; R],
                x: [&[f32]; C],
            ) -> [[f32; C]; R] {
                let length = x[0].len();
                assert!(w.iter().all(|row| row.len() == length), "weight rows of one length");
                assert!(x.iter().all(|row| row.len() == length), "inputs of one length");
                let mut sums = [[$ops::zero(); C]; R];
                let whole = length / LANES * LANES;
                let mut at = 0;
                while at < whole {
                    let mut wide = [$ops::zero(); C];
                    for c in 0..C {
                        // SAFETY: at + 16 <= length, the length of every slice.
                        wide[c] = unsafe { $ops::f32s(x[c].as_ptr().add(at)) };
                    }
                    for r in 0..R {
                        // SAFETY: at + 16 <= length, the length of every slice.
                        let weights = unsafe { $ops::$load(w[r].as_ptr().add(at)) };
                        for c in 0..C {
                            sums[r][c] = $ops::fma(weights, wide[c], sums[r][c]);
                        }
                    }
                    at += LANES;
                }
                if whole < length {
                    for r in 0..R {
                        let rest = tail(w[r], whole);
                        // SAFETY: the array has 16 elements.
                        let weights = unsafe { $ops::$load(rest.as_ptr()) };
                        for c in 0..C {
                            let rest = tail(x[c], whole);
                            // SAFETY: the array has 16 elements.
                            let wide = unsafe { $ops::f32s(rest.as_ptr()) };
                            sums[r][c] = $ops::fma(weights, wide, sums[r][c]);
                        }
                    }
                }
                sums.map(|row| row.map(|sum| fold($ops::lanes(sum))))
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
                assert!(at + W * LANES <= dim && out.len() == W * LANES, "a block within the row");
                assert!(rows.len() >= p.len() * dim, "a row for every weight");
                let mut sums = [$ops::zero(); W];
                for (t, weight) in p.iter().enumerate() {
                    let weight = $ops::splat(*weight);
                    for w in 0..W {
                        // SAFETY: t < p.len() and at + 16 * W <= dim, so the 16 elements lie within `rows`.
                        let values =
                            unsafe { $ops::$load(rows.as_ptr().add(t * dim + at + w * LANES)) };
                        sums[w] = $ops::fma(weight, values, sums[w]);
                    }
                }
                for w in 0..W {
                    out[w * LANES..(w + 1) * LANES].copy_from_slice(&$ops::lanes(sums[w]));
                }
            }
        }
    };
}

#[cfg(target_arch = "x86_64")]
mod avx512 {
    use std::arch::x86_64::{
        __m256i, __m512, _mm256_loadu_si256, _mm512_castsi512_ps, _mm512_cvtepu16_epi32,
        _mm512_cvtph_ps, _mm512_fmadd_ps, _mm512_loadu_ps, _mm512_set1_ps, _mm512_setzero_ps,
        _mm512_slli_epi32, _mm512_storeu_ps,
    };

    use half::{bf16, f16};

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
        let mut lanes = [0.0; 16];
        // SAFETY: the array has 16 elements.
        unsafe { _mm512_storeu_ps(lanes.as_mut_ptr(), vector) };
        lanes
    }
    /// # Safety
    /// 16 elements at `at` are readable.
    #[inline]
    #[target_feature(enable = "avx512f")]
    pub(super) unsafe fn f32s(at: *const f32) -> __m512 {
        // SAFETY: by the caller; the load needs no alignment.
        unsafe { _mm512_loadu_ps(at) }
    }
    /// # Safety
    /// 16 elements at `at` are readable.
    #[inline]
    #[target_feature(enable = "avx512f")]
    pub(super) unsafe fn f16s(at: *const f16) -> __m512 {
        // SAFETY: by the caller; the load needs no alignment.
        _mm512_cvtph_ps(unsafe { _mm256_loadu_si256(at.cast::<__m256i>()) })
    }
    /// # Safety
    /// 16 elements at `at` are readable.
    #[inline]
    #[target_feature(enable = "avx512f")]
    pub(super) unsafe fn bf16s(at: *const bf16) -> __m512 {
        // SAFETY: by the caller; the load needs no alignment.
        let bits = unsafe { _mm256_loadu_si256(at.cast::<__m256i>()) };
        _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(bits)))
    }
}

#[cfg(target_arch = "x86_64")]
mod avx2 {
    use std::arch::x86_64::{
        __m128i, __m256, _mm_loadu_si128, _mm256_castsi256_ps, _mm256_cvtepu16_epi32,
        _mm256_cvtph_ps, _mm256_fmadd_ps, _mm256_loadu_ps, _mm256_set1_ps, _mm256_setzero_ps,
        _mm256_slli_epi32, _mm256_storeu_ps,
    };

    use half::{bf16, f16};

    /// Lanes 0..8 and 8..16.
    type Pair = [__m256; 2];

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    pub(super) fn zero() -> Pair {
        [_mm256_setzero_ps(); 2]
    }
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    pub(super) fn splat(value: f32) -> Pair {
        [_mm256_set1_ps(value); 2]
    }
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    pub(super) fn fma(a: Pair, b: Pair, sum: Pair) -> Pair {
        [_mm256_fmadd_ps(a[0], b[0], sum[0]), _mm256_fmadd_ps(a[1], b[1], sum[1])]
    }
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    pub(super) fn lanes(pair: Pair) -> [f32; 16] {
        let mut lanes = [0.0; 16];
        // SAFETY: the array has 16 elements, two stores of 8.
        unsafe {
            _mm256_storeu_ps(lanes.as_mut_ptr(), pair[0]);
            _mm256_storeu_ps(lanes.as_mut_ptr().add(8), pair[1]);
        }
        lanes
    }
    /// # Safety
    /// 16 elements at `at` are readable.
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    pub(super) unsafe fn f32s(at: *const f32) -> Pair {
        // SAFETY: by the caller; the loads need no alignment.
        unsafe { [_mm256_loadu_ps(at), _mm256_loadu_ps(at.add(8))] }
    }
    /// # Safety
    /// 16 elements at `at` are readable.
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    pub(super) unsafe fn f16s(at: *const f16) -> Pair {
        let at = at.cast::<__m128i>();
        // SAFETY: by the caller; the loads need no alignment.
        let halves = unsafe { [_mm_loadu_si128(at), _mm_loadu_si128(at.add(1))] };
        [_mm256_cvtph_ps(halves[0]), _mm256_cvtph_ps(halves[1])]
    }
    /// # Safety
    /// 16 elements at `at` are readable.
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    pub(super) unsafe fn bf16s(at: *const bf16) -> Pair {
        let at = at.cast::<__m128i>();
        // SAFETY: by the caller; the loads need no alignment.
        let halves = unsafe { [_mm_loadu_si128(at), _mm_loadu_si128(at.add(1))] };
        let widen =
            |bits| _mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(bits)));
        [widen(halves[0]), widen(halves[1])]
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
