//! Files of log-probabilities: `inspect` and `diff logprobs`.

use std::fmt::Write as _;
use std::path::Path;

use lockstep_diff::logprobs::{
    self, CompareOptions, LogprobDiff, LogprobReport, Settings, Transforms,
};
use lockstep_traces::logprobs::{LogprobFile, Node, asked, documents, read};
use lockstep_traces::tokens::locate;
use lockstep_traces::{TraceError, Verdict};
use serde::Serialize;

use crate::cli::{DiffLogprobsArgs, Format, InspectArgs};
use crate::console;
use crate::exit::{Status, usage};

/// Entries that the text shows.
const MOST_LINES: usize = 12;

#[derive(Serialize)]
struct Answer {
    #[serde(flatten)]
    report: LogprobReport,
    /// Which transform gave each list, where logits are known.
    transforms: Option<Transforms>,
}

/// `inspect` of a file of log-probabilities.
pub(crate) fn inspect(args: &InspectArgs, format: Format) -> anyhow::Result<Status> {
    let file = read(&args.run)?;
    let wanted = args.request.as_deref().map(requested).transpose()?;
    let report = logprobs::inspect(&args.run.display().to_string(), &file, wanted);
    let settings = Settings {
        temperature: positive("--temperature", args.temperature.or(file.settings.temperature))?,
        top_p: positive("--top-p", args.top_p.or(file.settings.top_p))?,
    };
    let transforms = match &args.logits {
        Some(path) => Some(logprobs::identify_rows(&file, &rows(path)?, settings)),
        None => logprobs::identify(&file, settings),
    };
    let mut answer = Answer { report, transforms };
    if let Some(transforms) = &answer.transforms {
        answer.report.verdict = answer.report.verdict.clone().worst(transforms.verdict.clone());
        if answer.report.findings.iter().all(|finding| !finding.grave) {
            answer.report.summary.clone_from(&transforms.summary);
        }
    }
    console::answer(format, &text(&answer), &answer)?;
    Ok(match Status::of(&answer.report.verdict) {
        Status::Parity if !file.complete => Status::Inconclusive,
        status => status,
    })
}

fn positive(name: &str, value: Option<f64>) -> anyhow::Result<f64> {
    let value = value.unwrap_or(1.0);
    if value.is_finite() && value > 0.0 {
        Ok(value)
    } else {
        Err(usage(format!("{name} {value}: a number above 0 is needed")))
    }
}

/// Candidates that a request asks for.
fn requested(path: &Path) -> anyhow::Result<u64> {
    let found = documents(path)?.nodes.iter().find_map(asked);
    found.ok_or_else(|| {
        usage(format!("{}: no `logprobs`, `top_logprobs` or `n_probs` there", path.display()))
    })
}

/// Rows of logits: `logits`, or a list of rows.
fn rows(path: &Path) -> anyhow::Result<Vec<Vec<f64>>> {
    let found = documents(path)?;
    let row = |node: &Node| -> Option<Vec<f64>> {
        node.list()?.iter().map(|node| node.number().map(|number| number.value)).collect()
    };
    let rows = found.nodes.first().and_then(|node| {
        let list = node.get("logits").unwrap_or(node);
        row(list).map(|row| vec![row]).or_else(|| list.list()?.iter().map(row).collect())
    });
    let rows = rows.filter(|rows| rows.iter().all(|row| !row.is_empty()));
    Ok(rows.ok_or_else(|| TraceError::Malformed {
        path: path.to_owned(),
        what: "no logits: `{\"logits\": [..]}` or `{\"logits\": [[..], ..]}` is needed".to_owned(),
    })?)
}

