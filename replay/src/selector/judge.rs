//! Recorded stages and keep-sets against a selection of the reference.

use lockstep_reference::select::{Grid, Recipe, Selection, Stages};
use lockstep_traces::SelectionMode;

use super::detail::{Cell, SetDetail, SetStatus, StageDetail};
use super::event::{Event, Recorded};
use super::limits::Limits;
use super::sets::SetPair;

/// Names of the stages in the order of computation.
pub(super) const STAGES: [&str; 4] = ["scores.raw", "scores.z", "scores.group", "scores.final"];

/// Everything compared at one compaction.
#[derive(Debug, Clone)]
pub(super) struct Judged {
    pub(super) stages: Vec<StageDetail>,
    pub(super) sets: Vec<SetDetail>,
    /// The rule keeps another number of rows or in other shapes.
    pub(super) budget: Option<String>,
}

impl Judged {
    /// The first part that does not agree.
    pub(super) fn first_stage(&self) -> Option<&'static str> {
        for stage in &self.stages {
            if !stage.within {
                return Some(match stage.stage.as_str() {
                    "scores.raw" => "score",
                    "scores.z" => "normalise",
                    _ if stage.note.is_some() => "protect",
                    _ => "reduce",
                });
            }
        }
        if self.budget.is_some() {
            return Some("budget");
        }
        if self.sets.iter().any(|set| !set.unprotected.is_empty()) {
            return Some("protect");
        }
        let chosen_otherwise =
            |set: &SetDetail| set.status == SetStatus::Differs || set.follows_scores == Some(false);
        if self.sets.iter().any(chosen_otherwise) {
            return Some("select");
        }
        if self.sets.iter().any(|set| set.against_tie_rule) {
            return Some("tie");
        }
        self.sets.iter().any(|set| !set.ordered).then_some("sort")
    }

    pub(super) fn agrees(&self) -> bool {
        self.first_stage().is_none()
    }

    pub(super) fn count(&self, status: SetStatus) -> u64 {
        let n = self.sets.iter().filter(|set| set.status == status).count();
        u64::try_from(n).unwrap_or(u64::MAX)
    }

    pub(super) fn mean_jaccard(&self) -> f64 {
        let n = self.sets.len().max(1) as f64;
        self.sets.iter().map(|set| set.jaccard).sum::<f64>() / n
    }

    /// Largest error over limit; `None` where no stage is recorded, or infinities or shapes differ.
    pub(super) fn max_stage_error(&self) -> Option<f64> {
        if self.stages.is_empty() {
            return None;
        }
        let mut worst = 0.0f64;
        for stage in &self.stages {
            if stage.note.is_some() {
                return None;
            }
            worst = worst.max(stage.error / stage.tolerance);
        }
        Some(worst)
    }
}

/// Compares a selection with what was recorded.
pub(super) fn judge(event: &Event, ours: &Selection, recipe: &Recipe, limits: &Limits) -> Judged {
    let stages = ours.stages.as_ref().map_or_else(Vec::new, |stages| {
        let frame = Frame {
            recorded: &event.scores,
            ours: stages,
            rows: event.rows_before,
            protected: &ours.protected,
            is_final: false,
            by_layer: recipe.mode == SelectionMode::PerLayer,
        };
        frame.stages(limits)
    });
    let (sets, budget) = sets_of(event, ours, recipe, limits);
    Judged { stages, sets, budget }
}

/// How columns and heads of the two sides meet.
struct Frame<'a> {
    recorded: &'a Recorded,
    ours: &'a Stages,
    rows: usize,
    protected: &'a [usize],
    is_final: bool,
    by_layer: bool,
}

