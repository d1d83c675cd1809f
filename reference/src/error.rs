//! Errors of the reference: what, where, and what to do.

use std::path::PathBuf;

use lockstep_traces::TraceError;

/// The reference could not load a model or could not compute.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReferenceError {
    /// A file of the shared formats could not be read.
    #[error(transparent)]
    Trace(#[from] TraceError),
    /// `config.json` asks for something that the reference does not compute, or contradicts itself.
    #[error("{path}: {what}", path = path.display())]
    Config {
        /// File.
        path: PathBuf,
        /// Field, value and remedy.
        what: String,
    },
    /// Operating system error on a weight file.
    #[error("{path}: {source}", path = path.display())]
    Io {
        /// File.
        path: PathBuf,
        /// Cause.
        source: std::io::Error,
    },
    /// A weight file is damaged, or a tensor in it is missing, surplus or of another shape.
    #[error("{path}: tensor `{tensor}`: {what}", path = path.display())]
    Weights {
        /// File (the model directory where no file holds the tensor).
        path: PathBuf,
        /// Tensor name.
        tensor: String,
        /// What is wrong.
        what: String,
    },
    /// What was fed does not fit the model or the cache.
    #[error("cannot feed the reference: {what}")]
    Input {
        /// Value, limit and where it comes from.
        what: String,
    },
    /// candle refused an operation.
    #[error("candle: {0}")]
    Candle(#[from] candle_core::Error),
}

impl ReferenceError {
    pub(crate) fn input(what: impl Into<String>) -> Self {
        Self::Input { what: what.into() }
    }
}
