//! Parts of a report that several verbs put together from traces and answers.

use lockstep_diff::report::{DiffReport, SampleDiff};
use lockstep_reports::Report;
use lockstep_reports::build::{self, KeepSets, Labels, RunCounts, TimelineInput};
use lockstep_runtime::tokenize::Tokenizer;
use lockstep_traces::store::RunReader;
use lockstep_traces::{CheckReport, DumpId};

use super::inputs::Trace;

/// Most samples whose curves and strips go into one page; all are in the tables.
const MOST_FIGURES: usize = 4;

/// Most compactions drawn of one sample.
const MOST_MAPS: usize = 4;

/// Text of token ids, where there is a tokenizer that knows them.
pub(crate) fn decode(tokenizer: Option<&Tokenizer>, ids: &[u32]) -> Option<String> {
    tokenizer.and_then(|tokenizer| tokenizer.decode(ids).ok())
}

/// Text of one token.
pub(crate) fn token_bytes(tokenizer: Option<&Tokenizer>, id: u32) -> Vec<u8> {
    tokenizer
        .and_then(|tokenizer| tokenizer.token(id))
        .unwrap_or_else(|| format!("#{id}"))
        .into_bytes()
}

/// Names of a pair: the policies where they differ, else baseline and target.
pub(crate) fn names(diff: &DiffReport) -> (String, String) {
    let name = |side: &lockstep_diff::report::SideInfo| {
        side.rule_set
            .clone()
            .or_else(|| side.policy.clone())
            .unwrap_or_else(|| side.producer.clone())
    };
    let (left, right) = (name(&diff.left), name(&diff.right));
    if left == right { ("baseline".to_owned(), "target".to_owned()) } else { (left, right) }
}

/// Runs, time lines, curves, splits and strips of a pair of traces.
pub(crate) fn add_pair(
    report: &mut Report,
    left: &Trace,
    right: &Trace,
    diff: &DiffReport,
    tokenizer: Option<&Tokenizer>,
) {
    let (left_name, right_name) = names(diff);
    for (trace, name) in [(left, &left_name), (right, &right_name)] {
        let counts = RunCounts {
            samples: trace.loaded.samples.len() as u64,
            rows: trace.loaded.steps.len as u64,
            compactions: trace.loaded.events.len() as u64,
        };
        report.runs.push(build::run_summary(name, &trace.loaded.manifest, counts));
    }
    let labels = Labels { left: &left_name, right: &right_name };
    for sample in shown(diff) {
        add_sample(report, left, right, sample, labels, tokenizer);
    }
}

/// Samples worth a figure: those that part first, and where none does the first ones.
fn shown(diff: &DiffReport) -> Vec<&SampleDiff> {
    let parts =
        |sample: &&SampleDiff| sample.splits.token.is_some() || sample.splits.argmax.is_some();
    let parted: Vec<_> = diff.samples.iter().filter(parts).take(MOST_FIGURES).collect();
    if parted.is_empty() { diff.samples.iter().take(MOST_FIGURES).collect() } else { parted }
}

/// Figures of one sample of a pair.
pub(crate) fn add_sample(
    report: &mut Report,
    left: &Trace,
    right: &Trace,
    sample: &SampleDiff,
    labels: Labels<'_>,
    tokenizer: Option<&Tokenizer>,
) {
    let text = |id: u32| {
        let named = left.names.get(&id).cloned();
        named.unwrap_or_else(|| token_bytes(tokenizer, id))
    };
    let id = sample.sample_id.as_str();
    // Row counts that no source gave are placeholders and are not drawn.
    let inputs: Vec<_> = [(labels.left, left), (labels.right, right)]
        .into_iter()
        .filter(|(_, trace)| trace.loaded.manifest.limits.rows)
        .map(|(label, trace)| TimelineInput {
            label,
            steps: &trace.loaded.steps,
            events: &trace.loaded.events,
        })
        .collect();
    report.timelines.push(build::timeline(id, &inputs, Some((sample, labels))));
    report.curves.push(build::curve(sample, labels));
    let splits = &sample.splits;
    let decisive = splits.token.as_ref().or(splits.argmax.as_ref()).or(splits.logit.as_ref());
    let Some(split) = decisive else { return };
    report.splits_view.push(build::split_view(id, split, labels, &text));
    let steps = (&left.loaded.steps, &right.loaded.steps);
    report.strips.push(build::strip(id, steps, labels, (split.position, 12), &text));
}

/// Keep-set maps of the compactions that a run dumped.
pub(crate) fn add_keep_maps(
    report: &mut Report,
    label: &str,
    run: &RunReader,
    sample: &str,
) -> anyhow::Result<()> {
    let labels = Labels { left: label, right: "" };
    let mut drawn = 0;
    for id in run.dumps()? {
        let DumpId::Compaction { sample_id, ordinal } = &id else { continue };
        if sample_id != sample || drawn == MOST_MAPS {
            continue;
        }
        let Some(dump) = run.dump(&id)? else { continue };
        if !dump.has("keep") {
            continue;
        }
        let sets = KeepSets::read(&dump)?;
        report.keep_maps.push(build::keep_map((sample, *ordinal), &sets, None, labels)?);
        drawn += 1;
    }
    Ok(())
}

/// Adds a check and what it found.
pub(crate) fn add_check(report: &mut Report, check: CheckReport) {
    report.findings.extend(check.findings.iter().cloned());
    for limit in &check.limits {
        if !report.limits.contains(limit) {
            report.limits.push(limit.clone());
        }
    }
    report.checks.push(check);
}
