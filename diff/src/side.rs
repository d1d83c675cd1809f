//! One side of a comparison: borrowed tables, rows of one sample, one row.

use std::collections::BTreeMap;

use lockstep_traces::foreign::{Loaded, UNKNOWN_TOKEN};
use lockstep_traces::limits::Values;
use lockstep_traces::store::StepColumns;
use lockstep_traces::{EventRow, FinishReason, Manifest, Phase, SampleRow, Status};

/// Everything that a comparison reads of one side.
#[derive(Debug, Clone, Copy)]
pub struct Side<'a> {
    /// Path or name, for people.
    pub label: &'a str,
    /// Manifest.
    pub manifest: &'a Manifest,
    /// Finished samples; may be empty for imported traces.
    pub samples: &'a [SampleRow],
    /// Step rows, ordered by sample and position, with every column.
    pub steps: &'a StepColumns,
    /// Compactions.
    pub events: &'a [EventRow],
}

impl<'a> Side<'a> {
    /// A loaded trace as a side; `samples` are the run's finished samples, or empty.
    #[must_use]
    pub fn of(label: &'a str, loaded: &'a Loaded, samples: &'a [SampleRow]) -> Self {
        Self {
            label,
            manifest: &loaded.manifest,
            samples,
            steps: &loaded.steps,
            events: &loaded.events,
        }
    }

    /// Sample ids were made up by the importer: samples are known by their order only.
    pub(crate) fn invented_ids(&self) -> bool {
        self.manifest.get("trace.sample_ids").and_then(serde_json::Value::as_str)
            == Some("invented")
    }

    /// Rows of each sample: index range of `steps`, by sample id in order of first rows.
    pub(crate) fn tracks(&self) -> Vec<Track<'a>> {
        let logprobs = self.logprobs();
        let mut tracks: Vec<Track<'a>> = Vec::new();
        let mut start = 0;
        while start < self.steps.len {
            let sample = self.steps.sample.get(start);
            let mut end = start + 1;
            while end < self.steps.len && self.steps.sample.get(end) == sample {
                end += 1;
            }
            if let Some(id) = self.steps.sample_id(start) {
                let meta = self.samples.iter().find(|row| row.sample_id == id);
                // A full cache may end a sample with a teacher or without one; an unfinished sample does not say.
                let taught = meta.map_or(self.manifest.status == Status::Incomplete, |meta| {
                    matches!(meta.finish, FinishReason::Forced | FinishReason::CacheFull)
                });
                tracks.push(Track {
                    id,
                    steps: self.steps,
                    start,
                    len: end - start,
                    meta,
                    taught,
                    logprobs,
                    rows_known: self.manifest.limits.rows,
                });
            }
            start = end;
        }
        tracks
    }

    /// A policy or sampling value as text, where recorded.
    pub(crate) fn text(&self, key: &str) -> Option<String> {
        self.manifest.get(key).map(|value| match value {
            serde_json::Value::String(text) => text.clone(),
            other => other.to_string(),
        })
    }

    /// True where sampling is known to be argmax; `None` where the temperature is not recorded.
    pub(crate) fn greedy(&self) -> Option<bool> {
        self.manifest.get("sampling.temperature")?.as_f64().map(|value| value < 1e-6)
    }

    /// The stored values are log-probabilities of some kind.
    pub(crate) fn logprobs(&self) -> bool {
        !matches!(self.manifest.limits.values, Values::Logits | Values::Nothing)
    }

    pub(crate) fn events_of(&self, sample: &str) -> BTreeMap<u32, &'a EventRow> {
        self.events
            .iter()
            .filter(|event| event.sample_id == sample)
            .map(|event| (event.ordinal, event))
            .collect()
    }
}

/// Rows of one sample on one side.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Track<'a> {
    /// Sample id.
    pub(crate) id: &'a str,
    steps: &'a StepColumns,
    start: usize,
    /// Rows.
    pub(crate) len: usize,
    /// Its row in the samples table.
    pub(crate) meta: Option<&'a SampleRow>,
    /// A teacher may have fed it: what is fed need not be what the rows chose.
    pub(crate) taught: bool,
    logprobs: bool,
    rows_known: bool,
}

