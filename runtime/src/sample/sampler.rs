//! One sampler for a run, one state for each request, one draw for each row of logits.

use std::collections::BTreeMap;

use lockstep_traces::{SamplingSpec, Setting};

use super::error::SampleError;
use super::filter::{FilterMargins, Survivors};
use super::race::Race;
use super::settings::{DrawKind, Settings, UNSEEDED};

/// Draws tokens from rows of logits.
#[derive(Debug, Clone, PartialEq)]
pub struct Sampler {
    settings: Settings,
    vocab: usize,
    race: Race,
}

/// The random stream of one request.
#[derive(Debug, Clone)]
pub struct SamplerState {
    seed: u64,
    draws: u64,
    /// Offset of the Philox stream, in 32-bit numbers.
    offset: u64,
    /// State of the xorshift stream.
    word: u64,
    survivors: Survivors,
}

impl SamplerState {
    /// The seed in use: the one given, else 42.
    #[must_use]
    pub const fn seed(&self) -> u64 {
        self.seed
    }

    /// Draws made so far.
    #[must_use]
    pub const fn draws(&self) -> u64 {
        self.draws
    }

    pub(crate) const fn offset(&self) -> u64 {
        self.offset
    }

    pub(crate) const fn word(&self) -> u64 {
        self.word
    }
}

/// A drawn token and how it came about.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Draw {
    /// The token.
    pub token: u32,
    /// The random number that decided: of the running sum, or of the winner of the race. `None` for argmax.
    pub uniform: Option<f32>,
    /// Counter of the random stream before the draw: Philox offset, or draws made (xorshift). `None` for argmax.
    pub rng_offset: Option<u64>,
    /// Probability of the token among the survivors; 1 for argmax.
    pub probability: f32,
    /// Distance to the nearest other outcome among the survivors: gap of the two largest logits (argmax), distance of the
    /// uniform number from the nearer end of the token's interval (xorshift), ln of the winner's quotient over the
    /// second's (race). Infinite where there is no other outcome.
    pub margin: f32,
    /// How near the filters' cuts were; empty for argmax, which does not filter.
    pub filter_margins: FilterMargins,
}

impl Sampler {
    /// Resolves `spec` for a vocabulary of `vocab` ids.
    ///
    /// # Errors
    /// [`SampleError::Option`] for a value out of its range.
    pub fn resolve(spec: &SamplingSpec, vocab: usize) -> Result<Self, SampleError> {
        let settings = Settings::resolve(spec, vocab)?;
        let race = Race::new(vocab, settings.sm_count);
        Ok(Self { settings, vocab, race })
    }

    /// Settings in force.
    #[must_use]
    pub const fn settings(&self) -> &Settings {
        &self.settings
    }

    /// The same for a manifest: keys `sampling.*` with the source of each value.
    #[must_use]
    pub const fn config(&self) -> &BTreeMap<String, Setting> {
        self.settings.config()
    }

    /// Geometry of the race, whose threads say from which id on draws depend on the device.
    #[must_use]
    pub const fn race(&self) -> Race {
        self.race
    }

    pub(crate) const fn vocab(&self) -> usize {
        self.vocab
    }

    /// True where no random number is used.
    #[must_use]
    pub fn is_greedy(&self) -> bool {
        self.settings.kind == DrawKind::Argmax
    }

    /// `base seed + seed_index`; `None` where unseeded.
    #[must_use]
    pub fn effective_seed(&self, seed_index: u64) -> Option<u64> {
        self.settings.base_seed.map(|base| base.wrapping_add(seed_index))
    }

    /// Begins a request. Without a seed the stream of seed 42 is used, as the native runtime does. xorshift cannot
    /// leave 0 and starts from 1 there; the race takes 0 as it is, as PyTorch does.
    #[must_use]
    pub fn start(&self, effective_seed: Option<u64>) -> SamplerState {
        let seed = effective_seed.unwrap_or(UNSEEDED);
        SamplerState {
            seed,
            draws: 0,
            offset: 0,
            word: seed.max(1),
            survivors: Survivors::default(),
        }
    }

    /// Draws from `logits`, `[vocab]`, raw.
    ///
    /// # Errors
    /// [`SampleError::NotFinite`] for NaN or +inf, [`SampleError::NothingLeft`] where all are -inf,
    /// [`SampleError::Length`] for another length. The state does not move then.
    pub fn draw(&self, state: &mut SamplerState, logits: &[f32]) -> Result<Draw, SampleError> {
        let best = self.check(state.draws, logits)?;
        let draw = match self.settings.kind {
            DrawKind::Argmax => Ok(argmax(logits, best)),
            DrawKind::Xorshift => self.running_sum(state, logits),
            DrawKind::TorchCuda => self.race_once(state, logits),
        }?;
        state.draws += 1;
        Ok(draw)
    }

