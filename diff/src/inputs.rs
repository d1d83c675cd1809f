//! Are the inputs equal? Settings by key, resolved model values first.

use std::collections::{BTreeMap, BTreeSet};

use lockstep_traces::{Manifest, Status};
use serde_json::Value;

use crate::report::{InputDifference, InputsCheck, SideInfo};
use crate::side::Side;

/// Describes one side.
pub(crate) fn describe(side: &Side<'_>) -> SideInfo {
    let manifest = side.manifest;
    SideInfo {
        label: side.label.to_owned(),
        producer: [manifest.producer.name.as_str(), manifest.producer.version.as_str()]
            .join(" ")
            .trim()
            .to_owned(),
        device: manifest.device.clone(),
        dtype: manifest.dtype.map(|dtype| dtype.name().to_owned()),
        cache_dtype: manifest.cache_dtype.map(|dtype| dtype.name().to_owned()),
        policy: side.text("policy.kind"),
        rule_set: side.text("policy.rule_set"),
        plant: side.text("plant"),
        encoding: manifest.encoding,
        rows_exact: manifest.rows_exact,
        includes_prompt: manifest.includes_prompt,
        complete: manifest.status == Status::Complete,
        samples: side.tracks().len() as u64,
        rows: side.steps.len as u64,
        compactions: side.events.len() as u64,
        top_k: side.steps.top_k as u64,
        limits: manifest.limits.clone(),
        remarks: manifest.remarks.clone(),
    }
}

/// Compares the settings and prompts of two sides. `pairs` are indices of samples that are held against each other.
pub(crate) fn check(left: &Side<'_>, right: &Side<'_>, pairs: &[(&str, &str)]) -> InputsCheck {
    let (l, r) = (settings(left.manifest), settings(right.manifest));
    let keys: BTreeSet<&String> = l.keys().chain(r.keys()).collect();
    let mut ordered: Vec<&String> = keys.into_iter().collect();
    ordered.sort_by_key(|key| (rank(key), (*key).clone()));
    let mut out = InputsCheck::default();
    for key in ordered {
        match (l.get(key), r.get(key)) {
            (Some(a), Some(b)) if equal(&a.0, &b.0) => out.equal += 1,
            (Some(a), Some(b)) => out.differences.push(InputDifference {
                key: key.clone(),
                left: Some(a.0.clone()),
                right: Some(b.0.clone()),
                left_source: a.1.clone(),
                right_source: b.1.clone(),
            }),
            _ => out.one_sided.push(key.clone()),
        }
    }
    out.model_equal = model_equal(left.manifest, right.manifest);
    out.prompts_equal = prompts_equal(left, right, pairs);
    out.sampling_equal = group_equal(&l, &r, "sampling.");
    out.policy_equal = policy_equal(&l, &r);
    out
}

/// `dense against triattention (trt)` where the policies are known to differ.
pub(crate) fn policies(left: &Side<'_>, right: &Side<'_>, inputs: &InputsCheck) -> Option<String> {
    if inputs.policy_equal != Some(false) {
        return None;
    }
    let words = |side: &Side<'_>| {
        let kind = side.text("policy.kind").unwrap_or_else(|| "unknown".to_owned());
        match side.text("policy.rule_set") {
            Some(rules) if kind == "triattention" => format!("{kind} ({rules})"),
            _ => kind,
        }
    };
    let (l, r) = (words(left), words(right));
    if l == r {
        let keys: Vec<&str> = inputs
            .differences
            .iter()
            .filter(|difference| difference.key.starts_with("policy."))
            .map(|difference| difference.key.as_str())
            .collect();
        return Some(format!("{l}, with other {}", keys.join(", ")));
    }
    Some(format!("{l} against {r}"))
}

type Settings = BTreeMap<String, (Value, Option<String>)>;

fn settings(manifest: &Manifest) -> Settings {
    let mut out: Settings = manifest
        .config
        .iter()
        .filter(|(key, _)| !key.starts_with("trace."))
        .map(|(key, setting)| (key.clone(), (setting.value.clone(), Some(setting.source.clone()))))
        .collect();
    let mut add = |key: &str, value: Option<String>| {
        if let Some(value) = value {
            out.entry(key.to_owned()).or_insert((Value::String(value), None));
        }
    };
    add("dtype", manifest.dtype.map(|dtype| dtype.name().to_owned()));
    add("cache_dtype", manifest.cache_dtype.map(|dtype| dtype.name().to_owned()));
    add("model.architecture", manifest.model.architecture.clone());
    add("model.config_sha256", manifest.model.config_sha256.clone());
    add("model.tokenizer_sha256", manifest.model.tokenizer_sha256.clone());
    add("policy.stats_sha256", manifest.model.stats_sha256.clone());
    let weights = &manifest.model.weights_sha256;
    if !weights.is_empty() {
        let joined: Vec<&str> = weights.values().map(String::as_str).collect();
        add("model.weights_sha256", Some(joined.join(" ")));
    }
    out
}

