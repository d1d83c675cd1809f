//! What may have made a stream.

use lockstep_reference::sample::{Order, Rules, Variant};
use lockstep_traces::Cause;

use super::evidence::{Evidence, Stream};
use super::numbers::known_numbers;

/// Numbers of a running sum: one for each draw, in [0, 1).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Numbers {
    /// xorshift64 (13, 7, 17), lower half of the state, state = seed, 0 as 1.
    Xorshift,
    /// First word of Philox4x32-10 at counter = number of the draw, key = seed.
    Philox,
    /// MT19937, 24 bits of one word.
    Mersenne24,
    /// MT19937, 53 bits of two words.
    Mersenne53,
    /// As given with the evidence.
    Given,
}

/// How a token is drawn from the kept ids.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Draw {
    /// Largest logit.
    Argmax,
    /// Exponential race of PyTorch on CUDA over the whole vocabulary, on a device of so many multiprocessors and threads each.
    Race {
        /// Multiprocessors.
        multiprocessors: u32,
        /// Threads that each holds.
        threads_each: u32,
    },
    /// The same race over the kept ids alone.
    Slice(Order),
    /// Exponential race of PyTorch on a CPU over the whole vocabulary.
    TorchCpu,
    /// Largest ln p + noise, Lockstep's own.
    Gumbel,
    /// First id along the running sum that exceeds a number.
    Sum(Numbers, Order),
}

/// Which draw of the random stream a step uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Pattern {
    /// Step i uses draw i + shift.
    Advancing(i64),
    /// Every step uses draw 0.
    Frozen,
    /// Step i uses draw 0 of seed + i.
    Reseeded,
    /// Step i uses draw 2 i: one is thrown away after each.
    Discarding,
}

/// Where a stream's seed comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum SeedRule {
    /// Base seed + index of the sample.
    BasePlusIndex,
    /// The base seed for every sample.
    Base,
    /// Base seed + twice the index.
    IndexTwice,
    /// The effective seed of the sample in this place of the run, for every sample.
    Of(usize),
    /// 42, the native runtime's seed of a request that gives none.
    Unseeded,
}

/// One way in which a stream may have been made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Hypothesis {
    /// Draw.
    pub draw: Draw,
    /// Steps and draws.
    pub pattern: Pattern,
    /// Seed.
    pub seed: SeedRule,
    /// Whose filters.
    pub rules: Rules,
    /// Their order.
    pub variant: Variant,
}

/// Shifts that are tried: a step may use an earlier or a later draw than its own.
const SHIFTS: std::ops::RangeInclusive<i64> = -3..=4;

/// GPUs whose fill kernels map large vocabularies to other threads: multiprocessors and threads each. Parts that hold 152,064 threads or more
/// behave like an H200 for every vocabulary up to that.
const DEVICES: [(u32, u32); 7] =
    [(40, 1024), (58, 1536), (72, 1536), (80, 2048), (84, 1536), (108, 2048), (132, 2048)];

impl SeedRule {
    /// The seed of a stream; `None` where it has no base seed.
    #[must_use]
    pub fn seed(self, stream: &Stream, streams: &[Stream]) -> Option<u64> {
        let plus = |stream: &Stream, times: u64| {
            let added = stream.seed_index.wrapping_mul(times);
            stream.base_seed.map(|base| base.wrapping_add(added))
        };
        match self {
            Self::BasePlusIndex => plus(stream, 1),
            Self::Base => plus(stream, 0),
            Self::IndexTwice => plus(stream, 2),
            Self::Of(place) => plus(streams.get(place)?, 1),
            Self::Unseeded => Some(42),
        }
    }
}

impl Draw {
    /// True where no random number is used.
    #[must_use]
    pub fn is_deterministic(self) -> bool {
        self == Self::Argmax
    }

    /// The draw of this name, as a manifest or a file of evidence has it.
    #[must_use]
    pub fn named(name: &str, sm_count: u32) -> Option<Self> {
        Some(match name {
            "argmax" => Self::Argmax,
            "torch-cuda" => Self::Race { multiprocessors: sm_count, threads_each: 2048 },
            "torch-cuda-slice" => Self::Slice(Order::Rank),
            "torch-cpu" => Self::TorchCpu,
            "gumbel" => Self::Gumbel,
            "xorshift" => Self::Sum(Numbers::Xorshift, Order::Rank),
            _ => return None,
        })
    }
}

impl Hypothesis {
    /// What the evidence claims; `None` where it names no sampler that is known here.
    #[must_use]
    pub fn claimed(evidence: &Evidence) -> Option<Self> {
        let draw = Draw::named(evidence.claim.sampler.as_deref()?, evidence.sm_count)?;
        let seeded = evidence.streams.iter().any(|stream| stream.base_seed.is_some());
        Some(Self {
            draw,
            pattern: Pattern::Advancing(0),
            seed: if seeded { SeedRule::BasePlusIndex } else { SeedRule::Unseeded },
            rules: evidence.claim.rules.unwrap_or(Rules::Native),
            variant: Variant::Usual,
        })
    }

