//! `bench score`: who is right by which rule, and whether two scores differ by more than chance.

use std::path::Path;

use lockstep_diff::answers::{ScoreOptions, ScoreReport, Scorer, Versus, versus};
use lockstep_diff::stats::{Bootstrap, Gate, GateRule, Shown};
use lockstep_traces::answers::{Fields, read_answers};
use serde::Serialize;

use super::scoretext;
use crate::cli::{Format, GateReference, ScoreArgs};
use crate::console;
use crate::exit::{Status, usage};

/// A score held against a reference.
#[derive(Debug, Serialize)]
pub(super) struct Gated {
    /// File or run.
    pub(super) label: String,
    /// Filter.
    pub(super) filter: String,
    /// Outcome; `null` where nothing was scored.
    pub(super) gate: Option<Gate>,
}

/// What `bench score` answers. Keys are stable.
#[derive(Debug, Serialize)]
pub(super) struct Answer {
    /// Scores, the baseline first.
    pub(super) inputs: Vec<ScoreReport>,
    /// Each target against the baseline.
    pub(super) versus: Vec<Versus>,
    /// Gates, where asked for.
    pub(super) gates: Vec<Gated>,
}

pub(super) fn execute(args: &ScoreArgs, format: Format) -> anyhow::Result<Status> {
    let how = bootstrap(args)?;
    let rule = gate_rule(args)?;
    let mut paths: Vec<&Path> = args.baseline.iter().map(std::path::PathBuf::as_path).collect();
    paths.extend(args.inputs.iter().map(std::path::PathBuf::as_path));
    let inputs = paths.iter().map(|path| score(path, args)).collect::<anyhow::Result<Vec<_>>>()?;
    let versus: Vec<Versus> = match inputs.as_slice() {
        [baseline, targets @ ..] => {
            targets.iter().map(|target| versus(baseline, target, how)).collect()
        }
        [] => Vec::new(),
    };
    if args.gate == Some(GateReference::Baseline) && versus.is_empty() {
        return Err(usage("--gate baseline needs a baseline: give two inputs, or points"));
    }
    let mut answer = Answer { inputs, versus, gates: Vec::new() };
    answer.gates = args.gate.map_or_else(Vec::new, |reference| gates(&answer, reference, rule));
    console::answer(format, &scoretext::render(&answer, args.rows), &answer)?;
    Ok(status(&answer, args.gate.is_some()))
}

fn bootstrap(args: &ScoreArgs) -> anyhow::Result<Bootstrap> {
    let range = 40..=1_000_000;
    if !range.contains(&args.resamples) {
        return Err(usage(format!("--resamples {}: from 40 to 1000000", args.resamples)));
    }
    Ok(Bootstrap { resamples: args.resamples, seed: args.resample_seed })
}

fn gate_rule(args: &ScoreArgs) -> anyhow::Result<GateRule> {
    let rule = GateRule { alpha: args.gate_alpha, beta: args.gate_beta, sigma: args.gate_sigma };
    if rule.theta(1).is_none_or(|theta| theta <= 0.0) {
        let what = "--gate-alpha and --gate-beta lie between 0 and 1 with a sum below 1, --gate-sigma above 0";
        return Err(usage(what));
    }
    Ok(rule)
}

fn score(path: &Path, args: &ScoreArgs) -> anyhow::Result<ScoreReport> {
    let fields = Fields {
        id: args.id_field.clone(),
        gold: args.gold_field.clone(),
        answer: args.answer_field.clone(),
        text: args.text_field.clone(),
    };
    let mut scorer = Scorer::new(ScoreOptions { rule: args.rule, normalise: args.normalise });
    let source = read_answers(path, &fields, |row| scorer.push(row))?;
    let label = path.display().to_string();
    let report = scorer.finish(&label, &source);
    if let Some(one) = report.conflicts.first() {
        let lines: Vec<String> = one.lines.iter().map(u64::to_string).collect();
        let filter = one.filter.as_ref().map_or_else(String::new, |name| format!(", {name}"));
        anyhow::bail!(
            "{label}: lines {} hold ({}{filter}) with different content; keep the row that counts ({} such questions)",
            lines.join(", "),
            one.id,
            report.conflicts.len()
        );
    }
    Ok(report)
}

/// One gate for each target and filter; without a baseline for the input itself.
fn gates(answer: &Answer, reference: GateReference, rule: GateRule) -> Vec<Gated> {
    let points = |share: f64| 100.0 * share;
    match reference {
        GateReference::Points(reference) => {
            let own = usize::from(answer.inputs.len() > 1);
            let targets = answer.inputs.iter().skip(own);
            targets
                .flat_map(|input| input.filters.iter().map(move |filter| (input, filter)))
                .map(|(input, filter)| Gated {
                    label: input.label.clone(),
                    filter: filter.filter.clone(),
                    gate: filter
                        .score
                        .value()
                        .and_then(|share| rule.hold(points(share), reference, filter.score.n)),
                })
                .collect()
        }
        GateReference::Baseline => answer
            .versus
            .iter()
            .flat_map(|one| one.pairs.iter().map(move |pair| (one, pair)))
            .map(|(one, pair)| {
                let values = pair.scores.left_score.value().zip(pair.scores.right_score.value());
                Gated {
                    label: one.right.clone(),
                    filter: pair.right_filter.clone(),
                    gate: values.and_then(|(left, right)| {
                        rule.hold(points(right), points(left), pair.scores.n)
                    }),
                }
            })
            .collect(),
    }
}

/// Gates decide where there are any. Else two sides are alike only if every pair is and there are enough of them; one input is
/// answered as soon as something was scored.
fn status(answer: &Answer, gated: bool) -> Status {
    if answer.inputs.iter().any(|input| input.gold_echo.is_some()) {
        return Status::Differs;
    }
    if answer.inputs.iter().any(|input| input.scored() == 0) {
        return Status::Inconclusive;
    }
    if gated {
        let all: Option<Vec<bool>> =
            answer.gates.iter().map(|one| one.gate.as_ref().map(|gate| gate.passed)).collect();
        return match all {
            Some(passed) if !passed.is_empty() && passed.iter().all(|one| *one) => Status::Parity,
            Some(passed) if !passed.is_empty() => Status::Differs,
            _ => Status::Inconclusive,
        };
    }
    let each: Vec<Status> = answer.versus.iter().map(of_versus).collect();
    // One shown difference is an answer, whatever else stays open.
    let differs = each.contains(&Status::Differs).then_some(Status::Differs);
    differs.or(each.into_iter().max()).unwrap_or(Status::Parity)
}

/// Differs before inconclusive: one shown difference is an answer.
fn of_versus(one: &Versus) -> Status {
    let shown: Vec<Shown> = one.pairs.iter().map(|pair| pair.scores.shown()).collect();
    let covered = one.left_filters.is_empty()
        && one.right_filters.is_empty()
        && one.pairs.iter().all(|pair| pair.other_gold.is_empty() && pair.other_prompt.is_empty());
    if shown.iter().any(|one| matches!(one, Shown::Left | Shown::Right)) {
        Status::Differs
    } else if covered && !shown.is_empty() && shown.iter().all(|one| *one == Shown::Equal) {
        Status::Parity
    } else {
        Status::Inconclusive
    }
}
