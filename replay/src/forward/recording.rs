//! One sample of a run as the replay needs it: which token stood where, and when rows were dropped.

use lockstep_traces::store::{RunReader, StepColumn, StepQuery};
use lockstep_traces::{Phase, SampleRow};

use crate::ReplayError;

/// One token of the sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RecordedRow {
    /// Token fed.
    pub token_id: u32,
    /// Token chosen from this row's logits.
    pub next_token: Option<u32>,
    /// Prompt or decode.
    pub phase: Phase,
    /// Rows before and after, largest logit; `None` where the trace has no such row and the token comes from the samples table.
    pub trace: Option<TraceRow>,
}

/// What the trace says about a row beyond its token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TraceRow {
    /// Live rows before the append.
    pub rows_before: u32,
    /// Live rows after append and compaction.
    pub rows_after: u32,
    /// Ordinal of the compaction of this step.
    pub compaction: Option<u32>,
    /// Largest logit's id.
    pub argmax: u32,
}

/// One compaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Event {
    /// 1-based.
    pub ordinal: u32,
    /// N: the compaction happened when the rows of positions below N, and no others, had been appended.
    pub absolute_position: u32,
    /// Rows before.
    pub rows_before: u32,
    /// Rows after.
    pub rows_after: u32,
    /// R as recorded.
    pub round_start: Option<u32>,
    /// Made before the forward of row N (vllm, sglang) and not after the append of row N - 1.
    pub before_forward: bool,
}

/// One sample, gapless from position 0.
#[derive(Debug, Clone, PartialEq)]
pub struct Recording {
    /// Sample.
    pub sample_id: String,
    /// Prompt length.
    pub prompt_len: usize,
    /// Row `i` has position `i`.
    pub rows: Vec<RecordedRow>,
    /// First position that the trace itself holds.
    pub first_traced: usize,
    /// Compactions in order.
    pub events: Vec<Event>,
    /// The samples table's row, where the sample ended.
    pub sample: Option<SampleRow>,
}

impl Recording {
    /// Reads one sample. Prompt rows that the trace does not hold are filled in from the samples table.
    ///
    /// # Errors
    /// [`ReplayError::Incomparable`] where positions have gaps, or rows are missing that no table can give.
    pub fn read(run: &RunReader, sample_id: &str) -> Result<Self, ReplayError> {
        let columns = run.steps(&StepQuery {
            sample_id: Some(sample_id.to_owned()),
            positions: None,
            columns: Some(vec![
                StepColumn::Phase,
                StepColumn::TokenId,
                StepColumn::NextToken,
                StepColumn::RowsBefore,
                StepColumn::RowsAfter,
                StepColumn::Compaction,
                StepColumn::Argmax,
            ]),
        })?;
        let sample = run.samples()?.into_iter().find(|sample| sample.sample_id == sample_id);
        let fail = |what: String| ReplayError::incomparable(sample_id, what);
        let Some(first) = columns.position.first().copied() else {
            return Err(fail("the trace holds no row of it".to_owned()));
        };
        for (offset, position) in columns.position.iter().enumerate() {
            if *position as usize != first as usize + offset {
                return Err(fail(format!(
                    "rows jump to position {position} where {} was due; every token must be known to feed it",
                    first as usize + offset
                )));
            }
        }
        let prompt_rows = columns.phase.iter().filter(|phase| **phase == Phase::Prompt).count();
        let prompt_len = sample
            .as_ref()
            .and_then(|sample| sample.prompt_len)
            .map_or(first as usize + prompt_rows, |length| length as usize);
        let mut rows = filled(first as usize, prompt_len, sample.as_ref()).map_err(fail)?;
        for i in 0..columns.len {
            rows.push(RecordedRow {
                token_id: columns.token_id[i],
                next_token: columns.next_token[i],
                phase: columns.phase[i],
                trace: Some(TraceRow {
                    rows_before: columns.rows_before[i],
                    rows_after: columns.rows_after[i],
                    compaction: columns.compaction[i],
                    argmax: columns.argmax[i],
                }),
            });
        }
        let events = events(run, sample_id, &rows)?;
        let sample_id = sample_id.to_owned();
        Ok(Self { sample_id, prompt_len, rows, first_traced: first as usize, events, sample })
    }

