//! llama.cpp's metadata as the configuration that the original checkpoint had.

use std::path::Path;

use candle_core::quantized::gguf_file::Value;
use lockstep_traces::{ModelConfig, RopeParameters};

use super::{Opened, ROPE_DIVISORS};
use crate::ReferenceError;

/// Lookups by llama.cpp's keys; what is of another type than it should be counts as an error and not as absent.
struct Metadata<'a> {
    opened: &'a Opened,
    path: &'a Path,
    family: String,
}

impl Metadata<'_> {
    fn fail(&self, key: &str, what: &str) -> ReferenceError {
        let what = format!("metadata `{key}` {what}");
        ReferenceError::Config { path: self.path.to_path_buf(), what }
    }

    fn find(&self, key: &str) -> Option<(String, &Value)> {
        let key = format!("{}.{key}", self.family);
        let value = self.opened.content.metadata.get(&key)?;
        Some((key, value))
    }

    fn count(&self, key: &str) -> Result<Option<usize>, ReferenceError> {
        let Some((key, value)) = self.find(key) else { return Ok(None) };
        let number = match value {
            Value::I32(number) => u64::try_from(*number).ok(),
            Value::I64(number) => u64::try_from(*number).ok(),
            // candle counts a truth value as a number.
            Value::Bool(_) => None,
            other => other.to_u64().ok(),
        };
        let number = number.and_then(|number| usize::try_from(number).ok());
        number.map(Some).ok_or_else(|| self.fail(&key, "is no count"))
    }

    fn real(&self, key: &str) -> Result<Option<f64>, ReferenceError> {
        let Some((key, value)) = self.find(key) else { return Ok(None) };
        match value {
            Value::F32(number) => Ok(Some(f64::from(*number))),
            Value::F64(number) => Ok(Some(*number)),
            _ => Err(self.fail(&key, "is no real number")),
        }
    }

    fn text(&self, key: &str) -> Result<Option<String>, ReferenceError> {
        let Some((key, value)) = self.find(key) else { return Ok(None) };
        value.to_string().cloned().map(Some).map_err(|_| self.fail(&key, "is no text"))
    }

    fn has(&self, tensor: &str) -> bool {
        self.opened.content.tensor_infos.contains_key(tensor)
    }
}

/// The configuration that a file's metadata stand for.
///
/// # Errors
/// Unknown families, values of the wrong type, what the reference does not compute.
pub(crate) fn read_config(opened: &Opened, path: &Path) -> Result<ModelConfig, ReferenceError> {
    let named = opened.content.metadata.get("general.architecture");
    let family = named.and_then(|value| value.to_string().ok()).cloned().unwrap_or_default();
    let metadata = Metadata { opened, path, family };
    let architecture = match metadata.family.as_str() {
        "llama" => "LlamaForCausalLM",
        "qwen2" => "Qwen2ForCausalLM",
        "qwen3" => "Qwen3ForCausalLM",
        other => {
            let what = format!("is `{other}`; the reference computes llama, qwen2 and qwen3");
            return Err(metadata.fail("general.architecture", &what));
        }
    };
    let hidden = metadata.count("embedding_length")?;
    let heads = metadata.count("attention.head_count")?;
    let width = match metadata.count("attention.key_length")? {
        Some(width) => Some(width),
        None => hidden.zip(heads).and_then(|(hidden, heads)| hidden.checked_div(heads)),
    };
    refuse(&metadata, width)?;
    let vocab = opened.content.tensor_infos.get("token_embd.weight");
    Ok(ModelConfig {
        architectures: Some(vec![architecture.to_owned()]),
        vocab_size: vocab.and_then(|info| info.shape.dims().first()).copied(),
        hidden_size: hidden,
        intermediate_size: metadata.count("feed_forward_length")?,
        num_hidden_layers: metadata.count("block_count")?,
        num_attention_heads: heads,
        num_key_value_heads: metadata.count("attention.head_count_kv")?,
        head_dim: width,
        rms_norm_eps: metadata.real("attention.layer_norm_rms_epsilon")?,
        rope_theta: metadata.real("rope.freq_base")?,
        rope_scaling: scaling(&metadata, width)?,
        max_position_embeddings: metadata.count("context_length")?,
        tie_word_embeddings: Some(!metadata.has("output.weight")),
        attention_bias: Some(metadata.has("blk.0.attn_output.bias")),
        mlp_bias: Some(metadata.has("blk.0.ffn_down.bias")),
        ..ModelConfig::default()
    })
}

fn refuse(metadata: &Metadata<'_>, width: Option<usize>) -> Result<(), ReferenceError> {
    if metadata.count("expert_count")?.unwrap_or(0) > 0 {
        return Err(metadata.fail("expert_count", "asks for experts, which are not computed"));
    }
    for key in ["attention.value_length", "rope.dimension_count"] {
        if let Some(found) = metadata.count(key)?
            && Some(found) != width
        {
            return Err(metadata.fail(key, "is not the head width; that is not computed"));
        }
    }
    let context = metadata.count("context_length")?.unwrap_or(usize::MAX);
    if metadata.count("attention.sliding_window")?.is_some_and(|window| window < context) {
        return Err(
            metadata.fail("attention.sliding_window", "has no agreed meaning for this family")
        );
    }
    Ok(())
}

fn scaling(
    metadata: &Metadata<'_>,
    width: Option<usize>,
) -> Result<Option<RopeParameters>, ReferenceError> {
    let kind = metadata.text("rope.scaling.type")?.filter(|kind| kind != "none");
    if let Some(tensor) = metadata.opened.header.tensors.get(ROPE_DIVISORS) {
        if kind.is_some() {
            return Err(metadata.fail("rope.scaling.type", "stands beside stored divisors"));
        }
        let divisors: Option<Vec<f32>> = (tensor.element.name() == "F32")
            .then(|| metadata.opened.map.get(tensor.range.clone()))
            .flatten()
            .map(|bytes| {
                bytes
                    .chunks_exact(4)
                    .map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]))
                    .collect()
            });
        let divisors = divisors.filter(|list| Some(list.len() * 2) == width);
        let divisors = divisors.ok_or_else(|| ReferenceError::Weights {
            path: metadata.path.to_path_buf(),
            tensor: ROPE_DIVISORS.to_owned(),
            what: "is not one F32 for each pair of a head".to_owned(),
        })?;
        return Ok(Some(RopeParameters {
            rope_type: Some("factors".to_owned()),
            freq_factors: Some(divisors),
            ..RopeParameters::default()
        }));
    }
    if kind.is_none() {
        return Ok(None);
    }
    let original = metadata.count("rope.scaling.original_context_length")?;
    Ok(Some(RopeParameters {
        rope_type: kind,
        factor: metadata.real("rope.scaling.factor")?,
        original_max_position_embeddings: original.map(|length| length as f64),
        attention_factor: metadata.real("rope.scaling.attn_factor")?,
        beta_fast: metadata.real("rope.scaling.yarn_beta_fast")?,
        beta_slow: metadata.real("rope.scaling.yarn_beta_slow")?,
        ..RopeParameters::default()
    }))
}
