//! Model dimensions as the reference resolves them from `config.json`.
//!
//! Defaults are those of the Hugging Face configuration classes (`Qwen3Config`, `LlamaConfig`), but sizes that a
//! checkpoint must state are never guessed: a missing one is an error. Every resolved value goes into the manifest
//! of a replay, so that a comparison sees first whether both sides computed the same model.

use std::path::{Path, PathBuf};

use lockstep_traces::{Manifest, ModelConfig};

use crate::{ReferenceError, rope::Rope};

/// Model family.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Architecture {
    /// Qwen3: RMSNorm over each query and key head before RoPE.
    Qwen3,
    /// Llama: no such norm.
    Llama,
}

impl Architecture {
    /// The name in `config.json`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Qwen3 => "Qwen3ForCausalLM",
            Self::Llama => "LlamaForCausalLM",
        }
    }
}

/// Everything the forward pass needs to know about a model, resolved.
#[derive(Debug, Clone, PartialEq)]
pub struct Hyper {
    /// Family.
    pub architecture: Architecture,
    /// Vocabulary size.
    pub vocab: usize,
    /// Hidden width.
    pub hidden: usize,
    /// MLP width.
    pub intermediate: usize,
    /// Layers.
    pub layers: usize,
    /// Query heads.
    pub heads: usize,
    /// KV heads; divides `heads`. Query head `h` reads KV head `h / (heads / kv_heads)`.
    pub kv_heads: usize,
    /// Head width, even.
    pub head_dim: usize,
    /// RMSNorm epsilon, added to the mean square.
    pub norm_eps: f64,
    /// Rotary parameters.
    pub rope: Rope,
    /// Output head is the embedding.
    pub tied: bool,
    /// Bias on q, k and v projections, and on o in both families.
    pub attention_bias: bool,
    /// Bias on the three MLP projections (Llama).
    pub mlp_bias: bool,
    /// Keys of values that the file did not give and that come from the family's defaults.
    pub defaulted: Vec<&'static str>,
}

impl Hyper {
    /// Reads and resolves `config.json` of a model directory.
    ///
    /// # Errors
    /// Unreadable file, unknown architecture, a missing size, a feature that the reference does not compute.
    pub fn read(dir: &Path) -> Result<Self, ReferenceError> {
        Self::resolve(&ModelConfig::read(dir)?, &dir.join("config.json"))
    }

    /// Resolves a configuration; `path` is for messages only.
    ///
    /// # Errors
    /// As [`Hyper::read`].
    pub fn resolve(config: &ModelConfig, path: &Path) -> Result<Self, ReferenceError> {
        let mut resolver = Resolver { path: path.to_path_buf(), defaulted: Vec::new() };
        let architecture = resolver.architecture(config)?;
        resolver.refuse_unsupported(config)?;
        let heads = resolver.size("num_attention_heads", config.num_attention_heads)?;
        let hidden = resolver.size("hidden_size", config.hidden_size)?;
        let kv_heads =
            resolver.or_default("num_key_value_heads", config.num_key_value_heads, heads);
        // Qwen3Config fixes 128 whatever the widths; LlamaConfig divides.
        let head_dim_default = match architecture {
            Architecture::Qwen3 => 128,
            Architecture::Llama => hidden / heads,
        };
        let head_dim = resolver.or_default("head_dim", config.head_dim, head_dim_default);
        if kv_heads == 0 || !heads.is_multiple_of(kv_heads) {
            return Err(resolver.error(format!(
                "num_attention_heads {heads} is no multiple of num_key_value_heads {kv_heads}"
            )));
        }
        if head_dim == 0 || !head_dim.is_multiple_of(2) {
            return Err(
                resolver.error(format!("head_dim {head_dim} cannot be rotated; it must be even"))
            );
        }
        let norm_eps = resolver.or_default("rms_norm_eps", config.rms_norm_eps, 1e-6);
        let tied = resolver.or_default("tie_word_embeddings", config.tie_word_embeddings, false);
        let attention_bias = resolver.or_default("attention_bias", config.attention_bias, false);
        let mlp_bias = match architecture {
            Architecture::Qwen3 => false,
            Architecture::Llama => resolver.or_default("mlp_bias", config.mlp_bias, false),
        };
        let (rope, rope_defaulted) = Rope::resolve(config, head_dim, path)?;
        if rope_defaulted {
            resolver.defaulted.push("rope_theta");
        }
        Ok(Self {
            architecture,
            vocab: resolver.size("vocab_size", config.vocab_size)?,
            hidden,
            intermediate: resolver.size("intermediate_size", config.intermediate_size)?,
            layers: resolver.size("num_hidden_layers", config.num_hidden_layers)?,
            heads,
            kv_heads,
            head_dim,
            norm_eps,
            rope,
            tied,
            attention_bias,
            mlp_bias,
            defaulted: resolver.defaulted,
        })
    }

