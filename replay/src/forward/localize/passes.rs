//! Teacher-forced passes of the reference over one sample, stopped where a row is to be looked at.

use lockstep_reference::forward::{Cache, CacheRows, Chunk, Model, Stage, Watch};
use lockstep_traces::store::RunReader;

use crate::ReplayError;
use crate::forward::compactor::Compactor;
use crate::forward::feed::{Token, chunk_end, tokens};
use crate::forward::options::Policy;
use crate::forward::recording::Recording;

/// A pass under way.
pub(super) struct Pass<'a> {
    model: &'a Model,
    recording: &'a Recording,
    compactor: Compactor<'a>,
    tokens: Vec<Token>,
    cache: Cache,
    fed: usize,
}

impl<'a> Pass<'a> {
    /// From position 0, with the recorded keep-sets where the run compacted.
    pub(super) fn new(
        run: &'a RunReader,
        recording: &'a Recording,
        model: &'a Model,
    ) -> Result<Self, ReplayError> {
        Ok(Self {
            model,
            recording,
            compactor: Compactor::new(&Policy::Recorded, run, model.hyper())?,
            tokens: tokens(recording, None),
            cache: model.new_cache()?,
            fed: 0,
        })
    }

    /// Feeds up to and without row `end`, in chunks, compacting where the recording did. `watched` are positions;
    /// `at_event` sees the cache and the number of rows kept just before each gather.
    pub(super) fn advance(
        &mut self,
        end: usize,
        chunk: usize,
        watched: &[u32],
        at_event: &mut dyn FnMut(&Cache, usize) -> Result<(), ReplayError>,
    ) -> Result<Vec<(u32, Stage)>, ReplayError> {
        let end = end.min(self.tokens.len());
        let mut stages = Vec::new();
        while self.fed < end {
            let stop = self.compactor.next(self.recording, &self.tokens, self.fed, &self.cache);
            let next = chunk_end(self.fed, chunk, end, stop);
            let here: Vec<usize> = (self.fed..next)
                .filter(|row| u32::try_from(*row).is_ok_and(|row| watched.contains(&row)))
                .map(|row| row - self.fed)
                .collect();
            for stage in self.feed(self.fed..next, &here)? {
                let position = u32::try_from(self.fed + stage.row).unwrap_or(u32::MAX);
                stages.push((position, stage));
            }
            self.fed = next;
            if stop == Some(next) {
                self.compact(at_event)?;
            }
        }
        Ok(stages)
    }

    /// Feeds one row and no compaction after it.
    pub(super) fn peek(&mut self) -> Result<(), ReplayError> {
        if self.fed < self.tokens.len() {
            self.feed(self.fed..self.fed + 1, &[])?;
            self.fed += 1;
        }
        Ok(())
    }

    fn feed(
        &mut self,
        rows: std::ops::Range<usize>,
        watched: &[usize],
    ) -> Result<Vec<Stage>, ReplayError> {
        let tokens = &self.tokens[rows];
        let ids: Vec<u32> = tokens.iter().map(|token| token.id).collect();
        let positions: Vec<u32> = tokens.iter().map(|token| token.index).collect();
        let chunk = Chunk { ids: &ids, positions: &positions, logits: &[] };
        Ok(self.model.feed(&mut self.cache, &chunk, Watch { rows: watched })?.stages)
    }

    fn compact(
        &mut self,
        at_event: &mut dyn FnMut(&Cache, usize) -> Result<(), ReplayError>,
    ) -> Result<(), ReplayError> {
        let (hyper, precision) = (self.model.hyper(), self.model.precision());
        let made =
            self.compactor.select(self.recording, hyper, precision, self.fed, &self.cache)?;
        if let Some(made) = made {
            at_event(&self.cache, made.keep.rows())?;
            self.cache.gather(&made.keep)?;
        }
        Ok(())
    }

    /// Live rows of a layer.
    pub(super) fn layer(&self, layer: usize) -> Result<CacheRows, ReplayError> {
        Ok(self.cache.layer(layer)?)
    }

    /// Live rows.
    pub(super) const fn rows(&self) -> usize {
        self.cache.rows()
    }
}
