//! Feeding: prompt chunks and decode passes, from compaction to recorded row.

use std::ops::ControlFlow;
use std::time::Instant;

use lockstep_traces::{FinishReason, Phase, StepRow};

use super::compact::{Gather, compact};
use super::pass::{Chunk, Pass};
use super::record::{Mark, Place, dump_row, step_row};
use super::run::Runner;
use super::sequence::Sequence;
use crate::RuntimeError;
use crate::cuda::model::Drawn;
use crate::policy::Compaction;

impl<'a> Runner<'a> {
    /// Feeds the prompt and chooses the first token.
    pub(super) fn prefill(
        &mut self,
        sequence: &mut Sequence<'a>,
    ) -> Result<ControlFlow<()>, RuntimeError> {
        while sequence.state.prompt_left() > 0 && sequence.finish.is_none() {
            let started = Instant::now();
            let rows_before = sequence.rows();
            let first_compaction = self.compact_before(sequence)?;
            let count = self.policy.prompt_chunk(&sequence.state).min(self.most_prompt_rows());
            if count == 0 {
                sequence.finish = Some(FinishReason::CacheFull);
                break;
            }
            let start = sequence.state.absolute_position();
            let tokens = &sequence.request.prompt_ids[start..start + count];
            let appended_at = sequence.rows();
            let position = sequence.position();
            let rope_index = self.rope_index(sequence);
            let places: Vec<Place<'_>> = (position..)
                .take(count)
                .map(|position| Place { sample_id: &sequence.request.sample_id, position })
                .collect();
            let draw = count == sequence.state.prompt_left()
                && sequence.chooses(self.options.max_new_tokens);
            let chunk = Chunk { tokens, position, rope_index, draw };
            let mut pass = self.prompt_pass(sequence, chunk, &places)?;
            self.policy.appended(&mut sequence.state, count);
            let last_compaction = self.compact_after(sequence)?;
            let marks = (0..count as u32).zip(tokens).map(|(row, token)| {
                let (first, last) = (row == 0, row as usize + 1 == count);
                let before = first_compaction.filter(|_| first);
                let after = last_compaction.filter(|_| last);
                Mark {
                    phase: Phase::Prompt,
                    token: *token,
                    rows_before: if first { rows_before } else { appended_at + row },
                    rows_after: if last { sequence.rows() } else { appended_at + row + 1 },
                    compaction: after.or(before),
                    rope_index: rope_index + row,
                }
            });
            let marks: Vec<Mark> = marks.collect();
            let ended = sequence.state.prompt_left() == 0;
            for (row, (place, mark)) in places.iter().zip(marks).enumerate() {
                let chooses = ended && row + 1 == count;
                self.record(sequence, *place, mark, (&mut pass, row), chooses)?;
            }
            sequence.prefill += started.elapsed();
            self.summary.prefill_seconds += started.elapsed().as_secs_f64();
            self.summary.prompt_tokens += count as u64;
            if self.report(&sequence.request.sample_id).is_break() {
                return Ok(ControlFlow::Break(()));
            }
        }
        Ok(ControlFlow::Continue(()))
    }

