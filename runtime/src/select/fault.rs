//! Faults that can be planted in a selector on purpose, so that a checker can be shown to find them.

use lockstep_traces::{Cause, RuleSet, SelectionMode};

use super::{Rules, SelectError};

/// The fault in force, if it is one of the selector's; everything else is left to the engine.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Faults(Option<Cause>);

impl Faults {
    /// Checks that the rules can show the fault at all.
    pub(super) fn new(plant: Option<Cause>, rules: &Rules) -> Result<Self, SelectError> {
        let Some(cause) = plant else { return Ok(Self(None)) };
        let guards = rules.recent_window > 0
            || rules.protect_prefill
            || (rules.rule_set == RuleSet::Trt && !rules.count_prompt_tokens);
        let why = match cause {
            Cause::WindowRowLost if rules.recent_window == 0 => {
                "there is no recent window; set one"
            }
            Cause::ZscoreRows if !guards => {
                "no row is protected; set a window or protect the prompt"
            }
            Cause::ZscoreRows | Cause::ZscorePopulation if !rules.normalize => {
                "scores are not normalised"
            }
            Cause::LayerMax if rules.mode != SelectionMode::PerHead => {
                "this mode does not reduce over layers; use per_head"
            }
            _ => return Ok(Self(Some(cause))),
        };
        Err(SelectError::Plant { slug: cause.slug(), why: why.to_owned() })
    }

    fn is(self, cause: Cause) -> bool {
        self.0 == Some(cause)
    }

    /// R is the row count.
    pub(crate) fn round_start_is_rows(self) -> bool {
        self.is(Cause::RoundStartRows)
    }

    /// Mean and deviation are taken over the unprotected rows (`hf`: over the protected ones too).
    pub(crate) fn zscore_rows(self) -> bool {
        self.is(Cause::ZscoreRows)
    }

    /// n and n - 1 change places.
    pub(crate) fn zscore_population(self) -> bool {
        self.is(Cause::ZscorePopulation)
    }

    /// Maximum and mean over layers change places.
    pub(crate) fn other_layer_reduction(self) -> bool {
        self.is(Cause::LayerMax)
    }

    /// The higher row wins a tie.
    pub(crate) fn higher_row_wins(self) -> bool {
        self.is(Cause::TieOrder)
    }

    /// The newest row is ranked below every other.
    pub(crate) fn newest_row_lost(self) -> bool {
        self.is(Cause::WindowRowLost)
    }
}
