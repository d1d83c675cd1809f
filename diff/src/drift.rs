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
    /// Fixed tolerance where there is no control.
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
                row.resize(column, missing("not dumped at this position"));
                let mut cell = cell(&l, &r, tensor)?;
                if let Some(control) = &control {
                    cell.control = self::cell(&l, control, tensor)?.relative_l2;
                }
                row.push(cell);
            }
        }
        for row in cells.values_mut() {
            row.resize(positions.len(), missing("not dumped at this position"));
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
        let judged = options.control.is_some() || options.tolerance.is_some();
        let (verdict, summary) = if compared == 0 {
            let why = "no tensor is dumped on both sides".to_owned();
            (Verdict::Incomparable { why: why.clone() }, why)
        } else if let Some((tensor, position)) = &first_beyond {
            (
                Verdict::Diverged,
                format!("first drift beyond noise: `{tensor}` at position {position}"),
            )
        } else if broken {
            (Verdict::Diverged, "a side holds values that are not finite".to_owned())
        } else if !differ {
            (Verdict::Identical, format!("{compared} tensors are equal"))
        } else if judged {
            (Verdict::WithinNoise, format!("{compared} tensors are within noise"))
        } else {
            let why = "tensors differ and no control or tolerance was given".to_owned();
            (Verdict::Incomparable { why: why.clone() }, why)
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
mod tests {
    use lockstep_traces::manifest::Producer;
    use lockstep_traces::store::RunWriter;
    use lockstep_traces::{Dump, Manifest, RecordPlan, Tensor, TraceSink};

    use super::*;

    /// Two positions; every tensor is (3, 4), so its norm is 5; `change` adds to the first element.
    fn run(home: &tempfile::TempDir, name: &str, change: impl Fn(&str, u32) -> f32) -> RunReader {
        let dir = home.path().join(name);
        let manifest = Manifest::new(Producer::default(), "cpu");
        let mut writer = RunWriter::create(&dir, manifest, RecordPlan::default()).unwrap();
        for position in [3, 7] {
            let tensors = [
                "hidden.embed",
                "hidden.layer00.q_norm",
                "hidden.layer00.q_rope",
                "hidden.layer01.out",
                "hidden.final_norm",
                "logits",
            ]
            .into_iter()
            .map(|name| Tensor::from_f32(name, vec![2], &[3.0 + change(name, position), 4.0]))
            .collect();
            let id = DumpId::Step { sample_id: "s".into(), position };
            writer.dump(Dump { id, metadata: BTreeMap::new(), tensors }).unwrap();
        }
        writer.finish().unwrap();
        RunReader::open(&dir).unwrap()
    }

    #[test]
    fn the_first_stage_beyond_is_named_in_order_of_computation() {
        let home = tempfile::tempdir().unwrap();
        let left = run(&home, "a", |_, _| 0.0);
        let right = run(&home, "b", |name, position| {
            if position == 7 && name != "hidden.embed" && name != "hidden.layer00.q_norm" {
                0.5
            } else {
                0.0
            }
        });
        let tolerance = default_tolerance(DType::F32);
        let options = DriftOptions { tolerance: Some(&tolerance), ..DriftOptions::default() };
        let report = compare(&left, &right, options).unwrap().remove(0);
        assert_eq!(report.first_beyond, Some(("layer00.q_rope".to_owned(), 7)));
        assert_eq!(report.verdict, Verdict::Diverged);
        let order: Vec<&str> = report.rows.iter().map(|row| row.tensor.as_str()).collect();
        assert_eq!(
            order,
            ["embed", "layer00.q_norm", "layer00.q_rope", "layer01.out", "final_norm", "logits"]
        );
        assert!((report.rows[2].cells[1].relative_l2.unwrap() - 0.1).abs() < 1e-12);
        assert_eq!((report.compared, report.skipped), (12, 0));
    }

    #[test]
    fn drift_no_larger_than_the_controls_is_noise_and_without_a_judge_it_stays_open() {
        let home = tempfile::tempdir().unwrap();
        let left = run(&home, "a", |_, _| 0.0);
        let right = run(&home, "b", |_, _| 0.003);
        let control = run(&home, "c", |_, _| -0.002);
        let options = DriftOptions { control: Some(&control), ..DriftOptions::default() };
        let report = compare(&left, &right, options).unwrap().remove(0);
        assert_eq!(report.verdict, Verdict::WithinNoise);
        assert!((report.rows[0].cells[0].control.unwrap() - 0.0004).abs() < 1e-6);
        let open = compare(&left, &right, DriftOptions::default()).unwrap().remove(0);
        assert_eq!(open.verdict.exit_code(), 4);
        assert_eq!(compare(&left, &left, options).unwrap()[0].verdict, Verdict::Identical);
    }

    #[test]
    fn a_tensor_on_one_side_only_or_not_finite_is_never_equal() {
        let home = tempfile::tempdir().unwrap();
        let left = run(&home, "a", |_, _| 0.0);
        let right = run(&home, "b", |name, _| if name == "logits" { f32::NAN } else { 0.0 });
        let report = compare(&left, &right, DriftOptions::default()).unwrap().remove(0);
        assert_eq!((report.compared, report.skipped), (10, 2));
        assert_eq!(report.first_beyond, Some(("logits".to_owned(), 3)));
    }

    #[test]
    fn runs_without_common_dumps_give_no_report() {
        let home = tempfile::tempdir().unwrap();
        let dir = home.path().join("none");
        let manifest = Manifest::new(Producer::default(), "cpu");
        RunWriter::create(&dir, manifest, RecordPlan::default()).unwrap().finish().unwrap();
        let (left, right) = (run(&home, "a", |_, _| 0.0), RunReader::open(&dir).unwrap());
        assert!(compare(&left, &right, DriftOptions::default()).unwrap().is_empty());
    }
}
