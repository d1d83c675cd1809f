//! The draw of `torch.multinomial` on a CPU: an exponential race over the whole vocabulary with MT19937.
//!
//! Every element of the vocabulary, in order of ids, takes two 32-bit numbers of the generator, the first as the upper half; the lower 53 bits
//! over 2^53 are its uniform number, and `E = -ln(1 - u)` in f64, rounded to f32. The largest `p / E` in f32 wins, lower id first on equal
//! quotients. The generator is seeded with the lower 32 bits of the seed, as `torch.Generator().manual_seed` does.

use super::race::Winner;
use crate::select::NoiseGenerator;

/// 32-bit numbers that one element takes.
pub(crate) const WORDS: u64 = 2;

/// A generator seeded as torch does.
pub(crate) fn generator(seed: u64) -> NoiseGenerator {
    NoiseGenerator::new(super::philox::low(seed))
}

/// Passes over one draw from `vocab` elements.
pub(crate) fn skip(generator: &mut NoiseGenerator, vocab: usize) {
    generator.skip(2 * vocab);
}

/// Runs the race among `ids` with the masses `probabilities`; every other element has none. `None` where there is nobody.
pub(crate) fn run(
    generator: &mut NoiseGenerator,
    vocab: usize,
    ids: &[u32],
    probabilities: &[f32],
) -> Option<Winner> {
    let mut runners: Vec<(u32, usize)> = ids.iter().copied().zip(0..).collect();
    runners.sort_unstable();
    let (mut at, mut second) = (0, 0.0_f32);
    let mut best: Option<(usize, f32, f32)> = None;
    for (id, place) in runners {
        let id = id as usize;
        generator.skip(2 * (id - at));
        at = id + 1;
        let uniform = uniform(generator.bits(), generator.bits());
        let quotient = probabilities.get(place)? / exponential(uniform);
        if best.is_none_or(|(_, _, lead)| quotient > lead) {
            second = best.map_or(0.0, |(_, _, lead)| lead);
            best = Some((place, narrow(uniform), quotient));
        } else {
            second = second.max(quotient);
        }
    }
    generator.skip(2 * vocab.saturating_sub(at));
    best.map(|(place, uniform, lead)| Winner { place, uniform, margin: lead.ln() - second.ln() })
}

/// The next element of `torch.empty(..).exponential_()`.
pub(crate) fn next_exponential(generator: &mut NoiseGenerator) -> f32 {
    exponential(uniform(generator.bits(), generator.bits()))
}

/// A number of `[0, 1)` on the grid of 2^-53.
fn uniform(first: u32, second: u32) -> f64 {
    let bits = (u64::from(first) << 32 | u64::from(second)) & ((1 << 53) - 1);
    #[expect(clippy::cast_precision_loss, reason = "53 bits are exact")]
    let number = bits as f64;
    number * 2.0_f64.powi(-53)
}

fn exponential(uniform: f64) -> f32 {
    narrow(-(-uniform).ln_1p())
}

#[expect(clippy::cast_possible_truncation, reason = "rounding to f32 is what is wanted")]
const fn narrow(value: f64) -> f32 {
    value as f32
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `torch.empty(5).exponential_()` with `manual_seed`, printed with nine digits.
    #[test]
    fn exponential_numbers_of_torch_on_a_cpu_come_out() {
        for (seed, wanted) in [
            (0, [3.508_326_3, 1.230_384_7, 0.615_044_1, 2.535_118_6, 1.035_705_4]),
            (1, [0.062_996_54, 0.254_317_58, 0.266_902_8, 0.194_919_66, 0.812_084_f32]),
            (42, [0.059_914_015, 0.064_976_126, 0.131_916_78, 0.054_012_95, 0.746_910_7]),
        ] {
            let mut generator = generator(seed);
            for want in wanted {
                let found = next_exponential(&mut generator);
                assert!((found - want).abs() <= f32::EPSILON * want, "{seed}: {found} {want}");
            }
        }
    }

    #[test]
    fn ids_without_mass_take_their_numbers_too() {
        let masses = [0.25_f32; 4];
        let (mut whole, mut few) = (generator(9), generator(9));
        let all = run(&mut whole, 4, &[0, 1, 2, 3], &masses).unwrap();
        let some = run(&mut few, 4, &[3, 1], &masses[..2]).unwrap();
        assert_eq!(whole.bits(), few.bits());
        // Whoever wins among four wins among the two, if it is there.
        if all.place == 1 || all.place == 3 {
            assert_eq!([3, 1][some.place], all.place);
        }
    }
}
