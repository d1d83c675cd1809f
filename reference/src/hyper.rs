//! Model dimensions as the reference resolves them from `config.json` or the metadata of a GGUF file.
//!
//! Defaults are those of the Hugging Face configuration classes (`Qwen3Config`, `LlamaConfig`), but sizes that a
//! checkpoint must state are never guessed: a missing one is an error. Every resolved value goes into the manifest
//! of a replay, so that a comparison sees first whether both sides computed the same model.

use std::path::{Path, PathBuf};

use lockstep_traces::{Manifest, ModelConfig};

use crate::{ReferenceError, gguf, rope::Rope};

/// Model family.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Architecture {
    /// Qwen3: RMSNorm over each query and key head before RoPE.
    Qwen3,
    /// Llama: no such norm.
    Llama,
    /// Qwen2: no such norm; q, k and v projections have a bias, o has none.
    Qwen2,
    /// Mistral: Llama without biases, each row seeing the last rows only.
    Mistral,
}

impl Architecture {
    /// The name in `config.json`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Qwen3 => "Qwen3ForCausalLM",
            Self::Llama => "LlamaForCausalLM",
            Self::Qwen2 => "Qwen2ForCausalLM",
            Self::Mistral => "MistralForCausalLM",
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
    /// Bias on q, k and v projections, and on o in every family but Qwen2.
    pub attention_bias: bool,
    /// Bias on the three MLP projections (Llama).
    pub mlp_bias: bool,
    /// By layer: how many rows a row sees, itself among them; all where `None`.
    pub windows: Vec<Option<usize>>,
    /// Keys of values that the file did not give and that come from the family's defaults.
    pub defaulted: Vec<&'static str>,
    /// Values are those of a GGUF file's metadata.
    pub gguf: bool,
}

impl Hyper {
    /// Reads and resolves `config.json` of a model directory, or the metadata where `dir` is a GGUF file.
    ///
    /// # Errors
    /// Unreadable file, unknown architecture, a missing size, a feature that the reference does not compute.
    pub fn read(dir: &Path) -> Result<Self, ReferenceError> {
        let config = Self::config(dir)?;
        if dir.is_file() {
            return Ok(Self { gguf: true, ..Self::resolve(&config, dir)? });
        }
        Self::resolve(&config, &dir.join("config.json"))
    }

    /// The configuration of a model directory or GGUF file, not resolved.
    ///
    /// # Errors
    /// Unreadable files; metadata that stand for no configuration.
    pub fn config(dir: &Path) -> Result<ModelConfig, ReferenceError> {
        if dir.is_file() {
            return gguf::read_config(&gguf::open(dir)?, dir);
        }
        Ok(ModelConfig::read(dir)?)
    }

    /// Resolves a configuration; `path` is for messages only.
    ///
    /// # Errors
    /// As [`Hyper::read`].
    pub fn resolve(config: &ModelConfig, path: &Path) -> Result<Self, ReferenceError> {
        let mut resolver = Resolver { path: path.to_path_buf(), defaulted: Vec::new() };
        let architecture = resolver.architecture(config)?;
        resolver.refuse_unsupported(config, architecture)?;
        let heads = resolver.size("num_attention_heads", config.num_attention_heads)?;
        let hidden = resolver.size("hidden_size", config.hidden_size)?;
        // MistralConfig fixes 8 KV heads, the others repeat none where the file does not say.
        let kv_default = if architecture == Architecture::Mistral { 8 } else { heads };
        let kv_heads =
            resolver.or_default("num_key_value_heads", config.num_key_value_heads, kv_default);
        let kv_heads = resolver.size("num_key_value_heads", Some(kv_heads))?;
        // Qwen3Config fixes 128 whatever the widths; the other classes divide.
        let head_dim_default = match architecture {
            Architecture::Qwen3 => 128,
            _ => hidden / heads,
        };
        let head_dim = resolver.or_default("head_dim", config.head_dim, head_dim_default);
        let head_dim = resolver.size("head_dim", Some(head_dim))?;
        if !heads.is_multiple_of(kv_heads) {
            return Err(resolver.error(format!(
                "num_attention_heads {heads} is no multiple of num_key_value_heads {kv_heads}"
            )));
        }
        if !head_dim.is_multiple_of(2) {
            return Err(
                resolver.error(format!("head_dim {head_dim} cannot be rotated; it must be even"))
            );
        }
        let norm_eps = resolver.or_default("rms_norm_eps", config.rms_norm_eps, 1e-6);
        let tied = resolver.or_default("tie_word_embeddings", config.tie_word_embeddings, false);
        let attention_bias = match architecture {
            Architecture::Qwen2 => true,
            Architecture::Mistral => false,
            _ => resolver.or_default("attention_bias", config.attention_bias, false),
        };
        let mlp_bias = match architecture {
            Architecture::Llama => resolver.or_default("mlp_bias", config.mlp_bias, false),
            _ => false,
        };
        let (rope, rope_defaulted) = Rope::resolve(config, head_dim, path)?;
        if rope_defaulted {
            resolver.defaulted.push("rope_theta");
        }
        let layers = resolver.size("num_hidden_layers", config.num_hidden_layers)?;
        // What is kept for each layer is made now; a number that no weights stand behind must cost nothing.
        if layers > LAYER_LIMIT {
            return Err(resolver.error(format!(
                "num_hidden_layers = {layers}: more than {LAYER_LIMIT} layers are not computed"
            )));
        }
        let windows = resolver.windows(config, architecture, layers)?;
        Ok(Self {
            architecture,
            vocab: resolver.size("vocab_size", config.vocab_size)?,
            hidden,
            intermediate: resolver.size("intermediate_size", config.intermediate_size)?,
            layers,
            heads,
            kv_heads,
            head_dim,
            norm_eps,
            rope,
            tied,
            attention_bias,
            mlp_bias,
            windows,
            defaulted: resolver.defaulted,
            gguf: false,
        })
    }

