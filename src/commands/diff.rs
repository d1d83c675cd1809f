//! `diff`: where two traces part.

use std::path::Path;

use lockstep_diff::{DiffReport, Options};
use lockstep_reports::model::{Paragraph, ParagraphKind};
use lockstep_reports::{Report, write_all};
use lockstep_runtime::tokenize::Tokenizer;
use lockstep_traces::Status as RunStatus;
use lockstep_traces::store::{RunReader, is_run};

use super::inputs::Trace;
use super::{audit, numbering, pages, settings};
use crate::cli::{DiffArgs, Format};
use crate::console;
use crate::exit::{Status, usage};

pub(crate) fn execute(args: &DiffArgs, format: Format) -> anyhow::Result<Status> {
    let mut left = Trace::read(&args.baseline)?;
    let mut right = Trace::read(&args.target)?;
    for id in &args.sample {
        if !left.loaded.samples.contains(id) {
            return Err(usage(format!("no sample `{id}` in {}", left.label)));
        }
    }
    if !args.sample.is_empty() {
        left.keep_only(&args.sample);
        right.keep_only(&args.sample);
    }
    if args.pair_by_order {
        right.rename_as(&left);
    }
    if args.manifest {
        return settings::execute(&left, &right, format);
    }
    let ignored = audit::ignored(&args.ignore_audit)?;
    let control = args.control.as_deref().map(Trace::read).transpose()?;
    let truth = args.truth.as_deref().map(Trace::read).transpose()?;
    let tokenizer = args.model.as_deref().map(tokenizer).transpose()?.flatten();
    if control.is_some() && [&left, &right].iter().any(|side| side.numbers_texts()) {
        return Err(usage(
            "--control needs token ids on every side; a run that gives texts only has none",
        ));
    }
    let joined = numbering::join(&mut left, &mut right, tokenizer.as_ref())?;
    let mut report =
        compare(&left, &right, truth.as_ref().zip(control.as_ref()), tokenizer.as_ref());
    report.limits.extend(joined);
    report.limits.extend(dumps(args));
    audit::of_pair(&left, &right, &mut report, &ignored);
    let page = page(&left, &right, &report, tokenizer.as_ref(), args);
    if let Some(out) = &args.out {
        let files = write_all(&page, out)?;
        if let Some(first) = files.first() {
            console::note(&format!("report: {}", first.display()));
        }
    }
    console::answer(
        format,
        &lockstep_reports::text::render(&page, console::text_options()),
        &report,
    )?;
    let complete =
        [&left, &right].iter().all(|side| side.loaded.manifest.status == RunStatus::Complete);
    let contradiction = report.list_faults.iter().find(|fault| fault.kind.contradiction());
    if let Some(fault) = contradiction {
        let place = fault.position.map_or_else(String::new, |at| format!("position {at}: "));
        let side = if fault.side == "left" { &left } else { &right };
        console::note(&format!(
            "lockstep: {}: {place}{}; record or import it again",
            side.label, fault.what
        ));
        return Ok(Status::Unreadable);
    }
    Ok(match Status::of(&report.verdict) {
        Status::Parity if !complete => Status::Inconclusive,
        status => status,
    })
}

/// Compares two traces; with `(truth, control)` noise is judged by ratio.
pub(crate) fn compare(
    left: &Trace,
    right: &Trace,
    control: Option<(&Trace, &Trace)>,
    tokenizer: Option<&Tokenizer>,
) -> DiffReport {
    let decode = |ids: &[u32]| pages::decode(tokenizer, ids).or_else(|| joined_text(left, ids));
    let sides = control.map(|(truth, control)| (truth.side(), control.side()));
    let options = Options {
        control: sides.as_ref().map(|(truth, control)| (truth, control)),
        decode: (tokenizer.is_some() || !left.names.is_empty()).then_some(&decode),
        // A trace held against itself has one numbering.
        joint_ids: (left.joint && right.joint) || std::ptr::eq(left, right),
        ..Options::default()
    };
    lockstep_diff::compare(&left.side(), &right.side(), options)
}

/// Text of ids of a joint numbering; parts of characters that no neighbour completes come out as U+FFFD.
fn joined_text(trace: &Trace, ids: &[u32]) -> Option<String> {
    let bytes: Option<Vec<&[u8]>> =
        ids.iter().map(|id| trace.names.get(id).map(Vec::as_slice)).collect();
    Some(String::from_utf8_lossy(&bytes?.concat()).into_owned())
}

/// Two runs that both hold dumps: rows were compared, tensors were not.
fn dumps(args: &DiffArgs) -> Option<String> {
    let count = |path: &Path| {
        let run = is_run(path).then(|| RunReader::open(path).ok()).flatten()?;
        // A folder of dumps that cannot be listed is the affair of whoever reads dumps.
        let dumps = run.dumps().ok()?.len();
        (dumps > 0).then_some(dumps)
    };
    let (l, r) = count(&args.baseline).zip(count(&args.target))?;
    Some(format!(
        "dumps of tensors were not compared ({l} on the left, {r} on the right): `lockstep diff tensors {} {}` does",
        args.baseline.join("tensors").display(),
        args.target.join("tensors").display()
    ))
}

/// The tokenizer of a model folder, or the folder of a tokenizer.json.
fn tokenizer(path: &Path) -> anyhow::Result<Option<Tokenizer>> {
    let folder = path.is_dir() || lockstep_traces::gguf::is_gguf(path);
    let dir = if folder { path } else { path.parent().unwrap_or(path) };
    let tokenizer = Tokenizer::read(dir)?;
    if tokenizer.is_none() {
        return Err(usage(format!("--model {}: no tokenizer there", dir.display())));
    }
    Ok(tokenizer)
}

fn page(
    left: &Trace,
    right: &Trace,
    diff: &DiffReport,
    tokenizer: Option<&Tokenizer>,
    args: &DiffArgs,
) -> Report {
    let command = format!("lockstep diff {} {}", args.baseline.display(), args.target.display());
    let mut report = Report::new("Where two traces part", command, diff.verdict.clone());
    report.story.push(Paragraph::new(ParagraphKind::Headline, diff.summary.clone()));
    audit::add_paragraphs(&mut report, diff);
    pages::add_pair(&mut report, left, right, diff, tokenizer);
    report.findings.clone_from(&diff.findings);
    report.limits.clone_from(&diff.limits);
    report.diffs.push(diff.clone());
    report
}
