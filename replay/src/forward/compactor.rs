//! What drops rows during a replay, and when.

use lockstep_reference::Hyper;
use lockstep_reference::forward::{Cache, KeepSets, Precision};
use lockstep_traces::store::RunReader;

use super::feed::{Token, fed_at};
use super::keeps::recorded_keep;
use super::options::Policy;
use super::own::OwnSelector;
use super::recording::{Event, Recording};
use crate::ReplayError;

/// What drops rows.
pub(super) enum Compactor<'a> {
    Dense,
    Recorded { run: &'a RunReader, next: usize },
    Own(Box<OwnSelector>),
}

/// One compaction as it was made.
pub(super) struct Compaction {
    pub(super) event: Event,
    pub(super) keep: KeepSets,
    pub(super) protected: usize,
    pub(super) candidates: usize,
}

impl<'a> Compactor<'a> {
    pub(super) fn new(
        policy: &Policy,
        run: &'a RunReader,
        hyper: &Hyper,
    ) -> Result<Self, ReplayError> {
        Ok(match policy {
            Policy::Dense => Self::Dense,
            Policy::Recorded => Self::Recorded { run, next: 0 },
            Policy::Own { spec, stats } => {
                Self::Own(Box::new(OwnSelector::new(spec, stats, hyper)?))
            }
        })
    }

    /// After how many tokens, more than `fed`, rows are dropped next.
    pub(super) fn next(
        &self,
        recording: &Recording,
        tokens: &[Token],
        fed: usize,
        cache: &Cache,
    ) -> Option<usize> {
        match self {
            Self::Dense => None,
            Self::Recorded { next, .. } => {
                fed_at(tokens, recording.events.get(*next)?.absolute_position)
            }
            Self::Own(own) => own.next(recording.prompt_len, tokens.len(), fed, cache),
        }
    }

    /// Selects for the cache as it stands after `fed` tokens; `None` where the rules leave it as it is.
    pub(super) fn select(
        &mut self,
        recording: &Recording,
        hyper: &Hyper,
        precision: Precision,
        fed: usize,
        cache: &Cache,
    ) -> Result<Option<Compaction>, ReplayError> {
        match self {
            Self::Dense => Ok(None),
            Self::Recorded { run, next } => {
                let Some(event) = recording.events.get(*next).copied() else { return Ok(None) };
                *next += 1;
                let keep = recorded_keep(run, &recording.sample_id, &event, hyper)?;
                let row = run
                    .events(Some(&recording.sample_id))?
                    .into_iter()
                    .find(|row| row.ordinal == event.ordinal);
                let (protected, candidates) =
                    row.map_or((0, 0), |row| (row.protected as usize, row.candidates as usize));
                Ok(Some(Compaction { event, keep, protected, candidates }))
            }
            Self::Own(own) => own.select(recording, hyper, precision, fed, cache),
        }
    }
}
