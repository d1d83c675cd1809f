//! `samples`: columns, rows into batches and back.

use std::path::Path;
use std::sync::Arc;

use arrow::array::{Array as _, Float64Array, RecordBatch, StringArray, UInt32Array, UInt64Array};
use arrow::datatypes::{DataType, Field, Float64Type, Schema, SchemaRef, UInt32Type, UInt64Type};
use arrow::error::ArrowError;

use super::access::{Table, id_lists, list_of};
use crate::{FinishReason, SampleRow, TraceError};

/// Columns of `samples`, in file order.
pub(crate) fn schema() -> SchemaRef {
    let field = |name: &str, kind: DataType, empty: bool| Field::new(name, kind, empty);
    Arc::new(Schema::new(vec![
        field("sample_id", DataType::Utf8, false),
        field("prompt_ids", list_of(DataType::UInt32), false),
        field("prompt_ids_sha256", DataType::Utf8, false),
        field("prompt_text_sha256", DataType::Utf8, true),
        field("prompt_len", DataType::UInt32, true),
        field("base_seed", DataType::UInt64, true),
        field("seed_index", DataType::UInt64, true),
        field("effective_seed", DataType::UInt64, true),
        field("generated_ids", list_of(DataType::UInt32), false),
        field("text", DataType::Utf8, true),
        field("gold", DataType::Utf8, true),
        field("answer", DataType::Utf8, true),
        field("answer_rule", DataType::Utf8, true),
        field("finish", DataType::Utf8, false),
        field("prefill_seconds", DataType::Float64, false),
        field("decode_seconds", DataType::Float64, false),
    ]))
}

const FINISHES: [(FinishReason, &str); 6] = [
    (FinishReason::Eos, "eos"),
    (FinishReason::Length, "length"),
    (FinishReason::Stop, "stop"),
    (FinishReason::CacheFull, "cache_full"),
    (FinishReason::Forced, "forced"),
    (FinishReason::Unknown, "unknown"),
];

fn finish_word(reason: FinishReason) -> &'static str {
    FINISHES.iter().find(|(known, _)| *known == reason).map_or("unknown", |(_, word)| word)
}

/// Rows as one batch.
pub(crate) fn encode(rows: &[SampleRow]) -> Result<RecordBatch, ArrowError> {
    let text = |get: fn(&SampleRow) -> Option<&str>| {
        Arc::new(rows.iter().map(get).collect::<StringArray>()) as _
    };
    let seed = |get: fn(&SampleRow) -> Option<u64>| {
        Arc::new(rows.iter().map(get).collect::<UInt64Array>()) as _
    };
    let seconds = |get: fn(&SampleRow) -> f64| {
        Arc::new(Float64Array::from_iter_values(rows.iter().map(get))) as _
    };
    RecordBatch::try_new(
        schema(),
        vec![
            text(|row| Some(&row.sample_id)),
            id_lists(rows.iter().map(|row| row.prompt_ids.as_slice()))?,
            text(|row| Some(&row.prompt_ids_sha256)),
            text(|row| row.prompt_text_sha256.as_deref()),
            Arc::new(rows.iter().map(|row| row.prompt_len).collect::<UInt32Array>()),
            seed(|row| row.base_seed),
            seed(|row| row.seed_index),
            seed(|row| row.effective_seed),
            id_lists(rows.iter().map(|row| row.generated_ids.as_slice()))?,
            text(|row| row.text.as_deref()),
            text(|row| row.gold.as_deref()),
            text(|row| row.answer.as_deref()),
            text(|row| row.answer_rule.as_deref()),
            text(|row| Some(finish_word(row.finish))),
            seconds(|row| row.prefill_seconds),
            seconds(|row| row.decode_seconds),
        ],
    )
}

/// Appends every row of `batch`.
pub(crate) fn decode(
    batch: &RecordBatch,
    path: &Path,
    out: &mut Vec<SampleRow>,
) -> Result<(), TraceError> {
    let table = Table { batch, path };
    let sample_id = table.texts("sample_id")?;
    let prompt_hash = table.texts("prompt_ids_sha256")?;
    let optional = |name| table.text_options(name);
    let texts = [
        optional("prompt_text_sha256")?,
        optional("text")?,
        optional("gold")?,
        optional("answer")?,
        optional("answer_rule")?,
    ];
    let mut prompt_len = table.options::<UInt32Type>("prompt_len")?;
    let mut base_seed = table.options::<UInt64Type>("base_seed")?;
    let mut seed_index = table.options::<UInt64Type>("seed_index")?;
    let mut effective_seed = table.options::<UInt64Type>("effective_seed")?;
    let mut prompt_ids = table.lists::<UInt32Type>("prompt_ids")?.rows();
    let mut generated_ids = table.lists::<UInt32Type>("generated_ids")?.rows();
    let finish = table.texts("finish")?;
    let prefill = table.values::<Float64Type>("prefill_seconds")?;
    let decode = table.values::<Float64Type>("decode_seconds")?;
    for row in 0..batch.num_rows() {
        // Every column of a batch has the batch's length.
        let [prompt_text_sha256, text, gold, answer, answer_rule] =
            texts.map(|column| column.is_valid(row).then(|| column.value(row).to_owned()));
        let word = finish.value(row);
        let (finish, _) = FINISHES
            .into_iter()
            .find(|(_, known)| *known == word)
            .ok_or_else(|| table.error(format!("finish reason `{word}` is not known")))?;
        out.push(SampleRow {
            sample_id: sample_id.value(row).to_owned(),
            prompt_ids: prompt_ids.next().unwrap_or_default().to_vec(),
            prompt_ids_sha256: prompt_hash.value(row).to_owned(),
            prompt_text_sha256,
            prompt_len: prompt_len.next().flatten(),
            base_seed: base_seed.next().flatten(),
            seed_index: seed_index.next().flatten(),
            effective_seed: effective_seed.next().flatten(),
            generated_ids: generated_ids.next().unwrap_or_default().to_vec(),
            text,
            gold,
            answer,
            answer_rule,
            finish,
            prefill_seconds: prefill[row],
            decode_seconds: decode[row],
        });
    }
    Ok(())
}
