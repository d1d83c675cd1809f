//! Names of the mistakes that Lockstep can plant and can name.
//!
//! One vocabulary for both ends: `--plant SLUG` breaks a run on purpose, and a [`crate::Finding`] that names a
//! cause carries the same slug. The two ends share the name only; how a fault is planted and how it is recognised
//! are written apart.

use serde::{Deserialize, Serialize};

/// A known mistake of a runtime or of the replay harness.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Cause {
    /// The rotary base (theta) is not the model's.
    RotaryBase,
    /// Query and key are not normalised before RoPE though the model says so.
    QkNormSkipped,
    /// RMSNorm uses another epsilon.
    NormEpsilon,
    /// A row attends to one row too few or too many.
    CausalMask,
    /// Query heads are mapped to KV heads by tiling (`h % kv_heads`) and not by repeating (`h / group`).
    GqaTile,
    /// The selector's round start is the row count and not the absolute position.
    RoundStartRows,
    /// RoPE index of new rows counts physical rows, so that it falls back after a compaction.
    PhysicalPositions,
    /// z-score over the wrong set of rows.
    ZscoreRows,
    /// z-score with n where the rule set has n - 1 (or the reverse).
    ZscorePopulation,
    /// Layers are reduced by maximum where the rule set has the mean.
    LayerMax,
    /// Ties are broken by another order.
    TieOrder,
    /// K was gathered by the keep-set, V was not.
    ValueNotGathered,
    /// One row after the gather holds another row's bytes.
    StaleRow,
    /// The newest row of the recent window is not protected.
    WindowRowLost,
    /// The replay feeds the prompt twice.
    PromptFedTwice,
    /// The replay reads the trace one row late or early.
    TraceShifted,
    /// The replay feeds the last prompt row again.
    LastPromptRowFedAgain,
    /// The reference computes in another dtype than it claims.
    ReferenceDtype,
    /// A sample's index is added to the base seed twice.
    SeedIndexTwice,
    /// Every sample draws from the base seed; its index is not added.
    OneSeedForAll,
    /// The exponential race runs over the kept slice and not over the whole vocabulary.
    RaceOverSlice,
    /// The random stream does not advance: every draw uses the first numbers.
    RngFrozen,
    /// A new generator for every draw, seeded with seed + number of the draw.
    RngReseeded,
    /// One draw is thrown away before the first one used.
    DrawDiscarded,
    /// One draw is thrown away after every draw used.
    DrawDiscardedEachStep,
    /// Filters see the probabilities before the temperature.
    TemperatureAfterFilters,
    /// top-p is measured over the whole vocabulary and not over the survivors of top-k.
    TopPBeforeTopK,
    /// min-p is applied to raw logits and not to probabilities.
    MinPOnLogits,
    /// Ids tied at rank k are kept where the rule drops them, or dropped where it keeps them.
    TopKTies,
}

impl Cause {
    /// Every cause, engine faults first, then the replay's and the sampler's, in the order in which `--plant list` prints them.
    pub const ALL: [Self; 29] = [
        Self::RotaryBase,
        Self::QkNormSkipped,
        Self::NormEpsilon,
        Self::CausalMask,
        Self::GqaTile,
        Self::RoundStartRows,
        Self::PhysicalPositions,
        Self::ZscoreRows,
        Self::ZscorePopulation,
        Self::LayerMax,
        Self::TieOrder,
        Self::ValueNotGathered,
        Self::StaleRow,
        Self::WindowRowLost,
        Self::PromptFedTwice,
        Self::TraceShifted,
        Self::LastPromptRowFedAgain,
        Self::ReferenceDtype,
        Self::SeedIndexTwice,
        Self::OneSeedForAll,
        Self::RaceOverSlice,
        Self::RngFrozen,
        Self::RngReseeded,
        Self::DrawDiscarded,
        Self::DrawDiscardedEachStep,
        Self::TemperatureAfterFilters,
        Self::TopPBeforeTopK,
        Self::MinPOnLogits,
        Self::TopKTies,
    ];

