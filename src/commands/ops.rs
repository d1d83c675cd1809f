//! `ops`: the op catalog, listed with its receipts or run.

use std::fmt::Write as _;
use std::path::Path;

use lockstep_runtime::cuda::catalog::{
    self, Cell, CellReport, Entry, Receipt, Receipts, SEEDS, Scope, Status as Known, receipt,
};
use lockstep_runtime::cuda::gpu::{DeviceInfo, Gpu};
use serde::Serialize;
use serde_json::{Value, json};

use super::device;
use crate::cli::{Format, OpsArgs, OpsCells, OpsDevice};
use crate::console::{self, Progress};
use crate::exit::{Status, usage};

pub(crate) fn execute(args: &OpsArgs, verbose: bool, format: Format) -> anyhow::Result<Status> {
    let entries = chosen(&args.names)?;
    if args.run {
        return run(args, &entries, format);
    }
    let listing = listing(&entries)?;
    let full = verbose || !args.names.is_empty();
    console::answer(format, &listing_text(&listing, full), &listing)?;
    Ok(Status::Parity)
}

/// Entries by their names or their kernel file's, in the catalog's order.
fn chosen(names: &[String]) -> anyhow::Result<Vec<&'static Entry>> {
    let all = catalog::entries();
    let named = |entry: &Entry, name: &str| {
        name == entry.name || name == entry.file.name || entry.file.name == format!("{name}.cu")
    };
    if let Some(name) = names.iter().find(|name| !all.iter().any(|entry| named(entry, name))) {
        return Err(usage(format!("no entry or kernel file `{name}`; `lockstep ops` lists them")));
    }
    let wanted = |entry: &&Entry| names.is_empty() || names.iter().any(|name| named(entry, name));
    Ok(all.into_iter().filter(wanted).collect())
}

/// A device as it is reported everywhere.
pub(super) fn device_json(device: &DeviceInfo) -> Value {
    json!({
        "name": device.name, "arch": device.arch, "sm_count": device.sm_count,
        "memory": device.memory, "cuda": device.driver, "compiler": device.compiler,
        "emulated": device.emulated,
    })
}

/// `ops --format json`.
#[derive(Debug, Serialize)]
struct Listing {
    /// Architectures that statuses are for: the present device's, else those with receipts.
    archs: Vec<String>,
    entries: Vec<Row>,
    files: usize,
    cells: usize,
}

#[derive(Debug, Serialize)]
struct Row {
    name: &'static str,
    file: &'static str,
    shapes: &'static str,
    raises: &'static [&'static str],
    silent: &'static [&'static str],
    rounding: &'static str,
    reference: &'static str,
    cells: Vec<CellRow>,
    sources: Vec<String>,
    status: Vec<StatusRow>,
}

#[derive(Debug, Serialize)]
struct CellRow {
    cell: String,
    bound: f64,
    why: &'static str,
}

#[derive(Debug, Serialize)]
struct StatusRow {
    arch: String,
    status: &'static str,
    why: Option<String>,
    receipt: Option<Receipt>,
}

/// Receipts of the present device's architecture, else of every one that has some.
fn known() -> anyhow::Result<Vec<(String, Receipts)>> {
    let archs: Vec<String> = match Gpu::open(0) {
        Ok(gpu) => vec![gpu.info().arch.clone()],
        Err(_) => receipt::archs().map(str::to_owned).collect(),
    };
    let load =
        |arch: String| Ok((arch.clone(), receipt::shipped(&arch).map_err(anyhow::Error::msg)?));
    archs.into_iter().map(load).collect()
}