    /// Place of the largest logit, lowest on ties.
    fn check(&self, draw: u64, logits: &[f32]) -> Result<usize, SampleError> {
        if logits.len() != self.vocab {
            return Err(SampleError::Length { draw, found: logits.len(), vocab: self.vocab });
        }
        let mut best = (0, f32::NEG_INFINITY);
        for (id, &value) in logits.iter().enumerate() {
            if value.is_nan() || value == f32::INFINITY {
                return Err(SampleError::NotFinite { draw, id, value });
            }
            if value > best.1 {
                best = (id, value);
            }
        }
        if best.1 == f32::NEG_INFINITY {
            return Err(SampleError::NothingLeft { draw });
        }
        Ok(best.0)
    }

    fn running_sum(&self, state: &mut SamplerState, logits: &[f32]) -> Result<Draw, SampleError> {
        self.settings.filters.apply(logits, &mut state.survivors);
        let rng_offset = state.draws;
        let uniform = xorshift(&mut state.word);
        let kept = &state.survivors;
        let mut sum = 0.0_f32;
        let mut chosen = None;
        for (place, &probability) in kept.probabilities.iter().enumerate() {
            let below = sum;
            sum += probability;
            // The last kept id is the fallback where rounding leaves the sum short.
            if sum > uniform || place + 1 == kept.ids.len() {
                chosen = Some((place, below, sum));
                break;
            }
        }
        let (place, below, above) = chosen.ok_or(SampleError::NothingLeft { draw: state.draws })?;
        let lower = if place == 0 { f32::INFINITY } else { uniform - below };
        let upper = if place + 1 == kept.ids.len() { f32::INFINITY } else { above - uniform };
        Ok(drawn(kept, place, uniform, rng_offset, lower.min(upper)))
    }

    fn race_once(&self, state: &mut SamplerState, logits: &[f32]) -> Result<Draw, SampleError> {
        self.settings.filters.apply(logits, &mut state.survivors);
        let kept = &state.survivors;
        let winner = self
            .race
            .run(state.seed, state.offset, &kept.ids, &kept.probabilities)
            .ok_or(SampleError::NothingLeft { draw: state.draws })?;
        let draw = drawn(kept, winner.place, winner.uniform, state.offset, winner.margin);
        state.offset += self.race.increment();
        Ok(draw)
    }
}

fn drawn(kept: &Survivors, place: usize, uniform: f32, rng_offset: u64, margin: f32) -> Draw {
    Draw {
        token: kept.ids[place],
        uniform: Some(uniform),
        rng_offset: Some(rng_offset),
        probability: kept.probabilities[place],
        margin,
        filter_margins: kept.margins,
    }
}

fn argmax(logits: &[f32], best: usize) -> Draw {
    let others = logits.iter().enumerate().filter(|(id, _)| *id != best);
    let second = others.map(|(_, &logit)| logit).fold(f32::NEG_INFINITY, f32::max);
    Draw {
        // `resolve` holds the vocabulary below 2^32.
        token: u32::try_from(best).unwrap_or(u32::MAX),
        uniform: None,
        rng_offset: None,
        probability: 1.0,
        margin: logits[best] - second,
        filter_margins: FilterMargins::default(),
    }
}

