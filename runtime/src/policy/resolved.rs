//! A cache policy in force.

use lockstep_traces::stats::QueryStats;
use lockstep_traces::{Cause, DType, PolicyKind, PolicySpec, RuleSet};

use super::control::{self, Control};
use super::lifecycle::{self, Due, Native};
use super::{Compaction, PolicyState};
use crate::RotaryTable;
use crate::select::{
    CacheView, Dims, Effective, Rules, SelectError, SelectInput, Selection, Selector,
};

/// What a policy is bound to.
#[derive(Debug, Clone, Copy)]
pub struct Setup<'a> {
    /// The model's attention.
    pub dims: Dims,
    /// Its rotary embedding.
    pub rotary: &'a RotaryTable,
    /// Statistics; needed by `triattention`.
    pub stats: Option<&'a QueryStats>,
    /// Element type of the cache, for capacities in bytes.
    pub cache_dtype: DType,
    /// Fault to plant; causes that are not the selector's are ignored here.
    pub plant: Option<Cause>,
}

/// A cache policy in force for a run.
#[derive(Debug, Clone)]
pub struct Policy {
    dims: Dims,
    max_rows: Option<usize>,
    action: Action,
    effective: Vec<Effective>,
}

#[derive(Debug, Clone)]
enum Action {
    Dense,
    Control(Control),
    Triattention { selector: Box<Selector>, native: Option<Native> },
}

impl Policy {
    /// Completes and checks a specification. `dense`, `recent` and `random` ignore settings that they do not have, so that the kind
    /// alone can be exchanged.
    ///
    /// # Errors
    /// [`SelectError`]: a contradiction (with the field), missing or unfit statistics, a fault that cannot show.
    pub fn resolve(spec: &PolicySpec, setup: &Setup<'_>) -> Result<Self, SelectError> {
        setup.dims.check()?;
        let kind = spec.kind.unwrap_or(PolicyKind::Dense);
        let mut effective = Vec::new();
        let source = if spec.kind.is_some() { "flag" } else { "default" };
        effective.push(Effective { key: "policy.kind", value: kind_name(kind).into(), source });
        let max_rows = capacity(spec, setup, &mut effective)?;
        refuse_plant(kind, setup.plant)?;
        let action = match kind {
            PolicyKind::Dense => Action::Dense,
            PolicyKind::Recent | PolicyKind::Random => {
                let random = kind == PolicyKind::Random;
                Action::Control(Control::resolve(spec, random, max_rows, &mut effective)?)
            }
            PolicyKind::Triattention => triattention(spec, setup, max_rows, &mut effective)?,
        };
        Ok(Self { dims: setup.dims, max_rows, action, effective })
    }

    /// Settings in force with their sources: the `policy.*` keys of the manifest.
    #[must_use]
    pub fn effective(&self) -> &[Effective] {
        &self.effective
    }

    /// Kind in force.
    #[must_use]
    pub fn kind(&self) -> PolicyKind {
        match &self.action {
            Action::Dense => PolicyKind::Dense,
            Action::Control(control) => match control.ranking {
                control::Ranking::Recent => PolicyKind::Recent,
                control::Ranking::Random { .. } => PolicyKind::Random,
            },
            Action::Triattention { .. } => PolicyKind::Triattention,
        }
    }

    /// Rules of `triattention`.
    #[must_use]
    pub fn rules(&self) -> Option<&Rules> {
        match &self.action {
            Action::Triattention { selector, .. } => Some(selector.rules()),
            Action::Dense | Action::Control(_) => None,
        }
    }

    /// The selector of `triattention`.
    pub(crate) fn selector(&self) -> Option<&Selector> {
        match &self.action {
            Action::Triattention { selector, .. } => Some(selector),
            Action::Dense | Action::Control(_) => None,
        }
    }

    /// Must prompt rows that survive a compaction be counted? They enter trigger and budget where prompt rows are extra.
    pub(crate) fn counts_prompt_rows(&self) -> bool {
        self.native().is_some_and(|native| !native.count_prompt_tokens)
    }

    /// Counts a compaction that was decided elsewhere: `kept` rows stay, `prompt_rows` of KV head 0 among them.
    pub(crate) fn settle(
        &self,
        state: &mut PolicyState,
        due: &Compaction,
        (kept, prompt_rows): (usize, usize),
    ) {
        state.settle(due, kept, prompt_rows);
    }

    /// Physical capacity in rows, where limited.
    #[must_use]
    pub const fn max_rows(&self) -> Option<usize> {
        self.max_rows
    }

