//! Evidence of a recorded run.

use lockstep_reference::sample::{Filters, Rules};
use lockstep_traces::hash::logits_hash;
use lockstep_traces::limits::Values;
use lockstep_traces::manifest::ValueEncoding;
use lockstep_traces::store::{RunReader, StepColumn, StepColumns, StepQuery};
use lockstep_traces::{CheckReport, DumpId, Manifest, SampleRow, UNKNOWN_TOKEN};
use serde_json::Value;

use super::error::SamplerError;
use super::evidence::{Claim, Evidence, Row, Step, Stream};
use super::hypothesis::{Draw, Hypothesis};
use super::{check_report, identify};

/// Settings in place of the recorded ones.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Overrides {
    /// Temperature.
    pub temperature: Option<f32>,
    /// At most 0: all.
    pub top_k: Option<i64>,
    /// Nucleus mass.
    pub top_p: Option<f32>,
    /// Floor.
    pub min_p: Option<f32>,
    /// Base seed.
    pub seed: Option<u64>,
    /// Sampler that is claimed.
    pub sampler: Option<String>,
    /// Whose filters are claimed.
    pub filters: Option<String>,
    /// Multiprocessors.
    pub sm_count: Option<u32>,
}

/// Which samples, and with which settings.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct SamplerOptions {
    /// These samples only; empty: all.
    pub samples: Vec<String>,
    /// Settings in place of the recorded ones.
    pub overrides: Overrides,
}

/// Names the sampler of a run and holds it against what the run claims.
///
/// # Errors
/// [`SamplerError`] for files that cannot be read and settings of another kind.
pub fn check(run: &RunReader, options: &SamplerOptions) -> Result<CheckReport, SamplerError> {
    let evidence = evidence_of(run, options)?;
    let claimed = Hypothesis::claimed(&evidence);
    let found = identify(&evidence, claimed);
    let mut report = check_report(&evidence, &found);
    super::report::add_seed_rows(&mut report, &run.samples()?);
    Ok(report)
}

/// Everything that a run knows about its draws.
///
/// # Errors
/// As [`check`].
pub fn evidence_of(run: &RunReader, options: &SamplerOptions) -> Result<Evidence, SamplerError> {
    refuse_processed(run.manifest())?;
    let settings = Settings::read(run.manifest(), &options.overrides)?;
    let samples = run.samples()?;
    let ids = run.sample_ids()?;
    if let Some(unknown) = options.samples.iter().find(|id| !ids.contains(id)) {
        let what = format!("no sample `{unknown}`; there are {}", ids.join(", "));
        return Err(SamplerError::Options { what });
    }
    let mut limits = Vec::new();
    let mut vocab = settings.vocab;
    let mut streams = Vec::new();
    for id in ids.iter().filter(|id| options.samples.is_empty() || options.samples.contains(id)) {
        let row = samples.iter().find(|row| row.sample_id == **id);
        let stream = stream(run, id, row, &settings, &mut vocab, &mut limits)?;
        streams.push(stream);
    }
    let vocab = vocab.ok_or_else(|| SamplerError::Manifest {
        what: "no `model.vocab_size` and no dumped logits; the vocabulary is not known".to_owned(),
    })?;
    limits.dedup();
    let named = settings.claim.sampler.as_deref();
    if let Some(name) = named.filter(|name| Draw::named(name, settings.sm_count).is_none()) {
        limits.push(format!(
            "sampler `{name}` is not known here; the tokens are held against nothing"
        ));
    }
    Ok(Evidence {
        streams,
        vocab,
        filters: settings.filters,
        claim: settings.claim,
        sm_count: settings.sm_count,
        logit_error: match run.manifest().encoding {
            // Six significant digits of logits below 100.
            ValueEncoding::Digits6 => 5e-5,
            // Half of the last printed digit.
            ValueEncoding::Decimals => {
                0.5 * 10_f64.powi(-i32::from(run.manifest().limits.decimals.unwrap_or(0)))
            }
            ValueEncoding::Codes16 => run.manifest().limits.value_error.unwrap_or(f64::INFINITY),
            _ => 0.0,
        },
        given: Vec::new(),
        limits,
    })
}

/// Values on which a sampler cannot be run again.
fn refuse_processed(manifest: &Manifest) -> Result<(), SamplerError> {
    let what = match manifest.limits.values {
        Values::ProcessedLogprobs => {
            "its values stand after temperature or filters: no sampler can be run on them again; record raw ones"
        }
        Values::Nothing => "it holds no values: no sampler can be run again",
        Values::Logits | Values::Logprobs | Values::UnsaidLogprobs => return Ok(()),
    };
    Err(SamplerError::Manifest { what: what.to_owned() })
}

