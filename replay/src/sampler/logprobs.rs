//! Reported log-probabilities: before or after temperature and filters.

use std::path::Path;

use lockstep_reference::sample::{Candidate, Filters, Rules, Variant};
use serde::Serialize;
use serde_json::Value;

use super::error::SamplerError;
use super::kept::{logits, settings, softmax};

/// Two values printed with five or six digits agree up to this.
const PRINTED: f64 = 2e-5;

/// One reported list and what gives it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct LogprobList {
    /// Its name.
    pub name: String,
    /// The transform, in words; `None` where nothing known gives it.
    pub transform: Option<String>,
    /// Other transforms that give the same values.
    pub also: Vec<String>,
    /// `identified`, `not_decidable` or `none_fits`.
    pub answer: &'static str,
    /// Sum of exp over the values: 1 for a distribution.
    pub mass: f64,
    /// The list is a distribution.
    pub is_distribution: bool,
    /// Ids without a value.
    pub lost: Vec<u32>,
}

/// All reported lists of a file.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct LogprobAnswer {
    /// Each transform with its values; `null` where it cuts the id.
    pub transforms: Vec<(String, Vec<Option<f64>>)>,
    /// The lists.
    pub lists: Vec<LogprobList>,
    /// The lists follow one convention.
    pub one_convention: bool,
    /// Whether the lists can be brought to one convention, and how.
    pub remedy: String,
}

/// Names the transform behind each list of `reported` (an object of lists of log-probabilities, `null` where an id has none). `None` where the
/// object reports none.
///
/// # Errors
/// [`SamplerError::File`] for logits or lists that are none, or lists of another length.
pub fn explain_logprobs(
    path: &Path,
    object: &Value,
) -> Result<Option<LogprobAnswer>, SamplerError> {
    let Some(reported) = object.get("reported").and_then(Value::as_object) else {
        return Ok(None);
    };
    let logits = logits(path, object)?;
    let filters = settings(path, object)?;
    let transforms = transforms(&logits, &filters);
    let mut lists = Vec::new();
    for (name, values) in reported {
        let values = values.as_array().filter(|values| values.len() == logits.len());
        let values = values.ok_or_else(|| {
            SamplerError::file(path, format!("`{name}` is no list of {} values", logits.len()))
        })?;
        let values: Vec<Option<f64>> = values.iter().map(Value::as_f64).collect();
        lists.push(explain(name, &values, &transforms));
    }
    if lists.is_empty() {
        return Err(SamplerError::file(path, "`reported` is empty"));
    }
    let first = lists.first().and_then(|list| list.transform.clone());
    let one_convention = first.is_some() && lists.iter().all(|list| list.transform == first);
    let remedy = remedy(&lists, one_convention);
    Ok(Some(LogprobAnswer { transforms, lists, one_convention, remedy }))
}

/// Known transforms that make a difference under these settings.
fn transforms(logits: &[f64], filters: &Filters) -> Vec<(String, Vec<Option<f64>>)> {
    let ln = |p: f64| (p > 0.0).then(|| p.ln());
    let logs = |mass: &[f64]| -> Vec<Option<f64>> { mass.iter().map(|&p| ln(p)).collect() };
    let t = filters.temperature;
    let mut list = vec![("log-softmax of the logits".to_owned(), logs(&softmax(logits, 1.0)))];
    let warm = (t - 1.0).abs() > 1e-9;
    if warm {
        let raw = logs(&softmax(logits, 1.0));
        list.push((format!("after temperature {t}"), logs(&softmax(logits, t))));
        let divided = raw.iter().map(|value| value.map(|value| value / t)).collect();
        list.push((format!("log-softmax divided by the temperature {t}"), divided));
    }
    let mut names: Vec<String> = Vec::new();
    names.extend(filters.top_k.map(|k| format!("top-k {k}")));
    names.extend(filters.top_p.map(|p| format!("top-p {p}")));
    names.extend(filters.min_p.map(|p| format!("min-p {p}")));
    if names.is_empty() {
        return list;
    }
    let names = names.join(", ");
    let heat = if warm { format!("temperature {t} and ") } else { String::new() };
    let candidates: Vec<Candidate> =
        (0..).zip(logits).map(|(id, &logit)| Candidate { id, logit, count: 1.0 }).collect();
    let kept = filters.apply(&candidates, Rules::Hf, Variant::Usual);
    let at = |id: usize| kept.ids.iter().position(|kept| *kept as usize == id);
    let normal = (0..logits.len()).map(|id| ln(*kept.probabilities.get(at(id)?)?)).collect();
    list.push((format!("after {heat}{names}, renormalised"), normal));
    let before = softmax(logits, t);
    let cut = (0..logits.len()).map(|id| at(id).and_then(|_| ln(*before.get(id)?))).collect();
    list.push((format!("after {heat}{names}, not renormalised"), cut));
    list
}

fn explain(
    name: &str,
    values: &[Option<f64>],
    transforms: &[(String, Vec<Option<f64>>)],
) -> LogprobList {
    let agrees = |other: &[Option<f64>]| {
        other.len() == values.len()
            && other.iter().zip(values).all(|pair| match pair {
                (Some(a), Some(b)) => (a - b).abs() <= PRINTED * a.abs().max(1.0),
                (None, None) => true,
                _ => false,
            })
    };
    let mut fits =
        transforms.iter().filter(|(_, other)| agrees(other)).map(|(name, _)| name.clone());
    let transform = fits.next();
    let also: Vec<String> = fits.collect();
    let mass: f64 = values.iter().flatten().map(|value| value.exp()).sum();
    let lost = (0_u32..).zip(values).filter(|(_, value)| value.is_none()).map(|(id, _)| id);
    LogprobList {
        name: name.to_owned(),
        answer: match (&transform, also.is_empty()) {
            (None, _) => "none_fits",
            (Some(_), true) => "identified",
            (Some(_), false) => "not_decidable",
        },
        transform,
        also,
        mass,
        is_distribution: (mass - 1.0).abs() < 1e-4,
        lost: lost.collect(),
    }
}

fn remedy(lists: &[LogprobList], one_convention: bool) -> String {
    if one_convention {
        return "the lists follow one convention and can be compared as they are".to_owned();
    }
    let mut parts = Vec::new();
    let of = |wanted: fn(&&LogprobList) -> bool| {
        let names: Vec<&str> = lists.iter().filter(wanted).map(|list| list.name.as_str()).collect();
        names.join(", ")
    };
    let lost = of(|list| !list.lost.is_empty());
    if !lost.is_empty() {
        parts.push(format!("{lost}: ids are lost and cannot be brought back; compare what is left only after renormalising the others to the same ids"));
    }
    let odd = of(|list| !list.is_distribution && list.transform.is_some() && list.lost.is_empty());
    if !odd.is_empty() {
        parts.push(format!(
            "{odd}: no distribution as it stands; multiply by the temperature, or normalise again"
        ));
    }
    let unknown = of(|list| list.transform.is_none());
    if !unknown.is_empty() {
        parts.push(format!("{unknown}: made by nothing known here; compare with nothing"));
    }
    let whole = of(|list| list.is_distribution && list.lost.is_empty());
    if !whole.is_empty() {
        parts.push(format!(
            "{whole}: one follows from the other by dividing by the temperature and normalising"
        ));
    }
    parts.join(". ")
}
