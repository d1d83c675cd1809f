//! Reading Parquet with as little as the query needs: columns by projection, row groups by statistics, rows by filter.

use std::ops::RangeInclusive;
use std::path::Path;
use std::sync::Arc;

use arrow::array::{Array as _, BooleanArray, RecordBatch, StringArray, UInt32Array};
use arrow::compute::filter_record_batch;
use arrow::error::ArrowError;
use parquet::arrow::ProjectionMask;
use parquet::arrow::arrow_reader::{ArrowPredicateFn, ParquetRecordBatchReaderBuilder, RowFilter};
use parquet::file::metadata::RowGroupMetaData;
use parquet::file::statistics::Statistics;

use super::columns::StepQuery;
use super::convert::ROW_GROUP_ROWS;
use super::fail::arrow;
use super::steps::file_columns;
use super::sums::SummedFile;
use super::thrift;
use crate::TraceError;

type Visit<'a> = &'a mut dyn FnMut(&RecordBatch) -> Result<(), TraceError>;

/// Every row of a table; of its columns all or those named.
pub(super) fn table(
    file: SummedFile,
    path: &Path,
    columns: Option<&[&str]>,
    mut visit: impl FnMut(&RecordBatch) -> Result<(), TraceError>,
) -> Result<(), TraceError> {
    let mut builder = thrift::open(&file, path)?;
    let mask = columns.map_or_else(ProjectionMask::all, |columns| {
        ProjectionMask::columns(builder.parquet_schema(), columns.iter().copied())
    });
    thrift::check_pages(&file, path, builder.metadata(), &mask, |_| true)?;
    builder = builder.with_projection(mask);
    run(builder, path, &mut visit)
}

/// The rows and columns of `steps.parquet` that `query` asks for.
pub(super) fn steps(
    file: SummedFile,
    path: &Path,
    query: &StepQuery,
    mut visit: impl FnMut(&RecordBatch) -> Result<(), TraceError>,
) -> Result<(), TraceError> {
    let builder = thrift::open(&file, path)?;
    let schema = builder.parquet_schema();
    let wanted = query.wanted();
    let names = wanted.iter().flat_map(|&column| file_columns(column)).copied();
    let mask = ProjectionMask::columns(schema, names.chain(["sample_id", "position"]));
    let groups = row_groups(builder.metadata().row_groups(), query);
    thrift::check_pages(&file, path, builder.metadata(), &mask, |at| groups.contains(&at))?;
    let mut builder = builder.with_projection(mask).with_row_groups(groups);
    if query.sample_id.is_some() || query.positions.is_some() {
        let keys = ProjectionMask::columns(builder.parquet_schema(), ["sample_id", "position"]);
        let asked = query.clone();
        let predicate = ArrowPredicateFn::new(keys, move |batch| matching(&batch, &asked));
        builder = builder.with_row_filter(RowFilter::new(vec![Box::new(predicate)]));
    }
    run(builder, path, &mut visit)
}

fn run(
    builder: ParquetRecordBatchReaderBuilder<SummedFile>,
    path: &Path,
    visit: Visit<'_>,
) -> Result<(), TraceError> {
    let reader = builder.with_batch_size(ROW_GROUP_ROWS).build().map_err(arrow(path))?;
    for batch in reader {
        visit(&batch.map_err(arrow(path))?)?;
    }
    Ok(())
}

/// Row groups that may hold rows of the query. A group without usable statistics is read.
pub(super) fn row_groups(groups: &[RowGroupMetaData], query: &StepQuery) -> Vec<usize> {
    let may_hold = |group: &RowGroupMetaData| {
        let sample = query.sample_id.as_deref().is_none_or(|name| may_hold_text(group, name));
        sample && query.positions.as_ref().is_none_or(|range| may_hold_range(group, range))
    };
    groups
        .iter()
        .enumerate()
        .filter(|(_, group)| may_hold(group))
        .map(|(number, _)| number)
        .collect()
}

fn statistics<'a>(group: &'a RowGroupMetaData, name: &str) -> Option<&'a Statistics> {
    let column = group.columns().iter().find(|column| column.column_path().string() == name)?;
    column.statistics()
}

fn may_hold_text(group: &RowGroupMetaData, name: &str) -> bool {
    match statistics(group, "sample_id") {
        Some(Statistics::ByteArray(values)) => {
            let below = values.min_opt().is_none_or(|min| min.data() <= name.as_bytes());
            // A cut maximum may be smaller than the value it stands for.
            let above = values.max_opt().is_none_or(|max| {
                max.data() >= name.as_bytes() || name.as_bytes().starts_with(max.data())
            });
            below && above
        }
        _ => true,
    }
}

fn may_hold_range(group: &RowGroupMetaData, range: &RangeInclusive<u32>) -> bool {
    match statistics(group, "position") {
        Some(Statistics::Int32(values)) => {
            // Parquet keeps unsigned numbers in signed fields.
            let below = values.min_opt().is_none_or(|min| min.cast_unsigned() <= *range.end());
            let above = values.max_opt().is_none_or(|max| max.cast_unsigned() >= *range.start());
            below && above
        }
        _ => true,
    }
}

fn matching(batch: &RecordBatch, query: &StepQuery) -> Result<BooleanArray, ArrowError> {
    let missing = |name: &str| {
        ArrowError::SchemaError(format!("column `{name}` is missing or of another type"))
    };
    let column =
        |name: &str| batch.column_by_name(name).map(Arc::clone).ok_or_else(|| missing(name));
    let (names, positions) = (column("sample_id")?, column("position")?);
    let names = names.as_any().downcast_ref::<StringArray>().ok_or_else(|| missing("sample_id"))?;
    let positions =
        positions.as_any().downcast_ref::<UInt32Array>().ok_or_else(|| missing("position"))?;
    let wanted = query.sample_id.as_deref();
    Ok(names
        .iter()
        .zip(positions.iter())
        .map(|(name, position)| {
            let sample = wanted.is_none() || name == wanted;
            let inside = query
                .positions
                .as_ref()
                .is_none_or(|range| position.is_some_and(|position| range.contains(&position)));
            Some(sample && inside)
        })
        .collect())
}

/// The rows of a stream's batch that `query` asks for, if there are any.
pub(super) fn rows(
    batch: &RecordBatch,
    query: &StepQuery,
    path: &Path,
) -> Result<Option<RecordBatch>, TraceError> {
    if query.sample_id.is_none() && query.positions.is_none() {
        return Ok(Some(batch.clone()));
    }
    let mask = matching(batch, query).map_err(arrow(path))?;
    if mask.true_count() == 0 {
        return Ok(None);
    }
    filter_record_batch(batch, &mask).map(Some).map_err(arrow(path))
}
