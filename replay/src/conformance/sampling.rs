//! Sampler vectors on the reference: draws that torch made, kept sets that transformers' logits processors made.

mod draws;
mod filters;

use std::path::Path;

use lockstep_reference::sample::{
    Candidate, Filters, Geometry, Mersenne, Rules, SM_THREADS, ScoredDraw, Variant,
    half_exponential, race_draw, race_exponential, uniform_of,
};
use lockstep_traces::TraceError;
use lockstep_traces::store::DumpFile;
use rayon::prelude::*;
use serde::Deserialize;
use serde_json::Value;

use self::draws::{DrawCase, draws};
use self::filters::{CpuDraws, Expected, FilterCase, cpu, filter};
use super::error::ConformanceError;
use super::report::{CaseReport, ConformanceReport};

#[derive(Debug, Deserialize)]
struct DrawIndex {
    file: String,
    cases: Vec<DrawCase>,
    #[serde(default)]
    sm_count: Option<u32>,
}

#[derive(Debug, Deserialize)]
struct FilterIndex {
    cases: Vec<FilterCase>,
    draws: Vec<CpuDraws>,
}

/// Runs a folder of sampler vectors; `None` where it holds none.
///
/// # Errors
/// [`ConformanceError`] where a file cannot be read.
pub(crate) fn run(dir: &Path, by: &str) -> Result<Option<ConformanceReport>, ConformanceError> {
    if let Some(index) = read::<DrawIndex>(&dir.join("index.json"))? {
        if index.cases.is_empty() {
            return Err(ConformanceError::Empty { path: dir.join("index.json") });
        }
        let file = DumpFile::open(&dir.join(&index.file))?;
        let multiprocessors = index.sm_count.unwrap_or(132);
        let one = |case: &DrawCase| {
            let mut report = CaseReport::new(&case.name, &case.kind);
            if let Err(why) = draws(case, &file, multiprocessors, &mut report) {
                report.fail(why);
            }
            report.close()
        };
        let reports = index.cases.par_iter().map(one).collect();
        return Ok(Some(ConformanceReport::new(by, index.cases.len(), reports)));
    }
    let Some(index) = read::<FilterIndex>(&dir.join("cases.json"))? else { return Ok(None) };
    let logits = DumpFile::open(&dir.join("logits.safetensors"))?;
    let expected = Expected::read(&dir.join("expected.safetensors"))?;
    let filtered = index.cases.par_iter().enumerate().map(|(number, case)| {
        let mut report = CaseReport::new(&format!("filter_{number}"), "filters");
        if let Err(why) = filter(case, &logits, &expected, &mut report) {
            report.fail(why);
        }
        report.close()
    });
    let mut reports: Vec<CaseReport> = filtered.collect();
    for (number, draws) in index.draws.iter().enumerate() {
        let name = format!("draws_{number}_{}", draws.kind);
        let mut report = CaseReport::new(&name, "cpu_draws");
        if let Err(why) = cpu(draws, &index.cases, &expected, &mut report) {
            report.fail(why);
        }
        reports.push(report.close());
    }
    Ok(Some(ConformanceReport::new(by, reports.len(), reports)))
}

/// An index of this shape; `None` where the file is missing or of another shape.
fn read<T: for<'de> Deserialize<'de>>(path: &Path) -> Result<Option<T>, ConformanceError> {
    if !path.is_file() {
        return Ok(None);
    }
    let bytes =
        std::fs::read(path).map_err(|source| TraceError::Io { path: path.to_owned(), source })?;
    let value: Value = serde_json::from_slice(&bytes).map_err(|source| TraceError::Json {
        path: path.to_owned(),
        line: source.line(),
        source,
    })?;
    Ok(T::deserialize(value).ok())
}

fn text(error: TraceError) -> String {
    error.to_string()
}

fn id_list(file: &DumpFile, name: &str) -> Result<Vec<u32>, String> {
    let values = file.get(name).and_then(|tensor| tensor.to_i32()).map_err(text)?;
    values
        .into_iter()
        .map(|id| u32::try_from(id).map_err(|_| format!("`{name}` holds a negative id")))
        .collect()
}

/// A stored token and the drawn place with its margin must agree, or lie within what a device's logarithm can move.
fn hold(
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
        let time = exponential(drawn.place);
        // Quotients of f16 numbers are compared with eleven bits.
        let rounding = if half { 1e-3 } else { 1e-6 };
        let precision = rounding + 2.0 * fast_logarithm(time) / time;
        Some((*ids.get(drawn.place)?, drawn.margin, precision))
    };
    (0..count as u64).into_par_iter().map(draw).collect()
}

