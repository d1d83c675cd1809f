//! Cells become step rows, and what is not there is said.

use std::path::Path;

use super::cells::{Batch, List};
use super::columns::Found;
use crate::foreign::{ForeignOptions, Loaded, UNKNOWN_TOKEN};
use crate::store::StepColumns;
use crate::store::fail::malformed;
use crate::{Phase, StepRow, TraceError};
use arrow::array::RecordBatch;

/// Rows as they stand in the file.
pub(super) struct Table<'a> {
    pub(super) path: &'a Path,
    pub(super) found: &'a Found,
    pub(super) rows: Vec<StepRow>,
    /// Rows whose phase the file gives.
    pub(super) phases: Vec<Option<Phase>>,
    pub(super) seen: Seen,
}

/// What was met on the way.
#[derive(Debug, Default)]
pub(super) struct Seen {
    /// Values of lists that are empty, and the first row with one.
    pub(super) missing_values: (usize, usize),
    /// Rows without a count.
    pub(super) missing_rows: usize,
    /// Rows whose fed token is empty.
    pub(super) missing_tokens: usize,
    /// Values that no f32 holds.
    pub(super) rounded: usize,
    /// Rows whose `argmax_logit` is not the largest of the list: how many, first row, its position.
    pub(super) argmax_logit: Option<(usize, usize, u32)>,
    pub(super) other_argmax: usize,
}

impl<'a> Table<'a> {
    pub(super) fn new(path: &'a Path, found: &'a Found) -> Self {
        Self { path, found, rows: Vec::new(), phases: Vec::new(), seen: Seen::default() }
    }

    pub(super) fn len(&self) -> usize {
        self.rows.len()
    }

    pub(super) fn append(&mut self, batch: &RecordBatch) -> Result<(), TraceError> {
        let cells = Batch { path: self.path, found: self.found, batch, before: self.rows.len() };
        let mut samples = cells.texts("sample_id")?;
        let phases = cells.texts("phase")?;
        let (positions, tokens) = (cells.ids("position")?, cells.ids("token_id")?);
        let (next, argmax) = (cells.ids("next_token")?, cells.ids("argmax")?);
        let (before, after) = (cells.ids("rows_before")?, cells.ids("rows_after")?);
        let (bucketed, compaction) = (cells.ids("rows_bucketed")?, cells.ids("compaction")?);
        let (rope, offsets) = (cells.ids("rope_index")?, cells.wholes("rng_offset")?);
        let (sums, margins) = (cells.numbers("logsumexp")?, cells.numbers("top2_margin")?);
        let (uniforms, argmax_logit) = (cells.numbers("uniform")?, cells.numbers("argmax_logit")?);
        let finite = cells.truths("finite");
        let (ids, values) = (cells.id_lists("top_ids")?, cells.number_lists("top_logits")?);
        for row in 0..batch.num_rows() {
            let position = at(&positions, row)
                .ok_or_else(|| cells.error("position", row, "is empty; every row needs one"))?;
            let (top_ids, top_logits, first_missing) =
                self.list(&cells, row, at(&ids, row), at(&values, row))?;
            let largest = top_ids.first().copied().filter(|_| !first_missing);
            let has_finite = at(&finite, row);
            let rows = at(&before, row).zip(at(&after, row));
            self.seen.missing_rows += usize::from(rows.is_none());
            let token = at(&tokens, row).filter(|token| *token != UNKNOWN_TOKEN);
            self.seen.missing_tokens += usize::from(token.is_none());
            let phase = at(&phases, row)
                .map(|word| match word.as_str() {
                    "prompt" => Ok(Phase::Prompt),
                    "decode" => Ok(Phase::Decode),
                    _ => Err(cells.error(
                        "phase",
                        row,
                        format!("`{word}` is neither prompt nor decode"),
                    )),
                })
                .transpose()?;
            let said = at(&argmax, row).filter(|id| *id != UNKNOWN_TOKEN);
            let best = said.or(largest);
            self.seen.other_argmax +=
                usize::from(best.zip(largest).is_some_and(|(best, largest)| best != largest));
            self.argmax_logit(at(&argmax_logit, row), &top_logits, position);
            self.phases.push(phase);
            let sample_id = samples.get_mut(row).and_then(Option::take);
            if self.found.has("sample_id") && sample_id.is_none() {
                return Err(cells.error("sample_id", row, "is empty; every row needs one"));
            }
            let finite =
                has_finite.unwrap_or_else(|| top_logits.iter().all(|value| value.is_finite()));
            self.rows.push(StepRow {
                sample_id: sample_id.unwrap_or_default(),
                position,
                phase: phase.unwrap_or(Phase::Decode),
                token_id: token.unwrap_or(UNKNOWN_TOKEN),
                next_token: at(&next, row).filter(|id| *id != UNKNOWN_TOKEN),
                rows_before: rows.map_or(position, |rows| rows.0),
                rows_after: rows.map_or(position.saturating_add(1), |rows| rows.1),
                rows_bucketed: at(&bucketed, row),
                compaction: at(&compaction, row),
                rope_index: at(&rope, row),
                argmax: best.unwrap_or(UNKNOWN_TOKEN),
                top_ids,
                top_logits,
                logsumexp: at(&sums, row),
                top2_margin: at(&margins, row).map(single),
                finite,
                logits_hash: None,
                rng_offset: at(&offsets, row).and_then(|offset| u64::try_from(offset).ok()),
                uniform: at(&uniforms, row).map(single),
            });
        }
        Ok(())
    }

