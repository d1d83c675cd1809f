//! Temperature, top-k, top-p and min-p on candidates in f64.

use std::cmp::Ordering;

/// An id with its logit; `count` of them where the entry stands for a tail of ids that are not listed (then at most one entry, the lowest).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Candidate {
    /// Id.
    pub id: u32,
    /// Raw logit.
    pub logit: f64,
    /// How many ids the entry stands for; need not be whole.
    pub count: f64,
}

/// Whose rules.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Rules {
    /// transformers: ids tied at rank k all survive.
    Hf,
    /// The native C++ runtime of TensorRT-Model-Connect: exactly k survive, here lower ids first.
    Native,
}

/// The order in which the filters are applied, and on what.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Variant {
    /// Temperature, top-k, top-p over the survivors of top-k, min-p on probabilities.
    Usual,
    /// Filters on the probabilities at temperature 1; the temperature afterwards.
    TemperatureLast,
    /// top-p over the whole vocabulary, then cut to the k best.
    TopPFirst,
    /// As usual, but min-p keeps `logit >= min_p * largest logit`.
    MinPOnLogits,
}

impl Variant {
    /// All of them, the usual one first.
    pub const ALL: [Self; 4] =
        [Self::Usual, Self::TemperatureLast, Self::TopPFirst, Self::MinPOnLogits];
}

/// Settings; `None` is off.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Filters {
    /// Above 0.
    pub temperature: f64,
    /// Ids, at least 1.
    pub top_k: Option<usize>,
    /// Mass.
    pub top_p: Option<f64>,
    /// Floor relative to the largest probability.
    pub min_p: Option<f64>,
}

/// Survivors by rank (logit descending, lower id first) with their probabilities, and how near the cuts were.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Kept {
    /// Ids.
    pub ids: Vec<u32>,
    /// Probabilities; they sum to 1.
    pub probabilities: Vec<f64>,
    /// The tail entry survived at least in part: the list does not show all survivors.
    pub tail: bool,
    /// Distance of each cut from its edge: logits over temperature (top-k), mass (top-p), ln of probability (min-p).
    pub edges: Edges,
}

/// Distances from the nearest edge; `None` where a filter is off or cannot cut.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Edges {
    /// Last survivor above the first one cut, in logits over temperature.
    pub top_k: Option<f64>,
    /// Nearest sum from the limit, as mass.
    pub top_p: Option<f64>,
    /// Nearest ln(p / p_max) from ln(min_p).
    pub min_p: Option<f64>,
}

/// A distance of mass below which f32 sums decide and not the definition.
const ROUNDING: f64 = 1e-12;

impl Filters {
    /// Filters `candidates`, in any order. NaN and +inf are the caller's to refuse; -inf never survives.
    #[must_use]
    pub fn apply(&self, candidates: &[Candidate], rules: Rules, variant: Variant) -> Kept {
        let mut ranked: Vec<Candidate> =
            candidates.iter().copied().filter(|one| one.logit > f64::NEG_INFINITY).collect();
        ranked.sort_by(by_rank);
        let mut edges = Edges::default();
        let cut_at = match variant {
            Variant::TemperatureLast => 1.0,
            _ => self.temperature,
        };
        match variant {
            Variant::TopPFirst => {
                self.nucleus(&mut ranked, rules, cut_at, &mut edges);
                // top-k cuts after it; ids tied at rank k are no question of this order.
                self.best(&mut ranked, Rules::Native, cut_at, &mut edges);
            }
            _ => {
                self.best(&mut ranked, rules, cut_at, &mut edges);
                self.nucleus(&mut ranked, rules, cut_at, &mut edges);
            }
        }
        self.floor(&mut ranked, variant, cut_at, &mut edges);
        let weights = weights(&ranked, rules, self.temperature);
        let total: f64 = weights.iter().zip(&ranked).map(|(w, one)| w * one.count).sum();
        let listed = ranked.iter().take_while(|one| is_listed(one)).count();
        Kept {
            ids: ranked.iter().take(listed).map(|one| one.id).collect(),
            probabilities: weights.iter().take(listed).map(|w| w / total).collect(),
            tail: listed < ranked.len(),
            edges,
        }
    }

