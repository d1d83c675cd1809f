//! Runs made of an artifact that holds no rows of a trace: benchmark rows, summaries, configurations, bundles, statistics.
//!
//! Such a run has samples where the artifact has, no steps, and a manifest that carries what the artifact says; `limits` says what
//! it does not. Columns that the tables lack are not lost: files of rows and small documents are kept in the run as they were
//! (`source.jsonl.gz`, `source.json`), and the manifest has the sha256 of the original and of the kept copy.

mod kept;

use std::path::Path;

pub use kept::kept;
pub(crate) use kept::{Keep, keep};

use crate::limits::{TokenIds, Values};
use crate::manifest::Producer;
use crate::store::RunWriter;
use crate::{Manifest, RecordPlan, SampleRow, SourceLimits, TraceError, TraceSink as _};

/// Key of the layout that a run was made of: `lm-eval`, `trtmc-rows`, ...
const KIND: &str = "trace.import_kind";
/// Source of every value that an artifact gave.
pub(crate) const IMPORTED: &str = "imported";

/// The layout that a run was made of; `None` for runs that were recorded and for imported traces.
#[must_use]
pub fn kind(manifest: &Manifest) -> Option<&str> {
    manifest.get(KIND)?.as_str()
}

/// A manifest for an artifact of `kind`: no values, no rows; `token_ids` is the caller's to raise.
pub(crate) fn manifest(kind: &str, producer: &str) -> Manifest {
    let producer = Producer { name: producer.to_owned(), ..Producer::default() };
    let mut manifest = Manifest::new(producer, "unknown");
    manifest.rows_exact = false;
    manifest.includes_prompt = false;
    manifest.limits = SourceLimits {
        values: Values::Nothing,
        token_ids: TokenIds::Nothing,
        rows: false,
        ..SourceLimits::default()
    };
    manifest.set(KIND, kind, IMPORTED);
    manifest
}

/// A line about what the source cannot say.
pub(crate) fn cannot(manifest: &mut Manifest, line: impl Into<String>) {
    manifest.limits.cannot.push(line.into());
}

/// Writes the run `out`; where the artifact is `cut`, an incomplete one. Returns the manifest's remarks.
///
/// # Errors
/// As [`RunWriter::create`]; [`TraceError::Io`].
pub(crate) fn write(
    source: &Path,
    out: &Path,
    mut manifest: Manifest,
    samples: Vec<SampleRow>,
    how: Keep,
    cut: bool,
) -> Result<Vec<String>, TraceError> {
    let remarks = manifest.remarks.clone();
    kept::name(source, &mut manifest)?;
    let mut writer = RunWriter::create(out, manifest, RecordPlan::default())?;
    keep(source, out, how, writer.manifest_mut())?;
    for sample in samples {
        writer.sample(sample)?;
    }
    if cut {
        writer.flush()?;
    } else {
        writer.finish()?;
    }
    Ok(remarks)
}
