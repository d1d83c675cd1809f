//! `config.json` as it was written: every field optional, no default, nothing derived.
//!
//! Defaults are semantics. The runtime and the reference each resolve their own from this and record what they
//! took; a comparison looks at those first.

use std::path::Path;

use serde::de::Error as _;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::TraceError;

/// RoPE parameters as written, under either of the two spellings (`rope_scaling`, `rope_parameters`).
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct RopeParameters {
    /// `rope_type`, or `type` in older files.
    #[serde(alias = "type")]
    pub rope_type: Option<String>,
    /// Base, where nested here.
    pub rope_theta: Option<f64>,
    /// Scaling factor.
    pub factor: Option<f64>,
    /// llama3.
    pub low_freq_factor: Option<f64>,
    /// llama3.
    pub high_freq_factor: Option<f64>,
    /// llama3 and YaRN.
    pub original_max_position_embeddings: Option<f64>,
    /// YaRN.
    #[serde(alias = "attn_factor")]
    pub attention_factor: Option<f64>,
    /// YaRN.
    pub beta_fast: Option<f64>,
    /// YaRN.
    pub beta_slow: Option<f64>,
    /// YaRN.
    pub mscale: Option<f64>,
    /// YaRN.
    pub mscale_all_dim: Option<f64>,
    /// YaRN.
    pub truncate: Option<bool>,
    /// Share of a head that is rotated, where newer files write it.
    pub partial_rotary_factor: Option<f64>,
    /// Divisor of each frequency, `head_dim / 2` values; GGUF files store them as the tensor `rope_freqs.weight`, and `rope_type` is then
    /// `factors` here.
    pub freq_factors: Option<Vec<f32>>,
}

/// One value or a list of values (`eos_token_id`).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum OneOrMany {
    /// A single id.
    One(u32),
    /// Several ids.
    Many(Vec<u32>),
}

impl OneOrMany {
    /// The ids as a list.
    #[must_use]
    pub fn to_vec(&self) -> Vec<u32> {
        match self {
            Self::One(id) => vec![*id],
            Self::Many(ids) => ids.clone(),
        }
    }
}

/// The fields of a Hugging Face `config.json` that either side reads.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ModelConfig {
    /// `["Qwen3ForCausalLM"]`.
    pub architectures: Option<Vec<String>>,
    /// `qwen3`, `llama`.
    pub model_type: Option<String>,
    /// Vocabulary size.
    pub vocab_size: Option<usize>,
    /// Hidden width.
    pub hidden_size: Option<usize>,
    /// MLP width.
    pub intermediate_size: Option<usize>,
    /// Layers.
    pub num_hidden_layers: Option<usize>,
    /// Query heads.
    pub num_attention_heads: Option<usize>,
    /// KV heads.
    pub num_key_value_heads: Option<usize>,
    /// Head width.
    pub head_dim: Option<usize>,
    /// RMSNorm epsilon.
    pub rms_norm_eps: Option<f64>,
    /// Base, top-level spelling.
    pub rope_theta: Option<f64>,
    /// Older spelling of the RoPE block. One block for each kind of layer is refused: read as one for all, it would say nothing.
    #[serde(deserialize_with = "block")]
    pub rope_scaling: Option<RopeParameters>,
    /// Newer spelling of the RoPE block, refused likewise.
    #[serde(deserialize_with = "block")]
    pub rope_parameters: Option<RopeParameters>,
    /// Share of a head that is rotated.
    pub partial_rotary_factor: Option<f64>,
    /// Longest trained context.
    pub max_position_embeddings: Option<usize>,
    /// Output head shares the embedding.
    pub tie_word_embeddings: Option<bool>,
    /// Bias in q, k, v (and o) projections.
    pub attention_bias: Option<bool>,
    /// Bias in the MLP.
    pub mlp_bias: Option<bool>,
    /// Activation.
    pub hidden_act: Option<String>,
    /// Beginning of sequence.
    pub bos_token_id: Option<u32>,
    /// End of sequence.
    pub eos_token_id: Option<OneOrMany>,
    /// Checkpoint dtype, older spelling.
    pub torch_dtype: Option<String>,
    /// Checkpoint dtype, newer spelling.
    pub dtype: Option<String>,
    /// Sliding-window attention switch.
    pub use_sliding_window: Option<bool>,
    /// Sliding window in rows. `Some(None)` is an explicit `null`, which switches it off; families have defaults where it is absent.
    #[serde(deserialize_with = "written", skip_serializing_if = "Option::is_none")]
    pub sliding_window: Option<Option<usize>>,
    /// Layers in front that see everything though a window is in use.
    pub max_window_layers: Option<usize>,
    /// `full_attention` or `sliding_attention` by layer.
    pub layer_types: Option<Vec<String>>,
}

/// Keeps an explicit `null` apart from an absent field.
fn written<'de, D: serde::Deserializer<'de>>(from: D) -> Result<Option<Option<usize>>, D::Error> {
    Option::deserialize(from).map(Some)
}

/// Reads a RoPE block that holds for all layers.
fn block<'de, D: serde::Deserializer<'de>>(from: D) -> Result<Option<RopeParameters>, D::Error> {
    let Some(members) = Option::<serde_json::Map<String, Value>>::deserialize(from)? else {
        return Ok(None);
    };
    if let Some((kind, _)) = members.iter().find(|(_, value)| value.is_object()) {
        return Err(D::Error::custom(format!(
            "the RoPE block has a block for each kind of layer (`{kind}`); one for all layers is read"
        )));
    }
    serde_json::from_value(Value::Object(members)).map(Some).map_err(D::Error::custom)
}

impl ModelConfig {
    /// Reads `config.json` of a model directory.
    ///
    /// # Errors
    /// [`TraceError::Io`] or [`TraceError::Json`], with the path.
    pub fn read(dir: &Path) -> Result<Self, TraceError> {
        let path = dir.join("config.json");
        let bytes =
            std::fs::read(&path).map_err(|source| TraceError::Io { path: path.clone(), source })?;
        serde_json::from_slice(&bytes).map_err(|source| TraceError::Json {
            path,
            line: source.line(),
            source,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<ModelConfig, String> {
        serde_json::from_str(text).map_err(|error| error.to_string())
    }

    #[test]
    fn a_block_for_each_kind_of_layer_is_not_one_for_all() {
        for key in ["rope_parameters", "rope_scaling"] {
            let layers = format!(
                r#"{{"{key}": {{"full_attention": {{"rope_theta": 1e6}}, "sliding_attention": {{"rope_theta": 1e4}}}}}}"#
            );
            let error = read(&layers).unwrap_err();
            assert!(error.contains("(`full_attention`); one for all layers is read"), "{error}");
            assert_eq!(read(&format!(r#"{{"{key}": null}}"#)).unwrap(), ModelConfig::default());
        }
    }
}
