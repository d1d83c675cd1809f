//! Rows as self-contained Arrow IPC streams in memory, for files that keep a few samples each on their own.

use std::path::Path;

use arrow::array::RecordBatch;
use arrow::error::ArrowError;
use arrow::ipc::reader::StreamReader;
use arrow::ipc::writer::StreamWriter;

use super::fail::{arrow, guard, malformed};
use super::{StepColumn, StepColumns, events, steps};
use crate::{EventRow, StepRow, TraceError};

/// Step rows of one sample.
pub(crate) fn pack_steps(rows: &[StepRow], path: &Path) -> Result<Vec<u8>, TraceError> {
    steps::encode(rows).and_then(|batch| stream(&batch)).map_err(arrow(path))
}

/// Compactions of one sample.
pub(crate) fn pack_events(rows: &[EventRow], path: &Path) -> Result<Vec<u8>, TraceError> {
    events::encode(rows).and_then(|batch| stream(&batch)).map_err(arrow(path))
}

/// Step rows back, all of the sample `sample_id`. The caller has checked the bytes against their sum.
pub(crate) fn unpack_steps(
    bytes: &[u8],
    sample_id: &str,
    path: &Path,
) -> Result<Vec<StepRow>, TraceError> {
    let wanted = StepColumn::ALL.into_iter().collect();
    let mut decoder = steps::Decoder::new(&[sample_id.to_owned()], wanted);
    each_batch(bytes, path, |batch| {
        same_columns(batch, &steps::schema(), path)?;
        decoder.append(batch, path)
    })?;
    let columns: StepColumns = decoder.finish();
    let rows: Option<Vec<StepRow>> = (0..columns.len).map(|row| columns.row(row)).collect();
    rows.ok_or_else(|| {
        malformed(path, format!("sample `{sample_id}`: its step rows are not whole"))
    })
}

/// Compactions back.
pub(crate) fn unpack_events(bytes: &[u8], path: &Path) -> Result<Vec<EventRow>, TraceError> {
    let mut rows = Vec::new();
    each_batch(bytes, path, |batch| {
        same_columns(batch, &events::schema(), path)?;
        events::decode(batch, path, &mut rows)
    })?;
    Ok(rows)
}

fn stream(batch: &RecordBatch) -> Result<Vec<u8>, ArrowError> {
    let mut writer = StreamWriter::try_new(Vec::new(), &batch.schema())?;
    writer.write(batch)?;
    writer.into_inner()
}

fn each_batch(
    bytes: &[u8],
    path: &Path,
    mut visit: impl FnMut(&RecordBatch) -> Result<(), TraceError>,
) -> Result<(), TraceError> {
    guard(path, || {
        for batch in StreamReader::try_new(bytes, None).map_err(arrow(path))? {
            visit(&batch.map_err(arrow(path))?)?;
        }
        Ok(())
    })
}

fn same_columns(
    batch: &RecordBatch,
    expected: &arrow::datatypes::SchemaRef,
    path: &Path,
) -> Result<(), TraceError> {
    if batch.schema().fields() == expected.fields() {
        return Ok(());
    }
    Err(malformed(path, "rows with other columns than this build's; compute them again"))
}
