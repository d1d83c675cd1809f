//! The draw of `torch.multinomial` on a CUDA device: an exponential race over the whole vocabulary.
//!
//! Element `t` gets the uniform number that PyTorch's fill kernel would give it: thread `t mod T` of `T`, generator
//! Philox4x32-10 with the seed as key and the thread as subsequence. `E_t = -__logf(U_t)`, and the largest
//! `p_t / E_t` wins, lower id first on equal quotients. Only ids with mass need be computed.

use half::f16;

use super::fast_log::fast_log;
use super::philox::{high, low, philox4x32};

const BLOCK: u64 = 256;
const THREADS_PER_SM: u64 = 2048;
/// Numbers that one call of the generator gives; a thread takes them in turn.
const UNROLL: u64 = 4;
const TWO_POW_MINUS_32: f32 = 1.0 / 4_294_967_296.0;

/// Geometry of the fill kernel on one device for one vocabulary.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Race {
    threads: u64,
    increment: u64,
}

/// The winner of a race.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Winner {
    /// Place in the list given.
    pub(crate) place: usize,
    /// Its uniform number.
    pub(crate) uniform: f32,
    /// ln of its quotient over that of the second; infinite where it ran alone.
    pub(crate) margin: f32,
}

impl Race {
    /// A device with `sm_count` multiprocessors of 2048 threads; `vocab` and `sm_count` are at least 1.
    #[must_use]
    pub fn new(vocab: usize, sm_count: u32) -> Self {
        let vocab = (vocab as u64).max(1);
        let blocks =
            (u64::from(sm_count.max(1)) * (THREADS_PER_SM / BLOCK)).min(vocab.div_ceil(BLOCK));
        let threads = BLOCK * blocks;
        let increment = UNROLL * ((vocab - 1) / (UNROLL * threads) + 1);
        Self { threads, increment }
    }

    /// Threads of the fill kernel. Ids from here on share a thread with a smaller one, so their numbers depend on
    /// the device.
    #[must_use]
    pub const fn threads(&self) -> u64 {
        self.threads
    }

    /// What one draw adds to the generator's offset.
    #[must_use]
    pub const fn increment(&self) -> u64 {
        self.increment
    }

    /// The uniform number in (0, 1] of element `id`.
    #[must_use]
    pub fn uniform(&self, seed: u64, offset: u64, id: u32) -> f32 {
        let turn = u64::from(id) / self.threads;
        let thread = u64::from(id) % self.threads;
        let call = (offset + UNROLL * (turn / UNROLL)) / UNROLL;
        let numbers =
            philox4x32([low(call), high(call), low(thread), high(thread)], [low(seed), high(seed)]);
        let component = usize::try_from(turn % UNROLL).unwrap_or(0);
        #[expect(clippy::cast_precision_loss, reason = "the generator rounds to f32 here as well")]
        let number = numbers[component] as f32;
        number * TWO_POW_MINUS_32 + TWO_POW_MINUS_32 / 2.0
    }

    /// `-ln(uniform)` as CUDA's fast logarithm gives it, kept above zero where the uniform number is 1.
    #[must_use]
    pub fn exponential(uniform: f32) -> f32 {
        let half = f32::EPSILON / 2.0;
        if uniform >= 1.0 - half { half } else { -fast_log(uniform) }
    }

    /// Runs the race among `ids` with the masses `probabilities`; `None` where there is nobody.
    pub(crate) fn run(
        &self,
        seed: u64,
        offset: u64,
        ids: &[u32],
        probabilities: &[f32],
    ) -> Option<Winner> {
        let mut best: Option<(usize, f32, f32)> = None;
        let mut second = 0.0_f32;
        for (place, (&id, &mass)) in ids.iter().zip(probabilities).enumerate() {
            let uniform = self.uniform(seed, offset, id);
            let quotient = mass / Self::exponential(uniform);
            let wins = best.is_none_or(|(leader, _, lead)| {
                quotient > lead || (quotient.total_cmp(&lead).is_eq() && id < ids[leader])
            });
            if wins {
                second = best.map_or(0.0, |(_, _, lead)| lead);
                best = Some((place, uniform, quotient));
            } else {
                second = second.max(quotient);
            }
        }
        best.map(|(place, uniform, lead)| Winner {
            place,
            uniform,
            margin: lead.ln() - second.ln(),
        })
    }

