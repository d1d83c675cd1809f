//! Evidence in a plain file: JSON, or JSON lines.
//!
//! One JSON object:
//!
//! ```text
//! {"seed": 1234, "seed_index": 0, "temperature": 0.6, "top_k": 20, "top_p": 0.95, "min_p": 0.0,
//!  "sampler": "torch-cuda", "filters": "hf", "sm_count": 132, "vocab": 151936, "draws": [0.12, ...],
//!  "logits": [[...], ...]        raw logits of the whole vocabulary, one row a token; or
//!  "top": [[[id, logit], ...]]   the largest raw logits of each row ("vocab" says how many there are); or
//!  "probabilities": [[...], ...] what was drawn from: no temperature and no filter is applied to them
//!  "tokens": [3, 1, ...]         or {"name": [...], "other": [...]}: several streams over the same rows, the first is the baseline}
//! ```
//!
//! Or one object a line: settings in a line without `token`, then `{"sample_id": "a", "token": 3, "logits": [...]}` with `top` or
//! `probabilities` in place of `logits`, and optionally `position`, `seed_index`, `rng_offset`. Everything but rows and tokens may be missing.
//! `null` and `"-Infinity"` in a row stand for -inf. Unknown keys are passed over. `draws` are the numbers of a running sum, where they are
//! known.

use std::path::Path;

use lockstep_reference::sample::{Filters, Rules};
use lockstep_traces::TraceError;
use serde_json::Value;

use super::error::SamplerError;
use super::evidence::{Claim, Evidence, Row, Step, Stream};

/// Tokens of one engine over the rows of the file.
#[derive(Debug, Clone, PartialEq)]
pub struct TokenList {
    /// Name in the file; `tokens` where there is only one.
    pub name: String,
    /// Evidence with these tokens.
    pub evidence: Evidence,
}

/// What a file of evidence holds.
#[derive(Debug, Clone, PartialEq)]
pub struct FileEvidence {
    /// Token lists, the baseline first.
    pub lists: Vec<TokenList>,
}

/// Numbers of a file are printed in decimal: an error of a printed f32 with nine digits.
const PRINTED: f64 = 5e-9;

/// Reads a file of evidence; `tokens` is a second file that holds the token lists.
///
/// # Errors
/// [`SamplerError`] with file, line and remedy for what is no such evidence.
pub fn read(path: &Path, tokens: Option<&Path>) -> Result<FileEvidence, SamplerError> {
    let (text, whole) = parse(path)?;
    match whole {
        Some(Value::Object(mut object)) => {
            if let Some(tokens) = tokens {
                let (_, found) = parse(tokens)?;
                let lists = found.ok_or_else(|| {
                    SamplerError::file(tokens, "no JSON; give a list of ids, or an object of lists")
                })?;
                object.insert("tokens".to_owned(), lists);
            }
            from_object(path, &Value::Object(object))
        }
        Some(_) => Err(SamplerError::file(path, "no object of settings, rows and tokens")),
        None => from_lines(path, &text),
    }
}

/// The text of a file, and its JSON where it is one document.
pub(super) fn parse(path: &Path) -> Result<(String, Option<Value>), SamplerError> {
    let text = std::fs::read_to_string(path)
        .map_err(|source| TraceError::Io { path: path.to_owned(), source })?;
    let text = text.trim_start_matches('\u{feff}').to_owned();
    match serde_json::from_str(&text) {
        Ok(value) => Ok((text, Some(value))),
        // Lines of JSON are no document: the error lies behind the first line's end.
        Err(error) if text.lines().filter(|line| !line.trim().is_empty()).count() > 1 => {
            let first = text.lines().find(|line| !line.trim().is_empty()).unwrap_or_default();
            if serde_json::from_str::<Value>(first).is_ok_and(|value| value.is_object()) {
                return Ok((text, None));
            }
            Err(json(path, error))
        }
        Err(error) => Err(json(path, error)),
    }
}

fn json(path: &Path, source: serde_json::Error) -> SamplerError {
    TraceError::Json { path: path.to_owned(), line: source.line(), source }.into()
}

