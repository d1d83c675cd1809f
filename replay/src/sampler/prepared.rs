//! Survivors of every step under every filter rule, and the score of a hypothesis over them.

use std::collections::BTreeMap;

use lockstep_reference::sample::{Kept, Rules, Variant};
use rayon::prelude::*;

use super::evidence::Evidence;
use super::hypothesis::{Draw, Hypothesis};
use super::identify::{Drawn, Misfit, Scored};
use super::score::{Judged, Simulator, judge};

/// Steps on which everything is tried before what is hopeless is dropped, and misses that are allowed there.
const SCREENED: Screen = Screen { steps: 12, misses: 3 };
/// The same where thousands survive the filters: each token then says more, and costs more.
const SCREENED_WIDE: Screen = Screen { steps: 4, misses: 1 };
/// Survivors of a step from which on that is so.
const WIDE: usize = 4096;
/// A short trial of every hypothesis.
#[derive(Debug, Clone, Copy)]
pub(super) struct Screen {
    /// Steps with a choice, over all streams.
    steps: usize,
    /// Misses that are allowed.
    pub(super) misses: usize,
}

type Survivors = Vec<Vec<Option<Kept>>>;

/// Survivors by step, for every filter rule that makes a difference.
pub(super) struct Prepared<'a> {
    pub(super) evidence: &'a Evidence,
    pub(super) kept: BTreeMap<(Rules, Variant), Survivors>,
    /// Steps on which the two rules keep other ids.
    pub(super) rules_differ: usize,
}

impl<'a> Prepared<'a> {
    /// Filters every row by every rule that can make a difference; `first` is the claimed one.
    pub(super) fn new(evidence: &'a Evidence, first: Rules) -> Self {
        let other = if first == Rules::Native { Rules::Hf } else { Rules::Native };
        let mut kept = BTreeMap::new();
        let mut rules_differ = 0;
        let usual = survivors(evidence, first, Variant::Usual);
        if evidence.filters.top_k.is_some() {
            let others = survivors(evidence, other, Variant::Usual);
            rules_differ = count_different(&usual, &others);
            if rules_differ > 0 {
                kept.insert((other, Variant::Usual), others);
            }
        }
        for variant in Variant::ALL.into_iter().filter(|variant| possible(evidence, *variant)) {
            let spoiled = survivors(evidence, first, variant);
            if spoiled != usual {
                kept.insert((first, variant), spoiled);
            }
        }
        kept.insert((first, Variant::Usual), usual);
        Self { evidence, kept, rules_differ }
    }

    /// The trial that this evidence gets.
    pub(super) fn screen(&self) -> Screen {
        let kept = self.kept.values().flatten().flatten().flatten();
        let wide = kept.take(64).any(|kept| kept.ids.len() > WIDE);
        if wide { SCREENED_WIDE } else { SCREENED }
    }

    /// Scores a hypothesis, on the steps of the trial or on all.
    pub(super) fn score(&self, hypothesis: Hypothesis, screen: Option<Screen>) -> Scored {
        let streams = self.evidence.streams.len().max(1);
        let most = screen.map(|screen| screen.steps.div_ceil(streams).max(2));
        let mut scored = Scored {
            hypothesis,
            reproduced: 0,
            at_edge: 0,
            missed: 0,
            uncovered: 0,
            first_misfit: None,
            counters: (0, 0),
            drawn: Vec::new(),
        };
        let Some(kept) = self.kept.get(&(hypothesis.rules, hypothesis.variant)) else {
            return scored;
        };
        for (place, (stream, kept)) in self.evidence.streams.iter().zip(kept).enumerate() {
            let mut simulator = Simulator::new(hypothesis, self.evidence, stream);
            let steps = stream.steps.iter().zip(kept).zip(0_u64..);
            let mut chosen = 0;
            for ((step, kept), number) in steps {
                let listed = (kept.is_none() && hypothesis.draw == Draw::Argmax).then(|| {
                    let (rules, variant) = (hypothesis.rules, hypothesis.variant);
                    step.row.kept_of_listed(&self.evidence.filters, rules, variant)
                });
                let Some(kept) = kept.as_ref().or(listed.as_ref()) else {
                    scored.uncovered += 1;
                    continue;
                };
                let prediction =
                    simulator.as_mut().and_then(|simulator| simulator.predict(number, step, kept));
                let judged = judge(prediction, step, kept);
                match judged {
                    Judged::Match => scored.reproduced += 1,
                    Judged::Edge => scored.at_edge += 1,
                    Judged::Miss => scored.missed += 1,
                }
                if judged == Judged::Miss && scored.first_misfit.is_none() {
                    scored.first_misfit = Some(Misfit {
                        sample_id: stream.sample_id.clone(),
                        step: number,
                        position: step.position,
                        token: step.token,
                        predicted: prediction.map(|prediction| prediction.token),
                    });
                }
                if let (Some(most), Some(screen)) = (most, screen) {
                    chosen += usize::from(kept.ids.len() > 1);
                    if chosen >= most || scored.missed > screen.misses {
                        break;
                    }
                    continue;
                }
                if let Some(offset) = step.offset {
                    let counter =
                        simulator.as_mut().and_then(|simulator| simulator.counter(number));
                    scored.counters.0 += usize::from(counter == Some(offset));
                    scored.counters.1 += 1;
                }
                if let Some(prediction) = prediction.filter(|_| judged == Judged::Match) {
                    let own = kept.ids.iter().position(|id| *id == step.token);
                    let probability = own.and_then(|own| kept.probabilities.get(own));
                    scored.drawn.push(Drawn {
                        stream: place,
                        step: number,
                        position: step.position,
                        survivors: kept.ids.len(),
                        probability: probability.copied().unwrap_or(1.0),
                        margin: prediction.margin,
                        precision: prediction.precision,
                    });
                }
            }
        }
        scored
    }
}

fn survivors(evidence: &Evidence, rules: Rules, variant: Variant) -> Survivors {
    let streams = evidence.streams.par_iter();
    let of = |stream: &super::Stream| {
        let kept = |step: &super::Step| step.row.kept(&evidence.filters, rules, variant);
        stream.steps.iter().map(kept).collect()
    };
    streams.map(of).collect()
}

fn count_different(a: &Survivors, b: &Survivors) -> usize {
    let differ = |pair: &(&Option<Kept>, &Option<Kept>)| match pair {
        (Some(a), Some(b)) => a.ids != b.ids,
        (a, b) => a.is_some() != b.is_some(),
    };
    a.iter().flatten().zip(b.iter().flatten()).filter(differ).count()
}

/// Can this order of filters make a difference under these settings?
fn possible(evidence: &Evidence, variant: Variant) -> bool {
    let filters = &evidence.filters;
    let cuts_p = filters.top_p.is_some_and(|p| p < 1.0);
    let cuts_min = filters.min_p.is_some_and(|p| p > 0.0);
    match variant {
        Variant::Usual => false,
        Variant::TemperatureLast => {
            (filters.temperature - 1.0).abs() > 1e-9 && (cuts_p || cuts_min)
        }
        Variant::TopPFirst => filters.top_k.is_some() && cuts_p,
        Variant::MinPOnLogits => cuts_min,
    }
}
