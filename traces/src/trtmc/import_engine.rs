//! What an engine was built into and how it was set become runs that are a manifest and nothing else: a bundle's header and
//! section hashes, a ladder of profiles, an effective configuration.

use std::path::Path;

use serde_json::Value;

use crate::artifacts::{
    Bundle, BundleConfig, read_bundle, read_effective_config, read_engine_config, run_key,
};
use crate::imported::{self, IMPORTED, Keep};
use crate::{Manifest, TraceError};

/// Layouts' names.
pub const BUNDLE: &str = "trtmc-bundle";
/// See [`BUNDLE`].
pub const LADDER: &str = "trtmc-ladder";
/// See [`BUNDLE`].
pub const CONFIG: &str = "trtmc-config";

const NO_RUN: &str = "no model ran: there are no samples, no tokens and no rows";

/// Makes the run `out` of an engine bundle. Its sections are hashed under `artifact.SECTION`; what its configuration declares of the
/// cache policy stands under `declared.policy.*`, since a runtime may have overridden it.
///
/// # Errors
/// As [`read_bundle`] and [`crate::store::RunWriter::create`].
pub fn import_bundle(path: &Path, out: &Path) -> Result<Vec<String>, TraceError> {
    let bundle = read_bundle(path)?;
    let mut manifest = imported::manifest(BUNDLE, "trtmc");
    header(&bundle, &mut manifest);
    for section in &bundle.sections {
        manifest.set(&format!("artifact.{}", section.name), section.sha256.as_str(), IMPORTED);
    }
    let hash = |name: &str| bundle.section(name).map(|section| section.sha256.clone());
    manifest.model.tokenizer_sha256 = hash("tokenizer.json");
    manifest.model.stats_sha256 = hash("triattention_stats.json");
    if let Some(config) = &bundle.config {
        engine_config(config, &mut manifest);
    }
    if bundle.unclaimed_bytes > 0 {
        manifest.remarks.push(format!("{} bytes belong to no section", bundle.unclaimed_bytes));
    }
    imported::cannot(&mut manifest, NO_RUN);
    imported::cannot(&mut manifest, "a bundle has no source commit and no hash of its weights");
    imported::write(path, out, manifest, Vec::new(), Keep::Nothing, false)
}

fn header(bundle: &Bundle, manifest: &mut Manifest) {
    let header = &bundle.header;
    manifest.created_at = header.created_at.clone().unwrap_or_default();
    manifest.model.architecture.clone_from(&header.model_type);
    let text = |text: &Option<String>| text.clone().map(Value::from);
    for (key, value) in [
        ("model.name", text(&header.model_id)),
        ("model.vocab_size", header.vocab_size.map(Value::from)),
        ("model.num_hidden_layers", header.num_layers.map(Value::from)),
        ("model.num_attention_heads", header.num_attention_heads.map(Value::from)),
        ("model.num_key_value_heads", header.num_key_value_heads.map(Value::from)),
        ("artifact.capacity_rows", header.max_cache_length.map(Value::from)),
        ("artifact.precision", text(&header.precision)),
        ("artifact.builder", text(&header.trt_version)),
        ("artifact.gpu", text(&header.gpu_name)),
        ("artifact.runtime_strategy", text(&header.runtime_strategy)),
        ("artifact.quantization", header.quantization.clone()),
    ] {
        if let Some(value) = value {
            manifest.set(key, value, IMPORTED);
        }
    }
}

/// Ladder, strategy and declared policy of a configuration with the builder's keys.
fn engine_config(config: &BundleConfig, manifest: &mut Manifest) {
    if let Some(rows) = &config.profile_rows {
        manifest.set("artifact.profile_rows", rows.clone(), IMPORTED);
    }
    for (key, value) in [
        ("artifact.dynamic_kv_cache", config.dynamic_kv_cache.map(Value::from)),
        ("artifact.runtime_strategy", config.runtime_strategy.clone().map(Value::from)),
        ("artifact.precision", config.precision.clone().map(Value::from)),
    ] {
        if let Some(value) = value.filter(|_| manifest.get(key).is_none()) {
            manifest.set(key, value, IMPORTED);
        }
    }
    let switch = config.policy.get("enabled").and_then(Value::as_bool);
    let enabled = switch.unwrap_or(!config.policy.is_empty());
    let kind = if enabled { "triattention" } else { "dense" };
    manifest.set("declared.policy.kind", kind, IMPORTED);
    for (key, value) in config.policy.iter().filter(|(key, _)| enabled && *key != "enabled") {
        manifest.set(&format!("declared.policy.{key}"), value.clone(), IMPORTED);
    }
}

