//! What can go wrong while a report is made.

use std::path::PathBuf;

use lockstep_traces::TraceError;

/// A report could not be made or written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReportError {
    /// A run could not be read.
    #[error(transparent)]
    Trace(#[from] TraceError),
    /// The report could not be turned into JSON.
    #[error("report.json: {0}")]
    Json(#[from] serde_json::Error),
    /// The page asked for a figure that the report does not hold.
    #[error("report.html: no value at `{pointer}` of report.json")]
    NoSuchFigure {
        /// JSON pointer.
        pointer: String,
    },
    /// The embedded font was refused.
    #[error(
        "the embedded font DejaVuSans-subset.ttf cannot be read; rebuild from an intact checkout"
    )]
    Font,
    /// A figure could not be drawn.
    #[error("figure `{name}`: {what}")]
    Draw {
        /// Figure.
        name: String,
        /// What the drawing library said.
        what: String,
    },
    /// Operating system error.
    #[error("{path}: {source}", path = path.display())]
    Io {
        /// File.
        path: PathBuf,
        /// Cause.
        source: std::io::Error,
    },
    /// Recorded data contradict themselves.
    #[error("{what}")]
    Inconsistent {
        /// What, where and the remedy.
        what: String,
    },
}
