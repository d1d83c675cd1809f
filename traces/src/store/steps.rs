//! `steps`: columns, rows into batches, batches into flat vectors.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use arrow::array::{
    BooleanArray, Float32Array, Float64Array, RecordBatch, StringArray, UInt32Array, UInt64Array,
};
use arrow::datatypes::{
    DataType, Field, Float32Type, Float64Type, Schema, SchemaRef, UInt32Type, UInt64Type,
};
use arrow::error::ArrowError;

use super::access::{Lists, Table, id_lists, list_of, logit_lists};
use super::columns::{StepColumn, StepColumns};
use crate::{Phase, StepRow, TraceError};

/// Columns of `steps`, in file order.
pub(crate) fn schema() -> SchemaRef {
    let field = |name: &str, kind: DataType, empty: bool| Field::new(name, kind, empty);
    Arc::new(Schema::new(vec![
        field("sample_id", DataType::Utf8, false),
        field("position", DataType::UInt32, false),
        field("phase", DataType::Utf8, false),
        field("token_id", DataType::UInt32, false),
        field("next_token", DataType::UInt32, true),
        field("rows_before", DataType::UInt32, false),
        field("rows_after", DataType::UInt32, false),
        field("rows_bucketed", DataType::UInt32, true),
        field("compaction", DataType::UInt32, true),
        field("rope_index", DataType::UInt32, true),
        field("argmax", DataType::UInt32, false),
        field("top_ids", list_of(DataType::UInt32), false),
        field("top_logits", list_of(DataType::Float32), false),
        field("logsumexp", DataType::Float64, true),
        field("top2_margin", DataType::Float32, true),
        field("finite", DataType::Boolean, false),
        field("logits_hash_0", DataType::UInt64, true),
        field("logits_hash_1", DataType::UInt64, true),
        field("rng_offset", DataType::UInt64, true),
        field("uniform", DataType::Float32, true),
    ]))
}

/// File columns that hold `column`.
pub(crate) const fn file_columns(column: StepColumn) -> &'static [&'static str] {
    match column {
        StepColumn::Phase => &["phase"],
        StepColumn::TokenId => &["token_id"],
        StepColumn::NextToken => &["next_token"],
        StepColumn::RowsBefore => &["rows_before"],
        StepColumn::RowsAfter => &["rows_after"],
        StepColumn::RowsBucketed => &["rows_bucketed"],
        StepColumn::Compaction => &["compaction"],
        StepColumn::RopeIndex => &["rope_index"],
        StepColumn::Argmax => &["argmax"],
        StepColumn::TopIds => &["top_ids"],
        StepColumn::TopLogits => &["top_logits"],
        StepColumn::Logsumexp => &["logsumexp"],
        StepColumn::Top2Margin => &["top2_margin"],
        StepColumn::Finite => &["finite"],
        StepColumn::LogitsHash => &["logits_hash_0", "logits_hash_1"],
        StepColumn::RngOffset => &["rng_offset"],
        StepColumn::Uniform => &["uniform"],
    }
}

const fn phase_word(phase: Phase) -> &'static str {
    match phase {
        Phase::Prompt => "prompt",
        Phase::Decode => "decode",
    }
}

