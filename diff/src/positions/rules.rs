//! What the manifest says about triggers, windows and protection (`TRIATTENTION.md` 4.3, 5.4, 6, 7).

use lockstep_traces::Manifest;
use serde_json::Value;

/// Policy as recorded.
#[derive(Debug, Clone, Default)]
pub(crate) struct Rules {
    pub(crate) kind: Option<String>,
    pub(crate) rule_set: Option<String>,
    budget: Option<u64>,
    divide: Option<u64>,
    count_prompt: Option<bool>,
    include_prefill: Option<bool>,
    interval: bool,
    pub(crate) max_rows: Option<u64>,
    /// Newest rows kept outright; `None` where this is not known.
    pub(crate) window: Option<u64>,
    /// Prompt rows are kept outright; `None` where this is not known.
    pub(crate) protects: Option<bool>,
    /// Rows are kept in ascending order.
    pub(crate) ascending: Option<bool>,
    pub(crate) rows_exact: bool,
}

impl Rules {
    pub(crate) fn of(manifest: &Manifest) -> Self {
        let text = |key: &str| manifest.get(key).and_then(Value::as_str).map(str::to_owned);
        let number = |key: &str| manifest.get(key).and_then(Value::as_u64);
        let flag = |key: &str| manifest.get(key).and_then(Value::as_bool);
        let kind = text("policy.kind");
        let rule_set =
            if kind.as_deref() == Some("triattention") { text("policy.rule_set") } else { None };
        let mut rules = Self {
            budget: number("policy.kv_budget"),
            divide: number("policy.divide_length"),
            count_prompt: flag("policy.count_prompt_tokens"),
            include_prefill: flag("policy.include_prefill_in_budget"),
            interval: text("policy.trigger").as_deref() == Some("interval"),
            max_rows: number("policy.max_rows"),
            window: number("policy.recent_window"),
            protects: flag("policy.protect_prefill"),
            ascending: None,
            rows_exact: manifest.rows_exact,
            kind,
            rule_set,
        };
        match rules.rule_set.as_deref() {
            Some("hf") => {
                rules.window = Some(0);
                let opposite = flag("policy.allow_prefill_compression").map(|allowed| !allowed);
                rules.protects = opposite.or(rules.protects);
                // Per-head sets are in order of score, the union is ascending.
                rules.ascending = Some(text("policy.mode").as_deref() == Some("union"));
            }
            Some("sglang") => {
                rules.window = Some(0);
                rules.ascending = Some(true);
            }
            Some("trt") => {
                rules.ascending = Some(true);
                if rules.count_prompt == Some(false) {
                    rules.protects = Some(true);
                }
            }
            Some("vllm") => rules.ascending = Some(true),
            _ => {}
        }
        if rules.is_control() && rules.count_prompt == Some(false) {
            rules.protects = Some(true);
        }
        rules
    }

    /// `recent` or `random`.
    pub(crate) fn is_control(&self) -> bool {
        matches!(self.kind.as_deref(), Some("recent" | "random"))
    }

    pub(crate) fn is_dense(&self) -> bool {
        self.kind.as_deref() == Some("dense")
    }

    /// Does a compaction of this rule set come before the row of its step is appended?
    pub(crate) fn compacts_before(&self) -> bool {
        matches!(self.rule_set.as_deref(), Some("vllm" | "sglang"))
    }

    /// Is there enough in the manifest to say when a compaction is due?
    pub(crate) fn trigger_known(&self) -> bool {
        self.is_dense() || self.due(0, 0, 0).is_some()
    }

    /// Is a compaction due at the decode row that `rows_before` rows were held for? `None` where the rule is not known.
    ///
    /// `trt` and the controls: rows with the new one reach min(capacity, B + d), plus the prompt where it is not counted.
    /// `hf`: the same count without the prompt where it is not counted; `interval`: B reached and N a multiple of d.
    /// `vllm`: before the forward, at the same count. `sglang` is not pinned down and not judged.
    pub(crate) fn due(&self, rows_before: u64, position: u64, prompt: u64) -> Option<bool> {
        if self.is_dense() {
            return Some(false);
        }
        let (budget, divide) = (self.budget?, self.divide?.max(1));
        let rows = rows_before + 1;
        match (self.kind.as_deref()?, self.rule_set.as_deref()) {
            ("recent" | "random", _) | ("triattention", Some("trt")) => {
                let outside = if self.count_prompt? { 0 } else { prompt };
                let full = self.max_rows.unwrap_or(u64::MAX);
                if full <= budget + outside {
                    return None;
                }
                Some(rows >= (budget + divide + outside).min(full))
            }
            ("triattention", Some("hf")) => {
                let counted = if self.count_prompt? { rows } else { rows.saturating_sub(prompt) };
                let reached = if self.interval {
                    counted >= budget && (position + 1).is_multiple_of(divide)
                } else {
                    counted >= budget + divide
                };
                Some(reached && rows > budget)
            }
            ("triattention", Some("vllm")) => {
                let protects = self.protects?;
                let include = self.include_prefill.unwrap_or(true);
                if protects && include && prompt > budget {
                    return Some(false);
                }
                let total = budget + if protects && !include { prompt } else { 0 };
                Some(rows >= total + divide && rows_before > total)
            }
            _ => None,
        }
    }

    /// Rows that a compaction leaves; `None` where not known or where a capacity may override it.
    pub(crate) fn kept(&self, prompt: u64) -> Option<u64> {
        if self.max_rows.is_some() {
            return None;
        }
        let budget = self.budget?;
        match (self.kind.as_deref()?, self.rule_set.as_deref()) {
            ("recent" | "random", _) | ("triattention", Some("trt")) => {
                Some(budget + if self.count_prompt? { 0 } else { prompt })
            }
            ("triattention", Some("hf" | "sglang")) => Some(budget),
            ("triattention", Some("vllm")) => {
                let outside = self.protects? && !self.include_prefill.unwrap_or(true);
                Some(budget + if outside { prompt } else { 0 })
            }
            _ => None,
        }
    }
}
