//! The reference's own decision: when rows are dropped, and which.

use lockstep_reference::Hyper;
use lockstep_reference::forward::{Cache, KeepSets, Precision};
use lockstep_reference::select::{
    HeadArrays, HeadStats, Heads, Input, KeepSet, KeyView, Moment, NoiseStream, Positions,
    Progress, Rules, due, select,
};
use lockstep_traces::{DType, PolicyKind, PolicySpec, RuleSet, SelectionMode, stats::QueryStats};

use super::compactor::Compaction;
use super::recording::{Event, Recording};
use crate::ReplayError;

/// The reference's own selector over one sample.
pub(super) struct OwnSelector {
    rules: Rules,
    stats: HeadStats,
    noise: Option<NoiseStream>,
    last: Option<usize>,
    ordinal: u32,
}

impl OwnSelector {
    pub(super) fn new(
        spec: &PolicySpec,
        stats: &QueryStats,
        hyper: &Hyper,
    ) -> Result<Self, ReplayError> {
        if spec.kind != Some(PolicyKind::Triattention) {
            return Err(ReplayError::Options {
                what: "the reference selects for itself under policy triattention only; replay recorded or dense".to_owned(),
            });
        }
        let rules = Rules::resolve(spec)?;
        let noise = rules.noise_seed.map(NoiseStream::new);
        let stats = head_stats(stats, hyper, rules.rule_set)?;
        Ok(Self { rules, stats, noise, last: None, ordinal: 0 })
    }

    /// After how many tokens, more than `fed`, the rules ask for a compaction.
    pub(super) fn next(
        &self,
        prompt_len: usize,
        total: usize,
        fed: usize,
        cache: &Cache,
    ) -> Option<usize> {
        let prefix = cache.positions(0, 0).iter().filter(|p| (**p as usize) < prompt_len).count();
        (fed + 1..=total).find(|n| {
            let new = *n - fed;
            let progress = Progress {
                rows: cache.rows() + new,
                absolute_position: *n,
                prompt_len,
                prefix_rows: prefix + prompt_len.saturating_sub(fed).min(new),
                last: self.last,
            };
            let asked = match self.rules.rule_set {
                // The prompt is filled as a whole; the first decode row is the first to be looked at.
                RuleSet::Trt | RuleSet::Hf => *n > prompt_len,
                // These look before a forward, so a next row must be there to be fed.
                RuleSet::Vllm | RuleSet::Sglang => *n < total,
            };
            asked && due(&self.rules, &progress)
        })
    }

    /// Where the sequence stands. Whether `sglang` counts the token in flight is open (`TRIATTENTION.md` 7.3); where the
    /// recording says that it did not, neither does this.
    fn moment(&self, recording: &Recording, fed: usize) -> Moment {
        let rule_set = self.rules.rule_set;
        let recorded =
            recording.events.iter().find(|event| event.absolute_position as usize == fed);
        let round_start = recorded.and_then(|event| event.round_start).map(|round| round as usize);
        match rule_set {
            RuleSet::Sglang if round_start == Some(fed) => Moment::at(fed, recording.prompt_len),
            _ => Moment::of(rule_set, fed, recording.prompt_len),
        }
    }

