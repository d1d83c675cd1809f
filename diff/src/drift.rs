//! Drift of hidden states and logits between two runs: relative L2 by stage and position, for the heat map.

use std::collections::{BTreeMap, BTreeSet};

use lockstep_traces::dump::LAYER_STAGES;
use lockstep_traces::store::{DumpFile, RunReader};
use lockstep_traces::{DType, DumpId, TraceError, Verdict};

use crate::Tolerance;
use crate::noise::{MAX_FACTOR, ceiling};
use crate::report::{DriftCell, DriftReport, DriftRow};

/// How drift is judged.
#[derive(Debug, Clone, Copy, Default)]
pub struct DriftOptions<'a> {
    /// A second reference of the target's dtype: its own drift from the baseline is what counts as noise.
    pub control: Option<&'a RunReader>,
    /// Fixed tolerance where there is no control; without either, [`default_tolerance`] of the coarser dtype of the two
    /// manifests, and no judgement where neither names one.
    pub tolerance: Option<&'a Tolerance>,
}

/// Fixed tolerance for a dtype, with its reason; for callers without a control.
#[must_use]
pub fn default_tolerance(dtype: DType) -> Tolerance {
    Tolerance {
        relative_l2: ceiling(dtype),
        reason: format!(
            "no control was given; {} arithmetic with its roundings all one way cannot leave more",
            dtype.name()
        ),
    }
}

/// Below this many times the unit roundoff of f32 (dumps are f32) nothing is called drift, whatever the control says.
const FLOOR: f64 = 8.0 / 16_777_216.0;

/// Compares every step dump of every sample that both runs hold. `left` is the baseline: norms are taken of it.
///
/// # Errors
/// [`TraceError`] where a dump cannot be read.
pub fn compare(
    left: &RunReader,
    right: &RunReader,
    options: DriftOptions<'_>,
) -> Result<Vec<DriftReport>, TraceError> {
    let dtypes = [left.manifest().dtype, right.manifest().dtype];
    let coarser = dtypes.into_iter().flatten().max_by(|a, b| ceiling(*a).total_cmp(&ceiling(*b)));
    let fallback = coarser.map(default_tolerance);
    let options = match options.control {
        Some(_) => options,
        None => DriftOptions { tolerance: options.tolerance.or(fallback.as_ref()), ..options },
    };
    let (lefts, rights) = (steps(left)?, steps(right)?);
    let mut out = Vec::new();
    for (sample_id, positions) in &lefts {
        let Some(others) = rights.get(sample_id) else { continue };
        let common: Vec<u32> = positions.intersection(others).copied().collect();
        if !common.is_empty() {
            out.push(
                Table::fill(left, right, sample_id, &common, options)?
                    .report(sample_id, common, options),
            );
        }
    }
    Ok(out)
}

fn steps(run: &RunReader) -> Result<BTreeMap<String, BTreeSet<u32>>, TraceError> {
    let mut out: BTreeMap<String, BTreeSet<u32>> = BTreeMap::new();
    for id in run.dumps()? {
        if let DumpId::Step { sample_id, position } = id {
            out.entry(sample_id).or_default().insert(position);
        }
    }
    Ok(out)
}

/// Order of computation: embedding, layers with their stages, final norm, logits.
fn rank(tensor: &str) -> (u8, u32, usize) {
    match tensor {
        "embed" => return (0, 0, 0),
        "final_norm" => return (2, 0, 0),
        "logits" => return (3, 0, 0),
        _ => {}
    }
    let (layer, stage) = split(tensor);
    let order = LAYER_STAGES.iter().position(|known| *known == stage).unwrap_or(LAYER_STAGES.len());
    (1, layer.unwrap_or(u32::MAX), order)
}

/// `layer03.q_norm` -> (3, `q_norm`).
fn split(tensor: &str) -> (Option<u32>, &str) {
    match tensor.strip_prefix("layer").and_then(|rest| rest.split_once('.')) {
        Some((layer, stage)) => (layer.parse().ok(), stage),
        None => (None, tensor),
    }
}

