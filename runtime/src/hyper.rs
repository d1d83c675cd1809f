//! `config.json`, or the metadata of a GGUF file, resolved into the numbers that the forward pass uses, each with its source.

mod gguf;
mod rotary;
mod window;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use lockstep_traces::config::OneOrMany;
use lockstep_traces::{DType, ModelConfig, Setting};
use serde_json::Value;

use crate::RuntimeError;
use crate::rope::{RopeScaling, RotaryTable};

/// Model families that the runtime knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Architecture {
    /// Query and key pass an RMSNorm per head before RoPE.
    Qwen3,
    /// No QK norm; optional bias in attention and MLP.
    Llama,
    /// No QK norm; q, k and v have a bias, o has none.
    Qwen2,
    /// As Llama without biases; attention may be over the last rows only.
    Mistral,
}

impl Architecture {
    /// Name as in `architectures`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Qwen3 => "Qwen3ForCausalLM",
            Self::Llama => "LlamaForCausalLM",
            Self::Qwen2 => "Qwen2ForCausalLM",
            Self::Mistral => "MistralForCausalLM",
        }
    }

    fn from_name(name: &str) -> Option<Self> {
        match name {
            "Qwen3ForCausalLM" | "qwen3" => Some(Self::Qwen3),
            "LlamaForCausalLM" | "llama" => Some(Self::Llama),
            "Qwen2ForCausalLM" | "qwen2" => Some(Self::Qwen2),
            "MistralForCausalLM" | "mistral" => Some(Self::Mistral),
            _ => None,
        }
    }
}

/// Resolved model values.
#[derive(Debug, Clone, PartialEq)]
pub struct Hyper {
    /// Family.
    pub architecture: Architecture,
    /// Vocabulary size.
    pub vocab_size: usize,
    /// Hidden width.
    pub hidden_size: usize,
    /// MLP width.
    pub intermediate_size: usize,
    /// Layers.
    pub layers: usize,
    /// Query heads.
    pub heads: usize,
    /// KV heads; divides `heads`.
    pub kv_heads: usize,
    /// Head width, even.
    pub head_dim: usize,
    /// RMSNorm epsilon.
    pub norm_eps: f64,
    /// RoPE base.
    pub rope_theta: f64,
    /// RoPE variant.
    pub rope: RopeScaling,
    /// RMSNorm on query and key heads before RoPE.
    pub qk_norm: bool,
    /// Rows that each layer's attention sees, the row itself included: `None` all of them, `Some(w)` the last `w`.
    pub windows: Vec<Option<usize>>,
    /// Bias in the q, k and v projections.
    pub attention_bias: bool,
    /// Bias in the o projection.
    pub output_bias: bool,
    /// Bias in the MLP.
    pub mlp_bias: bool,
    /// The output head is the embedding.
    pub tie_word_embeddings: bool,
    /// End-of-sequence ids of `generation_config.json`, else of `config.json`; may be empty.
    pub eos_ids: Vec<u32>,
    /// Element type named by `config.json`.
    pub checkpoint_dtype: Option<DType>,
    /// Values in force by dotted key (`model.rope_theta`, ...), with the source of each.
    pub settings: BTreeMap<String, Setting>,
}

/// Layers at most: lists by layer are made before any weight is seen, and the deepest models have some hundred.
const MOST_LAYERS: usize = 1 << 14;

impl Hyper {
    /// Query heads per KV head.
    #[must_use]
    pub fn group(&self) -> usize {
        self.heads / self.kv_heads
    }

    /// The model's rotary table.
    #[must_use]
    pub fn rotary(&self) -> RotaryTable {
        RotaryTable::new(self.head_dim, self.rope_theta, &self.rope)
    }

    /// The first layer whose attention is over a window, and the window.
    #[must_use]
    pub fn window(&self) -> Option<(usize, usize)> {
        let mut windows = self.windows.iter().enumerate();
        windows.find_map(|(layer, window)| window.map(|window| (layer, window)))
    }

    /// Reads and resolves `config.json` (and the end-of-sequence ids of `generation_config.json`) of `dir`; where `dir` is a file, the
    /// metadata of that GGUF file.
    ///
    /// # Errors
    /// A file that cannot be read, or a field that is missing, contradictory or not supported, by name.
    pub fn read(dir: &Path) -> Result<Self, RuntimeError> {
        if dir.is_file() {
            return gguf::read(dir);
        }
        let config = ModelConfig::read(dir)?;
        let mut hyper = Self::resolve(&config, &dir.join("config.json"))?;
        let generation = dir.join("generation_config.json");
        if generation.is_file() {
            #[derive(serde::Deserialize)]
            struct Generation {
                eos_token_id: Option<OneOrMany>,
            }
            let bytes = std::fs::read(&generation).map_err(RuntimeError::io(&generation))?;
            let parsed: Generation = serde_json::from_slice(&bytes).map_err(|source| {
                lockstep_traces::TraceError::Json { path: generation, line: source.line(), source }
            })?;
            if let Some(ids) = parsed.eos_token_id {
                hyper.eos_ids = ids.to_vec();
                hyper.note("eos_token_id", hyper.eos_ids.clone(), "generation_config.json");
            }
        }
        Ok(hyper)
    }

