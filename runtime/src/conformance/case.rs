//! `cases.json`: one case and what its settings mean as a policy specification.

use std::path::Path;

use lockstep_traces::{
    Aggregation, PolicyKind, PolicySpec, RuleSet, SelectionMode, TraceError, Trigger,
};
use serde::Deserialize;

use super::error::{CaseError, differs};
use crate::select::Dims;

/// Nothing is allocated for a case that claims more layers, heads or width than any model has.
const LARGEST_SIZE: usize = 1 << 14;

/// As many tokens as a lifecycle may claim.
const LARGEST_LIFE: usize = 1 << 20;

#[derive(Debug, Deserialize)]
pub(super) struct Index {
    pub(super) cases: Vec<Case>,
}

/// One case. Keys of no interest here are skipped.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct Case {
    pub(super) name: String,
    #[serde(rename = "impl")]
    pub(super) group: String,
    pub(super) input: Option<String>,
    pub(super) stats: Option<String>,
    pub(super) expected: Option<String>,
    #[serde(default)]
    pub(super) config: Config,
    pub(super) dims: Option<CaseDims>,
    pub(super) result: Option<String>,
    #[serde(default)]
    pub(super) events: Vec<Event>,
    pub(super) cache_len_per_step: Option<Vec<usize>>,
    pub(super) rows_per_step: Option<Vec<usize>>,
}

#[derive(Debug, Clone, Copy, Deserialize)]
pub(super) struct CaseDims {
    layers: usize,
    q_heads: usize,
    kv_heads: usize,
    head_dim: usize,
    pub(super) attention_scaling: f32,
}

/// One recorded compaction of a lifecycle.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct Event {
    pub(super) absolute_position: Option<usize>,
    pub(super) round_start: Option<usize>,
    pub(super) step: Option<usize>,
    pub(super) rows_before: usize,
    pub(super) rows_after: Option<usize>,
    pub(super) cache_len_after: Option<usize>,
}

/// The settings of all groups together; which of them a case has depends on its group.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(super) struct Config {
    budget: Option<usize>,
    kv_budget: Option<usize>,
    pub(super) budget_total: Option<usize>,
    divide_length: Option<usize>,
    window_size: Option<usize>,
    protect_prefill: Option<bool>,
    include_prefill_in_budget: Option<bool>,
    allow_prefill_compression: Option<bool>,
    count_prompt_tokens: Option<bool>,
    use_slack_trigger: Option<bool>,
    pruning_mode: Option<String>,
    per_head_selection_semantics: Option<String>,
    per_head_pruning: Option<bool>,
    per_layer_perhead_pruning: Option<bool>,
    sparse_score_aggregation: Option<Aggregation>,
    score_aggregation: Option<Aggregation>,
    layer_aggregation: Option<Aggregation>,
    sparse_normalize_scores: Option<bool>,
    normalize_scores: Option<bool>,
    normalize: Option<bool>,
    disable_mlr: Option<bool>,
    disable_trig: Option<bool>,
    offset_max_length: Option<usize>,
    seed: Option<i64>,
    pruning_seed: Option<i64>,
    env: Option<std::collections::BTreeMap<String, String>>,
    round_start: Option<u32>,
    absolute_position: Option<u32>,
    prefill_len: Option<usize>,
    prefix_length: Option<usize>,
    pub(super) prompt_len: Option<usize>,
    steps: Option<usize>,
    pub(super) positions: Option<String>,
}

impl Index {
    pub(super) fn read(dir: &Path) -> Result<Self, TraceError> {
        let path = dir.join("cases.json");
        let bytes =
            std::fs::read(&path).map_err(|source| TraceError::Io { path: path.clone(), source })?;
        serde_json::from_slice(&bytes).map_err(|source| TraceError::Json {
            path,
            line: source.line(),
            source,
        })
    }
}

impl Case {
    pub(super) fn dims(&self) -> Result<(Dims, f32), CaseError> {
        let dims = self.dims.ok_or_else(|| differs("cases.json gives no `dims` for this case"))?;
        let sizes = [dims.layers, dims.q_heads, dims.kv_heads, dims.head_dim];
        if sizes.iter().any(|&size| size > LARGEST_SIZE) {
            return Err(differs(format!("`dims` larger than {LARGEST_SIZE} in cases.json")));
        }
        let shape = Dims {
            layers: dims.layers,
            kv_heads: dims.kv_heads,
            q_heads: dims.q_heads,
            head_dim: dims.head_dim,
        };
        Ok((shape, dims.attention_scaling))
    }

