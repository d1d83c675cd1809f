//! When a compaction is due: one state machine for each rule set (`TRIATTENTION.md` 7), pure arithmetic on counts.
//!
//! Two readings are settled here. `trt`: the whole prompt, its last row included, is being filled; a prompt at or past budget + divide
//! compacts at its first decode row. `sglang`: R counts the newest sampled token, whose row is not yet written, as upstream's length
//! does (R = N + 1), while only written rows are scored and moved.

use lockstep_traces::{RuleSet, Trigger};

use super::PolicyState;
use crate::select::Rules;

/// When, at which R and down to how many rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Due {
    pub(super) round_start: usize,
    pub(super) keep: usize,
}

/// Per-token lifecycle with a physical limit: `trt` and the naive controls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Native {
    pub(super) kv_budget: usize,
    pub(super) divide_length: usize,
    pub(super) count_prompt_tokens: bool,
    pub(super) max_rows: Option<usize>,
}

impl Native {
    /// Rows that the prompt adds to budget and trigger.
    fn extra(&self, state: &PolicyState) -> usize {
        if self.count_prompt_tokens { 0 } else { state.prompt_rows }
    }

    fn limit(&self) -> usize {
        self.max_rows.unwrap_or(usize::MAX)
    }

    fn trigger(&self, state: &PolicyState) -> usize {
        let slack = self.kv_budget.saturating_add(self.divide_length.max(1));
        slack.saturating_add(self.extra(state)).min(self.limit())
    }

    /// Rows to keep; while a counted prompt fills, as many as let the rest of it fit.
    fn keep(&self, state: &PolicyState, limit: usize) -> usize {
        let mut keep = self.kv_budget.saturating_add(self.extra(state));
        if self.count_prompt_tokens && state.prompt_left() > 0 && self.max_rows.is_some() {
            keep = keep.max(self.limit().saturating_sub(state.prompt_left()));
        }
        keep.min(limit)
    }

    fn due(state: &PolicyState, keep: usize) -> Option<Due> {
        (keep < state.rows && keep > 0).then_some(Due { round_start: state.fed, keep })
    }

    /// A full cache makes room for one row first.
    pub(super) fn before_append(&self, state: &PolicyState) -> Option<Due> {
        if state.rows < self.limit() {
            return None;
        }
        Self::due(state, self.keep(state, self.limit().saturating_sub(1)))
    }

    pub(super) fn after_append(&self, state: &PolicyState) -> Option<Due> {
        let prompt_just_ended = state.fed == state.prompt_len;
        if prompt_just_ended || state.rows < self.trigger(state) {
            return None;
        }
        if state.prompt_left() > 0 && state.rows.saturating_add(state.prompt_left()) <= self.limit()
        {
            return None;
        }
        Self::due(state, self.keep(state, self.limit()))
    }

    /// Prompt rows that can be appended before the policy has to be asked again.
    pub(super) fn prompt_chunk(&self, state: &PolicyState) -> usize {
        let left = state.prompt_left();
        let room = self.limit().saturating_sub(state.rows);
        if left <= room {
            return left;
        }
        let until_trigger = self.trigger(state).saturating_sub(state.rows).max(1);
        until_trigger.min(room).min(left)
    }
}

/// `hf`: after a decode forward.
pub(super) fn hf_after_append(rules: &Rules, state: &PolicyState) -> Option<Due> {
    if state.fed <= state.prompt_len {
        return None;
    }
    let counted = if rules.count_prompt_tokens {
        state.rows
    } else {
        state.rows.saturating_sub(state.prompt_len)
    };
    let due = match rules.trigger {
        Trigger::Slack => counted >= rules.kv_budget + rules.divide_length,
        Trigger::Interval => {
            counted >= rules.kv_budget && state.fed.is_multiple_of(rules.divide_length)
        }
    };
    // With no more rows than the budget upstream keeps them all, so that nothing happens.
    (due && state.rows > rules.kv_budget)
        .then_some(Due { round_start: state.fed, keep: rules.kv_budget })
}

/// `vllm`: before a decode forward; R is the number of tokens computed so far.
pub(super) fn vllm_before_forward(rules: &Rules, state: &PolicyState) -> Option<Due> {
    if state.prompt_left() > 0 {
        return None;
    }
    let outside = rules.protect_prefill && !rules.include_prefill_in_budget;
    if rules.protect_prefill && !outside && state.prompt_len > rules.kv_budget {
        // prefill_exceeds_budget: the selector declines and the cache grows.
        return None;
    }
    let budget_total = rules.kv_budget.saturating_add(if outside { state.prompt_len } else { 0 });
    let estimate = state.rows + 1;
    let compacted_a_step_ago = state.compacted_at.is_some_and(|at| state.fed <= at + 1);
    (estimate >= budget_total.saturating_add(rules.divide_length)
        && state.rows > budget_total
        && !compacted_a_step_ago)
        .then_some(Due { round_start: state.fed, keep: budget_total })
}

/// `sglang`: before a decode forward but the first; counts decode tokens only, yet keeps B rows in all.
pub(super) fn sglang_before_forward(rules: &Rules, state: &PolicyState) -> Option<Due> {
    let length = state.fed + 1;
    let first_decode = state.fed <= state.prompt_len;
    if state.prompt_left() > 0 || first_decode {
        return None;
    }
    let cooling = state.compacted_at.is_some_and(|at| {
        length < (at + 1).saturating_add(rules.divide_length) || state.fed <= at + 1
    });
    let effective = state.rows + 1;
    let decoded = (effective + 1).saturating_sub(state.prompt_len);
    (!cooling && decoded >= rules.kv_budget + rules.divide_length && state.rows > rules.kv_budget)
        .then_some(Due { round_start: length, keep: rules.kv_budget })
}

/// May the rule set's prompt be fed in one piece? All but `trt` never look at the cache while a prompt fills.
pub(super) const fn compacts_in_prompt(rule_set: RuleSet) -> bool {
    matches!(rule_set, RuleSet::Trt)
}