    /// In how many respects it departs from another.
    #[must_use]
    pub fn departs(&self, from: &Self) -> usize {
        [
            self.draw != from.draw,
            self.pattern != from.pattern,
            self.seed != from.seed,
            self.rules != from.rules,
            self.variant != from.variant,
        ]
        .into_iter()
        .filter(|differs| *differs)
        .count()
    }

    /// The known mistake that turns `claimed` into this, where one respect alone departs and it has a name.
    #[must_use]
    pub fn cause(&self, claimed: &Self) -> Option<Cause> {
        if self.departs(claimed) != 1 {
            return None;
        }
        if self.draw != claimed.draw {
            let race = matches!(claimed.draw, Draw::Race { .. });
            return (race && matches!(self.draw, Draw::Slice(_))).then_some(Cause::RaceOverSlice);
        }
        if self.pattern != claimed.pattern {
            return match self.pattern {
                Pattern::Advancing(1) => Some(Cause::DrawDiscarded),
                Pattern::Advancing(_) => None,
                Pattern::Frozen => Some(Cause::RngFrozen),
                Pattern::Reseeded => Some(Cause::RngReseeded),
                Pattern::Discarding => Some(Cause::DrawDiscardedEachStep),
            };
        }
        if self.seed != claimed.seed {
            return match self.seed {
                SeedRule::Base => Some(Cause::OneSeedForAll),
                SeedRule::IndexTwice => Some(Cause::SeedIndexTwice),
                _ => None,
            };
        }
        if self.rules != claimed.rules {
            return Some(Cause::TopKTies);
        }
        match self.variant {
            Variant::TemperatureLast => Some(Cause::TemperatureAfterFilters),
            Variant::TopPFirst => Some(Cause::TopPBeforeTopK),
            Variant::MinPOnLogits => Some(Cause::MinPOnLogits),
            Variant::Usual => None,
        }
    }
}

/// Draws that are tried on this evidence.
pub(super) fn draws(evidence: &Evidence) -> Vec<Draw> {
    let mut draws = vec![Draw::Race { multiprocessors: evidence.sm_count, threads_each: 2048 }];
    for (multiprocessors, threads_each) in DEVICES {
        let resident = u64::from(multiprocessors) * u64::from(threads_each / 256) * 256;
        let own = u64::from(evidence.sm_count) * 2048;
        // A grid matters only where the vocabulary does not fit into it, or does not fit into the claimed one.
        if resident != own && (evidence.vocab as u64) > resident.min(own) {
            draws.push(Draw::Race { multiprocessors, threads_each });
        }
    }
    draws.extend([Draw::Slice(Order::Rank), Draw::Slice(Order::Id)]);
    draws.extend([Draw::TorchCpu, Draw::Gumbel]);
    let numbers = [Numbers::Xorshift, Numbers::Philox, Numbers::Mersenne24, Numbers::Mersenne53];
    // Numbers of a known generator are tried as that generator's.
    let strange = !evidence.given.is_empty() && known_numbers(evidence).is_none();
    let given = strange.then_some(Numbers::Given);
    for numbers in numbers.into_iter().chain(given) {
        draws.extend([Draw::Sum(numbers, Order::Rank), Draw::Sum(numbers, Order::Id)]);
    }
    draws
}

/// Patterns that are tried.
pub(super) fn patterns() -> Vec<Pattern> {
    let mut patterns = vec![Pattern::Advancing(0)];
    patterns.extend([Pattern::Frozen, Pattern::Reseeded, Pattern::Discarding]);
    patterns.extend(SHIFTS.filter(|shift| *shift != 0).map(Pattern::Advancing));
    patterns
}

/// Seed rules that give different seeds somewhere, the plainest first.
pub(super) fn seeds(evidence: &Evidence) -> Vec<SeedRule> {
    let streams = &evidence.streams;
    let mut rules = vec![SeedRule::BasePlusIndex, SeedRule::Base, SeedRule::IndexTwice];
    // Beyond a few samples another sample's seed is one of the base seeds nearby, or none.
    rules.extend((0..streams.len().min(8)).map(SeedRule::Of));
    rules.push(SeedRule::Unseeded);
    let mut seen: Vec<Vec<Option<u64>>> = Vec::new();
    rules.retain(|rule| {
        let seeds: Vec<_> = streams.iter().map(|stream| rule.seed(stream, streams)).collect();
        let fresh = seeds.iter().any(Option::is_some) && !seen.contains(&seeds);
        if fresh {
            seen.push(seeds);
        }
        fresh
    });
    rules
}
