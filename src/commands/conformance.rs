//! `conformance`: golden vectors of selector, filters and draws through the runtime and through the reference, reported apart.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use lockstep_replay::conformance::{CaseStatus, ConformanceReport};
use lockstep_runtime::conformance::{self, CaseResult, Status as Outcome};
use lockstep_traces::Cause;
use serde::Serialize;

use super::inputs;
use crate::cli::{ConformanceArgs, Format, Side};
use crate::console;
use crate::exit::{Status, usage};

/// Totals of a group of cases.
#[derive(Debug, Default, Serialize)]
struct Group {
    cases: usize,
    passed: usize,
    tie_equivalent: usize,
    failed: usize,
    keep_sets: u64,
    keep_sets_equal: u64,
    max_raw_rel: Option<f64>,
    max_agg_abs: Option<f64>,
}

/// One case with its figures, the same for both sides.
#[derive(Debug, Serialize)]
struct Case {
    name: String,
    group: String,
    status: &'static str,
    why: Option<String>,
    tie_rows: u64,
    keep_sets: u64,
    keep_sets_equal: u64,
    max_raw_rel: Option<f64>,
    max_agg_abs: Option<f64>,
}

/// What one side answers.
#[derive(Debug, Serialize)]
struct Answer {
    /// Listed cases that this side runs.
    cases: usize,
    /// Vectors of other groups that also stand for the rule set `trt`.
    trt_cases: usize,
    passed: usize,
    failed: usize,
    tie_equivalent: Vec<Case>,
    failures: Vec<Case>,
    groups: BTreeMap<String, Group>,
    not_covered: Vec<String>,
}

#[derive(Debug, Serialize)]
struct Both {
    dir: String,
    runtime: Option<Answer>,
    reference: Option<Answer>,
}

pub(crate) fn execute(args: &ConformanceArgs, format: Format) -> anyhow::Result<Status> {
    let plant = inputs::plant(args.plant.as_deref())?;
    if plant.is_some() && args.side == Side::Reference {
        return Err(usage(
            "--plant breaks the runtime's selector; it needs --side runtime or both",
        ));
    }
    let dirs = folders(&args.dir);
    let mut runtime = (Vec::new(), Vec::new());
    let mut reference = (Vec::new(), Vec::new());
    for dir in &dirs {
        if args.side != Side::Reference {
            runtime.0.extend(of_runtime_in(dir, plant)?);
        }
        if args.side != Side::Runtime {
            let (cases, not_covered) = of_reference(lockstep_replay::conformance::run(dir)?);
            reference.0.extend(cases);
            reference.1.extend(not_covered);
        }
    }
    let side = |wanted: bool, (cases, not_covered)| wanted.then(|| answer(cases, not_covered));
    let names: Vec<String> = dirs.iter().map(|dir| dir.display().to_string()).collect();
    let both = Both {
        dir: names.join(", "),
        runtime: side(args.side != Side::Reference, runtime),
        reference: side(args.side != Side::Runtime, reference),
    };
    console::answer(format, &text(&both), &both)?;
    let sides = [&both.runtime, &both.reference];
    let failed = sides.iter().filter_map(|side| side.as_ref()).any(|side| side.failed > 0);
    let empty = sides.iter().filter_map(|side| side.as_ref()).all(|side| side.cases == 0);
    Ok(match (empty, failed) {
        (true, _) => Status::Inconclusive,
        (false, true) => Status::Differs,
        (false, false) => Status::Parity,
    })
}

/// Folders with an index: the one given, or those of selector, filters and draws in it.
fn folders(dir: &Path) -> Vec<PathBuf> {
    let listed =
        |dir: &Path| ["cases.json", "index.json"].iter().any(|name| dir.join(name).exists());
    if listed(dir) {
        return vec![dir.to_owned()];
    }
    let inner = ["triattention", "filters", "sampler"].map(|name| dir.join(name));
    let found: Vec<PathBuf> = inner.into_iter().filter(|dir| listed(dir)).collect();
    if found.is_empty() { vec![dir.to_owned()] } else { found }
}

/// The runtime's cases of a folder: sampler vectors where it holds such, else the selector's.
fn of_runtime_in(dir: &Path, plant: Option<Cause>) -> anyhow::Result<Vec<Case>> {
    let cases = match conformance::run_sampling(dir)? {
        Some(cases) => cases,
        None => conformance::run(dir, plant)?,
    };
    Ok(cases.iter().map(of_runtime).collect())
}

