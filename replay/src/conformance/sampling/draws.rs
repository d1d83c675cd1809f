//! Draws of `torch.multinomial`.

use lockstep_reference::sample::{
    Geometry, Mersenne, SM_THREADS, ScoredDraw, half_exponential, race_draw, race_exponential,
    uniform_of,
};
use lockstep_traces::DType;
use lockstep_traces::store::DumpFile;
use rayon::prelude::*;
use serde::Deserialize;

use super::{id_list, text};
use crate::conformance::report::{CaseReport, larger};

/// One case of draws.
#[derive(Debug, Deserialize)]
pub(super) struct DrawCase {
    pub(super) name: String,
    pub(super) kind: String,
    seed: u64,
    #[serde(default)]
    vocab: Option<u64>,
}

/// A stored token and the drawn place with its margin must agree, or lie within what a device's logarithm can move.
pub(super) fn hold(
    report: &mut CaseReport,
    what: &str,
    found: &[Option<(u32, f64, f64)>],
    wanted: &[u32],
) -> Result<(), String> {
    if found.len() != wanted.len() || wanted.is_empty() {
        return Err(format!("{} of {what}, expected {}", found.len(), wanted.len()));
    }
    for (number, (found, want)) in found.iter().zip(wanted).enumerate() {
        let Some((token, margin, precision)) = found else {
            return Err(format!("{what} {number}: nothing to draw from"));
        };
        report.compared += 1;
        report.keep_rows += 1;
        if token == want {
            report.keep_equal += 1;
        } else if margin < precision {
            report.tie(1);
        } else {
            return Err(format!(
                "{what} {number} is {token}, expected {want} (margin {margin:.1e})"
            ));
        }
    }
    Ok(())
}

/// The race of a device over elements that begin at `first` of a fill.
fn race(
    geometry: Geometry,
    seed: u64,
    (ids, elements): (&[u32], &[u64]),
    masses: &[f64],
    count: usize,
    half: bool,
) -> Vec<Option<(u32, f64, f64)>> {
    let draw = |number: u64| {
        let exponential = |place: usize| {
            let element = elements.get(place).copied().unwrap_or(u64::MAX);
            let unit = uniform_of(geometry.word(seed, number * geometry.advance(), element));
            if half { half_exponential(unit) } else { race_exponential(unit) }
        };
        let drawn: ScoredDraw = race_draw(ids, masses, exponential)?;
        // Exponential numbers are exact; quotients are rounded, those of f16 numbers to eleven bits.
        let precision = if half { 1e-3 } else { 1e-6 };
        Some((*ids.get(drawn.place)?, drawn.margin, precision))
    };
    (0..count as u64).into_par_iter().map(draw).collect()
}

