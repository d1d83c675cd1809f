//! The judgement over a table of arms.

use lockstep_traces::Verdict;
use lockstep_traces::forms::{Arm, ArmTable};
use serde_json::Value;

use super::confounded::Divided;
use super::pointers::{odd_lengths, shared};
use super::{ArmFinding, ArmReport, ControlledPair, LevelJudgement, Question, said};

/// Judges whether differences of `effect` may be put down to the factor; `None` where no arm has it.
#[must_use]
pub fn judge(table: &ArmTable, effect: &str, question: &Question) -> Option<ArmReport> {
    let column = table.factors.iter().position(|factor| *factor == question.factor)?;
    let first = table.arms.first()?;
    let baseline = question.baseline.clone();
    let baseline = baseline.or_else(|| first.levels.get(column).cloned())?;
    let divided = Divided { table, column, baseline };
    let repeat_difference = repeats(table);
    // Two arms that are equal in every factor and differ all the same show what a difference is worth.
    let tolerance = question.tolerance.max(repeat_difference.unwrap_or(0.0));
    let mut levels = Vec::new();
    for arm in divided.side(false) {
        let level = divided.own(arm);
        if !levels.iter().any(|one: &LevelJudgement| one.level == *level) {
            levels.push(of_level(&divided, level, tolerance));
        }
    }
    let open: Vec<&Value> =
        levels.iter().filter(|one| one.outcome == "confounded").map(|one| &one.level).collect();
    let confounders = divided.confounders();
    let missing_controls = divided.missing(&open, &confounders);
    let reference = divided.side(true).next();
    let (affected, unaffected): (Vec<&Arm>, Vec<&Arm>) = table.arms.iter().partition(|arm| {
        reference.is_some_and(|reference| differs(arm.effect, reference.effect, tolerance))
    });
    let mut report = ArmReport {
        factor: question.factor.clone(),
        effect: effect.to_owned(),
        arms: table.arms.len(),
        attributable: false,
        confounders,
        missing_controls,
        affected: affected.iter().map(|arm| arm.name.clone()).collect(),
        shared_by_affected: shared(&divided, &affected, &unaffected),
        same_score: same_score(&divided, &affected),
        odd_lengths: odd_lengths(&divided, question.block, &affected, &unaffected),
        repeat_difference,
        baseline_level: divided.baseline,
        levels,
        findings: Vec::new(),
        limits: Vec::new(),
        verdict: Verdict::Identical,
        summary: String::new(),
    };
    conclude(table, tolerance, &mut report);
    report.findings = findings(&report);
    Some(report)
}

fn differs(left: f64, right: f64, tolerance: f64) -> bool {
    (left - right).abs() > tolerance
}

/// Largest difference of two arms with the same levels everywhere.
fn repeats(table: &ArmTable) -> Option<f64> {
    let mut most: Option<f64> = None;
    for (at, left) in table.arms.iter().enumerate() {
        for right in table.arms[at + 1..].iter().filter(|right| right.levels == left.levels) {
            let difference = (left.effect - right.effect).abs();
            most = Some(most.map_or(difference, |most| most.max(difference)));
        }
    }
    most
}

fn of_level(divided: &Divided<'_>, level: &Value, tolerance: f64) -> LevelJudgement {
    let (mut pairs, mut differing, mut controlled) = (0, 0, Vec::new());
    for left in divided.side(true) {
        for right in divided.side(false).filter(|arm| divided.own(arm) == level) {
            let difference = right.effect - left.effect;
            let differs = difference.abs() > tolerance;
            pairs += 1;
            differing += usize::from(differs);
            if divided.controlled(left, right) {
                controlled.push(ControlledPair {
                    baseline: left.name.clone(),
                    arm: right.name.clone(),
                    difference,
                    differs,
                });
            }
        }
    }
    let with = controlled.iter().filter(|pair| pair.differs).count();
    let up = controlled.iter().filter(|pair| pair.differs && pair.difference > 0.0).count();
    let outcome = match (differing, controlled.len()) {
        (0, _) => "no_effect",
        (_, 0) => "confounded",
        (_, all) if with == all && (up == 0 || up == all) => "supported",
        _ if with == 0 => "contradicted",
        _ => "interaction",
    };
    let outcome = outcome.to_owned();
    LevelJudgement { level: level.clone(), outcome, pairs, differing, controlled }
}

/// The one score of affected arms of several levels.
fn same_score(divided: &Divided<'_>, affected: &[&Arm]) -> Option<f64> {
    let first = affected.first()?;
    let several = affected.iter().any(|arm| divided.own(arm) != divided.own(first));
    let equal = affected.iter().all(|arm| arm.effect.total_cmp(&first.effect).is_eq());
    (several && equal).then_some(first.effect)
}