    /// Resolves a config; `path` is named in errors.
    ///
    /// # Errors
    /// [`RuntimeError::Config`] with the field.
    pub fn resolve(config: &ModelConfig, path: &Path) -> Result<Self, RuntimeError> {
        Self::resolve_from(config, path, Origin::Config)
    }

    fn resolve_from(
        config: &ModelConfig,
        path: &Path,
        origin: Origin,
    ) -> Result<Self, RuntimeError> {
        let mut fields = Fields { path, settings: BTreeMap::new(), origin };
        let architecture = fields.architecture(config)?;
        refuse_unsupported(config, architecture, &fields)?;
        let hidden_size = fields.required("hidden_size", config.hidden_size)?;
        let heads = fields.required("num_attention_heads", config.num_attention_heads)?;
        let kv_heads = match architecture {
            // The one family whose configuration class has a number of its own.
            Architecture::Mistral => 8,
            _ => heads,
        };
        let kv_heads = fields.size("num_key_value_heads", config.num_key_value_heads, kv_heads)?;
        let head_dim = fields.size("head_dim", config.head_dim, hidden_size / heads)?;
        if !heads.is_multiple_of(kv_heads) {
            let what = format!("{kv_heads} does not divide num_attention_heads = {heads}");
            return Err(fields.error("num_key_value_heads", what));
        }
        if !head_dim.is_multiple_of(2) {
            return Err(fields.error("head_dim", format!("{head_dim} is odd; RoPE needs pairs")));
        }
        let norm_eps = fields.take("rms_norm_eps", config.rms_norm_eps, 1e-6);
        if !(norm_eps.is_finite() && norm_eps >= 0.0) {
            return Err(fields.error("rms_norm_eps", format!("{norm_eps} is no epsilon")));
        }
        let (rope_theta, rope) = rotary::resolve(config, &mut fields)?;
        let eos_ids = config.eos_token_id.as_ref().map(OneOrMany::to_vec);
        let llama = architecture == Architecture::Llama;
        let checkpoint_dtype = fields.dtype(config)?;
        let layers = fields.required("num_hidden_layers", config.num_hidden_layers)?;
        if layers > MOST_LAYERS {
            let what = format!("{layers} is no number of layers; at most {MOST_LAYERS} are read");
            return Err(fields.error("num_hidden_layers", what));
        }
        let (attention_bias, output_bias) = match architecture {
            Architecture::Qwen2 => {
                fields.note("attention_bias", true, "architecture");
                (true, false)
            }
            Architecture::Mistral => {
                fields.note("attention_bias", false, "architecture");
                (false, false)
            }
            Architecture::Qwen3 | Architecture::Llama => {
                let bias = fields.take("attention_bias", config.attention_bias, false);
                (bias, bias)
            }
        };
        Ok(Self {
            architecture,
            vocab_size: fields.required("vocab_size", config.vocab_size)?,
            hidden_size,
            intermediate_size: fields.required("intermediate_size", config.intermediate_size)?,
            layers,
            heads,
            kv_heads,
            head_dim,
            norm_eps,
            rope_theta,
            rope,
            qk_norm: architecture == Architecture::Qwen3,
            windows: window::resolve(config, architecture, layers, &mut fields)?,
            attention_bias,
            output_bias,
            mlp_bias: llama && fields.take("mlp_bias", config.mlp_bias, false),
            tie_word_embeddings: fields.take(
                "tie_word_embeddings",
                config.tie_word_embeddings,
                false,
            ),
            eos_ids: fields.take("eos_token_id", eos_ids, Vec::new()),
            checkpoint_dtype,
            settings: fields.settings,
        })
    }

    fn note(&mut self, name: &str, value: impl Into<Value>, source: &str) {
        let setting = Setting { value: value.into(), source: source.to_owned() };
        self.settings.insert(format!("model.{name}"), setting);
    }
}

/// Takes fields one by one and writes down where each value came from.
struct Fields<'a> {
    path: &'a Path,
    settings: BTreeMap<String, Setting>,
    origin: Origin,
}

/// Where the values that were given stand.
enum Origin {
    /// Under their own names in `config.json`.
    Config,
    /// In a GGUF file: field, and the key or tensor that tells it.
    Gguf(BTreeMap<&'static str, String>),
}

impl Fields<'_> {
    /// An error about a field, by the name that the file has for it.
    fn error(&self, field: &str, what: impl Into<String>) -> RuntimeError {
        let field = match &self.origin {
            Origin::Config => field,
            Origin::Gguf(keys) => keys.get(field).map_or(field, String::as_str),
        };
        RuntimeError::Config {
            path: PathBuf::from(self.path),
            field: field.to_owned(),
            what: what.into(),
        }
    }

