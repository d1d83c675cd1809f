//! Single selections: input and statistics in, scores by stage and keep-sets out.

use std::path::Path;

use lockstep_traces::stats;
use lockstep_traces::store::DumpFile;
use lockstep_traces::{Aggregation, Cause, RuleSet, SelectionMode};

use super::case::Case;
use super::compare::{Limits, Scores, Tally};
use super::error::{CaseError, differs};
use super::vectors::{self, KeyBlock};
use crate::RotaryTable;
use crate::select::{KeepSet, Rules, SelectError, SelectInput, Selection, Selector};

/// Result of one case.
pub(super) type Answer = (Tally, Result<(), CaseError>);

/// Runs a case under the rule set of its group.
pub(super) fn run(dir: &Path, case: &Case, rule_set: RuleSet, plant: Option<Cause>) -> Answer {
    let mut tally = Tally::default();
    let outcome = check(dir, case, rule_set, plant, &mut tally);
    (tally, outcome)
}

/// Runs a `vllm_selector` case under `trt`; `None` where it stores no raw scores to hold the rule set to.
pub(super) fn run_trt(dir: &Path, case: &Case, plant: Option<Cause>) -> Option<Answer> {
    let expected = dir.join(case.expected.as_ref()?);
    match DumpFile::open(&expected) {
        Ok(file) if !file.names().any(|name| name == "raw_scores") => None,
        _ => Some(run(dir, case, RuleSet::Trt, plant)),
    }
}

/// Tolerances of a case, with their reasons in [`Limits`].
fn limits(case: &Case, rules: &Rules) -> Result<Limits, CaseError> {
    // `trt` has plain phases; off the grid of the phase tables the recorded scores were made by angle addition.
    let other_phases = rules.rule_set == RuleSet::Trt
        && !(case.round_start()? as usize).is_multiple_of(rules.divide_length.max(1));
    let raw = if rules.rule_set == RuleSet::Hf || other_phases { 5e-5 } else { 1e-6 };
    let layer_mean = rules.mode == SelectionMode::PerHead
        && rules.layer_aggregation == Aggregation::Mean
        && !other_phases;
    let near = if layer_mean { 2e-5 } else { 5e-5 };
    Ok(match (rules.mode == SelectionMode::Union, rules.normalize) {
        // The maximum over all heads, in normalised and in raw units.
        (true, true) => Limits { raw, far: 1e-4, near: 1e-4 },
        (true, false) => Limits { raw, far: 5e-4, near: 5e-4 },
        (false, _) => Limits { raw, far: 1e-4, near },
    })
}

fn selection(
    dir: &Path,
    case: &Case,
    rules: Rules,
    plant: Option<Cause>,
) -> Result<Option<Selection>, CaseError> {
    let (dims, attention_scaling) = case.dims()?;
    let path = |name: &Option<String>, what: &str| {
        let name =
            name.as_ref().ok_or_else(|| differs(format!("the case names no {what} file")))?;
        Ok::<_, CaseError>(dir.join(name))
    };
    let stats = stats::read(&path(&case.stats, "stats")?)?;
    let rotary =
        RotaryTable { inv_freq: stats.inv_freq.clone().unwrap_or_default(), attention_scaling };
    let file = DumpFile::open(&path(&case.input, "input")?)?;
    let keys = KeyBlock::read(&file.get("k_rot")?, dims)?;
    let mut positions = vectors::lists(&file.get("positions")?)?;
    if case.config.positions.as_deref() == Some("shared")
        && let Some(first) = positions.first().cloned()
    {
        positions.fill(first);
    }
    let view = keys.view(dims, &positions);
    let input = SelectInput {
        cache: &view,
        round_start: case.round_start()?,
        prompt_len: case.prompt_len(),
        keep: match rules.rule_set {
            RuleSet::Vllm => case.config.budget_total.unwrap_or(rules.kv_budget),
            RuleSet::Trt | RuleSet::Hf | RuleSet::Sglang => rules.kv_budget,
        },
    };
    let selector = Selector::new(rules, &stats, &rotary, dims, plant)?;
    let mut noise = selector.noise();
    Ok(selector.select(&input, noise.as_mut(), true)?)
}

