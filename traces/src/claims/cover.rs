//! What an artifact says that it covers, and whether it says that it proves nothing.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::record::Window;
use crate::store::{RunReader, StepQuery};
use crate::{Manifest, TraceError};

/// Deepest nesting of an answer that is looked into.
const DEEPEST: usize = 48;

/// What evidence covers, as far as it says so.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Coverage {
    /// Sample ids.
    pub samples: BTreeSet<String>,
    /// Compaction ordinals.
    pub ordinals: BTreeSet<u32>,
    /// Windows of positions, one for each list of rows.
    pub windows: BTreeSet<Window>,
    /// Policies, rule sets, dtypes, devices, `greedy`, `sampled`, `compressed`, `dense`.
    pub modes: BTreeSet<String>,
}

impl Coverage {
    /// Adds what another artifact covers.
    pub fn merge(&mut self, other: &Self) {
        self.samples.extend(other.samples.iter().cloned());
        self.ordinals.extend(&other.ordinals);
        self.windows.extend(&other.windows);
        self.modes.extend(other.modes.iter().cloned());
    }

    /// Coverage of a run folder: its samples, compactions, positions and effective settings.
    pub(super) fn of_run(run: &RunReader) -> Result<Self, TraceError> {
        let mut cover =
            Self { samples: run.sample_ids()?.into_iter().collect(), ..Self::default() };
        cover.ordinals.extend(run.events(None)?.iter().map(|event| event.ordinal));
        let query = StepQuery { columns: Some(Vec::new()), ..StepQuery::default() };
        let steps = run.steps(&query)?;
        let (first, last) = (steps.position.iter().min(), steps.position.iter().max());
        cover.windows.extend(first.zip(last).map(|(&first, &last)| Window { first, last }));
        cover.of_manifest(run.manifest());
        if !cover.ordinals.is_empty() {
            cover.modes.insert("compressed".to_owned());
        }
        Ok(cover)
    }

    fn of_manifest(&mut self, manifest: &Manifest) {
        let dtypes = [manifest.dtype, manifest.cache_dtype];
        self.modes.extend(dtypes.into_iter().flatten().map(|dtype| dtype.name().to_owned()));
        self.mode(&manifest.device);
        for key in ["policy.kind", "policy.rule_set", "sampling.sampler"] {
            if let Some(word) = manifest.get(key).and_then(Value::as_str) {
                self.mode(word);
            }
        }
        if let Some(temperature) = manifest.get("sampling.temperature").and_then(Value::as_f64) {
            self.temperature(temperature);
        }
    }

    fn mode(&mut self, word: &str) {
        if !word.is_empty() {
            self.modes.insert(word.to_lowercase());
        }
    }

    fn temperature(&mut self, temperature: f64) {
        self.mode(if temperature > 0.0 { "sampled" } else { "greedy" });
    }

    /// Adds what a JSON answer names: samples, ordinals, rows and settings, wherever they stand in it. Parts that say of
    /// themselves that they could not be compared cover nothing.
    pub(super) fn scan(&mut self, value: &Value) {
        self.walk(value, 0);
    }

    fn walk(&mut self, value: &Value, depth: usize) {
        if depth > DEEPEST {
            return;
        }
        match value {
            Value::Array(items) => items.iter().for_each(|item| self.walk(item, depth + 1)),
            Value::Object(object) => {
                if depth > 0 && outcome(object).is_some_and(|word| proves_nothing(&word)) {
                    return;
                }
                for (key, value) in object {
                    self.field(key, value);
                    self.walk(value, depth + 1);
                }
            }
            _ => {}
        }
    }