pub(super) fn draws(
    case: &DrawCase,
    file: &DumpFile,
    multiprocessors: u32,
    report: &mut CaseReport,
) -> Result<(), String> {
    let part = |part: &str| format!("{}.{part}", case.name);
    let wanted = id_list(file, &part("draws"))?;
    let masses = file.get(&part("probs")).map_err(text)?;
    let half = masses.dtype == DType::F16;
    let values = masses.to_f64().map_err(text)?;
    let of = |elements: u64| {
        Geometry::new(elements, multiprocessors, SM_THREADS)
            .ok_or("nothing to draw from".to_owned())
    };
    let count = wanted.len();
    match case.kind.as_str() {
        "cuda_multinomial" => {
            let ids: Vec<u32> = (0..).take(values.len()).collect();
            let elements: Vec<u64> = ids.iter().copied().map(u64::from).collect();
            let geometry = of(case.vocab.unwrap_or(values.len() as u64))?;
            let found = race(geometry, case.seed, (&ids, &elements), &values, count, half);
            hold(report, "draw", &found, &wanted)?;
            stored_exponentials(case, file, geometry, report)
        }
        "cuda_multinomial_sparse" => {
            let ids = id_list(file, &part("ids"))?;
            let elements: Vec<u64> = ids.iter().copied().map(u64::from).collect();
            let geometry = of(case.vocab.ok_or("no `vocab`")?)?;
            let found = race(geometry, case.seed, (&ids, &elements), &values, count, half);
            hold(report, "draw", &found, &wanted)?;
            let places: Vec<u64> = (0..ids.len() as u64).collect();
            let slice = of(ids.len() as u64)?;
            let wanted = id_list(file, &part("kept_slice_draws"))?;
            let found = race(slice, case.seed, (&ids, &places), &values, wanted.len(), half);
            hold(report, "draw over the slice", &found, &wanted)
        }
        "cuda_multinomial_batch" => {
            let [rows, width] = masses.shape[..] else {
                return Err(format!("`{}` is no batch of rows", part("probs")));
            };
            let geometry = of((rows * width) as u64)?;
            let ids: Vec<u32> = (0..).take(width).collect();
            for (row, masses) in values.chunks(width.max(1)).enumerate() {
                let first = (row * width) as u64;
                let elements: Vec<u64> = (first..first + width as u64).collect();
                let want: Vec<u32> = wanted.iter().copied().skip(row).step_by(rows).collect();
                let found = race(geometry, case.seed, (&ids, &elements), masses, want.len(), half);
                hold(report, &format!("row {row}, draw"), &found, &want)?;
            }
            Ok(())
        }
        "cpu_multinomial" => {
            let ids: Vec<u32> = (0..).take(values.len()).collect();
            let mut numbers = Mersenne::new(case.seed);
            let found = torch_cpu(&mut numbers, values.len(), (&ids, &values), count);
            hold(report, "draw", &found, &wanted)
        }
        other => Err(format!("kind `{other}` is not known to this build")),
    }
}

/// Draws on a CPU: every element of the vocabulary takes a number of 53 bits.
pub(super) fn torch_cpu(
    numbers: &mut Mersenne,
    vocab: usize,
    (ids, masses): (&[u32], &[f64]),
    count: usize,
) -> Vec<Option<(u32, f64, f64)>> {
    let draw = |_| {
        let times: Vec<f64> = (0..vocab).map(|_| exponential(numbers)).collect();
        let time = |place: usize| {
            let id = ids.get(place).copied().unwrap_or(u32::MAX);
            times.get(id as usize).copied().unwrap_or(f64::INFINITY)
        };
        let drawn = race_draw(ids, masses, time)?;
        Some((*ids.get(drawn.place)?, drawn.margin, 1e-6))
    };
    (0..count).map(draw).collect()
}

#[expect(clippy::cast_possible_truncation, reason = "torch rounds the number to f32 here")]
pub(super) fn exponential(numbers: &mut Mersenne) -> f64 {
    f64::from((-(-numbers.unit_53()).ln_1p()) as f32)
}

/// The numbers of the first fill, and the offset at which each draw began or ended.
fn stored_exponentials(
    case: &DrawCase,
    file: &DumpFile,
    geometry: Geometry,
    report: &mut CaseReport,
) -> Result<(), String> {
    for part in ["exp_head", "exp_tail"] {
        let name = format!("{}.{part}", case.name);
        if !file.has(&name) {
            continue;
        }
        let wanted = file.get(&name).and_then(|tensor| tensor.to_f64()).map_err(text)?;
        let first = match part {
            "exp_tail" => geometry.elements.saturating_sub(wanted.len() as u64),
            _ => 0,
        };
        for (element, want) in (first..).zip(&wanted) {
            let found = race_exponential(uniform_of(geometry.word(case.seed, 0, element)));
            let error = (found - want).abs();
            report.compared += 1;
            report.max_agg_abs = larger(report.max_agg_abs, Some(error));
            if error > 0.0 {
                return Err(format!("{part} of element {element} is {found}, expected {want}"));
            }
        }
    }
    let name = format!("{}.offsets", case.name);
    if file.has(&name) {
        for (number, offset) in (0_u64..).zip(id_list(file, &name)?) {
            let begins = number * geometry.advance();
            report.compared += 1;
            if u64::from(offset) != begins && u64::from(offset) != begins + geometry.advance() {
                return Err(format!("draw {number} begins at {begins}, expected {offset}"));
            }
        }
    }
    Ok(())
}