    /// Rows that a sequence is expected to hold at most: the prompt, or what it grows to before a compaction. More is possible (a rule set
    /// that declines); `usize::MAX` where nothing is ever dropped.
    #[must_use]
    pub fn expected_rows(&self, prompt_len: usize) -> usize {
        let grown = match &self.action {
            Action::Dense => return usize::MAX,
            Action::Control(control) => {
                control.native.kv_budget.saturating_add(control.native.divide_length)
            }
            Action::Triattention { selector, .. } => {
                let rules = selector.rules();
                let outside = if rules.count_prompt_tokens && rules.include_prefill_in_budget {
                    0
                } else {
                    prompt_len
                };
                rules.kv_budget.saturating_add(rules.divide_length).saturating_add(outside)
            }
        };
        grown.max(prompt_len).saturating_add(2)
    }

    /// A sequence of `prompt_len` prompt tokens on an empty cache. The id separates the draws of `random`.
    #[must_use]
    pub fn start(&self, prompt_len: usize, sample_id: &str) -> PolicyState {
        let noise = match &self.action {
            Action::Triattention { selector, .. } => selector.noise(),
            Action::Dense | Action::Control(_) => None,
        };
        PolicyState {
            prompt_len,
            fed: 0,
            rows: 0,
            prompt_rows: 0,
            ordinal: 0,
            compacted_at: None,
            stream: control::stream(sample_id),
            noise,
        }
    }

    /// Most prompt tokens that may be appended in one forward before [`Policy::due_after_append`] has to be asked; 0 where the cache is
    /// full or the prompt is fed.
    #[must_use]
    pub fn prompt_chunk(&self, state: &PolicyState) -> usize {
        match self.native() {
            Some(native) => native.prompt_chunk(state),
            None => state.prompt_left().min(self.room(state)),
        }
    }

    /// Is there room for one more row? Ask after [`Policy::due_before_forward`].
    #[must_use]
    pub fn has_room(&self, state: &PolicyState) -> bool {
        self.room(state) > 0
    }

    fn room(&self, state: &PolicyState) -> usize {
        self.max_rows.map_or(usize::MAX, |limit| limit.saturating_sub(state.rows))
    }

    /// Tells the policy that `count` rows were appended.
    pub fn appended(&self, state: &mut PolicyState, count: usize) {
        let prompt = count.min(state.prompt_left());
        state.prompt_rows += prompt;
        state.fed += count;
        state.rows += count;
    }

    /// Compaction due before the next forward.
    ///
    /// # Errors
    /// [`SelectError::Input`] where a position does not fit 32 bits.
    pub fn due_before_forward(
        &self,
        state: &PolicyState,
    ) -> Result<Option<Compaction>, SelectError> {
        let due = match &self.action {
            Action::Dense => None,
            Action::Control(control) => control.native.before_append(state),
            Action::Triattention { native: Some(native), .. } => native.before_append(state),
            Action::Triattention { selector, native: None } => match selector.rules().rule_set {
                RuleSet::Vllm => lifecycle::vllm_before_forward(selector.rules(), state),
                RuleSet::Sglang => lifecycle::sglang_before_forward(selector.rules(), state),
                RuleSet::Hf | RuleSet::Trt => None,
            },
        };
        due.map(|due| compaction(state, due)).transpose()
    }

    /// Compaction due after the rows of the last forward were appended and counted.
    ///
    /// # Errors
    /// As [`Policy::due_before_forward`].
    pub fn due_after_append(&self, state: &PolicyState) -> Result<Option<Compaction>, SelectError> {
        let due = match &self.action {
            Action::Dense => None,
            Action::Control(control) => control.native.after_append(state),
            Action::Triattention { native: Some(native), .. } => native.after_append(state),
            Action::Triattention { selector, native: None } => match selector.rules().rule_set {
                RuleSet::Hf => lifecycle::hf_after_append(selector.rules(), state),
                RuleSet::Vllm | RuleSet::Sglang | RuleSet::Trt => None,
            },
        };
        due.map(|due| compaction(state, due)).transpose()
    }

    /// Chooses the rows of a due compaction and counts them as gone: the caller gathers by the answer.
    ///
    /// # Errors
    /// [`SelectError`] where the view does not fit the state or a score is no number; the state is unchanged then, but for the
    /// generator of `hf`'s noise.
    pub fn choose(
        &self,
        state: &mut PolicyState,
        due: &Compaction,
        cache: &CacheView<'_>,
        want_stages: bool,
    ) -> Result<Selection, SelectError> {
        if cache.rows != state.rows {
            return Err(SelectError::Input(format!(
                "the view has {} rows, the policy counted {}",
                cache.rows, state.rows
            )));
        }
        let selection = match &self.action {
            Action::Dense => Selection::whole(cache.rows),
            Action::Control(control) => control.choose(self.dims, state, due, cache)?,
            Action::Triattention { selector, .. } => {
                let input = SelectInput {
                    cache,
                    round_start: due.round_start,
                    prompt_len: state.prompt_len,
                    keep: due.keep,
                };
                let chosen = selector.select(&input, state.noise.as_mut(), want_stages)?;
                chosen.unwrap_or_else(|| Selection::whole(cache.rows))
            }
        };
        let positions = cache.positions.first().copied().unwrap_or_default();
        let in_prompt = |row: &&u32| {
            positions.get(**row as usize).is_some_and(|&at| (at as usize) < state.prompt_len)
        };
        let prompt_rows = selection.keep.rows(0, 0).iter().filter(in_prompt).count();
        state.settle(due, selection.keep.len(), prompt_rows);
        Ok(selection)
    }

