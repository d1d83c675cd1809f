//! `events`: columns, rows into batches and back.

use std::path::Path;
use std::sync::Arc;

use arrow::array::{Array as _, Float64Array, RecordBatch, StringArray, UInt32Array};
use arrow::datatypes::{DataType, Field, Float64Type, Schema, SchemaRef, UInt32Type};
use arrow::error::ArrowError;

use super::access::Table;
use crate::{EventRow, TraceError};

/// Columns of `events`, in file order.
pub(crate) fn schema() -> SchemaRef {
    let field = |name: &str, kind: DataType, empty: bool| Field::new(name, kind, empty);
    Arc::new(Schema::new(vec![
        field("sample_id", DataType::Utf8, false),
        field("ordinal", DataType::UInt32, false),
        field("absolute_position", DataType::UInt32, false),
        field("round_start", DataType::UInt32, true),
        field("rows_before", DataType::UInt32, false),
        field("rows_after", DataType::UInt32, false),
        field("protected", DataType::UInt32, false),
        field("candidates", DataType::UInt32, false),
        field("score_seconds", DataType::Float64, false),
        field("reduce_seconds", DataType::Float64, false),
        field("select_seconds", DataType::Float64, false),
        field("gather_seconds", DataType::Float64, false),
        field("dump", DataType::Utf8, true),
    ]))
}

/// Rows as one batch.
pub(crate) fn encode(rows: &[EventRow]) -> Result<RecordBatch, ArrowError> {
    let count = |get: fn(&EventRow) -> u32| {
        Arc::new(UInt32Array::from_iter_values(rows.iter().map(get))) as _
    };
    let seconds = |get: fn(&EventRow) -> f64| {
        Arc::new(Float64Array::from_iter_values(rows.iter().map(get))) as _
    };
    RecordBatch::try_new(
        schema(),
        vec![
            Arc::new(StringArray::from_iter_values(rows.iter().map(|row| &row.sample_id))),
            count(|row| row.ordinal),
            count(|row| row.absolute_position),
            Arc::new(rows.iter().map(|row| row.round_start).collect::<UInt32Array>()),
            count(|row| row.rows_before),
            count(|row| row.rows_after),
            count(|row| row.protected),
            count(|row| row.candidates),
            seconds(|row| row.score_seconds),
            seconds(|row| row.reduce_seconds),
            seconds(|row| row.select_seconds),
            seconds(|row| row.gather_seconds),
            Arc::new(rows.iter().map(|row| row.dump.as_deref()).collect::<StringArray>()),
        ],
    )
}

/// Appends every row of `batch`.
pub(crate) fn decode(
    batch: &RecordBatch,
    path: &Path,
    out: &mut Vec<EventRow>,
) -> Result<(), TraceError> {
    let table = Table { batch, path };
    let sample_id = table.texts("sample_id")?;
    let dump = table.text_options("dump")?;
    let mut round_start = table.options::<UInt32Type>("round_start")?;
    let count = |name| table.values::<UInt32Type>(name);
    let counts = [
        count("ordinal")?,
        count("absolute_position")?,
        count("rows_before")?,
        count("rows_after")?,
        count("protected")?,
        count("candidates")?,
    ];
    let second = |name| table.values::<Float64Type>(name);
    let seconds = [
        second("score_seconds")?,
        second("reduce_seconds")?,
        second("select_seconds")?,
        second("gather_seconds")?,
    ];
    for row in 0..batch.num_rows() {
        // Every column of a batch has the batch's length.
        let [ordinal, absolute_position, rows_before, rows_after, protected, candidates] =
            counts.map(|column| column[row]);
        let [score_seconds, reduce_seconds, select_seconds, gather_seconds] =
            seconds.map(|column| column[row]);
        out.push(EventRow {
            sample_id: sample_id.value(row).to_owned(),
            ordinal,
            absolute_position,
            round_start: round_start.next().flatten(),
            rows_before,
            rows_after,
            protected,
            candidates,
            score_seconds,
            reduce_seconds,
            select_seconds,
            gather_seconds,
            dump: dump.is_valid(row).then(|| dump.value(row).to_owned()),
        });
    }
    Ok(())
}
