//! The random numbers of a hypothesis, by draw.

use lockstep_reference::sample::{
    Geometry, Mersenne, Order, counter_gumbel, philox, race_exponential, uniform_of, xorshift_step,
};

use super::evidence::Evidence;
use super::hypothesis::{Draw, Numbers, SeedRule};

/// Numbers of one seed, asked for draw by draw; going back starts the generator again.
#[derive(Debug)]
pub(super) struct Source<'a> {
    draw: Draw,
    seed: u64,
    vocab: usize,
    given: &'a [f64],
    mersenne: Mersenne,
    /// State of xorshift.
    state: u64,
    /// Draws passed by the generator that goes step by step.
    passed: u64,
}

impl<'a> Source<'a> {
    pub(super) fn new(draw: Draw, seed: u64, vocab: usize, given: &'a [f64]) -> Self {
        let mersenne = Mersenne::new(seed);
        Self { draw, seed, vocab, given, mersenne, state: seed.max(1), passed: 0 }
    }

    /// The same numbers for another seed.
    pub(super) fn reseed(&mut self, seed: u64) {
        self.seed = seed;
        self.rewind();
    }

    fn rewind(&mut self) {
        self.mersenne = Mersenne::new(self.seed);
        self.state = self.seed.max(1);
        self.passed = 0;
    }

    /// Words of MT19937 that one draw takes.
    fn words(&self) -> u64 {
        match self.draw {
            Draw::TorchCpu => 2 * self.vocab as u64,
            Draw::Sum(Numbers::Mersenne53, _) => 2,
            _ => 1,
        }
    }

    /// Brings the step-by-step generators to the beginning of a draw.
    fn go_to(&mut self, draw: u64) {
        if draw < self.passed {
            self.rewind();
        }
        if matches!(self.draw, Draw::Sum(Numbers::Xorshift, _)) {
            while self.passed < draw {
                self.state = xorshift_step(self.state).0;
                self.passed += 1;
            }
        } else {
            self.mersenne.pass((draw - self.passed) * self.words());
            self.passed = draw;
        }
    }

    /// The number of a running sum; `None` where the evidence gives none for this draw.
    pub(super) fn unit(&mut self, draw: u64) -> Option<f64> {
        let Draw::Sum(numbers, _) = self.draw else { return None };
        Some(match numbers {
            Numbers::Given => *self.given.get(usize::try_from(draw).ok()?)?,
            Numbers::Philox => {
                let [word, ..] = philox(u128::from(draw), self.seed);
                uniform_of(word)
            }
            Numbers::Xorshift => {
                self.go_to(draw);
                let (state, unit) = xorshift_step(self.state);
                (self.state, self.passed) = (state, draw + 1);
                unit
            }
            Numbers::Mersenne24 => {
                self.go_to(draw);
                self.passed = draw + 1;
                self.mersenne.unit_24()
            }
            Numbers::Mersenne53 => {
                self.go_to(draw);
                self.passed = draw + 1;
                self.mersenne.unit_53()
            }
        })
    }

    /// Exponential numbers of the kept ids, in their order; `None` for a draw that is no race.
    pub(super) fn exponentials(&mut self, draw: u64, ids: &[u32]) -> Option<Vec<f64>> {
        let fill = |geometry: Geometry, seed: u64, element: u64| {
            let word = geometry.word(seed, draw * geometry.advance(), element);
            race_exponential(uniform_of(word))
        };
        match self.draw {
            Draw::Race { multiprocessors, threads_each } => {
                let geometry = Geometry::new(self.vocab as u64, multiprocessors, threads_each)?;
                Some(ids.iter().map(|&id| fill(geometry, self.seed, u64::from(id))).collect())
            }
            Draw::Slice(_) => {
                // A slice of survivors fits into the grid of any device.
                let geometry = Geometry::new(ids.len() as u64, 132, 2048)?;
                Some((0..ids.len() as u64).map(|at| fill(geometry, self.seed, at)).collect())
            }
            Draw::TorchCpu => Some(self.torch_cpu(draw, ids)),
            Draw::Gumbel => {
                let noise = |&id: &u32| -counter_gumbel(self.seed, draw, id).ln();
                Some(ids.iter().map(noise).collect())
            }
            Draw::Argmax | Draw::Sum(..) => None,
        }
    }

    fn torch_cpu(&mut self, draw: u64, ids: &[u32]) -> Vec<f64> {
        self.go_to(draw);
        let mut places: Vec<(u32, usize)> = ids.iter().copied().zip(0..).collect();
        places.sort_unstable();
        let mut numbers = vec![f64::INFINITY; ids.len()];
        let mut at = 0_u64;
        for (id, place) in places {
            let id = u64::from(id);
            self.mersenne.pass(2 * (id - at));
            at = id + 1;
            if let Some(number) = numbers.get_mut(place) {
                *number = rounded(-(-self.mersenne.unit_53()).ln_1p());
            }
        }
        self.mersenne.pass(2 * (self.vocab as u64).saturating_sub(at));
        self.passed = draw + 1;
        numbers
    }

    /// What a draw adds to the counter that a runtime records.
    pub(super) fn counter(&self, draw: u64) -> u64 {
        match self.draw {
            Draw::Race { multiprocessors, threads_each } => {
                let geometry = Geometry::new(self.vocab as u64, multiprocessors, threads_each);
                draw * geometry.map_or(4, |geometry| geometry.advance())
            }
            Draw::Slice(_) => draw * 4,
            Draw::TorchCpu => draw * self.words(),
            Draw::Argmax | Draw::Gumbel | Draw::Sum(..) => draw,
        }
    }
}

/// The generator and seed rule behind the numbers given with the evidence, where they are those of a known one.
pub(super) fn known_numbers(evidence: &Evidence) -> Option<(Numbers, SeedRule)> {
    /// Numbers printed with seven digits or more.
    const PRINTED: f64 = 1e-7;
    let stream = evidence.streams.first()?;
    let generators = [Numbers::Philox, Numbers::Xorshift, Numbers::Mersenne24, Numbers::Mersenne53];
    for rule in [SeedRule::BasePlusIndex, SeedRule::Base, SeedRule::IndexTwice, SeedRule::Unseeded]
    {
        let Some(seed) = rule.seed(stream, &evidence.streams) else { continue };
        for numbers in generators {
            let draw = Draw::Sum(numbers, Order::Id);
            let mut source = Source::new(draw, seed, evidence.vocab, &[]);
            let mut pairs = (0_u64..).zip(&evidence.given);
            let alike = pairs.all(|(draw, given)| {
                source.unit(draw).is_some_and(|unit| (unit - given).abs() <= PRINTED)
            });
            if alike && !evidence.given.is_empty() {
                return Some((numbers, rule));
            }
        }
    }
    None
}

#[expect(clippy::cast_possible_truncation, reason = "torch rounds the number to f32 here")]
fn rounded(value: f64) -> f64 {
    f64::from(value as f32)
}
