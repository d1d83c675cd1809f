//! Errors of a replay: what cannot be re-executed, and why.

use lockstep_reference::{ReferenceError, select::SelectError};
use lockstep_traces::TraceError;

/// A replay could not be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReplayError {
    /// A recording could not be read or the replay not be written.
    #[error(transparent)]
    Trace(#[from] TraceError),
    /// The reference refused.
    #[error(transparent)]
    Reference(#[from] ReferenceError),
    /// The reference's selector refused.
    #[error(transparent)]
    Select(#[from] SelectError),
    /// The recording lacks what this replay needs; going on would compare something else.
    #[error("sample `{sample}`: {what}")]
    Incomparable {
        /// Sample.
        sample: String,
        /// What is missing and how to get it.
        what: String,
    },
    /// The options contradict each other or the run.
    #[error("{what}")]
    Options {
        /// What, and the remedy.
        what: String,
    },
}

impl ReplayError {
    pub(crate) fn incomparable(sample: &str, what: impl Into<String>) -> Self {
        Self::Incomparable { sample: sample.to_owned(), what: what.into() }
    }
}
