//! What an identification works on.

use lockstep_reference::sample::{Candidate, Filters, Kept, Rules, Variant};

/// What a row says about its logits.
#[derive(Debug, Clone, PartialEq)]
pub struct Row {
    /// Listed ids with their logits, in any order.
    pub listed: Vec<(u32, f64)>,
    /// Ids that are not listed; 0 where the whole vocabulary is.
    pub unlisted: usize,
    /// Mass of the ids that are not listed, at temperature 1, over the largest listed weight, where it is known.
    pub tail_weight: Option<f64>,
}

impl Row {
    /// A row of which everything is known.
    #[must_use]
    pub fn full(logits: impl IntoIterator<Item = f64>) -> Self {
        let listed = (0..).zip(logits).collect();
        Self { listed, unlisted: 0, tail_weight: None }
    }

    /// The largest logits of a vocabulary, with ln(sum(exp(logit))) where it is known.
    #[must_use]
    pub fn top(listed: Vec<(u32, f64)>, vocab: usize, logsumexp: Option<f64>) -> Self {
        let unlisted = vocab.saturating_sub(listed.len());
        let largest = listed.iter().map(|(_, logit)| *logit).fold(f64::NEG_INFINITY, f64::max);
        let known: f64 = listed.iter().map(|(_, logit)| (logit - largest).exp()).sum();
        let tail_weight = logsumexp.map(|lse| ((lse - largest).exp() - known).max(0.0));
        Self { listed, unlisted, tail_weight }
    }

    /// Largest logit, lower id first.
    #[must_use]
    pub fn argmax(&self) -> Option<(u32, f64)> {
        let largest = |a: &(u32, f64), b: &(u32, f64)| a.1.total_cmp(&b.1).then(b.0.cmp(&a.0));
        self.listed.iter().copied().max_by(largest)
    }

    /// Largest logit above the second; infinite where there is no second.
    #[must_use]
    pub fn gap(&self) -> f64 {
        let Some((id, best)) = self.argmax() else { return f64::INFINITY };
        let others = self.listed.iter().filter(|(other, _)| *other != id).map(|(_, logit)| *logit);
        best - others.fold(f64::NEG_INFINITY, f64::max)
    }

    /// Survivors of the filters; `None` where the list does not show all of them.
    #[must_use]
    pub fn kept(&self, filters: &Filters, rules: Rules, variant: Variant) -> Option<Kept> {
        let listed = self.listed.iter().map(|&(id, logit)| Candidate { id, logit, count: 1.0 });
        let mut candidates: Vec<Candidate> = listed.collect();
        if self.unlisted == 0 {
            return Some(filters.apply(&candidates, rules, variant));
        }
        let last = self.listed.iter().map(|(_, logit)| *logit).fold(f64::INFINITY, f64::min);
        let best = self.argmax().map_or(last, |(_, logit)| logit);
        #[expect(clippy::cast_precision_loss, reason = "a vocabulary lies far below 2^53")]
        let all = self.unlisted as f64;
        // At temperature 1 the tail's mass may be known; otherwise it is anything up to every id at the last listed logit.
        let cuts_at_one =
            (filters.temperature - 1.0).abs() < 1e-9 || variant == Variant::TemperatureLast;
        let (few, many) = match self.tail_weight.filter(|_| cuts_at_one) {
            Some(weight) => {
                let count = (weight / (last - best).exp()).min(all);
                (count, count)
            }
            None => (0.0, all),
        };
        // Ids of the tail cannot survive top-k where the list is longer than k, nor tie with rank k below the last listed logit.
        let tail = |count| Candidate { id: u32::MAX, logit: last, count };
        candidates.push(tail(many));
        let heavy = filters.apply(&candidates, rules, variant);
        candidates.pop();
        if few > 0.0 {
            candidates.push(tail(few));
        }
        let light = filters.apply(&candidates, rules, variant);
        (!heavy.tail && !light.tail && heavy.ids == light.ids).then_some(light)
    }

    /// What survives of the listed ids alone. Enough for argmax, which no unlisted id can be: a list begins with the largest.
    #[must_use]
    pub(super) fn kept_of_listed(&self, filters: &Filters, rules: Rules, variant: Variant) -> Kept {
        let listed = self.listed.iter().map(|&(id, logit)| Candidate { id, logit, count: 1.0 });
        filters.apply(&listed.collect::<Vec<_>>(), rules, variant)
    }
}

/// One chosen token.
#[derive(Debug, Clone, PartialEq)]
pub struct Step {
    /// Absolute position of the row that decided, or number of the step.
    pub position: u32,
    /// Its logits.
    pub row: Row,
    /// The token chosen.
    pub token: u32,
    /// Counter of the random stream as recorded.
    pub offset: Option<u64>,
}

/// The chosen tokens of one sample, in order.
#[derive(Debug, Clone, PartialEq)]
pub struct Stream {
    /// Sample.
    pub sample_id: String,
    /// Seed given.
    pub base_seed: Option<u64>,
    /// Index added to it.
    pub seed_index: u64,
    /// Tokens from the first draw on, none left out.
    pub steps: Vec<Step>,
}

/// What is said to have made the tokens.
#[derive(Debug, Clone, PartialEq)]
pub struct Claim {
    /// Sampler: `argmax`, `xorshift`, `torch-cuda`, ...; `None` where nothing is said.
    pub sampler: Option<String>,
    /// Whose filters; `None` where nothing is said.
    pub rules: Option<Rules>,
}

/// Everything that is known.
#[derive(Debug, Clone, PartialEq)]
pub struct Evidence {
    /// Streams by sample.
    pub streams: Vec<Stream>,
    /// Ids of the vocabulary.
    pub vocab: usize,
    /// Filters as set.
    pub filters: Filters,
    /// What is claimed.
    pub claim: Claim,
    /// Multiprocessors of the device whose draws are reproduced.
    pub sm_count: u32,
    /// Largest error of a logit as it stands here: 0 where f32 bits are known.
    pub logit_error: f64,
    /// Numbers of a running sum as given with the evidence.
    pub given: Vec<f64>,
    /// What the evidence does not cover, one line each.
    pub limits: Vec<String>,
}

impl Evidence {
    /// Chosen tokens in all streams.
    #[must_use]
    pub fn len(&self) -> usize {
        self.streams.iter().map(|stream| stream.steps.len()).sum()
    }

    /// True where nothing was chosen.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}
