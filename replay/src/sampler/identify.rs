//! Every hypothesis against the evidence, and what that comes to.

use std::collections::BTreeMap;

use lockstep_reference::sample::{Kept, Rules, Variant};
use lockstep_traces::Cause;
use rayon::prelude::*;

use super::evidence::Evidence;
use super::hypothesis::{self, Draw, Hypothesis, Numbers, Pattern, SeedRule};
use super::score::{Judged, Simulator, judge};

/// Steps on which everything is tried before what is hopeless is dropped, and misses that are allowed there.
const SCREENED: Screen = Screen { steps: 12, misses: 3 };
/// The same where thousands survive the filters: each token then says more, and costs more.
const SCREENED_WIDE: Screen = Screen { steps: 4, misses: 1 };
/// Survivors of a step from which on that is so.
const WIDE: usize = 4096;
/// Hypotheses that are scored in full beside those that depart from the claim in one respect.
const MOST_SCORED: usize = 48;
/// Bits by which the tokens must be less likely than chance over all hypotheses: one wrong identification in 128 at most.
const CERTAINTY_BITS: f64 = 7.0;

/// A token that a hypothesis does not reproduce.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Misfit {
    /// Sample.
    pub sample_id: String,
    /// Number of the draw in its sample, 0-based.
    pub step: u64,
    /// Position of the row that decided.
    pub position: u32,
    /// The token.
    pub token: u32,
    /// What the hypothesis gives; `None` where it has no draw for the step.
    pub predicted: Option<u32>,
}

/// The drawn token of a step under a hypothesis that fits it.
#[derive(Debug, Clone, PartialEq)]
pub struct Drawn {
    /// Place of the stream.
    pub stream: usize,
    /// Number of the draw in its sample, 0-based.
    pub step: u64,
    /// Position of the row that decided.
    pub position: u32,
    /// Survivors of the filters.
    pub survivors: usize,
    /// Probability of the token among them.
    pub probability: f64,
    /// Distance to the nearest decision edge: ln of quotients (races), mass (running sums), logits (argmax).
    pub margin: f64,
    /// What evidence and f32 arithmetic can tell apart, in the same unit.
    pub precision: f64,
}

/// How a hypothesis did.
#[derive(Debug, Clone, PartialEq)]
pub struct Scored {
    /// It.
    pub hypothesis: Hypothesis,
    /// Tokens that it gives.
    pub reproduced: usize,
    /// Others that lie within the precision of its decision edge.
    pub at_edge: usize,
    /// Tokens that it does not give.
    pub missed: usize,
    /// Steps whose survivors the evidence does not show.
    pub uncovered: usize,
    /// First token that it does not give.
    pub first_misfit: Option<Misfit>,
    /// Recorded counters of the random stream that agree with it, of so many.
    pub counters: (usize, usize),
    /// Steps that it gives, with their margins.
    pub drawn: Vec<Drawn>,
}

impl Scored {
    /// It reproduces everything that the evidence covers; a few tokens may lie at a decision edge, which says nothing.
    #[must_use]
    pub const fn fits(&self) -> bool {
        self.missed == 0 && self.reproduced > 0 && self.at_edge * 4 <= self.reproduced
    }

    /// Bits by which the tokens are less likely than certain: the sum of -log2 p over the steps that had a choice.
    #[must_use]
    pub fn bits(&self) -> f64 {
        let choice = self.drawn.iter().filter(|drawn| drawn.survivors > 1);
        choice.map(|drawn| -drawn.probability.log2()).sum()
    }
}

/// What the evidence says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// What is claimed reproduces the stream.
    Claimed,
    /// This reproduces it, and the claim does not (or nothing is claimed); the known mistake, if it is one.
    Identified(Box<Hypothesis>, Option<Cause>),
    /// It cannot be told; one line says why.
    NotDecidable(String),
    /// Nothing that is known here reproduces it.
    NoneFits,
}

