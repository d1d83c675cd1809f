//! The matrix: what the selection would be under one known mistake at a time.

use lockstep_reference::select::{
    Deviation, GroupOrder, HeadUse, Input, KeyForm, Rules, TieBreak, ZRows,
};
use lockstep_traces::{Aggregation, Cause, PolicySpec, RuleSet, SelectionMode};

use super::settings::{Model, fallback_omega, rules};
use super::setup::{GuardEdit, Setup};

/// One mistake.
#[derive(Debug, Clone)]
pub(super) struct Hypothesis {
    pub(super) name: &'static str,
    pub(super) cause: Option<Cause>,
    pub(super) setup: Setup,
}

/// Every hypothesis that changes something in this setup at this moment.
pub(super) fn matrix(
    base: &Setup,
    spec: &PolicySpec,
    model: &Model,
    input: &Input<'_>,
) -> Vec<Hypothesis> {
    let mut list = Vec::new();
    let mut add = |name, cause, change: &dyn Fn(&mut Setup)| {
        let mut setup = base.clone();
        change(&mut setup);
        list.push(Hypothesis { name, cause, setup });
    };
    scores(base, model, input, &mut add);
    normalisation(base, &mut add);
    reduction(base, &mut add);
    guards(base, &mut add);
    let other = match base.recipe.ties {
        TieBreak::LowerRow => TieBreak::HigherRow,
        TieBreak::HigherRow => TieBreak::LowerRow,
    };
    add("tie_order_reversed", Some(Cause::TieOrder), &|setup| setup.recipe.ties = other);
    rule_sets(base, spec, &mut list);
    list
}

type Add<'a> = dyn FnMut(&'static str, Option<Cause>, &dyn Fn(&mut Setup)) + 'a;

fn scores(base: &Setup, model: &Model, input: &Input<'_>, add: &mut Add<'_>) {
    let rows = input.rows();
    if rows != input.moment.round_start {
        let cause = Some(Cause::RoundStartRows);
        add("round_start_rows", cause, &|setup| setup.round_start = Some(rows));
    }
    match base.recipe.keys {
        KeyForm::Rotated => {
            add("keys_unrotated", None, &|setup| setup.recipe.keys = KeyForm::Unrotated);
        }
        KeyForm::Unrotated => {
            add("keys_rotated", None, &|setup| setup.recipe.keys = KeyForm::Rotated);
        }
    }
    let fallback = fallback_omega(model.stats.freqs());
    if fallback.len() == model.stats.freqs() && fallback != model.stats.omega() {
        let cause = Some(Cause::RotaryBase);
        add("theta_10000", cause, &|setup| setup.omega = Some(fallback.clone()));
    }
    if let Some(omega) = &model.other_omega {
        add("other_frequencies", None, &|setup| setup.omega = Some(omega.clone()));
    }
    match base.recipe.heads {
        HeadUse::PerHead if base.recipe.mode != SelectionMode::Union => {
            add("stats_by_kv_head", None, &|setup| setup.recipe.heads = HeadUse::GroupMean);
        }
        HeadUse::GroupMean => {
            add("stats_by_attention_head", None, &|setup| setup.recipe.heads = HeadUse::PerHead);
        }
        HeadUse::PerHead => {}
    }
}

fn normalisation(base: &Setup, add: &mut Add<'_>) {
    if !base.recipe.normalize {
        return;
    }
    let all = [
        ("zscore_all_rows", ZRows::All),
        ("zscore_candidates", ZRows::Candidates),
        ("zscore_decode_rows", ZRows::Decode),
    ];
    for (name, rows) in all {
        if rows != base.recipe.z_rows {
            add(name, Some(Cause::ZscoreRows), &|setup| setup.recipe.z_rows = rows);
        }
    }
    let (name, deviation) = match base.recipe.deviation {
        Deviation::Sample => ("zscore_population", Deviation::Population),
        Deviation::Population => ("zscore_sample", Deviation::Sample),
    };
    add(name, Some(Cause::ZscorePopulation), &|setup| setup.recipe.deviation = deviation);
    add("zscore_none", None, &|setup| setup.recipe.normalize = false);
}

fn reduction(base: &Setup, add: &mut Add<'_>) {
    let flip = |how: Aggregation| match how {
        Aggregation::Mean => Aggregation::Max,
        Aggregation::Max => Aggregation::Mean,
    };
    match base.recipe.group_order {
        GroupOrder::AfterZ if base.recipe.heads == HeadUse::PerHead => {
            add("group_before_z", None, &|setup| setup.recipe.group_order = GroupOrder::BeforeZ);
        }
        GroupOrder::AfterZ => {}
        GroupOrder::BeforeZ => {
            add("group_after_z", None, &|setup| setup.recipe.group_order = GroupOrder::AfterZ);
        }
    }
    let (group, layers) = (flip(base.recipe.group), flip(base.recipe.layers));
    let name = if group == Aggregation::Mean { "group_mean" } else { "group_max" };
    add(name, None, &|setup| setup.recipe.group = group);
    if base.recipe.mode == SelectionMode::PerHead {
        let name = if layers == Aggregation::Max { "layer_max" } else { "layer_mean" };
        add(name, Some(Cause::LayerMax), &|setup| setup.recipe.layers = layers);
    }
}

fn guards(base: &Setup, add: &mut Add<'_>) {
    let windowed = matches!(base.rules.rule_set, RuleSet::Trt | RuleSet::Vllm);
    if windowed && base.rules.recent_window > 0 {
        let cause = Some(Cause::WindowRowLost);
        add("window_newest_row_free", cause, &|setup| setup.guard = GuardEdit::NewestFree);
        add("window_shifted", cause, &|setup| setup.guard = GuardEdit::Shifted);
        add("window_newest_row_dropped", cause, &|setup| setup.guard = GuardEdit::NewestDropped);
        add("window_0", None, &|setup| setup.rules.recent_window = 0);
    }
    if windowed && base.rules.recent_window != 128 {
        add("window_128", None, &|setup| setup.rules.recent_window = 128);
    }
    let protects = base.rules.protect_prefill;
    let name = if protects { "prompt_unprotected" } else { "prompt_protected" };
    add(name, None, &|setup| setup.rules.protect_prefill = !protects);
}

fn rule_sets(base: &Setup, spec: &PolicySpec, list: &mut Vec<Hypothesis>) {
    let all = [
        ("rules_trt", RuleSet::Trt),
        ("rules_hf", RuleSet::Hf),
        ("rules_vllm", RuleSet::Vllm),
        ("rules_sglang", RuleSet::Sglang),
    ];
    for (name, rule_set) in all {
        if rule_set == base.rules.rule_set {
            continue;
        }
        let other: Option<Rules> = rules(spec, Some(rule_set)).ok();
        if let Some(rules) = other {
            list.push(Hypothesis { name, cause: None, setup: Setup::of(rules) });
        }
    }
}
