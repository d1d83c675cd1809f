//! Steps as flat vectors: what a reader asks for and what it gets.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;

use crate::{Phase, StepRow};

/// A column of `steps.parquet` beyond the sample and the position, which are always read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum StepColumn {
    /// [`StepRow::phase`].
    Phase,
    /// [`StepRow::token_id`].
    TokenId,
    /// [`StepRow::next_token`].
    NextToken,
    /// [`StepRow::rows_before`].
    RowsBefore,
    /// [`StepRow::rows_after`].
    RowsAfter,
    /// [`StepRow::rows_bucketed`].
    RowsBucketed,
    /// [`StepRow::compaction`].
    Compaction,
    /// [`StepRow::rope_index`].
    RopeIndex,
    /// [`StepRow::argmax`].
    Argmax,
    /// [`StepRow::top_ids`].
    TopIds,
    /// [`StepRow::top_logits`].
    TopLogits,
    /// [`StepRow::logsumexp`].
    Logsumexp,
    /// [`StepRow::top2_margin`].
    Top2Margin,
    /// [`StepRow::finite`].
    Finite,
    /// [`StepRow::logits_hash`].
    LogitsHash,
    /// [`StepRow::rng_offset`].
    RngOffset,
    /// [`StepRow::uniform`].
    Uniform,
}

impl StepColumn {
    /// Every column, in file order.
    pub const ALL: [Self; 17] = [
        Self::Phase,
        Self::TokenId,
        Self::NextToken,
        Self::RowsBefore,
        Self::RowsAfter,
        Self::RowsBucketed,
        Self::Compaction,
        Self::RopeIndex,
        Self::Argmax,
        Self::TopIds,
        Self::TopLogits,
        Self::Logsumexp,
        Self::Top2Margin,
        Self::Finite,
        Self::LogitsHash,
        Self::RngOffset,
        Self::Uniform,
    ];
}

/// Which step rows and which of their columns. The default is everything.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StepQuery {
    /// Rows of this sample only.
    pub sample_id: Option<String>,
    /// Rows whose position lies in this range.
    pub positions: Option<RangeInclusive<u32>>,
    /// These columns only; `None`: all.
    pub columns: Option<Vec<StepColumn>>,
}

impl StepQuery {
    /// The columns asked for.
    pub(crate) fn wanted(&self) -> BTreeSet<StepColumn> {
        match &self.columns {
            Some(columns) => columns.iter().copied().collect(),
            None => StepColumn::ALL.into_iter().collect(),
        }
    }
}

/// Step rows by column, ordered by sample (in order of the samples' first rows) and position.
///
/// `sample`, `position` always have [`StepColumns::len`] entries; another vector has as many where its column
/// was asked for, else none. `top_ids` and `top_logits` are flat with stride `top_k`; row `i` holds
/// `top_len[i]` valid entries (fewer than the stride only where a producer recorded fewer), the rest is
/// filled with `u32::MAX` and NaN: use [`StepColumns::ids_of`] and [`StepColumns::logits_of`].
#[derive(Debug, Clone, Default, PartialEq)]
pub struct StepColumns {
    /// Rows.
    pub len: usize,
    /// Names of the samples, in order of their first rows.
    pub sample_ids: Vec<String>,
    /// Index into `sample_ids`.
    pub sample: Vec<u32>,
    /// Absolute position.
    pub position: Vec<u32>,
    /// Prompt or decode.
    pub phase: Vec<Phase>,
    /// Token fed.
    pub token_id: Vec<u32>,
    /// Token chosen.
    pub next_token: Vec<Option<u32>>,
    /// Live rows before.
    pub rows_before: Vec<u32>,
    /// Live rows after.
    pub rows_after: Vec<u32>,
    /// Rows as rounded up by an engine.
    pub rows_bucketed: Vec<Option<u32>>,
    /// Compaction ordinal, 1-based.
    pub compaction: Vec<Option<u32>>,
    /// Index used by the rotary embedding.
    pub rope_index: Vec<Option<u32>>,
    /// Largest logit's id.
    pub argmax: Vec<u32>,
    /// Stride of `top_ids` and `top_logits`.
    pub top_k: usize,
    /// Valid entries by row; present where ids or logits are.
    pub top_len: Vec<u32>,
    /// Ids of the largest logits, `[len, top_k]`.
    pub top_ids: Vec<u32>,
    /// The logits, `[len, top_k]`.
    pub top_logits: Vec<f32>,
    /// ln(sum(exp(logit))).
    pub logsumexp: Vec<Option<f64>>,
    /// Largest minus second largest.
    pub top2_margin: Vec<Option<f32>>,
    /// No NaN or infinity.
    pub finite: Vec<bool>,
    /// Order-free hash.
    pub logits_hash: Vec<Option<[u64; 2]>>,
    /// Counter before the draw.
    pub rng_offset: Vec<Option<u64>>,
    /// Number that decided the draw.
    pub uniform: Vec<Option<f32>>,
}