/// xorshift64 (13, 7, 17) and the lower half of its state over 2^32, rounded to f32.
fn xorshift(word: &mut u64) -> f32 {
    *word ^= *word << 13;
    *word ^= *word >> 7;
    *word ^= *word << 17;
    #[expect(clippy::cast_precision_loss, reason = "the native runtime rounds to f32 here")]
    let low = super::philox::low(*word) as f32;
    low / 4_294_967_296.0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sampler(sampler: &str, spec: SamplingSpec, vocab: usize) -> Sampler {
        let spec = SamplingSpec { sampler: Some(sampler.to_owned()), ..spec };
        Sampler::resolve(&spec, vocab).unwrap()
    }

    fn stream(sampler: &Sampler, seed: Option<u64>, logits: &[f32], count: usize) -> Vec<u32> {
        let mut state = sampler.start(seed);
        (0..count).map(|_| sampler.draw(&mut state, logits).unwrap().token).collect()
    }

    fn two_tokens() -> Vec<f32> {
        let mut logits = vec![f32::NEG_INFINITY; 100_000];
        logits[279] = 0.545_416_1_f32.ln();
        logits[419] = 0.454_583_85_f32.ln();
        logits
    }

    #[test]
    fn the_race_gives_the_native_runtimes_expected_stream() {
        let sampler = sampler("torch-cuda", SamplingSpec::default(), 100_000);
        let mut state = sampler.start(Some(1235));
        let mut tokens = Vec::new();
        for draw in 0..8 {
            let drawn = sampler.draw(&mut state, &two_tokens()).unwrap();
            assert_eq!(drawn.rng_offset, Some(4 * draw));
            assert!(drawn.margin > 0.0);
            tokens.push(drawn.token);
        }
        assert_eq!(tokens, [419, 279, 279, 419, 279, 279, 419, 419]);
        let first = sampler.draw(&mut sampler.start(Some(1235)), &two_tokens()).unwrap();
        assert!((first.probability - 0.454_583_85).abs() < 1e-6);
    }

    #[test]
    fn argmax_takes_the_lowest_id_among_equals_and_no_random_number() {
        let sampler = sampler("argmax", SamplingSpec::default(), 4);
        let draw = sampler.draw(&mut sampler.start(None), &[1.0, 3.5, 3.5, 0.0]).unwrap();
        assert_eq!((draw.token, draw.uniform, draw.rng_offset), (1, None, None));
        assert_eq!(draw.margin.to_bits(), 0.0_f32.to_bits());
        let clear = sampler.draw(&mut sampler.start(None), &[1.0, 3.5, 3.25, 0.0]).unwrap();
        assert_eq!(clear.margin.to_bits(), 0.25_f32.to_bits());
    }

    #[test]
    fn xorshift_follows_its_three_shifts() {
        // From state 1: 1 ^ 1<<13 = 0x2001; ^ >>7 = 0x2041; ^ <<17 = 0x40822041.
        let mut word = 1;
        let uniform = xorshift(&mut word);
        assert_eq!(word, 0x4082_2041);
        assert!((f64::from(uniform) - f64::from(0x4082_2041_u32) / 4_294_967_296.0).abs() < 1e-7);
        // 0.252: below a first interval of 0.5, above one of 0.25.
        let sampler = sampler("xorshift", SamplingSpec::default(), 2);
        assert_eq!(stream(&sampler, Some(1), &[0.0, 0.0], 1), [0]);
        assert_eq!(stream(&sampler, Some(0), &[0.0, 0.0], 1), [0]);
        let mut state = sampler.start(Some(1));
        let draw = sampler.draw(&mut state, &[0.0, 1.5]).unwrap();
        assert_eq!((draw.token, draw.rng_offset), (1, Some(0)));
        let top = 1.0 / (1.0 + (-1.5_f32).exp());
        assert!((draw.margin - (top - uniform)).abs() < 1e-6, "{}", draw.margin);
    }

    #[test]
    fn an_unseeded_request_uses_the_stream_of_seed_42() {
        let sampler = sampler("torch-cuda", SamplingSpec::default(), 64);
        let logits: Vec<f32> = (0..64_u8).map(|id| f32::from(id % 7) * 0.25).collect();
        assert_eq!(sampler.start(None).seed(), 42);
        assert_eq!(stream(&sampler, None, &logits, 20), stream(&sampler, Some(42), &logits, 20));
        assert_ne!(stream(&sampler, None, &logits, 20), stream(&sampler, Some(43), &logits, 20));
        assert_eq!(sampler.effective_seed(3), None);
    }

    #[test]
    fn the_effective_seed_is_base_plus_index() {
        let seeded = SamplingSpec { seed: Some(1234), ..SamplingSpec::default() };
        assert_eq!(sampler("torch-cuda", seeded, 8).effective_seed(1), Some(1235));
    }

    #[test]
    fn rows_that_cannot_be_drawn_from_are_named_and_leave_the_state() {
        for kind in ["argmax", "xorshift", "torch-cuda"] {
            let sampler = sampler(
                kind,
                SamplingSpec { temperature: Some(1.0), ..SamplingSpec::default() },
                3,
            );
            let mut state = sampler.start(Some(5));
            sampler.draw(&mut state, &[0.0, 1.0, 2.0]).unwrap();
            match sampler.draw(&mut state, &[0.0, f32::NAN, 1.0]) {
                Err(SampleError::NotFinite { draw: 1, id: 1, .. }) => {}
                other => panic!("{other:?}"),
            }
            let none = [f32::NEG_INFINITY; 3];
            assert_eq!(sampler.draw(&mut state, &none), Err(SampleError::NothingLeft { draw: 1 }));
            let short = SampleError::Length { draw: 1, found: 2, vocab: 3 };
            assert_eq!(sampler.draw(&mut state, &[0.0, 1.0]), Err(short));
            assert_eq!(state.draws(), 1);
        }
    }
}