    /// The `top_k` best.
    fn best(&self, ranked: &mut Vec<Candidate>, rules: Rules, t: f64, edges: &mut Edges) {
        let Some(k) = self.top_k.map(|k| k.max(1)) else { return };
        #[expect(clippy::cast_precision_loss, reason = "ranks lie far below 2^53")]
        let (mut left, mut kept) = (k as f64, 0);
        while let Some(one) = ranked.get(kept) {
            if left <= 0.0 {
                break;
            }
            left -= one.count;
            kept += 1;
        }
        let Some(last) = kept.checked_sub(1).and_then(|at| ranked.get(at)).copied() else { return };
        if let Some(next) = ranked.get(kept) {
            edges.top_k = Some((last.logit - next.logit) / t);
        }
        if rules == Rules::Hf {
            let score = |one: &Candidate| quotient(one.logit, t);
            let tied = |one: &&Candidate| score(one).total_cmp(&score(&last)).is_eq();
            kept += ranked.get(kept..).unwrap_or_default().iter().take_while(tied).count();
        }
        ranked.truncate(kept);
    }

    /// The most probable whose mass reaches `top_p`. That transformers removes from the other end, while the mass from an id downwards is at
    /// most `1 - top_p`, is the same set in exact arithmetic.
    fn nucleus(&self, ranked: &mut Vec<Candidate>, rules: Rules, t: f64, edges: &mut Edges) {
        let Some(limit) = self.top_p.filter(|&p| p < 1.0) else { return };
        let weights = weights(ranked, rules, t);
        let total: f64 = weights.iter().zip(ranked.iter()).map(|(w, one)| w * one.count).sum();
        let (mut mass, mut kept, mut nearest) = (0.0, ranked.len(), f64::INFINITY);
        for (place, (weight, one)) in weights.iter().zip(ranked.iter()).enumerate() {
            let step = weight * one.count / total;
            mass += step;
            nearest = nearest.min((mass - limit).abs());
            if mass >= limit - ROUNDING {
                kept = place + 1;
                break;
            }
        }
        edges.top_p = Some(nearest);
        ranked.truncate(kept.max(1));
    }

    fn floor(&self, ranked: &mut Vec<Candidate>, variant: Variant, t: f64, edges: &mut Edges) {
        let Some(share) = self.min_p.filter(|&p| p > 0.0) else { return };
        let Some(first) = ranked.first().copied() else { return };
        let distance = |one: &Candidate| match variant {
            Variant::MinPOnLogits => one.logit - share * first.logit,
            _ => (one.logit - first.logit) / t - share.ln(),
        };
        let kept = ranked.iter().take_while(|one| distance(one) >= -ROUNDING).count().max(1);
        let around = [kept.checked_sub(1), Some(kept)].into_iter().flatten();
        edges.min_p = around
            .filter_map(|at| ranked.get(at))
            .map(|one| distance(one).abs())
            .min_by(f64::total_cmp);
        ranked.truncate(kept);
    }
}

/// Entries of more or less than one id stand for a tail.
fn is_listed(one: &Candidate) -> bool {
    (one.count - 1.0).abs() < f64::EPSILON && one.id != u32::MAX
}

fn by_rank(a: &Candidate, b: &Candidate) -> Ordering {
    b.logit.partial_cmp(&a.logit).unwrap_or(Ordering::Equal).then(a.id.cmp(&b.id))
}

#[expect(clippy::cast_possible_truncation, reason = "rounding to f32 is what is wanted")]
const fn narrow(value: f64) -> f32 {
    value as f32
}

/// The score of transformers: `l / t` in f32, which is what later filters and the softmax see.
fn quotient(logit: f64, t: f64) -> f64 {
    f64::from(narrow(logit / f64::from(narrow(t))))
}

/// `exp((l - l_max) / t)`, for `hf` of the f32 scores.
fn weights(ranked: &[Candidate], rules: Rules, t: f64) -> Vec<f64> {
    let largest = ranked.first().map_or(0.0, |one| one.logit);
    let gap = |one: &Candidate| match rules {
        Rules::Native => (one.logit - largest) / t,
        Rules::Hf => quotient(one.logit, t) - quotient(largest, t),
    };
    ranked.iter().map(|one| gap(one).exp()).collect()
}
