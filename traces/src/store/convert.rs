//! From streams to tables: rows grouped by sample, in bounded memory.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::Path;

use arrow::array::{BooleanArray, RecordBatch};
use arrow::compute::filter_record_batch;
use arrow::datatypes::SchemaRef;
use parquet::arrow::ArrowWriter;
use parquet::basic::{Compression, Encoding, ZstdLevel};
use parquet::file::properties::{EnabledStatistics, WriterProperties};
use parquet::schema::types::ColumnPath;

use super::access::Table;
use super::fail::{arrow, io, malformed};
use super::format::{Kind, replace_file};
use super::stream::StreamIndex;
use super::sums::sum_file;
use super::{events, samples, steps};
use crate::TraceError;
use crate::manifest::TableSums;

/// Rows of a row group: what a reader skips or reads at a time.
pub(super) const ROW_GROUP_ROWS: usize = 8192;
/// Encoded bytes of a row group at most, for runs that record whole vocabularies.
const ROW_GROUP_BYTES: usize = 64 << 20;
/// Stream bytes that are regrouped in memory at a time.
const GROUP_BYTES: u64 = 32 << 20;

/// Columns by which readers skip row groups.
const KEYS: [&str; 3] = ["sample_id", "position", "ordinal"];
/// Columns of repeating words.
const WORDS: [&str; 2] = ["phase", "finish"];
/// Columns that grow slowly from row to row.
const COUNTERS: [&str; 6] =
    ["position", "rows_before", "rows_after", "ordinal", "absolute_position", "rope_index"];
/// Columns of floating point numbers, whose bytes compress by plane.
const REALS: [&str; 4] = ["top_logits.list.element", "logsumexp", "top2_margin", "uniform"];
/// Columns that do not compress.
const HASHES: [&str; 2] = ["logits_hash_0", "logits_hash_1"];

/// Schema of a table.
pub(super) fn schema_of(kind: Kind) -> SchemaRef {
    match kind {
        Kind::Steps => steps::schema(),
        Kind::Events => events::schema(),
        Kind::Samples => samples::schema(),
    }
}

/// Writes the three tables of `dir` from its streams and returns their checksums by file name.
pub(super) fn tables(dir: &Path) -> Result<BTreeMap<String, TableSums>, TraceError> {
    let mut sums = BTreeMap::new();
    let mut order = SampleOrder::default();
    // Steps first, since their first rows give the order of the samples; then samples without any step.
    for kind in [Kind::Steps, Kind::Samples, Kind::Events] {
        let index = StreamIndex::open(&kind.stream(dir))?;
        if index.remark().is_some() {
            return Err(malformed(
                index.path(),
                "the stream was cut while it was being written; resume the run",
            ));
        }
        let layout = Layout::scan(&index, kind, &mut order)?;
        let path = kind.table(dir);
        let written = replace_file(&path, |file| {
            layout.write(&index, kind, file, &path)?;
            // The manifest will say that the run is complete, which must hold after a power cut as well.
            file.sync_all().map_err(io(&path))?;
            sum_file(file, &path)
        })?;
        sums.insert(kind.table_name(), written);
    }
    Ok(sums)
}

/// Samples by first appearance.
#[derive(Debug, Default)]
pub(super) struct SampleOrder {
    numbers: BTreeMap<String, usize>,
    names: Vec<String>,
}

impl SampleOrder {
    pub(super) fn number(&mut self, name: &str) -> usize {
        if let Some(&number) = self.numbers.get(name) {
            return number;
        }
        let number = self.names.len();
        self.numbers.insert(name.to_owned(), number);
        self.names.push(name.to_owned());
        number
    }

    pub(super) fn into_names(self) -> Vec<String> {
        self.names
    }
}

/// Which batches hold rows of which sample, and about how many bytes.
#[derive(Debug, Default)]
struct Layout {
    names: Vec<String>,
    batches: Vec<Vec<usize>>,
    bytes: Vec<u64>,
}

impl Layout {
    fn scan(index: &StreamIndex, kind: Kind, order: &mut SampleOrder) -> Result<Self, TraceError> {
        let mut reader = index.reader(&schema_of(kind))?;
        let mut layout = Self::default();
        for (batch_number, frame) in index.frames().iter().enumerate() {
            let batch = reader.read(batch_number)?;
            let mut rows: BTreeMap<usize, u64> = BTreeMap::new();
            let mut last: Option<(&str, usize)> = None;
            let table = Table { batch: &batch, path: index.path() };
            for name in table.texts("sample_id")?.iter().flatten() {
                let number = match last {
                    Some((same, number)) if same == name => number,
                    _ => order.number(name),
                };
                last = Some((name, number));
                *rows.entry(number).or_default() += 1;
            }
            let total = (batch.num_rows() as u64).max(1);
            layout.batches.resize(order.names.len(), Vec::new());
            layout.bytes.resize(order.names.len(), 0);
            for (number, count) in rows {
                if let (Some(batches), Some(bytes)) =
                    (layout.batches.get_mut(number), layout.bytes.get_mut(number))
                {
                    batches.push(batch_number);
                    *bytes += frame.len.saturating_mul(count) / total;
                }
            }
        }
        layout.names.clone_from(&order.names);
        Ok(layout)
    }

