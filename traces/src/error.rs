//! Errors of the formats: what, where, and what to do.

use std::path::PathBuf;

/// A file could not be read or written as what it claims to be.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TraceError {
    /// Operating system error.
    #[error("{path}: {source}", path = path.display())]
    Io {
        /// File.
        path: PathBuf,
        /// Cause.
        source: std::io::Error,
    },
    /// Not the JSON that was expected.
    #[error("{path}:{line}: not valid JSON here: {source}", path = path.display())]
    Json {
        /// File.
        path: PathBuf,
        /// 1-based line.
        line: usize,
        /// Cause.
        source: serde_json::Error,
    },
    /// Content contradicts itself or the format.
    #[error("{path}: {what}", path = path.display())]
    Malformed {
        /// File.
        path: PathBuf,
        /// What is wrong, where in the file, and the remedy.
        what: String,
    },
    /// A line or row of a trace is damaged.
    #[error("{path}:{line}: {what}", path = path.display())]
    Line {
        /// File.
        path: PathBuf,
        /// 1-based line.
        line: usize,
        /// What is wrong.
        what: String,
    },
    /// A tensor is missing or has another shape or dtype.
    #[error("{path}: tensor `{tensor}`: {what}", path = path.display())]
    Tensor {
        /// File.
        path: PathBuf,
        /// Tensor name.
        tensor: String,
        /// What is wrong.
        what: String,
    },
    /// A GGUF file that is not what it claims to be.
    #[error("{path}: {source}", path = path.display())]
    Gguf {
        /// File.
        path: PathBuf,
        /// Cause.
        source: crate::gguf::GgufError,
    },
    /// Written by another schema version.
    #[error("{path}: schema {found} cannot be read by this build, which reads {supported}; {remedy}", path = path.display())]
    Version {
        /// File.
        path: PathBuf,
        /// Version in the file.
        found: String,
        /// Version of this build.
        supported: String,
        /// What to do.
        remedy: String,
    },
    /// Parquet or Arrow refused.
    #[error("{path}: {source}", path = path.display())]
    Arrow {
        /// File.
        path: PathBuf,
        /// Cause.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}