    /// Query heads per KV head.
    #[must_use]
    pub const fn group(&self) -> usize {
        self.heads / self.kv_heads
    }

    /// True where each query and key head is normalised before RoPE.
    #[must_use]
    pub const fn qk_norm(&self) -> bool {
        matches!(self.architecture, Architecture::Qwen3)
    }

    /// Writes the resolved values as `model.*` with their source.
    pub fn describe(&self, manifest: &mut Manifest) {
        let rope = &self.rope;
        let mut set = |key: &str, name: &str, value: serde_json::Value| {
            let source = if self.defaulted.contains(&name) { "default" } else { "config.json" };
            manifest.set(key, value, source);
        };
        set("model.architecture", "architectures", self.architecture.name().into());
        set("model.vocab_size", "vocab_size", self.vocab.into());
        set("model.hidden_size", "hidden_size", self.hidden.into());
        set("model.intermediate_size", "intermediate_size", self.intermediate.into());
        set("model.num_hidden_layers", "num_hidden_layers", self.layers.into());
        set("model.num_attention_heads", "num_attention_heads", self.heads.into());
        set("model.num_key_value_heads", "num_key_value_heads", self.kv_heads.into());
        set("model.head_dim", "head_dim", self.head_dim.into());
        set("model.rms_norm_eps", "rms_norm_eps", self.norm_eps.into());
        set("model.rope_theta", "rope_theta", rope.theta.into());
        set("model.rope_type", "rope_type", rope.kind.name().into());
        set("model.rope_attention_scaling", "rope_type", rope.attention_scaling.into());
        set("model.tie_word_embeddings", "tie_word_embeddings", self.tied.into());
        set("model.attention_bias", "attention_bias", self.attention_bias.into());
        set("model.mlp_bias", "mlp_bias", self.mlp_bias.into());
    }
}

struct Resolver {
    path: PathBuf,
    defaulted: Vec<&'static str>,
}

impl Resolver {
    fn error(&self, what: String) -> ReferenceError {
        ReferenceError::Config { path: self.path.clone(), what }
    }

    fn size(&self, name: &str, value: Option<usize>) -> Result<usize, ReferenceError> {
        match value {
            // Far above any model, and small enough that products of two sizes cannot overflow.
            Some(value) if (1..=1 << 24).contains(&value) => Ok(value),
            Some(value) => Err(self.error(format!("{name} = {value} is no usable size"))),
            None => {
                Err(self.error(format!("{name} is missing; the reference does not guess sizes")))
            }
        }
    }

    fn or_default<T>(&mut self, name: &'static str, value: Option<T>, default: T) -> T {
        value.unwrap_or_else(|| {
            self.defaulted.push(name);
            default
        })
    }