    /// Stable identifier, as in `--plant` and in JSON.
    #[must_use]
    pub const fn slug(self) -> &'static str {
        match self {
            Self::RotaryBase => "rotary-base",
            Self::QkNormSkipped => "qk-norm-skipped",
            Self::NormEpsilon => "norm-epsilon",
            Self::CausalMask => "causal-mask",
            Self::GqaTile => "gqa-tile",
            Self::RoundStartRows => "round-start-rows",
            Self::PhysicalPositions => "physical-positions",
            Self::ZscoreRows => "zscore-rows",
            Self::ZscorePopulation => "zscore-population",
            Self::LayerMax => "layer-max",
            Self::TieOrder => "tie-order",
            Self::ValueNotGathered => "value-not-gathered",
            Self::StaleRow => "stale-row",
            Self::WindowRowLost => "window-row-lost",
            Self::PromptFedTwice => "prompt-fed-twice",
            Self::TraceShifted => "trace-shifted",
            Self::LastPromptRowFedAgain => "last-prompt-row-fed-again",
            Self::ReferenceDtype => "reference-dtype",
            Self::SeedIndexTwice => "seed-index-twice",
            Self::OneSeedForAll => "one-seed-for-all",
            Self::RaceOverSlice => "race-over-slice",
            Self::RngFrozen => "rng-frozen",
            Self::RngReseeded => "rng-reseeded",
            Self::DrawDiscarded => "draw-discarded",
            Self::DrawDiscardedEachStep => "draw-discarded-each-step",
            Self::TemperatureAfterFilters => "temperature-after-filters",
            Self::TopPBeforeTopK => "top-p-before-top-k",
            Self::MinPOnLogits => "min-p-on-logits",
            Self::TopKTies => "top-k-ties",
        }
    }

    /// One line for people.
    #[must_use]
    pub const fn title(self) -> &'static str {
        match self {
            Self::RotaryBase => "rotary base differs from the model's",
            Self::QkNormSkipped => "QK norm is skipped",
            Self::NormEpsilon => "RMSNorm uses another epsilon",
            Self::CausalMask => "causal mask is off by one",
            Self::GqaTile => "query heads are tiled over KV heads, not repeated",
            Self::RoundStartRows => "round start is the row count, not the absolute position",
            Self::PhysicalPositions => {
                "RoPE index of new rows counts physical rows after compaction"
            }
            Self::ZscoreRows => "z-score is taken over another set of rows",
            Self::ZscorePopulation => "z-score divides by another n (population against sample)",
            Self::LayerMax => "layers are reduced by another operation (maximum against mean)",
            Self::TieOrder => "ties are broken by another order of rows",
            Self::ValueNotGathered => "V is not gathered by the keep-set",
            Self::StaleRow => "a row after the gather holds another row's bytes",
            Self::WindowRowLost => "the newest row of the recent window is lost",
            Self::PromptFedTwice => "the replay fed the prompt twice",
            Self::TraceShifted => "the replay reads the trace shifted by one row",
            Self::LastPromptRowFedAgain => "the replay fed the last prompt row again",
            Self::ReferenceDtype => "the reference computes in another dtype than it claims",
            Self::SeedIndexTwice => "the sample's index is added to the seed twice",
            Self::OneSeedForAll => "every sample uses the base seed; the index is not added",
            Self::RaceOverSlice => {
                "the exponential race runs over the kept slice, not over the vocabulary"
            }
            Self::RngFrozen => {
                "the random stream does not advance (offset frozen, or seeded anew with the same seed)"
            }
            Self::RngReseeded => "a new generator for every draw, seeded with seed + step",
            Self::DrawDiscarded => "one draw is thrown away before the first one used",
            Self::DrawDiscardedEachStep => "one draw is thrown away after every draw used",
            Self::TemperatureAfterFilters => "filters see the probabilities before the temperature",
            Self::TopPBeforeTopK => {
                "top-p is measured over the whole vocabulary, not over the survivors of top-k"
            }
            Self::MinPOnLogits => "min-p is applied to raw logits, not to probabilities",
            Self::TopKTies => "ids tied at rank k are kept or dropped against the rule",
        }
    }

    /// True where the mistake sits in the replay harness and not in the engine under test.
    #[must_use]
    pub const fn is_harness(self) -> bool {
        matches!(
            self,
            Self::PromptFedTwice
                | Self::TraceShifted
                | Self::LastPromptRowFedAgain
                | Self::ReferenceDtype
        )
    }

    /// True where the mistake sits in the sampler: in its filters, its draw or its seeds.
    #[must_use]
    pub const fn is_sampler(self) -> bool {
        matches!(
            self,
            Self::SeedIndexTwice
                | Self::OneSeedForAll
                | Self::RaceOverSlice
                | Self::RngFrozen
                | Self::RngReseeded
                | Self::DrawDiscarded
                | Self::DrawDiscardedEachStep
                | Self::TemperatureAfterFilters
                | Self::TopPBeforeTopK
                | Self::MinPOnLogits
                | Self::TopKTies
        )
    }

    /// The cause with this slug.
    #[must_use]
    pub fn from_slug(slug: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|cause| cause.slug() == slug)
    }
}