    /// Live rows before the row at `position` was appended, from the recorded compactions alone.
    #[must_use]
    pub fn expected_rows(&self, position: u32) -> i64 {
        let dropped: i64 = self
            .events
            .iter()
            .filter(|event| event.absolute_position <= position)
            .map(|event| i64::from(event.rows_before) - i64::from(event.rows_after))
            .sum();
        i64::from(position) - dropped
    }
}

/// Tokens before the trace's first row.
fn filled(
    first: usize,
    prompt_len: usize,
    sample: Option<&SampleRow>,
) -> Result<Vec<RecordedRow>, String> {
    if first == 0 {
        return Ok(Vec::new());
    }
    let known = sample.map_or_else(Vec::new, |sample| {
        sample.prompt_ids.iter().chain(&sample.generated_ids).copied().collect()
    });
    if known.len() < first {
        return Err(format!(
            "the trace starts at position {first} and the samples table knows {} tokens; import it with its prompt ids",
            known.len()
        ));
    }
    Ok((0..first)
        .map(|position| RecordedRow {
            token_id: known[position],
            next_token: (position + 1 >= prompt_len)
                .then(|| known.get(position + 1).copied())
                .flatten(),
            phase: if position < prompt_len { Phase::Prompt } else { Phase::Decode },
            trace: None,
        })
        .collect())
}

fn events(
    run: &RunReader,
    sample_id: &str,
    rows: &[RecordedRow],
) -> Result<Vec<Event>, ReplayError> {
    let mut events: Vec<Event> = run
        .events(Some(sample_id))?
        .into_iter()
        .map(|event| {
            let marked = |position: Option<u32>| {
                position
                    .and_then(|position| rows.get(position as usize))
                    .and_then(|row| row.trace)
                    .is_some_and(|row| row.compaction == Some(event.ordinal))
            };
            let n = event.absolute_position;
            Event {
                ordinal: event.ordinal,
                absolute_position: n,
                rows_before: event.rows_before,
                rows_after: event.rows_after,
                round_start: event.round_start,
                before_forward: marked(Some(n)) && !marked(n.checked_sub(1)),
            }
        })
        .collect();
    events.sort_by_key(|event| event.ordinal);
    for pair in events.windows(2) {
        if pair[1].absolute_position <= pair[0].absolute_position {
            return Err(ReplayError::incomparable(
                sample_id,
                format!(
                    "compaction {} at position {} does not follow compaction {} at {}",
                    pair[1].ordinal,
                    pair[1].absolute_position,
                    pair[0].ordinal,
                    pair[0].absolute_position
                ),
            ));
        }
    }
    Ok(events)
}

#[cfg(test)]
mod tests {
    use lockstep_traces::manifest::Producer;
    use lockstep_traces::store::RunWriter;
    use lockstep_traces::{EventRow, FinishReason, Manifest, RecordPlan, StepRow, TraceSink};

    use super::*;

    fn step(position: u32, compaction: Option<u32>) -> StepRow {
        StepRow {
            sample_id: "s".to_owned(),
            position,
            phase: if position < 3 { Phase::Prompt } else { Phase::Decode },
            token_id: 10 + position,
            next_token: None,
            rows_before: position,
            rows_after: position + 1,
            rows_bucketed: None,
            compaction,
            rope_index: None,
            argmax: 0,
            top_ids: vec![0],
            top_logits: vec![0.0],
            logsumexp: None,
            top2_margin: None,
            finite: true,
            logits_hash: None,
            rng_offset: None,
            uniform: None,
        }
    }

