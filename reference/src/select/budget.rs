//! How many rows stay and which are not ranked (`TRIATTENTION.md` 4.3, 5.4).

use lockstep_traces::RuleSet;

use super::Rules;
use super::input::{Input, Moment};

/// What is to be done with the rows of a cache.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Plan {
    /// All rows stay.
    Identity,
    /// These rows stay, without ranking.
    Fixed {
        /// Rows, ascending.
        rows: Vec<usize>,
        /// Why nothing is ranked.
        why: &'static str,
    },
    /// The rule set refuses to compact.
    Refused {
        /// Why.
        why: &'static str,
    },
    /// Rows are ranked.
    Ranked(Ranking),
}

/// A ranking to be made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ranking {
    /// Rows that stay in all, prefix included.
    pub keep: usize,
    /// Leading rows kept outright and not scored (`hf`).
    pub first: usize,
    /// Rows whose final score is +inf, by row.
    pub guarded: Vec<bool>,
}

impl Ranking {
    /// Rows kept outright: prefix and guards, ascending.
    #[must_use]
    pub fn protected(&self) -> Vec<usize> {
        let held = |(row, guarded): (usize, &bool)| (row < self.first || *guarded).then_some(row);
        self.guarded.iter().enumerate().filter_map(held).collect()
    }

    /// Rows that are ranked, ascending.
    #[must_use]
    pub fn candidates(&self) -> Vec<usize> {
        let free = |(row, guarded): (usize, &bool)| (row >= self.first && !guarded).then_some(row);
        self.guarded.iter().enumerate().filter_map(free).collect()
    }
}

/// The plan of a rule set for a cache.
#[must_use]
pub fn plan(rules: &Rules, input: &Input<'_>) -> Plan {
    plan_rows(rules, input.rows(), input.moment, input.positions.of(0, 0))
}

/// As [`plan`], for a cache of which only the positions of KV head 0 are known; only `trt` reads them.
#[must_use]
pub fn plan_rows(rules: &Rules, rows: usize, moment: Moment, positions: &[i32]) -> Plan {
    match rules.rule_set {
        RuleSet::Trt => trt(rules, rows, moment, positions),
        RuleSet::Hf => hf(rules, rows, moment),
        RuleSet::Vllm => vllm(rules, rows, moment),
        RuleSet::Sglang => sglang(rules, rows, moment),
    }
}

fn trt(rules: &Rules, rows: usize, moment: Moment, positions: &[i32]) -> Plan {
    let in_prompt =
        |position: &i32| usize::try_from(*position).is_ok_and(|p| p < moment.prompt_len);
    let prefix: Vec<bool> = positions.iter().map(in_prompt).collect();
    let keep = trt_keep(rules, rows, moment, prefix.iter().filter(|row| **row).count());
    if rows <= keep {
        return Plan::Identity;
    }
    let window = rules.recent_window.min(rows).min(keep);
    let holds_prompt = rules.protect_prefill || !rules.count_prompt_tokens;
    let guard = |(row, prefix): (usize, &bool)| row >= rows - window || (holds_prompt && *prefix);
    let guarded = prefix.iter().enumerate().map(guard).collect();
    Plan::Ranked(Ranking { keep, first: 0, guarded })
}

/// Rows that stay under `trt`: budget, capacity, and what a prompt that is being filled needs.
fn trt_keep(rules: &Rules, rows: usize, moment: Moment, prefix: usize) -> usize {
    let extra = if rules.count_prompt_tokens { 0 } else { prefix };
    let mut keep = rules.kv_budget.saturating_add(extra);
    if let Some(capacity) = rules.max_rows {
        keep = keep.min(capacity);
        if rules.count_prompt_tokens && moment.prompt_len > moment.absolute_position {
            let missing = moment.prompt_len - moment.absolute_position;
            keep = keep.max(capacity.saturating_sub(missing));
        }
        if moment.before_append {
            keep = keep.min(capacity.saturating_sub(1));
        }
    }
    keep.min(rows)
}

fn hf(rules: &Rules, rows: usize, moment: Moment) -> Plan {
    let budget = rules.kv_budget;
    if rows <= budget {
        return Plan::Identity;
    }
    let prefix = if rules.protect_prefill { moment.prompt_len.min(rows) } else { 0 };
    if prefix == rows {
        let why = "no decode row to rank";
        return Plan::Fixed { rows: (0..budget).collect(), why };
    }
    if budget <= prefix {
        let why = "the prompt alone fills the budget: every decode row is dropped";
        return Plan::Fixed { rows: (0..budget.min(prefix)).collect(), why };
    }
    Plan::Ranked(Ranking { keep: budget, first: prefix, guarded: vec![false; rows] })
}

fn vllm(rules: &Rules, rows: usize, moment: Moment) -> Plan {
    let guards_prompt = rules.protect_prefill;
    let total = vllm_budget(rules, moment.prompt_len);
    if guards_prompt && rules.include_prefill_in_budget && moment.prompt_len > rules.kv_budget {
        return Plan::Refused {
            why: "the protected prompt exceeds the budget: the cache keeps growing",
        };
    }
    if rows <= total {
        return Plan::Identity;
    }
    let window = rules.recent_window.min(rows);
    let prefix = if guards_prompt { moment.prompt_len } else { 0 };
    let guarded = (0..rows).map(|row| row < prefix || row >= rows - window).collect();
    Plan::Ranked(Ranking { keep: total, first: 0, guarded })
}