fn names(dump: &DumpFile) -> impl Iterator<Item = &str> {
    let known = |name: &&str| *name == "logits" || name.starts_with("hidden.");
    dump.names().filter(known).map(|name| name.strip_prefix("hidden.").unwrap_or(name))
}

struct Table {
    /// Cells by tensor, one per position.
    cells: BTreeMap<String, Vec<DriftCell>>,
}

impl Table {
    fn fill(
        left: &RunReader,
        right: &RunReader,
        sample_id: &str,
        positions: &[u32],
        options: DriftOptions<'_>,
    ) -> Result<Self, TraceError> {
        let mut cells: BTreeMap<String, Vec<DriftCell>> = BTreeMap::new();
        for (column, position) in positions.iter().enumerate() {
            let id = DumpId::Step { sample_id: sample_id.to_owned(), position: *position };
            let (Some(l), Some(r)) = (left.dump(&id)?, right.dump(&id)?) else { continue };
            let control = options.control.map(|run| run.dump(&id)).transpose()?.flatten();
            let tensors: BTreeSet<&str> = names(&l).chain(names(&r)).collect();
            for tensor in tensors {
                let row = cells.entry(tensor.to_owned()).or_default();
                row.resize(column, missing(NOT_HERE));
                let mut cell = cell(&l, &r, tensor)?;
                if let Some(control) = &control {
                    cell.control = self::cell(&l, control, tensor)?.relative_l2;
                }
                row.push(cell);
            }
        }
        for row in cells.values_mut() {
            row.resize(positions.len(), missing(NOT_HERE));
        }
        Ok(Self { cells })
    }

    fn report(
        self,
        sample_id: &str,
        positions: Vec<u32>,
        options: DriftOptions<'_>,
    ) -> DriftReport {
        let mut tensors: Vec<(String, Vec<DriftCell>)> = self.cells.into_iter().collect();
        tensors.sort_by_key(|(tensor, _)| rank(tensor));
        let rows: Vec<DriftRow> = tensors
            .into_iter()
            .map(|(tensor, cells)| {
                let (layer, stage) = split(&tensor);
                DriftRow { layer, stage: stage.to_owned(), cells, tensor }
            })
            .collect();
        let cells = || rows.iter().flat_map(|row| &row.cells);
        let compared = cells().filter(|cell| cell.relative_l2.is_some()).count() as u64;
        let skipped = cells().count() as u64 - compared;
        let differ = cells().any(|cell| cell.max_abs.is_some_and(|max| max > 0.0));
        let broken = cells().any(|cell| cell.missing.as_deref() == Some(NOT_FINITE));
        let first_beyond = first_beyond(&rows, &positions, options);
        let dropped = dropped(&rows, &positions);
        let (verdict, summary) = if let Some((tensor, position)) = &first_beyond {
            (
                Verdict::Diverged,
                format!("first drift beyond noise: `{tensor}` at position {position}"),
            )
        } else if broken {
            (Verdict::Diverged, "a side holds values that are not finite".to_owned())
        } else if let Some(why) = dropped {
            open(why)
        } else if compared == 0 {
            open("no tensor is dumped on both sides".to_owned())
        } else if !differ {
            (Verdict::Identical, format!("{compared} tensors are equal"))
        } else {
            match (options.control, options.tolerance) {
                (Some(_), _) => {
                    (Verdict::WithinNoise, format!("{compared} tensors are within noise"))
                }
                (None, Some(tolerance)) => (
                    Verdict::WithinNoise,
                    format!(
                        "{compared} tensors are within the fixed tolerance {:.1e}: {}",
                        tolerance.relative_l2, tolerance.reason
                    ),
                ),
                (None, None) => {
                    open("tensors differ and no control or tolerance was given".to_owned())
                }
            }
        };
        DriftReport {
            sample_id: sample_id.to_owned(),
            positions,
            rows,
            first_beyond,
            compared,
            skipped,
            verdict,
            summary,
        }
    }
}

