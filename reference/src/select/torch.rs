//! Upstream's PyTorch scorer on its own (`TRIATTENTION.md` 3.3, 3.4, 4.2 `pruning_mode=per_layer`).

use lockstep_traces::{Aggregation, PolicySpec, RuleSet};

use super::heads::HeadStats;
use super::input::Input;
use super::recipe::{Pairing, Recipe};
use super::reduce::reduce;
use super::score::Scorer;
use super::{Real, Rules, SelectError};

/// Settings of one call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TorchScore {
    /// Reduction over offsets.
    pub offsets: Aggregation,
    /// Largest offset.
    pub offset_max_length: usize,
    /// Modulus correction dropped.
    pub disable_mlr: bool,
    /// Trigonometric term dropped.
    pub disable_trig: bool,
    /// Scores are averaged over heads.
    pub mean_over_heads: bool,
    /// Pairing of elements.
    pub pairing: Pairing,
}

/// Scores of the first layer of `input`: one row per attention head, or one in all.
///
/// # Errors
/// [`SelectError`] where the input contradicts itself.
pub fn torch_scores<R: Real>(
    settings: TorchScore,
    stats: &HeadStats,
    input: &Input<'_>,
) -> Result<Vec<Vec<f64>>, SelectError> {
    let spec = PolicySpec { rule_set: Some(RuleSet::Vllm), ..PolicySpec::default() };
    let mut recipe = Recipe::of(&Rules::resolve(&spec)?);
    recipe.set_torch();
    recipe.offsets = settings.offsets;
    recipe.offset_max_length = settings.offset_max_length;
    recipe.no_mlr = settings.disable_mlr;
    recipe.no_trig = settings.disable_trig;
    recipe.pairing = settings.pairing;
    let group = input.heads.group()?;
    let scorer = Scorer::<R>::new(&recipe, stats, input, group, 0)?;
    let layer = input.layers.first().copied().unwrap_or_default();
    let rows: Vec<Vec<R>> = scorer.layer(0, layer).into_iter().flatten().collect();
    let slices: Vec<&[R]> = rows.iter().map(Vec::as_slice).collect();
    let rows = match (settings.mean_over_heads, reduce(&slices, Aggregation::Mean)) {
        (true, Some(mean)) => vec![mean],
        _ => rows,
    };
    Ok(rows.into_iter().map(|row| row.into_iter().map(Real::wide).collect()).collect())
}
