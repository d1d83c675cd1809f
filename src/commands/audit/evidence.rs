//! From paths to facts.

use std::path::Path;

use anyhow::Context as _;
use lockstep_diff::audits::Evidence;
use lockstep_diff::audits::facts::{Kind, Subject};
use lockstep_diff::audits::subjects_of;
use lockstep_traces::CheckReport;
use lockstep_traces::artifacts::{self, Artifact};
use lockstep_traces::store::is_run;

use super::{imported, ledger, subject};
use crate::cli::AuditArgs;
use crate::commands::inputs::Trace;

/// One file as it was read.
enum Part {
    /// A run folder or a trace.
    Trace(Box<Trace>),
    /// Facts that need no rows; several where a file speaks of several runs.
    Facts(Vec<Subject<'static>>),
}

/// What one PATH names: a file, or several files about one run.
pub(super) struct Source {
    parts: Vec<Part>,
    side: Option<Side>,
    log: Option<Vec<String>>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Side {
    Left,
    Right,
}

/// Reads everything that was named.
pub(super) fn read(args: &AuditArgs) -> anyhow::Result<Vec<Source>> {
    let mut sources = Vec::new();
    for (path, side) in args.pair.iter().zip([Side::Left, Side::Right]) {
        sources.push(source(path, Some(side))?);
    }
    for path in &args.paths {
        sources.push(source(path, None)?);
    }
    if let Some(path) = &args.log {
        let bytes = std::fs::read(path).with_context(|| path.display().to_string())?;
        let lines = String::from_utf8_lossy(&bytes).lines().map(str::to_owned).collect();
        let target = sources.iter().position(|source| source.side == Some(Side::Right));
        let last = sources.len().saturating_sub(1);
        if let Some(source) = sources.get_mut(target.unwrap_or(last)) {
            source.log = Some(lines);
        }
    }
    Ok(sources)
}

/// `A+B` where no file has that name.
fn source(path: &str, side: Option<Side>) -> anyhow::Result<Source> {
    let names: Vec<&str> =
        if Path::new(path).exists() { vec![path] } else { path.split('+').collect() };
    let parts: Vec<Vec<Part>> =
        names.into_iter().map(|name| part(Path::new(name))).collect::<anyhow::Result<_>>()?;
    let parts = parts.into_iter().flatten().collect();
    Ok(Source { parts, side, log: None })
}

fn part(path: &Path) -> anyhow::Result<Vec<Part>> {
    if is_run(path) {
        if let Some(facts) = imported::subject(path)? {
            return Ok(vec![Part::Facts(vec![facts])]);
        }
        return Ok(vec![Part::Trace(Box::new(Trace::read(path)?))]);
    }
    if path.is_dir() {
        anyhow::bail!(
            "{}: no run: a run folder holds manifest.json; else give files",
            path.display()
        );
    }
    if ledger::is_ledger(path) {
        return Ok(vec![Part::Facts(vec![ledger::subject(path)?])]);
    }
    if let Some(facts) = answer(path)? {
        return Ok(vec![Part::Facts(facts)]);
    }
    match artifacts::read(path)? {
        // A replay's rows are a trace; what it believed stands beside them.
        Some(replay @ Artifact::Replay(_)) => {
            let facts = subjects_of(&replay, &path.display().to_string());
            Ok(vec![Part::Trace(Box::new(Trace::read(path)?)), Part::Facts(facts)])
        }
        Some(artifact) => {
            let mut facts = subjects_of(&artifact, &path.display().to_string());
            for subject in &mut facts {
                subject.made.modified_at = modified(path);
            }
            Ok(vec![Part::Facts(facts)])
        }
        None => Ok(vec![Part::Trace(Box::new(Trace::read(path)?))]),
    }
}

/// Most bytes of an answer; a larger file is a trace.
const LONGEST_ANSWER: u64 = 64 << 20;

/// The answer of a check, `--format json`: one report or a list of them.
fn answer(path: &Path) -> anyhow::Result<Option<Vec<Subject<'static>>>> {
    let length = std::fs::metadata(path).with_context(|| path.display().to_string())?.len();
    if length > LONGEST_ANSWER {
        return Ok(None);
    }
    let bytes = std::fs::read(path).with_context(|| path.display().to_string())?;
    let checks = serde_json::from_slice::<CheckReport>(&bytes)
        .map(|one| vec![one])
        .or_else(|_| serde_json::from_slice::<Vec<CheckReport>>(&bytes));
    let Ok(checks) = checks else { return Ok(None) };
    if checks.is_empty() {
        return Ok(None);
    }
    let mut subject = Subject::new(path.display().to_string(), Kind::Check);
    subject.made.modified_at = modified(path);
    subject.checks = checks;
    Ok(Some(vec![subject]))
}

/// Modification time as RFC 3339 in UTC.
fn modified(path: &Path) -> Option<String> {
    let time = std::fs::metadata(path).ok()?.modified().ok()?;
    let elapsed = time.duration_since(std::time::UNIX_EPOCH).ok()?;
    Some(crate::commands::recording::rfc3339(elapsed.as_secs()))
}

/// The evidence. Without `--pair` the first run is the baseline and every other a target; where there are no two runs, the
/// bundles take their place.
pub(super) fn gather(sources: &[Source]) -> Evidence<'_> {
    let mut evidence = Evidence::default();
    for source in sources {
        let from = evidence.subjects.len();
        evidence.subjects.extend(subjects(source));
        let added = from..evidence.subjects.len();
        match source.side {
            Some(Side::Left) => evidence.left.extend(added),
            Some(Side::Right) => evidence.right.extend(added),
            None => {}
        }
    }
    if evidence.left.is_empty() && evidence.right.is_empty() {
        let of = |wanted: &dyn Fn(Kind) -> bool| -> Vec<usize> {
            let all = evidence.subjects.iter().enumerate();
            all.filter(|(_, subject)| wanted(subject.kind)).map(|(index, _)| index).collect()
        };
        let mut sides = of(&Kind::is_run);
        if sides.len() < 2 {
            sides = of(&|kind| kind == Kind::Bundle);
        }
        if let [first, others @ ..] = sides.as_slice()
            && !others.is_empty()
        {
            evidence.left = vec![*first];
            evidence.right = others.to_vec();
        }
    }
    evidence
}

/// Files about one run become one subject; a file that speaks of several runs stays apart.
fn subjects(source: &Source) -> Vec<Subject<'_>> {
    let mut merged: Option<Subject<'_>> = None;
    let mut others = Vec::new();
    for part in &source.parts {
        let one = match part {
            Part::Trace(trace) => subject(trace),
            Part::Facts(facts) => match facts.as_slice() {
                [one] => one.clone(),
                many => {
                    others.extend(many.iter().cloned());
                    continue;
                }
            },
        };
        merged = Some(match merged {
            Some(so_far) => so_far.merge(one),
            None => one,
        });
    }
    if let (Some(subject), Some(log)) = (&mut merged, &source.log) {
        subject.log.get_or_insert_default().extend(log.iter().cloned());
    }
    merged.into_iter().chain(others).collect()
}
