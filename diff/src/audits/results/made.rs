//! Evidence for the controls: traces, samples and claims made by hand.

use std::borrow::Cow;

use lockstep_traces::manifest::Producer;
use lockstep_traces::store::StepColumns;
use lockstep_traces::{EventRow, Manifest, Status, StepRow};

pub(super) use super::super::facts::made::{SAMPLE, event};
use super::super::facts::{Claim, ClaimScope, Kind, Trace, made};
use super::super::{Evidence, Sample, Subject};

/// A row as [`made::row`] has it, of an engine that tells no RoPE index, with a margin of 8.
pub(super) fn row(position: u32) -> StepRow {
    StepRow {
        rope_index: None,
        top_logits: vec![20.0, 12.0],
        top2_margin: Some(8.0),
        ..made::row(position)
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
