//! Errors of a selector check. What the run did wrong is a finding, not an error.

use lockstep_reference::ReferenceError;
use lockstep_reference::select::SelectError;
use lockstep_traces::TraceError;

/// The check cannot be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SelectorError {
    /// A file cannot be read.
    #[error(transparent)]
    Trace(#[from] TraceError),
    /// The rules or the input contradict themselves.
    #[error(transparent)]
    Select(#[from] SelectError),
    /// The model's configuration cannot be resolved.
    #[error(transparent)]
    Model(#[from] ReferenceError),
    /// The manifest holds a setting of another kind.
    #[error("manifest.json: {what}")]
    Manifest {
        /// What is wrong.
        what: String,
    },
    /// A dump contradicts itself.
    #[error("{file}: {what}")]
    Dump {
        /// File.
        file: String,
        /// What is wrong.
        what: String,
    },
}
