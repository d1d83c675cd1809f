//! One hypothesis against the tokens.

use lockstep_reference::sample::{Kept, Order, interval_draw, race_draw};

use super::evidence::{Evidence, Step, Stream};
use super::hypothesis::{Draw, Hypothesis, Pattern};
use super::numbers::Source;

/// Error of the ln of a quotient in f32 arithmetic: softmax, logarithm and division round a few places of 2^-24 each, sums of thousands of
/// terms more.
const RACE_ROUNDING: f64 = 4e-6;
/// Absolute error of CUDA's fast logarithm near 1 (2^-21.4 by its own table).
const FAST_LOGARITHM: f64 = 3.7e-7;
/// Error of a running sum in f32.
const SUM_ROUNDING: f64 = 2e-6;
/// Distance from its edge at which a cut of top-p or min-p in f32 may fall to either side.
const CUT_ROUNDING: f64 = 2e-6;

/// What a hypothesis says about a step.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Prediction {
    /// The token.
    pub(super) token: u32,
    /// How far the nearest other outcome was: ln of quotients (races), mass (running sums), logits (argmax).
    pub(super) margin: f64,
    /// How far the observed token was from being the outcome, in the same unit; 0 where it is.
    pub(super) deficit: f64,
    /// What evidence and f32 arithmetic can tell apart, in the same unit.
    pub(super) precision: f64,
    /// The draw that was used.
    pub(super) draw: u64,
}

/// How a prediction stands to the token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Judged {
    /// The token.
    Match,
    /// Another, but the observed one lies within the precision.
    Edge,
    /// Another.
    Miss,
}

/// Predicts the steps of one stream.
pub(super) struct Simulator<'a> {
    hypothesis: Hypothesis,
    evidence: &'a Evidence,
    seed: u64,
    source: Source<'a>,
}

impl<'a> Simulator<'a> {
    /// `None` where the stream has no such seed and the draw needs one.
    pub(super) fn new(
        hypothesis: Hypothesis,
        evidence: &'a Evidence,
        stream: &Stream,
    ) -> Option<Self> {
        let seed = hypothesis.seed.seed(stream, &evidence.streams);
        let seed = if hypothesis.draw.is_deterministic() { seed.or(Some(0)) } else { seed }?;
        let source = Source::new(hypothesis.draw, seed, evidence.vocab, &evidence.given);
        Some(Self { hypothesis, evidence, seed, source })
    }

    /// The draw of the random stream that step `number` uses.
    fn draw_of(&mut self, number: u64) -> Option<u64> {
        match self.hypothesis.pattern {
            Pattern::Advancing(shift) => number.checked_add_signed(shift),
            Pattern::Frozen => Some(0),
            Pattern::Discarding => Some(2 * number),
            Pattern::Reseeded => {
                self.source.reseed(self.seed.wrapping_add(number));
                Some(0)
            }
        }
    }

    /// The counter that an engine would record for step `number`.
    pub(super) fn counter(&mut self, number: u64) -> Option<u64> {
        let draw = self.draw_of(number)?;
        Some(self.source.counter(draw))
    }

    /// What step `number` comes to. `None` where the pattern has no draw for it.
    pub(super) fn predict(&mut self, number: u64, step: &Step, kept: &Kept) -> Option<Prediction> {
        let draw = self.draw_of(number)?;
        let logits = self.evidence.logit_error / self.evidence.filters.temperature.max(1e-6);
        match self.hypothesis.draw {
            Draw::Argmax => {
                let (token, best) = step.row.argmax()?;
                let own = step.row.listed.iter().find(|(id, _)| *id == step.token);
                Some(Prediction {
                    token,
                    margin: step.row.gap(),
                    // Among equal logits the lowest id is the one that argmax takes.
                    deficit: match own {
                        _ if token == step.token => 0.0,
                        Some((_, logit)) => (best - logit).max(f64::MIN_POSITIVE),
                        None => f64::INFINITY,
                    },
                    precision: 2.0 * self.evidence.logit_error,
                    draw,
                })
            }
            Draw::Sum(_, order) => self.sum(draw, order, (step, kept), logits),
            Draw::Slice(Order::Id) => {
                let sorted = by_id(kept);
                self.race(draw, (step, &sorted), logits)
            }
            _ => self.race(draw, (step, kept), logits),
        }
    }

    fn sum(
        &mut self,
        draw: u64,
        order: Order,
        (step, kept): (&Step, &Kept),
        logits: f64,
    ) -> Option<Prediction> {
        let unit = self.source.unit(draw)?;
        let sorted = if order == Order::Id { by_id(kept) } else { kept.clone() };
        let drawn = interval_draw(&sorted.probabilities, unit)?;
        let own = sorted.ids.iter().position(|id| *id == step.token);
        let deficit = own.map_or(f64::INFINITY, |own| {
            let below: f64 = sorted.probabilities.iter().take(own).sum();
            let above = below + sorted.probabilities.get(own).copied().unwrap_or(0.0);
            (below - unit).max(unit - above).max(0.0)
        });
        let token = *sorted.ids.get(drawn.place)?;
        Some(Prediction {
            token,
            margin: drawn.margin,
            deficit: if token == step.token { 0.0 } else { deficit },
            precision: SUM_ROUNDING + 2.0 * logits,
            draw,
        })
    }

    fn race(&mut self, draw: u64, (step, kept): (&Step, &Kept), logits: f64) -> Option<Prediction> {
        let numbers = self.source.exponentials(draw, &kept.ids)?;
        let number = |place: usize| numbers.get(place).copied().unwrap_or(f64::INFINITY);
        let drawn = race_draw(&kept.ids, &kept.probabilities, number)?;
        let own = kept.ids.iter().position(|id| *id == step.token);
        let score = |place: usize| {
            kept.probabilities.get(place).map_or(f64::NEG_INFINITY, |p| p.ln() - number(place).ln())
        };
        let fast = match self.hypothesis.draw {
            Draw::Race { .. } | Draw::Slice(_) => {
                FAST_LOGARITHM / number(drawn.place)
                    + own.map_or(0.0, |own| FAST_LOGARITHM / number(own))
            }
            _ => 0.0,
        };
        Some(Prediction {
            token: *kept.ids.get(drawn.place)?,
            margin: drawn.margin,
            deficit: own.map_or(f64::INFINITY, |own| drawn.lead - score(own)),
            precision: RACE_ROUNDING + fast + 2.0 * logits,
            draw,
        })
    }
}

/// The same survivors in ascending order of ids.
fn by_id(kept: &Kept) -> Kept {
    let mut pairs: Vec<(u32, f64)> =
        kept.ids.iter().copied().zip(kept.probabilities.iter().copied()).collect();
    pairs.sort_unstable_by_key(|(id, _)| *id);
    Kept {
        ids: pairs.iter().map(|(id, _)| *id).collect(),
        probabilities: pairs.iter().map(|(_, p)| *p).collect(),
        ..kept.clone()
    }
}

/// Judges a prediction. A token that the filters cut is still at an edge where the cut itself lies within its precision.
pub(super) fn judge(prediction: Option<Prediction>, step: &Step, kept: &Kept) -> Judged {
    let Some(prediction) = prediction else { return Judged::Miss };
    if prediction.token == step.token {
        return Judged::Match;
    }
    let near = |edge: Option<f64>| edge.is_some_and(|edge| edge < CUT_ROUNDING);
    let cut = near(kept.edges.top_p) || near(kept.edges.min_p);
    if prediction.deficit <= prediction.precision || cut { Judged::Edge } else { Judged::Miss }
}
