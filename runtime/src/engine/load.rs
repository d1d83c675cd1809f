//! A loaded model.

use std::path::{Path, PathBuf};

use lockstep_traces::DType;

use super::backend::{CudaModel, Loaded};
use super::staging::Shelf;
use super::{DeviceChoice, LoadOptions};
use crate::cpu::{CpuModel, Isa};
use crate::cuda::gpu::Gpu;
use crate::cuda::model::AnyModel;
use crate::select::Dims;
use crate::tokenize::{Found, Tokenizer};
use crate::weights::{ModelWeights, WeightFiles};
use crate::{Hyper, RuntimeError};

/// A model with its tokenizer, ready to run.
#[derive(Debug)]
pub struct Engine {
    pub(super) dir: PathBuf,
    pub(super) weight_files: Vec<PathBuf>,
    pub(super) model: Loaded,
    pub(super) tokenizer: Option<Tokenizer>,
    pub(super) dtype: DType,
    pub(super) dtype_source: &'static str,
    pub(super) cache_dtype: DType,
    pub(super) cache_dtype_source: &'static str,
}

impl Engine {
    /// Loads a Hugging Face directory: `config.json`, safetensors (one file or shards), and `tokenizer.json` and `generation_config.json`
    /// where they are there. Where `dir` is a file, everything comes from that GGUF file.
    ///
    /// # Errors
    /// A file, field or tensor that is missing, contradictory or not supported, by name.
    pub fn load(dir: &Path, options: &LoadOptions) -> Result<Self, RuntimeError> {
        let hyper = Hyper::read(dir)?;
        let files = WeightFiles::open(dir)?;
        let (dtype, dtype_source) = match (options.dtype, hyper.checkpoint_dtype) {
            (Some(dtype), _) => (dtype, "flag"),
            (None, Some(dtype)) => (dtype, "config.json"),
            (None, None) => (stored_dtype(&files)?, "weights"),
        };
        let (cache_dtype, cache_dtype_source) = match options.cache_dtype {
            Some(dtype) => (dtype, "flag"),
            None => (dtype, "default"),
        };
        for (name, dtype) in [("dtype", dtype), ("cache_dtype", cache_dtype)] {
            if !matches!(dtype, DType::F32 | DType::F16 | DType::Bf16) {
                let what = format!("{} is not supported; use f32, f16 or bf16", dtype.name());
                return Err(RuntimeError::Option { name, what });
            }
        }
        let mut weights = ModelWeights::take(&files, &hyper, dtype)?;
        let tokenizer = match Tokenizer::find(dir)? {
            Found::Tokenizer(tokenizer) => Some(*tokenizer),
            Found::Unsupported(why) => {
                weights.remarks.push(why);
                None
            }
            Found::Nothing => None,
        };
        let model = place(hyper, weights, dtype, options.device)?;
        Ok(Self {
            dir: dir.to_owned(),
            weight_files: files.paths().map(Path::to_owned).collect(),
            model,
            tokenizer,
            dtype,
            dtype_source,
            cache_dtype,
            cache_dtype_source,
        })
    }

    /// Resolved model values.
    #[must_use]
    pub const fn hyper(&self) -> &Hyper {
        self.model.hyper()
    }

    /// Tokenizer, where the directory has one.
    #[must_use]
    pub const fn tokenizer(&self) -> Option<&Tokenizer> {
        self.tokenizer.as_ref()
    }

    /// Dtype of the arithmetic.
    #[must_use]
    pub const fn dtype(&self) -> DType {
        self.dtype
    }

    /// Element type of the KV cache.
    #[must_use]
    pub const fn cache_dtype(&self) -> DType {
        self.cache_dtype
    }

    /// The model on the CPU backend, for measurements below the engine.
    #[must_use]
    pub const fn cpu(&self) -> Option<&CpuModel> {
        match &self.model {
            Loaded::Cpu(model) => Some(model),
            Loaded::Cuda(_) => None,
        }
    }

    /// The device of the CUDA backend.
    #[must_use]
    pub const fn gpu(&self) -> Option<&Gpu> {
        match &self.model {
            Loaded::Cpu(_) => None,
            Loaded::Cuda(model) => Some(&model.gpu),
        }
    }

    /// What was read around while loading, one line each.
    #[must_use]
    pub fn remarks(&self) -> &[String] {
        self.model.remarks()
    }

    /// Attention shape, as the selector wants it.
    #[must_use]
    pub const fn dims(&self) -> Dims {
        let hyper = self.model.hyper();
        Dims {
            layers: hyper.layers,
            kv_heads: hyper.kv_heads,
            q_heads: hyper.heads,
            head_dim: hyper.head_dim,
        }
    }
}

/// Puts the weights where they are wanted.
fn place(
    hyper: Hyper,
    weights: ModelWeights,
    dtype: DType,
    device: DeviceChoice,
) -> Result<Loaded, RuntimeError> {
    let gpu = match device {
        DeviceChoice::Cpu => {
            return Ok(Loaded::Cpu(Box::new(CpuModel::new(hyper, weights, Isa::detect()))));
        }
        DeviceChoice::Cuda(_) | DeviceChoice::Emulated if hyper.window().is_some() => {
            let (layer, window) = hyper.window().unwrap_or_default();
            let what = format!(
                "the CUDA backend has no sliding-window attention, and layer {layer} sees the last {window} rows; use cpu"
            );
            return Err(RuntimeError::Option { name: "device", what });
        }
        DeviceChoice::Cuda(ordinal) => Gpu::open(ordinal)?,
        DeviceChoice::Emulated => Gpu::emulated()?,
    };
    let model = AnyModel::upload(&gpu, &hyper, &weights, dtype)?;
    let remarks = weights.remarks;
    Ok(Loaded::Cuda(Box::new(CudaModel { gpu, hyper, remarks, model, shelf: Shelf::default() })))
}

/// Element type of the embedding.
fn stored_dtype(files: &WeightFiles) -> Result<DType, RuntimeError> {
    Ok(files.tensor("model.embed_tokens.weight")?.dtype())
}
