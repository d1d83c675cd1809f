//! Budget arithmetic, protected rows and the choice itself (`TRIATTENTION.md` 4.3, 5).

use std::cmp::Ordering;
use std::ops::Range;

use lockstep_traces::{RuleSet, SelectionMode};

use super::reduce::Rankings;
use super::{Dims, KeepSet, Rules, SelectInput};

/// What is to be done with the rows, before any score is known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Plan {
    /// The rule set declines: the cache keeps growing.
    Refused,
    /// Decided without scores.
    Settled { keep: KeepSet, protected: usize },
    /// Rows from `first_row` on are scored, `count` of them are taken; rows before it are kept.
    Rank {
        first_row: usize,
        count: usize,
        /// By scored row: kept outright.
        guarded: Vec<bool>,
    },
}

fn span(rows: Range<usize>) -> Vec<u32> {
    // Row counts fit u32: the input check bounds them.
    rows.filter_map(|row| u32::try_from(row).ok()).collect()
}

/// The same rows for every set of the mode.
fn everywhere(mode: SelectionMode, dims: Dims, rows: &[u32]) -> KeepSet {
    let heads = || vec![rows.to_vec(); dims.kv_heads];
    match mode {
        SelectionMode::Union => KeepSet::Shared(rows.to_vec()),
        SelectionMode::PerHead => KeepSet::PerHead(heads()),
        SelectionMode::PerLayer => KeepSet::PerLayer(vec![rows.to_vec(); dims.layers]),
        SelectionMode::PerLayerPerHead | SelectionMode::LegacyLayerLocal => {
            KeepSet::PerLayerPerHead(vec![heads(); dims.layers])
        }
    }
}

/// What can be said of a compaction by its sizes alone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Outline {
    /// As [`Plan::Refused`].
    Refused,
    /// As [`Plan::Settled`].
    Settled { keep: KeepSet, protected: usize },
    /// As [`Plan::Rank`], with the rule for protected rows in place of the rows.
    Rank { first_row: usize, count: usize, protection: Protection },
}

/// Which ranked rows are kept outright.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Protection {
    /// Newest rows.
    pub(crate) window: usize,
    /// Prompt rows.
    pub(crate) prompt: PromptRows,
}

/// How prompt rows are known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PromptRows {
    /// They are not protected.
    Open,
    /// They are the first ones.
    Leading,
    /// Their position in KV head 0 lies below the prompt length.
    ByPosition,
}

/// Sizes of a compaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Sizes {
    /// Live rows.
    pub(crate) rows: usize,
    /// As [`SelectInput::prompt_len`].
    pub(crate) prompt_len: usize,
    /// As [`SelectInput::keep`].
    pub(crate) keep: usize,
}

/// Applies the rule set's arithmetic.
pub(super) fn plan(rules: &Rules, dims: Dims, input: &SelectInput<'_>) -> Plan {
    let rows = input.cache.rows;
    match outline(rules, dims, Sizes { rows, prompt_len: input.prompt_len, keep: input.keep }) {
        Outline::Refused => Plan::Refused,
        Outline::Settled { keep, protected } => Plan::Settled { keep, protected },
        Outline::Rank { first_row, count, protection } => {
            Plan::Rank { first_row, count, guarded: guards(protection, first_row, input) }
        }
    }
}

/// The part of the arithmetic that needs no row.
pub(crate) fn outline(rules: &Rules, dims: Dims, input: Sizes) -> Outline {
    let rows = input.rows;
    match rules.rule_set {
        RuleSet::Hf => outline_hf(rules, input),
        RuleSet::Trt | RuleSet::Vllm | RuleSet::Sglang => {
            let refuses = rules.rule_set == RuleSet::Vllm
                && rules.protect_prefill
                && rules.include_prefill_in_budget
                && input.prompt_len > rules.kv_budget;
            if refuses {
                return Outline::Refused;
            }
            if rows <= input.keep {
                let all = span(0..rows);
                return Outline::Settled { keep: everywhere(rules.mode, dims, &all), protected: 0 };
            }
            Outline::Rank { first_row: 0, count: input.keep, protection: protection(rules, input) }
        }
    }
}

/// `hf`: the prefix always spends budget; a prefix that fills it drops every decode row.
fn outline_hf(rules: &Rules, input: Sizes) -> Outline {
    let (rows, budget) = (input.rows, input.keep);
    let prefix = if rules.protect_prefill { input.prompt_len.min(rows) } else { 0 };
    let settled = |kept: usize| Outline::Settled {
        keep: KeepSet::Shared(span(0..kept)),
        protected: prefix.min(kept),
    };
    if rows <= budget {
        settled(rows)
    } else if prefix == rows || budget <= prefix {
        settled(budget.min(prefix))
    } else {
        let scored = rows - prefix;
        Outline::Rank {
            first_row: prefix,
            count: (budget - prefix).min(scored),
            protection: Protection { window: 0, prompt: PromptRows::Open },
        }
    }
}