    fn architecture(&self, config: &ModelConfig) -> Result<Architecture, ReferenceError> {
        let named = config.architectures.as_ref().and_then(|names| names.first());
        let name = named.or(config.model_type.as_ref());
        match name.map(String::as_str) {
            Some("Qwen3ForCausalLM" | "qwen3") => Ok(Architecture::Qwen3),
            Some("LlamaForCausalLM" | "llama") => Ok(Architecture::Llama),
            Some(other) => Err(self.error(format!(
                "architecture `{other}` is unknown; the reference computes Qwen3ForCausalLM and LlamaForCausalLM"
            ))),
            None => Err(self.error("neither `architectures` nor `model_type` is given".to_owned())),
        }
    }

    fn refuse_unsupported(&self, config: &ModelConfig) -> Result<(), ReferenceError> {
        if let Some(act) = config.hidden_act.as_deref()
            && act != "silu"
        {
            return Err(self.error(format!("hidden_act `{act}` is not computed; only silu is")));
        }
        let sliding = config.use_sliding_window == Some(true)
            || config
                .layer_types
                .as_ref()
                .is_some_and(|types| types.iter().any(|kind| kind != "full_attention"));
        if sliding {
            return Err(self.error(
                "sliding-window attention is not computed; only full_attention is".to_owned(),
            ));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn qwen() -> ModelConfig {
        ModelConfig {
            architectures: Some(vec!["Qwen3ForCausalLM".to_owned()]),
            vocab_size: Some(10),
            hidden_size: Some(16),
            intermediate_size: Some(24),
            num_hidden_layers: Some(2),
            num_attention_heads: Some(4),
            ..ModelConfig::default()
        }
    }

    fn resolve(config: &ModelConfig) -> Result<Hyper, ReferenceError> {
        Hyper::resolve(config, Path::new("config.json"))
    }

    #[test]
    fn what_the_file_leaves_out_comes_from_the_family() {
        let hyper = resolve(&qwen()).unwrap();
        assert_eq!((hyper.kv_heads, hyper.head_dim, hyper.tied), (4, 128, false));
        assert!((hyper.norm_eps - 1e-6).abs() < 1e-18);
        assert!(hyper.defaulted.contains(&"head_dim") && hyper.defaulted.contains(&"rope_theta"));
        let llama =
            ModelConfig { architectures: None, model_type: Some("llama".to_owned()), ..qwen() };
        let hyper = resolve(&llama).unwrap();
        assert_eq!((hyper.head_dim, hyper.qk_norm()), (4, false));
    }

    #[test]
    fn a_missing_size_is_not_guessed() {
        let config = ModelConfig { hidden_size: None, ..qwen() };
        let message = resolve(&config).unwrap_err().to_string();
        assert!(message.contains("hidden_size"), "{message}");
    }

    #[test]
    fn what_is_not_computed_is_refused_by_name() {
        for (config, word) in [
            (
                ModelConfig { architectures: Some(vec!["Gemma3ForCausalLM".into()]), ..qwen() },
                "Gemma3",
            ),
            (ModelConfig { hidden_act: Some("gelu".into()), ..qwen() }, "gelu"),
            (ModelConfig { use_sliding_window: Some(true), ..qwen() }, "sliding"),
            (ModelConfig { num_key_value_heads: Some(3), ..qwen() }, "multiple"),
            (ModelConfig { head_dim: Some(3), ..qwen() }, "even"),
        ] {
            let message = resolve(&config).unwrap_err().to_string();
            assert!(message.contains(word), "{message}");
        }
    }

    #[test]
    fn resolved_values_and_their_sources_are_recorded() {
        let mut manifest =
            Manifest::new(lockstep_traces::manifest::Producer::default(), "candle-cpu");
        resolve(&qwen()).unwrap().describe(&mut manifest);
        assert_eq!(manifest.config["model.head_dim"].source, "default");
        assert_eq!(manifest.config["model.hidden_size"].source, "config.json");
        assert_eq!(
            manifest.get("model.rope_theta").and_then(serde_json::Value::as_f64),
            Some(10_000.0)
        );
    }
}
