//! Step rows that contradict themselves: seen without any hidden state.

use lockstep_traces::store::{RunReader, StepColumn, StepColumns, StepQuery};
use lockstep_traces::{Cause, Finding, FinishReason, Location, Phase};

use crate::ReplayError;
use crate::forward::self_check::figure;

/// What the rows of all samples asked for say.
#[derive(Debug, Default)]
pub(super) struct Steps {
    /// Rows looked at.
    pub(super) rows: u64,
    /// Fed tokens first, by sample.
    pub(super) findings: Vec<Finding>,
}

/// Reads the rows of one sample, or of all.
pub(super) fn check(run: &RunReader, sample: Option<&str>) -> Result<Steps, ReplayError> {
    let mut steps = Steps::default();
    let finished = run.samples()?;
    let ids = match sample {
        Some(sample) => vec![sample.to_owned()],
        None => run.sample_ids()?,
    };
    let mut indices = Vec::new();
    for id in &ids {
        let columns = run.steps(&StepQuery {
            sample_id: Some(id.clone()),
            positions: None,
            columns: Some(vec![
                StepColumn::Phase,
                StepColumn::TokenId,
                StepColumn::NextToken,
                StepColumn::RowsBefore,
                StepColumn::RowsAfter,
                StepColumn::RopeIndex,
            ]),
        })?;
        steps.rows += columns.len as u64;
        // Given tokens are fed whatever was chosen; a sample that has not ended does not say whether they were given.
        let own = finished
            .iter()
            .any(|sample| sample.sample_id == *id && sample.finish != FinishReason::Forced);
        if own {
            steps.findings.extend(tokens(id, &columns));
        }
        let compacts = !run.events(Some(id))?.is_empty();
        indices.extend(rotary(id, &columns, compacts));
    }
    steps.findings.extend(indices);
    Ok(steps)
}

fn at(sample: &str, position: u32, stage: &str) -> Location {
    Location {
        sample_id: Some(sample.to_owned()),
        position: Some(position),
        stage: Some(stage.to_owned()),
        ..Location::default()
    }
}

/// A decode row feeds what the row before it chose.
fn tokens(sample: &str, columns: &StepColumns) -> Option<Finding> {
    let mut wrong = (1..columns.len).filter_map(|row| {
        let (position, fed) = (*columns.position.get(row)?, *columns.token_id.get(row)?);
        let chosen = (*columns.next_token.get(row - 1)?)?;
        let follows = columns.position.get(row - 1)?.checked_add(1) == Some(position);
        let decode = *columns.phase.get(row)? == Phase::Decode;
        (follows && decode && chosen != fed).then_some((position, fed, chosen))
    });
    let (position, fed, chosen) = wrong.next()?;
    Some(Finding {
        cause: None,
        title: "the fed token is not the one chosen before it".to_owned(),
        location: at(sample, position, "token_id"),
        evidence: vec![
            figure("token_fed", fed),
            figure("token_chosen", chosen),
            figure("rows", wrong.count() + 1),
        ],
    })
}

/// The rotary index is the position; where it is the physical row after a compaction, that names the mistake.
fn rotary(sample: &str, columns: &StepColumns, compacts: bool) -> Option<Finding> {
    let wrong: Vec<(u32, u32, bool)> = (0..columns.len)
        .filter_map(|row| {
            let (position, index) = (*columns.position.get(row)?, (*columns.rope_index.get(row)?)?);
            let before = *columns.rows_before.get(row)?;
            // A step that compacts first may report its rows before that or after it.
            let last = columns.rows_after.get(row)?.checked_sub(1);
            (index != position).then_some((position, index, index == before || last == Some(index)))
        })
        .collect();
    let (position, index, _) = *wrong.first()?;
    let physical = compacts && wrong.iter().all(|(_, _, physical)| *physical);
    let cause = physical.then_some(Cause::PhysicalPositions);
    Some(Finding {
        cause,
        title: cause.map_or_else(
            || "the rotary index is not the position".to_owned(),
            |cause| cause.title().to_owned(),
        ),
        location: at(sample, position, "rope_index"),
        evidence: vec![
            figure("rope_index", index),
            figure("position", position),
            figure("rows", wrong.len()),
        ],
    })
}
