//! Made-up traces for the controls of audits.

use std::borrow::Cow;

use lockstep_traces::manifest::{Manifest, Producer};
use lockstep_traces::store::StepColumns;
use lockstep_traces::{EventRow, Phase, Status, StepRow};

use super::Trace;

/// The sample of every trace made here.
pub(crate) const SAMPLE: &str = "s";

impl Trace<'static> {
    /// One sample `s` with `rows` rows, each fed token 100 + position and with two logits, whose largest is of the token fed
    /// next. It compacts, to half its rows, where the next position is one of `compactions`.
    pub(crate) fn made(rows: u32, compactions: &[u32]) -> Self {
        let (mut steps, mut events) = (Vec::new(), Vec::new());
        let mut live = 0;
        for position in 0..rows {
            let before = live;
            live += 1;
            let mut compaction = None;
            if compactions.contains(&(position + 1)) {
                let ordinal = u32::try_from(events.len() + 1).unwrap_or(u32::MAX);
                compaction = Some(ordinal);
                events.push(event(ordinal, position + 1, live, live / 2));
                live /= 2;
            }
            steps.push(StepRow {
                rows_before: before,
                rows_after: live,
                compaction,
                ..row(position)
            });
        }
        let mut manifest = Manifest::new(Producer::default(), "cpu");
        manifest.status = Status::Complete;
        Self {
            manifest: Cow::Owned(manifest),
            rows: Cow::Owned(Vec::new()),
            steps: Cow::Owned(StepColumns::from_rows(&steps)),
            events: Cow::Owned(events),
        }
    }
}

/// A row that feeds `100 + position` and chooses the next of that row, with a margin of 4; a dense cache.
pub(crate) fn row(position: u32) -> StepRow {
    let next = 101 + position;
    StepRow {
        sample_id: SAMPLE.to_owned(),
        position,
        phase: Phase::Decode,
        token_id: 100 + position,
        next_token: Some(next),
        rows_before: position,
        rows_after: position + 1,
        rows_bucketed: None,
        compaction: None,
        rope_index: Some(position),
        argmax: next,
        top_ids: vec![next, 7],
        top_logits: vec![15.0, 11.0],
        logsumexp: None,
        top2_margin: Some(4.0),
        finite: true,
        logits_hash: None,
        rng_offset: None,
        uniform: None,
    }
}

/// A compaction of the sample.
pub(crate) fn event(ordinal: u32, absolute_position: u32, before: u32, after: u32) -> EventRow {
    EventRow {
        sample_id: SAMPLE.to_owned(),
        ordinal,
        absolute_position,
        round_start: None,
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
