//! Hypotheses in words and as stable fields.

use std::collections::BTreeMap;

use lockstep_reference::sample::{Geometry, Order, Rules, Variant};
use serde::{Deserialize, Serialize};

use super::evidence::Evidence;
use super::hypothesis::{Draw, Hypothesis, Numbers, Pattern, SeedRule};
use super::numbers::known_numbers;

/// A hypothesis as an answer names it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Described {
    /// Sampler: `argmax`, `torch-cuda`, `torch-cuda-slice`, `torch-cpu`, `gumbel`, `xorshift`, `running-sum`.
    pub sampler: String,
    /// Generator, numbers and order of ids.
    pub convention: String,
    /// `advancing`, `frozen`, `reseeded` or `discarding`.
    pub pattern: String,
    /// Draws between a step and its own draw.
    pub shift: i64,
    /// The pattern in words.
    pub offset: String,
    /// Where the seed comes from.
    pub seed_rule: String,
    /// The seeds by sample.
    pub seeds: BTreeMap<String, u64>,
    /// `hf` or `native`.
    pub filters: String,
    /// `usual`, `temperature-last`, `top-p-first` or `min-p-on-logits`.
    pub filter_order: String,
}

impl Hypothesis {
    /// The hypothesis as fields, with the seeds that it means for this evidence.
    #[must_use]
    pub fn describe(&self, evidence: &Evidence) -> Described {
        let shift = match self.pattern {
            Pattern::Advancing(shift) => shift,
            _ => 0,
        };
        let seeds = evidence.streams.iter().filter_map(|stream| {
            let seed = self.seed.seed(stream, &evidence.streams)?;
            Some((stream.sample_id.clone(), seed))
        });
        Described {
            sampler: sampler(self.draw).to_owned(),
            convention: convention(self.draw, evidence),
            pattern: match self.pattern {
                Pattern::Advancing(_) => "advancing",
                Pattern::Frozen => "frozen",
                Pattern::Reseeded => "reseeded",
                Pattern::Discarding => "discarding",
            }
            .to_owned(),
            shift,
            offset: offset(self.pattern),
            seed_rule: seed_rule(self.seed, evidence),
            seeds: if self.draw.is_deterministic() { BTreeMap::new() } else { seeds.collect() },
            filters: match self.rules {
                Rules::Hf => "hf",
                Rules::Native => "native",
            }
            .to_owned(),
            filter_order: match self.variant {
                Variant::Usual => "usual",
                Variant::TemperatureLast => "temperature-last",
                Variant::TopPFirst => "top-p-first",
                Variant::MinPOnLogits => "min-p-on-logits",
            }
            .to_owned(),
        }
    }
}

impl Described {
    /// One line.
    #[must_use]
    pub fn line(&self) -> String {
        if self.sampler == "argmax" {
            return "argmax: the largest logit, lowest id first".to_owned();
        }
        let mut text = format!("{} ({}), {}", self.sampler, self.convention, self.offset);
        for part in [format!(", seed {}", self.seed_rule), format!(", filters {}", self.filters)] {
            text.push_str(&part);
        }
        match self.filter_order.as_str() {
            "temperature-last" => text.push_str(" at temperature 1, temperature last"),
            "top-p-first" => text.push_str(" with top-p over the whole vocabulary"),
            "min-p-on-logits" => text.push_str(" with min-p on raw logits"),
            _ => {}
        }
        text
    }
}

const fn sampler(draw: Draw) -> &'static str {
    match draw {
        Draw::Argmax => "argmax",
        Draw::Race { .. } => "torch-cuda",
        Draw::Slice(_) => "torch-cuda-slice",
        Draw::TorchCpu => "torch-cpu",
        Draw::Gumbel => "gumbel",
        Draw::Sum(Numbers::Xorshift, Order::Rank) => "xorshift",
        Draw::Sum(..) => "running-sum",
    }
}

fn convention(draw: Draw, evidence: &Evidence) -> String {
    let order = |order: Order| match order {
        Order::Rank => "most probable first",
        Order::Id => "in order of ids",
    };
    match draw {
        Draw::Argmax => "largest logit, lowest id first".to_owned(),
        Draw::Race { multiprocessors, threads_each } => {
            let vocab = evidence.vocab as u64;
            let threads = Geometry::new(vocab, multiprocessors, threads_each);
            let threads = threads.map_or(0, |geometry| geometry.threads);
            format!(
                "Philox4x32-10, exponential race over {vocab} ids by {threads} threads, as on {multiprocessors} multiprocessors of {threads_each}"
            )
        }
        Draw::Slice(by) => {
            format!("Philox4x32-10, exponential race over the kept ids alone, {}", order(by))
        }
        Draw::TorchCpu => "MT19937, exponential race over the whole vocabulary".to_owned(),
        Draw::Gumbel => "splitmix64 of seed, draw and id; largest ln p + noise".to_owned(),
        Draw::Sum(numbers, by) => {
            let numbers = generator(numbers);
            format!("{numbers}; first running sum above it, {}", order(by))
        }
    }
}

const fn generator(numbers: Numbers) -> &'static str {
    match numbers {
        Numbers::Xorshift => "xorshift64 (13, 7, 17)",
        Numbers::Philox => "Philox4x32-10, first word at counter = draw",
        Numbers::Mersenne24 => "MT19937, 24 bits of a word",
        Numbers::Mersenne53 => "MT19937, 53 bits of two words",
        Numbers::Given => "the numbers given",
    }
}

/// What the numbers given with the evidence are.
pub(super) fn given_numbers(evidence: &Evidence) -> Option<String> {
    if evidence.given.is_empty() {
        return None;
    }
    Some(match known_numbers(evidence) {
        Some((numbers, rule)) => {
            format!("{}, seed {}", generator(numbers), seed_rule(rule, evidence))
        }
        None => "of no known generator".to_owned(),
    })
}

fn offset(pattern: Pattern) -> String {
    match pattern {
        Pattern::Advancing(0) => "step i uses draw i".to_owned(),
        Pattern::Advancing(shift) => format!("step i uses draw i{shift:+}"),
        Pattern::Frozen => {
            "every step uses draw 0 (the stream is frozen, or seeded anew with the same seed)"
                .to_owned()
        }
        Pattern::Reseeded => "step i uses draw 0 of seed + i".to_owned(),
        Pattern::Discarding => "step i uses draw 2i (one is thrown away after each)".to_owned(),
    }
}

fn seed_rule(rule: SeedRule, evidence: &Evidence) -> String {
    match rule {
        SeedRule::BasePlusIndex => "base + index".to_owned(),
        SeedRule::Base => "base for every sample, without the index".to_owned(),
        SeedRule::IndexTwice => "base + twice the index".to_owned(),
        SeedRule::Of(place) => {
            let of = evidence.streams.get(place).map_or("?", |stream| stream.sample_id.as_str());
            format!("that of sample {of} for every sample")
        }
        SeedRule::Unseeded => "42 (none given)".to_owned(),
    }
}

/// Words of a rule that is the same here as the one that was tried.
pub(super) fn same_seeds(rule: SeedRule, evidence: &Evidence) -> Vec<String> {
    let streams = &evidence.streams;
    let seeds = |rule: SeedRule| -> Vec<Option<u64>> {
        streams.iter().map(|stream| rule.seed(stream, streams)).collect()
    };
    let own = seeds(rule);
    [SeedRule::BasePlusIndex, SeedRule::Base, SeedRule::IndexTwice]
        .into_iter()
        .filter(|other| *other != rule && seeds(*other) == own)
        .map(|other| seed_rule(other, evidence))
        .collect()
}
