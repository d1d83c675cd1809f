//! Columns as they stand in the file become steps, events and remarks in the workbench's own terms.

use std::path::Path;

use super::Loaded;
use super::dialect::Dialect;
use super::order::put_in_order;
use super::read::Raw;
use super::rowcount::RowCounts;
use super::table::{ForeignOptions, Table};
use crate::manifest::{Producer, ValueEncoding};
use crate::store::StepColumns;
use crate::{EventRow, Manifest, Phase, Status, TraceError};

/// `token_id` of a row whose fed token the file does not tell: the first row of each sample of a neutral trace,
/// which names chosen tokens only.
pub const UNKNOWN_TOKEN: u32 = u32::MAX;

/// Interprets `raw`.
///
/// # Errors
/// [`TraceError::Malformed`] where row counts contradict the dialect, or lists differ wildly in length.
pub(super) fn assemble(
    path: &Path,
    raw: Raw,
    options: &ForeignOptions,
) -> Result<Loaded, TraceError> {
    let Raw { dialect, mut table, cut, mut remarks } = raw;
    let encoding = table.precision.encoding();
    remarks.push(table.precision.remark());
    let counts = match dialect {
        Dialect::StepTrace => RowCounts::of(&table),
        Dialect::PositionTrace | Dialect::Neutral => RowCounts::Exact,
    };
    remarks.extend(counts.remark());
    settle_rows(path, dialect, counts, &mut table)?;
    remarks.extend(table_remarks(dialect, &table));

    let mut steps = StepColumns { len: table.len(), ..StepColumns::default() };
    name_samples(&table, &mut steps);
    compactions(&table, counts, &mut steps);
    remarks.extend(unseen_compactions(&table, counts, dialect));
    tokens(&table, dialect, options, &mut steps);
    put_in_order(path, &mut table, encoding, &mut steps)?.remarks(&mut remarks);
    steps.rows_bucketed = match counts {
        RowCounts::Exact => vec![None; steps.len],
        _ => table.rows_before.iter().copied().map(Some).collect(),
    };
    steps.rope_index = vec![None; steps.len];
    steps.logsumexp = vec![None; steps.len];
    steps.logits_hash = vec![None; steps.len];
    steps.rng_offset = vec![None; steps.len];
    steps.uniform = vec![None; steps.len];
    steps.position = std::mem::take(&mut table.position);
    steps.rows_before = std::mem::take(&mut table.rows_before);
    steps.rows_after = std::mem::take(&mut table.rows_after);
    let events = events(&steps, counts, &table.odd_absolute);
    if options.prompt_len.is_none() {
        remarks.push(
            "the file does not tell where the prompt ends: every row counts as decode (give the prompt length)"
                .to_owned(),
        );
    }
    let mut manifest = manifest(dialect, &steps, counts, encoding, cut, &remarks);
    if let Some((rows, line)) = table.argmax_disagrees {
        let seen = serde_json::json!({"rows": rows, "line": line});
        manifest.set("trace.argmax_logit_differs", seen, "imported");
    }
    Ok(Loaded { manifest, samples: steps.sample_ids.clone(), steps, events, remarks })
}

/// Brings row counts to "live rows without the one being appended".
fn settle_rows(
    path: &Path,
    dialect: Dialect,
    counts: RowCounts,
    table: &mut Table,
) -> Result<(), TraceError> {
    let own_row_included = match dialect {
        Dialect::Neutral => true,
        Dialect::StepTrace => {
            if counts == RowCounts::Exact {
                for (before, &position) in table.rows_before.iter_mut().zip(&table.position) {
                    if position == 0 {
                        *before = 0;
                    }
                }
            }
            return Ok(());
        }
        Dialect::PositionTrace => false,
    };
    for (row, before) in table.rows_before.iter_mut().enumerate() {
        let after = table.rows_after.get(row).copied().unwrap_or(0);
        if own_row_included {
            *before = before.checked_sub(1).ok_or_else(|| TraceError::Malformed {
                path: path.to_owned(),
                what: format!("row {} has rows_before 0, which counts its own row", row + 1),
            })?;
        }
        if after > before.saturating_add(1) {
            return Err(TraceError::Malformed {
                path: path.to_owned(),
                what: format!(
                    "row {}: a step that starts with {before} rows cannot end with {after}",
                    row + 1
                ),
            });
        }
    }
    Ok(())
}

fn table_remarks(dialect: Dialect, table: &Table) -> Vec<String> {
    let mut remarks = Vec::new();
    if table.starts.len() > 1 {
        remarks.push(format!(
            "{} samples in one file, parted where position falls",
            table.starts.len()
        ));
    }
    if let Some((count, line)) = table.argmax_disagrees {
        remarks.push(format!(
            "argmax_logit is not the largest of top_logits in {count} rows (first: line {line})"
        ));
    }
    if let (Dialect::StepTrace, Some((least, most))) = (dialect, table.decoders)
        && most > 0
    {
        remarks.push(format!("decoder_idx runs from {least} to {most}; it is not kept"));
    }
    if !table.odd_absolute.is_empty() {
        remarks.push(format!(
            "comp_after.absolute_position is not position + 1 in {} rows",
            table.odd_absolute.len()
        ));
    }
    remarks
}

