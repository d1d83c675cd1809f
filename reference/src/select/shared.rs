//! The Python debug selector of the native runtime (TP): one keep-set for every head and layer
//! (`TRIATTENTION.md` 4.1, 4.2, 5.4).

use lockstep_traces::{Aggregation, PolicySpec, RuleSet};

use super::choose;
use super::heads::HeadStats;
use super::input::Input;
use super::recipe::{Degenerate, Deviation, Recipe, TieBreak};
use super::reduce::reduce;
use super::score::Scorer;
use super::zscore::zscore;
use super::{Real, Rules, SelectError};

/// Settings of one call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SharedRules {
    /// One more than the rows kept: the next token's row is counted.
    pub kv_budget: usize,
    /// One more than the newest rows kept outright.
    pub recent_window: usize,
    /// Rows of positions below `prefix_length` are kept outright.
    pub protect_prefill: bool,
    /// Prompt length in positions.
    pub prefix_length: usize,
    /// Modulus correction dropped.
    pub disable_mlr: bool,
    /// Trigonometric term dropped.
    pub disable_trig: bool,
    /// Largest offset.
    pub offset_max_length: usize,
}

/// Kept rows and the scores that ranked them.
#[derive(Debug, Clone, PartialEq)]
pub struct SharedSelection {
    /// Kept rows, ascending.
    pub keep: Vec<usize>,
    /// Score of each row, +inf where it is kept outright; empty where nothing is ranked.
    pub scores: Vec<f64>,
}

/// Selects. Positions are those of KV head 0 in the first layer.
///
/// # Errors
/// [`SelectError`] where the input contradicts itself.
pub fn select_shared<R: Real>(
    rules: SharedRules,
    stats: &HeadStats,
    input: &Input<'_>,
) -> Result<SharedSelection, SelectError> {
    input.check(stats.freqs())?;
    let rows = input.rows();
    let keep = rules.kv_budget.saturating_sub(1);
    if rows <= keep {
        return Ok(SharedSelection { keep: (0..rows).collect(), scores: Vec::new() });
    }
    let reserved = reserve(rules, input.positions.of(0, 0));
    let held: Vec<usize> = (0..rows).filter(|row| reserved[*row]).collect();
    if held.len() >= keep {
        return Ok(SharedSelection {
            keep: held.into_iter().take(keep).collect(),
            scores: Vec::new(),
        });
    }
    let scores = combined::<R>(rules, stats, input, &reserved)?;
    let mut keep = choose::best(&scores, keep, TieBreak::LowerRow);
    keep.sort_unstable();
    Ok(SharedSelection { keep, scores })
}

fn reserve(rules: SharedRules, positions: &[i32]) -> Vec<bool> {
    let mut newest: Vec<usize> = (0..positions.len()).collect();
    newest.sort_by_key(|row| std::cmp::Reverse(positions[*row]));
    let prefix = |position: &i32| {
        rules.protect_prefill && usize::try_from(*position).is_ok_and(|p| p < rules.prefix_length)
    };
    let mut reserved: Vec<bool> = positions.iter().map(prefix).collect();
    for row in newest.into_iter().take(rules.recent_window.saturating_sub(1)) {
        reserved[row] = true;
    }
    reserved
}

/// Maximum over all heads and layers of z-scores over the candidates; reserved rows +inf.
fn combined<R: Real>(
    rules: SharedRules,
    stats: &HeadStats,
    input: &Input<'_>,
    reserved: &[bool],
) -> Result<Vec<f64>, SelectError> {
    let spec = PolicySpec {
        rule_set: Some(RuleSet::Trt),
        disable_mlr: Some(rules.disable_mlr),
        disable_trig: Some(rules.disable_trig),
        offset_max_length: Some(rules.offset_max_length),
        ..PolicySpec::default()
    };
    let recipe = Recipe::of(&Rules::resolve(&spec)?);
    let plain = stats.with_scale(1.0);
    let scorer = Scorer::<R>::new(&recipe, &plain, input, input.heads.group()?, 0)?;
    let candidates: Vec<bool> = reserved.iter().map(|reserved| !reserved).collect();
    let mut rows = Vec::new();
    for (index, layer) in input.layers.iter().enumerate() {
        let one = |scores: Vec<R>| {
            zscore(&scores, &candidates, Deviation::Population, Degenerate::AtLeast(1e-6))
        };
        rows.extend(scorer.layer(index, *layer).into_iter().flatten().map(one));
    }
    let slices: Vec<&[R]> = rows.iter().map(Vec::as_slice).collect();
    let best = reduce(&slices, Aggregation::Max).unwrap_or_default();
    let guard =
        |(value, reserved): (R, &bool)| if *reserved { f64::INFINITY } else { value.wide() };
    Ok(best.into_iter().zip(reserved).map(guard).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_rows_go_by_position_and_not_by_row() {
        let rules = SharedRules {
            kv_budget: 5,
            recent_window: 3,
            protect_prefill: true,
            prefix_length: 2,
            disable_mlr: false,
            disable_trig: false,
            offset_max_length: 65536,
        };
        assert_eq!(reserve(rules, &[9, 1, 5, 8, 3, 0]), vec![true, true, false, true, false, true]);
    }
}
