//! A lone Parquet file of step rows as a trace: `steps.parquet` of a run, or a table with such columns by another writer.
//!
//! Columns are known by name: `position` (required), `sample_id`, `phase`, `token_id`, `next_token`, `rows_before`, `rows_after`,
//! `rows_bucketed`, `compaction`, `rope_index`, `argmax`, `argmax_logit`, `top_ids`, `top_logits`, `logsumexp`, `top2_margin`, `finite`,
//! `rng_offset`, `uniform`; also `position_before`, `argmax_token`, `top_id`, `top_logit`. Whole numbers may have any width, numbers any
//! precision, lists any kind. What is absent or empty is unknown: never 0, and never equal to anything.

mod cells;
mod columns;
mod order;
mod rows;
mod said;
#[cfg(test)]
mod tests;

use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom};
use std::path::Path;

use parquet::arrow::ProjectionMask;
use parquet::file::metadata::ParquetMetaData;

use crate::TraceError;
use crate::foreign::{ForeignOptions, Loaded};
use crate::store::fail::{arrow, guard, io, malformed};
use crate::store::{SummedFile, thrift};
use columns::Found;

const MAGIC: &[u8; 4] = b"PAR1";
/// Magic at both ends and the length of the footer.
const LEAST_BYTES: u64 = 12;
/// Rows decoded at a time.
const BATCH_ROWS: usize = 4096;

/// Does `path` begin as a Parquet file?
#[must_use]
pub fn is_parquet(path: &Path) -> bool {
    let mut front = [0; 4];
    let read = File::open(path).and_then(|mut file| file.read_exact(&mut front));
    read.is_ok() && front == *MAGIC
}

/// Reads a Parquet file of step rows.
///
/// # Errors
/// [`TraceError::Malformed`] where the file is cut, its footer or its pages lie outside it, no column is that of a trace, or a column
/// has another type; [`TraceError::Arrow`] where it cannot be decoded; [`TraceError::Io`].
pub fn load(path: &Path, options: &ForeignOptions) -> Result<Loaded, TraceError> {
    let length = check_ends(path)?;
    guard(path, || read(path, length, options))
}

/// The last bytes: a file that was cut, or is still being written, has no footer.
fn check_ends(path: &Path) -> Result<u64, TraceError> {
    let mut file = File::open(path).map_err(io(path))?;
    let length = file.metadata().map_err(io(path))?.len();
    if length < LEAST_BYTES {
        return Err(malformed(
            path,
            format!("begins as Parquet and has {length} bytes: truncated or still being written"),
        ));
    }
    file.seek(SeekFrom::Start(length - 8)).map_err(io(path))?;
    let mut end = [0; 8];
    file.read_exact(&mut end).map_err(io(path))?;
    let [a, b, c, d, magic @ ..] = end;
    if magic == *b"PARE" {
        return Err(malformed(path, "its footer is encrypted, which is not read here"));
    }
    if magic != *MAGIC {
        return Err(malformed(
            path,
            "begins as Parquet and does not end so: truncated or still being written; write or copy it again",
        ));
    }
    let footer = u64::from(u32::from_le_bytes([a, b, c, d]));
    if footer + LEAST_BYTES > length {
        return Err(malformed(
            path,
            format!(
                "its footer claims {footer} bytes, the file has {length}: damaged; write or copy it again"
            ),
        ));
    }
    Ok(length)
}

fn read(path: &Path, length: u64, options: &ForeignOptions) -> Result<Loaded, TraceError> {
    let file = SummedFile::open(path, None)?;
    let builder = thrift::open(&file, path)?;
    check_pages(path, builder.metadata(), length)?;
    let written = builder.metadata().file_metadata();
    let told = u64::try_from(written.num_rows()).unwrap_or(0);
    let writer = written.created_by().unwrap_or_default().to_owned();
    let found = Found::of(path, builder.schema())?;
    let mask = ProjectionMask::roots(builder.parquet_schema(), found.indices());
    thrift::check_pages(&file, path, builder.metadata(), &mask, |_| true)?;
    let reader =
        builder.with_projection(mask).with_batch_size(BATCH_ROWS).build().map_err(arrow(path))?;
    let mut table = rows::Table::new(path, &found);
    for batch in reader {
        table.append(&batch.map_err(arrow(path))?)?;
    }
    if table.len() as u64 != told {
        return Err(malformed(
            path,
            format!("its footer claims {told} rows, its pages hold {}: damaged", table.len()),
        ));
    }
    table.finish(&found, &writer, options)
}

/// Pages must lie inside the file, whatever the footer says of them.
fn check_pages(path: &Path, metadata: &ParquetMetaData, length: u64) -> Result<(), TraceError> {
    for (number, group) in metadata.row_groups().iter().enumerate() {
        if group.num_rows() == 0 {
            continue;
        }
        for column in group.columns() {
            // Some writers give 0 for a dictionary that is not there.
            let dictionary = column.dictionary_page_offset().filter(|offset| *offset > 0);
            let start = dictionary.unwrap_or(i64::MAX).min(column.data_page_offset());
            let end = start.checked_add(column.compressed_size());
            let inside = start >= 4
                && column.compressed_size() >= 0
                && end.and_then(|end| u64::try_from(end).ok()).is_some_and(|end| end <= length);
            if !inside {
                return Err(malformed(
                    path,
                    format!(
                        "row group {number}, column `{}`: its pages ({} bytes from {start}) lie outside the file of {length} bytes: pages are \
                         missing; write or copy it again",
                        column.column_path().string(),
                        column.compressed_size()
                    ),
                ));
            }
        }
    }
    Ok(())
}