    /// The place that wins where probabilities, exponential numbers and quotients are rounded to f16, as torch races in a half-precision
    /// tensor; lower id first on equal quotients.
    pub(crate) fn run_half(
        &self,
        seed: u64,
        offset: u64,
        ids: &[u32],
        probabilities: &[f16],
    ) -> Option<usize> {
        let mut best: Option<(usize, f16)> = None;
        for (place, (&id, &mass)) in ids.iter().zip(probabilities).enumerate() {
            let exponential = f16::from_f32(Self::exponential(self.uniform(seed, offset, id)));
            let quotient = f16::from_f32(mass.to_f32() / exponential.to_f32());
            let wins = best.is_none_or(|(leader, lead)| {
                quotient > lead || (quotient == lead && id < ids[leader])
            });
            if wins {
                best = Some((place, quotient));
            }
        }
        best.map(|(place, _)| place)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const H200: u32 = 132;

    fn draws(race: Race, seed: u64, ids: &[u32], masses: &[f32], count: u64) -> Vec<u32> {
        (0..count)
            .map(|draw| ids[race.run(seed, draw * race.increment(), ids, masses).unwrap().place])
            .collect()
    }

    #[test]
    fn the_native_runtimes_own_expected_draws_come_out() {
        let race = Race::new(100_000, H200);
        let stream = draws(race, 1235, &[279, 419], &[0.545_416_1, 0.454_583_85], 8);
        assert_eq!(stream, [419, 279, 279, 419, 279, 279, 419, 419]);
        // Drawn over the slice of two instead, the stream starts otherwise.
        let slice = draws(Race::new(2, H200), 1235, &[0, 1], &[0.545_416_1, 0.454_583_85], 1);
        assert_eq!(slice, [0]);
    }

    #[test]
    fn draws_of_a_device_with_seed_zero_come_out() {
        // torch 2.11 on an H200: twenty ids of a vocabulary of 151,936 hold all the mass.
        const IDS: [u32; 20] = [
            940, 16_536, 30_350, 51_028, 58_233, 60_785, 65_257, 65_841, 67_031, 68_884, 77_059,
            77_277, 77_643, 77_692, 79_619, 89_827, 93_777, 121_510, 122_888, 143_512,
        ];
        const MASSES: [f32; 20] = [
            0.002_073_981,
            0.001_993_097_1,
            0.007_708_797,
            0.005_855_678_6,
            0.027_563_41,
            0.001_089_356_6,
            0.006_727_404,
            0.180_862_86,
            0.022_654_863,
            0.008_861_015,
            0.097_877_84,
            0.016_731_681,
            0.090_222_53,
            0.121_235_06,
            0.046_417_546,
            0.003_166_778_7,
            0.045_420_79,
            0.074_198_49,
            0.227_170_5,
            0.012_168_312,
        ];
        let stream = draws(Race::new(151_936, H200), 0, &IDS, &MASSES, 16);
        assert_eq!(
            stream,
            [
                77_277, 122_888, 77_643, 121_510, 77_059, 77_692, 65_841, 65_841, 93_777, 77_692,
                65_257, 65_841, 65_841, 122_888, 65_841, 65_841
            ]
        );
    }

    #[test]
    fn geometry_follows_the_device_and_the_vocabulary() {
        let race = Race::new(151_936, H200);
        assert_eq!((race.threads(), race.increment()), (152_064, 4));
        let small = Race::new(151_936, 16);
        assert_eq!((small.threads(), small.increment()), (32_768, 8));
        assert_eq!(Race::new(7, H200).threads(), 256);
    }

    #[test]
    fn ids_beyond_the_threads_take_the_next_component_then_the_next_call() {
        let race = Race::new(151_936, 16);
        let threads = u32::try_from(race.threads()).unwrap();
        let word = |offset: u64, id: u32| race.uniform(9, offset, id);
        let numbers = |call: u64| philox4x32([low(call), 0, 5, 0], [9, 0]);
        #[expect(clippy::cast_precision_loss, reason = "as the generator does")]
        let float = |number: u32| number as f32 * TWO_POW_MINUS_32 + TWO_POW_MINUS_32 / 2.0;
        assert_eq!(word(0, 5).to_bits(), float(numbers(0)[0]).to_bits());
        assert_eq!(word(0, 5 + threads).to_bits(), float(numbers(0)[1]).to_bits());
        assert_eq!(word(8, 5 + 3 * threads).to_bits(), float(numbers(2)[3]).to_bits());
        assert_eq!(word(8, 5 + 4 * threads).to_bits(), float(numbers(3)[0]).to_bits());
    }

    #[test]
    fn a_uniform_of_one_gives_a_positive_exponential() {
        assert!(Race::exponential(1.0) > 0.0);
        assert_eq!(Race::exponential(1.0).to_bits(), (f32::EPSILON / 2.0).to_bits());
        assert!((Race::exponential(0.5) - std::f32::consts::LN_2).abs() < 1e-7);
    }
}
