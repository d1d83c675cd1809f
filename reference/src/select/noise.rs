//! The noise of rule set `hf` (`TRIATTENTION.md` 4.4): MT19937 as PyTorch's CPU generator uses it.

use super::real::narrow;

const SIZE: usize = 624;
const SHIFT: usize = 397;

/// Mersenne Twister of 32 bits, seeded by `init_genrand`.
#[derive(Debug, Clone)]
pub struct NoiseStream {
    state: Vec<u32>,
    next: usize,
}

impl NoiseStream {
    /// A generator at its first draw. Only the low 32 bits of the seed count.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        let mut word = u32::try_from(seed & 0xffff_ffff).unwrap_or_default();
        let mut state = Vec::with_capacity(SIZE);
        for index in 1u32.. {
            state.push(word);
            if state.len() == SIZE {
                break;
            }
            word = 1_812_433_253u32.wrapping_mul(word ^ (word >> 30)).wrapping_add(index);
        }
        Self { state, next: SIZE }
    }

    fn refill(&mut self) {
        for i in 0..SIZE {
            let mixed = (self.state[i] & 0x8000_0000) | (self.state[(i + 1) % SIZE] & 0x7fff_ffff);
            let twist = if mixed & 1 == 1 { 0x9908_b0df } else { 0 };
            self.state[i] = self.state[(i + SHIFT) % SIZE] ^ (mixed >> 1) ^ twist;
        }
        self.next = 0;
    }

    /// The next 32 bits.
    pub fn bits(&mut self) -> u32 {
        if self.next >= SIZE {
            self.refill();
        }
        let mut word = self.state[self.next];
        self.next += 1;
        word ^= word >> 11;
        word ^= (word << 7) & 0x9d2c_5680;
        word ^= (word << 15) & 0xefc6_0000;
        word ^ (word >> 18)
    }

    /// The next noise value: uniform in [0, 1) of 24 bits, times 1e-6, an f32 product.
    pub fn noise(&mut self) -> f32 {
        let low = f64::from(self.bits() & 0x00ff_ffff);
        narrow(low / 16_777_216.0) * 1e-6
    }

    /// Passes over `draws` values.
    pub fn skip(&mut self, draws: u64) {
        for _ in 0..draws {
            self.bits();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_stream_is_the_published_one() {
        // C++ standard, [rand.predef]: the 10000th value of mt19937 with its default seed 5489.
        let mut stream = NoiseStream::new(5489);
        stream.skip(9999);
        assert_eq!(stream.bits(), 4_123_659_995);
    }

    #[test]
    fn noise_is_below_a_millionth_and_not_constant() {
        let mut stream = NoiseStream::new(0);
        let values: Vec<f32> = (0..1000).map(|_| stream.noise()).collect();
        assert!(values.iter().all(|value| (0.0..1e-6).contains(value)));
        // MT19937 with seed 0 begins with 2357136044 (0x7F48E0CF...): its low 24 bits over 2^24.
        let first = f64::from(2_357_136_044u32 & 0x00ff_ffff) / 16_777_216.0;
        assert!((f64::from(values[0]) - first * 1e-6).abs() < 1e-13);
    }
}
