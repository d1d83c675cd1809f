//! Errors of a conformance run as a whole. What is wrong with one case is a failure of that case.

use std::path::PathBuf;

use lockstep_traces::TraceError;

/// A golden directory cannot be run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConformanceError {
    /// No index.
    #[error("{dir}: neither cases.json nor index.json is here; give a directory of golden vectors", dir = dir.display())]
    NoIndex {
        /// Directory.
        dir: PathBuf,
    },
    /// The index lists nothing.
    #[error("{path}: the index lists no case, so that nothing would be compared", path = path.display())]
    Empty {
        /// Index.
        path: PathBuf,
    },
    /// The index is not of a kind that this build knows.
    #[error("{path}: {what}", path = path.display())]
    Index {
        /// Index.
        path: PathBuf,
        /// What is wrong.
        what: String,
    },
    /// A file of the directory cannot be read.
    #[error(transparent)]
    Trace(#[from] TraceError),
}
