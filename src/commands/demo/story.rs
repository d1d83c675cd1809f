//! The demo's story: what parted, where, and why it is an honest loss or a mistake.

use lockstep_diff::report::{DiffReport, SampleDiff};
use lockstep_diff::stats::{Bootstrap, Case, Names, PairedScores};
use lockstep_reports::build::{self, Labels};
use lockstep_reports::model::{Paragraph, ParagraphKind, PolicyRow};
use lockstep_reports::{Num, Report};
use lockstep_runtime::tokenize::Tokenizer;
use lockstep_traces::store::RunReader;
use lockstep_traces::{Cause, Verdict};

use super::evidence::Evidence;
use super::experiment::{Arm, Recorded, budget};
use crate::commands::pages;
use crate::exit::Status;

/// The story with its report and what it means for the exit status.
pub(super) struct Story {
    pub(super) report: Report,
    /// `honest_loss`, `no_split`, `fault_named`, `fault_missed`, `unexpected`.
    pub(super) word: &'static str,
    pub(super) status: Status,
}

impl Story {
    pub(super) fn tell(
        recorded: &[Recorded],
        evidence: &Evidence,
        plant: Option<Cause>,
        tokenizer: Option<&Tokenizer>,
    ) -> anyhow::Result<Self> {
        let chosen = &recorded[evidence.chosen];
        let diff = chosen.diff(Arm::Trt)?;
        let sample = diff.samples.first().ok_or_else(|| anyhow::anyhow!("nothing was compared"))?;
        let (word, status) = outcome(evidence, plant, sample);
        let command = plant.map_or_else(
            || "lockstep demo".to_owned(),
            |cause| format!("lockstep demo --plant {}", cause.slug()),
        );
        let title = "A compressed cache against its dense control";
        let verdict = if plant.is_none() { diff.verdict.clone() } else { Verdict::Diverged };
        let mut report = Report::new(title, command, verdict);
        report.story = opening(chosen, sample, evidence, plant);
        if plant.is_none() {
            report.policy_table = policies(recorded)?;
            report.story.extend(comparison(&report.policy_table));
        }
        fill(&mut report, recorded, evidence, tokenizer)?;
        Ok(Self { report, word, status })
    }
}

fn outcome(
    evidence: &Evidence,
    plant: Option<Cause>,
    sample: &SampleDiff,
) -> (&'static str, Status) {
    match (plant, evidence.fault()) {
        (Some(planted), Some(named)) if planted == named => ("fault_named", Status::Differs),
        (Some(_), _) => ("fault_missed", Status::Inconclusive),
        (None, None) if !evidence.clean() => ("unexpected", Status::Differs),
        (None, Some(_)) => ("unexpected", Status::Differs),
        (None, None) if sample.splits.token.is_none() => ("no_split", Status::Inconclusive),
        (None, None) => ("honest_loss", Status::Parity),
    }
}

fn item(text: String) -> Paragraph {
    Paragraph::new(ParagraphKind::Item, text)
}

fn opening(
    chosen: &Recorded,
    sample: &SampleDiff,
    evidence: &Evidence,
    plant: Option<Cause>,
) -> Vec<Paragraph> {
    let problem = &chosen.problem;
    let mut story = vec![headline(chosen, sample, evidence, plant)];
    let (prompt, keep) = (problem.request.prompt_ids.len(), budget(problem));
    story.push(Paragraph::new(
        ParagraphKind::Text,
        format!(
            "{}: {} lines, {prompt} prompt tokens, {} completion tokens; budget {keep} rows (the prompt and 0.9 of the completion), \
             compaction every 32 rows, rule set trt.",
            problem.request.sample_id, problem.lines, problem.completion_len
        ),
    ));
    let splits = &sample.splits;
    for (name, split) in [
        ("rows", &splits.structural),
        ("logits", &splits.logit),
        ("argmax", &splits.argmax),
        ("token", &splits.token),
    ] {
        let text = split.as_ref().map_or_else(
            || format!("first difference in {name}: none"),
            |split| format!("first difference in {name}: row {} ({})", split.position, split.note),
        );
        story.push(item(text));
    }
    story.extend(reasons(evidence));
    story
}