impl Frame<'_> {
    fn stages(&self, limits: &Limits) -> Vec<StageDetail> {
        let (theirs, ours) = (self.recorded, self.ours);
        let pairs = [
            (&theirs.raw, &ours.raw),
            (&theirs.z, &ours.z),
            (&theirs.group, &ours.group),
            (&theirs.ranked, &ours.final_scores),
        ];
        let mut details = Vec::new();
        for (index, (theirs, ours)) in pairs.into_iter().enumerate() {
            let Some(theirs) = theirs else { continue };
            let frame = Frame { is_final: index == 3, ..*self };
            details.push(frame.stage(STAGES[index], theirs, ours, limits, index));
        }
        details
    }

    fn stage(
        &self,
        name: &str,
        theirs: &Grid,
        ours: &Grid,
        limits: &Limits,
        index: usize,
    ) -> StageDetail {
        let mut detail = StageDetail {
            stage: name.to_owned(),
            compared: 0,
            max_abs: 0.0,
            error: 0.0,
            tolerance: limits.stage[index],
            control: limits.control.map(|control| control[index]),
            within: false,
            worst: None,
            note: self.mismatch(theirs, ours),
        };
        if detail.note.is_some() {
            return detail;
        }
        let scale = self.compare(theirs, ours, &mut detail);
        detail.error =
            if index == 0 && scale > 0.0 { detail.max_abs / scale } else { detail.max_abs };
        detail.within =
            detail.note.is_none() && detail.error <= detail.tolerance && detail.compared > 0;
        detail
    }

    /// Other axes, layers or heads: nothing can be compared number by number.
    fn mismatch(&self, theirs: &Grid, ours: &Grid) -> Option<String> {
        let leading = |grid: &Grid| grid.shape[..grid.shape.len() - 1].to_vec();
        let (a, b) = (leading(theirs), leading(ours));
        if a != b {
            return Some(format!("recorded axes {a:?}, the rule has {b:?}"));
        }
        let other = |recorded: &[u32], ours: &[u32]| !recorded.is_empty() && recorded != ours;
        if other(&self.recorded.layers, &self.ours.score_layers) {
            return Some("other layers are scored than by the rule".to_owned());
        }
        if !self.is_final && other(&self.recorded.heads, &self.ours.score_heads) {
            return Some("other heads are scored than by the rule".to_owned());
        }
        let end = self.recorded.offset.saturating_add(theirs.cols());
        if end != self.rows {
            return Some(format!("score columns end at row {end}, the cache at {}", self.rows));
        }
        None
    }

    /// Compares the rows that both sides score; returns the largest expected modulus.
    fn compare(&self, theirs: &Grid, ours: &Grid, detail: &mut StageDetail) -> f64 {
        let first = self.recorded.offset.max(self.ours.score_row_offset);
        let ours_axes = ours.shape.as_slice();
        let mut scale = 0.0f64;
        for (index, (theirs, ours)) in theirs.rows().zip(ours.rows()).enumerate() {
            let theirs = theirs.get(first - self.recorded.offset..).unwrap_or_default();
            let ours = ours.get(first - self.ours.score_row_offset..).unwrap_or_default();
            if ours.iter().all(|value| value.is_nan()) {
                continue;
            }
            for (column, (theirs, ours)) in theirs.iter().zip(ours).enumerate() {
                let place = || self.cell(ours_axes, index, first + column);
                if self.passed_over(*theirs, first + column) {
                    continue;
                }
                detail.compared += 1;
                let same = theirs.is_finite() && ours.is_finite() || theirs.total_cmp(ours).is_eq();
                if !same {
                    if detail.note.is_none() {
                        detail.note = Some(format!("recorded {theirs}, the rule gives {ours}"));
                        detail.worst = Some(place());
                    }
                    continue;
                }
                if ours.is_infinite() {
                    continue;
                }
                scale = scale.max(ours.abs());
                let error = (theirs - ours).abs();
                if error > detail.max_abs {
                    detail.max_abs = error;
                    if detail.note.is_none() {
                        detail.worst = Some(place());
                    }
                }
            }
        }
        scale
    }

    /// Names a number of a stage. One leading axis is KV heads, or layers in per-layer mode.
    fn cell(&self, shape: &[usize], index: usize, row: usize) -> Cell {
        let part = |value: usize| u32::try_from(value).ok();
        let layer = |slot: usize| self.ours.score_layers.get(slot).copied();
        let (layer, head) = match shape {
            [_, heads, _] => {
                let slot = index % (*heads).max(1);
                let head = self
                    .ours
                    .score_heads
                    .get(slot)
                    .copied()
                    .filter(|_| *heads == self.ours.score_heads.len());
                (layer(index / (*heads).max(1)), head.or_else(|| part(slot)))
            }
            [_, _] if self.by_layer => (layer(index), None),
            [_, _] => (None, part(index)),
            _ => (None, None),
        };
        Cell { layer, head, row: part(row).unwrap_or(u32::MAX) }
    }

    /// Guards may be written before the group is reduced or after it: the same final scores follow.
    fn passed_over(&self, theirs: f64, row: usize) -> bool {
        !self.is_final && theirs == f64::INFINITY && self.protected.binary_search(&row).is_ok()
    }
}