/// Rows kept outright: the newest of the window and the prompt. `trt` knows prompt rows by the positions of KV head 0, the others
/// by row.
fn protection(rules: &Rules, input: Sizes) -> Protection {
    let native = rules.rule_set == RuleSet::Trt;
    let mut window = rules.recent_window.min(input.rows);
    if native {
        window = window.min(input.keep);
    }
    let prompt = match rules.protect_prefill || (native && !rules.count_prompt_tokens) {
        false => PromptRows::Open,
        true if native => PromptRows::ByPosition,
        true => PromptRows::Leading,
    };
    Protection { window, prompt }
}

/// The rows from `first_row` on that `protection` names.
fn guards(protection: Protection, first_row: usize, input: &SelectInput<'_>) -> Vec<bool> {
    let rows = input.cache.rows;
    let in_prompt = |row: usize| match protection.prompt {
        PromptRows::Open => false,
        PromptRows::Leading => row < input.prompt_len,
        PromptRows::ByPosition => input.cache.positions.first().is_some_and(|positions| {
            positions.get(row).is_some_and(|&at| (at as usize) < input.prompt_len)
        }),
    };
    (first_row..rows).map(|row| row >= rows - protection.window || in_prompt(row)).collect()
}

/// The `count` best columns, best first. Ties: the lower column, or the higher one under a planted fault. No value is NaN.
fn best(scores: &[f32], count: usize, higher_wins: bool) -> Vec<u32> {
    let mut columns = span(0..scores.len());
    let order = |a: &u32, b: &u32| {
        let by_score =
            scores[*b as usize].partial_cmp(&scores[*a as usize]).unwrap_or(Ordering::Equal);
        by_score.then_with(|| if higher_wins { b.cmp(a) } else { a.cmp(b) })
    };
    if count == 0 {
        return Vec::new();
    }
    if count < columns.len() {
        columns.select_nth_unstable_by(count - 1, order);
        columns.truncate(count);
    }
    columns.sort_unstable_by(order);
    columns
}

/// Turns rankings into keep-sets: `hf`'s per-head modes list the prefix and then the rows by falling score, everything else ascends.
pub(super) fn keep(
    rules: &Rules,
    rankings: &Rankings,
    first_row: usize,
    count: usize,
    higher_wins: bool,
) -> KeepSet {
    let by_score = rules.rule_set == RuleSet::Hf && rules.mode != SelectionMode::Union;
    let one = |scores: &Vec<f32>| {
        let mut chosen = best(scores, count, higher_wins);
        if !by_score {
            chosen.sort_unstable();
        }
        let mut rows = span(0..first_row);
        let shift = rows.len();
        rows.extend(
            chosen.iter().filter_map(|&column| u32::try_from(column as usize + shift).ok()),
        );
        rows
    };
    match rankings {
        Rankings::Shared(scores) => KeepSet::Shared(one(scores)),
        Rankings::PerHead(heads) => KeepSet::PerHead(heads.iter().map(one).collect()),
        Rankings::PerLayer(layers) => KeepSet::PerLayer(layers.iter().map(one).collect()),
        Rankings::PerLayerPerHead(layers) => KeepSet::PerLayerPerHead(
            layers.iter().map(|heads| heads.iter().map(one).collect()).collect(),
        ),
    }
}

#[cfg(test)]
mod tests {
    use lockstep_traces::PolicySpec;

    use super::*;
    use crate::select::CacheView;

    const DIMS: Dims = Dims { layers: 2, kv_heads: 2, q_heads: 2, head_dim: 2 };

    fn planned(spec: PolicySpec, positions: &[u32], prompt_len: usize) -> Plan {
        let rules = Rules::resolve(&spec).unwrap();
        let cache =
            CacheView { rows: positions.len(), keys: Vec::new(), positions: vec![positions; 2] };
        let keep = rules.kv_budget;
        plan(&rules, DIMS, &SelectInput { cache: &cache, round_start: 0, prompt_len, keep })
    }

    fn spec(rule_set: RuleSet, kv_budget: usize) -> PolicySpec {
        PolicySpec { rule_set: Some(rule_set), kv_budget: Some(kv_budget), ..PolicySpec::default() }
    }

    fn guarded(plan: Plan) -> Vec<usize> {
        let Plan::Rank { guarded, .. } = plan else { panic!("{plan:?}") };
        guarded.iter().enumerate().filter(|&(_, &guarded)| guarded).map(|(row, _)| row).collect()
    }

    #[test]
    fn equal_scores_fall_to_the_lower_row_and_under_the_fault_to_the_higher() {
        let scores = [1.0, 3.0, 1.0, 2.0, 1.0];
        assert_eq!(best(&scores, 3, false), [1, 3, 0]);
        assert_eq!(best(&scores, 3, true), [1, 3, 4]);
        assert_eq!(best(&[0.0, -0.0], 1, false), [0], "zeros of either sign are equal");
        assert_eq!(best(&[-0.0, 0.0], 1, false), [0]);
        assert!(best(&scores, 0, false).is_empty());
        assert_eq!(best(&scores, 9, false).len(), 5);
    }