    fn event(ordinal: u32, n: u32) -> EventRow {
        EventRow {
            sample_id: "s".to_owned(),
            ordinal,
            absolute_position: n,
            round_start: None,
            rows_before: n,
            rows_after: n - 2,
            protected: 0,
            candidates: 0,
            score_seconds: 0.0,
            reduce_seconds: 0.0,
            select_seconds: 0.0,
            gather_seconds: 0.0,
            dump: None,
        }
    }

    fn sample() -> SampleRow {
        SampleRow {
            sample_id: "s".to_owned(),
            prompt_ids: vec![10, 11, 12],
            prompt_ids_sha256: String::new(),
            prompt_text_sha256: None,
            prompt_len: Some(3),
            base_seed: None,
            seed_index: None,
            effective_seed: None,
            generated_ids: vec![13, 14, 15],
            text: None,
            gold: None,
            answer: None,
            answer_rule: None,
            finish: FinishReason::Unknown,
            prefill_seconds: 0.0,
            decode_seconds: 0.0,
        }
    }

    fn read(
        steps: Vec<StepRow>,
        events: Vec<EventRow>,
        sample: SampleRow,
    ) -> Result<Recording, ReplayError> {
        let dir = tempfile::tempdir().unwrap();
        let manifest = Manifest::new(Producer::default(), "test");
        let mut writer = RunWriter::create(dir.path(), manifest, RecordPlan::default()).unwrap();
        steps.into_iter().for_each(|row| writer.step(row).unwrap());
        events.into_iter().for_each(|row| writer.event(row).unwrap());
        writer.sample(sample).unwrap();
        writer.finish().unwrap();
        Recording::read(&RunReader::open(dir.path()).unwrap(), "s")
    }

    #[test]
    fn rows_before_the_trace_come_from_the_samples_table() {
        let recording = read(vec![step(4, None), step(5, None)], Vec::new(), sample()).unwrap();
        let ids: Vec<u32> = recording.rows.iter().map(|row| row.token_id).collect();
        assert_eq!((ids, recording.first_traced), (vec![10, 11, 12, 13, 14, 15], 4));
        assert_eq!(recording.rows[2].next_token, Some(13));
        assert_eq!(
            (recording.rows[2].phase, recording.rows[3].phase),
            (Phase::Prompt, Phase::Decode)
        );
        assert!(recording.rows[3].trace.is_none() && recording.rows[4].trace.is_some());
    }

    #[test]
    fn what_no_table_knows_cannot_be_fed() {
        let poor = SampleRow { generated_ids: Vec::new(), ..sample() };
        let error = read(vec![step(5, None)], Vec::new(), poor).unwrap_err();
        assert!(error.to_string().contains("starts at position 5"), "{error}");
        let error = read(vec![step(0, None), step(2, None)], Vec::new(), sample()).unwrap_err();
        assert!(error.to_string().contains("position 2 where 1 was due"), "{error}");
    }

    #[test]
    fn a_compaction_marked_on_the_row_of_its_position_came_before_the_forward() {
        let after = vec![step(0, None), step(1, None), step(2, Some(1)), step(3, None)];
        let recording = read(after, vec![event(1, 3)], sample()).unwrap();
        assert!(!recording.events[0].before_forward);
        let before = vec![step(0, None), step(1, None), step(2, None), step(3, Some(1))];
        let recording = read(before, vec![event(1, 3)], sample()).unwrap();
        assert!(recording.events[0].before_forward);
        assert_eq!((recording.expected_rows(2), recording.expected_rows(3)), (2, 1));
    }

    #[test]
    fn compactions_out_of_order_are_refused() {
        let steps = (0..6).map(|position| step(position, None)).collect();
        let error = read(steps, vec![event(1, 5), event(2, 4)], sample()).unwrap_err();
        assert!(error.to_string().contains("does not follow"), "{error}");
    }
}
