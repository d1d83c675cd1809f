//! Errors of the runtime: what, where, and what to do.

use std::path::{Path, PathBuf};

use lockstep_traces::TraceError;

/// A model could not be loaded or a run could not go on.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RuntimeError {
    /// Operating system error.
    #[error("{path}: {source}", path = path.display())]
    Io {
        /// File.
        path: PathBuf,
        /// Cause.
        source: std::io::Error,
    },
    /// A format of ours could not be read or written.
    #[error(transparent)]
    Trace(#[from] TraceError),
    /// A field of `config.json` is missing, contradictory or not supported.
    #[error("{path}: field `{field}`: {what}", path = path.display())]
    Config {
        /// File.
        path: PathBuf,
        /// Field name as written there.
        field: String,
        /// What is wrong and the remedy.
        what: String,
    },
    /// A weight file is not what it claims to be.
    #[error("{path}: {source}", path = path.display())]
    Safetensors {
        /// File.
        path: PathBuf,
        /// Cause.
        source: crate::weights::HeaderError,
    },
    /// A weight index or the set of weight files is wrong.
    #[error("{path}: {what}", path = path.display())]
    Weights {
        /// File or directory.
        path: PathBuf,
        /// What is wrong.
        what: String,
    },
    /// A tensor is missing, surplus, or has another shape or dtype.
    #[error("{path}: tensor `{tensor}`: {what}", path = path.display())]
    Tensor {
        /// File (a directory where a tensor is in none of its files).
        path: PathBuf,
        /// Tensor name.
        tensor: String,
        /// What is wrong.
        what: String,
    },
    /// `tokenizer.json`, or the tokenizer of a GGUF file, could not be used.
    #[error("{path}: {what}", path = path.display())]
    Tokenizer {
        /// File.
        path: PathBuf,
        /// What is wrong.
        what: String,
    },
    /// A chat template could not be rendered.
    #[error("chat template {source_name}: {what}")]
    Template {
        /// File of the template.
        source_name: String,
        /// What is wrong, with the line in the template.
        what: String,
    },
    /// An option of the run cannot be honoured.
    #[error("option `{name}`: {what}")]
    Option {
        /// Option name.
        name: &'static str,
        /// What is wrong and the remedy.
        what: String,
    },
    /// A request cannot be run.
    #[error("sample `{sample_id}`: {what}")]
    Request {
        /// Sample.
        sample_id: String,
        /// What is wrong.
        what: String,
    },
    /// The policy's settings cannot be honoured.
    #[error(transparent)]
    Policy(#[from] crate::select::SelectError),
    /// The sampling settings cannot be honoured.
    #[error(transparent)]
    Sampling(#[from] crate::sample::SampleError),
    /// A compaction could not be decided.
    #[error("sample `{sample_id}`, compaction {ordinal} at position {position}: {source}")]
    Compaction {
        /// Sample.
        sample_id: String,
        /// 1-based ordinal.
        ordinal: u32,
        /// N, the position of the next token.
        position: u32,
        /// Cause.
        source: crate::select::SelectError,
    },
    /// No token could be drawn.
    #[error("sample `{sample_id}`, position {position}: {source}")]
    Draw {
        /// Sample.
        sample_id: String,
        /// Position of the row whose logits were to be drawn from.
        position: u32,
        /// Cause.
        source: crate::sample::SampleError,
    },
    /// The device failed.
    #[error("cuda: {0}")]
    Device(#[from] crate::cuda::gpu::GpuError),
    /// The policy gave a keep-set that the cache cannot follow.
    #[error("keep-set of layer {layer}, KV head {head}: {what}")]
    KeepSet {
        /// Layer.
        layer: usize,
        /// KV head.
        head: usize,
        /// What is wrong.
        what: String,
    },
}

impl RuntimeError {
    pub(crate) fn io(path: &Path) -> impl FnOnce(std::io::Error) -> Self + '_ {
        move |source| Self::Io { path: path.to_owned(), source }
    }

    pub(crate) fn tensor(path: &Path, tensor: &str, what: impl Into<String>) -> Self {
        Self::Tensor { path: path.to_owned(), tensor: tensor.to_owned(), what: what.into() }
    }
}
