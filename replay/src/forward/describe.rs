//! The manifest of a replay.

use std::path::Path;

use lockstep_reference::Hyper;
use lockstep_traces::hash::{DEFAULT_SEEDS, sha256_file};
use lockstep_traces::manifest::{ModelId, Producer};
use lockstep_traces::store::RunReader;
use lockstep_traces::{DType, Manifest, TraceError};

use super::options::{ForwardOptions, Policy};
use crate::ReplayError;

/// A manifest for the run that [`super::forward`] writes: the claimed dtype, the reference's resolved model values, and
/// the policy and sampling settings of the replayed run with source `manifest`. `created_at` and the arguments are the
/// caller's to fill in.
///
/// # Errors
/// Unreadable model files.
pub fn describe(
    run: &RunReader,
    model_dir: &Path,
    options: &ForwardOptions,
) -> Result<Manifest, ReplayError> {
    let producer = Producer {
        name: "lockstep-reference".to_owned(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        binary_sha256: None,
        args: Vec::new(),
    };
    let mut manifest = Manifest::new(producer, "candle-cpu");
    let parent = run.manifest();
    let hyper = Hyper::read(model_dir)?;
    hyper.describe(&mut manifest);
    let replaces = |key: &str| match options.policy {
        Policy::Dense => key.starts_with("policy."),
        Policy::Recorded | Policy::Own { .. } => false,
    };
    for (key, setting) in &parent.config {
        let kept = ["policy.", "sampling.", "stop."].iter().any(|part| key.starts_with(part));
        if kept && !replaces(key) {
            manifest.set(key, setting.value.clone(), "manifest");
        }
    }
    if matches!(options.policy, Policy::Dense) {
        manifest.set("policy.kind", "dense", "flag");
    }
    manifest.set("replay.policy", options.policy.name(), "flag");
    manifest.set("replay.precision", options.precision.dtype().name(), "flag");
    manifest.set("replay.chunk", options.chunk, "flag");
    if let Some(plant) = options.plant {
        manifest.set("plant", plant.slug(), "flag");
    }
    manifest.dtype = Some(options.precision.dtype());
    // Rounded arithmetic keeps its rows in f32, every value on the narrow grid.
    manifest.cache_dtype = Some(match options.precision.dtype() {
        DType::F64 => DType::F64,
        _ => DType::F32,
    });
    manifest.logits_hash_seeds = Some(DEFAULT_SEEDS);
    manifest.parent = Some(sha256_file(run.dir().join("manifest.json"))?);
    manifest.model = model_id(model_dir, &hyper)?;
    Ok(manifest)
}

fn model_id(dir: &Path, hyper: &Hyper) -> Result<ModelId, ReplayError> {
    let hash = |name: &str| -> Result<Option<String>, TraceError> {
        let path = dir.join(name);
        if path.is_file() { sha256_file(path).map(Some) } else { Ok(None) }
    };
    let mut model = ModelId {
        path: Some(dir.display().to_string()),
        architecture: Some(hyper.architecture.name().to_owned()),
        config_sha256: hash("config.json")?,
        tokenizer_sha256: hash("tokenizer.json")?,
        ..ModelId::default()
    };
    if dir.is_file() {
        // A GGUF file is configuration, weights and tokenizer at once.
        let name = dir.file_name().map(|name| name.to_string_lossy().into_owned());
        model.weights_sha256.insert(name.unwrap_or_default(), sha256_file(dir)?);
        return Ok(model);
    }
    let io = |source| TraceError::Io { path: dir.to_path_buf(), source };
    for entry in std::fs::read_dir(dir).map_err(io)? {
        let entry = entry.map_err(io)?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if name.starts_with("model") && name.ends_with(".safetensors") {
            model.weights_sha256.insert(name, sha256_file(entry.path())?);
        }
    }
    Ok(model)
}