    /// Feeds the last chosen token of every active sequence.
    pub(super) fn decode(
        &mut self,
        active: &mut [Sequence<'a>],
    ) -> Result<ControlFlow<()>, RuntimeError> {
        let started = Instant::now();
        let mut fed: Vec<(&mut Sequence<'a>, Mark)> = Vec::with_capacity(active.len());
        for sequence in active.iter_mut() {
            let rows_before = sequence.rows();
            let compaction = self.compact_before(sequence)?;
            match sequence.generated.last() {
                Some(token) if self.policy.has_room(&sequence.state) => {
                    let mark = Mark {
                        phase: Phase::Decode,
                        token: *token,
                        rows_before,
                        rows_after: 0,
                        compaction,
                        rope_index: self.rope_index(sequence),
                    };
                    fed.push((sequence, mark));
                }
                _ => sequence.finish = Some(FinishReason::CacheFull),
            }
        }
        if fed.is_empty() {
            return Ok(ControlFlow::Continue(()));
        }
        let places: Vec<Place<'_>> = fed
            .iter()
            .map(|(sequence, _)| Place {
                sample_id: &sequence.request.sample_id,
                position: sequence.position(),
            })
            .collect();
        let mut pass = self.decode_pass(&mut fed, &places)?;
        self.device.deliver(self.sink)?;
        for (index, (sequence, mark)) in fed.iter_mut().enumerate() {
            self.policy.appended(&mut sequence.state, 1);
            self.summary.kv_bytes += sequence.cache.live_bytes() as u64;
            let after = self.compact_after(sequence)?;
            let mark = Mark {
                rows_after: sequence.rows(),
                compaction: after.or(mark.compaction),
                ..*mark
            };
            self.record(sequence, places[index], mark, (&mut pass, index), true)?;
            sequence.decode += started.elapsed();
        }
        self.summary.decode_passes += 1;
        self.summary.decode_tokens += fed.len() as u64;
        self.summary.decode_seconds += started.elapsed().as_secs_f64();
        let sample_id = places.last().map_or("", |place| place.sample_id);
        Ok(self.report(sample_id))
    }

    fn rope_index(&self, sequence: &Sequence<'a>) -> u32 {
        if self.faults.physical_positions { sequence.rows() } else { sequence.position() }
    }

    fn compact_before(&mut self, sequence: &mut Sequence<'a>) -> Result<Option<u32>, RuntimeError> {
        let due = self.policy.due_before_forward(&sequence.state)?;
        self.compact(sequence, due)
    }

    fn compact_after(&mut self, sequence: &mut Sequence<'a>) -> Result<Option<u32>, RuntimeError> {
        let due = self.policy.due_after_append(&sequence.state)?;
        self.compact(sequence, due)
    }

    fn compact(
        &mut self,
        sequence: &mut Sequence<'a>,
        due: Option<Compaction>,
    ) -> Result<Option<u32>, RuntimeError> {
        let Some(due) = due else {
            return Ok(None);
        };
        let key = (sequence.request.sample_id.clone(), due.ordinal);
        let forced = self.options.keeps.get(&key);
        let how = Gather { mode: self.faults.gather, forced };
        compact(&self.policy, &mut self.device, how, sequence, &due, self.sink)?;
        self.summary.compactions += 1;
        Ok(Some(due.ordinal))
    }

    /// Chooses the next token where one is to be chosen, and records the row.
    fn record(
        &mut self,
        sequence: &mut Sequence<'a>,
        place: Place<'_>,
        mark: Mark,
        (pass, row): (&mut Pass, usize),
        chooses: bool,
    ) -> Result<(), RuntimeError> {
        let most = self.options.max_new_tokens;
        let out = &mut pass.rows[row];
        let (hidden, on_device) = (out.hidden.take(), out.drawn.take());
        let (summary, rows_bucketed) = (out.summary.clone(), out.rows_bucketed);
        let logits = pass.logits(row);
        let drawn = match (chooses && sequence.chooses(most), on_device, logits) {
            (false, ..) => None,
            (true, Some(drawn), _) => Some(drawn),
            (true, None, Some(logits)) => {
                Some(self.sampler.draw(&mut sequence.sampler, logits).map(Drawn::from))
            }
            (true, None, None) => unreachable!("a backend draws, or leaves its logits here"),
        };
        let draw = drawn.as_ref().and_then(|drawn| drawn.as_ref().ok());
        dump_row(self.sink, place, logits, hidden)?;
        let row = step_row(place, mark, summary, draw);
        self.sink.step(StepRow { rows_bucketed, ..row })?;
        match drawn.transpose() {
            Ok(Some(draw)) => {
                sequence.choose(draw.token, self.stop_ids, most);
                if sequence.finish.is_none()
                    && sequence.teacher.is_none()
                    && self.options.stop.fires(self.engine.tokenizer(), &sequence.generated)?
                {
                    sequence.finish = Some(FinishReason::Stop);
                }
            }
            Ok(None) if chooses => {
                let forced = sequence.teacher.is_some();
                sequence.finish =
                    Some(if forced { FinishReason::Forced } else { FinishReason::Length });
            }
            Ok(None) => {}
            Err(source) => {
                let sample_id = place.sample_id.to_owned();
                return Err(RuntimeError::Draw { sample_id, position: place.position, source });
            }
        }
        Ok(())
    }
}