    /// Runs of consecutive samples that fit in memory together; a larger sample stands alone.
    fn groups(&self) -> Vec<std::ops::Range<usize>> {
        let mut groups = Vec::new();
        let (mut start, mut held) = (0, 0_u64);
        for (number, &bytes) in self.bytes.iter().enumerate() {
            if number > start && held + bytes > GROUP_BYTES {
                groups.push(start..number);
                (start, held) = (number, 0);
            }
            held += bytes;
        }
        if start < self.bytes.len() {
            groups.push(start..self.bytes.len());
        }
        groups
    }

    /// Batches that hold rows of these samples, and of which.
    fn batches_of(&self, group: std::ops::Range<usize>) -> BTreeMap<usize, Vec<usize>> {
        let mut found: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
        for (sample, batches) in self.batches.iter().enumerate().take(group.end).skip(group.start) {
            for &batch in batches {
                found.entry(batch).or_default().push(sample);
            }
        }
        found
    }

    fn write(
        &self,
        index: &StreamIndex,
        kind: Kind,
        file: &mut File,
        path: &Path,
    ) -> Result<(), TraceError> {
        let schema = schema_of(kind);
        let mut writer = ArrowWriter::try_new(file, schema.clone(), Some(properties(&schema)))
            .map_err(arrow(path))?;
        let mut reader = index.reader(&schema)?;
        for group in self.groups() {
            let lone = group.len() == 1;
            let mut held: Vec<Vec<RecordBatch>> = vec![Vec::new(); group.len()];
            for (number, samples) in self.batches_of(group.clone()) {
                let batch = reader.read(number)?;
                for sample in samples {
                    let name = self.names.get(sample).map_or("", String::as_str);
                    let Some(rows) = rows_of(&batch, name, path)? else { continue };
                    if lone {
                        writer.write(&rows).map_err(arrow(path))?;
                    } else if let Some(slot) = held.get_mut(sample - group.start) {
                        slot.push(rows);
                    }
                }
            }
            for rows in held.into_iter().flatten() {
                writer.write(&rows).map_err(arrow(path))?;
            }
        }
        writer.close().map_err(arrow(path))?;
        Ok(())
    }
}

/// The rows of `batch` that belong to `sample`, if there are any.
fn rows_of(
    batch: &RecordBatch,
    sample: &str,
    path: &Path,
) -> Result<Option<RecordBatch>, TraceError> {
    let names = Table { batch, path }.texts("sample_id")?;
    let mask: BooleanArray = names.iter().map(|name| Some(name == Some(sample))).collect();
    match mask.true_count() {
        0 => Ok(None),
        count if count == mask.len() => Ok(Some(batch.clone())),
        _ => filter_record_batch(batch, &mask).map(Some).map_err(arrow(path)),
    }
}

/// Parquet's defaults suit neither logits nor keys, so every column says what it wants.
fn properties(schema: &SchemaRef) -> WriterProperties {
    let column =
        |name: &str| ColumnPath::from(name.split('.').map(str::to_owned).collect::<Vec<_>>());
    let has =
        |name: &str| schema.column_with_name(name.split('.').next().unwrap_or(name)).is_some();
    let zstd = ZstdLevel::try_new(1).map_or(Compression::UNCOMPRESSED, Compression::ZSTD);
    let mut builder = WriterProperties::builder()
        .set_created_by(concat!("lockstep ", env!("CARGO_PKG_VERSION")).to_owned())
        .set_max_row_group_row_count(Some(ROW_GROUP_ROWS))
        .set_max_row_group_bytes(Some(ROW_GROUP_BYTES))
        .set_compression(zstd)
        .set_dictionary_enabled(false)
        .set_statistics_enabled(EnabledStatistics::None);
    for name in KEYS.into_iter().filter(|name| has(name)) {
        builder = builder.set_column_statistics_enabled(column(name), EnabledStatistics::Chunk);
    }
    for name in WORDS.into_iter().chain(["sample_id"]).filter(|name| has(name)) {
        builder = builder.set_column_dictionary_enabled(column(name), true);
    }
    for name in COUNTERS.into_iter().filter(|name| has(name)) {
        builder = builder.set_column_encoding(column(name), Encoding::DELTA_BINARY_PACKED);
    }
    for name in REALS.into_iter().filter(|name| has(name)) {
        builder = builder.set_column_encoding(column(name), Encoding::BYTE_STREAM_SPLIT);
    }
    for name in HASHES.into_iter().filter(|name| has(name)) {
        builder = builder.set_column_compression(column(name), Compression::UNCOMPRESSED);
    }
    builder.build()
}
