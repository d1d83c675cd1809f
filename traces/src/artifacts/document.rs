//! Artifacts that are one JSON document.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::sections::BundleConfig;
use crate::TraceError;
use crate::manifest::Setting;
use crate::store::fail::{io, malformed};

/// Largest document read.
const MAX_BYTES: u64 = 256 << 20;

/// Reads a document as `T`.
fn read<T: DeserializeOwned>(path: &Path) -> Result<T, TraceError> {
    let size = std::fs::metadata(path).map_err(io(path))?.len();
    if size > MAX_BYTES {
        return Err(malformed(
            path,
            format!("{size} bytes; at most {MAX_BYTES} are read of a document"),
        ));
    }
    let bytes = std::fs::read(path).map_err(io(path))?;
    let text = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(&bytes);
    serde_json::from_slice(text).map_err(|source| TraceError::Json {
        path: path.to_owned(),
        line: source.line(),
        source,
    })
}

/// Sampling settings that a summary states.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct SummarySampling {
    /// Temperature.
    pub temperature: Option<f64>,
    /// Top-k.
    pub top_k: Option<i64>,
    /// Top-p.
    pub top_p: Option<f64>,
    /// Min-p.
    pub min_p: Option<f64>,
    /// Base seed; negative means none.
    pub seed: Option<i64>,
    /// A chat template was applied.
    pub chat_template: Option<bool>,
    /// Thinking was allowed.
    pub enable_thinking: Option<bool>,
    /// Dtype of the transformers side.
    pub hf_dtype: Option<String>,
    /// Generation stops at an answer.
    pub stop_on_answer: Option<bool>,
}

/// One sample of one method.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct SummarySample {
    /// Sample.
    pub sample_id: String,
    /// Gold answer.
    pub gold: Option<String>,
    /// Predicted answer.
    pub pred: Option<String>,
    /// Judged equal.
    pub correct: Option<bool>,
    /// Prediction of the transformers side.
    pub hf_pred: Option<String>,
    /// Equal to it.
    pub hf_match: Option<bool>,
    /// Tokens generated.
    pub generated_tokens: Option<u64>,
    /// Milliseconds on the wall.
    pub wall_ms: Option<f64>,
    /// Milliseconds of decode.
    pub decode_ms: Option<f64>,
}

/// Totals of one method and its samples.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct SummaryMethod {
    /// Samples.
    pub count: Option<u64>,
    /// Share judged correct.
    pub accuracy: Option<f64>,
    /// Share equal to the transformers side.
    pub hf_agreement: Option<f64>,
    /// Tokens generated.
    pub total_generated_tokens: Option<u64>,
    /// Milliseconds on the wall.
    pub total_wall_ms: Option<f64>,
    /// Milliseconds of decode.
    pub total_decode_ms: Option<f64>,
    /// Tokens per second on the wall.
    pub wall_tokens_per_sec: Option<f64>,
    /// Tokens per second of decode.
    pub decode_tokens_per_sec: Option<f64>,
    /// Samples.
    pub samples: Vec<SummarySample>,
}

/// `summary.json` of the comparison driver. It does not record bundle paths or hashes, effective seeds, prompt
/// hashes, the code's version, the GPU or environment overrides.
#[derive(Debug, Clone, PartialEq)]
pub struct Summary {
    /// File.
    pub path: PathBuf,
    /// Dataset, as given.
    pub dataset: Option<String>,
    /// Samples expected.
    pub count: Option<u64>,
    /// Cap on new tokens.
    pub max_new_tokens: Option<u64>,
    /// Limit on samples.
    pub limit: Option<u64>,
    /// Sampling.
    pub sampling: SummarySampling,
    /// `dense`, `tri`, `hf`: those that are there.
    pub methods: BTreeMap<String, SummaryMethod>,
}

#[derive(Deserialize)]
struct SummaryDocument {
    dataset: Option<String>,
    count: Option<u64>,
    max_new_tokens: Option<u64>,
    limit: Option<u64>,
    #[serde(default)]
    sampling: SummarySampling,
    dense: Option<SummaryMethod>,
    tri: Option<SummaryMethod>,
    hf: Option<SummaryMethod>,
}

/// Reads `summary.json`.
///
/// # Errors
/// [`TraceError::Io`]; [`TraceError::Json`] with the line; [`TraceError::Malformed`] where it has no method.
pub fn read_summary(path: &Path) -> Result<Summary, TraceError> {
    let document: SummaryDocument = read(path)?;
    let named = [("dense", document.dense), ("tri", document.tri), ("hf", document.hf)];
    let methods: BTreeMap<_, _> =
        named.into_iter().filter_map(|(name, method)| Some((name.to_owned(), method?))).collect();
    if methods.is_empty() {
        return Err(malformed(path, "none of `dense`, `tri` and `hf` is there: no summary"));
    }
    Ok(Summary {
        path: path.to_owned(),
        dataset: document.dataset,
        count: document.count,
        max_new_tokens: document.max_new_tokens,
        limit: document.limit,
        sampling: document.sampling,
        methods,
    })
}

/// An effective configuration: each value with the layer that decided it.
#[derive(Debug, Clone, PartialEq)]
pub struct EffectiveConfig {
    /// File.
    pub path: PathBuf,
    /// Values by `namespace.field`; the source is the layer: session request, platform profile, bundle default,
    /// build time or schema default, as the engine spells it.
    pub settings: BTreeMap<String, Setting>,
}