    #[test]
    fn trt_knows_prompt_rows_by_position_and_the_others_by_row() {
        let positions = [0, 2, 7, 8, 9, 10];
        let trt = PolicySpec { recent_window: Some(1), ..spec(RuleSet::Trt, 5) };
        assert_eq!(guarded(planned(trt.clone(), &positions, 4)), [0, 1, 5]);
        let open = PolicySpec { protect_prefill: Some(false), ..trt.clone() };
        assert_eq!(guarded(planned(open.clone(), &positions, 4)), [5]);
        let uncounted = PolicySpec { count_prompt_tokens: Some(false), ..open };
        assert_eq!(guarded(planned(uncounted, &positions, 4)), [0, 1, 5]);
        let vllm = PolicySpec {
            recent_window: Some(1),
            protect_prefill: Some(true),
            ..spec(RuleSet::Vllm, 5)
        };
        assert_eq!(guarded(planned(vllm, &positions, 4)), [0, 1, 2, 3, 5]);
    }

    #[test]
    fn the_window_of_trt_is_no_wider_than_what_is_kept() {
        let positions = [0, 1, 2, 3, 4];
        let spec = PolicySpec { recent_window: Some(9), ..spec(RuleSet::Trt, 2) };
        assert_eq!(guarded(planned(spec, &positions, 0)), [3, 4]);
    }

    #[test]
    fn protected_rows_that_fill_the_budget_leave_the_first_of_them() {
        let rules = Rules::resolve(&spec(RuleSet::Trt, 3)).unwrap();
        let all = f32::INFINITY;
        let rankings = Rankings::PerHead(vec![vec![all, all, 5.0, all, all]; 2]);
        let kept = keep(&rules, &rankings, 0, 3, false);
        assert_eq!(kept, KeepSet::PerHead(vec![vec![0, 1, 3]; 2]));
    }

    #[test]
    fn hf_lists_the_prefix_and_then_rows_by_falling_score_but_union_ascends() {
        let mode = |mode| {
            let spec = PolicySpec { mode: Some(mode), ..spec(RuleSet::Hf, 4) };
            Rules::resolve(&spec).unwrap()
        };
        let scores = vec![0.5, 3.0, 1.0, 2.0];
        let per_head = Rankings::PerHead(vec![scores.clone()]);
        let kept = keep(&mode(SelectionMode::PerHead), &per_head, 2, 2, false);
        assert_eq!(kept, KeepSet::PerHead(vec![vec![0, 1, 3, 5]]));
        let kept = keep(&mode(SelectionMode::PerHead), &per_head, 1, 3, false);
        assert_eq!(kept, KeepSet::PerHead(vec![vec![0, 2, 4, 3]]));
        let kept = keep(&mode(SelectionMode::Union), &Rankings::Shared(scores), 1, 3, false);
        assert_eq!(kept, KeepSet::Shared(vec![0, 2, 3, 4]));
    }

    #[test]
    fn hf_keeps_the_first_rows_where_the_prefix_fills_the_budget() {
        let positions: Vec<u32> = (0..8).collect();
        let kept = |budget, prompt| {
            let Plan::Settled { keep, protected } =
                planned(spec(RuleSet::Hf, budget), &positions, prompt)
            else {
                panic!("{budget} {prompt}")
            };
            (keep.len(), protected)
        };
        assert_eq!(kept(8, 3), (8, 3), "under budget");
        assert_eq!(kept(4, 6), (4, 4), "every decode row is dropped");
        assert_eq!(kept(4, 9), (4, 4), "no decode row");
        let plan = planned(spec(RuleSet::Hf, 5), &positions, 3);
        let guarded = vec![false; 5];
        assert_eq!(plan, Plan::Rank { first_row: 3, count: 2, guarded });
    }

    #[test]
    fn vllm_declines_where_the_protected_prompt_exceeds_the_budget() {
        let positions: Vec<u32> = (0..8).collect();
        let protect = PolicySpec { protect_prefill: Some(true), ..spec(RuleSet::Vllm, 4) };
        assert_eq!(planned(protect.clone(), &positions, 5), Plan::Refused);
        assert!(matches!(planned(protect.clone(), &positions, 4), Plan::Rank { .. }));
        let outside = PolicySpec { include_prefill_in_budget: Some(false), ..protect };
        assert!(matches!(planned(outside, &positions, 5), Plan::Rank { .. }));
    }

    #[test]
    fn nothing_is_ranked_under_budget_and_the_answer_has_the_shape_of_the_mode() {
        let positions = [0, 1];
        for (mode, shape) in [
            (SelectionMode::PerHead, vec![2, 2]),
            (SelectionMode::PerLayerPerHead, vec![2, 2, 2]),
            (SelectionMode::PerLayer, vec![2, 2]),
        ] {
            let spec = PolicySpec { mode: Some(mode), ..spec(RuleSet::Vllm, 2) };
            let Plan::Settled { keep, .. } = planned(spec, &positions, 0) else { panic!() };
            assert_eq!(keep.shape(), shape);
            assert_eq!(keep.rows(1, 1), [0, 1]);
        }
    }
}
