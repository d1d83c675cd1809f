//! Draws of `torch.multinomial`.

use std::path::Path;

use half::f16;
use lockstep_traces::DType;
use lockstep_traces::store::DumpFile;
use serde_json::Value;

use super::{Tally, ids, result, size, whole};
use crate::conformance::error::{CaseError, ConformanceError, differs};
use crate::conformance::run::CaseResult;
use crate::sample::{Race, Winner, torch_cpu};
use crate::select::NoiseGenerator;

/// SMs of the device that made the draws, where an index does not say.
const SM_COUNT: u32 = 132;

pub(super) fn draws(dir: &Path, index: &Value) -> Result<Vec<CaseResult>, ConformanceError> {
    let name = index.get("file").and_then(Value::as_str).unwrap_or_default();
    let file = DumpFile::open(&dir.join(name))?;
    let sm_count = index.get("sm_count").and_then(Value::as_u64);
    let sm_count = sm_count.and_then(|count| u32::try_from(count).ok()).unwrap_or(SM_COUNT);
    let cases = index.get("cases").and_then(Value::as_array).cloned().unwrap_or_default();
    if cases.is_empty() {
        return Err(ConformanceError::Empty(dir.to_owned()));
    }
    let one = |case: &Value| {
        let name = case.get("name").and_then(Value::as_str).unwrap_or("?").to_owned();
        let kind = case.get("kind").and_then(Value::as_str).unwrap_or("?").to_owned();
        let mut tally = Tally::default();
        let outcome = draw_case(case, (&name, &kind), &file, sm_count, &mut tally);
        result(name, &kind, tally, outcome)
    };
    Ok(cases.iter().map(one).collect())
}

fn draw_case(
    case: &Value,
    (name, kind): (&str, &str),
    file: &DumpFile,
    sm_count: u32,
    tally: &mut Tally,
) -> Result<(), CaseError> {
    let part = |part: &str| format!("{name}.{part}");
    let seed = whole(case, "seed")?;
    let wanted = ids(file, &part("draws"))?;
    let masses = file.get(&part("probs"))?;
    let race = |elements: usize| Race::new(elements, sm_count);
    match kind {
        "cuda_multinomial_sparse" => {
            let kept = ids(file, &part("ids"))?;
            let masses = masses.to_f32()?;
            let found = raced(race(size(case, "vocab")?), seed, &kept, &masses, wanted.len());
            equal("draw", &found, &wanted, tally)?;
            let places: Vec<u32> = (0..).take(kept.len()).collect();
            let mut found = raced(race(kept.len()), seed, &places, &masses, wanted.len());
            for one in &mut found {
                one.token = kept.get(one.token as usize).copied().unwrap_or(u32::MAX);
            }
            equal("draw over the slice", &found, &ids(file, &part("kept_slice_draws"))?, tally)
        }
        "cuda_multinomial_batch" => {
            let [rows, width] = masses.shape[..] else {
                return Err(masses.error("expected [rows, ids]").into());
            };
            let (values, race) = (masses.to_f32()?, race(rows * width));
            for (row, masses) in values.chunks_exact(width.max(1)).enumerate() {
                let first = u32::try_from(row * width).unwrap_or(u32::MAX);
                let all: Vec<u32> = (first..).take(width).collect();
                let mut found = raced(race, seed, &all, masses, wanted.len() / rows.max(1));
                found.iter_mut().for_each(|one| one.token = one.token.wrapping_sub(first));
                let want: Vec<u32> = wanted.iter().copied().skip(row).step_by(rows).collect();
                equal(&format!("row {row}, draw"), &found, &want, tally)?;
            }
            Ok(())
        }
        "cuda_multinomial" => {
            let race = race(size(case, "vocab")?);
            let all: Vec<u32> = (0..).take(masses.len()).collect();
            let found = if masses.dtype == DType::F16 {
                let halves = masses.bytes.as_chunks::<2>().0.iter();
                let halves: Vec<f16> = halves.map(|&bytes| f16::from_le_bytes(bytes)).collect();
                let draw = |draw| race.run_half(seed, draw * race.increment(), &all, &halves);
                let places = (0..wanted.len() as u64).map(draw);
                places
                    .map(|place| Found::sure(place.map_or(u32::MAX, |place| all[place])))
                    .collect()
            } else {
                raced(race, seed, &all, &masses.to_f32()?, wanted.len())
            };
            equal("draw", &found, &wanted, tally)?;
            exponentials(case, name, file, race, tally)
        }
        "cpu_multinomial" => {
            let vocab = size(case, "vocab")?;
            let (all, masses) = ((0..).take(vocab).collect::<Vec<u32>>(), masses.to_f32()?);
            let mut generator = torch_cpu::generator(seed);
            let found = on_cpu(&mut generator, vocab, (&all, &masses), wanted.len());
            equal("draw", &found, &wanted, tally)
        }
        other => Err(differs(format!("kind `{other}` is not known to this build"))),
    }
}