    /// Query heads per KV head.
    #[must_use]
    pub const fn group(&self) -> usize {
        self.heads / self.kv_heads
    }

    /// Rows that a row of `layer` sees, itself among them; `None`: all.
    #[must_use]
    pub fn window(&self, layer: usize) -> Option<usize> {
        self.windows.get(layer).copied().flatten()
    }

    /// Has the output projection of the attention a bias?
    #[must_use]
    pub const fn output_bias(&self) -> bool {
        self.attention_bias && !matches!(self.architecture, Architecture::Qwen2)
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
            let source = match (self.defaulted.contains(&name), self.gguf) {
                (true, _) => "default",
                (false, true) => "gguf metadata",
                (false, false) => "config.json",
            };
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
        let slides = self.windows.iter().any(Option::is_some);
        let listed: &[Option<usize>] = if slides { &self.windows } else { &[] };
        set("model.sliding_windows", "sliding_window", listed.to_vec().into());
    }
}

/// Most layers of a model; a thousand times those of the first transformers, and far above any that is published.
const LAYER_LIMIT: usize = 12_000;

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
            Some("Qwen2ForCausalLM" | "qwen2") => Ok(Architecture::Qwen2),
            Some("MistralForCausalLM" | "mistral") => Ok(Architecture::Mistral),
            Some(other) => Err(self.error(format!(
                "architecture `{other}` is unknown; the reference computes Qwen3ForCausalLM, Qwen2ForCausalLM, LlamaForCausalLM and \
                 MistralForCausalLM"
            ))),
            None => Err(self.error("neither `architectures` nor `model_type` is given".to_owned())),
        }
    }

    /// Who slides: the layers that `layer_types` names; without it every layer of Mistral, and of Qwen, where
    /// `use_sliding_window` is set, those behind the first `max_window_layers`.
    fn windows(
        &mut self,
        config: &ModelConfig,
        architecture: Architecture,
        layers: usize,
    ) -> Result<Vec<Option<usize>>, ReferenceError> {
        let slides: Vec<bool> = match (&config.layer_types, architecture) {
            (Some(types), _) if types.len() == layers => {
                types.iter().map(|kind| kind == "sliding_attention").collect()
            }
            (Some(types), _) => {
                let what = format!("layer_types names {} of {layers} layers", types.len());
                return Err(self.error(what));
            }
            (None, Architecture::Llama) => vec![false; layers],
            (None, Architecture::Mistral) => vec![true; layers],
            (None, Architecture::Qwen2 | Architecture::Qwen3) => {
                let on = config.use_sliding_window == Some(true);
                let front = config.max_window_layers.unwrap_or(28);
                (0..layers).map(|layer| on && layer >= front).collect()
            }
        };
        if !slides.iter().any(|slides| *slides) {
            return Ok(vec![None; layers]);
        }
        // An explicit null means that nothing slides after all.
        let window = self.or_default("sliding_window", config.sliding_window, Some(4096));
        if window == Some(0) || (window.is_none() && config.layer_types.is_some()) {
            return Err(self.error("sliding_window gives no rows to see".to_owned()));
        }
        Ok(slides.iter().map(|slides| window.filter(|_| *slides)).collect())
    }

    fn refuse_unsupported(
        &self,
        config: &ModelConfig,
        architecture: Architecture,
    ) -> Result<(), ReferenceError> {
        if let Some(act) = config.hidden_act.as_deref()
            && act != "silu"
        {
            return Err(self.error(format!("hidden_act `{act}` is not computed; only silu is")));
        }
        let known = |kind: &String| kind == "full_attention" || kind == "sliding_attention";
        if let Some(kind) = config.layer_types.iter().flatten().find(|kind| !known(kind)) {
            return Err(self.error(format!(
                "`{kind}` is not computed; full_attention and sliding_attention are"
            )));
        }
        let blocks = [&config.rope_parameters, &config.rope_scaling];
        let share = blocks.iter().find_map(|block| block.as_ref()?.partial_rotary_factor);
        let share = share.or(config.partial_rotary_factor);
        if let Some(share) = share.filter(|share| share.total_cmp(&1.0).is_ne()) {
            return Err(self.error(format!(
                "partial_rotary_factor {share}: heads are rotated whole or not at all"
            )));
        }
        if architecture == Architecture::Llama && config.use_sliding_window == Some(true) {
            return Err(self.error("sliding-window attention is no part of this family".to_owned()));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