impl StepColumns {
    /// True where there are no rows.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Name of the sample of row `i`.
    #[must_use]
    pub fn sample_id(&self, i: usize) -> Option<&str> {
        let index = usize::try_from(*self.sample.get(i)?).ok()?;
        self.sample_ids.get(index).map(String::as_str)
    }

    /// Recorded ids of row `i`; empty where the column was not read or the row does not exist.
    #[must_use]
    pub fn ids_of(&self, i: usize) -> &[u32] {
        self.part(i).and_then(|range| self.top_ids.get(range)).unwrap_or_default()
    }

    /// Recorded logits of row `i`; empty where the column was not read or the row does not exist.
    #[must_use]
    pub fn logits_of(&self, i: usize) -> &[f32] {
        self.part(i).and_then(|range| self.top_logits.get(range)).unwrap_or_default()
    }

    fn part(&self, i: usize) -> Option<std::ops::Range<usize>> {
        let count = usize::try_from(*self.top_len.get(i)?).ok()?;
        let start = i.checked_mul(self.top_k)?;
        Some(start..start.checked_add(count)?)
    }

    /// Row `i`; `None` past the end, and where a column was not read: a row is never filled with guesses.
    #[must_use]
    pub fn row(&self, i: usize) -> Option<StepRow> {
        if self.top_ids.len() != self.top_logits.len() {
            return None;
        }
        Some(StepRow {
            sample_id: self.sample_id(i)?.to_owned(),
            position: *self.position.get(i)?,
            phase: *self.phase.get(i)?,
            token_id: *self.token_id.get(i)?,
            next_token: *self.next_token.get(i)?,
            rows_before: *self.rows_before.get(i)?,
            rows_after: *self.rows_after.get(i)?,
            rows_bucketed: *self.rows_bucketed.get(i)?,
            compaction: *self.compaction.get(i)?,
            rope_index: *self.rope_index.get(i)?,
            argmax: *self.argmax.get(i)?,
            top_ids: self.top_ids.get(self.part(i)?)?.to_vec(),
            top_logits: self.top_logits.get(self.part(i)?)?.to_vec(),
            logsumexp: *self.logsumexp.get(i)?,
            top2_margin: *self.top2_margin.get(i)?,
            finite: *self.finite.get(i)?,
            logits_hash: *self.logits_hash.get(i)?,
            rng_offset: *self.rng_offset.get(i)?,
            uniform: *self.uniform.get(i)?,
        })
    }

    /// All columns of these rows, in the order given; samples are numbered by first appearance.
    #[must_use]
    pub fn from_rows(rows: &[StepRow]) -> Self {
        let mut out = Self::default();
        let mut index: BTreeMap<&str, u32> = BTreeMap::new();
        for row in rows {
            let next = u32::try_from(index.len()).unwrap_or(u32::MAX);
            let sample = *index.entry(&row.sample_id).or_insert_with(|| {
                out.sample_ids.push(row.sample_id.clone());
                next
            });
            out.push(sample, row);
        }
        out
    }

