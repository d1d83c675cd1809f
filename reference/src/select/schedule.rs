//! When a compaction is due (`TRIATTENTION.md` section 7).

use lockstep_traces::{RuleSet, Trigger};

use super::Rules;
use super::budget::vllm_budget;

/// Where a sample stands when the rule set looks at its cache: `trt` and `hf` after the new row was appended, `vllm` and
/// `sglang` before the step's forward.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// Rows in the cache.
    pub rows: usize,
    /// N: position of the next token.
    pub absolute_position: usize,
    /// P.
    pub prompt_len: usize,
    /// Rows of the prompt still in the cache (KV head 0).
    pub prefix_rows: usize,
    /// N at the compaction before, if there was one.
    pub last: Option<usize>,
}

/// Is a compaction due? `hf` and the servers look at decode rows only (`absolute_position > prompt_len`, or equal to it
/// for the servers, which look before the row is written).
#[must_use]
pub fn due(rules: &Rules, progress: &Progress) -> bool {
    let (budget, step) = (rules.kv_budget, rules.divide_length);
    let Progress { rows, absolute_position: n, prompt_len, .. } = *progress;
    match rules.rule_set {
        RuleSet::Trt => {
            let extra = if rules.count_prompt_tokens { 0 } else { progress.prefix_rows };
            let threshold = budget.saturating_add(step.max(1)).saturating_add(extra);
            rows >= rules.max_rows.map_or(threshold, |capacity| threshold.min(capacity))
        }
        RuleSet::Hf => {
            if n <= prompt_len {
                return false;
            }
            let counted =
                if rules.count_prompt_tokens { rows } else { rows.saturating_sub(prompt_len) };
            match rules.trigger {
                Trigger::Slack => counted >= budget.saturating_add(step),
                Trigger::Interval => counted >= budget && n.is_multiple_of(step),
            }
        }
        RuleSet::Vllm => {
            let total = vllm_budget(rules, prompt_len);
            let refused =
                rules.protect_prefill && rules.include_prefill_in_budget && prompt_len > budget;
            n >= prompt_len && rows + 1 >= total.saturating_add(step) && rows > total && !refused
        }
        RuleSet::Sglang => {
            let cooled = progress.last.is_none_or(|last| n >= last.saturating_add(step.max(2)));
            // The server counts the newest sampled token though its row is not written yet.
            let effective = rows + 1;
            let decoded = (effective + 1).saturating_sub(prompt_len);
            n > prompt_len && cooled && decoded >= budget.saturating_add(step) && rows > budget
        }
    }
}

#[cfg(test)]
mod tests {
    use lockstep_traces::PolicySpec;

    use super::*;

    fn first(rule_set: RuleSet, prompt_len: usize) -> usize {
        let rules = Rules::resolve(&PolicySpec {
            rule_set: Some(rule_set),
            kv_budget: Some(3072),
            divide_length: Some(128),
            ..PolicySpec::default()
        })
        .unwrap();
        let at = |n: usize| Progress {
            rows: n,
            absolute_position: n,
            prompt_len,
            prefix_rows: prompt_len,
            last: None,
        };
        (prompt_len..).find(|n| due(&rules, &at(*n))).unwrap()
    }

    #[test]
    fn the_first_compaction_falls_where_section_seven_says() {
        assert_eq!(first(RuleSet::Trt, 100), 3200);
        assert_eq!(first(RuleSet::Hf, 100), 3200);
        assert_eq!(first(RuleSet::Vllm, 100), 3199);
        // (N + 1) - P + 1 >= 3200.
        assert_eq!(first(RuleSet::Sglang, 100), 3298);
    }

    #[test]
    fn hf_interval_waits_for_a_multiple() {
        let rules = Rules::resolve(&PolicySpec {
            rule_set: Some(RuleSet::Hf),
            kv_budget: Some(24),
            divide_length: Some(8),
            trigger: Some(Trigger::Interval),
            count_prompt_tokens: Some(false),
            ..PolicySpec::default()
        })
        .unwrap();
        let at = |rows, n| Progress {
            rows,
            absolute_position: n,
            prompt_len: 12,
            prefix_rows: 12,
            last: None,
        };
        assert!(!due(&rules, &at(39, 39)));
        assert!(due(&rules, &at(40, 40)));
        assert!(!due(&rules, &at(35, 40)));
    }
}
