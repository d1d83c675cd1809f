//! What a forward replay is asked to do.

use std::ops::RangeInclusive;

use lockstep_reference::forward::Precision;
use lockstep_traces::{Cause, PolicySpec, stats::QueryStats};

/// What happens to the cache at a compaction.
#[derive(Debug, Clone)]
pub enum Policy {
    /// Nothing: every row stays.
    Dense,
    /// The recorded keep-sets are applied where the recording compacted. Isolates the forward pass from the selection.
    Recorded,
    /// The reference's own rules decide when and what; isolates nothing and tests everything.
    Own {
        /// Rules as asked for, resolved by the reference's own defaults.
        spec: Box<PolicySpec>,
        /// Calibration statistics.
        stats: Box<QueryStats>,
    },
}

impl Policy {
    /// `dense`, `recorded` or `own`.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Dense => "dense",
            Self::Recorded => "recorded",
            Self::Own { .. } => "own",
        }
    }
}

/// Options of `replay::forward`.
#[derive(Debug, Clone)]
pub struct ForwardOptions {
    /// Cache policy.
    pub policy: Policy,
    /// Arithmetic.
    pub precision: Precision,
    /// Rows fed at once, at most; a chunk ends earlier at a compaction.
    pub chunk: usize,
    /// These samples only; `None`: all.
    pub samples: Option<Vec<String>>,
    /// Rows emitted; everything before is fed all the same. `None`: all.
    pub positions: Option<RangeInclusive<u32>>,
    /// A mistake of the harness to make on purpose.
    pub plant: Option<Cause>,
}

impl Default for ForwardOptions {
    fn default() -> Self {
        Self {
            policy: Policy::Dense,
            precision: Precision::F32,
            chunk: 512,
            samples: None,
            positions: None,
            plant: None,
        }
    }
}

impl ForwardOptions {
    /// The arithmetic really used: another than claimed where that mistake is planted.
    pub(crate) fn computed(&self) -> Precision {
        match (self.plant, self.precision) {
            (Some(Cause::ReferenceDtype), Precision::Bf16 | Precision::F16) => Precision::F32,
            (Some(Cause::ReferenceDtype), _) => Precision::Bf16,
            (_, precision) => precision,
        }
    }
}