fn rank(key: &str) -> u8 {
    match key.split('.').next() {
        Some("model") => 0,
        Some("dtype" | "cache_dtype") => 1,
        Some("policy") => 2,
        Some("sampling") => 3,
        Some("stop") => 4,
        _ => 5,
    }
}

/// JSON equality with numbers by value: 10000 and 10000.0 are one number.
pub(crate) fn equal(left: &Value, right: &Value) -> bool {
    match (left.as_f64(), right.as_f64()) {
        (Some(l), Some(r)) => l.to_bits() == r.to_bits(),
        _ => left == right,
    }
}

fn model_equal(left: &Manifest, right: &Manifest) -> Option<bool> {
    let (l, r) = (&left.model, &right.model);
    let mut seen = None;
    let mut note = |same: bool| seen = Some(seen.unwrap_or(true) && same);
    if !l.weights_sha256.is_empty() && !r.weights_sha256.is_empty() {
        note(l.weights_sha256 == r.weights_sha256);
    }
    for (a, b) in [(&l.config_sha256, &r.config_sha256), (&l.tokenizer_sha256, &r.tokenizer_sha256)]
    {
        if let (Some(a), Some(b)) = (a, b) {
            note(a == b);
        }
    }
    seen
}

fn prompts_equal(left: &Side<'_>, right: &Side<'_>, pairs: &[(&str, &str)]) -> Option<bool> {
    let mut seen = None;
    for (l, r) in pairs {
        let hash = |side: &Side<'_>, id: &str| {
            side.samples
                .iter()
                .find(|row| row.sample_id == id && !row.prompt_ids_sha256.is_empty())
                .map(|row| row.prompt_ids_sha256.clone())
        };
        if let (Some(a), Some(b)) = (hash(left, l), hash(right, r)) {
            seen = Some(seen.unwrap_or(true) && a == b);
        }
    }
    seen
}

fn group_equal(left: &Settings, right: &Settings, prefix: &str) -> Option<bool> {
    let has = |side: &Settings| side.keys().any(|key| key.starts_with(prefix));
    if !has(left) || !has(right) {
        return None;
    }
    let same = left
        .iter()
        .filter(|(key, _)| key.starts_with(prefix))
        .all(|(key, value)| right.get(key).is_none_or(|other| equal(&value.0, &other.0)));
    Some(same)
}

/// Two dense policies are equal whatever else is set; `recorded` follows the other side's keep-sets and equals any.
fn policy_equal(left: &Settings, right: &Settings) -> Option<bool> {
    let kind = |side: &Settings| {
        side.get("policy.kind").and_then(|value| value.0.as_str().map(str::to_owned))
    };
    let (l, r) = (kind(left)?, kind(right)?);
    if l == "recorded" || r == "recorded" || (l == "dense" && r == "dense") {
        return Some(true);
    }
    group_equal(left, right, "policy.")
}

#[cfg(test)]
mod tests {
    use lockstep_traces::manifest::Producer;

    use super::*;

    #[test]
    fn numbers_are_equal_by_value_and_model_values_come_first() {
        let mut left = Manifest::new(Producer::default(), "cpu");
        let mut right = left.clone();
        left.set("sampling.seed", 3, "flag");
        right.set("sampling.seed", 4, "flag");
        left.set("model.rope_theta", 10000, "config.json");
        right.set("model.rope_theta", 1e6, "default");
        left.set("model.head_dim", 64, "config.json");
        right.set("model.head_dim", 64.0, "config.json");
        left.set("policy.kind", "dense", "flag");
        let steps = lockstep_traces::store::StepColumns::default();
        let side =
            |manifest| Side { label: "x", manifest, samples: &[], steps: &steps, events: &[] };
        let found = check(&side(&left), &side(&right), &[]);
        let keys: Vec<&str> = found.differences.iter().map(|d| d.key.as_str()).collect();
        assert_eq!(keys, ["model.rope_theta", "sampling.seed"]);
        assert_eq!(found.differences[0].right_source.as_deref(), Some("default"));
        assert_eq!((found.equal, found.sampling_equal, found.policy_equal), (1, Some(false), None));
        assert_eq!(found.one_sided, ["policy.kind"]);
        assert!(found.prompts_equal.is_none() && found.model_equal.is_none());
    }

    #[test]
    fn dense_equals_dense_and_another_budget_is_another_policy() {
        let make = |kind: &str, budget: i64| {
            let mut manifest = Manifest::new(Producer::default(), "cpu");
            manifest.set("policy.kind", kind, "flag");
            manifest.set("policy.kv_budget", budget, "flag");
            settings(&manifest)
        };
        assert_eq!(policy_equal(&make("dense", 1), &make("dense", 2)), Some(true));
        assert_eq!(policy_equal(&make("recent", 1), &make("recent", 2)), Some(false));
        assert_eq!(policy_equal(&make("recorded", 1), &make("recent", 2)), Some(true));
    }
}
