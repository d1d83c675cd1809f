//! The metadata of a GGUF file as a configuration.
//!
//! Keys are llama.cpp's: `general.architecture` names the family, and its name is the prefix of the model's own keys. What a key says is
//! put into the field of `config.json` that says the same, and resolved as that would be; the source of each value is its key. Three
//! values are told by tensors: the head is tied where there is no `output.weight`, the vocabulary is the embedding's, and
//! `rope_freqs.weight` holds divisors of the rotary frequencies (the llama3 scaling, worked out by the converter).

use std::collections::BTreeMap;
use std::path::Path;

use lockstep_traces::config::OneOrMany;
use lockstep_traces::gguf::{GgufHeader, GgufValue};
use lockstep_traces::{ModelConfig, RopeParameters};

use super::{Hyper, Origin};
use crate::RuntimeError;
use crate::weights::{ROPE_FACTORS, open_gguf};

/// Reads and resolves the metadata of a file.
pub(super) fn read(path: &Path) -> Result<Hyper, RuntimeError> {
    let (map, header) = open_gguf(path)?;
    let mut keys = Keys { path, header: &header, prefix: "", used: BTreeMap::new() };
    let name = keys.text("architecture", "general.architecture")?;
    let name = name.ok_or_else(|| keys.error("general.architecture", "is missing"))?;
    let family = match name.as_str() {
        "llama" => "LlamaForCausalLM",
        "qwen2" => "Qwen2ForCausalLM",
        "qwen3" => "Qwen3ForCausalLM",
        other => {
            let what = format!("`{other}` is not supported; llama, qwen2 and qwen3 are");
            return Err(keys.error("general.architecture", what));
        }
    };
    keys.prefix = &name;
    let factors = rope_factors(&mut keys, &map)?;
    let config = config(&mut keys, family, factors)?;
    let used = keys.used;
    Hyper::resolve_from(&config, path, Origin::Gguf(used))
}

/// Takes keys and remembers which told what.
struct Keys<'a> {
    path: &'a Path,
    header: &'a GgufHeader,
    prefix: &'a str,
    used: BTreeMap<&'static str, String>,
}

impl Keys<'_> {
    fn error(&self, key: &str, what: impl Into<String>) -> RuntimeError {
        RuntimeError::Config {
            path: self.path.to_owned(),
            field: key.to_owned(),
            what: what.into(),
        }
    }

    /// A key of the family.
    fn own(&self, key: &str) -> String {
        format!("{}.{key}", self.prefix)
    }

    /// The value of `key`, read by `read`, as the field `field`.
    fn take<T>(
        &mut self,
        field: &'static str,
        key: &str,
        wanted: &str,
        read: impl Fn(&GgufValue) -> Option<T>,
    ) -> Result<Option<T>, RuntimeError> {
        let Some(value) = self.header.get(key) else { return Ok(None) };
        let read = read(value).ok_or_else(|| {
            let what = format!("is {}, {wanted} is expected", value.kind());
            self.error(key, what)
        })?;
        self.used.insert(field, key.to_owned());
        Ok(Some(read))
    }

    fn size(&mut self, field: &'static str, key: &str) -> Result<Option<usize>, RuntimeError> {
        let key = self.own(key);
        self.take(field, &key, "one size", |value| usize::try_from(value.as_u64()?).ok())
    }

    fn real(&mut self, field: &'static str, key: &str) -> Result<Option<f64>, RuntimeError> {
        let key = self.own(key);
        self.take(field, &key, "a real number", GgufValue::as_f64)
    }

    fn text(&mut self, field: &'static str, key: &str) -> Result<Option<String>, RuntimeError> {
        self.take(field, key, "a text", |value| value.as_text().map(ToOwned::to_owned))
    }

    /// Is there such a tensor? Remembered as the source of `field`.
    fn tensor(&mut self, field: &'static str, name: &str) -> bool {
        let there = self.header.tensors.contains_key(name);
        let source = if there { name.to_owned() } else { format!("no {name}") };
        self.used.insert(field, source);
        there
    }
}

