//! Faults that can be planted in the sampler on purpose, so that an identification can be shown to find them.

use lockstep_traces::Cause;

use super::error::SampleError;
use super::filter::{Filters, Survivors, TOP_P_OFF, Ties};
use super::settings::{DrawKind, FilterRules, Settings};

/// The fault in force, if it is one of the sampler's; everything else is left to the engine.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Faults(Option<Cause>);

impl Faults {
    /// Checks that the settings can show the fault at all.
    pub(super) fn new(
        plant: Option<Cause>,
        settings: &Settings,
        vocab: usize,
    ) -> Result<Self, SampleError> {
        let Some(cause) = plant.filter(|cause| cause.is_sampler()) else { return Ok(Self(None)) };
        let Filters { temperature, top_k, top_p, min_p } = settings.filters;
        let (cuts_k, cuts_p) = (top_k < vocab, top_p < TOP_P_OFF);
        let why = match cause {
            _ if settings.kind == DrawKind::Argmax => "no token is drawn; give a temperature",
            Cause::SeedIndexTwice | Cause::OneSeedForAll if settings.base_seed.is_none() => {
                "there is no seed; give one"
            }
            Cause::RaceOverSlice
                if settings.kind != DrawKind::TorchCuda || settings.host.is_some() =>
            {
                "there is no race over the vocabulary; use --sampler torch-cuda"
            }
            Cause::TemperatureAfterFilters
                if (temperature - 1.0).abs() < f32::EPSILON || !(cuts_p || min_p > 0.0) =>
            {
                "it needs a temperature other than 1, and top-p or min-p"
            }
            Cause::TopPBeforeTopK if !(cuts_k && cuts_p) => "it needs both top-k and top-p",
            Cause::MinPOnLogits if min_p <= 0.0 => "it needs min-p",
            Cause::TopKTies if !cuts_k => "it needs top-k",
            _ => return Ok(Self(Some(cause))),
        };
        let what = format!("`{}` cannot show here: {why}", cause.slug());
        Err(SampleError::Option { name: "plant", what })
    }

    pub(super) fn is(self, cause: Cause) -> bool {
        self.0 == Some(cause)
    }

    /// A fault that the draw on a device does not have.
    pub(super) fn on_host(self) -> Option<Cause> {
        self.0.filter(|cause| !matches!(cause, Cause::SeedIndexTwice | Cause::OneSeedForAll))
    }

    /// Filters a row by `rules`, spoiled where the fault sits there.
    pub(super) fn filter(
        self,
        filters: &Filters,
        rules: FilterRules,
        logits: &[f32],
        out: &mut Survivors,
    ) {
        let usual = match rules {
            FilterRules::Native => Ties::Drop,
            FilterRules::Hf => Ties::Keep,
        };
        let other = if usual == Ties::Drop { Ties::Keep } else { Ties::Drop };
        let apply = |filters: &Filters, ties, out: &mut Survivors| match rules {
            FilterRules::Native => filters.apply_with(logits, ties, out),
            FilterRules::Hf => filters.apply_hf_with(logits, ties, out),
        };
        match self.0 {
            Some(Cause::TopKTies) => apply(filters, other, out),
            Some(Cause::TemperatureAfterFilters) => {
                apply(&Filters { temperature: 1.0, ..*filters }, usual, out);
                filters.soften(logits, out);
            }
            Some(Cause::TopPBeforeTopK) => {
                let whole = Filters { top_k: usize::MAX, min_p: 0.0, ..*filters };
                apply(&whole, usual, out);
                out.ids.truncate(filters.top_k.max(1));
                filters.soften(logits, out);
                let kept = filters.min_p_prefix(out);
                out.cut(kept);
            }
            Some(Cause::MinPOnLogits) => {
                apply(&Filters { min_p: 0.0, ..*filters }, usual, out);
                let logit = |id: &u32| logits.get(*id as usize).copied().unwrap_or(f32::NAN);
                let floor = out.ids.first().map_or(0.0, logit) * filters.min_p;
                let kept = out.ids.iter().take_while(|id| logit(id) >= floor).count().max(1);
                out.cut(kept);
            }
            _ => apply(filters, usual, out),
        }
    }
}