    fn push(&mut self, sample: u32, row: &StepRow) {
        // A row whose two lists differ in length counts as far as both go.
        let count = row.top_ids.len().min(row.top_logits.len());
        self.grow_stride(count, [true, true]);
        self.sample.push(sample);
        self.position.push(row.position);
        self.phase.push(row.phase);
        self.token_id.push(row.token_id);
        self.next_token.push(row.next_token);
        self.rows_before.push(row.rows_before);
        self.rows_after.push(row.rows_after);
        self.rows_bucketed.push(row.rows_bucketed);
        self.compaction.push(row.compaction);
        self.rope_index.push(row.rope_index);
        self.argmax.push(row.argmax);
        self.top_len.push(u32::try_from(count).unwrap_or(u32::MAX));
        self.top_ids.extend(row.top_ids.iter().take(count));
        self.top_logits.extend(row.top_logits.iter().take(count));
        self.logsumexp.push(row.logsumexp);
        self.top2_margin.push(row.top2_margin);
        self.finite.push(row.finite);
        self.logits_hash.push(row.logits_hash);
        self.rng_offset.push(row.rng_offset);
        self.uniform.push(row.uniform);
        self.len += 1;
        self.top_ids.resize(self.len * self.top_k, u32::MAX);
        self.top_logits.resize(self.len * self.top_k, f32::NAN);
    }

    /// Makes room for rows of `wanted` entries in the two lists that are kept (`[ids, logits]`); existing rows
    /// move to the wider stride.
    pub(crate) fn grow_stride(&mut self, wanted: usize, kept: [bool; 2]) {
        if wanted <= self.top_k {
            return;
        }
        let rows = self.top_len.len();
        if kept[0] {
            self.top_ids = widen(&self.top_ids, self.top_k, wanted, rows, u32::MAX);
        }
        if kept[1] {
            self.top_logits = widen(&self.top_logits, self.top_k, wanted, rows, f32::NAN);
        }
        self.top_k = wanted;
    }

    /// The rows at `order`, in that order.
    pub(crate) fn gather(&self, order: &[usize]) -> Self {
        let flat: Vec<usize> =
            order.iter().flat_map(|&row| row * self.top_k..(row + 1) * self.top_k).collect();
        Self {
            len: order.len(),
            sample_ids: self.sample_ids.clone(),
            sample: pick(&self.sample, order),
            position: pick(&self.position, order),
            phase: pick(&self.phase, order),
            token_id: pick(&self.token_id, order),
            next_token: pick(&self.next_token, order),
            rows_before: pick(&self.rows_before, order),
            rows_after: pick(&self.rows_after, order),
            rows_bucketed: pick(&self.rows_bucketed, order),
            compaction: pick(&self.compaction, order),
            rope_index: pick(&self.rope_index, order),
            argmax: pick(&self.argmax, order),
            top_k: self.top_k,
            top_len: pick(&self.top_len, order),
            top_ids: pick(&self.top_ids, &flat),
            top_logits: pick(&self.top_logits, &flat),
            logsumexp: pick(&self.logsumexp, order),
            top2_margin: pick(&self.top2_margin, order),
            finite: pick(&self.finite, order),
            logits_hash: pick(&self.logits_hash, order),
            rng_offset: pick(&self.rng_offset, order),
            uniform: pick(&self.uniform, order),
        }
    }
}

fn pick<T: Copy>(values: &[T], order: &[usize]) -> Vec<T> {
    order.iter().filter_map(|&row| values.get(row).copied()).collect()
}

fn widen<T: Copy>(values: &[T], from: usize, to: usize, rows: usize, fill: T) -> Vec<T> {
    let mut out = Vec::with_capacity(rows * to);
    for row in 0..rows {
        out.extend_from_slice(values.get(row * from..(row + 1) * from).unwrap_or_default());
        out.resize((row + 1) * to, fill);
    }
    out
}