fn text(answer: &Answer) -> String {
    let report = &answer.report;
    let mut out = format!(
        "{}: log-probabilities, {:?}, {} sequences, {} entries\n{}\n",
        report.path,
        report.source,
        report.sequences.len(),
        report.entries,
        report.summary
    );
    for finding in &report.findings {
        let mark = if finding.grave { "!" } else { "-" };
        let entry = finding.entry.map_or_else(String::new, |entry| format!(" entry {entry}"));
        let _ = writeln!(
            out,
            "  {mark} {} (sequence {}{entry}): {}",
            finding.name, finding.sequence, finding.title
        );
    }
    for odd in &report.oddities {
        let _ = writeln!(out, "  note: byte {} ({}): {}", odd.offset, odd.path, odd.what);
    }
    for (index, sequence) in report.sequences.iter().enumerate() {
        let name = sequence.name.as_ref().map_or_else(String::new, |name| format!(" `{name}`"));
        let _ = writeln!(
            out,
            "  sequence {index}{name}: {} entries, {} measured, total {:.6}",
            sequence.entries, sequence.measured, sequence.total_logprob
        );
        for view in sequence.shown.iter().take(MOST_LINES).filter(|_| sequence.name.is_none()) {
            let own = view.entry.logprob.value().map_or_else(
                || view.entry.logprob.spelled().unwrap_or_else(|| "-".to_owned()),
                |value| value.to_string(),
            );
            let token = view.entry.token.text.as_deref().unwrap_or("-");
            let id = view.entry.token.id.map_or_else(String::new, |id| format!(" #{id}"));
            let _ =
                writeln!(out, "    {} {token:?}{id} {own}, {} candidates", view.index, view.pairs);
        }
    }
    for list in answer.transforms.iter().flat_map(|transforms| &transforms.lists) {
        let way =
            if list.to_raw.possible { "can be brought back" } else { "cannot be brought back" };
        let _ = writeln!(
            out,
            "  {}: {}; probabilities sum to {:.6}; {way} to the log-softmax of the logits: {}",
            list.name, list.words, list.probability_sum, list.to_raw.why
        );
    }
    for remark in report.remarks.iter().chain(&report.cannot) {
        let _ = writeln!(out, "  note: {remark}");
    }
    out
}

/// `diff logprobs`.
pub(crate) fn compare(args: &DiffLogprobsArgs, format: Format) -> anyhow::Result<Status> {
    if let Some(temperature) = args.temperature {
        positive("--temperature", Some(temperature))?;
    }
    let (left, right) = (side(&args.baseline)?, side(&args.target)?);
    let options = CompareOptions { temperature: args.temperature, tolerance: args.tolerance };
    let mut answer = logprobs::compare((&args.baseline, &left), (&args.target, &right), options);
    if !(left.complete && right.complete) && answer.verdict.exit_code() == 0 {
        let why = "a file is cut: what it lost was not compared".to_owned();
        answer.verdict = Verdict::Incomparable { why: why.clone() };
        answer.summary = why;
    }
    console::answer(format, &diff_text(&answer), &answer)?;
    Ok(Status::of(&answer.verdict))
}

/// A file; `FILE#name` takes one of its lists.
fn side(argument: &str) -> anyhow::Result<LogprobFile> {
    let (path, name) = locate(argument);
    let mut file = read(&path)?;
    if let Some(name) = name {
        let known: Vec<String> = file.sequences.iter().filter_map(|s| s.name.clone()).collect();
        file.sequences.retain(|sequence| sequence.name.as_ref() == Some(&name));
        if file.sequences.is_empty() {
            return Err(usage(format!(
                "no list `{name}` in {}; there are {}",
                path.display(),
                known.join(", ")
            )));
        }
    }
    Ok(file)
}

fn diff_text(answer: &LogprobDiff) -> String {
    let mut out = format!(
        "{} against {}: {}\n{}\n",
        answer.left,
        answer.right,
        answer.verdict.word(),
        answer.summary
    );
    let _ = writeln!(
        out,
        "  {} entries compared, {} dependent; {} values; {}",
        answer.compared, answer.dependent, answer.values, answer.relation.words
    );
    if let Some(max) = &answer.max_delta {
        let name = max.token.text.clone().or_else(|| max.token.id.map(|id| format!("id {id}")));
        let _ = writeln!(
            out,
            "  largest difference {:.6} at entry {} ({}): {} against {}",
            max.delta,
            max.entry,
            name.unwrap_or_default(),
            max.left,
            max.right
        );
    }
    if let Some(odds) = &answer.log_odds {
        let source = if odds.given { "given" } else { "read off the values" };
        let _ = writeln!(
            out,
            "  log-odds at one scale (temperature {:.4}, {source}): {} compared, largest difference {:.6}",
            odds.temperature, odds.compared, odds.max_delta
        );
    }
    for limit in &answer.limits {
        let _ = writeln!(out, "  not shown: {limit}");
    }
    out
}