fn of_runtime(case: &CaseResult) -> Case {
    let (status, why, tie_rows) = match &case.status {
        Outcome::Pass => ("pass", None, 0),
        Outcome::TieEquivalent { rows } => ("tie_equivalent", None, *rows as u64),
        Outcome::Fail { why } => ("fail", Some(why.clone()), 0),
    };
    Case {
        name: case.name.clone(),
        group: case.group.clone(),
        status,
        why,
        tie_rows,
        keep_sets: case.keep_rows as u64,
        keep_sets_equal: case.keep_equal as u64,
        max_raw_rel: case.max_raw_rel,
        max_agg_abs: case.max_agg_abs,
    }
}

fn of_reference(report: ConformanceReport) -> (Vec<Case>, Vec<String>) {
    let cases = report
        .cases
        .into_iter()
        .map(|case| {
            let (status, why, tie_rows) = match case.status {
                CaseStatus::Pass => ("pass", None, 0),
                CaseStatus::TieEquivalent { rows } => ("tie_equivalent", None, rows),
                CaseStatus::Fail { why } => ("fail", Some(why), 0),
            };
            Case {
                name: case.name,
                group: case.group,
                status,
                why,
                tie_rows,
                keep_sets: case.keep_rows,
                keep_sets_equal: case.keep_equal,
                max_raw_rel: case.max_raw_rel,
                max_agg_abs: case.max_agg_abs,
            }
        })
        .collect();
    (cases, report.not_covered)
}

fn answer(cases: Vec<Case>, not_covered: Vec<String>) -> Answer {
    let mut groups: BTreeMap<String, Group> = BTreeMap::new();
    for case in &cases {
        let group = groups.entry(case.group.clone()).or_default();
        group.cases += 1;
        group.passed += usize::from(case.status == "pass");
        group.tie_equivalent += usize::from(case.status == "tie_equivalent");
        group.failed += usize::from(case.status == "fail");
        group.keep_sets += case.keep_sets;
        group.keep_sets_equal += case.keep_sets_equal;
        group.max_raw_rel = larger(group.max_raw_rel, case.max_raw_rel);
        group.max_agg_abs = larger(group.max_agg_abs, case.max_agg_abs);
    }
    let trt_cases = groups.get("trt").map_or(0, |group| group.cases);
    let total = cases.len();
    let (mut ties, mut failures) = (Vec::new(), Vec::new());
    for case in cases {
        match case.status {
            "fail" => failures.push(case),
            "tie_equivalent" => ties.push(case),
            _ => {}
        }
    }
    Answer {
        cases: total - trt_cases,
        trt_cases,
        passed: total - failures.len() - ties.len(),
        failed: failures.len(),
        tie_equivalent: ties,
        failures,
        groups,
        not_covered,
    }
}

fn larger(held: Option<f64>, other: Option<f64>) -> Option<f64> {
    held.into_iter().chain(other).reduce(f64::max)
}

fn text(both: &Both) -> String {
    let mut out = String::new();
    for (name, side) in [("runtime", &both.runtime), ("reference", &both.reference)] {
        let Some(side) = side else { continue };
        let _ = writeln!(
            out,
            "{name}: {} cases ({} of them again as trt), {} passed, {} tie-equivalent, {} failed",
            side.cases,
            side.trt_cases,
            side.passed,
            side.tie_equivalent.len(),
            side.failed
        );
        let _ = writeln!(
            out,
            "  {:<18} {:>5} {:>9} {:>12} {:>12}",
            "group", "cases", "keep-sets", "raw rel", "agg abs"
        );
        for (group, totals) in &side.groups {
            let figure = |value: Option<f64>| {
                value.map_or_else(|| "-".to_owned(), |value| format!("{value:.1e}"))
            };
            let keeps = format!("{}/{}", totals.keep_sets_equal, totals.keep_sets);
            let _ = writeln!(
                out,
                "  {group:<18} {:>5} {keeps:>9} {:>12} {:>12}",
                totals.cases,
                figure(totals.max_raw_rel),
                figure(totals.max_agg_abs)
            );
        }
        for case in &side.tie_equivalent {
            let _ = writeln!(
                out,
                "  tie   {} ({}): {} rows chosen otherwise among equal scores",
                case.name, case.group, case.tie_rows
            );
        }
        for case in &side.failures {
            let _ = writeln!(
                out,
                "  FAIL  {} ({}): {}",
                case.name,
                case.group,
                case.why.as_deref().unwrap_or_default()
            );
        }
        for line in &side.not_covered {
            let _ = writeln!(out, "  not covered: {line}");
        }
    }
    out
}