/// Reads `*.effective_config.json`: `{namespace: {field: {"value": .., "source": ..}}}`.
///
/// # Errors
/// [`TraceError::Io`]; [`TraceError::Json`] with the line; [`TraceError::Malformed`] for a field without value or
/// source, by name, and for a document without fields.
pub fn read_effective_config(path: &Path) -> Result<EffectiveConfig, TraceError> {
    let spaces: BTreeMap<String, BTreeMap<String, Value>> = read(path)?;
    let mut settings = BTreeMap::new();
    for (space, fields) in spaces {
        for (field, entry) in fields {
            let name = format!("{space}.{field}");
            let source = entry.get("source").and_then(Value::as_str);
            let (Some(value), Some(source)) = (entry.get("value"), source) else {
                return Err(malformed(path, format!("`{name}` has no value with a source")));
            };
            settings.insert(name, Setting { value: value.clone(), source: source.to_owned() });
        }
    }
    if settings.is_empty() {
        return Err(malformed(path, "no field is there: no effective configuration"));
    }
    Ok(EffectiveConfig { path: path.to_owned(), settings })
}

/// Name of an engine's setting as a manifest of a run calls it; others keep theirs.
#[must_use]
pub fn run_key(setting: &str) -> &str {
    const NAMES: [(&str, &str); 12] = [
        ("triattention.kv_budget", "policy.kv_budget"),
        ("triattention.divide_length", "policy.divide_length"),
        ("triattention.recent_window", "policy.recent_window"),
        ("triattention.count_prompt_tokens", "policy.count_prompt_tokens"),
        ("triattention.protect_prefill", "policy.protect_prefill"),
        ("triattention.per_layer_aggregation", "policy.layer_aggregation"),
        ("triattention.dump_keep_path", "dump.path"),
        ("triattention.dump_compaction_index", "dump.index"),
        ("triattention.profile", "dump.profile"),
        ("text_trace.step_trace_path", "trace.path"),
        ("text_trace.step_trace_start_pos", "trace.start"),
        ("text_trace.step_trace_topk", "trace.top_k"),
    ];
    NAMES.iter().find(|(theirs, _)| *theirs == setting).map_or(setting, |(_, ours)| ours)
}

/// Reads a model configuration with the keys that the bundle's builder injects, as it stands in a bundle's `config.json` section.
///
/// # Errors
/// [`TraceError::Io`]; [`TraceError::Json`] with the line; [`TraceError::Malformed`] where it has no ladder
/// (`dynamic_kv_profile_rows`).
pub fn read_engine_config(path: &Path) -> Result<BundleConfig, TraceError> {
    let config: BundleConfig = read(path)?;
    if config.profile_rows.is_none() {
        return Err(malformed(path, "no `dynamic_kv_profile_rows`: no ladder of profiles"));
    }
    Ok(config)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(text: &str) -> (tempfile::TempDir, PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.json");
        std::fs::write(&path, text).unwrap();
        (dir, path)
    }

    #[test]
    fn a_summary_has_its_methods_and_settings() {
        let (_dir, path) = write(
            r#"{"dataset":"aime","count":8,"max_new_tokens":12000,"limit":null,
                "sampling":{"temperature":0.6,"top_k":20,"top_p":0.95,"min_p":0.0,"seed":1234,"chat_template":true,
                            "enable_thinking":true,"hf_dtype":"auto","stop_on_answer":true},
                "tri":{"count":8,"accuracy":0.625,"hf_agreement":0.75,"total_generated_tokens":9120,
                       "total_wall_ms":118400.5,"total_decode_ms":113902.1,"wall_tokens_per_sec":77.03,
                       "decode_tokens_per_sec":80.07,
                       "samples":[{"sample_id":"a","gold":"1","pred":null,"correct":false,"hf_pred":null,
                                   "hf_match":null,"generated_tokens":5,"wall_ms":1.5,"decode_ms":null}]}}"#,
        );
        let summary = read_summary(&path).unwrap();
        assert_eq!(summary.methods.keys().collect::<Vec<_>>(), ["tri"]);
        let tri = &summary.methods["tri"];
        assert_eq!(
            (tri.count, tri.accuracy, tri.total_generated_tokens),
            (Some(8), Some(0.625), Some(9120))
        );
        assert_eq!((tri.samples[0].wall_ms, &tri.samples[0].pred), (Some(1.5), &None));
        assert_eq!(summary.sampling.hf_dtype.as_deref(), Some("auto"));
        assert_eq!((summary.limit, summary.sampling.seed), (None, Some(1234)));
    }

    #[test]
    fn documents_of_another_kind_are_refused() {
        let (_dir, path) = write("{\"dataset\":\"x\"}");
        assert!(matches!(read_summary(&path), Err(TraceError::Malformed { .. })));
        let (_dir, path) = write("{\n\"dataset\":\n");
        assert!(matches!(read_summary(&path), Err(TraceError::Json { line: 3, .. })));
    }

    #[test]
    fn an_effective_configuration_keeps_the_layer_of_each_value() {
        let (_dir, path) = write(
            r#"{"triattention":{"kv_budget":{"value":3072,"source":"bundle default"}},
                "text_trace":{"step_trace_path":{"value":"","source":"schema default"}}}"#,
        );
        let config = read_effective_config(&path).unwrap();
        assert_eq!(config.settings["triattention.kv_budget"].value, 3072);
        assert_eq!(config.settings["text_trace.step_trace_path"].source, "schema default");
        let (_dir, path) = write(r#"{"a":{"b":{"value":1}}}"#);
        let error = read_effective_config(&path).unwrap_err().to_string();
        assert!(error.contains("`a.b`"), "{error}");
        let (_dir, path) = write("{}");
        assert!(read_effective_config(&path).is_err());
    }
}