fn conclude(table: &ArmTable, tolerance: f64, report: &mut ArmReport) {
    for name in &table.without_effect {
        report.limits.push(format!("{name} has no {} and was not judged", report.effect));
    }
    report.limits.push(format!(
        "a difference of more than {tolerance} counts; how many samples a score stands on is not read"
    ));
    let has = |outcome: &str| report.levels.iter().any(|one| one.outcome == outcome);
    let of = |outcome: &str| {
        let levels = report.levels.iter().filter(|one| one.outcome == outcome);
        levels.map(|one| said(&one.level)).collect::<Vec<_>>().join(", ")
    };
    let factor = &report.factor;
    let one_side = report.levels.is_empty()
        || table.arms.iter().all(|arm| {
            let column = table.factors.iter().position(|name| name == factor);
            column.and_then(|column| arm.levels.get(column)) != Some(&report.baseline_level)
        });
    report.verdict = if one_side {
        let level = said(&report.baseline_level);
        let why = format!("{factor} has one level, or no arm has the baseline's ({level})");
        Verdict::Incomparable { why }
    } else if has("contradicted") {
        Verdict::Diverged
    } else if has("confounded") {
        let always = report.confounders.iter().filter(|one| one.always && one.part_of.is_none());
        let names: Vec<&str> = always.map(|one| one.factor.as_str()).collect();
        let why = if names.is_empty() {
            format!("no two arms differ in {factor} alone ({})", of("confounded"))
        } else {
            format!("{factor} and {} change together in every arm", names.join(", "))
        };
        Verdict::Incomparable { why }
    } else if has("interaction") {
        let why = format!("controlled pairs disagree about {factor} ({})", of("interaction"));
        Verdict::Incomparable { why }
    } else if has("supported") {
        Verdict::Identical
    } else {
        Verdict::Incomparable { why: format!("no {} differs with {factor}", report.effect) }
    };
    report.attributable = report.verdict == Verdict::Identical;
    report.summary = match &report.verdict {
        Verdict::Incomparable { why } => {
            format!("the difference may not be put down to {factor}: {why}")
        }
        Verdict::Diverged => {
            format!(
                "the difference is not of {factor}: controlled pairs do not differ ({})",
                of("contradicted")
            )
        }
        _ => format!(
            "the difference may be put down to {factor}: every controlled pair differs ({})",
            of("supported")
        ),
    };
}

fn findings(report: &ArmReport) -> Vec<ArmFinding> {
    let mut out = confounded(report);
    out.extend(controls(report));
    // Where a control supports the attribution, what else the arms share explains nothing.
    if !report.attributable {
        out.extend(hints(report));
    }
    let none = report.levels.iter().all(|one| one.outcome == "no_effect");
    if let Some(noise) = report.repeat_difference.filter(|_| none) {
        let title =
            format!("arms equal in every factor differ by {noise}: no difference is larger");
        out.push(ArmFinding::new("noise_above_effect", title));
    }
    out
}

fn confounded(report: &ArmReport) -> Vec<ArmFinding> {
    let factor = &report.factor;
    if !report.levels.iter().any(|one| one.outcome == "confounded") {
        return Vec::new();
    }
    let always: Vec<_> = report.confounders.iter().filter(|one| one.always).collect();
    if always.is_empty() {
        let names: Vec<&str> = report.confounders.iter().map(|one| one.factor.as_str()).collect();
        let title = format!("in every pair another factor differs too: {}", names.join(", "));
        return vec![ArmFinding::new("jointly_confounded", title)];
    }
    let own = always.iter().filter(|one| one.part_of.is_none());
    own.map(|one| {
        let title =
            format!("{factor} and {} change together in every arm: fully confounded", one.factor);
        ArmFinding::new("fully_confounded", title)
    })
    .collect()
}

fn controls(report: &ArmReport) -> Vec<ArmFinding> {
    let (factor, mut out) = (&report.factor, Vec::new());
    for one in report.levels.iter().filter(|one| one.outcome == "contradicted") {
        for pair in &one.controlled {
            let (left, right) = (&pair.baseline, &pair.arm);
            let title = format!("{left} and {right} differ in {factor} alone and score the same");
            out.push(ArmFinding::new("control_contradicts", title));
        }
    }
    for one in report.levels.iter().filter(|one| one.outcome == "interaction") {
        let title = format!(
            "{factor} = {} changes the score in some controlled pairs and not, or the other way, in others",
            said(&one.level)
        );
        out.push(ArmFinding::new("controls_disagree", title));
    }
    for control in &report.missing_controls {
        let pairs = control.controls.join(", ");
        let title = format!("missing control: {} (pairs with {pairs})", control.words);
        out.push(ArmFinding::new("missing_control", title));
    }
    out
}

/// What points elsewhere.
fn hints(report: &ArmReport) -> Vec<ArmFinding> {
    let (factor, mut out) = (&report.factor, Vec::new());
    if let Some(score) = report.same_score {
        let title = format!(
            "{} score the same {score} at different levels of {factor}: this points to what they share",
            report.affected.join(", ")
        );
        out.push(ArmFinding::new("same_at_every_level", title));
    }
    for one in report.shared_by_affected.iter().filter(|one| one.also_unaffected.is_empty()) {
        let level = said(&one.level);
        let title =
            format!("every affected arm has {} = {level}, and no other arm has it", one.factor);
        out.push(ArmFinding::new("goes_with", title));
    }
    for one in &report.odd_lengths {
        let also = if one.unaffected.is_empty() {
            String::new()
        } else {
            format!("; unaffected {} has it too", one.unaffected.join(", "))
        };
        let title = format!(
            "{} {} mod {} = {}: the length of {} is no multiple of {}{also}",
            one.factor,
            one.length,
            one.block,
            one.remainder,
            one.affected.join(", "),
            one.block
        );
        out.push(ArmFinding::new("odd_length", title));
    }
    out
}
