//! Step rows and step dumps.

use std::collections::BTreeMap;

use lockstep_traces::{Dump, DumpId, Phase, Probe, StepRow, Tensor, TraceSink};

use super::RowSummary;
use crate::RuntimeError;
use crate::cpu::{NamedRows, WantedRow};
use crate::cuda::model::Drawn;

/// A row of a batch: whose it is and where.
#[derive(Debug, Clone, Copy)]
pub(super) struct Place<'a> {
    pub(super) sample_id: &'a str,
    pub(super) position: u32,
}

/// What a step row says besides its logits.
#[derive(Debug, Clone, Copy)]
pub(super) struct Mark {
    pub(super) phase: Phase,
    pub(super) token: u32,
    pub(super) rows_before: u32,
    pub(super) rows_after: u32,
    pub(super) compaction: Option<u32>,
    pub(super) rope_index: u32,
}

/// Hidden states that the sink wants of these rows, by row.
pub(super) fn wanted(
    sink: &dyn TraceSink,
    places: &[Place<'_>],
    layers: usize,
) -> BTreeMap<usize, WantedRow> {
    let mut wanted = BTreeMap::new();
    for (row, Place { sample_id, position }) in places.iter().enumerate() {
        let ask = |layer| sink.wants(Probe::Hidden { sample_id, position: *position, layer });
        let chosen: Vec<u32> = (0..layers as u32).filter(|layer| ask(Some(*layer))).collect();
        let ends = ask(None);
        if ends || !chosen.is_empty() {
            wanted.insert(row, WantedRow { ends, layers: chosen });
        }
    }
    wanted
}

/// Dumps full logits and hidden states of one row, where wanted.
pub(super) fn dump_row(
    sink: &mut dyn TraceSink,
    place: Place<'_>,
    logits: Option<&[f32]>,
    hidden: Option<NamedRows>,
) -> Result<(), RuntimeError> {
    let Place { sample_id, position } = place;
    let mut tensors = Vec::new();
    if let Some(logits) = logits.filter(|_| sink.wants(Probe::Logits { sample_id, position })) {
        tensors.push(Tensor::from_f32("logits", vec![logits.len()], logits));
    }
    for (name, values) in hidden.into_iter().flatten() {
        tensors.push(Tensor::from_f32(name, vec![values.len()], &values));
    }
    if tensors.is_empty() {
        return Ok(());
    }
    let id = DumpId::Step { sample_id: sample_id.to_owned(), position };
    let metadata = BTreeMap::from([
        ("sample_id".to_owned(), sample_id.to_owned()),
        ("position".to_owned(), position.to_string()),
    ]);
    Ok(sink.dump(Dump { id, metadata, tensors })?)
}

/// The step row of one fed token; `draw` is there where a token was chosen from its logits.
pub(super) fn step_row(
    place: Place<'_>,
    mark: Mark,
    summary: RowSummary,
    draw: Option<&Drawn>,
) -> StepRow {
    StepRow {
        sample_id: place.sample_id.to_owned(),
        position: place.position,
        phase: mark.phase,
        token_id: mark.token,
        next_token: draw.map(|draw| draw.token),
        rows_before: mark.rows_before,
        rows_after: mark.rows_after,
        rows_bucketed: None,
        compaction: mark.compaction,
        rope_index: Some(mark.rope_index),
        argmax: summary.argmax,
        top_ids: summary.top_ids,
        top_logits: summary.top_logits,
        logsumexp: summary.logsumexp,
        top2_margin: summary.top2_margin,
        finite: summary.finite,
        logits_hash: Some(summary.hash),
        rng_offset: draw.and_then(|draw| draw.rng_offset),
        uniform: draw.and_then(|draw| draw.uniform),
    }
}
