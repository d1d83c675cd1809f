//! Evidence for the controls: traces, samples and claims made by hand.

use std::borrow::Cow;

use lockstep_traces::manifest::Producer;
use lockstep_traces::store::StepColumns;
use lockstep_traces::{EventRow, Manifest, Phase, Status, StepRow};

use super::super::facts::{Claim, ClaimScope, Kind, Trace};
use super::super::{Evidence, Sample, Subject};

/// The sample of every trace made here.
pub(super) const SAMPLE: &str = "s";

/// A row that feeds `100 + position` and chooses the next of that row, with a margin of 8.
pub(super) fn row(position: u32) -> StepRow {
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
        rope_index: None,
        argmax: next,
        top_ids: vec![next, 7],
        top_logits: vec![20.0, 12.0],
        logsumexp: None,
        top2_margin: Some(8.0),
        finite: true,
        logits_hash: None,
        rng_offset: None,
        uniform: None,
    }
}

/// Dense rows at these positions.
pub(super) fn dense(positions: std::ops::Range<u32>) -> Vec<StepRow> {
    positions.map(row).collect()
}

/// Rows `0..len` of a cache that is cut to `budget` wherever it holds `trigger` rows, with their events.
pub(super) fn compressed(len: u32, trigger: u32, budget: u32) -> (Vec<StepRow>, Vec<EventRow>) {
    let (mut rows, mut events, mut held) = (Vec::new(), Vec::new(), 0);
    for position in 0..len {
        let mut row = StepRow { rows_before: held, rows_after: held + 1, ..row(position) };
        held += 1;
        if held == trigger {
            let ordinal = u32::try_from(events.len()).unwrap_or(0) + 1;
            events.push(event(ordinal, position + 1, held, budget));
            row.compaction = Some(ordinal);
            row.rows_after = budget;
            held = budget;
        }
        rows.push(row);
    }
    (rows, events)
}

/// A compaction.
pub(super) fn event(ordinal: u32, absolute_position: u32, before: u32, after: u32) -> EventRow {
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

/// A subject with these rows.
pub(super) fn traced(
    label: &str,
    kind: Kind,
    rows: &[StepRow],
    events: Vec<EventRow>,
) -> Subject<'static> {
    let mut manifest = Manifest::new(Producer::default(), "cpu");
    manifest.status = Status::Complete;
    let mut subject = Subject::new(label, kind);
    subject.events = Some(events.clone());
    subject.samples = Some(vec![Sample::new(SAMPLE)]);
    subject.trace = Some(Trace {
        manifest: Cow::Owned(manifest),
        rows: Cow::Owned(Vec::new()),
        steps: Cow::Owned(StepColumns::from_rows(rows)),
        events: Cow::Owned(events),
    });
    subject
}

/// The prompt length of the sample, as another file tells it.
pub(super) fn prompted(mut subject: Subject<'static>, length: u32) -> Subject<'static> {
    let sample = Sample { prompt_tokens: Some(length), ..Sample::new(SAMPLE) };
    subject.samples = Some(vec![sample]);
    subject
}

/// The evidence with a claim of this kind about all of it, over this window.
pub(super) fn claimed(
    mut evidence: Evidence<'static>,
    kind: &str,
    window: Option<(u32, u32)>,
) -> Evidence<'static> {
    let claim = Claim {
        id: "claim-1".to_owned(),
        kind: Some(kind.to_owned()),
        scope: ClaimScope { window, ..ClaimScope::default() },
        ..Claim::default()
    };
    let mut ledger = Subject::new("ledger", Kind::Claims);
    ledger.claims.push(claim);
    evidence.subjects.push(ledger);
    evidence
}
