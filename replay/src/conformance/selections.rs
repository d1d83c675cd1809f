//! Cases of one selection: `vllm_selector`, `hf`, `sglang`; and those of vllm that serve `trt`.

use std::path::Path;

use lockstep_reference::select::{Grid, Heads, KeyView, Outcome, Positions, Selection};

use super::configs::{self, Plan};
use super::expected::Expected;
use super::golden::{CaseStats, Tensors};
use super::implementation::{Implementation, SelectorCase};
use super::index::{Case, Dims};
use super::report::{CaseReport, CaseStatus};
use super::tolerance::{FAR, RAW_OTHER_PHASES, Tolerance, tolerance};

pub(crate) fn heads(dims: Option<Dims>) -> Result<Heads, String> {
    let dims = dims.ok_or("the index gives no dims for this case")?;
    Ok(Heads { q_heads: dims.q_heads, kv_heads: dims.kv_heads })
}

/// Runs one case of `vllm_selector`, `hf` or `sglang`.
pub(crate) fn run(dir: &Path, case: &Case, by: &mut dyn Implementation) -> CaseReport {
    let plan = match case.group.as_str() {
        "vllm_selector" => configs::vllm(case),
        "hf" => configs::hf(case),
        _ => configs::sglang(case),
    };
    finish(CaseReport::new(&case.name, &case.group), |report| {
        let plan = plan?;
        let limit = tolerance(&plan.spec);
        one(dir, case, plan, by, report, limit)
    })
}

/// Runs one vllm case under the rules of `trt`: from the stored raw scores where there are any, and from the keys.
pub(crate) fn run_trt(dir: &Path, case: &Case, by: &mut dyn Implementation) -> CaseReport {
    finish(CaseReport::new(&case.name, "trt"), |report| {
        let plan = configs::trt(case)?;
        // The other phases move ranked scores as well; what they may not move is a keep-set beyond its ties.
        let limit = Tolerance { raw: RAW_OTHER_PHASES, near: FAR, ..tolerance(&plan.spec) };
        one(dir, case, plan, by, report, limit)
    })
}

pub(crate) fn finish(
    mut report: CaseReport,
    body: impl FnOnce(&mut CaseReport) -> Result<(), String>,
) -> CaseReport {
    if let Err(why) = body(&mut report) {
        report.fail(why);
    }
    report.close()
}

fn one(
    dir: &Path,
    case: &Case,
    plan: Plan,
    by: &mut dyn Implementation,
    report: &mut CaseReport,
    limit: Tolerance,
) -> Result<(), String> {
    let input = Tensors::open(dir, case.input.as_deref().ok_or("the index names no input")?)?;
    let stats = CaseStats::open(dir, case.stats.as_deref().ok_or("the index names no stats")?)?;
    let keys = input.keys("k_rot")?;
    let mut positions = input.positions("positions")?;
    if let (true, Positions::PerHead(heads)) = (plan.shared_positions, &positions) {
        positions = Positions::Shared(heads.first().cloned().unwrap_or_default());
    }
    check_sizes(case, &stats, &keys)?;
    let selector = SelectorCase {
        name: &case.name,
        spec: plan.spec,
        stats: &stats,
        layers: (0u32..).take(keys.len()).collect(),
        keys,
        positions,
        heads: heads(case.dims)?,
        moment: plan.moment,
        begins: true,
    };
    let ours = by.select(&selector);
    let Some(expected) = &case.expected else { return without_output(case, ours, report) };
    let expected = Tensors::open(dir, expected)?;
    require_listed(case, &expected)?;
    let expected = Expected::read(&expected, &selector)?;
    let ours = ours?;
    expected.judge(&ours, report, limit);
    if report.group != "trt" {
        return Ok(());
    }
    // The stored raw scores carry upstream's phases, so that what follows is judged on its own.
    if let Some(raw) = &expected.raw {
        let raw = Grid { shape: raw.shape.clone(), values: raw.values.clone() };
        if let Some(ranked) = by.rank(&selector, &raw) {
            let mut second = CaseReport::new(&case.name, "trt");
            expected.judge(&ranked?, &mut second, tolerance(&selector.spec));
            if second.status != report.status {
                report.notes.push(format!("from the stored raw scores: {:?}", second.status));
            }
            if let CaseStatus::Fail { why } = second.status {
                report.fail(format!("from the stored raw scores: {why}"));
            }
        }
    }
    Ok(())
}

/// The index, the input and the statistics must be of one size.
fn check_sizes(case: &Case, stats: &CaseStats, keys: &[KeyView<'_>]) -> Result<(), String> {
    let dims = case.dims.ok_or("the index gives no dims for this case")?;
    let first = keys.first().ok_or("the input holds no layer")?;
    let rows = case.input_info.as_ref().map_or(first.rows(), |info| info.rows);
    let sizes = [
        ("layers of the statistics", dims.layers, stats.layers.len()),
        ("layers of the input", dims.layers, keys.len()),
        ("head width of the input", dims.head_dim, first.head_dim()),
        ("rows of the input", rows, first.rows()),
    ];
    match sizes.iter().find(|(_, listed, found)| listed != found) {
        Some((what, listed, found)) => {
            Err(format!("{what}: the index lists {listed}, the file has {found}"))
        }
        None => Ok(()),
    }
}

/// Cases in which upstream returned nothing or raised.
fn without_output(
    case: &Case,
    ours: Result<Selection, String>,
    report: &mut CaseReport,
) -> Result<(), String> {
    report.compared += 1;
    match (case.result.as_deref(), ours) {
        (Some("none"), Ok(Selection { outcome: Outcome::Refused { why }, .. })) => {
            report.notes.push(format!("no compaction, as expected: {why}"));
            Ok(())
        }
        (Some("error"), Err(why)) => {
            report.notes.push(format!("refused, as expected: {why}"));
            Ok(())
        }
        (label, ours) => {
            let ours = ours.map_or_else(|why| why, |selection| format!("{:?}", selection.outcome));
            Err(format!("expected the outcome {label:?}, got: {ours}"))
        }
    }
}

/// Every tensor that the index lists must be there in its shape.
pub(crate) fn require_listed(case: &Case, file: &Tensors) -> Result<(), String> {
    for (name, (_, shape)) in &case.tensors {
        let (_, found, _) = file.bytes(name)?;
        if found != *shape {
            return Err(format!(
                "expected tensor `{name}` has shape {found:?}, listed as {shape:?}"
            ));
        }
    }
    Ok(())
}
