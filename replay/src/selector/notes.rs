//! What a compaction can show at all.

use lockstep_reference::select::{Input, Selection, kth};

use super::event::Event;

/// What one compaction could show at all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct EventNotes {
    /// R equals the row count: a wrong round start is invisible.
    pub(super) round_start_blind: bool,
    /// Two rows tie exactly at a threshold.
    pub(super) exact_tie: bool,
    /// Nothing is kept outright: every row is a candidate.
    pub(super) all_candidates: bool,
    /// Scores after the z-score are recorded.
    pub(super) z_recorded: bool,
    /// Any score is recorded.
    pub(super) scored: bool,
    /// Keys are dumped.
    pub(super) keys: bool,
    /// One layer is scored.
    pub(super) one_layer: bool,
}

impl EventNotes {
    pub(super) fn of(event: &Event, input: &Input<'_>, ours: &Selection, keys: bool) -> Self {
        let stages = ours.stages.as_ref();
        let tied = || {
            let (stages, keep) = (stages?, ours.keep.as_ref()?);
            let mut rows = stages.final_scores.rows().enumerate();
            Some(rows.any(|(index, row)| {
                let k = keep
                    .sets
                    .get(index)
                    .map_or(0, Vec::len)
                    .saturating_sub(stages.score_row_offset);
                match (kth(row, k), kth(row, k + 1)) {
                    (Some(a), Some(b)) => a.total_cmp(&b).is_eq(),
                    _ => false,
                }
            }))
        };
        Self {
            round_start_blind: input.moment.round_start == input.rows(),
            exact_tie: tied().unwrap_or(false),
            all_candidates: ours.protected.is_empty(),
            z_recorded: event.scores.z.is_some(),
            scored: !event.scores.is_empty(),
            keys,
            one_layer: stages.is_some_and(|stages| stages.score_layers.len() == 1),
        }
    }
}
