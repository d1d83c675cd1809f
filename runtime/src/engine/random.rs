//! Models of known shapes with random weights, so that figures can be repeated without a checkpoint.

use std::path::{Path, PathBuf};

use lockstep_traces::{DType, ModelConfig, Setting};
use serde_json::{Value, json};

use super::backend::{CudaModel, Loaded};
use super::staging::Shelf;
use super::{DeviceChoice, Engine, LoadOptions};
use crate::cuda::gpu::Gpu;
use crate::cuda::model::AnyModel;
use crate::{Hyper, RuntimeError};

/// Names of the shapes.
pub const SHAPES: [&str; 2] = ["qwen3-8b", "qwen3-tiny"];

/// Stream of the weights.
const SEED: u64 = 0x5EED;

/// `config.json` of a shape, as its publisher gives it (`qwen3-8b`), or small enough for an emulator (`qwen3-tiny`).
fn config(name: &str) -> Option<Value> {
    let [hidden, intermediate, layers, heads, kv_heads, dim, vocab] = match name {
        "qwen3-8b" => [4096, 12_288, 36, 32, 8, 128, 151_936],
        "qwen3-tiny" => [64, 96, 2, 4, 2, 32, 512],
        _ => return None,
    };
    Some(json!({
        "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_size": hidden,
        "intermediate_size": intermediate, "num_hidden_layers": layers, "num_attention_heads": heads,
        "num_key_value_heads": kv_heads, "head_dim": dim, "vocab_size": vocab, "rms_norm_eps": 1e-6, "hidden_act": "silu",
        "max_position_embeddings": 40_960, "tie_word_embeddings": false, "attention_bias": false, "dtype": "bfloat16",
        "rope_theta": 1_000_000.0,
    }))
}

impl Engine {
    /// A model of a named shape with random weights, made on the device.
    ///
    /// # Errors
    /// An unknown shape, the CPU backend, device errors.
    pub fn random(name: &str, options: &LoadOptions) -> Result<Self, RuntimeError> {
        let unknown = |what: String| RuntimeError::Option { name: "random", what };
        let config = config(name).ok_or_else(|| {
            unknown(format!("`{name}` is no known shape; there are {}", SHAPES.join(", ")))
        })?;
        let path = Path::new("random").join(name);
        let config: ModelConfig = serde_json::from_value(config)
            .map_err(|error| unknown(format!("the shape `{name}` is no configuration: {error}")))?;
        let mut hyper = Hyper::resolve(&config, &path)?;
        for setting in hyper.settings.values_mut().filter(|s| s.source == "config.json") {
            "shape".clone_into(&mut setting.source);
        }
        let value = format!("{name}, splitmix64 stream {SEED:#x}").into();
        let setting = Setting { value, source: "flag".to_owned() };
        hyper.settings.insert("model.random".to_owned(), setting);
        let dtype = options.dtype.or(hyper.checkpoint_dtype).unwrap_or(DType::Bf16);
        let cache_dtype = options.cache_dtype.unwrap_or(dtype);
        let gpu = match options.device {
            DeviceChoice::Cuda(ordinal) => Gpu::open(ordinal)?,
            DeviceChoice::Emulated => Gpu::emulated()?,
            DeviceChoice::Cpu => {
                return Err(unknown(
                    "random weights are made on a CUDA device; add --device cuda".to_owned(),
                ));
            }
        };
        let source = |given: bool, otherwise| if given { "flag" } else { otherwise };
        let model = AnyModel::random(&gpu, &hyper, dtype, SEED)?;
        Ok(Self {
            dir: PathBuf::new(),
            weight_files: Vec::new(),
            model: Loaded::Cuda(Box::new(CudaModel {
                gpu,
                hyper,
                remarks: Vec::new(),
                model,
                shelf: Shelf::default(),
            })),
            tokenizer: None,
            dtype,
            dtype_source: source(options.dtype.is_some(), "shape"),
            cache_dtype,
            cache_dtype_source: source(options.cache_dtype.is_some(), "default"),
        })
    }
}
