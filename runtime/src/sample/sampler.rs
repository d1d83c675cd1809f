//! One sampler for a run, one state for each request, one draw for each row of logits.

use std::collections::BTreeMap;

use lockstep_traces::{Cause, SamplingSpec, Setting};

use super::error::SampleError;
use super::fault::Faults;
use super::filter::{FilterMargins, Survivors};
use super::race::{Race, Winner};
use super::settings::{DrawKind, FilterRules, HostDraw, Settings, UNSEEDED};
use super::{gumbel, torch_cpu};
use crate::select::NoiseGenerator;

/// Draws tokens from rows of logits.
#[derive(Debug, Clone, PartialEq)]
pub struct Sampler {
    settings: Settings,
    vocab: usize,
    race: Race,
    faults: Faults,
}

/// The random stream of one request.
#[derive(Debug, Clone)]
pub struct SamplerState {
    seed: u64,
    draws: u64,
    /// Offset of the Philox stream, in 32-bit numbers.
    offset: u64,
    /// What the other generators have passed: 32-bit numbers (`torch-cpu`), steps (xorshift), draws (gumbel).
    passed: u64,
    /// State of the xorshift stream.
    word: u64,
    /// The generator of `torch-cpu`.
    mersenne: Option<NoiseGenerator>,
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
    /// Counter of the random stream before the draw: Philox offset, 32-bit numbers taken (`torch-cpu`), or draws made (xorshift, gumbel).
    /// `None` for argmax.
    pub rng_offset: Option<u64>,
    /// Probability of the token among the survivors; 1 for argmax.
    pub probability: f32,
    /// Distance to the nearest other outcome among the survivors: gap of the two largest logits (argmax), distance of the
    /// uniform number from the nearer end of the token's interval (xorshift), ln of the winner's quotient over the
    /// second's (races, gumbel). Infinite where there is no other outcome.
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
        Ok(Self { settings, vocab, race, faults: Faults::default() })
    }

    /// The same with a fault planted; faults of other parts change nothing here.
    ///
    /// # Errors
    /// [`SampleError::Option`] for a fault that cannot show under these settings.
    pub fn planted(self, plant: Option<Cause>) -> Result<Self, SampleError> {
        let faults = Faults::new(plant, &self.settings, self.vocab)?;
        Ok(Self { faults, ..self })
    }

    /// Why a device cannot draw as asked, in one line; `None` where it can.
    #[must_use]
    pub fn host_only(&self) -> Option<String> {
        let remedy = "use --device cpu";
        if let Some(host) = self.settings.host {
            let name = host.name();
            return Some(format!(
                "`{name}` is drawn on the host only; {remedy}, or argmax, xorshift or torch-cuda"
            ));
        }
        if self.settings.rules != FilterRules::Native && !self.is_greedy() {
            let name = self.settings.rules.name();
            return Some(format!(
                "filters of `{name}` run on the host only; {remedy}, or --filters native"
            ));
        }
        let fault = self.faults.on_host()?.slug();
        Some(format!("`{fault}` is planted in the host's sampler only; {remedy}"))
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

    /// The seed that the stream of a request really gets: the effective one, unless a fault is planted there.
    #[must_use]
    pub fn stream_seed(&self, seed_index: u64) -> Option<u64> {
        let added = if self.faults.is(Cause::SeedIndexTwice) {
            seed_index.wrapping_mul(2)
        } else if self.faults.is(Cause::OneSeedForAll) {
            0
        } else {
            seed_index
        };
        self.effective_seed(added)
    }

    /// Begins a request. Without a seed the stream of seed 42 is used, as the native runtime does. xorshift cannot
    /// leave 0 and starts from 1 there; the others take 0 as it is, as PyTorch does.
    #[must_use]
    pub fn start(&self, effective_seed: Option<u64>) -> SamplerState {
        let seed = effective_seed.unwrap_or(UNSEEDED);
        let mut state = SamplerState {
            seed,
            draws: 0,
            offset: 0,
            passed: 0,
            word: 0,
            mersenne: None,
            survivors: Survivors::default(),
        };
        self.seed(&mut state, seed);
        state
    }

    /// Sets the generators of a stream to the beginning of a seed.
    fn seed(&self, state: &mut SamplerState, seed: u64) {
        state.seed = seed;
        state.offset = 0;
        state.passed = 0;
        state.word = seed.max(1);
        let torch_cpu = self.settings.host == Some(HostDraw::TorchCpu);
        state.mersenne = torch_cpu.then(|| torch_cpu::generator(seed));
    }

    /// Draws from `logits`, `[vocab]`, raw.
    ///
    /// # Errors
    /// [`SampleError::NotFinite`] for NaN or +inf, [`SampleError::NothingLeft`] where all are -inf,
    /// [`SampleError::Length`] for another length. The state does not move then.
    pub fn draw(&self, state: &mut SamplerState, logits: &[f32]) -> Result<Draw, SampleError> {
        let best = self.check(state.draws, logits)?;
        if self.is_greedy() {
            state.draws += 1;
            return Ok(argmax(logits, best));
        }
        let (filters, rules) = (&self.settings.filters, self.settings.rules);
        self.faults.filter(filters, rules, logits, &mut state.survivors);
        let seed = state.seed;
        if self.faults.is(Cause::RngFrozen) {
            self.seed(state, seed);
        } else if self.faults.is(Cause::RngReseeded) {
            self.seed(state, seed.wrapping_add(state.draws));
        } else if self.faults.is(Cause::DrawDiscarded) && state.draws == 0 {
            self.skip(state);
        }
        let draw = self.choose(state)?;
        if self.faults.is(Cause::DrawDiscardedEachStep) {
            self.skip(state);
        }
        state.seed = seed;
        state.draws += 1;
        Ok(draw)
    }

    /// The race over the survivors alone, where that is what is drawn.
    fn slice(&self, state: &SamplerState) -> Option<Race> {
        let slice = self.settings.host == Some(HostDraw::TorchCudaSlice)
            || self.faults.is(Cause::RaceOverSlice);
        slice.then(|| Race::new(state.survivors.ids.len(), self.settings.sm_count))
    }

    /// Draws among the survivors and moves the stream on.
    fn choose(&self, state: &mut SamplerState) -> Result<Draw, SampleError> {
        let nothing = SampleError::NothingLeft { draw: state.draws };
        let (offset, passed) = (state.offset, state.passed);
        if self.settings.kind == DrawKind::Xorshift {
            return Self::running_sum(state);
        }
        let (ids, masses) = (&state.survivors.ids, &state.survivors.probabilities);
        let (winner, counter): (Option<Winner>, u64) = match (self.settings.host, self.slice(state))
        {
            (_, Some(race)) => {
                let places: Vec<u32> = (0..).take(ids.len()).collect();
                state.offset += race.increment();
                (race.run(state.seed, offset, &places, masses), offset)
            }
            (Some(HostDraw::TorchCpu), _) => {
                state.passed += torch_cpu::WORDS * self.vocab as u64;
                let numbers = state.mersenne.as_mut();
                let run = |numbers| torch_cpu::run(numbers, self.vocab, ids, masses);
                (numbers.and_then(run), passed)
            }
            (Some(HostDraw::Gumbel), _) => {
                state.passed += 1;
                (gumbel::run(state.seed, passed, ids, masses), passed)
            }
            (None | Some(HostDraw::TorchCudaSlice), None) => {
                state.offset += self.race.increment();
                (self.race.run(state.seed, offset, ids, masses), offset)
            }
        };
        let winner = winner.ok_or(nothing)?;
        Ok(drawn(&state.survivors, winner.place, winner.uniform, counter, winner.margin))
    }

    /// Passes over one draw.
    fn skip(&self, state: &mut SamplerState) {
        match (self.settings.kind, self.settings.host) {
            (DrawKind::Xorshift, _) => {
                xorshift(&mut state.word);
                state.passed += 1;
            }
            (_, Some(HostDraw::Gumbel)) => state.passed += 1,
            (_, Some(HostDraw::TorchCpu)) => {
                if let Some(generator) = &mut state.mersenne {
                    torch_cpu::skip(generator, self.vocab);
                }
                state.passed += torch_cpu::WORDS * self.vocab as u64;
            }
            _ => state.offset += self.slice(state).unwrap_or(self.race).increment(),
        }
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

    fn running_sum(state: &mut SamplerState) -> Result<Draw, SampleError> {
        let rng_offset = state.passed;
        state.passed += 1;
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
mod tests;
