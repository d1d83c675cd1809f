//! Kept sets of transformers' logits processors, and draws of a CPU from them.

use std::path::Path;

use lockstep_reference::sample::{Candidate, Filters, Mersenne, Rules, Variant};
use lockstep_traces::store::DumpFile;
use serde::Deserialize;

use super::draws::{exponential, hold, torch_cpu};
use super::text;
use crate::conformance::ConformanceError;
use crate::conformance::report::{CaseReport, larger};

/// transformers' probabilities are f32: half a place of 1 is 6e-8, and their sums run over up to fifty thousand of them.
const PROBABILITY: f64 = 1e-6;
/// A cut of top-p or min-p nearer to its edge than this falls to either side in f32.
const EDGE: f64 = 1e-6;
/// One case of filters.
#[derive(Debug, Deserialize)]
pub(super) struct FilterCase {
    vector: u32,
    vocab: u64,
    temperature: f32,
    top_k: usize,
    top_p: f64,
    min_p: Option<f64>,
    kept: usize,
    offset: usize,
    tie_split: bool,
    #[serde(default)]
    top_p_margin: Option<f64>,
    #[serde(default)]
    min_p_rel_margin: Option<f64>,
}

#[derive(Debug, Deserialize)]
pub(super) struct CpuDraws {
    pub(super) kind: String,
    seed: u64,
    #[serde(default)]
    values: Vec<f64>,
    #[serde(default)]
    case: Option<usize>,
    #[serde(default)]
    draws: Vec<u32>,
}

/// Survivors as transformers had them.
pub(super) struct Expected {
    ids: Vec<u32>,
    probabilities: Vec<f64>,
}

impl Expected {
    pub(super) fn read(path: &Path) -> Result<Self, ConformanceError> {
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

pub(super) fn filter(
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
pub(super) fn cpu(
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
