//! Hand-made traces for tests.

use lockstep_traces::manifest::{Manifest, Producer};
use lockstep_traces::store::StepColumns;
use lockstep_traces::{DType, EventRow, FinishReason, Phase, SampleRow, Status, StepRow};

use crate::Side;

/// An owned side.
#[derive(Debug, Clone)]
pub(crate) struct Trace {
    pub(crate) manifest: Manifest,
    pub(crate) rows: Vec<StepRow>,
    pub(crate) events: Vec<EventRow>,
    pub(crate) samples: Vec<SampleRow>,
    columns: StepColumns,
}

impl Trace {
    pub(crate) fn new(rows: Vec<StepRow>) -> Self {
        let mut manifest =
            Manifest::new(Producer { name: "test".into(), ..Producer::default() }, "cpu");
        manifest.status = Status::Complete;
        Self {
            manifest,
            rows,
            events: Vec::new(),
            samples: Vec::new(),
            columns: StepColumns::default(),
        }
    }

    pub(crate) fn dtype(mut self, dtype: DType) -> Self {
        self.manifest.dtype = Some(dtype);
        self
    }

    pub(crate) fn side(&mut self) -> Side<'_> {
        self.columns = StepColumns::from_rows(&self.rows);
        Side {
            label: "test",
            manifest: &self.manifest,
            samples: &self.samples,
            steps: &self.columns,
            events: &self.events,
        }
    }

    /// Gives every row the hash of its stored logits, as though these were the whole vector.
    pub(crate) fn hashed(mut self) -> Self {
        self.manifest.logits_hash_seeds = Some(lockstep_traces::hash::DEFAULT_SEEDS);
        for row in &mut self.rows {
            let mut all: Vec<(u32, f32)> =
                row.top_ids.iter().copied().zip(row.top_logits.iter().copied()).collect();
            all.sort_by_key(|entry| entry.0);
            let logits: Vec<f32> = all.into_iter().map(|entry| entry.1).collect();
            row.logits_hash = Some(lockstep_traces::hash::logits_hash(
                &logits,
                lockstep_traces::hash::DEFAULT_SEEDS,
            ));
        }
        self
    }
}

/// One decode row that chose `next` and held `position` rows before.
pub(crate) fn row(position: u32, token: u32, next: u32, top: &[(u32, f32)]) -> StepRow {
    let best = top.iter().fold(None, |best: Option<(u32, f32)>, entry| match best {
        Some(best) if best.1 > entry.1 || (best.1 >= entry.1 && best.0 < entry.0) => Some(best),
        _ => Some(*entry),
    });
    StepRow {
        sample_id: "s".to_owned(),
        position,
        phase: Phase::Decode,
        token_id: token,
        next_token: Some(next),
        rows_before: position,
        rows_after: position + 1,
        rows_bucketed: None,
        compaction: None,
        rope_index: Some(position),
        argmax: best.map_or(0, |best| best.0),
        top_ids: top.iter().map(|entry| entry.0).collect(),
        top_logits: top.iter().map(|entry| entry.1).collect(),
        logsumexp: None,
        top2_margin: None,
        finite: top.iter().all(|entry| entry.1.is_finite()),
        logits_hash: None,
        rng_offset: None,
        uniform: None,
    }
}

/// A dense trace: `prompt` tokens 1000.., then `decode` rows that choose 100 + position with a margin of 4.
pub(crate) fn dense(prompt: u32, decode: u32) -> Trace {
    let token = |position: u32| if position < prompt { 1000 + position } else { 99 + position };
    let rows = (0..prompt + decode)
        .map(|position| {
            let next = 100 + position;
            let jitter = [0.0, 0.13, 0.29, 0.41, 0.57][position as usize % 5];
            let mut row = row(
                position,
                token(position),
                next,
                &[(next, 15.0 + jitter), (3, 11.0 + jitter), (8, 9.1)],
            );
            if position < prompt {
                row.phase = Phase::Prompt;
                if position + 1 < prompt {
                    row.next_token = None;
                }
            }
            row
        })
        .collect();
    let mut trace = Trace::new(rows);
    trace.samples.push(sample(prompt));
    trace.manifest.set("policy.kind", "dense", "flag");
    trace
}

pub(crate) fn sample(prompt: u32) -> SampleRow {
    let prompt_ids: Vec<u32> = (0..prompt).map(|at| 1000 + at).collect();
    SampleRow {
        sample_id: "s".to_owned(),
        prompt_ids_sha256: lockstep_traces::hash::ids_sha256(&prompt_ids),
        prompt_ids,
        prompt_text_sha256: None,
        prompt_len: Some(prompt),
        base_seed: None,
        seed_index: None,
        effective_seed: None,
        generated_ids: Vec::new(),
        text: None,
        gold: None,
        answer: None,
        answer_rule: None,
        finish: FinishReason::Length,
        prefill_seconds: 0.0,
        decode_seconds: 0.0,
    }
}

pub(crate) fn event(ordinal: u32, absolute_position: u32, before: u32, after: u32) -> EventRow {
    EventRow {
        sample_id: "s".to_owned(),
        ordinal,
        absolute_position,
        round_start: Some(absolute_position),
        rows_before: before,
        rows_after: after,
        protected: 0,
        candidates: before,
        score_seconds: 0.0,
        reduce_seconds: 0.0,
        select_seconds: 0.0,
        gather_seconds: 0.0,
        dump: None,
    }
}