/// Puts settings into evidence in place of its own.
///
/// # Errors
/// [`SamplerError::Options`] for a setting that cannot be.
pub fn apply_overrides(evidence: &mut Evidence, with: &Overrides) -> Result<(), SamplerError> {
    let filters = &mut evidence.filters;
    if let Some(temperature) = with.temperature {
        if !(temperature.is_finite() && temperature > 0.0) {
            let what = format!("temperature {temperature} must be above 0; argmax needs no draws");
            return Err(SamplerError::Options { what });
        }
        filters.temperature = single(temperature);
    }
    if let Some(k) = with.top_k {
        filters.top_k = usize::try_from(k).ok().filter(|k| *k > 0);
    }
    if let Some(p) = with.top_p {
        filters.top_p = Some(single(p)).filter(|p| *p < 1.0);
    }
    if let Some(p) = with.min_p {
        filters.min_p = Some(single(p)).filter(|p| *p > 0.0);
    }
    if let Some(seed) = with.seed {
        evidence.streams.iter_mut().for_each(|stream| stream.base_seed = Some(seed));
    }
    if let Some(rules) = with.filters.as_deref().map(rules_named).transpose()? {
        evidence.claim.rules = Some(rules);
    }
    if let Some(name) = with.sampler.as_deref() {
        evidence.claim.sampler = Some(sampler_named(name)?);
    }
    evidence.sm_count = with.sm_count.unwrap_or(evidence.sm_count);
    Ok(())
}

/// The name of a sampler, where it is one that is known here.
fn sampler_named(name: &str) -> Result<String, SamplerError> {
    match Draw::named(name, 132) {
        Some(_) => Ok(name.to_owned()),
        None => {
            let what = format!(
                "sampler `{name}` is not known here; use argmax, xorshift, torch-cuda, torch-cuda-slice, torch-cpu or gumbel"
            );
            Err(SamplerError::Options { what })
        }
    }
}

fn rules_named(name: &str) -> Result<Rules, SamplerError> {
    match name {
        "hf" => Ok(Rules::Hf),
        "native" => Ok(Rules::Native),
        other => {
            let what = format!("filters `{other}` are not known here; use hf or native");
            Err(SamplerError::Options { what })
        }
    }
}

/// The chosen tokens of one sample with their rows.
fn stream(
    run: &RunReader,
    sample_id: &str,
    sample: Option<&SampleRow>,
    settings: &Settings,
    vocab: &mut Option<usize>,
    limits: &mut Vec<String>,
) -> Result<Stream, SamplerError> {
    let columns = vec![
        StepColumn::NextToken,
        StepColumn::TopIds,
        StepColumn::TopLogits,
        StepColumn::Logsumexp,
        StepColumn::RngOffset,
        StepColumn::LogitsHash,
    ];
    let query = StepQuery {
        sample_id: Some(sample_id.to_owned()),
        columns: Some(columns),
        ..StepQuery::default()
    };
    let rows = run.steps(&query)?;
    let mut steps = Vec::new();
    for row in 0..rows.len {
        let chosen = rows.next_token.get(row).copied().flatten();
        let Some(token) = chosen.filter(|token| *token != UNKNOWN_TOKEN) else { continue };
        let position = rows.position.get(row).copied().unwrap_or(u32::MAX);
        let hash =
            rows.logits_hash.get(row).copied().flatten().zip(run.manifest().logits_hash_seeds);
        let logits = full(run, sample_id, position, hash)?;
        if let Some(logits) = &logits {
            vocab.get_or_insert(logits.listed.len());
        }
        let known = logits.or_else(|| top(&rows, row, *vocab));
        let Some(known) = known.filter(|row| !row.listed.is_empty()) else {
            limits.push(format!("{sample_id}: rows without logits end the stream at {position}"));
            break;
        };
        steps.push(Step {
            position,
            row: known,
            token,
            offset: rows.rng_offset.get(row).copied().flatten(),
        });
    }
    let own = sample.and_then(|sample| sample.base_seed);
    if let (Some(own), Some(declared)) = (own, settings.seed)
        && own != declared
    {
        let what = format!(
            "`sampling.seed` is {declared}, sample {sample_id} records the base seed {own}: one of them was changed"
        );
        return Err(SamplerError::Manifest { what });
    }
    let recorded = own.or(settings.seed);
    if sample.is_none() {
        limits.push(format!("{sample_id}: no sample row; its seed index is taken as 0"));
    }
    Ok(Stream {
        sample_id: sample_id.to_owned(),
        base_seed: settings.override_seed.or(recorded),
        seed_index: sample.and_then(|sample| sample.seed_index).unwrap_or(0),
        steps,
    })
}

