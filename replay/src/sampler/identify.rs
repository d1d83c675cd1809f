//! Every hypothesis against the evidence, and what that comes to.

use lockstep_reference::sample::{Rules, Variant};
use lockstep_traces::Cause;
use rayon::prelude::*;

use super::evidence::Evidence;
use super::hypothesis::{self, Draw, Hypothesis, Numbers, Pattern, SeedRule};
use super::prepared::Prepared;

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
    let answer = answer(evidence, (claim.as_ref(), claimed), &fits, (bits_needed, tried));
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
    (bits_needed, tried): (f64, usize),
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
            "{steps} of {} covered steps had a choice, and their tokens are {bits:.1} bits away from certain; with {tried} hypotheses tried {bits_needed:.1} bits are needed",
            best.drawn.len()
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