/// Settings of a file, all of them optional.
struct Settings {
    filters: Filters,
    claim: Claim,
    seed: Option<u64>,
    seed_index: u64,
    sm_count: u32,
    vocab: Option<usize>,
    given: Vec<f64>,
}

fn settings(path: &Path, object: &Value) -> Result<Settings, SamplerError> {
    let wrong = |key: &str, what: &str| SamplerError::file(path, format!("`{key}` {what}"));
    let number = |key: &str| match object.get(key) {
        None | Some(Value::Null) => Ok(None),
        Some(value) => value
            .as_f64()
            .map(Some)
            .ok_or_else(|| wrong(key, "is no number; leave it out or give one")),
    };
    let whole = |key: &str| match object.get(key) {
        None | Some(Value::Null) => Ok(None),
        Some(value) => value.as_i64().map(Some).ok_or_else(|| wrong(key, "is no whole number")),
    };
    let text = |key: &str| object.get(key).and_then(Value::as_str).map(str::to_owned);
    let temperature = number("temperature")?.unwrap_or(1.0);
    if !(temperature.is_finite() && temperature > 0.0) {
        return Err(wrong("temperature", "must be above 0; argmax needs no draws"));
    }
    let rules = match text("filters").as_deref() {
        None => None,
        Some("hf") => Some(Rules::Hf),
        Some("native") => Some(Rules::Native),
        Some(_) => return Err(wrong("filters", "must be hf or native")),
    };
    let draws = object.get("draws").and_then(Value::as_array);
    Ok(Settings {
        filters: Filters {
            temperature,
            top_k: whole("top_k")?.filter(|k| *k > 0).and_then(|k| usize::try_from(k).ok()),
            top_p: number("top_p")?.filter(|p| *p < 1.0),
            min_p: number("min_p")?.filter(|p| *p > 0.0),
        },
        claim: Claim { sampler: text("sampler"), rules },
        seed: whole("seed")?.and_then(|seed| u64::try_from(seed).ok()),
        seed_index: whole("seed_index")?.and_then(|index| u64::try_from(index).ok()).unwrap_or(0),
        sm_count: whole("sm_count")?.and_then(|count| u32::try_from(count).ok()).unwrap_or(132),
        vocab: whole("vocab")?.and_then(|vocab| usize::try_from(vocab).ok()),
        given: draws.into_iter().flatten().filter_map(Value::as_f64).collect(),
    })
}

/// The kinds of rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Logits,
    Top,
    Probabilities,
}

const KINDS: [(&str, Kind); 3] =
    [("logits", Kind::Logits), ("top", Kind::Top), ("probabilities", Kind::Probabilities)];

/// The rows of an object and what they are.
fn kind_of<'a>(path: &Path, object: &'a Value) -> Result<(Kind, &'a Value), SamplerError> {
    let mut found = KINDS.iter().filter_map(|(key, kind)| Some((*kind, object.get(key)?)));
    match (found.next(), found.next()) {
        (Some(one), None) => Ok(one),
        (None, _) => Err(SamplerError::file(
            path,
            "no rows; give `logits`, `top` (ids with logits) or `probabilities`",
        )),
        _ => Err(SamplerError::file(
            path,
            "rows of two kinds; give one of `logits`, `top`, `probabilities`",
        )),
    }
}

/// A number of a row; what is not printed as a finite number is -inf or refused.
pub(super) fn value_of(value: &Value) -> Result<f64, String> {
    match value {
        Value::Null => Ok(f64::NEG_INFINITY),
        Value::String(text) if text.eq_ignore_ascii_case("-infinity") || text == "-inf" => {
            Ok(f64::NEG_INFINITY)
        }
        Value::Number(number) => number.as_f64().ok_or_else(|| format!("{number} is no number")),
        other => Err(format!("{other} is no logit; a row that is not finite cannot be drawn from")),
    }
}

