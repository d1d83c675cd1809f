//! The draw `gumbel`: the largest `ln p + g`, with noise from a counter and nothing else.
//!
//! For draw number `n` of a request (0-based) and token id `t`:
//!
//! ```text
//! mix(x):  x += 0x9E3779B97F4A7C15; x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9; x = (x ^ x >> 27) * 0x94D049BB133111EB; x ^ x >> 31
//! bits   = mix(mix(seed) ^ (n << 32 | t))          64-bit, wrapping
//! u      = ((bits >> 11) + 0.5) / 2^53             in (0, 1)
//! g      = -ln(-ln(u))                             f64
//! token  = the id with the largest ln p + g        f64, lower id first
//! ```
//!
//! `mix` is one step of splitmix64. The noise of an id depends on seed, draw and id alone: not on the vocabulary, on who else survived the
//! filters, or on a device. Survivors stay in the race as they were when others leave it.

use lockstep_traces::hash::splitmix64 as mix;

use super::philox::low;
use super::race::Winner;

/// `u` of a draw and an id.
fn uniform(seed: u64, draw: u64, id: u32) -> f64 {
    let bits = mix(mix(seed) ^ (u64::from(low(draw)) << 32 | u64::from(id)));
    #[expect(clippy::cast_precision_loss, reason = "53 bits are exact")]
    let number = (bits >> 11) as f64;
    (number + 0.5) / 9_007_199_254_740_992.0
}

/// The winner among `ids` with the masses `probabilities`; `None` where there is nobody.
#[expect(clippy::cast_possible_truncation, reason = "what is recorded is f32")]
pub(super) fn run(seed: u64, draw: u64, ids: &[u32], probabilities: &[f32]) -> Option<Winner> {
    let mut best: Option<(usize, f64, f64)> = None;
    let mut second = f64::NEG_INFINITY;
    for (place, (&id, &mass)) in ids.iter().zip(probabilities).enumerate() {
        let uniform = uniform(seed, draw, id);
        let score = f64::from(mass).ln() - (-uniform.ln()).ln();
        let wins = best.is_none_or(|(leader, _, lead)| {
            score > lead || (score.total_cmp(&lead).is_eq() && id < ids[leader])
        });
        if wins {
            second = best.map_or(second, |(_, _, lead)| lead);
            best = Some((place, uniform, score));
        } else {
            second = second.max(score);
        }
    }
    best.map(|(place, uniform, lead)| Winner {
        place,
        uniform: uniform as f32,
        margin: (lead - second) as f32,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mixer_is_a_step_of_splitmix64() {
        // First two outputs of splitmix64 from the state 1234567 (published with the generator).
        assert_eq!(mix(1_234_567), 6_457_827_717_110_365_317);
        assert_eq!(
            mix(1_234_567_u64.wrapping_add(0x9E37_79B9_7F4A_7C15)),
            3_203_168_211_198_807_973
        );
    }

    #[test]
    fn shares_of_many_draws_are_the_probabilities() {
        let masses = [0.5_f32, 0.3, 0.2];
        let mut counts = [0_u32; 3];
        for draw in 0..30_000 {
            counts[run(7, draw, &[10, 20, 30], &masses).unwrap().place] += 1;
        }
        // Three standard deviations of a share of 0.5 over 30,000 draws are 0.0087.
        for (count, mass) in counts.iter().zip(masses) {
            assert!((f64::from(*count) / 30_000.0 - f64::from(mass)).abs() < 0.0087, "{counts:?}");
        }
    }

    #[test]
    fn a_survivor_that_wins_among_many_wins_among_fewer() {
        for draw in 0..200 {
            let ids = [4, 9, 2, 7];
            let won = run(3, draw, &ids, &[0.4, 0.3, 0.2, 0.1]).unwrap();
            let fewer = [ids[won.place], ids[(won.place + 1) % 4]];
            let masses =
                [[0.4, 0.3, 0.2, 0.1][won.place], [0.4, 0.3, 0.2, 0.1][(won.place + 1) % 4]];
            assert_eq!(run(3, draw, &fewer, &masses).unwrap().place, 0);
        }
    }
}