fn headline(
    chosen: &Recorded,
    sample: &SampleDiff,
    evidence: &Evidence,
    plant: Option<Cause>,
) -> Paragraph {
    let id = &chosen.problem.request.sample_id;
    let kind = ParagraphKind::Headline;
    match (plant, evidence.fault()) {
        (Some(planted), Some(named)) if planted == named => Paragraph::new(
            kind,
            format!("Planted and named: {} ({}).", named.title(), named.slug()),
        ),
        (Some(planted), named) => Paragraph::new(
            ParagraphKind::Problem,
            format!(
                "Planted {} and named {}.",
                planted.slug(),
                named.map_or("nothing", Cause::slug)
            ),
        ),
        (None, Some(named)) => Paragraph::new(
            ParagraphKind::Problem,
            format!("A mistake, not a loss: {}.", named.title()),
        ),
        (None, None) => match &sample.splits.token {
            Some(split) if evidence.clean() => Paragraph::new(
                kind,
                format!(
                    "{id} parts from its dense control at row {}: an honest loss of the policy, not a bug.",
                    split.position
                ),
            ),
            Some(split) => Paragraph::new(
                ParagraphKind::Problem,
                format!("{id} parts at row {}, and a check fails.", split.position),
            ),
            None => {
                Paragraph::new(kind, "No compressed run parted from its dense control.".to_owned())
            }
        },
    }
}

/// Why it is a loss and no mistake: each line is one check with what it covered.
fn reasons(evidence: &Evidence) -> Vec<Paragraph> {
    let total = |pick: &dyn Fn(&super::evidence::RunChecks) -> (u64, u64)| {
        evidence.checks.iter().map(pick).fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1))
    };
    let gather = total(&|checks| (checks.gather.compared, checks.gather.different));
    let selector = total(&|checks| (checks.selector.compared, checks.selector.different));
    let positions = total(&|checks| (checks.positions.compared, checks.positions.different));
    let mut lines = vec![
        item(format!(
            "gather: {} head tensors compared bit for bit, {} differ",
            gather.0, gather.1
        )),
        item(format!(
            "selector: {} keep-sets recomputed in f64, {} differ",
            selector.0, selector.1
        )),
        item(format!(
            "positions: {} rows and keep-sets checked, {} wrong",
            positions.0, positions.1
        )),
    ];
    for (name, judged) in [
        ("dense control", &evidence.dense),
        ("compressed run, recorded keep-sets", &evidence.recorded),
    ] {
        let text = judged.noise.as_ref().map_or_else(
            || format!("{name} on the reference: {}", judged.self_check.verdict.word()),
            |noise| format!("{name} on the reference: {}", noise.summary),
        );
        lines.push(item(text));
    }
    lines
}

/// Did the run generate what the dense run did?
fn exact(diff: &DiffReport) -> bool {
    diff.splits.token.is_none()
        && diff.samples.iter().all(|sample| sample.rows_left_only + sample.rows_right_only == 0)
}

fn policies(recorded: &[Recorded]) -> anyhow::Result<Vec<PolicyRow>> {
    let arms = [Arm::Trt, Arm::Recent, Arm::Random];
    let outcomes = |arm: Arm| -> anyhow::Result<Vec<bool>> {
        recorded.iter().filter(|one| compacted(one)).map(|one| Ok(exact(one.diff(arm)?))).collect()
    };
    let mine = outcomes(Arm::Trt)?;
    let mut table = Vec::new();
    for arm in arms {
        let theirs = outcomes(arm)?;
        let mut shares: Vec<f64> = recorded
            .iter()
            .filter(|one| compacted(one))
            .map(|one| Ok(prefix_share(one, one.diff(arm)?)))
            .collect::<anyhow::Result<_>>()?;
        shares.sort_by(f64::total_cmp);
        let paired = (arm != Arm::Trt).then(|| paired(recorded, arm, &mine, &theirs));
        table.push(PolicyRow {
            policy: arm.name().to_owned(),
            n: theirs.len() as u64,
            exact: theirs.iter().filter(|exact| **exact).count() as u64,
            right: Some(right(recorded, arm)?),
            first_wrong: None,
            prefix_share: shares.get(shares.len() / 2).copied().map(Num),
            against: (arm != Arm::Trt).then(|| Arm::Trt.name().to_owned()),
            mcnemar_p: paired.as_ref().map(|paired| Num(paired.p_value)),
            paired,
            note: None,
        });
    }
    Ok(table)
}