/// Budget of `vllm`, the prompt added where it is protected outside the budget.
pub(crate) fn vllm_budget(rules: &Rules, prompt_len: usize) -> usize {
    if rules.protect_prefill && !rules.include_prefill_in_budget {
        return rules.kv_budget.saturating_add(prompt_len);
    }
    rules.kv_budget
}

fn sglang(rules: &Rules, rows: usize, moment: Moment) -> Plan {
    if rows <= rules.kv_budget {
        return Plan::Identity;
    }
    let prefix = if rules.protect_prefill { moment.prompt_len } else { 0 };
    let guarded = (0..rows).map(|row| row < prefix).collect();
    Plan::Ranked(Ranking { keep: rules.kv_budget, first: 0, guarded })
}

#[cfg(test)]
mod tests {
    use lockstep_traces::PolicySpec;

    use super::*;

    fn rules(rule_set: RuleSet, budget: usize, window: usize) -> Rules {
        Rules::resolve(&PolicySpec {
            rule_set: Some(rule_set),
            kv_budget: Some(budget),
            recent_window: Some(window),
            ..PolicySpec::default()
        })
        .unwrap()
    }

    fn ranked(plan: Plan) -> Ranking {
        match plan {
            Plan::Ranked(ranking) => ranking,
            other => panic!("not ranked: {other:?}"),
        }
    }

    #[test]
    fn trt_reserves_the_window_and_the_prompt_by_position() {
        let rules = rules(RuleSet::Trt, 4, 2);
        let plan = ranked(trt(&rules, 6, Moment::at(9, 2), &[0, 4, 5, 6, 7, 8]));
        assert_eq!(plan.keep, 4);
        assert_eq!(plan.protected(), vec![0, 4, 5]);
        assert_eq!(plan.candidates(), vec![1, 2, 3]);
    }

    #[test]
    fn trt_window_is_capped_by_the_rows_kept() {
        let plan = ranked(trt(&rules(RuleSet::Trt, 2, 5), 4, Moment::at(4, 0), &[0, 1, 2, 3]));
        assert_eq!(plan.protected(), vec![2, 3]);
    }

    #[test]
    fn trt_adds_prompt_rows_to_the_budget_when_they_do_not_count() {
        let mut rules = rules(RuleSet::Trt, 3, 0);
        rules.count_prompt_tokens = false;
        rules.protect_prefill = false;
        let plan = ranked(trt(&rules, 7, Moment::at(7, 2), &[0, 1, 2, 3, 4, 5, 6]));
        assert_eq!((plan.keep, plan.protected()), (5, vec![0, 1]));
        rules.max_rows = Some(4);
        assert_eq!(ranked(trt(&rules, 7, Moment::at(7, 2), &[0, 1, 2, 3, 4, 5, 6])).keep, 4);
    }

    #[test]
    fn trt_drops_only_what_a_filling_prompt_needs() {
        let mut rules = rules(RuleSet::Trt, 3, 0);
        rules.max_rows = Some(10);
        let moment = Moment { before_append: true, ..Moment::at(10, 12) };
        let positions: Vec<i32> = (0..10).collect();
        assert_eq!(ranked(trt(&rules, 10, moment, &positions)).keep, 8);
        let full = Moment { before_append: true, ..Moment::at(10, 5) };
        rules.kv_budget = 40;
        assert_eq!(ranked(trt(&rules, 10, full, &positions)).keep, 9);
    }

    #[test]
    fn hf_prefix_spends_the_budget_and_may_eat_it_whole() {
        let rules = rules(RuleSet::Hf, 4, 0);
        let plan = ranked(hf(&rules, 8, Moment::at(8, 3)));
        assert_eq!((plan.keep, plan.first, plan.candidates()), (4, 3, vec![3, 4, 5, 6, 7]));
        assert!(
            matches!(hf(&rules, 8, Moment::at(8, 5)), Plan::Fixed { rows, .. } if rows == vec![0, 1, 2, 3])
        );
        assert!(
            matches!(hf(&rules, 8, Moment::at(8, 9)), Plan::Fixed { rows, .. } if rows.len() == 4)
        );
        assert_eq!(hf(&rules, 4, Moment::at(8, 3)), Plan::Identity);
    }

    #[test]
    fn vllm_refuses_a_protected_prompt_over_budget() {
        let mut rules = rules(RuleSet::Vllm, 4, 1);
        rules.protect_prefill = true;
        assert!(matches!(vllm(&rules, 9, Moment::at(9, 5)), Plan::Refused { .. }));
        rules.include_prefill_in_budget = false;
        let plan = ranked(vllm(&rules, 12, Moment::at(12, 5)));
        assert_eq!((plan.keep, plan.protected()), (9, vec![0, 1, 2, 3, 4, 11]));
    }
}