fn check(
    dir: &Path,
    case: &Case,
    rule_set: RuleSet,
    plant: Option<Cause>,
    tally: &mut Tally,
) -> Result<(), CaseError> {
    let rules = Rules::resolve(&case.spec(rule_set));
    if case.raises() {
        return match rules {
            Err(SelectError::Setting { .. }) => Ok(()),
            _ => Err(differs("these settings are accepted, upstream raises")),
        };
    }
    let rules = rules?;
    let ours = selection(dir, case, rules.clone(), plant)?;
    let Some(expected) = &case.expected else {
        return match ours {
            None => Ok(()),
            Some(_) => Err(differs("rows were selected, upstream's selector declines")),
        };
    };
    let ours = ours.ok_or_else(|| differs("the selector declines, upstream's selects"))?;
    let file = DumpFile::open(&dir.join(expected))?;
    let limits = limits(case, &rules)?;
    let mut scores = scores(&file, &ours, limits, tally)?;
    let keep = file.get("keep")?;
    if keep.shape != ours.keep.shape() {
        return Err(differs(format!(
            "keep-sets of shape {:?}, expected {:?}",
            ours.keep.shape(),
            keep.shape
        )));
    }
    if let Some(scores) = &mut scores {
        scores.count = ours.keep.len() - scores.first_row;
    }
    keep_sets(&ours.keep, &vectors::lists(&keep)?, scores.as_ref(), limits, tally)?;
    if let (Some(scores), Some(stages)) = (&scores, &ours.stages) {
        let width = stages.last.shape.last().copied().unwrap_or(0).max(1);
        for (ours, expected) in stages.last.values.chunks(width).zip(&scores.values) {
            tally.ranked(ours, expected, scores.count, limits)?;
        }
    }
    order(&rules, &ours.keep, scores.as_ref())
}

/// Expected ranked scores, row by row of the keep-sets.
struct Expected {
    values: Vec<Vec<f32>>,
    first_row: usize,
    count: usize,
}

/// Compares raw scores where stored and returns the expected ranked ones.
fn scores(
    file: &DumpFile,
    ours: &Selection,
    limits: Limits,
    tally: &mut Tally,
) -> Result<Option<Expected>, CaseError> {
    let has = |wanted: &str| file.names().any(|name| name == wanted);
    let ranked = if has("agg_scores") { "agg_scores" } else { "union_final_topk_input" };
    let Some(stages) = &ours.stages else {
        return if has("raw_scores") || has(ranked) {
            Err(differs("nothing was scored, scores are expected"))
        } else {
            Ok(None)
        };
    };
    if has("raw_scores") {
        let raw = file.get("raw_scores")?;
        if raw.shape != stages.raw.shape {
            return Err(differs(format!(
                "raw scores of shape {:?}, expected {:?}",
                stages.raw.shape, raw.shape
            )));
        }
        tally.raw(&stages.raw.values, &raw.to_f32()?, limits.raw)?;
    }
    let tensor = file.get(ranked)?;
    if tensor.shape != stages.last.shape {
        return Err(differs(format!(
            "ranked scores of shape {:?}, expected {:?}",
            stages.last.shape, tensor.shape
        )));
    }
    if has("per_head_topk_input") {
        let rows = file.get("per_head_topk_input")?.to_f32()?;
        let width = tensor.shape.last().copied().unwrap_or(0).max(1);
        for (ours, expected) in stages.z.values.chunks(width).zip(rows.chunks(width)) {
            tally.ranked(ours, expected, 0, limits)?;
        }
    }
    Ok(Some(Expected { values: vectors::rows(&tensor)?, first_row: stages.row_offset, count: 0 }))
}

fn keep_sets(
    ours: &KeepSet,
    expected: &[Vec<u32>],
    scores: Option<&Expected>,
    limits: Limits,
    tally: &mut Tally,
) -> Result<(), CaseError> {
    for (index, (ours, expected)) in ours.lists().zip(expected).enumerate() {
        let scores = scores.and_then(|scores| {
            let values = scores.values.get(index)?;
            let (first_row, count) = (scores.first_row, scores.count);
            Some(Scores { values, first_row, count, near: limits.near })
        });
        tally.kept(ours, expected, scores)?;
    }
    Ok(())
}

/// `hf` lists the prefix, then rows by falling score (an expected score may rise by no more than twice the far tolerance, the most
/// that two tolerable errors make); everything else ascends.
fn order(rules: &Rules, keep: &KeepSet, scores: Option<&Expected>) -> Result<(), CaseError> {
    let by_score = rules.rule_set == RuleSet::Hf && rules.mode != SelectionMode::Union;
    for (index, list) in keep.lists().enumerate() {
        let ranked = scores
            .filter(|_| by_score)
            .and_then(|scores| scores.values.get(index).map(|values| (scores.first_row, values)));
        let prefix = ranked.map_or(list.len(), |(first_row, _)| first_row);
        let (ascending, falling) = list.split_at(prefix.min(list.len()));
        if ascending.windows(2).any(|pair| pair[0] >= pair[1]) {
            return Err(differs("kept rows do not ascend"));
        }
        let Some((first_row, values)) = ranked else { continue };
        let score = |row: u32| {
            values.get((row as usize).saturating_sub(first_row)).copied().unwrap_or(f32::NAN)
        };
        if falling.windows(2).any(|pair| score(pair[1]) > score(pair[0]) + 2e-4) {
            return Err(differs("decode rows are not in the order of falling scores"));
        }
    }
    Ok(())
}
