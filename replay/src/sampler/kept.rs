//! Kept sets: which order of filters, and which space of min-p, gives the ids that an engine kept.

use std::path::Path;

use lockstep_reference::sample::{Candidate, Filters, Rules, Variant};
use serde::Serialize;
use serde_json::Value;

use super::error::SamplerError;
use super::file::value_of;

/// One kept set and what explains it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct KeptList {
    /// Which set: key and name, `engine_kept.x`.
    pub name: String,
    /// The ids, ascending.
    pub kept: Vec<u32>,
    /// Filters that give these ids, in words; the usual order first.
    pub fits: Vec<String>,
    /// `identified`, `not_decidable` (several filters give these ids) or `none_fits`.
    pub answer: &'static str,
    /// The order that gives it is not the usual one.
    pub fault: bool,
}

/// All kept sets of a file.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct KeptAnswer {
    /// Softmax of the logits over the temperature.
    pub probabilities: Vec<f64>,
    /// What each filter keeps, in words, with its ids.
    pub hypotheses: Vec<(String, Vec<u32>)>,
    /// The sets.
    pub lists: Vec<KeptList>,
}

/// A way to filter and its name.
struct Way {
    name: String,
    usual: bool,
    ids: Vec<u32>,
}

/// Explains the kept sets of a JSON object: `logits`, settings, and keys that end in `kept` with an object of lists (or one list). A key with
/// `min_p`, `top_p` or `top_k` in it is about that filter alone; any other about all that are set, less min-p where a key of its own has it.
/// `None` where the object has no kept sets.
///
/// # Errors
/// [`SamplerError::File`] for logits or ids that are none, or settings that are missing.
pub fn explain_kept(path: &Path, object: &Value) -> Result<Option<KeptAnswer>, SamplerError> {
    let Some(map) = object.as_object() else { return Ok(None) };
    let keys: Vec<&String> = map.keys().filter(|key| key.ends_with("kept")).collect();
    if keys.is_empty() {
        return Ok(None);
    }
    let logits = logits(path, object)?;
    let filters = settings(path, object)?;
    let alone = keys.iter().any(|key| key.contains("min_p"));
    let mut answer = KeptAnswer {
        probabilities: softmax(&logits, filters.temperature),
        hypotheses: Vec::new(),
        lists: Vec::new(),
    };
    for key in keys {
        let ways = ways(&logits, &about(key, filters, alone));
        if ways.is_empty() {
            let what = format!("`{key}`: no filter that it is about is set");
            return Err(SamplerError::file(path, what));
        }
        for way in &ways {
            let held = (way.name.clone(), way.ids.clone());
            if !answer.hypotheses.contains(&held) {
                answer.hypotheses.push(held);
            }
        }
        for (name, value) in named(key, map.get(key).unwrap_or(&Value::Null)) {
            answer.lists.push(explain(name, ids(path, key, value)?, &ways));
        }
    }
    Ok(Some(answer))
}

fn explain(name: String, kept: Vec<u32>, ways: &[Way]) -> KeptList {
    let fits: Vec<&Way> = ways.iter().filter(|way| way.ids == kept).collect();
    let answer = match fits.len() {
        0 => "none_fits",
        1 => "identified",
        _ => "not_decidable",
    };
    let fault = !fits.is_empty() && !fits.iter().any(|way| way.usual);
    KeptList { name, kept, fits: fits.iter().map(|way| way.name.clone()).collect(), answer, fault }
}

/// The filters that a key is about.
fn about(key: &str, filters: Filters, min_p_alone: bool) -> Filters {
    let off = Filters { temperature: filters.temperature, top_k: None, top_p: None, min_p: None };
    match () {
        () if key.contains("min_p") => Filters { min_p: filters.min_p, ..off },
        () if key.contains("top_p") => Filters { top_p: filters.top_p, ..off },
        () if key.contains("top_k") => Filters { top_k: filters.top_k, ..off },
        () if min_p_alone => Filters { min_p: None, ..filters },
        () => filters,
    }
}

