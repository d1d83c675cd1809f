//! Rows of a subject's trace, sample by sample, and what other subjects know of a sample.

use std::sync::Arc;

use lockstep_traces::Phase;
use lockstep_traces::store::StepColumns;

use super::super::facts::{Claim, Evidence};
use super::super::{Pair, Subject};
use crate::report::DiffReport;

/// Rows of one sample.
#[derive(Debug, Clone)]
pub(super) struct Track<'t> {
    /// Sample.
    pub(super) id: &'t str,
    steps: &'t StepColumns,
    rows: std::ops::Range<usize>,
}

impl<'t> Track<'t> {
    /// Positions with rows before, rows after and the compaction of the step.
    pub(super) fn rows(&self) -> impl Iterator<Item = Counted> + use<'t> {
        let steps = self.steps;
        self.rows.clone().filter_map(move |row| {
            Some(Counted {
                position: *steps.position.get(row)?,
                before: *steps.rows_before.get(row)?,
                after: *steps.rows_after.get(row)?,
                compaction: steps.compaction.get(row).copied().flatten(),
            })
        })
    }

    /// First position.
    pub(super) fn first(&self) -> Option<u32> {
        self.steps.position.get(self.rows.start).copied()
    }

    /// Last position.
    pub(super) fn last(&self) -> Option<u32> {
        self.steps.position.get(self.rows.end.checked_sub(1)?).copied()
    }
}

/// Row counts of one step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Counted {
    pub(super) position: u32,
    pub(super) before: u32,
    pub(super) after: u32,
    pub(super) compaction: Option<u32>,
}

/// Samples of a trace in order; rows of a sample stand together.
pub(super) fn tracks<'t>(subject: &'t Subject<'_>) -> Vec<Track<'t>> {
    let Some(trace) = &subject.trace else { return Vec::new() };
    let steps: &StepColumns = &trace.steps;
    let mut tracks = Vec::new();
    let mut start = 0;
    while start < steps.len {
        let sample = steps.sample.get(start);
        let length =
            steps.sample.iter().skip(start).take_while(|other| Some(*other) == sample).count();
        let end = start + length.max(1);
        if let Some(id) = steps.sample_id(start) {
            tracks.push(Track { id, steps, rows: start..end });
        }
        start = end;
    }
    tracks
}

/// Prompt length of a sample, as the subject itself knows it.
pub(super) fn own_prompt(subject: &Subject<'_>, id: &str) -> Option<u32> {
    let sample = subject.sample(id);
    let told = sample.and_then(|sample| {
        let ids = sample.prompt_ids.as_ref().and_then(|ids| u32::try_from(ids.len()).ok());
        sample.prompt_tokens.or(ids)
    });
    told.or_else(|| {
        let steps = &subject.trace.as_ref()?.steps;
        let prompt = (0..steps.len).filter(|&row| {
            steps.sample_id(row) == Some(id) && steps.phase.get(row) == Some(&Phase::Prompt)
        });
        u32::try_from(prompt.count()).ok().filter(|count| *count > 0)
    })
}

/// Prompt length of a sample: as the subject knows it, else another subject by the sample's id, else the only length that
/// is known where every subject is about one sample.
pub(super) fn prompt(evidence: &Evidence<'_>, subject: &Subject<'_>, id: &str) -> Option<u32> {
    let named = || evidence.subjects.iter().find_map(|other| own_prompt(other, id));
    let only = || {
        let lone = |other: &&Subject<'_>| other.samples.as_ref().is_none_or(|list| list.len() < 2);
        if !evidence.subjects.iter().all(|other| lone(&other)) {
            return None;
        }
        let samples = evidence.subjects.iter().flat_map(|other| other.samples.iter().flatten());
        let mut lengths: Vec<u32> = samples.filter_map(|sample| sample.prompt_tokens).collect();
        lengths.sort_unstable();
        lengths.dedup();
        <[u32; 1]>::try_from(lengths).ok().map(|[length]| length)
    };
    own_prompt(subject, id).or_else(named).or_else(only)
}

/// The comparison of a pair's traces, made once for all audits; `None` where a side has no trace.
pub(super) fn compared(pair: &Pair<'_, '_>) -> Option<Arc<DiffReport>> {
    let (left, right) = (pair.left.side()?, pair.right.side()?);
    let make = || crate::compare(&left, &right, crate::Options::default());
    let subjects = &pair.evidence.subjects;
    let place = |wanted: &Subject<'_>| {
        let wanted = std::ptr::from_ref(wanted).addr();
        subjects.iter().position(|one| std::ptr::from_ref(one).addr() == wanted)
    };
    Some(match (place(pair.left), place(pair.right)) {
        (Some(l), Some(r)) => pair.evidence.comparisons.get(l, r, make),
        _ => Arc::new(make()),
    })
}

/// Claims of a kind that cite one of the subjects; a claim that cites nothing is about all of them.
pub(super) fn claims<'e>(
    evidence: &'e Evidence<'_>,
    kinds: &[&str],
    labels: &[&str],
) -> Vec<&'e Claim> {
    let all = evidence.subjects.iter().flat_map(|subject| &subject.claims);
    let kind = |claim: &&Claim| claim.kind.as_deref().is_some_and(|kind| kinds.contains(&kind));
    let cites = |claim: &&Claim| {
        claim.evidence.is_empty()
            || claim.evidence.iter().any(|cited| labels.contains(&cited.as_str()))
    };
    all.filter(kind).filter(cites).filter(|claim| !claim.retracted).collect()
}
