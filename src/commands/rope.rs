//! `check rope`: an engine's rotary tables against the configurations that ask for them.

use std::fmt::Write as _;
use std::path::Path;

use lockstep_replay::rope::{self, EngineTable, RopeConfig, RopeQuestion, RopeReport};
use lockstep_traces::tensor_files::{ReadOptions, read};

use crate::cli::{Format, RopeArgs};
use crate::console;
use crate::exit::{Status, usage};

pub(crate) fn execute(args: &RopeArgs, format: Format) -> anyhow::Result<Status> {
    if args.tolerance.is_some_and(|tolerance| !(0.0..1.0).contains(&tolerance)) {
        return Err(usage("--tolerance is a relative difference from 0 to below 1"));
    }
    if args.tensor.is_some() && args.configs.len() > 1 {
        return Err(usage("--tensor names the table of a single configuration"));
    }
    let configs = args
        .configs
        .iter()
        .map(|path| Ok(RopeConfig::read(path, args.head_dim)?))
        .collect::<anyhow::Result<Vec<_>>>()?;
    let tables = args.engine.as_deref().map_or_else(|| Ok(Vec::new()), tables)?;
    let pairs = pairs(args, &configs, &tables)?;
    let question = RopeQuestion { positions: args.positions.clone(), tolerance: args.tolerance };
    let report = rope::check(&configs, &pairs, &question);
    console::answer(format, &text(&report), &report)?;
    Ok(Status::of(&report.verdict))
}

/// Every tensor of the engine's file.
fn tables(path: &Path) -> anyhow::Result<Vec<EngineTable>> {
    let set = read(path, &ReadOptions::default())?;
    let mut out = Vec::new();
    for tensor in &set.tensors {
        let values = lockstep_diff::loose::numbers(tensor)?;
        out.push(EngineTable { name: tensor.name.clone(), values });
    }
    if out.is_empty() {
        anyhow::bail!("{}: no table of numbers there", path.display());
    }
    Ok(out)
}

/// The table of each configuration, by name.
fn pairs<'t>(
    args: &RopeArgs,
    configs: &[RopeConfig],
    tables: &'t [EngineTable],
) -> anyhow::Result<Vec<Option<&'t EngineTable>>> {
    let called = |name: &str| tables.iter().find(|table| table.name == name);
    if let Some(name) = &args.tensor {
        let table = called(name).ok_or_else(|| {
            usage(format!("--tensor {name}: not there; there are {}", names(tables)))
        })?;
        return Ok(vec![Some(table)]);
    }
    let by_name = |config: &RopeConfig| {
        let stem = config.name.rsplit_once('.').map(|(stem, _)| stem);
        called(&config.name).or_else(|| called(stem?))
    };
    let mut found: Vec<Option<&EngineTable>> = configs.iter().map(by_name).collect();
    if let ([only], [table]) = (found.as_mut_slice(), tables) {
        *only = Some(table);
    }
    if !tables.is_empty() && found.iter().all(Option::is_none) {
        return Err(usage(format!(
            "no engine table bears the name of a configuration; there are {}: give --tensor",
            names(tables)
        )));
    }
    Ok(found)
}

fn names(tables: &[EngineTable]) -> String {
    let names = tables.iter().take(8).map(|table| format!("`{}`", table.name));
    names.collect::<Vec<_>>().join(", ")
}

fn text(report: &RopeReport) -> String {
    let mut out = format!("{}\n", report.verdict.word());
    for table in &report.configs {
        let _ = writeln!(
            out,
            "{}: base {} ({}), {} scaling, {} dimensions",
            table.config, table.theta, table.base_from, table.rope_type, table.rotated_dims
        );
        let _ = writeln!(out, "  asks for {}", shown(&table.inv_freq));
        if let Some(check) = &table.engine {
            let word = if check.right { "the same" } else { "NOT the same" };
            let _ = writeln!(out, "  engine   {} ({word})", shown(&check.inv_freq));
            if !check.right && !check.ratios.is_empty() {
                let _ = writeln!(out, "  ratios   {}", shown(&check.ratios));
                for error in &check.phase_errors {
                    let _ = writeln!(
                        out,
                        "  phase at {}: slowest band {:+.6} rad, largest {:+.6} (band {})",
                        error.position, error.slowest_band, error.largest, error.largest_band
                    );
                }
            }
        }
        for remark in &table.remarks {
            let _ = writeln!(out, "  note: {remark}");
        }
    }
    for names in report.same_table.iter().filter(|names| names.len() > 1) {
        let _ = writeln!(out, "one table: {}", names.join(", "));
    }
    for finding in &report.findings {
        let _ = writeln!(out, "  ! {}: {}: {}", finding.of, finding.name, finding.title);
    }
    for limit in &report.limits {
        let _ = writeln!(out, "  not shown: {limit}");
    }
    out
}

/// Six digits, the first bands of a long table.
fn shown(values: &[f64]) -> String {
    let mut parts: Vec<String> =
        values.iter().take(16).map(|value| format!("{value:.6}")).collect();
    for (part, value) in parts.iter_mut().zip(values) {
        if value.abs() < 0.01 {
            *part = format!("{value:.5e}");
        }
    }
    if values.len() > 16 {
        parts.push(format!(".. ({} in all)", values.len()));
    }
    parts.join(", ")
}