    fn note(&mut self, field: &str, value: impl Into<Value>, source: &str) {
        let setting = Setting { value: value.into(), source: source.to_owned() };
        self.settings.insert(format!("model.{field}"), setting);
    }

    /// The source of a given field.
    fn source(&self, field: &str) -> String {
        match &self.origin {
            Origin::Config => "config.json".to_owned(),
            Origin::Gguf(keys) => {
                let key = keys.get(field).map_or("metadata", String::as_str);
                format!("gguf: {key}")
            }
        }
    }

    fn take<T: Clone + Into<Value>>(&mut self, field: &str, value: Option<T>, default: T) -> T {
        let source = if value.is_some() { self.source(field) } else { "default".to_owned() };
        let value = value.unwrap_or(default);
        self.note(field, value.clone(), &source);
        value
    }

    fn required(&mut self, field: &str, value: Option<usize>) -> Result<usize, RuntimeError> {
        let value = value.ok_or_else(|| self.error(field, "is missing; add it"))?;
        self.size(field, Some(value), value)
    }

    /// A size between 1 and 2^31.
    fn size(
        &mut self,
        field: &str,
        value: Option<usize>,
        default: usize,
    ) -> Result<usize, RuntimeError> {
        let value = self.take(field, value, default);
        if value == 0 || value > 1 << 31 {
            return Err(self.error(field, format!("{value} is no size")));
        }
        Ok(value)
    }

    fn positive(&mut self, field: &str, value: Option<f64>) -> Result<f64, RuntimeError> {
        let value =
            value.ok_or_else(|| self.error(field, "is missing; this rope_type needs it"))?;
        if !(value.is_finite() && value > 0.0) {
            return Err(self.error(field, format!("{value} is not a positive number")));
        }
        let source = self.source(field);
        self.note(field, value, &source);
        Ok(value)
    }

    fn architecture(&mut self, config: &ModelConfig) -> Result<Architecture, RuntimeError> {
        let listed = config.architectures.as_ref().and_then(|list| list.first());
        let (field, name) = match (listed, &config.model_type) {
            (Some(name), _) => ("architectures", name),
            (None, Some(name)) => ("model_type", name),
            (None, None) => return Err(self.error("architectures", "is missing; add it")),
        };
        let found = Architecture::from_name(name).ok_or_else(|| {
            let known =
                "Qwen3ForCausalLM, Qwen2ForCausalLM, LlamaForCausalLM and MistralForCausalLM are";
            self.error(field, format!("`{name}` is not supported; {known}"))
        })?;
        if let Some(model_type) = &config.model_type
            && Architecture::from_name(model_type) != Some(found)
        {
            let what = format!("`{model_type}` contradicts architectures = `{name}`");
            return Err(self.error("model_type", what));
        }
        let source = self.source("architecture");
        self.note("architecture", found.name(), &source);
        Ok(found)
    }

    fn dtype(&self, config: &ModelConfig) -> Result<Option<DType>, RuntimeError> {
        let (field, name) = match (&config.dtype, &config.torch_dtype) {
            (Some(name), _) => ("dtype", name),
            (None, Some(name)) => ("torch_dtype", name),
            (None, None) => return Ok(None),
        };
        let parsed: DType = name.parse().map_err(|what: String| self.error(field, what))?;
        match parsed {
            DType::F32 | DType::F16 | DType::Bf16 => Ok(Some(parsed)),
            _ => Err(self.error(field, format!("`{name}` is not supported; f32, f16, bf16 are"))),
        }
    }
}

fn refuse_unsupported(
    config: &ModelConfig,
    architecture: Architecture,
    fields: &Fields<'_>,
) -> Result<(), RuntimeError> {
    if let Some(act) = &config.hidden_act
        && act != "silu"
        && act != "swish"
    {
        let what = format!("`{act}` is not supported; silu is");
        return Err(fields.error("hidden_act", what));
    }
    if architecture == Architecture::Llama && config.use_sliding_window == Some(true) {
        let what = "a sliding window is in use, and this architecture has none";
        return Err(fields.error("use_sliding_window", what));
    }
    let block = config.rope_parameters.as_ref().or(config.rope_scaling.as_ref());
    if let Some(part) =
        block.and_then(|block| block.partial_rotary_factor).or(config.partial_rotary_factor)
        && (part - 1.0).abs() > f64::EPSILON
    {
        let what = format!("{part} is not supported; only a whole rotation (1.0) is");
        return Err(fields.error("partial_rotary_factor", what));
    }
    Ok(())
}

#[cfg(test)]
mod tests;