/// The dumped logits of a row; they must be those whose hash the row recorded.
fn full(
    run: &RunReader,
    sample: &str,
    position: u32,
    hash: Option<([u64; 2], [u64; 2])>,
) -> Result<Option<Row>, SamplerError> {
    let id = DumpId::Step { sample_id: sample.to_owned(), position };
    let Some(dump) = run.dump(&id)?.filter(|dump| dump.has("logits")) else { return Ok(None) };
    let logits = dump.get("logits")?.to_f32()?;
    if let Some(bad) = logits.iter().find(|x| x.is_nan() || **x == f32::INFINITY) {
        let what =
            format!("{}: a logit is {bad}; nothing was drawn from this row", id.relative_path());
        return Err(SamplerError::Manifest { what });
    }
    if hash.is_some_and(|(recorded, seeds)| logits_hash(&logits, seeds) != recorded) {
        let what = format!(
            "{}: these are not the logits that row {position} recorded (their hash is another); copy the run again",
            id.relative_path()
        );
        return Err(SamplerError::Manifest { what });
    }
    Ok(Some(Row::full(logits.into_iter().map(f64::from))))
}

/// The largest logits of a row.
fn top(rows: &StepColumns, row: usize, vocab: Option<usize>) -> Option<Row> {
    let pairs = rows.ids_of(row).iter().copied().zip(rows.logits_of(row).iter().copied());
    let listed: Vec<(u32, f64)> = pairs
        .filter(|(id, _)| *id != UNKNOWN_TOKEN)
        .map(|(id, logit)| (id, f64::from(logit)))
        .collect();
    let logsumexp = rows.logsumexp.get(row).copied().flatten();
    if listed.iter().any(|(_, logit)| logit.is_nan() || *logit == f64::INFINITY) {
        return None;
    }
    Some(Row::top(listed, vocab?, logsumexp))
}

/// Sampling settings of a manifest.
struct Settings {
    filters: Filters,
    claim: Claim,
    seed: Option<u64>,
    override_seed: Option<u64>,
    sm_count: u32,
    vocab: Option<usize>,
}

impl Settings {
    fn read(manifest: &Manifest, overrides: &Overrides) -> Result<Self, SamplerError> {
        let number = |key: &str| manifest.get(key).and_then(Value::as_f64);
        let whole = |key: &str| manifest.get(key).and_then(Value::as_u64);
        let text = |key: &str| manifest.get(key).and_then(Value::as_str).map(str::to_owned);
        let count = |key: &str| whole(key).and_then(|value| usize::try_from(value).ok());
        let given = |value: Option<f32>| value.map(single);
        let vocab = count("model.vocab_size");
        let temperature = given(overrides.temperature)
            .or_else(|| number("sampling.temperature").map(rounded))
            .unwrap_or(1.0);
        let greedy = temperature < 1e-6;
        let recorded_k = count("sampling.top_k").filter(|k| Some(*k) != vocab);
        let top_k = match overrides.top_k {
            Some(k) => usize::try_from(k).ok().filter(|k| *k > 0),
            None => recorded_k.filter(|k| *k > 0),
        };
        let top_p = given(overrides.top_p).or_else(|| number("sampling.top_p").map(rounded));
        let min_p = given(overrides.min_p).or_else(|| number("sampling.min_p").map(rounded));
        let asked = overrides.sampler.as_deref().map(sampler_named).transpose()?;
        let sampler = asked.or_else(|| text("sampling.sampler"));
        let filters = overrides.filters.clone().or_else(|| text("sampling.filters"));
        let rules = filters.as_deref().map(rules_named).transpose()?;
        let sm_count = overrides.sm_count.map(u64::from).or_else(|| whole("sampling.sm_count"));
        Ok(Self {
            filters: Filters {
                temperature: if greedy { 1.0 } else { temperature },
                top_k,
                top_p: top_p.filter(|p| *p < 1.0 - 1e-6),
                min_p: min_p.filter(|p| *p > 0.0),
            },
            claim: Claim {
                sampler: if greedy { Some("argmax".to_owned()) } else { sampler },
                rules,
            },
            seed: whole("sampling.seed"),
            override_seed: overrides.seed,
            sm_count: sm_count.and_then(|count| u32::try_from(count).ok()).unwrap_or(132),
            vocab,
        })
    }
}

/// A setting as the f32 that an engine computes with.
#[expect(clippy::cast_possible_truncation, reason = "engines hold sampling settings in f32")]
fn rounded(value: f64) -> f64 {
    single(value as f32)
}

fn single(value: f32) -> f64 {
    f64::from(value)
}
