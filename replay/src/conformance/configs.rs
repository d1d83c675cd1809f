//! Settings of one-selection cases in the vocabulary of the workbench.

use lockstep_reference::select::Moment;
use lockstep_traces::{Aggregation, PolicyKind, PolicySpec, RuleSet, SelectionMode};
use serde::Deserialize;

use super::index::Case;

/// A case's settings in the vocabulary of the workbench.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) spec: PolicySpec,
    pub(crate) moment: Moment,
    /// Positions of head 0 serve all heads.
    pub(crate) shared_positions: bool,
}

#[derive(Debug, Deserialize)]
struct VllmConfig {
    kv_budget: usize,
    divide_length: usize,
    window_size: usize,
    protect_prefill: bool,
    include_prefill_in_budget: bool,
    pruning_mode: String,
    per_head_selection_semantics: String,
    layer_perhead_aggregation: Aggregation,
    sparse_score_aggregation: Aggregation,
    sparse_normalize_scores: bool,
    disable_mlr: bool,
    disable_trig: bool,
    round_start: usize,
    prefill_len: usize,
    budget_total: usize,
    offset_max_length: usize,
    #[serde(default)]
    env: Option<serde_json::Map<String, serde_json::Value>>,
}

#[derive(Debug, Deserialize)]
struct HfConfig {
    budget: usize,
    score_aggregation: Aggregation,
    seed: Option<i64>,
    normalize_scores: bool,
    allow_prefill_compression: bool,
    per_head_pruning: bool,
    per_layer_perhead_pruning: bool,
    layer_perhead_aggregation: Aggregation,
    disable_mlr: bool,
    disable_trig: bool,
    offset_max_length: usize,
    prefix_length: usize,
    absolute_position: usize,
    positions: String,
}

#[derive(Debug, Deserialize)]
struct SglangConfig {
    kv_budget: usize,
    prefill_len: usize,
    protect_prefill: bool,
    layer_aggregation: Aggregation,
    disable_mlr: bool,
    score_aggregation: Aggregation,
    normalize: bool,
    round_start: usize,
    offset_max_length: usize,
    divide_length: usize,
}

/// Name of upstream's environment variable that reduces layers by another operation.
const GROUP_ENV: &str = "TRIATTN_RUNTIME_DEBUG_GROUP_PERHEAD_AGG_MODE";

pub(crate) fn vllm_mode(mode: &str, semantics: &str) -> Result<SelectionMode, String> {
    match (mode, semantics) {
        ("per_head", "legacy_layer_local") => Ok(SelectionMode::LegacyLayerLocal),
        ("per_head", "hf_aligned_global_per_head") => Ok(SelectionMode::PerHead),
        ("per_layer_per_head", _) => Ok(SelectionMode::PerLayerPerHead),
        ("per_layer", _) => Ok(SelectionMode::PerLayer),
        _ => Err(format!("config: unknown mode `{mode}` with `{semantics}`")),
    }
}

pub(crate) fn hf_mode(per_head: bool, per_layer: bool) -> SelectionMode {
    match (per_layer, per_head) {
        (true, _) => SelectionMode::PerLayerPerHead,
        (false, true) => SelectionMode::PerHead,
        (false, false) => SelectionMode::Union,
    }
}

fn blank(rule_set: RuleSet) -> PolicySpec {
    PolicySpec {
        kind: Some(PolicyKind::Triattention),
        rule_set: Some(rule_set),
        ..PolicySpec::default()
    }
}

