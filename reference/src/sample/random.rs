//! From words to the numbers of a draw.

use super::fast_log::cuda_log;

/// cuRAND's uniform number in (0, 1]: `x * 2^-32 + 2^-33`, each step rounded to f32.
#[must_use]
pub fn uniform_of(word: u32) -> f64 {
    const STEP: f64 = 1.0 / 4_294_967_296.0;
    // A product with a power of two is exact, so one rounding before and one after are the two of the definition.
    f64::from(narrow(f64::from(narrow(f64::from(word))) * STEP + STEP / 2.0))
}

/// PyTorch's exponential number of a CUDA uniform number: `-__logf(u)`, and 2^-24 where `u` is within 2^-24 of 1.
#[must_use]
pub fn race_exponential(uniform: f64) -> f64 {
    const HALF_EPSILON: f64 = 1.0 / 16_777_216.0;
    if uniform >= 1.0 - HALF_EPSILON {
        return HALF_EPSILON;
    }
    -cuda_log(uniform)
}

/// The same rounded once more to f16, as a half-precision tensor holds it.
#[must_use]
pub fn half_exponential(uniform: f64) -> f64 {
    half::f16::from_f64(race_exponential(uniform)).to_f64()
}

/// The uniform number of draw `draw` and id `id` of Lockstep's own counter-based Gumbel draw; the runtime's documentation of the draw
/// `gumbel` is its definition.
#[must_use]
pub fn counter_gumbel(seed: u64, draw: u64, id: u32) -> f64 {
    let place = (draw & 0xffff_ffff) * (1 << 32) + u64::from(id);
    let bits = splitmix(splitmix(seed) ^ place);
    let top = bits >> 11;
    #[expect(clippy::cast_precision_loss, reason = "53 bits are exact")]
    let top = top as f64;
    (2.0 * top + 1.0) / 18_014_398_509_481_984.0
}

/// The first output of splitmix64 from state `state` (Steele, Lea and Flood, OOPSLA 2014, with Vigna's constants).
fn splitmix(state: u64) -> u64 {
    let mut z = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
    for (shift, factor) in [(30, 0xBF58_476D_1CE4_E5B9_u64), (27, 0x94D0_49BB_1331_11EB)] {
        z = (z ^ (z >> shift)).wrapping_mul(factor);
    }
    z ^ (z >> 31)
}

/// One step of xorshift64 by (13, 7, 17): the new state, and its lower half over 2^32 rounded to f32.
#[must_use]
pub fn xorshift_step(state: u64) -> (u64, f64) {
    let state = state ^ state << 13;
    let state = state ^ state >> 7;
    let state = state ^ state << 17;
    let low = u32::try_from(state & 0xffff_ffff).unwrap_or_default();
    (state, f64::from(narrow(f64::from(low))) / 4_294_967_296.0)
}

#[expect(clippy::cast_possible_truncation, reason = "the definitions round to f32 here")]
const fn narrow(value: f64) -> f32 {
    value as f32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uniform_numbers_reach_one_and_never_zero() {
        assert!((uniform_of(u32::MAX) - 1.0).abs() < f64::EPSILON);
        assert!((uniform_of(0) - 0.5_f64.powi(33)).abs() < 1e-20);
        // 0x6627e8d5 / 2^32 = 0.39904647...
        assert!((uniform_of(0x6627_e8d5) - 0.399_046_5).abs() < 1e-7);
        assert!(race_exponential(uniform_of(u32::MAX)) > 0.0);
    }

    #[test]
    fn the_mixer_gives_the_published_stream() {
        assert_eq!(splitmix(1_234_567), 6_457_827_717_110_365_317);
    }

    #[test]
    fn one_step_of_xorshift_by_hand() {
        // 1 -> 0x2001 -> 0x2041 -> 0x40822041
        let (state, unit) = xorshift_step(1);
        assert_eq!(state, 0x4082_2041);
        assert!((unit - f64::from(0x4082_2041_u32) / 4_294_967_296.0).abs() < 1e-7);
    }
}
