//! Random inputs.

use lockstep_traces::hash::splitmix64;

/// Small deterministic numbers (splitmix64).
pub(in crate::cuda::catalog) struct Random(pub(in crate::cuda::catalog) u64);

impl Random {
    pub(in crate::cuda::catalog) fn word(&mut self) -> u64 {
        let word = splitmix64(self.0);
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        word
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
