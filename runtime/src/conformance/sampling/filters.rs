//! Kept sets of transformers' logits processors, and draws of a CPU from them.

use std::path::Path;

use lockstep_traces::store::DumpFile;
use serde_json::Value;

use super::draws::{equal, on_cpu};
use super::{Tally, result, size, whole};
use crate::conformance::error::{CaseError, ConformanceError, differs};
use crate::conformance::run::CaseResult;
use crate::sample::{Filters, Survivors, torch_cpu};

/// Largest difference of a probability from transformers'.
const PROBABILITY: f64 = 1e-6;
/// Distance from its edge at which a cut in f32 may fall to either side.
const EDGE: f64 = 1e-6;

pub(super) fn filters(dir: &Path, index: &Value) -> Result<Vec<CaseResult>, ConformanceError> {
    let logits = DumpFile::open(&dir.join("logits.safetensors"))?;
    let expected = DumpFile::open(&dir.join("expected.safetensors"))?;
    let kept: Vec<i32> = expected.get("kept_ids")?.to_i32()?;
    // Ids of vocabularies above 2^15 lie in 16 bits without a sign.
    let kept: Vec<u32> = kept.iter().map(|id| (id & 0xffff).unsigned_abs()).collect();
    let probabilities = expected.get("probs")?.to_f32()?;
    let cases = index.get("cases").and_then(Value::as_array).cloned().unwrap_or_default();
    let mut results = Vec::new();
    for (number, case) in cases.iter().enumerate() {
        let mut tally = Tally::default();
        let outcome = filter_case(case, &logits, (&kept, &probabilities), &mut tally);
        results.push(result(format!("filter_{number}"), "filters", tally, outcome));
    }
    for (number, draw) in
        index.get("draws").and_then(Value::as_array).into_iter().flatten().enumerate()
    {
        let kind = draw.get("kind").and_then(Value::as_str).unwrap_or("?");
        let mut tally = Tally::default();
        let outcome = cpu_draws(draw, kind, (&cases, &kept, &probabilities), &mut tally);
        results.push(result(format!("draws_{number}_{kind}"), "cpu_draws", tally, outcome));
    }
    if results.is_empty() {
        return Err(ConformanceError::Empty(dir.to_owned()));
    }
    Ok(results)
}

fn wanted<'a>(
    case: &Value,
    (kept, probabilities): (&'a [u32], &'a [f32]),
) -> Result<(&'a [u32], &'a [f32]), CaseError> {
    let (at, count) = (size(case, "offset")?, size(case, "kept")?);
    let range = at..at.saturating_add(count);
    let outside = || differs("the expected survivors lie outside their tensors");
    let ids = kept.get(range.clone()).ok_or_else(outside)?;
    Ok((ids, probabilities.get(range).ok_or_else(outside)?))
}

fn filter_case(
    case: &Value,
    logits: &DumpFile,
    expected: (&[u32], &[f32]),
    tally: &mut Tally,
) -> Result<(), CaseError> {
    #[expect(clippy::cast_possible_truncation, reason = "settings are f32 there as well")]
    let number = |key: &str| case.get(key).and_then(Value::as_f64).map(|value| value as f32);
    let row = logits.get(&format!("logits_{:02}", whole(case, "vector")?))?.to_f32()?;
    let top_k = size(case, "top_k")?;
    let filters = Filters {
        temperature: number("temperature").unwrap_or(1.0),
        top_k: if top_k == 0 { row.len() } else { top_k },
        top_p: number("top_p").unwrap_or(1.0),
        min_p: number("min_p").unwrap_or(0.0),
    };
    let (ids, probabilities) = wanted(case, expected)?;
    let mut found = Survivors::default();
    filters.apply_hf(&row, &mut found);
    tally.compared = 1;
    let near = |key: &str| case.get(key).and_then(Value::as_f64).is_some_and(|gap| gap < EDGE);
    if found.ids.len() != ids.len() {
        if near("top_p_margin") || near("min_p_rel_margin") {
            tally.ties = found.ids.len().abs_diff(ids.len());
            return Ok(());
        }
        let (found, wanted) = (found.ids.len(), ids.len());
        return Err(differs(format!("{found} ids kept, expected {wanted}")));
    }
    let mut pairs: Vec<(u32, f32)> =
        found.ids.iter().copied().zip(found.probabilities.iter().copied()).collect();
    pairs.sort_unstable_by_key(|(id, _)| *id);
    let same = pairs.iter().map(|(id, _)| id).eq(ids);
    let mut theirs: Vec<f32> = probabilities.to_vec();
    if same {
        tally.equal = 1;
    } else if case.get("tie_split").and_then(Value::as_bool) == Some(true) {
        // Which of equal scores survives is not defined there: as many, with the same probabilities.
        tally.ties = pairs.iter().filter(|(id, _)| !ids.contains(id)).count();
        pairs.sort_by(|a, b| b.1.total_cmp(&a.1));
        theirs.sort_by(|a, b| b.total_cmp(a));
    } else {
        return Err(differs("other ids are kept".to_owned()));
    }
    for ((id, ours), theirs) in pairs.iter().zip(&theirs) {
        let error = f64::from((ours - theirs).abs());
        tally.raise(error);
        if error.is_nan() || error > PROBABILITY {
            return Err(differs(format!("id {id} has probability {ours}, expected {theirs}")));
        }
    }
    Ok(())
}

/// Numbers and draws of a generator on a CPU.
fn cpu_draws(
    draw: &Value,
    kind: &str,
    (cases, kept, probabilities): (&[Value], &[u32], &[f32]),
    tally: &mut Tally,
) -> Result<(), CaseError> {
    let list = |key: &str| draw.get(key).and_then(Value::as_array).into_iter().flatten();
    let mut generator = torch_cpu::generator(whole(draw, "seed")?);
    #[expect(clippy::cast_possible_truncation, reason = "nine digits name an f32")]
    let values: Vec<f32> =
        list("values").filter_map(Value::as_f64).map(|value| value as f32).collect();
    match kind {
        "exponential_f32" | "rand_f32" => {
            for (at, want) in values.iter().enumerate() {
                let found = if kind == "rand_f32" {
                    generator.uniform()
                } else {
                    torch_cpu::next_exponential(&mut generator)
                };
                let error = (found - want).abs();
                tally.compared += 1;
                tally.equal += usize::from(found.to_bits() == want.to_bits());
                tally.raise(f64::from(error));
                // Nine digits, and a logarithm of another library.
                if error > 2.0 * f32::EPSILON * want {
                    return Err(differs(format!("number {at} is {found}, expected {want}")));
                }
            }
            Ok(())
        }
        "multinomial_1_repeated_32" => {
            let case = cases.get(size(draw, "case")?);
            let case = case.ok_or_else(|| differs("the case drawn from is not listed"))?;
            let (ids, masses) = wanted(case, (kept, probabilities))?;
            let vocab = size(case, "vocab")?;
            let wanted: Vec<u32> = list("draws")
                .filter_map(Value::as_u64)
                .filter_map(|id| u32::try_from(id).ok())
                .collect();
            let found = on_cpu(&mut generator, vocab, (ids, masses), wanted.len());
            equal("draw", &found, &wanted, tally)
        }
        other => Err(differs(format!("kind `{other}` is not known to this build"))),
    }
}