impl<'a> Track<'a> {
    /// Row `i` of the sample.
    pub(crate) fn row(&self, i: usize) -> Option<Row<'a>> {
        if i >= self.len {
            return None;
        }
        let (at, steps) = (self.start + i, self.steps);
        Some(Row {
            position: *steps.position.get(at)?,
            phase: *steps.phase.get(at)?,
            token_id: *steps.token_id.get(at)?,
            next_token: steps.next_token.get(at)?.filter(|token| *token != UNKNOWN_TOKEN),
            rows_before: *steps.rows_before.get(at)?,
            rows_after: *steps.rows_after.get(at)?,
            rows_bucketed: *steps.rows_bucketed.get(at)?,
            compaction: *steps.compaction.get(at)?,
            argmax: *steps.argmax.get(at)?,
            ids: steps.ids_of(at),
            logits: steps.logits_of(at),
            logsumexp: *steps.logsumexp.get(at)?,
            stored_margin: *steps.top2_margin.get(at)?,
            finite: *steps.finite.get(at)?,
            hash: *steps.logits_hash.get(at)?,
            rng_offset: *steps.rng_offset.get(at)?,
            uniform: *steps.uniform.get(at)?,
            logprobs: self.logprobs,
            rows_known: self.rows_known,
        })
    }

    /// Position of row `i`.
    pub(crate) fn position(&self, i: usize) -> Option<u32> {
        if i >= self.len {
            return None;
        }
        self.steps.position.get(self.start + i).copied()
    }

    /// Token fed at row `i`; `None` where the trace does not tell.
    pub(crate) fn token(&self, i: usize) -> Option<u32> {
        if i >= self.len {
            return None;
        }
        self.steps.token_id.get(self.start + i).copied().filter(|token| *token != UNKNOWN_TOKEN)
    }

    /// Both rows are known to have been fed, and with different tokens.
    pub(crate) fn fed_differs(&self, i: usize, other: &Self, j: usize) -> bool {
        self.token(i).zip(other.token(j)).is_some_and(|(left, right)| left != right)
    }

    /// Token chosen from the logits of row `i`: what the next row was fed, where that row is there and no prompt row;
    /// else what the row itself records.
    pub(crate) fn chosen(&self, i: usize) -> Option<u32> {
        let row = self.row(i)?;
        match self.row(i + 1) {
            Some(next) if next.position == row.position.wrapping_add(1) => {
                let fed = Some(next.token_id).filter(|fed| *fed != UNKNOWN_TOKEN);
                fed.or(row.next_token).filter(|_| next.phase == Phase::Decode)
            }
            _ => row.next_token,
        }
    }

    /// Decode rows that were fed another token than the row before them records as chosen: the first position and
    /// their number. A sample that a teacher may have fed has none.
    pub(crate) fn contradictions(&self) -> Option<(u32, u64)> {
        let wrong = (0..self.len.saturating_sub(1)).filter_map(|i| {
            let (row, next) = (self.row(i)?, self.row(i + 1)?);
            let follows = next.position == row.position.wrapping_add(1);
            let fed = self.token(i + 1).filter(|_| follows && next.phase == Phase::Decode)?;
            row.next_token.filter(|chosen| *chosen != fed).map(|_| row.position)
        });
        let mut wrong = wrong.filter(|_| !self.taught);
        let first = wrong.next()?;
        Some((first, 1 + wrong.count() as u64))
    }

    pub(crate) fn prompt_len(&self) -> Option<u32> {
        self.meta.and_then(|meta| meta.prompt_len)
    }
}

/// One row, borrowed.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Row<'a> {
    pub(crate) position: u32,
    pub(crate) phase: Phase,
    pub(crate) token_id: u32,
    pub(crate) next_token: Option<u32>,
    pub(crate) rows_before: u32,
    pub(crate) rows_after: u32,
    pub(crate) rows_bucketed: Option<u32>,
    pub(crate) compaction: Option<u32>,
    pub(crate) argmax: u32,
    pub(crate) ids: &'a [u32],
    pub(crate) logits: &'a [f32],
    pub(crate) logsumexp: Option<f64>,
    pub(crate) stored_margin: Option<f32>,
    pub(crate) finite: bool,
    pub(crate) hash: Option<[u64; 2]>,
    pub(crate) rng_offset: Option<u64>,
    pub(crate) uniform: Option<f32>,
    logprobs: bool,
    rows_known: bool,
}

impl Row<'_> {
    /// Rows before and after, where the source counts them.
    pub(crate) fn rows(&self) -> Option<(u32, u32)> {
        self.rows_known.then_some((self.rows_before, self.rows_after))
    }

    /// Id with the largest value, where the trace tells it.
    pub(crate) fn best(&self) -> Option<u32> {
        (self.argmax != UNKNOWN_TOKEN).then_some(self.argmax)
    }

    /// Stored logit of `id`.
    pub(crate) fn logit(&self, id: u32) -> Option<f64> {
        let at = self.ids.iter().position(|other| *other == id)?;
        self.logits.get(at).map(|logit| f64::from(*logit))
    }

    /// A NaN or an infinity is among the logits. A log-probability may be minus infinity: the token cannot come.
    pub(crate) fn non_finite(&self) -> bool {
        if self.logprobs {
            return self.logits.iter().any(|value| value.is_nan() || *value == f32::INFINITY);
        }
        !self.finite || self.logits.iter().any(|logit| !logit.is_finite())
    }

    /// A NaN is among the stored logits.
    pub(crate) fn stored_nan(&self) -> bool {
        self.logits.iter().any(|logit| logit.is_nan())
    }

    /// None of the stored logits is finite.
    pub(crate) fn nothing_finite(&self) -> bool {
        !self.logits.is_empty() && self.logits.iter().all(|logit| !logit.is_finite())
    }

    /// Largest and second largest stored logit with their ids, lower id first on equal values.
    pub(crate) fn top2(&self) -> Option<[(u32, f64); 2]> {
        let mut best: Option<(u32, f64)> = None;
        let mut second: Option<(u32, f64)> = None;
        for (id, logit) in self.ids.iter().zip(self.logits) {
            let entry = (*id, f64::from(*logit));
            if entry.1.is_nan() {
                return None;
            }
            if best.is_none_or(|best| before(entry, best)) {
                second = best;
                best = Some(entry);
            } else if second.is_none_or(|second| before(entry, second)) {
                second = Some(entry);
            }
        }
        Some([best?, second?])
    }

    /// Largest minus second largest logit, and the largest.
    pub(crate) fn margin(&self) -> Option<(f64, f64)> {
        if let Some([best, second]) = self.top2() {
            return Some((best.1 - second.1, best.1)).filter(|(margin, _)| margin.is_finite());
        }
        let margin = self.stored_margin.map(f64::from).filter(|margin| margin.is_finite())?;
        Some((margin, self.logits.first().map_or(0.0, |logit| f64::from(*logit))))
    }
}

fn before(left: (u32, f64), right: (u32, f64)) -> bool {
    left.1 > right.1 || (left.1 >= right.1 && left.0 < right.0)
}