    /// Is this a `vllm_selector` case whose keep-sets `trt` shares?
    pub(super) fn serves_trt(&self) -> bool {
        let config = &self.config;
        let semantics = config.per_head_selection_semantics.as_deref();
        self.group == "vllm_selector"
            && config.pruning_mode.as_deref() == Some("per_head")
            && semantics == Some("hf_aligned_global_per_head")
            && config.env.as_ref().is_none_or(std::collections::BTreeMap::is_empty)
    }

    pub(super) fn raises(&self) -> bool {
        self.result.as_deref() == Some("error")
    }

    pub(super) fn round_start(&self) -> Result<u32, CaseError> {
        let config = &self.config;
        config
            .round_start
            .or(config.absolute_position)
            .ok_or_else(|| differs("cases.json gives neither round_start nor absolute_position"))
    }

    /// Leading rows (`hf`) or prompt length.
    pub(super) fn prompt_len(&self) -> usize {
        let config = &self.config;
        config.prompt_len.or(config.prefill_len).or(config.prefix_length).unwrap_or(0)
    }

    /// Prompt length and decode steps of a lifecycle.
    pub(super) fn life(&self) -> Result<(usize, usize), CaseError> {
        let (prompt_len, steps) = (self.prompt_len(), self.config.steps.unwrap_or(0));
        if prompt_len.saturating_add(steps) > LARGEST_LIFE {
            return Err(differs(format!("more than {LARGEST_LIFE} tokens in cases.json")));
        }
        Ok((prompt_len, steps))
    }

    /// The specification that asks for this case's rules.
    pub(super) fn spec(&self, rule_set: RuleSet) -> PolicySpec {
        let config = &self.config;
        let hf = rule_set == RuleSet::Hf;
        let env_max = config.env.as_ref().and_then(|env| {
            env.get("TRIATTN_RUNTIME_DEBUG_GROUP_PERHEAD_AGG_MODE").map(String::as_str)
        }) == Some("max");
        let layer_aggregation =
            if env_max { Some(Aggregation::Max) } else { config.layer_aggregation };
        let slack = config.use_slack_trigger.unwrap_or(false);
        PolicySpec {
            kind: Some(PolicyKind::Triattention),
            rule_set: Some(rule_set),
            kv_budget: config.kv_budget.or(config.budget),
            divide_length: config.divide_length,
            recent_window: config.window_size,
            protect_prefill: config.protect_prefill,
            count_prompt_tokens: hf.then(|| config.count_prompt_tokens.unwrap_or(false)),
            include_prefill_in_budget: config
                .include_prefill_in_budget
                .filter(|_| rule_set == RuleSet::Vllm),
            allow_prefill_compression: config.allow_prefill_compression,
            offset_max_length: config.offset_max_length,
            score_aggregation: config.sparse_score_aggregation.or(config.score_aggregation),
            layer_aggregation,
            group_aggregation: None,
            normalize: config
                .sparse_normalize_scores
                .or(config.normalize_scores)
                .or(config.normalize),
            mode: Some(self.mode()),
            trigger: hf.then_some(if slack { Trigger::Slack } else { Trigger::Interval }),
            // The tested path of `vllm` raises where this is set, and so do the rules here.
            disable_mlr: config.disable_mlr,
            disable_trig: config.disable_trig.filter(|_| rule_set != RuleSet::Trt),
            noise_seed: hf.then(|| config.seed.or(config.pruning_seed).unwrap_or(-1)),
            ..PolicySpec::default()
        }
    }

    fn mode(&self) -> SelectionMode {
        let config = &self.config;
        if self.group.starts_with("hf") {
            return if config.per_layer_perhead_pruning.unwrap_or(false) {
                SelectionMode::PerLayerPerHead
            } else if config.per_head_pruning.unwrap_or(false) {
                SelectionMode::PerHead
            } else {
                SelectionMode::Union
            };
        }
        match (config.pruning_mode.as_deref(), config.per_head_selection_semantics.as_deref()) {
            (Some("per_layer"), _) => SelectionMode::PerLayer,
            (Some("per_layer_per_head"), _) => SelectionMode::PerLayerPerHead,
            (_, Some("legacy_layer_local")) => SelectionMode::LegacyLayerLocal,
            _ => SelectionMode::PerHead,
        }
    }
}
