//! Cases of one selection: `vllm_selector`, `hf`, `sglang`; and those of vllm that serve `trt`.

use std::path::Path;

use lockstep_reference::select::{Grid, Heads, Moment, Outcome, Positions, Selection};
use lockstep_traces::{Aggregation, PolicyKind, PolicySpec, RuleSet, SelectionMode};
use serde::Deserialize;

use super::compare::{self, KeepMatch};
use super::golden::{CaseStats, Tensors};
use super::implementation::{Implementation, SelectorCase};
use super::index::{Case, Dims};
use super::report::CaseReport;
use super::tolerance::{
    FAR, FAR_RAW_UNITS, NEAR_MEAN, NEAR_SINGLE, RAW_DIRECT, RAW_HF, RAW_OTHER_PHASES, Tolerance,
};

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

fn vllm(case: &Case) -> Result<Plan, String> {
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
        + if config.protect_prefill && !config.include_prefill_in_budget { config.prefill_len } else { 0 };
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

fn hf(case: &Case) -> Result<Plan, String> {
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

fn sglang(case: &Case) -> Result<Plan, String> {
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
fn trt(case: &Case) -> Result<Plan, String> {
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

pub(crate) fn heads(dims: Option<Dims>) -> Result<Heads, String> {
    let dims = dims.ok_or("the index gives no dims for this case")?;
    Ok(Heads { q_heads: dims.q_heads, kv_heads: dims.kv_heads })
}

/// Runs one case of `vllm_selector`, `hf` or `sglang`.
pub(crate) fn run(dir: &Path, case: &Case, by: &mut dyn Implementation) -> CaseReport {
    let plan = match case.group.as_str() {
        "vllm_selector" => vllm(case),
        "hf" => hf(case),
        _ => sglang(case),
    };
    finish(CaseReport::new(&case.name, &case.group), |report| {
        let plan = plan?;
        let limit = tolerance(&plan.spec);
        one(dir, case, plan, by, report, limit)
    })
}

/// Runs one vllm case under the rules of `trt`: from the stored raw scores where there are any, and from the keys.
pub(crate) fn run_trt(dir: &Path, case: &Case, by: &mut dyn Implementation) -> CaseReport {
    finish(CaseReport::new(&case.name, "trt"), |report| {
        let plan = trt(case)?;
        // The other phases move ranked scores as well; what they may not move is a keep-set beyond its ties.
        let limit = Tolerance { raw: RAW_OTHER_PHASES, near: FAR, ..tolerance(&plan.spec) };
        one(dir, case, plan, by, report, limit)
    })
}

pub(crate) fn finish(
    mut report: CaseReport,
    body: impl FnOnce(&mut CaseReport) -> Result<(), String>,
) -> CaseReport {
    if let Err(why) = body(&mut report) {
        report.fail(why);
    }
    report.close()
}

fn one(
    dir: &Path,
    case: &Case,
    plan: Plan,
    by: &mut dyn Implementation,
    report: &mut CaseReport,
    limit: Tolerance,
) -> Result<(), String> {
    let input = Tensors::open(dir, case.input.as_deref().ok_or("the index names no input")?)?;
    let stats = CaseStats::open(dir, case.stats.as_deref().ok_or("the index names no stats")?)?;
    let keys = input.keys("k_rot")?;
    let mut positions = input.positions("positions")?;
    if let (true, Positions::PerHead(heads)) = (plan.shared_positions, &positions) {
        positions = Positions::Shared(heads.first().cloned().unwrap_or_default());
    }
    let selector = SelectorCase {
        name: &case.name,
        spec: plan.spec,
        stats: &stats,
        layers: (0u32..).take(keys.len()).collect(),
        keys,
        positions,
        heads: heads(case.dims)?,
        moment: plan.moment,
        begins: true,
    };
    let ours = by.select(&selector);
    let Some(expected) = &case.expected else { return without_output(case, ours, report) };
    let expected = Tensors::open(dir, expected)?;
    require_listed(case, &expected)?;
    let expected = Expected::read(&expected, &selector)?;
    let ours = ours?;
    expected.judge(&ours, report, limit);
    if report.group != "trt" {
        return Ok(());
    }
    // The stored raw scores carry upstream's phases, so that what follows is judged on its own.
    if let Some(raw) = &expected.raw {
        let raw = Grid { shape: raw.shape.clone(), values: raw.values.clone() };
        if let Some(ranked) = by.rank(&selector, &raw) {
            let mut second = CaseReport::new(&case.name, "trt");
            expected.judge(&ranked?, &mut second, tolerance(&selector.spec));
            if second.status != report.status {
                report.notes.push(format!("from the stored raw scores: {:?}", second.status));
            }
            if let super::report::CaseStatus::Fail { why } = second.status {
                report.fail(format!("from the stored raw scores: {why}"));
            }
        }
    }
    Ok(())
}

/// Cases in which upstream returned nothing or raised.
fn without_output(
    case: &Case,
    ours: Result<Selection, String>,
    report: &mut CaseReport,
) -> Result<(), String> {
    report.compared += 1;
    match (case.result.as_deref(), ours) {
        (Some("none"), Ok(Selection { outcome: Outcome::Refused { why }, .. })) => {
            report.notes.push(format!("no compaction, as expected: {why}"));
            Ok(())
        }
        (Some("error"), Err(why)) => {
            report.notes.push(format!("refused, as expected: {why}"));
            Ok(())
        }
        (label, ours) => {
            let ours = ours.map_or_else(|why| why, |selection| format!("{:?}", selection.outcome));
            Err(format!("expected the outcome {label:?}, got: {ours}"))
        }
    }
}

/// Every tensor that the index lists must be there in its shape.
pub(crate) fn require_listed(case: &Case, file: &Tensors) -> Result<(), String> {
    for (name, (_, shape)) in &case.tensors {
        let (_, found, _) = file.bytes(name)?;
        if found != *shape {
            return Err(format!("expected tensor `{name}` has shape {found:?}, listed as {shape:?}"));
        }
    }
    Ok(())
}

/// Limits by rule set and mode.
pub(crate) fn tolerance(spec: &PolicySpec) -> Tolerance {
    let single = spec.mode != Some(SelectionMode::PerHead) && spec.mode.is_some();
    let by_max = spec.layer_aggregation == Some(Aggregation::Max);
    let raw_units = spec.normalize == Some(false);
    let raw = if spec.rule_set == Some(RuleSet::Hf) { RAW_HF } else { RAW_DIRECT };
    if raw_units {
        return Tolerance { raw, far: FAR_RAW_UNITS, near: FAR_RAW_UNITS, tie: FAR_RAW_UNITS };
    }
    let near = if single || by_max { NEAR_SINGLE } else { NEAR_MEAN };
    Tolerance { raw, far: FAR, near, tie: near }
}

/// Expected tensors of one selection.
pub(crate) struct Expected {
    pub(crate) raw: Option<super::golden::Array>,
    pub(crate) z: Option<super::golden::Array>,
    pub(crate) ranked: Option<super::golden::Array>,
    pub(crate) keep: (Vec<usize>, Vec<usize>),
    /// Rows kept outright in front of the score columns.
    pub(crate) first: usize,
    pub(crate) by_score: bool,
}

impl Expected {
    fn read(file: &Tensors, case: &SelectorCase<'_>) -> Result<Self, String> {
        let ranked = match file.optional("agg_scores")? {
            Some(array) => Some(array),
            None => file.optional("union_final_topk_input")?,
        };
        Ok(Self::new(file.optional("raw_scores")?, ranked, file.indices("keep")?, case)
            .with_z(file.optional("per_head_topk_input")?))
    }

    pub(crate) fn new(
        raw: Option<super::golden::Array>,
        ranked: Option<super::golden::Array>,
        keep: (Vec<usize>, Vec<usize>),
        case: &SelectorCase<'_>,
    ) -> Self {
        let hf = case.spec.rule_set == Some(RuleSet::Hf);
        let whole = case.spec.allow_prefill_compression == Some(true);
        let first = if hf && !whole { case.moment.prompt_len } else { 0 };
        let by_score = hf && case.spec.mode != Some(SelectionMode::Union) && keep.0.len() > 1;
        Self { raw, z: None, ranked, keep, first, by_score }
    }

    fn with_z(self, z: Option<super::golden::Array>) -> Self {
        Self { z, ..self }
    }

    /// Compares everything that is stored.
    pub(crate) fn judge(&self, ours: &Selection, report: &mut CaseReport, limit: Tolerance) {
        if let Some(expected) = &self.raw {
            match &ours.stages {
                Some(stages) => compare::raw(report, &stages.raw.values, &expected.values, limit.raw),
                None => report.fail("no raw scores, though upstream has them"),
            }
        }
        if let Some(expected) = &self.z {
            match &ours.stages {
                Some(stages) => {
                    let what = "per_head_topk_input";
                    compare::absolute(report, what, &stages.z.values, &expected.values, limit.far);
                }
                None => report.fail("no normalised scores, though upstream has them"),
            }
        }
        self.judge_ranked(ours, report, limit);
        self.judge_keep(ours, report, limit);
    }

    fn judge_ranked(&self, ours: &Selection, report: &mut CaseReport, limit: Tolerance) {
        let Some(expected) = &self.ranked else { return };
        let Some(stages) = &ours.stages else {
            report.fail("no ranked scores, though upstream has them");
            return;
        };
        if stages.final_scores.shape != expected.shape {
            report.fail(format!(
                "ranked scores have shape {:?}, expected {:?}",
                stages.final_scores.shape, expected.shape
            ));
            return;
        }
        let k = self.keep.0.last().copied().unwrap_or(0).saturating_sub(self.first);
        for (ours, expected) in stages.final_scores.rows().zip(expected.rows()) {
            compare::ranked(report, "agg_scores", (ours, expected), k, limit);
        }
    }

    fn judge_keep(&self, ours: &Selection, report: &mut CaseReport, limit: Tolerance) {
        let Some(keep) = &ours.keep else {
            report.fail("nothing was kept, though upstream keeps rows");
            return;
        };
        let (shape, rows) = &self.keep;
        let (k, leading) = shape.split_last().map_or((0, &[][..]), |(k, rest)| (*k, rest));
        if keep.leading != leading {
            report.fail(format!("keep has axes {:?}, expected {leading:?}", keep.leading));
            return;
        }
        let own;
        let scores: Vec<&[f64]> = match (&self.ranked, &ours.stages) {
            (Some(expected), _) => expected.rows(),
            // Lifecycles of hf store no scores: the tie rule needs recomputed ones.
            (None, Some(stages)) => {
                own = &stages.final_scores;
                own.rows().collect()
            }
            (None, None) => Vec::new(),
        };
        for (index, (ours, expected)) in keep.sets.iter().zip(rows.chunks_exact(k.max(1))).enumerate() {
            let scores = scores.get(index).copied().unwrap_or_default();
            report.keep_rows += 1;
            report.compared += 1;
            match compare::keep_set(ours, expected, scores, self.first, limit.tie) {
                KeepMatch::Equal => report.keep_equal += 1,
                KeepMatch::Tie { rows } => report.tie(rows),
                KeepMatch::Differs { row } => report.fail(format!(
                    "keep-set {index}: row {row} is in one set only and does not tie at the threshold"
                )),
            }
            let by_score = self.by_score && !scores.is_empty();
            if !compare::ordered(ours, by_score, scores, self.first, limit.tie) {
                report.fail(format!("keep-set {index} is not in the order of the rule set"));
            }
            if ours != expected && self.by_score {
                report.notes.push(format!("keep-set {index}: another order among near scores"));
            }
        }
        if keep.sets.len() != rows.len() / k.max(1) {
            report.fail(format!("{} keep-sets, expected {}", keep.sets.len(), rows.len() / k.max(1)));
        }
    }
}