pub(crate) fn vllm(case: &Case) -> Result<Plan, String> {
    let config: VllmConfig = case.settings()?;
    let mut layer_aggregation = Aggregation::Mean;
    for (name, value) in config.env.iter().flatten() {
        match (name.as_str(), value.as_str()) {
            (GROUP_ENV, Some("max")) => layer_aggregation = Aggregation::Max,
            (GROUP_ENV, Some("mean")) => {}
            _ => return Err(format!("config: environment {name}={value} is not known here")),
        }
    }
    let expected = config.kv_budget
        + if config.protect_prefill && !config.include_prefill_in_budget {
            config.prefill_len
        } else {
            0
        };
    if config.budget_total != expected {
        return Err(format!("config: budget_total {} is not {expected}", config.budget_total));
    }
    let spec = PolicySpec {
        kv_budget: Some(config.kv_budget),
        divide_length: Some(config.divide_length),
        recent_window: Some(config.window_size),
        protect_prefill: Some(config.protect_prefill),
        include_prefill_in_budget: Some(config.include_prefill_in_budget),
        offset_max_length: Some(config.offset_max_length),
        score_aggregation: Some(config.sparse_score_aggregation),
        layer_aggregation: Some(layer_aggregation),
        group_aggregation: Some(config.layer_perhead_aggregation),
        normalize: Some(config.sparse_normalize_scores),
        mode: Some(vllm_mode(&config.pruning_mode, &config.per_head_selection_semantics)?),
        disable_mlr: Some(config.disable_mlr),
        disable_trig: Some(config.disable_trig),
        ..blank(RuleSet::Vllm)
    };
    let moment = moment(case, config.round_start, config.prefill_len);
    Ok(Plan { spec, moment, shared_positions: false })
}

pub(crate) fn hf(case: &Case) -> Result<Plan, String> {
    let config: HfConfig = case.settings()?;
    let shared_positions = match config.positions.as_str() {
        "shared" => true,
        "per_head" => false,
        other => return Err(format!("config: positions `{other}` are not known here")),
    };
    let spec = PolicySpec {
        kv_budget: Some(config.budget),
        allow_prefill_compression: Some(config.allow_prefill_compression),
        offset_max_length: Some(config.offset_max_length),
        score_aggregation: Some(config.score_aggregation),
        group_aggregation: Some(config.layer_perhead_aggregation),
        normalize: Some(config.normalize_scores),
        mode: Some(hf_mode(config.per_head_pruning, config.per_layer_perhead_pruning)),
        disable_mlr: Some(config.disable_mlr),
        disable_trig: Some(config.disable_trig),
        noise_seed: Some(config.seed.unwrap_or(-1)),
        ..blank(RuleSet::Hf)
    };
    let moment = Moment::at(config.absolute_position, config.prefix_length);
    Ok(Plan { spec, moment, shared_positions })
}

pub(crate) fn sglang(case: &Case) -> Result<Plan, String> {
    let config: SglangConfig = case.settings()?;
    let spec = PolicySpec {
        kv_budget: Some(config.kv_budget),
        divide_length: Some(config.divide_length),
        protect_prefill: Some(config.protect_prefill),
        offset_max_length: Some(config.offset_max_length),
        score_aggregation: Some(config.score_aggregation),
        layer_aggregation: Some(config.layer_aggregation),
        normalize: Some(config.normalize),
        disable_mlr: Some(config.disable_mlr),
        ..blank(RuleSet::Sglang)
    };
    let moment = moment(case, config.round_start, config.prefill_len);
    Ok(Plan { spec, moment, shared_positions: false })
}

/// The same case under `trt`: which ignores no switch, so that one that vllm ignores is left off.
pub(crate) fn trt(case: &Case) -> Result<Plan, String> {
    let mut plan = vllm(case)?;
    plan.spec = PolicySpec {
        kv_budget: plan.spec.kv_budget,
        divide_length: plan.spec.divide_length,
        recent_window: plan.spec.recent_window,
        protect_prefill: plan.spec.protect_prefill,
        offset_max_length: plan.spec.offset_max_length,
        score_aggregation: plan.spec.score_aggregation,
        ..blank(RuleSet::Trt)
    };
    Ok(plan)
}

fn moment(case: &Case, round_start: usize, prompt_len: usize) -> Moment {
    let absolute_position =
        case.input_info.as_ref().map_or(round_start, |info| info.absolute_position);
    Moment { absolute_position, round_start, prompt_len, before_append: false }
}

/// Does the README's last part count this vllm case for `trt`?
pub(crate) fn serves_trt(case: &Case) -> bool {
    let Ok(config) = case.settings::<VllmConfig>() else { return false };
    case.group == "vllm_selector"
        && case.expected.is_some()
        && config.pruning_mode == "per_head"
        && config.per_head_selection_semantics == "hf_aligned_global_per_head"
        && config.env.is_none()
        && config.sparse_normalize_scores
        && !config.disable_mlr
}