fn row(kind: Kind, value: &Value, vocab: Option<usize>) -> Result<Row, String> {
    let list = value.as_array().ok_or("is no list")?;
    if list.is_empty() {
        return Err("is empty".to_owned());
    }
    if kind == Kind::Top {
        let mut listed = Vec::new();
        for pair in list {
            let id = pair.get(0).and_then(Value::as_u64).and_then(|id| u32::try_from(id).ok());
            let id = id.ok_or_else(|| format!("{pair} is no pair of id and logit"))?;
            listed.push((id, value_of(pair.get(1).unwrap_or(&Value::Null))?));
        }
        let vocab =
            vocab.ok_or("lists the largest logits only; say how many there are in `vocab`")?;
        return Ok(Row::top(listed, vocab, None));
    }
    let numbers = list.iter().map(value_of).collect::<Result<Vec<_>, _>>()?;
    if kind == Kind::Logits {
        return Ok(Row::full(numbers));
    }
    if let Some(bad) = numbers.iter().find(|p| !(0.0..=1.0).contains(*p)) {
        return Err(format!("holds {bad}, which is no probability"));
    }
    let mass: f64 = numbers.iter().sum();
    if (mass - 1.0).abs() > 1e-3 {
        return Err(format!("sums to {mass}, which is no distribution"));
    }
    Ok(Row::full(numbers.into_iter().map(f64::ln)))
}

fn id_list(path: &Path, name: &str, value: &Value) -> Result<Vec<u32>, SamplerError> {
    let wrong = || SamplerError::file(path, format!("`{name}` is no list of token ids"));
    let ids = value.as_array().ok_or_else(wrong)?.iter();
    ids.map(|id| id.as_u64().and_then(|id| u32::try_from(id).ok()).ok_or_else(wrong)).collect()
}

fn from_object(path: &Path, object: &Value) -> Result<FileEvidence, SamplerError> {
    let settings = settings(path, object)?;
    let (kind, rows) = kind_of(path, object)?;
    let name = KINDS.iter().find(|(_, other)| *other == kind).map_or("rows", |(key, _)| *key);
    let rows =
        rows.as_array().ok_or_else(|| SamplerError::file(path, format!("`{name}` is no list")))?;
    let rows = rows
        .iter()
        .enumerate()
        .map(|(number, value)| {
            row(kind, value, settings.vocab).map_err(|what| {
                SamplerError::file(path, format!("row {number} of `{name}` {what}"))
            })
        })
        .collect::<Result<Vec<_>, _>>()?;
    let tokens = object.get("tokens").ok_or_else(|| {
        SamplerError::file(path, "no `tokens`; give them here, or in a second file with --tokens")
    })?;
    let lists = match tokens {
        Value::Object(named) => named
            .iter()
            .map(|(name, list)| Ok((name.clone(), id_list(path, name, list)?)))
            .collect::<Result<Vec<_>, SamplerError>>()?,
        list => vec![("tokens".to_owned(), id_list(path, "tokens", list)?)],
    };
    let lists = ordered(lists);
    let mut found = Vec::new();
    for (name, ids) in lists {
        if ids.len() > rows.len() {
            let what =
                format!("`{name}` has {} tokens and there are {} rows", ids.len(), rows.len());
            return Err(SamplerError::file(path, what));
        }
        let steps = rows.iter().zip(ids).zip(0_u32..).map(|((row, token), position)| Step {
            position,
            row: row.clone(),
            token,
            offset: None,
        });
        let stream = Stream {
            sample_id: name.clone(),
            base_seed: settings.seed,
            seed_index: settings.seed_index,
            steps: steps.collect(),
        };
        let evidence = evidence(path, &settings, kind, vec![stream])?;
        found.push(TokenList { name, evidence });
    }
    Ok(FileEvidence { lists: found })
}

/// The baseline comes first: a list named `reference` or `baseline`, else the order of names.
fn ordered(mut lists: Vec<(String, Vec<u32>)>) -> Vec<(String, Vec<u32>)> {
    lists.sort_by_key(|(name, _)| !matches!(name.as_str(), "reference" | "baseline"));
    lists
}

