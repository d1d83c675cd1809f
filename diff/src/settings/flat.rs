//! One flat map of everything that a subject records of its configuration.

use std::collections::BTreeMap;

use lockstep_traces::Setting;
use serde_json::Value;

use crate::audits::Subject;

/// Keys with values and sources. What stands outside the effective configuration has the source `recorded`.
pub(super) fn flat(subject: &Subject<'_>) -> BTreeMap<String, Setting> {
    let mut out = subject.settings.clone().unwrap_or_default();
    // Neither paths nor hashes of what a run was imported from are settings.
    let aside = |key: &str| {
        ["trace.sample_ids", "policy.stats"].contains(&key) || key.starts_with("trace.source_")
    };
    out.retain(|key, _| !aside(key));
    let mut add = |key: &str, value: Option<Value>| {
        if let Some(value) = value {
            let setting = Setting { value, source: "recorded".to_owned() };
            out.entry(key.to_owned()).or_insert(setting);
        }
    };
    let text = |text: &Option<String>| text.clone().map(Value::from);
    let engine = &subject.engine;
    add("dtype", text(&engine.dtype));
    add("cache_dtype", text(&engine.cache_dtype));
    add("device.name", text(&engine.device));
    add("device.sm_arch", text(&engine.sm_arch));
    add("device.kernel_options", engine.kernel_options.clone().map(Value::from));
    for (name, hash) in engine.weights.iter().flatten() {
        add(&format!("model.sha256.{name}"), Some(hash.clone().into()));
    }
    for (name, hash) in &engine.files {
        let group = if name == "statistics" { "policy" } else { "model" };
        add(&format!("{group}.sha256.{name}"), Some(hash.clone().into()));
    }
    let made = &subject.made;
    add("producer.name", text(&made.producer));
    add("producer.version", text(&made.version));
    add("producer.binary_sha256", text(&made.binary_sha256));
    add("producer.commit", text(&made.commit));
    if let Some(artifact) = &subject.artifact {
        for (name, hash) in artifact.sections.iter().flatten() {
            add(&format!("artifact.{name}"), Some(hash.clone().into()));
        }
        add("artifact.profile_rows", artifact.profile_rows.clone().map(Value::from));
        add("artifact.precision", text(&artifact.precision));
        add("artifact.builder", text(&artifact.builder));
    }
    for sample in subject.samples.iter().flatten() {
        let key = |name: &str| format!("inputs.{}.{name}", sample.id);
        add(&key("prompt_ids_sha256"), text(&sample.prompt_ids_sha256));
        add(&key("prompt_text_sha256"), text(&sample.prompt_text_sha256));
        add(&key("effective_seed"), sample.effective_seed.map(Value::from));
    }
    if let (Some(trace), Some(_)) = (&subject.trace, &subject.settings) {
        let manifest = &trace.manifest;
        add("trace.encoding", serde_json::to_value(manifest.encoding).ok());
        add("trace.rows_exact", Some(manifest.rows_exact.into()));
        add("trace.includes_prompt", Some(manifest.includes_prompt.into()));
    }
    out
}
