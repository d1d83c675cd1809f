//! Faults of the engine that can be planted on purpose (`--plant`). All of them are here: what a fault changes is a value that the
//! normal code takes as an argument.
//!
//! The selector (`select`) and the sampler (`sample`) plant their own, the replay harness too; those causes pass through here untouched or are refused.

use lockstep_traces::{Cause, PolicyKind};

use crate::cache::GatherMode;
use crate::cpu::{Arithmetic, Causal, Grouping};
use crate::rope::RotaryTable;
use crate::{Hyper, RuntimeError};

/// What a planted fault changes outside the arithmetic.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct EngineFaults {
    /// How rows are gathered.
    pub gather: GatherMode,
    /// The rotary index of a new row is the number of live rows.
    pub physical_positions: bool,
}

/// Spoils `arithmetic` where the fault sits there, and returns what it changes elsewhere.
///
/// # Errors
/// [`RuntimeError::Option`] for a fault that this model or policy cannot show, or that is not an engine's.
pub fn plant(
    cause: Option<Cause>,
    hyper: &Hyper,
    policy: PolicyKind,
    arithmetic: &mut Arithmetic,
) -> Result<EngineFaults, RuntimeError> {
    let mut faults = EngineFaults::default();
    let Some(cause) = cause else {
        return Ok(faults);
    };
    let cannot = |why: &str| RuntimeError::Option {
        name: "plant",
        what: format!("`{}` cannot show here: {why}", cause.slug()),
    };
    let compacts =
        matches!(cause, Cause::PhysicalPositions | Cause::ValueNotGathered | Cause::StaleRow);
    if compacts && policy == PolicyKind::Dense {
        return Err(cannot("policy dense never compacts"));
    }
    match cause {
        // 5 %: shifts every frequency but the first, and no single logit by much.
        Cause::RotaryBase => {
            let theta = hyper.rope_theta * 1.05;
            arithmetic.rotary = RotaryTable::new(hyper.head_dim, theta, &hyper.rope);
        }
        Cause::QkNormSkipped if !hyper.qk_norm => return Err(cannot("the model has no QK norm")),
        Cause::QkNormSkipped => arithmetic.qk_norm = false,
        // The two epsilons that are mixed up in practice.
        Cause::NormEpsilon => {
            arithmetic.norm_eps = if hyper.norm_eps < 5e-6 { 1e-5 } else { 1e-6 };
        }
        // In a prefill chunk each row sees the next one; rows fed alone are right.
        Cause::CausalMask => arithmetic.causal = Causal::Next,
        Cause::GqaTile if hyper.kv_heads == 1 || hyper.group() == 1 => {
            return Err(cannot("tiling and repeating are the same with these head counts"));
        }
        Cause::GqaTile => arithmetic.grouping = Grouping::Tile,
        Cause::PhysicalPositions => faults.physical_positions = true,
        Cause::ValueNotGathered => faults.gather.value_kept_in_place = true,
        Cause::StaleRow => faults.gather.stale_row = true,
        Cause::RoundStartRows
        | Cause::ZscoreRows
        | Cause::ZscorePopulation
        | Cause::LayerMax
        | Cause::TieOrder
        | Cause::WindowRowLost => {}
        cause if cause.is_sampler() => {}
        Cause::PromptFedTwice
        | Cause::TraceShifted
        | Cause::LastPromptRowFedAgain
        | Cause::ReferenceDtype => {
            return Err(cannot("it is a fault of the replay, not of a run"));
        }
        _ => return Err(cannot("no part of the engine has it")),
    }
    Ok(faults)
}