fn name_samples(table: &Table, steps: &mut StepColumns) {
    for (index, &start) in table.starts.iter().enumerate() {
        let end = table.starts.get(index + 1).copied().unwrap_or(table.len());
        steps.sample_ids.push(format!("sample_{index}"));
        steps
            .sample
            .extend(std::iter::repeat_n(u32::try_from(index).unwrap_or(u32::MAX), end - start));
    }
}

/// Ordinals: as written where the rows have them, else counted wherever rows were dropped.
fn compactions(table: &Table, counts: RowCounts, steps: &mut StepColumns) {
    if table.says_compaction {
        steps.compaction =
            table.compaction.iter().map(|index| index.map(|index| index + 1)).collect();
        return;
    }
    let grown = u32::from(counts == RowCounts::Exact);
    let (mut ordinal, mut sample) = (0, None);
    for row in 0..table.len() {
        if sample != Some(steps.sample[row]) {
            sample = Some(steps.sample[row]);
            ordinal = 0;
        }
        let dropped = table.rows_after[row] < table.rows_before[row].saturating_add(grown);
        ordinal += u32::from(dropped);
        steps.compaction.push(dropped.then_some(ordinal));
    }
}

/// Compactions that lie before a window or between two rows cannot be numbered; they are said.
fn unseen_compactions(table: &Table, counts: RowCounts, dialect: Dialect) -> Vec<String> {
    let mut remarks = Vec::new();
    for (index, &start) in table.starts.iter().enumerate() {
        let end = table.starts.get(index + 1).copied().unwrap_or(table.len());
        if table.rows_before[start] < table.position[start] && !table.says_compaction {
            remarks.push(format!(
                "sample_{index} starts with {} rows at position {}: rows were dropped before; ordinals count from the \
                 first compaction in the file",
                table.rows_before[start], table.position[start]
            ));
        }
        let hidden =
            (start + 1..end).find(|&row| table.rows_before[row] < table.rows_after[row - 1]);
        if let (Some(row), RowCounts::Exact) = (hidden, counts) {
            remarks.push(format!(
                "sample_{index}: rows fall from {} to {} between positions {} and {}, outside any step of this {}",
                table.rows_after[row - 1],
                table.rows_before[row],
                table.position[row - 1],
                table.position[row],
                dialect.name(),
            ));
        }
    }
    remarks
}

/// Fed and chosen tokens and phases. The last row of a sample has no successor, so what it chose is unknown, but for
/// a neutral trace, which names the chosen token and leaves the fed one to the row before.
fn tokens(table: &Table, dialect: Dialect, options: &ForeignOptions, steps: &mut StepColumns) {
    let prompt_len = options.prompt_len.unwrap_or(0);
    for row in 0..table.len() {
        let position = table.position[row];
        let same = |other: usize| steps.sample.get(other) == steps.sample.get(row);
        let (fed, chosen) = if dialect == Dialect::Neutral {
            let fed =
                row.checked_sub(1).filter(|&before| same(before)).map(|before| table.token[before]);
            (fed.unwrap_or(UNKNOWN_TOKEN), Some(table.token[row]))
        } else {
            let chosen = table.token.get(row + 1).copied().filter(|_| same(row + 1));
            (table.token[row], chosen)
        };
        steps.phase.push(if position < prompt_len { Phase::Prompt } else { Phase::Decode });
        steps.token_id.push(fed);
        steps.next_token.push(chosen.filter(|_| position.saturating_add(1) >= prompt_len));
    }
}

/// What the rows tell of each compaction. Protected and candidate rows and times are not in such files: they are 0.
fn events(steps: &StepColumns, counts: RowCounts, odd: &[(usize, u32)]) -> Vec<EventRow> {
    let grown = u32::from(counts == RowCounts::Exact);
    let mut events = Vec::new();
    for row in 0..steps.len {
        let Some(ordinal) = steps.compaction[row] else { continue };
        let told = odd.binary_search_by_key(&row, |(at, _)| *at).ok().map(|found| odd[found].1);
        events.push(EventRow {
            sample_id: steps.sample_id(row).unwrap_or_default().to_owned(),
            ordinal,
            absolute_position: told.unwrap_or(steps.position[row].saturating_add(1)),
            round_start: None,
            rows_before: steps.rows_before[row].saturating_add(grown),
            rows_after: steps.rows_after[row],
            protected: 0,
            candidates: 0,
            score_seconds: 0.0,
            reduce_seconds: 0.0,
            select_seconds: 0.0,
            gather_seconds: 0.0,
            dump: None,
        });
    }
    events
}

fn manifest(
    dialect: Dialect,
    steps: &StepColumns,
    counts: RowCounts,
    encoding: ValueEncoding,
    cut: bool,
    remarks: &[String],
) -> Manifest {
    let producer = Producer { name: dialect.name().to_owned(), ..Producer::default() };
    let mut manifest = Manifest::new(producer, "unknown");
    manifest.status = if cut { Status::Incomplete } else { Status::Complete };
    manifest.encoding = encoding;
    manifest.rows_exact = counts == RowCounts::Exact;
    manifest.includes_prompt = steps.position.first() == Some(&0);
    manifest.remarks = remarks.to_vec();
    manifest.set("trace.top_k", steps.top_k, "imported");
    manifest.set("trace.dialect", dialect.name(), "imported");
    manifest.set("trace.sample_ids", "invented", "imported");
    if let RowCounts::Bucketed(bucket) = counts {
        manifest.set("trace.row_bucket", bucket, "imported");
    }
    manifest
}
