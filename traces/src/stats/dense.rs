//! Dense arrays in safetensors: `q_mean_real`, `q_mean_imag`, `q_abs_mean` `[layers, heads, freqs]`, and where known
//! `inv_freq`, `freq_scale_sq` `[freqs]`.
//!
//! `__metadata__` holds strings only; what needs more is JSON text under `lockstep.*`: `layers`, `heads`,
//! `sampled_heads` (absent: numbered from 0, all heads sampled), and `json_keys`, the metadata keys whose text is JSON.

use std::collections::BTreeMap;
use std::path::Path;

use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::QueryStats;
use crate::store::fail::malformed;
use crate::store::{self, DumpFile};
use crate::{Tensor, TraceError};

const PREFIX: &str = "lockstep.";

pub(super) fn read(path: &Path) -> Result<QueryStats, TraceError> {
    let file = DumpFile::open(path)?;
    let real = file.get("q_mean_real")?;
    let &[layers, heads, freqs] = real.shape.as_slice() else {
        return Err(
            real.error(format!("has shape {:?}, expected [layers, heads, freqs]", real.shape))
        );
    };
    let array = |name: &str, shape: &[usize]| {
        let view = file.get(name)?;
        if view.shape != shape {
            return Err(view.error(format!("has shape {:?}, expected {shape:?}", view.shape)));
        }
        view.to_f32()
    };
    let optional = |name: &str| match file.has(name) {
        true => array(name, &[freqs]).map(Some),
        false => Ok(None),
    };
    let count = |len: usize| (0..).take(len).collect::<Vec<u32>>();
    let axes = (
        own(&file, "layers")?.unwrap_or_else(|| count(layers)),
        own(&file, "heads")?.unwrap_or_else(|| count(heads)),
    );
    if (axes.0.len(), axes.1.len()) != (layers, heads) {
        return Err(real.error(format!(
            "has shape {:?}, but {} layers and {} heads are listed",
            real.shape,
            axes.0.len(),
            axes.1.len()
        )));
    }
    let mut stats = QueryStats {
        q_mean_real: real.to_f32()?,
        q_mean_imag: array("q_mean_imag", &real.shape)?,
        q_abs_mean: array("q_abs_mean", &real.shape)?,
        inv_freq: optional("inv_freq")?,
        freq_scale_sq: optional("freq_scale_sq")?,
        sampled: Vec::new(),
        metadata: metadata(&file)?,
        layers: axes.0,
        heads: axes.1,
        freqs,
    };
    stats.sampled = match own(&file, "sampled_heads")? {
        Some(sampled) => sampled,
        None => every_head(&stats.layers, &stats.heads),
    };
    Ok(stats)
}

/// All pairs, layer by layer.
pub(super) fn every_head(layers: &[u32], heads: &[u32]) -> Vec<(u32, u32)> {
    layers.iter().flat_map(|&layer| heads.iter().map(move |&head| (layer, head))).collect()
}

fn own<T: DeserializeOwned>(file: &DumpFile, key: &str) -> Result<Option<T>, TraceError> {
    let Some(text) = file.metadata().get(&format!("{PREFIX}{key}")) else { return Ok(None) };
    let parsed = serde_json::from_str(text);
    parsed
        .map(Some)
        .map_err(|error| malformed(file.path(), format!("metadata `{PREFIX}{key}`: {error}")))
}

fn metadata(file: &DumpFile) -> Result<BTreeMap<String, Value>, TraceError> {
    let typed: Vec<String> = own(file, "json_keys")?.unwrap_or_default();
    let mut out = BTreeMap::new();
    for (key, text) in file.metadata().iter().filter(|(key, _)| !key.starts_with(PREFIX)) {
        let value = if typed.contains(key) {
            serde_json::from_str(text)
                .map_err(|error| malformed(file.path(), format!("metadata `{key}`: {error}")))?
        } else {
            Value::String(text.clone())
        };
        out.insert(key.clone(), value);
    }
    Ok(out)
}

/// Writes the dense form; [`super::read`] gives back an equal value.
///
/// # Errors
/// [`TraceError::Tensor`] or [`TraceError::Malformed`] where the statistics contradict themselves; [`TraceError::Io`].
pub fn write_safetensors(stats: &QueryStats, path: &Path) -> Result<(), TraceError> {
    stats.check(path)?;
    let shape = vec![stats.layers.len(), stats.heads.len(), stats.freqs];
    let mut tensors = vec![
        Tensor::from_f32("q_mean_real", shape.clone(), &stats.q_mean_real),
        Tensor::from_f32("q_mean_imag", shape.clone(), &stats.q_mean_imag),
        Tensor::from_f32("q_abs_mean", shape, &stats.q_abs_mean),
    ];
    for (name, values) in [("inv_freq", &stats.inv_freq), ("freq_scale_sq", &stats.freq_scale_sq)] {
        if let Some(values) = values {
            tensors.push(Tensor::from_f32(name, vec![stats.freqs], values));
        }
    }
    let mut metadata = BTreeMap::new();
    let mut typed = Vec::new();
    for (key, value) in &stats.metadata {
        if key.starts_with(PREFIX) {
            return Err(malformed(path, format!("metadata key `{key}` is reserved")));
        }
        let text = match value {
            Value::String(text) => text.clone(),
            other => {
                typed.push(key);
                other.to_string()
            }
        };
        metadata.insert(key.clone(), text);
    }
    for (key, value) in [
        ("layers", json!(stats.layers)),
        ("heads", json!(stats.heads)),
        ("sampled_heads", json!(stats.sampled)),
        ("json_keys", json!(typed)),
    ] {
        metadata.insert(format!("{PREFIX}{key}"), value.to_string());
    }
    store::write_safetensors(path, &metadata, &tensors)
}