fn config(
    keys: &mut Keys<'_>,
    family: &str,
    factors: Option<Vec<f32>>,
) -> Result<ModelConfig, RuntimeError> {
    refuse_unsupported(keys)?;
    let heads = keys.size("num_attention_heads", "attention.head_count")?;
    let hidden = keys.size("hidden_size", "embedding_length")?;
    let head_dim = keys.size("head_dim", "attention.key_length")?;
    let width = head_dim.or_else(|| hidden?.checked_div(heads?));
    for key in ["attention.value_length", "rope.dimension_count"] {
        let found = keys.size("head_dim_again", key)?;
        if let (Some(found), Some(width)) = (found, width)
            && found != width
        {
            let what =
                format!("{found} is not the head width {width}; only whole heads are turned");
            return Err(keys.error(&keys.own(key), what));
        }
    }
    let embedding = keys.header.tensors.get("token_embd.weight").map(|tensor| tensor.shape());
    let vocab_size = embedding.as_ref().and_then(|shape| shape.first()).copied();
    keys.used.insert("vocab_size", "token_embd.weight".to_owned());
    let llama = family == "LlamaForCausalLM";
    let theta = keys.real("rope_theta", "rope.freq_base")?;
    let scaling = scaling(keys, factors)?;
    Ok(ModelConfig {
        architectures: Some(vec![family.to_owned()]),
        vocab_size,
        hidden_size: hidden,
        intermediate_size: keys.size("intermediate_size", "feed_forward_length")?,
        num_hidden_layers: keys.size("num_hidden_layers", "block_count")?,
        num_attention_heads: heads,
        num_key_value_heads: keys.size("num_key_value_heads", "attention.head_count_kv")?,
        head_dim,
        rms_norm_eps: keys.real("rms_norm_eps", "attention.layer_norm_rms_epsilon")?,
        rope_theta: theta,
        rope_parameters: scaling,
        max_position_embeddings: keys.size("max_position_embeddings", "context_length")?,
        tie_word_embeddings: Some(!keys.tensor("tie_word_embeddings", "output.weight")),
        attention_bias: llama.then(|| keys.tensor("attention_bias", "blk.0.attn_q.bias")),
        mlp_bias: llama.then(|| keys.tensor("mlp_bias", "blk.0.ffn_gate.bias")),
        eos_token_id: ends(keys)?,
        ..ModelConfig::default()
    })
}

/// End of sequence, and end of turn where the file names another token for it.
fn ends(keys: &mut Keys<'_>) -> Result<Option<OneOrMany>, RuntimeError> {
    let mut ids = Vec::new();
    for key in ["tokenizer.ggml.eot_token_id", "tokenizer.ggml.eos_token_id"] {
        let read = |value: &GgufValue| u32::try_from(value.as_u64()?).ok();
        ids.extend(keys.take("eos_token_id", key, "a token id", read)?);
    }
    ids.reverse();
    ids.dedup();
    Ok((!ids.is_empty()).then_some(OneOrMany::Many(ids)))
}

/// What changes the computation and is not computed.
fn refuse_unsupported(keys: &mut Keys<'_>) -> Result<(), RuntimeError> {
    let experts = keys.size("experts", "expert_count")?;
    if experts.is_some_and(|experts| experts > 0) {
        return Err(keys.error(&keys.own("expert_count"), "mixtures of experts are not supported"));
    }
    let window = keys.size("window", "attention.sliding_window")?;
    let context = keys.size("context", "context_length")?;
    if let Some(window) = window.filter(|window| context.is_none_or(|context| *window < context)) {
        let what = format!(
            "{window} is given, but llama.cpp computes full attention for this architecture; which is meant is not told"
        );
        return Err(keys.error(&keys.own("attention.sliding_window"), what));
    }
    Ok(())
}

/// The scaling of RoPE by its keys, or by stored divisors.
fn scaling(
    keys: &mut Keys<'_>,
    factors: Option<Vec<f32>>,
) -> Result<Option<RopeParameters>, RuntimeError> {
    let key = keys.own("rope.scaling.type");
    let kind = keys.text("rope_type", &key)?.filter(|kind| kind != "none");
    let Some(factors) = factors else {
        let Some(kind) = kind else { return Ok(None) };
        return Ok(Some(RopeParameters {
            rope_type: Some(kind),
            factor: keys.real("factor", "rope.scaling.factor")?,
            original_max_position_embeddings: keys
                .size("original_max_position_embeddings", "rope.scaling.original_context_length")?
                .map(|length| length as f64),
            attention_factor: keys.real("attention_factor", "rope.scaling.attn_factor")?,
            beta_fast: keys.real("beta_fast", "rope.scaling.yarn_beta_fast")?,
            beta_slow: keys.real("beta_slow", "rope.scaling.yarn_beta_slow")?,
            ..RopeParameters::default()
        }));
    };
    if let Some(kind) = kind {
        let what =
            format!("`{kind}` stands beside {ROPE_FACTORS}; only one of them can be applied");
        return Err(keys.error(&key, what));
    }
    keys.used.insert("rope_type", ROPE_FACTORS.to_owned());
    Ok(Some(RopeParameters {
        rope_type: Some("factors".to_owned()),
        freq_factors: Some(factors),
        ..RopeParameters::default()
    }))
}

/// The divisors of the frequencies, where the file holds them: one f32 for each pair of a head.
fn rope_factors(keys: &mut Keys<'_>, file: &[u8]) -> Result<Option<Vec<f32>>, RuntimeError> {
    let Some(tensor) = keys.header.tensors.get(ROPE_FACTORS) else { return Ok(None) };
    let heads = keys.size("num_attention_heads", "attention.head_count")?;
    let hidden = keys.size("hidden_size", "embedding_length")?;
    let width = keys.size("head_dim", "attention.key_length")?;
    let pairs = width.or_else(|| hidden?.checked_div(heads?)).map(|width| width / 2);
    let bytes = file.get(tensor.range.clone()).unwrap_or_default();
    if tensor.element.name() != "F32" || Some(tensor.elements()) != pairs {
        let what = format!(
            "is {} {:?}; one F32 for each pair of a head is expected",
            tensor.element, tensor.ne
        );
        return Err(RuntimeError::tensor(keys.path, ROPE_FACTORS, what));
    }
    Ok(Some(bytes.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()))
}
