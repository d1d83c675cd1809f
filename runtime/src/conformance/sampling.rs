//! Sampler vectors: draws of `torch.multinomial`, and kept sets of transformers' logits processors.
//!
//! A folder of draws has an `index.json` that names its tensor file and its cases by `kind`; a folder of filters a `cases.json` with `draws`
//! of a CPU beside its cases, `logits.safetensors` and `expected.safetensors`.

mod draws;
mod filters;

use std::path::Path;

use lockstep_traces::TraceError;
use lockstep_traces::store::DumpFile;
use serde_json::Value;

use self::draws::draws;
use self::filters::filters;
use super::error::{CaseError, ConformanceError, differs};
use super::run::{CaseResult, Status};

/// Figures of one case.
#[derive(Debug, Default)]
struct Tally {
    /// Draws or kept sets compared, and those equal.
    compared: usize,
    equal: usize,
    ties: usize,
    /// Largest difference of a probability or an exponential number.
    error: Option<f64>,
}

impl Tally {
    fn raise(&mut self, error: f64) {
        self.error = Some(self.error.map_or(error, |most| most.max(error)));
    }
}

/// The results of a folder of sampler vectors; `None` where it holds none.
///
/// # Errors
/// [`ConformanceError`] where the index or a tensor file cannot be read.
pub fn run_sampling(dir: &Path) -> Result<Option<Vec<CaseResult>>, ConformanceError> {
    let index_path = dir.join("index.json");
    if index_path.is_file() {
        let index = json(&index_path)?;
        return if index.get("file").is_some_and(Value::is_string) {
            draws(dir, &index).map(Some)
        } else {
            Ok(None)
        };
    }
    let cases_path = dir.join("cases.json");
    if !cases_path.is_file() {
        return Ok(None);
    }
    let cases = json(&cases_path)?;
    if cases.get("draws").is_some() { filters(dir, &cases).map(Some) } else { Ok(None) }
}

fn json(path: &Path) -> Result<Value, ConformanceError> {
    let bytes =
        std::fs::read(path).map_err(|source| TraceError::Io { path: path.to_owned(), source })?;
    Ok(serde_json::from_slice(&bytes).map_err(|source| TraceError::Json {
        path: path.to_owned(),
        line: source.line(),
        source,
    })?)
}

fn result(name: String, group: &str, tally: Tally, outcome: Result<(), CaseError>) -> CaseResult {
    let status = match outcome {
        Err(error) => Status::Fail { why: error.to_string() },
        Ok(()) if tally.compared == 0 => Status::Fail { why: "nothing was compared".to_owned() },
        Ok(()) if tally.ties > 0 => Status::TieEquivalent { rows: tally.ties },
        Ok(()) => Status::Pass,
    };
    CaseResult {
        name,
        group: group.to_owned(),
        status,
        max_raw_rel: None,
        max_agg_abs: tally.error,
        keep_rows: tally.compared,
        keep_equal: tally.equal,
    }
}

fn whole(case: &Value, key: &str) -> Result<u64, CaseError> {
    case.get(key).and_then(Value::as_u64).ok_or_else(|| differs(format!("the case has no `{key}`")))
}

fn size(case: &Value, key: &str) -> Result<usize, CaseError> {
    usize::try_from(whole(case, key)?).map_err(|_| differs(format!("`{key}` is too large")))
}

fn ids(file: &DumpFile, name: &str) -> Result<Vec<u32>, CaseError> {
    let tensor = file.get(name)?;
    let ids = tensor.to_i32()?.into_iter().map(u32::try_from).collect::<Result<_, _>>();
    ids.map_err(|_| tensor.error("holds a negative id").into())
}

fn draws(dir: &Path, index: &Value) -> Result<Vec<CaseResult>, ConformanceError> {
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
struct Found {
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
        let time = Race::exponential(won.uniform);
        let precision = 2e-6 + 2.0 * FAST_LOGARITHM[1] / time;
        Found { token: ids[won.place], margin: won.margin, precision }
    };
    (0..count as u64).map(draw).map(found).collect()
}

fn on_cpu(
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

fn equal(what: &str, found: &[Found], wanted: &[u32], tally: &mut Tally) -> Result<(), CaseError> {
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
            if error > FAST_LOGARITHM[0] * want + FAST_LOGARITHM[1] {
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

fn filters(dir: &Path, index: &Value) -> Result<Vec<CaseResult>, ConformanceError> {
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

#[cfg(test)]
mod tests {
    use super::*;

    fn all_agree(folder: &str) -> Vec<CaseResult> {
        let results = run_sampling(&lockstep_testkit::golden().join(folder)).unwrap().unwrap();
        for result in &results {
            assert!(!matches!(result.status, Status::Fail { .. }), "{result:?}");
        }
        results
    }

    #[test]
    fn every_draw_of_torch_is_reproduced() {
        let results = all_agree("sampler");
        for kind in [
            "cuda_multinomial",
            "cuda_multinomial_batch",
            "cuda_multinomial_sparse",
            "cpu_multinomial",
        ] {
            assert!(results.iter().any(|result| result.group == kind), "{kind}");
        }
        assert!(results.iter().all(|result| result.keep_equal == result.keep_rows));
        assert!(results.iter().map(|result| result.keep_rows).sum::<usize>() >= 500);
    }

    #[test]
    fn every_filter_case_of_transformers_agrees() {
        let results = all_agree("filters");
        let filters = results.iter().filter(|result| result.group == "filters");
        assert_eq!(filters.clone().count(), 932);
        assert!(filters.filter(|result| result.keep_equal == 1).count() >= 873);
        assert!(results.iter().filter(|result| result.group == "cpu_draws").count() >= 16);
    }

    #[test]
    fn a_changed_draw_and_a_changed_setting_fail_by_name() {
        let folder = tempfile::tempdir().unwrap();
        let source = lockstep_testkit::golden().join("sampler");
        let index = std::fs::read_to_string(source.join("index.json")).unwrap();
        let name = "torch_multinomial.safetensors";
        std::fs::copy(source.join(name), folder.path().join(name)).unwrap();
        let index = index.replacen("\"seed\": 77", "\"seed\": 78", 1);
        std::fs::write(folder.path().join("index.json"), index).unwrap();
        let results = run_sampling(folder.path()).unwrap().unwrap();
        let failed: Vec<_> = results
            .iter()
            .filter(|result| matches!(result.status, Status::Fail { .. }))
            .map(|result| result.name.as_str())
            .collect();
        assert_eq!(failed, ["batch4"]);

        let source = lockstep_testkit::golden().join("filters");
        for name in ["logits.safetensors", "expected.safetensors"] {
            std::fs::copy(source.join(name), folder.path().join(name)).unwrap();
        }
        std::fs::remove_file(folder.path().join("index.json")).unwrap();
        let mut cases = json(&source.join("cases.json")).unwrap();
        cases["cases"][1]["top_p"] = Value::from(0.5);
        std::fs::write(folder.path().join("cases.json"), cases.to_string()).unwrap();
        let results = run_sampling(folder.path()).unwrap().unwrap();
        assert!(matches!(&results[1].status, Status::Fail { why } if why.contains("ids kept")));
    }

    #[test]
    fn folders_of_another_kind_are_left_alone() {
        let folder = lockstep_testkit::golden().join("triattention");
        assert!(run_sampling(&folder).unwrap().is_none());
        assert!(run_sampling(tempfile::tempdir().unwrap().path()).unwrap().is_none());
    }
}
#[cfg(test)]
mod tests;