    fn native(&self) -> Option<&Native> {
        match &self.action {
            Action::Control(control) => Some(&control.native),
            Action::Triattention { native, .. } => native.as_ref(),
            Action::Dense => None,
        }
    }
}

fn compaction(state: &PolicyState, due: Due) -> Result<Compaction, SelectError> {
    let narrow = |position: usize| {
        u32::try_from(position)
            .map_err(|_| SelectError::Input(format!("position {position} does not fit 32 bits")))
    };
    Ok(Compaction {
        ordinal: state.ordinal + 1,
        absolute_position: narrow(state.fed)?,
        round_start: narrow(due.round_start)?,
        rows: state.rows,
        keep: due.keep,
    })
}

fn capacity(
    spec: &PolicySpec,
    setup: &Setup<'_>,
    effective: &mut Vec<Effective>,
) -> Result<Option<usize>, SelectError> {
    let rows = match (spec.max_rows, spec.kv_cache_bytes) {
        (Some(_), Some(_)) => {
            return Err(SelectError::setting(
                "kv_cache_bytes",
                "and max_rows both limit the cache; give one of them",
            ));
        }
        (Some(rows), None) => rows,
        (None, Some(bytes)) => {
            let row = setup.dims.row_bytes(setup.cache_dtype);
            let rows = usize::try_from(bytes / row).unwrap_or(usize::MAX);
            if rows == 0 {
                return Err(SelectError::setting(
                    "kv_cache_bytes",
                    format!("{bytes} bytes hold no row; one row takes {row} bytes"),
                ));
            }
            let value = bytes.into();
            effective.push(Effective { key: "policy.kv_cache_bytes", value, source: "flag" });
            rows
        }
        (None, None) => return Ok(None),
    };
    if rows == 0 {
        return Err(SelectError::setting("max_rows", "must be at least 1"));
    }
    let source = if spec.max_rows.is_some() { "flag" } else { "policy.kv_cache_bytes" };
    effective.push(Effective { key: "policy.max_rows", value: rows.into(), source });
    Ok(Some(rows))
}

fn triattention(
    spec: &PolicySpec,
    setup: &Setup<'_>,
    max_rows: Option<usize>,
    effective: &mut Vec<Effective>,
) -> Result<Action, SelectError> {
    let rules = Rules::resolve(spec)?;
    effective.extend_from_slice(rules.effective());
    let native = lifecycle::compacts_in_prompt(rules.rule_set).then_some(Native {
        kv_budget: rules.kv_budget,
        divide_length: rules.divide_length,
        count_prompt_tokens: rules.count_prompt_tokens,
        max_rows,
    });
    if native.is_none()
        && let Some(limit) = max_rows
        && rules.kv_budget + rules.divide_length > limit
    {
        return Err(SelectError::setting(
            "max_rows",
            format!(
                "{limit} rows fill up before this rule set compacts at {} rows; raise the capacity or lower kv_budget",
                rules.kv_budget + rules.divide_length
            ),
        ));
    }
    let Some(stats) = setup.stats else {
        return Err(SelectError::Stats(
            "triattention needs a statistics file; give one (`--stats`) or make one with `calibrate`"
                .to_owned(),
        ));
    };
    let selector = Selector::new(rules, stats, setup.rotary, setup.dims, setup.plant)?;
    let from = selector.frequencies_from();
    effective.push(Effective { key: "policy.inv_freq", value: from.into(), source: from });
    Ok(Action::Triattention { selector: Box::new(selector), native })
}

/// Selector faults need a selector.
fn refuse_plant(kind: PolicyKind, plant: Option<Cause>) -> Result<(), SelectError> {
    match plant {
        Some(
            cause @ (Cause::RoundStartRows
            | Cause::ZscoreRows
            | Cause::ZscorePopulation
            | Cause::LayerMax
            | Cause::TieOrder
            | Cause::WindowRowLost),
        ) if kind != PolicyKind::Triattention => Err(SelectError::Plant {
            slug: cause.slug(),
            why: "only policy triattention scores rows".to_owned(),
        }),
        _ => Ok(()),
    }
}

const fn kind_name(kind: PolicyKind) -> &'static str {
    match kind {
        PolicyKind::Dense => "dense",
        PolicyKind::Recent => "recent",
        PolicyKind::Random => "random",
        PolicyKind::Triattention => "triattention",
    }
}
