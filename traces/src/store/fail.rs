//! Short ways to the crate's error type.

use std::path::Path;

use crate::TraceError;

/// Operating system error at `path`.
pub(crate) fn io(path: &Path) -> impl Fn(std::io::Error) -> TraceError + '_ {
    move |source| TraceError::Io { path: path.to_path_buf(), source }
}

/// Content of `path` contradicts the format.
pub(crate) fn malformed(path: &Path, what: impl Into<String>) -> TraceError {
    TraceError::Malformed { path: path.to_path_buf(), what: what.into() }
}

/// Arrow or Parquet refused `path`.
pub(crate) fn arrow<E>(path: &Path) -> impl Fn(E) -> TraceError + '_
where
    E: std::error::Error + Send + Sync + 'static,
{
    move |source| TraceError::Arrow { path: path.to_path_buf(), source: Box::new(source) }
}
