//! Errors of an identification. What the sampler did wrong is a finding, not an error.

use std::path::PathBuf;

use lockstep_traces::TraceError;

/// The identification cannot be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SamplerError {
    /// A file cannot be read.
    #[error(transparent)]
    Trace(#[from] TraceError),
    /// The manifest holds a setting of another kind.
    #[error("manifest.json: {what}")]
    Manifest {
        /// What is wrong.
        what: String,
    },
    /// A file of evidence contradicts itself.
    #[error("{path}: {what}", path = path.display())]
    File {
        /// File.
        path: PathBuf,
        /// What is wrong, where, and the remedy.
        what: String,
    },
    /// An option cannot be honoured.
    #[error("{what}")]
    Options {
        /// What, and the remedy.
        what: String,
    },
}

impl SamplerError {
    pub(crate) fn file(path: &std::path::Path, what: impl Into<String>) -> Self {
        Self::File { path: path.to_owned(), what: what.into() }
    }
}