/// The whole identification.
#[derive(Debug, Clone, PartialEq)]
pub struct Identification {
    /// Outcome.
    pub answer: Answer,
    /// What is claimed, with its score.
    pub claimed: Option<Scored>,
    /// What reproduces the stream, fewest departures from the claim first.
    pub fits: Vec<Scored>,
    /// Every hypothesis that was scored in full, best first.
    pub scored: Vec<Scored>,
    /// Hypotheses tried.
    pub tried: usize,
    /// Bits that an identification needs with so many tried.
    pub bits_needed: f64,
    /// Steps on which `hf` and `native` filters keep other ids, where the evidence shows both.
    pub rules_differ: usize,
}

impl Identification {
    /// The score behind the answer: of the claim, or of what was identified.
    #[must_use]
    pub fn decisive(&self) -> Option<&Scored> {
        match &self.answer {
            Answer::Claimed => self.claimed.as_ref(),
            Answer::Identified(found, _) => {
                self.fits.iter().find(|scored| scored.hypothesis == **found)
            }
            Answer::NotDecidable(_) | Answer::NoneFits => {
                self.fits.first().or(self.claimed.as_ref())
            }
        }
    }
}

/// A short trial of every hypothesis.
#[derive(Debug, Clone, Copy)]
struct Screen {
    /// Steps with a choice, over all streams.
    steps: usize,
    misses: usize,
}

type Survivors = Vec<Vec<Option<Kept>>>;

/// Survivors by step, for every filter rule that makes a difference.
struct Prepared<'a> {
    evidence: &'a Evidence,
    kept: BTreeMap<(Rules, Variant), Survivors>,
    rules_differ: usize,
}

