//! What keeps a directory of cases from being run at all, and a single case from passing.

use std::path::PathBuf;

use lockstep_traces::TraceError;

use crate::select::SelectError;

/// The directory cannot be run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConformanceError {
    /// `cases.json` cannot be read.
    #[error(transparent)]
    Trace(#[from] TraceError),
    /// Nothing to run.
    #[error("{path}: no case of a selector rule set; give a folder whose cases.json lists some", path = .0.display())]
    Empty(PathBuf),
}

/// A case that does not pass.
#[derive(Debug, thiserror::Error)]
pub(super) enum CaseError {
    #[error(transparent)]
    Trace(#[from] TraceError),
    #[error(transparent)]
    Select(#[from] SelectError),
    #[error("{0}")]
    Differs(String),
}

pub(super) fn differs(what: impl Into<String>) -> CaseError {
    CaseError::Differs(what.into())
}