/// Rows as one batch.
pub(crate) fn encode(rows: &[StepRow]) -> Result<RecordBatch, ArrowError> {
    let ids = |get: fn(&StepRow) -> u32| {
        Arc::new(UInt32Array::from_iter_values(rows.iter().map(get))) as _
    };
    let maybe = |get: fn(&StepRow) -> Option<u32>| {
        Arc::new(rows.iter().map(get).collect::<UInt32Array>()) as _
    };
    let wide = |get: fn(&StepRow) -> Option<u64>| {
        Arc::new(rows.iter().map(get).collect::<UInt64Array>()) as _
    };
    let real = |get: fn(&StepRow) -> Option<f32>| {
        Arc::new(rows.iter().map(get).collect::<Float32Array>()) as _
    };
    RecordBatch::try_new(
        schema(),
        vec![
            Arc::new(StringArray::from_iter_values(rows.iter().map(|row| &row.sample_id))),
            ids(|row| row.position),
            Arc::new(StringArray::from_iter_values(rows.iter().map(|row| phase_word(row.phase)))),
            ids(|row| row.token_id),
            maybe(|row| row.next_token),
            ids(|row| row.rows_before),
            ids(|row| row.rows_after),
            maybe(|row| row.rows_bucketed),
            maybe(|row| row.compaction),
            maybe(|row| row.rope_index),
            ids(|row| row.argmax),
            id_lists(rows.iter().map(|row| row.top_ids.as_slice()))?,
            logit_lists(rows.iter().map(|row| row.top_logits.as_slice()))?,
            Arc::new(rows.iter().map(|row| row.logsumexp).collect::<Float64Array>()),
            real(|row| row.top2_margin),
            Arc::new(rows.iter().map(|row| Some(row.finite)).collect::<BooleanArray>()),
            wide(|row| row.logits_hash.map(|hash| hash[0])),
            wide(|row| row.logits_hash.map(|hash| hash[1])),
            wide(|row| row.rng_offset),
            real(|row| row.uniform),
        ],
    )
}

/// Appends the wanted columns of batches to flat vectors.
pub(crate) struct Decoder {
    wanted: BTreeSet<StepColumn>,
    index: BTreeMap<String, u32>,
    out: StepColumns,
}

impl Decoder {
    pub(crate) fn new(sample_ids: &[String], wanted: BTreeSet<StepColumn>) -> Self {
        let index = sample_ids.iter().cloned().zip(0..).collect();
        let out = StepColumns { sample_ids: sample_ids.to_vec(), ..StepColumns::default() };
        Self { wanted, index, out }
    }

    pub(crate) fn finish(self) -> StepColumns {
        self.out
    }

    /// Appends every row of `batch`.
    pub(crate) fn append(&mut self, batch: &RecordBatch, path: &Path) -> Result<(), TraceError> {
        let table = Table { batch, path };
        self.append_samples(&table)?;
        self.out.position.extend_from_slice(table.values::<UInt32Type>("position")?);
        self.append_tops(&table)?;
        for column in self.wanted.clone() {
            self.append_column(column, &table)?;
        }
        self.out.len += batch.num_rows();
        Ok(())
    }

    fn append_samples(&mut self, table: &Table<'_>) -> Result<(), TraceError> {
        let mut last: Option<(&str, u32)> = None;
        for name in table.texts("sample_id")?.iter().flatten() {
            let number = match last {
                Some((same, number)) if same == name => number,
                _ => *self.index.get(name).ok_or_else(|| {
                    table.error(format!("sample `{name}` has steps but is not among the samples"))
                })?,
            };
            last = Some((name, number));
            self.out.sample.push(number);
        }
        Ok(())
    }

    fn append_tops(&mut self, table: &Table<'_>) -> Result<(), TraceError> {
        let kept =
            [StepColumn::TopIds, StepColumn::TopLogits].map(|column| self.wanted.contains(&column));
        let ids = kept[0].then(|| table.lists::<UInt32Type>("top_ids")).transpose()?;
        let logits = kept[1].then(|| table.lists::<Float32Type>("top_logits")).transpose()?;
        let lengths: Vec<usize> = match (&ids, &logits) {
            (Some(ids), Some(logits)) => {
                let lengths: Vec<usize> = ids.rows().map(<[u32]>::len).collect();
                if !logits.rows().map(<[f32]>::len).eq(lengths.iter().copied()) {
                    return Err(table.error("top_ids and top_logits differ in length"));
                }
                lengths
            }
            (Some(ids), None) => ids.rows().map(<[u32]>::len).collect(),
            (None, Some(logits)) => logits.rows().map(<[f32]>::len).collect(),
            (None, None) => return Ok(()),
        };
        self.out.grow_stride(lengths.iter().copied().max().unwrap_or(0), kept);
        let stride = self.out.top_k;
        self.out.top_len.extend(lengths.iter().map(|&len| u32::try_from(len).unwrap_or(u32::MAX)));
        if let Some(ids) = ids {
            extend_flat(&mut self.out.top_ids, &ids, stride, u32::MAX);
        }
        if let Some(logits) = logits {
            extend_flat(&mut self.out.top_logits, &logits, stride, f32::NAN);
        }
        Ok(())
    }