    fn field(&mut self, key: &str, value: &Value) {
        match key {
            "sample_id" | "sample" | "samples" | "sample_ids" => {
                self.samples.extend(each(value).filter_map(Value::as_str).map(str::to_owned));
            }
            "ordinal" | "ordinals" | "compaction_ordinal" => {
                let numbers = each(value).filter_map(Value::as_u64);
                self.ordinals.extend(numbers.filter_map(|n| u32::try_from(n).ok()));
            }
            "window" | "windows" => {
                let windows =
                    each(value).filter_map(Value::as_str).filter_map(|text| text.parse().ok());
                self.windows.extend(windows.collect::<Vec<Window>>());
            }
            "points" => self.windows.extend(points(value)),
            "policy" | "rule_set" | "dtype" | "cache_dtype" | "device" | "mode" | "modes"
            | "sampler" => each(value).filter_map(Value::as_str).for_each(|word| self.mode(word)),
            "temperature" => value.as_f64().into_iter().for_each(|t| self.temperature(t)),
            "compactions" if value.as_u64().is_some_and(|n| n > 0) => self.mode("compressed"),
            _ => {}
        }
    }
}

/// The value, or the members of a list.
fn each(value: &Value) -> impl Iterator<Item = &Value> {
    match value {
        Value::Array(items) => items.iter(),
        other => std::slice::from_ref(other).iter(),
    }
}

/// First and last row of a curve that was compared.
fn points(value: &Value) -> Option<Window> {
    let compared = |point: &Value| {
        let position = point.get("position")?.as_u64()?;
        let dependent = point.get("dependent").and_then(Value::as_bool).unwrap_or(false);
        u32::try_from(position).ok().filter(|_| !dependent)
    };
    let positions = || value.as_array().into_iter().flatten().filter_map(compared);
    Some(Window { first: positions().min()?, last: positions().max()? })
}

/// The word under which an object gives its own outcome, in lower case with blanks as `_`.
fn outcome(object: &Map<String, Value>) -> Option<String> {
    let words = ["verdict", "outcome", "status", "result"].into_iter().filter_map(|key| {
        let value = object.get(key)?;
        let word = value.as_str().or_else(|| value.get("kind").and_then(Value::as_str))?;
        Some(word.to_lowercase().replace([' ', '-'], "_"))
    });
    words.into_iter().find(|word| rank(word).is_some())
}

/// How grave an outcome is; `None` for words that are none.
fn rank(word: &str) -> Option<u8> {
    let order: [&[&str]; 7] = [
        &["identical", "pass", "passed", "parity", "ok", "equal", "supported"],
        &["within_noise"],
        &["tie"],
        &["flag", "flagged"],
        &["incomparable", "no_evidence", "inconclusive", "unsupported"],
        &["diverged", "differs", "fail", "failed"],
        &["void"],
    ];
    order.iter().position(|words| words.contains(&word)).and_then(|at| u8::try_from(at).ok())
}

/// Outcomes after which a comparison proves nothing.
pub(super) fn proves_nothing(word: &str) -> bool {
    matches!(word, "void" | "incomparable" | "no_evidence" | "inconclusive" | "unsupported")
}

/// The outcome of a whole answer; of a list the gravest of its members.
pub(super) fn verdict(value: &Value) -> Option<String> {
    match value {
        Value::Object(object) => outcome(object),
        Value::Array(items) => items.iter().filter_map(verdict).max_by_key(|word| rank(word)),
        _ => None,
    }
}

/// Names of the parts of an answer that are void.
pub(super) fn voids(value: &Value, depth: usize, names: &mut Vec<String>) {
    if depth > DEEPEST {
        return;
    }
    match value {
        Value::Array(items) => items.iter().for_each(|item| voids(item, depth + 1, names)),
        Value::Object(object) => {
            if outcome(object).is_some_and(|word| word == "void") {
                names.push(name(object));
            }
            object.values().for_each(|value| voids(value, depth + 1, names));
        }
        _ => {}
    }
}

fn name(object: &Map<String, Value>) -> String {
    let text = |key: &&str| match object.get(*key)? {
        Value::String(text) => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        _ => None,
    };
    let parts: Vec<String> =
        ["audit", "id", "name", "slug", "title"].iter().filter_map(text).take(2).collect();
    if parts.is_empty() { "the answer itself".to_owned() } else { parts.join(" ") }
}