    /// Selects for the cache as it stands; `None` where the rules leave it as it is.
    pub(super) fn select(
        &mut self,
        recording: &Recording,
        hyper: &Hyper,
        precision: Precision,
        fed: usize,
        cache: &Cache,
    ) -> Result<Option<Compaction>, ReplayError> {
        let dtype = if precision == Precision::F64 { DType::F64 } else { DType::F32 };
        let stored = (0..hyper.layers)
            .map(|layer| Ok(key_bytes(&cache.layer(layer)?.k, dtype)))
            .collect::<Result<Vec<_>, ReplayError>>()?;
        let shape = [hyper.kv_heads, cache.rows(), hyper.head_dim];
        let moment = self.moment(recording, fed);
        let input = Input {
            layers: (0..).take(hyper.layers).collect(),
            keys: stored
                .iter()
                .map(|bytes| KeyView::new(dtype, shape, bytes))
                .collect::<Result<_, _>>()?,
            positions: positions(cache),
            heads: Heads { q_heads: hyper.heads, kv_heads: hyper.kv_heads },
            moment,
        };
        let selection = select::<f64>(&self.rules, &self.stats, &input, self.noise.as_mut())?;
        self.last = Some(fed);
        let Some(keep) = selection.keep.filter(|keep| keep.sets[0].len() < cache.rows()) else {
            return Ok(None);
        };
        let keep = keep_sets(&keep, self.rules.mode)?;
        self.ordinal += 1;
        let count = |rows: usize| u32::try_from(rows).unwrap_or(u32::MAX);
        let event = Event {
            ordinal: self.ordinal,
            absolute_position: count(fed),
            rows_before: count(cache.rows()),
            rows_after: count(keep.rows()),
            round_start: Some(count(moment.round_start)),
            before_forward: matches!(self.rules.rule_set, RuleSet::Vllm | RuleSet::Sglang),
        };
        let (protected, candidates) = (selection.protected.len(), selection.candidates.len());
        Ok(Some(Compaction { event, keep, protected, candidates }))
    }
}

fn key_bytes(k: &[f64], dtype: DType) -> Vec<u8> {
    match dtype {
        DType::F64 => k.iter().flat_map(|value| value.to_le_bytes()).collect(),
        _ => k.iter().flat_map(|value| (*value as f32).to_le_bytes()).collect(),
    }
}

fn positions(cache: &Cache) -> Positions {
    let list = |layer: usize, head: usize| -> Vec<i32> {
        let rows = cache.positions(layer, head).iter();
        rows.map(|position| i32::try_from(*position).unwrap_or(i32::MAX)).collect()
    };
    let heads = |layer: usize| (0..cache.heads()).map(|head| list(layer, head)).collect();
    Positions::PerLayer((0..cache.layers()).map(heads).collect())
}

/// The selector's sets in the shape of the cache.
fn keep_sets(keep: &KeepSet, mode: SelectionMode) -> Result<KeepSets, ReplayError> {
    let (layers, heads) = match keep.leading[..] {
        [] => (1, 1),
        [layers] if mode == SelectionMode::PerLayer => (layers, 1),
        [heads] => (1, heads),
        [layers, heads, ..] => (layers, heads),
    };
    let rows = keep.sets.first().map_or(0, Vec::len);
    let indices = keep.sets.concat();
    let indices = indices.into_iter().map(|row| u32::try_from(row).unwrap_or(u32::MAX)).collect();
    Ok(KeepSets::new(layers, heads, rows, indices)?)
}

/// Statistics as the scorer reads them. `hf` takes the model's frequencies, the others those stored with the statistics
/// where there are some (`TRIATTENTION.md` section 1); further rounding is the recipe's.
fn head_stats(
    stats: &QueryStats,
    hyper: &Hyper,
    rule_set: RuleSet,
) -> Result<HeadStats, ReplayError> {
    let stored = stats.inv_freq.clone().filter(|_| rule_set != RuleSet::Hf);
    let omega = stored.unwrap_or_else(|| hyper.rope.inv_freq());
    let scaling = hyper.rope.attention_scaling;
    let own_scale = vec![(scaling * scaling) as f32; omega.len()];
    Ok(HeadStats::new(HeadArrays {
        layers: &stats.layers,
        heads: &stats.heads,
        mean_real: &stats.q_mean_real,
        mean_imag: &stats.q_mean_imag,
        modulus: &stats.q_abs_mean,
        omega: &omega,
        scale: Some(stats.freq_scale_sq.as_deref().unwrap_or(&own_scale)),
        sampled: (!stats.sampled.is_empty()).then_some(&stats.sampled[..]),
    })?)
}