    fn append_column(&mut self, column: StepColumn, table: &Table<'_>) -> Result<(), TraceError> {
        let out = &mut self.out;
        let ids = |name| table.values::<UInt32Type>(name);
        match column {
            StepColumn::Phase => append_phases(&mut out.phase, table)?,
            StepColumn::TokenId => out.token_id.extend_from_slice(ids("token_id")?),
            StepColumn::RowsBefore => out.rows_before.extend_from_slice(ids("rows_before")?),
            StepColumn::RowsAfter => out.rows_after.extend_from_slice(ids("rows_after")?),
            StepColumn::Argmax => out.argmax.extend_from_slice(ids("argmax")?),
            StepColumn::NextToken => {
                out.next_token.extend(table.options::<UInt32Type>("next_token")?);
            }
            StepColumn::RowsBucketed => {
                out.rows_bucketed.extend(table.options::<UInt32Type>("rows_bucketed")?);
            }
            StepColumn::Compaction => {
                out.compaction.extend(table.options::<UInt32Type>("compaction")?);
            }
            StepColumn::RopeIndex => {
                out.rope_index.extend(table.options::<UInt32Type>("rope_index")?);
            }
            StepColumn::TopIds | StepColumn::TopLogits => {}
            StepColumn::Logsumexp => {
                out.logsumexp.extend(table.options::<Float64Type>("logsumexp")?);
            }
            StepColumn::Top2Margin => {
                out.top2_margin.extend(table.options::<Float32Type>("top2_margin")?);
            }
            StepColumn::Finite => out.finite.extend(table.truths("finite")?.iter().flatten()),
            StepColumn::LogitsHash => append_hashes(&mut out.logits_hash, table)?,
            StepColumn::RngOffset => {
                out.rng_offset.extend(table.options::<UInt64Type>("rng_offset")?);
            }
            StepColumn::Uniform => out.uniform.extend(table.options::<Float32Type>("uniform")?),
        }
        Ok(())
    }
}

fn extend_flat<T: Copy>(out: &mut Vec<T>, lists: &Lists<'_, T>, stride: usize, fill: T) {
    if let Some(flat) = lists.flat(stride) {
        out.extend_from_slice(flat);
        return;
    }
    for row in lists.rows() {
        out.extend_from_slice(row);
        out.resize(out.len() + stride - row.len(), fill);
    }
}

fn append_phases(out: &mut Vec<Phase>, table: &Table<'_>) -> Result<(), TraceError> {
    for word in table.texts("phase")?.iter().flatten() {
        out.push(match word {
            "prompt" => Phase::Prompt,
            "decode" => Phase::Decode,
            other => {
                return Err(table.error(format!("phase `{other}` is neither prompt nor decode")));
            }
        });
    }
    Ok(())
}

fn append_hashes(out: &mut Vec<Option<[u64; 2]>>, table: &Table<'_>) -> Result<(), TraceError> {
    let first = table.options::<UInt64Type>("logits_hash_0")?;
    let second = table.options::<UInt64Type>("logits_hash_1")?;
    for pair in first.zip(second) {
        out.push(match pair {
            (Some(first), Some(second)) => Some([first, second]),
            (None, None) => None,
            _ => return Err(table.error("a logits hash has one half only")),
        });
    }
    Ok(())
}