impl<'a> Prepared<'a> {
    fn new(evidence: &'a Evidence, first: Rules) -> Self {
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
    fn screen(&self) -> Screen {
        let kept = self.kept.values().flatten().flatten().flatten();
        let wide = kept.take(64).any(|kept| kept.ids.len() > WIDE);
        if wide { SCREENED_WIDE } else { SCREENED }
    }

    fn score(&self, hypothesis: Hypothesis, screen: Option<Screen>) -> Scored {
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
                let Some(kept) = kept.as_ref() else {
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

/// Names the sampler of the evidence.
#[must_use]
pub fn identify(evidence: &Evidence, claimed: Option<Hypothesis>) -> Identification {
    let rules = claimed.map_or(evidence.claim.rules.unwrap_or(Rules::Native), |one| one.rules);
    let prepared = Prepared::new(evidence, rules);
    let all = hypotheses(&prepared, claimed, rules);
    let tried = all.len();
    let base = claimed.unwrap_or_else(|| plain(evidence, rules));
    let screen = prepared.screen();
    let screened: Vec<(Hypothesis, usize)> = all
        .into_par_iter()
        .map(|one| (one, prepared.score(one, Some(screen))))
        .filter(|(one, score)| score.missed <= screen.misses || one.departs(&base) <= 1)
        .map(|(one, score)| (one, score.missed))
        .collect();
    let (near, mut far): (Vec<_>, Vec<_>) =
        screened.into_iter().partition(|(one, _)| one.departs(&base) <= 1);
    far.sort_by_key(|(one, missed)| (*missed, one.departs(&base)));
    far.truncate(MOST_SCORED);
    let mut scored: Vec<Scored> = near
        .into_iter()
        .chain(far)
        .par_bridge()
        .map(|(one, _)| prepared.score(one, None))
        .collect();
    scored.sort_by_key(|one| {
        (one.missed, usize::MAX - one.reproduced, one.hypothesis.departs(&base), one.hypothesis)
    });
    conclude(evidence, &prepared, claimed, (scored, tried))
}

/// Where nothing is claimed departures are counted from the commonest.
fn plain(evidence: &Evidence, rules: Rules) -> Hypothesis {
    let multiprocessors = evidence.sm_count;
    Hypothesis {
        draw: Draw::Race { multiprocessors, threads_each: 2048 },
        pattern: Pattern::Advancing(0),
        seed: hypothesis::seeds(evidence).first().copied().unwrap_or(SeedRule::Unseeded),
        rules,
        variant: Variant::Usual,
    }
}

fn hypotheses(
    prepared: &Prepared<'_>,
    claimed: Option<Hypothesis>,
    rules: Rules,
) -> Vec<Hypothesis> {
    let evidence = prepared.evidence;
    let seeds = hypothesis::seeds(evidence);
    let first = seeds.first().copied().unwrap_or(SeedRule::Unseeded);
    let mut all = vec![Hypothesis {
        draw: Draw::Argmax,
        pattern: Pattern::Advancing(0),
        seed: claimed.map_or(first, |one| one.seed),
        rules,
        variant: Variant::Usual,
    }];
    for draw in hypothesis::draws(evidence) {
        let given = matches!(draw, Draw::Sum(Numbers::Given, _));
        for pattern in hypothesis::patterns() {
            for &seed in &seeds {
                if given && (pattern == Pattern::Reseeded || seed != first) {
                    continue;
                }
                let keys = prepared.kept.keys();
                all.extend(keys.map(|&(rules, variant)| Hypothesis {
                    draw,
                    pattern,
                    seed,
                    rules,
                    variant,
                }));
            }
        }
    }
    all.extend(claimed.filter(|one| !all.contains(one)));
    all
}

fn conclude(
    evidence: &Evidence,
    prepared: &Prepared<'_>,
    claimed: Option<Hypothesis>,
    (scored, tried): (Vec<Scored>, usize),
) -> Identification {
    let claim = claimed.and_then(|one| scored.iter().find(|score| score.hypothesis == one));
    let claim = claim.cloned();
    let base = claimed.unwrap_or_else(|| plain(evidence, Rules::Native));
    let mut fits: Vec<Scored> = scored.iter().filter(|one| one.fits()).cloned().collect();
    fits.sort_by_key(|one| (one.hypothesis.departs(&base), one.hypothesis));
    #[expect(clippy::cast_precision_loss, reason = "a count of hypotheses")]
    let bits_needed = (tried.max(1) as f64).log2() + CERTAINTY_BITS;
    let answer = answer(evidence, (claim.as_ref(), claimed), &fits, bits_needed);
    Identification {
        answer,
        claimed: claim,
        fits,
        scored,
        tried,
        bits_needed,
        rules_differ: prepared.rules_differ,
    }
}

fn answer(
    evidence: &Evidence,
    (claim, claimed): (Option<&Scored>, Option<Hypothesis>),
    fits: &[Scored],
    bits_needed: f64,
) -> Answer {
    if evidence.is_empty() {
        return Answer::NotDecidable("no token was chosen".to_owned());
    }
    let best = claim.filter(|claim| claim.fits()).or_else(|| fits.first());
    let Some(best) = best else {
        let covered = claim.is_none_or(|claim| claim.missed + claim.at_edge > 0);
        return if covered {
            Answer::NoneFits
        } else {
            Answer::NotDecidable(
                "no row shows all survivors of its filters; record full logits, or more of the largest than survive"
                    .to_owned(),
            )
        };
    };
    let bits = best.bits();
    let greedy = best.hypothesis.draw.is_deterministic();
    if greedy && claim.is_some_and(|claim| claim.hypothesis == best.hypothesis) {
        return Answer::Claimed;
    }
    if bits < bits_needed {
        let steps = best.drawn.iter().filter(|drawn| drawn.survivors > 1).count();
        return Answer::NotDecidable(format!(
            "{steps} of {} covered steps had a choice; their tokens are {bits:.1} bits away from certain, and telling {} hypotheses that fit from chance needs {bits_needed:.1}",
            best.drawn.len(),
            fits.len()
        ));
    }
    if claim.is_some_and(Scored::fits) {
        return Answer::Claimed;
    }
    let base = claimed.unwrap_or(best.hypothesis);
    let nearest = best.hypothesis.departs(&base);
    let rivals: Vec<&Scored> =
        fits.iter().filter(|one| one.hypothesis.departs(&base) == nearest).collect();
    let alone = match claimed {
        Some(_) => rivals.len() == 1,
        None => fits.len() == 1,
    };
    if alone {
        let cause = claimed.and_then(|claimed| best.hypothesis.cause(&claimed));
        return Answer::Identified(Box::new(best.hypothesis), cause);
    }
    Answer::NotDecidable(format!("{} hypotheses reproduce every token", fits.len()))
}