fn sets_of(
    event: &Event,
    ours: &Selection,
    recipe: &Recipe,
    limits: &Limits,
) -> (Vec<SetDetail>, Option<String>) {
    let Some((leading, recorded)) = &event.keep else { return (Vec::new(), None) };
    let Some(keep) = &ours.keep else {
        return (Vec::new(), Some("the rule set refuses to compact here".to_owned()));
    };
    let budget = shape_note(leading, recorded, keep);
    let by_layer = recipe.is_layered();
    let mut sets = Vec::new();
    for (index, theirs) in recorded.iter().enumerate() {
        // A list for all heads stands for each of them, on either side.
        let at = |count: usize| if count == 1 { 0 } else { index };
        let Some(own) = keep.sets.get(at(keep.sets.len())) else { continue };
        let set = SetPair {
            theirs,
            ours: own,
            scores: ours
                .stages
                .as_ref()
                .map_or(&[], |stages| stages.final_scores.row(at(keep.sets.len()))),
            first: ours.stages.as_ref().map_or(0, |stages| stages.score_row_offset),
            recorded: event
                .scores
                .ranked
                .as_ref()
                .map(|grid| (grid.row(index), event.scores.offset)),
            protected: &ours.protected,
        };
        let mut detail = set.compare(recipe, limits);
        (detail.layer, detail.head) = axes(event, leading, by_layer, index);
        sets.push(detail);
    }
    (sets, budget)
}

fn shape_note(
    leading: &[usize],
    recorded: &[Vec<usize>],
    keep: &lockstep_reference::select::KeepSet,
) -> Option<String> {
    let size = |sets: &[Vec<usize>]| sets.first().map_or(0, Vec::len);
    let (theirs, ours) = (size(recorded), size(&keep.sets));
    if theirs != ours {
        return Some(format!("{theirs} rows are kept, the rule keeps {ours}"));
    }
    // Without ranking one list serves all heads, whichever way it is written.
    let alike = leading == keep.leading || keep.sets.windows(2).all(|pair| pair[0] == pair[1]);
    (!alike).then(|| format!("keep-sets have axes {leading:?}, the rule has {:?}", keep.leading))
}

fn axes(
    event: &Event,
    leading: &[usize],
    by_layer: bool,
    index: usize,
) -> (Option<u32>, Option<u32>) {
    let part = |value: usize| u32::try_from(value).ok();
    let layer = |slot: usize| event.layers.get(slot).copied().or_else(|| part(slot));
    match leading.len() {
        0 => (None, None),
        1 if by_layer => (layer(index), None),
        1 => (None, part(index)),
        _ => {
            let heads = leading.last().copied().unwrap_or(1).max(1);
            (layer(index / heads), part(index % heads))
        }
    }
}
