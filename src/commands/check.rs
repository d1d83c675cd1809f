//! `check`: one run against what must hold.

use std::path::PathBuf;

use lockstep_diff::gather::GatherOptions;
use lockstep_replay::selector::SelectorOptions;
use lockstep_reports::model::{Paragraph, ParagraphKind};
use lockstep_reports::{Report, text};
use lockstep_traces::store::RunReader;
use lockstep_traces::{CheckReport, Verdict};

use super::{pages, replaying};
use crate::cli::{CheckArgs, CheckCommand, Format, SelectorArgs};
use crate::console;
use crate::exit::{Status, usage};

pub(crate) fn execute(command: &CheckCommand, format: Format) -> anyhow::Result<Status> {
    match command {
        CheckCommand::Gather(args) => {
            let run = open(args)?;
            let checks = each(args, |sample_id| {
                Ok(lockstep_diff::gather::check(&run, &GatherOptions { sample_id, ordinal: None })?)
            })?;
            answer("check gather", &run, checks, format)
        }
        CheckCommand::Positions(args) => {
            let run = RunReader::open(&args.run)?;
            let check = lockstep_diff::positions::check(&run)?;
            answer("check positions", &run, vec![check], format)
        }
        CheckCommand::Selector(args) => selector("check selector", args, format),
        CheckCommand::Compaction(args) => super::loose::check_compaction(args, format),
        CheckCommand::Logits(args) => super::loose::check_logits(args, format),
        CheckCommand::Tokens(args) => super::tokens::check(args, format),
        CheckCommand::States(args) => super::states::cache(args, format),
        CheckCommand::Visible(args) => super::states::visible(args, format),
        CheckCommand::Shifts(args) => super::states::shifts(args, format),
        CheckCommand::Keepsets(args) => super::states::keepsets(args, format),
        CheckCommand::Rope(args) => super::rope::execute(args, format),
        CheckCommand::Sampler(args) => super::sampler::execute("check sampler", args, format),
    }
}

/// `check selector` and `replay selector`.
pub(crate) fn selector(verb: &str, args: &SelectorArgs, format: Format) -> anyhow::Result<Status> {
    let run = RunReader::open(&args.run)?;
    let samples = if args.sample.is_empty() {
        vec![None]
    } else {
        args.sample.iter().cloned().map(Some).collect()
    };
    let checks = samples
        .into_iter()
        .map(|sample_id| {
            Ok(lockstep_replay::selector::check(&run, &selector_options(args, &run, sample_id)?)?)
        })
        .collect::<anyhow::Result<Vec<_>>>()?;
    answer(verb, &run, checks, format)
}

/// Statistics and model: as given, else those that the run names, where they are still there.
fn selector_options(
    args: &SelectorArgs,
    run: &RunReader,
    sample_id: Option<String>,
) -> anyhow::Result<SelectorOptions> {
    let manifest = run.manifest();
    let recorded = manifest.get("policy.stats").and_then(|value| value.as_str()).map(PathBuf::from);
    let model = args
        .model
        .clone()
        .or_else(|| manifest.model.path.as_ref().map(PathBuf::from).filter(|dir| dir.is_dir()));
    Ok(SelectorOptions {
        rule_set: args.rule_set,
        stats: args.stats.clone().or_else(|| recorded.filter(|path| path.is_file())),
        model: model.as_deref().map(lockstep_reference::Hyper::config).transpose()?,
        sample_id,
        ordinals: Some(args.ordinals.clone()),
        ..SelectorOptions::default()
    })
}

fn open(args: &CheckArgs) -> anyhow::Result<RunReader> {
    let run = RunReader::open(&args.run)?;
    let known = run.sample_ids()?;
    if let Some(id) = args.sample.iter().find(|id| !known.contains(id)) {
        return Err(usage(format!(
            "no sample `{id}` in {}; there are {}",
            args.run.display(),
            known.join(", ")
        )));
    }
    Ok(run)
}

/// The check for every sample that was named, or once for all.
fn each(
    args: &CheckArgs,
    check: impl Fn(Option<String>) -> anyhow::Result<CheckReport>,
) -> anyhow::Result<Vec<CheckReport>> {
    if args.sample.is_empty() {
        return Ok(vec![check(None)?]);
    }
    args.sample.iter().map(|id| check(Some(id.clone()))).collect()
}

/// Prints one or several checks and turns their verdicts into a status.
pub(crate) fn answer(
    verb: &str,
    run: &RunReader,
    mut checks: Vec<CheckReport>,
    format: Format,
) -> anyhow::Result<Status> {
    for check in &mut checks {
        check.verdict = replaying::finished(run, check.verdict.clone());
    }
    let verdict =
        checks.iter().fold(Verdict::Identical, |worst, check| worst.worst(check.verdict.clone()));
    let mut report =
        Report::new(verb, format!("lockstep {verb} {}", run.dir().display()), verdict.clone());
    for check in &checks {
        report.story.push(Paragraph::new(
            ParagraphKind::Text,
            format!(
                "{} {} compared, {} differ, {} could not be compared.",
                check.compared, check.unit, check.different, check.skipped
            ),
        ));
        pages::add_check(&mut report, check.clone());
    }
    let rendered = text::render(&report, console::text_options());
    match checks.as_slice() {
        [one] => console::answer(format, &rendered, one)?,
        many => console::answer(format, &rendered, &many)?,
    }
    Ok(Status::of(&verdict))
}