    /// One row's list without its empty values, the largest first; true where the first entry's value is empty.
    fn list(
        &mut self,
        cells: &Batch<'_>,
        row: usize,
        ids: Option<List<u32>>,
        values: Option<List<f64>>,
    ) -> Result<(Vec<u32>, Vec<f32>, bool), TraceError> {
        let ids = ids.unwrap_or_default();
        // Ids without any value say which token is the largest, and no more.
        let Some(values) = values else { return Ok((Vec::new(), Vec::new(), true)) };
        if ids.len() != values.len() {
            let what = format!("{} ids and {} values", ids.len(), values.len());
            return Err(cells.error("top_ids", row, what));
        }
        let (mut pairs, mut first_missing) = (Vec::with_capacity(ids.len()), false);
        for (place, entry) in ids.iter().zip(&values).enumerate() {
            if let (Some(id), Some(value)) = entry {
                let narrow = single(*value);
                let same = f64::from(narrow).to_bits() == value.to_bits() || value.is_nan();
                self.seen.rounded += usize::from(!same);
                pairs.push((*id, narrow));
            } else {
                first_missing |= place == 0;
                let (count, first) = self.seen.missing_values;
                let here = if count == 0 { cells.before + row + 1 } else { first };
                self.seen.missing_values = (count + 1, here);
            }
        }
        if !pairs.iter().any(|(_, value)| value.is_nan()) {
            pairs.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
        }
        let (ids, values) = pairs.into_iter().unzip();
        Ok((ids, values, first_missing))
    }

    fn argmax_logit(&mut self, said: Option<f64>, values: &[f32], position: u32) {
        let (Some(said), Some(first)) = (said, values.first()) else { return };
        if said.is_nan() || first.is_nan() || single(said).to_bits() == first.to_bits() {
            return;
        }
        let row = self.rows.len() + 1;
        let (count, row, position) = self.seen.argmax_logit.unwrap_or((0, row, position));
        self.seen.argmax_logit = Some((count + 1, row, position));
    }

    /// Samples in order of their first rows, tokens chosen, phases, compactions, manifest.
    pub(super) fn finish(
        mut self,
        found: &Found,
        writer: &str,
        options: &ForeignOptions,
    ) -> Result<Loaded, TraceError> {
        if self.rows.is_empty() {
            return Err(malformed(self.path, "holds no row"));
        }
        let invented = !found.has("sample_id");
        if invented {
            self.name_samples(options)?;
        }
        self.group()?;
        let known_rows = self.seen.missing_rows == 0;
        if known_rows {
            self.check_rows()?;
        } else {
            for row in &mut self.rows {
                (row.rows_before, row.rows_after) = (row.position, row.position.saturating_add(1));
            }
        }
        self.phases_and_choices(found, options);
        let events = if known_rows { self.compactions(found) } else { Vec::new() };
        let remarks = self.remarks(found, options, known_rows);
        let mut manifest = self.manifest(found, writer, known_rows, &remarks);
        let steps = StepColumns::from_rows(&self.rows);
        manifest.set("trace.top_k", steps.top_k, "imported");
        if invented {
            manifest.set("trace.sample_ids", "invented", "imported");
        }
        Ok(Loaded { manifest, samples: steps.sample_ids.clone(), steps, events, remarks })
    }
}

fn at<T: Clone>(cells: &[Option<T>], row: usize) -> Option<T> {
    cells.get(row).cloned().flatten()
}

#[expect(clippy::cast_possible_truncation, reason = "traces hold f32; what that loses is counted")]
fn single(value: f64) -> f32 {
    value as f32
}