fn draws(
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
fn torch_cpu(
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
fn exponential(numbers: &mut Mersenne) -> f64 {
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
            if error > fast_logarithm(*want) {
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

/// Survivors as transformers had them.
struct Expected {
    ids: Vec<u32>,
    probabilities: Vec<f64>,
}

impl Expected {
    fn read(path: &Path) -> Result<Self, ConformanceError> {
        let file = DumpFile::open(path)?;
        // Stored in 16 bits; ids from 2^15 on come back as negative numbers.
        let wrapped = |id: i32| u32::try_from(id.rem_euclid(1 << 16)).unwrap_or_default();
        let ids = file.get("kept_ids")?.to_i32()?.into_iter().map(wrapped).collect();
        Ok(Self { ids, probabilities: file.get("probs")?.to_f64()? })
    }

    fn of(&self, case: &FilterCase) -> Result<(&[u32], &[f64]), String> {
        let range = case.offset..case.offset.saturating_add(case.kept);
        let both = self.ids.get(range.clone()).zip(self.probabilities.get(range));
        both.ok_or_else(|| "its survivors lie outside the tensors".to_owned())
    }
}

fn filter(
    case: &FilterCase,
    logits: &DumpFile,
    expected: &Expected,
    report: &mut CaseReport,
) -> Result<(), String> {
    let name = format!("logits_{:02}", case.vector);
    let row = logits.get(&name).and_then(|tensor| tensor.to_f64()).map_err(text)?;
    let filters = Filters {
        temperature: f64::from(case.temperature),
        top_k: (case.top_k > 0).then_some(case.top_k),
        top_p: (case.top_p < 1.0).then_some(case.top_p),
        min_p: case.min_p,
    };
    let candidates: Vec<Candidate> =
        (0..).zip(row).map(|(id, logit)| Candidate { id, logit, count: 1.0 }).collect();
    let found = filters.apply(&candidates, Rules::Hf, Variant::Usual);
    let (ids, probabilities) = expected.of(case)?;
    report.compared += 1;
    report.keep_rows += 1;
    let mut ours: Vec<(u32, f64)> =
        found.ids.iter().copied().zip(found.probabilities.iter().copied()).collect();
    let mut theirs: Vec<(u32, f64)> =
        ids.iter().copied().zip(probabilities.iter().copied()).collect();
    if ours.len() != theirs.len() {
        let near = |edge: Option<f64>| edge.is_some_and(|edge| edge < EDGE);
        if near(case.top_p_margin) || near(case.min_p_rel_margin) {
            report.tie(ours.len().abs_diff(theirs.len()) as u64);
            return Ok(());
        }
        return Err(format!("{} ids survive, expected {}", ours.len(), theirs.len()));
    }
    ours.sort_by_key(|(id, _)| *id);
    let same = ours.iter().map(|(id, _)| id).eq(theirs.iter().map(|(id, _)| id));
    if same {
        report.keep_equal += 1;
    } else if case.tie_split {
        let strange = ours.iter().filter(|(id, _)| ids.binary_search(id).is_err()).count();
        report.tie(strange as u64);
        let falling = |a: &(u32, f64), b: &(u32, f64)| b.1.total_cmp(&a.1);
        ours.sort_by(falling);
        theirs.sort_by(falling);
    } else {
        return Err("other ids survive".to_owned());
    }
    let errors = ours.iter().zip(&theirs).map(|(a, b)| (a.1 - b.1).abs());
    let worst = errors.fold(0.0, f64::max);
    report.max_agg_abs = larger(report.max_agg_abs, Some(worst));
    if worst <= PROBABILITY {
        Ok(())
    } else {
        Err(format!("a probability differs by {worst:.1e}, allowed {PROBABILITY:.0e}"))
    }
}

/// Numbers and draws of torch's generator on a CPU.
fn cpu(
    draws: &CpuDraws,
    cases: &[FilterCase],
    expected: &Expected,
    report: &mut CaseReport,
) -> Result<(), String> {
    let mut numbers = Mersenne::new(draws.seed);
    match draws.kind.as_str() {
        "rand_f32" | "exponential_f32" => {
            for (at, want) in draws.values.iter().enumerate() {
                let found = match draws.kind.as_str() {
                    "rand_f32" => numbers.unit_24(),
                    _ => exponential(&mut numbers),
                };
                report.compared += 1;
                report.max_agg_abs = larger(report.max_agg_abs, Some((found - want).abs()));
                // Printed with nine digits, of a logarithm good to a place.
                if (found - want).abs() > 2.4e-7 * want {
                    return Err(format!("number {at} is {found}, expected {want}"));
                }
            }
            Ok(())
        }
        "multinomial_1_repeated_32" => {
            let case = draws.case.and_then(|at| cases.get(at)).ok_or("its case is not listed")?;
            let vocab = usize::try_from(case.vocab).map_err(|_| "`vocab` is too large")?;
            let found = torch_cpu(&mut numbers, vocab, expected.of(case)?, draws.draws.len());
            hold(report, "draw", &found, &draws.draws)
        }
        other => Err(format!("kind `{other}` is not known to this build")),
    }
}

#[cfg(test)]
mod tests;
