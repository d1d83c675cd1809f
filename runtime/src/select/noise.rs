//! The tie-breaking noise of rule set `hf` (`TRIATTENTION.md` 4.4): MT19937, 24 bits a float, scaled by 1e-6.

const STATE: usize = 624;
const SHIFT: usize = 397;

/// Mersenne Twister as PyTorch's CPU generator runs it. Its state goes on from one compaction to the next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NoiseGenerator {
    state: Vec<u32>,
    next: usize,
}

impl NoiseGenerator {
    /// `init_genrand(seed)`.
    #[must_use]
    pub fn new(seed: u32) -> Self {
        let mut state = vec![seed; STATE];
        for index in 1..STATE {
            let before = state[index - 1];
            state[index] = 1_812_433_253_u32
                .wrapping_mul(before ^ (before >> 30))
                .wrapping_add(u32::try_from(index).unwrap_or(u32::MAX));
        }
        Self { state, next: STATE }
    }

    /// The state, then the index of the next word.
    pub(crate) fn words(&self) -> Vec<u32> {
        let mut words = self.state.clone();
        words.push(u32::try_from(self.next).unwrap_or(u32::MAX));
        words
    }

    /// From [`NoiseGenerator::words`]; `None` where they are not such a list.
    pub(crate) fn from_words(words: &[u32]) -> Option<Self> {
        let (&next, state) = words.split_last()?;
        let next = next as usize;
        (state.len() == STATE && next <= STATE).then(|| Self { state: state.to_vec(), next })
    }

    fn refill(&mut self) {
        for index in 0..STATE {
            let joined =
                (self.state[index] & 0x8000_0000) | (self.state[(index + 1) % STATE] & 0x7fff_ffff);
            let twist = if joined & 1 == 1 { 0x9908_b0df } else { 0 };
            self.state[index] = self.state[(index + SHIFT) % STATE] ^ (joined >> 1) ^ twist;
        }
        self.next = 0;
    }

    /// Next 32 bits.
    pub(crate) fn bits(&mut self) -> u32 {
        if self.next == STATE {
            self.refill();
        }
        let mut word = self.state[self.next];
        self.next += 1;
        word ^= word >> 11;
        word ^= (word << 7) & 0x9d2c_5680;
        word ^= (word << 15) & 0xefc6_0000;
        word ^ (word >> 18)
    }

    /// A value of `[0, 1)` on the grid of 2^-24.
    #[expect(clippy::cast_precision_loss, reason = "24 bits are exact in f32")]
    pub(crate) fn uniform(&mut self) -> f32 {
        (self.bits() & 0x00ff_ffff) as f32 * 5.960_464_5e-8
    }

    /// Draws and drops `count` values.
    pub(crate) fn skip(&mut self, count: usize) {
        for _ in 0..count {
            self.bits();
        }
    }

    /// Adds one draw, scaled by 1e-6 in f32, to every value in order.
    pub(crate) fn add_to(&mut self, values: &mut [f32]) {
        for value in values {
            *value += self.uniform() * 1e-6;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_generator_gives_the_published_stream_of_seed_5489() {
        // First output and 10000th output of the reference implementation (C++ std::mt19937 fixes the latter).
        let mut generator = NoiseGenerator::new(5489);
        assert_eq!(generator.bits(), 3_499_211_612);
        generator.skip(9998);
        assert_eq!(generator.bits(), 4_123_659_995);
    }

    #[test]
    fn uniform_values_are_the_low_24_bits() {
        // torch.manual_seed(0); torch.rand(1) is 0.49625658988952637.
        let mut generator = NoiseGenerator::new(0);
        assert_eq!(generator.uniform().to_bits(), 0.496_256_6_f32.to_bits());
    }
}