fn listing(entries: &[&'static Entry]) -> anyhow::Result<Listing> {
    let known = known()?;
    let mut files: Vec<&str> = entries.iter().map(|entry| entry.file.name).collect();
    files.dedup();
    Ok(Listing {
        archs: known.iter().map(|(arch, _)| arch.clone()).collect(),
        files: files.len(),
        cells: entries.iter().map(|entry| entry.cells.len()).sum(),
        entries: entries.iter().map(|entry| row(entry, &known)).collect(),
    })
}

fn row(entry: &Entry, known: &[(String, Receipts)]) -> Row {
    let status = |(arch, receipts): &(String, Receipts)| {
        let (status, why) = match entry.status(arch, receipts) {
            Known::Works => ("works", None),
            Known::Unknown(why) => ("unknown", Some(why)),
        };
        let receipt = receipts.get(entry.name).cloned();
        StatusRow { arch: arch.clone(), status, why, receipt }
    };
    let cell = |cell: &Cell| {
        let tolerance = (entry.tolerance)(cell);
        let name = cell_name(entry, cell.elem.name(), cell.cache.name(), cell.sizes);
        CellRow { cell: name, bound: tolerance.bound, why: tolerance.why }
    };
    Row {
        name: entry.name,
        file: entry.file.name,
        shapes: entry.contract.shapes,
        raises: entry.contract.raises,
        silent: entry.contract.silent,
        rounding: entry.contract.rounding,
        reference: entry.reference,
        cells: entry.cells.iter().map(cell).collect(),
        sources: entry.files().into_keys().collect(),
        status: known.iter().map(status).collect(),
    }
}

/// `bf16 rows 3 width 257`.
fn cell_name(entry: &Entry, elem: &str, cache: &str, sizes: &[usize]) -> String {
    let mut name = elem.to_owned();
    if cache != elem {
        let _ = write!(name, "/{cache}");
    }
    for (what, size) in entry.sizes.iter().zip(sizes) {
        let _ = write!(name, " {what} {size}");
    }
    name
}

fn listing_text(listing: &Listing, full: bool) -> String {
    let mut out = String::new();
    for row in &listing.entries {
        let _ = write!(out, "{:<18} {:<20} {:>3} cells", row.name, row.file, row.cells.len());
        for status in &row.status {
            let why = status.why.as_deref().map_or_else(String::new, |why| format!(" ({why})"));
            let _ = write!(out, "  {}: {}{why}", status.arch, status.status);
        }
        out.push('\n');
        if full {
            contract_text(&mut out, row);
        }
    }
    let (entries, files, cells) = (listing.entries.len(), listing.files, listing.cells);
    let _ = write!(out, "{entries} entries of {files} kernel files, {cells} cells");
    for arch in &listing.archs {
        let status = listing.entries.iter().flat_map(|row| &row.status);
        let works =
            status.filter(|status| status.arch == *arch && status.status == "works").count();
        let _ = write!(out, "; {arch}: {works} work, {} unknown", entries - works);
    }
    out.push('\n');
    out
}

fn contract_text(out: &mut String, row: &Row) {
    let _ = writeln!(out, "  shapes     {}", row.shapes);
    let _ = writeln!(out, "  refuses    {}", row.raises.join("; "));
    let _ = writeln!(out, "  silent     {}", row.silent.join("; "));
    let _ = writeln!(out, "  rounding   {}", row.rounding);
    let _ = writeln!(out, "  reference  {}", row.reference);
    let mut said: Option<(f64, &str)> = None;
    for cell in &row.cells {
        let tolerance = (cell.bound, cell.why);
        if said != Some(tolerance) {
            let _ = writeln!(out, "  tolerance  {}: {}", figure(cell.bound), cell.why);
            said = Some(tolerance);
        }
        let _ = writeln!(out, "    {}", cell.cell);
    }
    out.push('\n');
}

/// `ops --run --format json`.
#[derive(Debug, Serialize)]
struct Answer {
    device: Value,
    entries: Vec<Ran>,
    cells: usize,
    skipped: usize,
    checks: usize,
    passed: usize,
    failed: usize,
    /// Receipts that were written, and where.
    receipts: Option<Written>,
}

#[derive(Debug, Serialize)]
struct Written {
    folder: String,
    written: Vec<String>,
    /// Entries that earned none, each with the reason.
    withheld: Vec<(String, String)>,
    /// Receipts in the file now.
    in_file: usize,
}

#[derive(Debug, Serialize)]
struct Ran {
    name: &'static str,
    file: &'static str,
    /// `passes`, `fails`, or `not_run` where every cell was skipped.
    verdict: &'static str,
    cells: Vec<RanCell>,
    skipped: Vec<SkippedCell>,
}

#[derive(Debug, Serialize)]
struct RanCell {
    cell: String,
    passed: bool,
    #[serde(flatten)]
    report: CellReport,
}

#[derive(Debug, Serialize)]
struct SkippedCell {
    cell: String,
    why: &'static str,
}

fn run(args: &OpsArgs, entries: &[&'static Entry], format: Format) -> anyhow::Result<Status> {
    let scope = if args.cells == OpsCells::All { Scope::All } else { Scope::Quick };
    if args.write_receipts.is_some()
        && (args.device == OpsDevice::Emulated || scope == Scope::Quick)
    {
        return Err(usage(
            "--write-receipts needs --device cuda and --cells all: a receipt is a full run on a GPU",
        ));
    }
    let gpu = match args.device {
        OpsDevice::Cuda => Gpu::open(0).map_err(|error| device::or_use("emulated", &error)),
        OpsDevice::Emulated => Gpu::emulated().map_err(|error| error.to_string()),
    };
    let gpu = gpu.map_err(usage)?;
    let total: usize = entries.iter().map(|entry| entry.cells.len()).sum();
    let mut progress = Progress::new("cells");
    let mut done = 0;
    let mut ran = Vec::new();
    for entry in entries {
        ran.push(run_entry(&gpu, entry, scope, &mut || {
            done += 1;
            progress.update(done, total as u64);
        }));
    }
    drop(progress);
    let receipts = match &args.write_receipts {
        Some(folder) => Some(write_receipts(folder, gpu.info(), entries, &ran)?),
        None => None,
    };
    let answer = Answer {
        device: device_json(gpu.info()),
        cells: ran.iter().map(|entry| entry.cells.len()).sum(),
        skipped: ran.iter().map(|entry| entry.skipped.len()).sum(),
        checks: ran
            .iter()
            .flat_map(|entry| &entry.cells)
            .map(|cell| cell.report.checks.len())
            .sum(),
        passed: ran.iter().filter(|entry| entry.verdict == "passes").count(),
        failed: ran.iter().filter(|entry| entry.verdict == "fails").count(),
        entries: ran,
        receipts,
    };
    console::answer(format, &answer_text(&answer), &answer)?;
    Ok(if answer.failed > 0 {
        Status::Differs
    } else if answer.passed < answer.entries.len() || answer.entries.is_empty() {
        Status::Inconclusive
    } else {
        Status::Parity
    })
}

fn run_entry(gpu: &Gpu, entry: &Entry, scope: Scope, tick: &mut dyn FnMut()) -> Ran {
    let (mut cells, mut skipped) = (Vec::new(), Vec::new());
    for cell in entry.cells {
        let name = cell_name(entry, cell.elem.name(), cell.cache.name(), cell.sizes);
        if let Some(why) = catalog::skipped(gpu.info(), cell, scope) {
            skipped.push(SkippedCell { cell: name, why });
        } else {
            let report = catalog::run(gpu, entry, cell, &SEEDS);
            cells.push(RanCell { cell: name, passed: report.passed(), report });
        }
        tick();
    }
    let verdict = match cells.iter().all(|cell| cell.passed) {
        true if cells.is_empty() => "not_run",
        true => "passes",
        false => "fails",
    };
    Ran { name: entry.name, file: entry.file.name, verdict, cells, skipped }
}

fn write_receipts(
    folder: &Path,
    device: &DeviceInfo,
    entries: &[&'static Entry],
    ran: &[Ran],
) -> anyhow::Result<Written> {
    let (mut made, mut withheld) = (Vec::new(), Vec::new());
    for (entry, ran) in entries.iter().zip(ran) {
        let reports: Vec<CellReport> = ran.cells.iter().map(|cell| cell.report.clone()).collect();
        match Receipt::of(device, entry, &reports) {
            Ok(receipt) => made.push(receipt),
            Err(why) => withheld.push((entry.name.to_owned(), why)),
        }
    }
    let written = made.iter().map(|receipt| receipt.entry.clone()).collect();
    let failed: Vec<&str> = withheld.iter().map(|(name, _)| name.as_str()).collect();
    let in_file =
        receipt::write(folder, &device.arch, made, &failed).map_err(anyhow::Error::msg)?;
    Ok(Written { folder: folder.display().to_string(), written, withheld, in_file })
}

fn answer_text(answer: &Answer) -> String {
    let mut out = String::new();
    let text = |key: &str| answer.device[key].as_str().unwrap_or_default().to_owned();
    let _ = writeln!(out, "{} ({}, compiler {})", text("name"), text("arch"), text("compiler"));
    let _ = writeln!(
        out,
        "{:<18} {:>5} {:>7} {:>6} {:>20} {:>8} {:>7}  verdict",
        "entry", "cells", "skipped", "checks", "worst error / bound", "controls", "misuses"
    );
    for entry in &answer.entries {
        let reports = || entry.cells.iter().map(|cell| &cell.report);
        let checks: usize = reports().map(|report| report.checks.len()).sum();
        let misuses: usize = reports().map(|report| report.misuses).sum();
        let seen = reports().filter(|report| report.control > Some(report.bound)).count();
        let worst = worst(reports());
        let _ = writeln!(
            out,
            "{:<18} {:>5} {:>7} {checks:>6} {worst:>20} {seen:>8} {misuses:>7}  {}",
            entry.name,
            entry.cells.len(),
            entry.skipped.len(),
            entry.verdict,
        );
        for cell in &entry.cells {
            for (check, why) in cell.report.failures() {
                let _ = writeln!(out, "  FAIL {}: {}: {why}", cell.cell, check.name());
            }
        }
    }
    let (ran, skipped) = (answer.cells, answer.skipped);
    let total = answer.entries.len();
    let _ = writeln!(
        out,
        "{} of {total} entries pass; {ran} cells run, {skipped} skipped, {} checks",
        answer.passed, answer.checks
    );
    if let Some(receipts) = &answer.receipts {
        let count = receipts.written.len();
        let _ = writeln!(out, "{count} receipts written to {}", receipts.folder);
    }
    out
}

/// The cell closest to its bound.
fn worst<'a>(reports: impl Iterator<Item = &'a CellReport>) -> String {
    let closest = reports.reduce(|worst, report| if report.worse(worst) { report } else { worst });
    closest.map_or_else(
        || "-".to_owned(),
        |cell| format!("{} / {}", figure(cell.error), figure(cell.bound)),
    )
}

/// Three places, or powers of ten where those would show nothing.
fn figure(value: f64) -> String {
    if value <= 0.0 || value >= 1e-3 { format!("{value:.3}") } else { format!("{value:.1e}") }
}
