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

/// Runs a decoder of Arrow or Parquet over bytes from outside. Both panic on some damaged bytes where they should
/// report them; a damaged file is an error here, whatever they do.
pub(crate) fn guard<T>(
    path: &Path,
    decode: impl FnOnce() -> Result<T, TraceError>,
) -> Result<T, TraceError> {
    // Nothing that `decode` may have left half-done is used after a panic: the reading as a whole fails.
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(decode)).unwrap_or_else(|_| {
        Err(malformed(path, "damaged: its decoder gave up; record or copy it again"))
    })
}