const NOT_FINITE: &str = "not finite";
const NOT_HERE: &str = "not dumped at this position";

fn open(why: String) -> (Verdict, String) {
    (Verdict::Incomparable { why: why.clone() }, why)
}

/// Tensors that one side dumped and that could not be held against the other, with the first place; `None` where there is
/// none. What neither side dumped at a position is no loss.
fn dropped(rows: &[DriftRow], positions: &[u32]) -> Option<String> {
    let lost = |cell: &DriftCell| cell.missing.as_deref().filter(|why| *why != NOT_HERE).is_some();
    let row = rows.iter().find(|row| row.cells.iter().any(lost))?;
    let (position, cell) = positions.iter().zip(&row.cells).find(|(_, cell)| lost(cell))?;
    let tensors: Vec<&str> = rows
        .iter()
        .filter(|row| row.cells.iter().any(lost))
        .map(|row| row.tensor.as_str())
        .collect();
    let why = cell.missing.as_deref().unwrap_or_default();
    let named = tensors.iter().take(8).map(|name| format!("`{name}`")).collect::<Vec<_>>();
    Some(format!(
        "{} tensors were not compared ({}{}): {why}, first `{}` at position {position}",
        tensors.len(),
        named.join(", "),
        if tensors.len() > named.len() { ", ..." } else { "" },
        row.tensor
    ))
}

/// Earliest position first, then order of computation: the first cell beyond what the control or the tolerance allows.
fn first_beyond(
    rows: &[DriftRow],
    positions: &[u32],
    options: DriftOptions<'_>,
) -> Option<(String, u32)> {
    for (column, position) in positions.iter().enumerate() {
        for row in rows {
            let Some(cell) = row.cells.get(column) else { continue };
            if cell.missing.as_deref() == Some(NOT_FINITE) {
                return Some((row.tensor.clone(), *position));
            }
            let limit = match (cell.control, options.tolerance) {
                (Some(control), _) => MAX_FACTOR * control + FLOOR,
                (None, Some(tolerance)) if options.control.is_none() => tolerance.relative_l2,
                _ => continue,
            };
            if cell.relative_l2.is_some_and(|relative| relative > limit) {
                return Some((row.tensor.clone(), *position));
            }
        }
    }
    None
}

fn missing(why: &str) -> DriftCell {
    DriftCell { relative_l2: None, max_abs: None, control: None, missing: Some(why.to_owned()) }
}

fn cell(left: &DumpFile, right: &DumpFile, tensor: &str) -> Result<DriftCell, TraceError> {
    let name = if tensor == "logits" { tensor.to_owned() } else { ["hidden.", tensor].concat() };
    if !left.has(&name) || !right.has(&name) {
        return Ok(missing("dumped on one side only"));
    }
    let (l, r) = (left.get(&name)?, right.get(&name)?);
    if l.shape != r.shape {
        return Ok(missing("shapes differ"));
    }
    let (l, r) = (l.to_f64()?, r.to_f64()?);
    let (mut diff, mut norm, mut max) = (0.0, 0.0, 0.0_f64);
    for (a, b) in l.iter().zip(&r) {
        if !(a.is_finite() && b.is_finite()) {
            return Ok(missing(NOT_FINITE));
        }
        diff += (a - b) * (a - b);
        norm += a * a;
        max = max.max((a - b).abs());
    }
    let relative =
        if norm > 0.0 { Some((diff / norm).sqrt()) } else { (diff <= 0.0).then_some(0.0) };
    let why = relative.is_none().then(|| "left is all zero".to_owned());
    Ok(DriftCell { relative_l2: relative, max_abs: Some(max), control: None, missing: why })
}

#[cfg(test)]
mod tests;