/// A drawn token, and how far the next one was.
#[derive(Debug, Clone, Copy)]
pub(super) struct Found {
    token: u32,
    /// ln of the winner's quotient over the second's.
    margin: f32,
    /// What the device's logarithm and rounding can move.
    precision: f32,
}

impl Found {
    const fn sure(token: u32) -> Self {
        Self { token, margin: f32::INFINITY, precision: 0.0 }
    }
}

fn raced(race: Race, seed: u64, ids: &[u32], masses: &[f32], count: usize) -> Vec<Found> {
    let draw = |draw| race.run(seed, draw * race.increment(), ids, masses);
    let found = |winner: Option<Winner>| {
        let Some(won) = winner else { return Found::sure(u32::MAX) };
        // Uniform number, logarithm and quotient are the device's to the bit: nothing can fall the other way.
        Found { token: ids[won.place], margin: won.margin, precision: 0.0 }
    };
    (0..count as u64).map(draw).map(found).collect()
}

pub(super) fn on_cpu(
    generator: &mut NoiseGenerator,
    vocab: usize,
    (ids, masses): (&[u32], &[f32]),
    count: usize,
) -> Vec<Found> {
    let mut draw = |_| {
        let winner = torch_cpu::run(generator, vocab, ids, masses);
        winner.map_or(Found::sure(u32::MAX), |won| Found {
            token: ids[won.place],
            margin: won.margin,
            precision: 1e-6,
        })
    };
    (0..count).map(&mut draw).collect()
}

pub(super) fn equal(
    what: &str,
    found: &[Found],
    wanted: &[u32],
    tally: &mut Tally,
) -> Result<(), CaseError> {
    if found.len() != wanted.len() {
        return Err(differs(format!("{} of {what}s, expected {}", found.len(), wanted.len())));
    }
    for (at, (found, want)) in found.iter().zip(wanted).enumerate() {
        tally.compared += 1;
        if found.token == *want {
            tally.equal += 1;
        } else if found.margin < found.precision {
            tally.ties += 1;
        } else {
            return Err(differs(format!(
                "{what} {at} is {}, expected {want} (margin {:.1e})",
                found.token, found.margin
            )));
        }
    }
    Ok(())
}

/// Exponential numbers of the first fill, and the offsets of the draws, where they are stored.
fn exponentials(
    case: &Value,
    name: &str,
    file: &DumpFile,
    race: Race,
    tally: &mut Tally,
) -> Result<(), CaseError> {
    let seed = whole(case, "seed")?;
    for (part, from_end) in [("exp_head", false), ("exp_tail", true)] {
        let tensor = format!("{name}.{part}");
        if !file.has(&tensor) {
            continue;
        }
        let wanted = file.get(&tensor)?.to_f32()?;
        let first = if from_end { size(case, "vocab")?.saturating_sub(wanted.len()) } else { 0 };
        for (id, want) in (u32::try_from(first).unwrap_or(u32::MAX)..).zip(&wanted) {
            let found = Race::exponential(race.uniform(seed, 0, id));
            let error = (found - want).abs();
            tally.raise(f64::from(error));
            if error > 0.0 {
                return Err(differs(format!("{part} of id {id} is {found}, expected {want}")));
            }
        }
    }
    let offsets = format!("{name}.offsets");
    if file.has(&offsets) {
        // Before or after the draw: both are kept by people.
        for (draw, offset) in (0_u64..).zip(ids(file, &offsets)?) {
            let before = draw * race.increment();
            if ![before, before + race.increment()].contains(&u64::from(offset)) {
                return Err(differs(format!(
                    "offset of draw {draw} is {before}, expected {offset}"
                )));
            }
        }
    }
    Ok(())
}