fn evidence(
    path: &Path,
    settings: &Settings,
    kind: Kind,
    streams: Vec<Stream>,
) -> Result<Evidence, SamplerError> {
    let rows = || streams.iter().flat_map(|stream| &stream.steps).map(|step| &step.row);
    let longest = rows().map(|row| row.listed.len()).max().unwrap_or(0);
    let vocab = settings.vocab.unwrap_or(longest);
    let beyond = rows().flat_map(|row| &row.listed).find(|(id, _)| *id as usize >= vocab);
    if let Some((id, _)) = beyond {
        let what = format!("id {id} lies beyond a vocabulary of {vocab}");
        return Err(SamplerError::file(path, what));
    }
    let drawn_from = kind == Kind::Probabilities;
    let off = Filters { temperature: 1.0, top_k: None, top_p: None, min_p: None };
    let mut limits = vec!["numbers of a file are taken as printed".to_owned()];
    if drawn_from && settings.filters != off {
        limits.push(
            "probabilities are drawn from as they are: the file's filters are not applied"
                .to_owned(),
        );
    }
    let largest = rows().flat_map(|row| &row.listed).map(|(_, logit)| logit.abs());
    let largest = largest.filter(|logit| logit.is_finite()).fold(1.0, f64::max);
    Ok(Evidence {
        streams,
        vocab,
        filters: if drawn_from { off } else { settings.filters },
        claim: settings.claim.clone(),
        sm_count: settings.sm_count,
        logit_error: PRINTED * largest,
        given: settings.given.clone(),
        limits,
    })
}

fn from_lines(path: &Path, text: &str) -> Result<FileEvidence, SamplerError> {
    let mut settings = settings(path, &Value::Null)?;
    let mut streams: Vec<Stream> = Vec::new();
    let mut kind_seen = None;
    for (number, line) in text.lines().enumerate() {
        if line.trim().is_empty() {
            continue;
        }
        let at = |what: String| -> SamplerError {
            TraceError::Line { path: path.to_owned(), line: number + 1, what }.into()
        };
        let object: Value = serde_json::from_str(line).map_err(|source| {
            SamplerError::from(TraceError::Json { path: path.to_owned(), line: number + 1, source })
        })?;
        let Some(token) = object.get("token") else {
            settings = self::settings(path, &object)?;
            continue;
        };
        let whole = |value: &Value| value.as_u64().and_then(|number| u32::try_from(number).ok());
        let token = whole(token).ok_or_else(|| at("`token` is no token id".to_owned()))?;
        let (kind, value) = kind_of(path, &object)
            .map_err(|_| at("a row needs one of `logits`, `top` and `probabilities`".to_owned()))?;
        if *kind_seen.get_or_insert(kind) != kind {
            return Err(at("rows of two kinds in one file".to_owned()));
        }
        let row = row(kind, value, settings.vocab).map_err(|what| at(format!("the row {what}")))?;
        let sample_id = object.get("sample_id").and_then(Value::as_str).unwrap_or("sample");
        let known = streams.iter().position(|stream| stream.sample_id == sample_id);
        let place = known.unwrap_or_else(|| {
            let index = object.get("seed_index").and_then(Value::as_u64);
            streams.push(Stream {
                sample_id: sample_id.to_owned(),
                base_seed: settings.seed,
                seed_index: index.unwrap_or(settings.seed_index),
                steps: Vec::new(),
            });
            streams.len() - 1
        });
        if let Some(stream) = streams.get_mut(place) {
            let next = u32::try_from(stream.steps.len()).unwrap_or(u32::MAX);
            let position = object.get("position").and_then(whole).unwrap_or(next);
            let offset = object.get("rng_offset").and_then(Value::as_u64);
            stream.steps.push(Step { position, row, token, offset });
        }
    }
    let Some(kind) = kind_seen else {
        return Err(SamplerError::file(path, "no row with a `token`; nothing can be identified"));
    };
    let evidence = evidence(path, &settings, kind, streams)?;
    Ok(FileEvidence { lists: vec![TokenList { name: "tokens".to_owned(), evidence }] })
}