/// Makes the run `out` of a ladder of profiles: a `config.json` with the builder's keys, as it stands in a bundle.
///
/// # Errors
/// As [`read_engine_config`] and [`crate::store::RunWriter::create`].
pub fn import_ladder(path: &Path, out: &Path) -> Result<Vec<String>, TraceError> {
    let config = read_engine_config(path)?;
    let mut manifest = imported::manifest(LADDER, "trtmc");
    engine_config(&config, &mut manifest);
    let rows = config.profile_rows.as_deref().unwrap_or_default();
    if !rows.is_sorted_by(|a, b| a < b) {
        manifest.remarks.push("the profiles do not ascend".to_owned());
    }
    imported::cannot(&mut manifest, NO_RUN);
    imported::cannot(&mut manifest, "a ladder names no engine: plans may differ under one ladder");
    imported::write(path, out, manifest, Vec::new(), Keep::Document, false)
}

/// True for a document that [`import_ladder`] reads.
#[must_use]
pub fn is_ladder(path: &Path) -> bool {
    path.is_file() && read_engine_config(path).is_ok()
}

/// Makes the run `out` of an effective configuration. The source of each value stays the layer that decided it.
///
/// # Errors
/// As [`read_effective_config`] and [`crate::store::RunWriter::create`].
pub fn import_config(path: &Path, out: &Path) -> Result<Vec<String>, TraceError> {
    let config = read_effective_config(path)?;
    let mut manifest = imported::manifest(CONFIG, "trtmc");
    for (name, setting) in &config.settings {
        manifest.set(run_key(name), setting.value.clone(), &setting.source);
    }
    imported::cannot(&mut manifest, NO_RUN);
    imported::write(path, out, manifest, Vec::new(), Keep::Document, false)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hash::sha256_hex;
    use crate::store::RunReader;

    fn import(
        bytes: &[u8],
        with: impl Fn(&Path, &Path) -> Result<Vec<String>, TraceError>,
    ) -> Result<(tempfile::TempDir, Manifest), TraceError> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("source");
        std::fs::write(&path, bytes).unwrap();
        let out = dir.path().join("run");
        with(&path, &out)?;
        let run = RunReader::open(&out)?;
        assert!(run.is_complete() && run.samples()?.is_empty());
        Ok((dir, run.manifest().clone()))
    }

    const CONFIG_TEXT: &str = r#"{"dynamic_kv_profile_rows":[32,64,128],"precision":"bf16","triattention":{"enabled":true,"kv_budget":32,"divide_length":8}}"#;

    #[test]
    fn a_bundle_is_a_manifest_with_hashes_and_what_it_declares() {
        let sections: [(&str, &[u8]); 3] = [
            ("engine_plan", b"abc"),
            ("config.json", CONFIG_TEXT.as_bytes()),
            ("tokenizer.json", b"{}"),
        ];
        let bytes = crate::artifacts::testing::bundle(b"BUNDLE\x01\0", &sections);
        let (_dir, manifest) = import(&bytes, import_bundle).unwrap();
        // The published digest of "abc".
        assert_eq!(
            manifest.get("artifact.engine_plan").unwrap(),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
        );
        assert_eq!(manifest.config["artifact.engine_plan"].source, "imported");
        assert_eq!(manifest.model.tokenizer_sha256, Some(sha256_hex(b"{}")));
        assert_eq!(
            manifest.get("artifact.profile_rows").unwrap(),
            &serde_json::json!([32, 64, 128])
        );
        assert_eq!(manifest.get("declared.policy.kv_budget").unwrap(), 32);
        assert_eq!(manifest.get("policy.kv_budget"), None);
        // The header's word comes before that of its configuration.
        assert_eq!(manifest.get("artifact.precision").unwrap(), "fp16");
        assert_eq!(manifest.created_at, "2026-04-17T08:00:00Z");
        assert!(import(&bytes[..40], import_bundle).is_err());
    }

    #[test]
    fn a_ladder_needs_its_key_and_a_configuration_keeps_its_layers() {
        let (dir, manifest) = import(CONFIG_TEXT.as_bytes(), import_ladder).unwrap();
        assert!(is_ladder(&dir.path().join("source")));
        assert_eq!(manifest.get("artifact.precision").unwrap(), "bf16");
        assert_eq!(manifest.get("declared.policy.divide_length").unwrap(), 8);
        let error = import(b"{\"model_type\":\"qwen3\"}", import_ladder).unwrap_err().to_string();
        assert!(error.contains("dynamic_kv_profile_rows"), "{error}");
        let text = r#"{"triattention":{"kv_budget":{"value":3072,"source":"bundle default"}}}"#;
        let (_dir, manifest) = import(text.as_bytes(), import_config).unwrap();
        let setting = &manifest.config["policy.kv_budget"];
        assert_eq!(
            (&setting.value, setting.source.as_str()),
            (&Value::from(3072), "bundle default")
        );
    }
}