/// Exact completions of the selector and of another policy, problem by problem.
fn paired(recorded: &[Recorded], arm: Arm, mine: &[bool], theirs: &[bool]) -> PairedScores {
    let ids = recorded
        .iter()
        .filter(|one| compacted(one))
        .map(|one| one.problem.request.sample_id.as_str());
    let cases: Vec<Case<'_>> = ids
        .zip(mine.iter().zip(theirs))
        .map(|(prompt, (left, right))| Case { prompt, left: *left, right: *right })
        .collect();
    let names = Names {
        what: "completions equal to the dense run",
        left: Arm::Trt.name(),
        right: arm.name(),
    };
    PairedScores::of(names, &cases, Bootstrap::default())
}

fn compacted(one: &Recorded) -> bool {
    one.diff(Arm::Trt).is_ok_and(|diff| diff.right.compactions > 0)
}

fn right(recorded: &[Recorded], arm: Arm) -> anyhow::Result<u64> {
    let mut count = 0;
    for one in recorded.iter().filter(|one| compacted(one)) {
        let samples = &one.trace(arm)?.samples;
        count += samples.iter().filter(|row| row.gold.is_some() && row.answer == row.gold).count()
            as u64;
    }
    Ok(count)
}

/// Share of the completion before the first token that differs.
#[expect(clippy::cast_precision_loss, reason = "token counts of at most a few thousand")]
fn prefix_share(one: &Recorded, diff: &DiffReport) -> f64 {
    let prompt = one.problem.request.prompt_ids.len() as f64;
    diff.splits.token.as_ref().map_or(1.0, |split| {
        ((f64::from(split.fed_at) - prompt) / one.problem.completion_len as f64).clamp(0.0, 1.0)
    })
}

fn comparison(table: &[PolicyRow]) -> Vec<Paragraph> {
    let Some(trt) = table.first() else { return Vec::new() };
    let mut lines = vec![Paragraph::new(
        ParagraphKind::Text,
        format!(
            "Beside naive policies at the same budget, over the {} problems that compact:",
            trt.n
        ),
    )];
    for row in table {
        lines.push(item(match &row.paired {
            Some(paired) => paired.to_string(),
            None => format!(
                "{}: {} of {} runs equal the dense run token for token",
                row.policy, row.exact, row.n
            ),
        }));
    }
    lines.push(Paragraph::new(
        ParagraphKind::Text,
        "The sample is small and shows where and why a compressed run parts, not that one policy is better.".to_owned(),
    ));
    lines
}

fn fill(
    report: &mut Report,
    recorded: &[Recorded],
    evidence: &Evidence,
    tokenizer: Option<&Tokenizer>,
) -> anyhow::Result<()> {
    let chosen = &recorded[evidence.chosen];
    let (dense, trt) = (chosen.trace(Arm::Dense)?, chosen.trace(Arm::Trt)?);
    let diff = chosen.diff(Arm::Trt)?;
    pages::add_pair(report, dense, trt, diff, tokenizer);
    let run = RunReader::open(chosen.dir(Arm::Trt)?)?;
    pages::add_keep_maps(report, Arm::Trt.name(), &run, &chosen.problem.request.sample_id)?;
    for (arm, judged) in [(Arm::Dense, &evidence.dense), (Arm::Trt, &evidence.recorded)] {
        let labels = Labels { left: "reference", right: arm.name() };
        report.drift.extend(judged.drift.iter().map(|drift| build::drift(drift, labels)));
        report.noise.extend(judged.noise.clone());
        report.checks.push(judged.self_check.clone());
        report.checks.extend(judged.localized.clone());
    }
    for checks in &evidence.checks {
        for check in [&checks.positions, &checks.gather, &checks.selector] {
            report.checks.push(check.clone());
        }
    }
    report.checks.push(evidence.ties.clone());
    report.findings.clone_from(&evidence.findings);
    report
        .diffs
        .extend(recorded.iter().flat_map(|one| one.diffs.iter().map(|(_, diff)| diff.clone())));
    for check in &report.checks {
        for limit in &check.limits {
            if !report.limits.contains(limit) {
                report.limits.push(limit.clone());
            }
        }
    }
    Ok(())
}