/// Every order that can make a difference under these settings.
fn ways(logits: &[f64], filters: &Filters) -> Vec<Way> {
    let candidates: Vec<Candidate> =
        (0..).zip(logits).map(|(id, &logit)| Candidate { id, logit, count: 1.0 }).collect();
    let (k, p, floor) = (filters.top_k, filters.top_p, filters.min_p);
    let mut ways: Vec<Way> = Vec::new();
    let mut add = |name: String, usual: bool, rules: Rules, variant: Variant| {
        let mut ids = filters.apply(&candidates, rules, variant).ids;
        ids.sort_unstable();
        // The same words twice are the same filters.
        if !ways.iter().any(|way| way.name == name) {
            ways.push(Way { name, usual, ids });
        }
    };
    let words = |order: &str| {
        let mut parts: Vec<String> = Vec::new();
        parts.extend(k.map(|k| format!("top-k {k}")));
        match (order, k, p) {
            ("first", Some(k), Some(p)) => {
                parts = vec![format!("top-p {p} on the full distribution, then cut to top-k {k}")];
            }
            (_, Some(_), Some(p)) => parts.push(format!("top-p {p} on the renormalised top-k")),
            (_, None, Some(p)) => parts.push(format!("top-p {p} on the full distribution")),
            _ => {}
        }
        let space = if order == "logits" { "raw logits" } else { "probabilities" };
        parts.extend(floor.map(|floor| format!("min-p {floor} on {space}")));
        let mut text = parts.join(", ");
        if order == "last" {
            text.push_str(", all at temperature 1");
        }
        text
    };
    if k.is_none() && p.is_none() && floor.is_none() {
        return ways;
    }
    add(words(""), true, Rules::Native, Variant::Usual);
    if k.is_some() {
        add(format!("{}, ties at rank k kept", words("")), true, Rules::Hf, Variant::Usual);
    }
    if k.is_some() && p.is_some() {
        add(words("first"), false, Rules::Native, Variant::TopPFirst);
    }
    if floor.is_some() {
        add(words("logits"), false, Rules::Native, Variant::MinPOnLogits);
    }
    if (filters.temperature - 1.0).abs() > 1e-9 && (p.is_some() || floor.is_some()) {
        add(words("last"), false, Rules::Native, Variant::TemperatureLast);
    }
    // Two names for one set of ids by ties are one hypothesis where nothing ties.
    let usual = ways.first().map(|way| way.ids.clone());
    ways.retain(|way| !way.name.ends_with("kept") || Some(&way.ids) != usual.as_ref());
    ways
}

fn named<'a>(key: &str, value: &'a Value) -> Vec<(String, &'a Value)> {
    match value {
        Value::Object(lists) => {
            lists.iter().map(|(name, list)| (format!("{key}.{name}"), list)).collect()
        }
        list => vec![(key.to_owned(), list)],
    }
}

fn ids(path: &Path, key: &str, value: &Value) -> Result<Vec<u32>, SamplerError> {
    let wrong =
        || SamplerError::file(path, format!("`{key}` holds {value}, which is no list of ids"));
    let list = value.as_array().ok_or_else(wrong)?.iter();
    let ids = list.map(|id| id.as_u64().and_then(|id| u32::try_from(id).ok()).ok_or_else(wrong));
    let mut ids = ids.collect::<Result<Vec<_>, _>>()?;
    ids.sort_unstable();
    Ok(ids)
}

/// One row of logits.
pub(super) fn logits(path: &Path, object: &Value) -> Result<Vec<f64>, SamplerError> {
    let list = object.get("logits").and_then(Value::as_array).filter(|list| !list.is_empty());
    let list = list.ok_or_else(|| SamplerError::file(path, "no `logits`; give one row of them"))?;
    let numbers = list.iter().map(value_of).collect::<Result<Vec<_>, _>>();
    numbers.map_err(|what| SamplerError::file(path, format!("`logits`: {what}")))
}

/// Temperature and filters of an object.
pub(super) fn settings(path: &Path, object: &Value) -> Result<Filters, SamplerError> {
    let number = |key: &str| object.get(key).and_then(Value::as_f64);
    let temperature = number("temperature").unwrap_or(1.0);
    if !(temperature.is_finite() && temperature > 0.0) {
        return Err(SamplerError::file(path, "`temperature` must be above 0"));
    }
    let top_k = object.get("top_k").and_then(Value::as_u64).filter(|k| *k > 0);
    Ok(Filters {
        temperature,
        top_k: top_k.and_then(|k| usize::try_from(k).ok()),
        top_p: number("top_p").filter(|p| *p < 1.0),
        min_p: number("min_p").filter(|p| *p > 0.0),
    })
}

/// `softmax(logits / temperature)`.
pub(super) fn softmax(logits: &[f64], temperature: f64) -> Vec<f64> {
    let largest = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let weights: Vec<f64> =
        logits.iter().map(|logit| ((logit - largest) / temperature).exp()).collect();
    let total: f64 = weights.iter().sum();
    weights.into_iter().map(|weight| weight / total).collect()
}
