//! How a producer emits what it records.

use crate::{Dump, EventRow, SampleRow, StepRow, TensorRef, TraceError};

/// Something that could be recorded at the cost of a copy; a producer asks before it pays.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Probe<'a> {
    /// K and V before and after this compaction (1-based ordinal).
    Cache {
        /// Sample.
        sample_id: &'a str,
        /// 1-based ordinal.
        ordinal: u32,
    },
    /// Scores by stage, keep-sets and positions of this compaction.
    Scores {
        /// Sample.
        sample_id: &'a str,
        /// 1-based ordinal.
        ordinal: u32,
    },
    /// Hidden states of this row at this layer (`None`: embedding and final norm).
    Hidden {
        /// Sample.
        sample_id: &'a str,
        /// Absolute position.
        position: u32,
        /// Layer.
        layer: Option<u32>,
    },
    /// Full logits of this row.
    Logits {
        /// Sample.
        sample_id: &'a str,
        /// Absolute position.
        position: u32,
    },
}

/// Receives what a run records. Rows of one sample arrive in order of position; samples of a batch may interleave.
pub trait TraceSink {
    /// Is this wanted?
    fn wants(&self, probe: Probe<'_>) -> bool;

    /// Ids and logits wanted per step row.
    fn top_k(&self) -> usize;

    /// One fed token.
    ///
    /// # Errors
    /// Whatever the store reports; what was written before stays.
    fn step(&mut self, row: StepRow) -> Result<(), TraceError>;

    /// One compaction.
    ///
    /// # Errors
    /// As [`TraceSink::step`].
    fn event(&mut self, row: EventRow) -> Result<(), TraceError>;

    /// One dump file.
    ///
    /// # Errors
    /// As [`TraceSink::step`].
    fn dump(&mut self, dump: Dump) -> Result<(), TraceError>;

    /// One dump file with more tensors than `dump` holds; a sink that can write them from where they lie does not copy them.
    ///
    /// # Errors
    /// As [`TraceSink::step`].
    fn dump_with(&mut self, mut dump: Dump, rows: &[TensorRef<'_>]) -> Result<(), TraceError> {
        dump.tensors.extend(rows.iter().map(TensorRef::to_tensor));
        self.dump(dump)
    }

    /// A sample has ended.
    ///
    /// # Errors
    /// As [`TraceSink::step`].
    fn sample(&mut self, row: SampleRow) -> Result<(), TraceError>;
}

/// Keeps everything in memory; for tests and short replays.
#[derive(Debug, Default)]
pub struct MemorySink {
    /// What is wanted.
    pub plan: crate::RecordPlan,
    /// Step rows in order of arrival.
    pub steps: Vec<StepRow>,
    /// Events in order of arrival.
    pub events: Vec<EventRow>,
    /// Dumps in order of arrival.
    pub dumps: Vec<Dump>,
    /// Samples in order of their end.
    pub samples: Vec<SampleRow>,
}

impl crate::RecordPlan {
    /// Does the plan ask for this probe?
    #[must_use]
    pub fn wants(&self, probe: Probe<'_>) -> bool {
        match probe {
            Probe::Cache { ordinal, .. } => self.cache.has(ordinal),
            Probe::Scores { ordinal, .. } => self.scores.has(ordinal),
            Probe::Hidden { position, layer, .. } => {
                self.hidden.has(position) && layer.is_none_or(|layer| self.hidden_layers.has(layer))
            }
            Probe::Logits { position, .. } => self.logits.has(position),
        }
    }
}

impl TraceSink for MemorySink {
    fn wants(&self, probe: Probe<'_>) -> bool {
        self.plan.wants(probe)
    }
    fn top_k(&self) -> usize {
        self.plan.top_k.max(1)
    }
    fn step(&mut self, row: StepRow) -> Result<(), TraceError> {
        self.steps.push(row);
        Ok(())
    }
    fn event(&mut self, row: EventRow) -> Result<(), TraceError> {
        self.events.push(row);
        Ok(())
    }
    fn dump(&mut self, dump: Dump) -> Result<(), TraceError> {
        self.dumps.push(dump);
        Ok(())
    }
    fn sample(&mut self, row: SampleRow) -> Result<(), TraceError> {
        self.samples.push(row);
        Ok(())
    }
}
