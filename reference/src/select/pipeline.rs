//! The whole selection.

use lockstep_traces::RuleSet;

use super::budget::{self, Plan};
use super::heads::HeadStats;
use super::input::Input;
use super::noise::NoiseStream;
use super::ranker::Ranker;
use super::recipe::Recipe;
use super::score::LayerScores;
use super::stages::{KeepSet, Outcome, Selection};
use super::{Real, Rules, SelectError};

/// Runs the scorer over layers: given their number and the scorer of one, returns all in order.
pub type OverLayers<R> =
    dyn Fn(usize, &(dyn Fn(usize) -> LayerScores<R> + Sync)) -> Vec<LayerScores<R>>;

/// One layer after the other.
#[must_use]
pub fn in_turn<R: Real>(
    layers: usize,
    score: &(dyn Fn(usize) -> LayerScores<R> + Sync),
) -> Vec<LayerScores<R>> {
    (0..layers).map(score).collect()
}

/// Selects under `rules` by their own recipe.
///
/// # Errors
/// [`SelectError`] where the input contradicts itself or the rules.
pub fn select<R: Real>(
    rules: &Rules,
    stats: &HeadStats,
    input: &Input<'_>,
    noise: Option<&mut NoiseStream>,
) -> Result<Selection, SelectError> {
    select_by(rules, &Recipe::of(rules), stats, input, noise, &in_turn::<R>)
}

/// Selects by a recipe, which need not be that of the rules: the rules say what is kept outright and how many rows stay,
/// the recipe how rows are ranked.
///
/// # Errors
/// As [`select`].
pub fn select_by<R: Real>(
    rules: &Rules,
    recipe: &Recipe,
    stats: &HeadStats,
    input: &Input<'_>,
    noise: Option<&mut NoiseStream>,
    over_layers: &OverLayers<R>,
) -> Result<Selection, SelectError> {
    input.check(stats.freqs())?;
    let ranking = match budget::plan(rules, input) {
        Plan::Ranked(ranking) => ranking,
        plan => return Ok(unranked(plan, rules.rule_set, input)),
    };
    let ranker = Ranker::new(recipe, &ranking, stats, input)?;
    let raw = ranker.raw(input, over_layers)?;
    Ok(ranker.rank(&raw, noise))
}

/// Shapes without ranking as each program returns them: one list for all, or the same list for every KV head.
fn unranked(plan: Plan, rule_set: RuleSet, input: &Input<'_>) -> Selection {
    let (outcome, rows) = match plan {
        Plan::Fixed { rows, why } => (Outcome::Fixed { why }, Some(rows)),
        Plan::Refused { why } => (Outcome::Refused { why }, None),
        Plan::Identity | Plan::Ranked(_) => (Outcome::Identity, Some((0..input.rows()).collect())),
    };
    let keep = rows.map(|rows: Vec<usize>| {
        if rule_set == RuleSet::Hf {
            return KeepSet::shared(rows);
        }
        let heads = input.heads.kv_heads;
        KeepSet { leading: vec![heads], sets: vec![rows; heads] }
    });
    let protected = keep.as_ref().and_then(|keep| keep.sets.first().cloned()).unwrap_or_default();
    Selection { outcome, keep, protected, candidates: Vec::new(), stages: None }
}

#[cfg(test)]
mod tests {
    //! Selections small enough to be worked out by hand: two frequencies, four rows.

    use lockstep_traces::{Aggregation, DType, PolicySpec, SelectionMode};

    use super::*;
    use crate::select::{HeadArrays, Heads, KeyView, Moment, Positions};

    /// Rows of (x0, x1, y0, y1).
    type Row = [f32; 4];

    fn bytes(rows: &[Row]) -> Vec<u8> {
        rows.iter().flatten().flat_map(|value| value.to_le_bytes()).collect()
    }

    /// One KV head; `layers` of rows.
    fn input(layers: &[Vec<u8>], q_heads: usize, moment: Moment) -> Input<'_> {
        let rows = layers[0].len() / 16;
        let view = |bytes| KeyView::new(DType::F32, [1, rows, 4], bytes).unwrap();
        Input {
            layers: (0u32..).take(layers.len()).collect(),
            keys: layers.iter().map(|bytes| view(bytes)).collect(),
            positions: Positions::Shared((0i32..).take(rows).collect()),
            heads: Heads { q_heads, kv_heads: 1 },
            moment,
        }
    }

    fn stats(
        layers: &[u32],
        heads: &[u32],
        real: &[f32],
        imag: &[f32],
        omega: &[f32],
    ) -> HeadStats {
        let modulus: Vec<f32> = real.iter().zip(imag).map(|(a, b)| a.hypot(*b)).collect();
        HeadStats::new(HeadArrays {
            layers,
            heads,
            mean_real: real,
            mean_imag: imag,
            modulus: &modulus,
            omega,
            scale: None,
            sampled: None,
        })
        .unwrap()
    }

    fn spec(rule_set: RuleSet, budget: usize) -> PolicySpec {
        PolicySpec {
            rule_set: Some(rule_set),
            kv_budget: Some(budget),
            recent_window: Some(0),
            offset_max_length: Some(1),
            noise_seed: Some(-1),
            ..PolicySpec::default()
        }
    }

    fn run(spec: &PolicySpec, stats: &HeadStats, input: &Input<'_>) -> Selection {
        select::<f64>(&Rules::resolve(spec).unwrap(), stats, input, None).unwrap()
    }

    /// Mean query (1, 0) and (0, 2i); frequencies 0: the score is x0 + 2 * y1, and the correction is 0.
    #[test]
    fn a_phase_of_zero_leaves_the_product_of_means_and_keys() {
        let stats = stats(&[0], &[0], &[1.0, 0.0], &[0.0, 2.0], &[0.0, 0.0]);
        let keys = [bytes(&[
            [1.0, 9.0, 9.0, 1.0],
            [0.0, 9.0, 9.0, 0.0],
            [5.0, 9.0, 9.0, -1.0],
            [0.0, 9.0, 9.0, 4.0],
        ])];
        let ours = run(&spec(RuleSet::Trt, 2), &stats, &input(&keys, 1, Moment::at(4, 0)));
        let stages = ours.stages.unwrap();
        for (score, expected) in stages.raw.row(0).iter().zip([3.0, 0.0, 3.0, 8.0]) {
            assert!((score - expected).abs() < 1e-7, "{:?}", stages.raw);
        }
        // Mean 3.5, squares 0.25 + 12.25 + 0.25 + 20.25 = 33, n - 1 = 3: deviation sqrt(11).
        assert!((stages.z.row(0)[3] - 4.5 / 11f64.sqrt()).abs() < 1e-7);
        // Rows 0 and 2 tie exactly: the lower one stays.
        assert_eq!(ours.keep.unwrap().sets, vec![vec![0, 3]]);
    }

    /// A quarter turn: cos 0, sin 1 at the first frequency, so that the score is y0 (minus B, B = -a * y).
    #[test]
    fn a_quarter_turn_brings_the_other_half_of_the_key() {
        let stats =
            stats(&[0], &[0], &[1.0, 0.0], &[0.0, 0.0], &[std::f32::consts::FRAC_PI_2, 0.0]);
        let keys = [bytes(&[[7.0, 0.0, 1.0, 0.0], [7.0, 0.0, 3.0, 0.0], [7.0, 0.0, 2.0, 0.0]])];
        let moment = Moment { round_start: 0, ..Moment::at(3, 0) };
        let ours = run(&spec(RuleSet::Trt, 1), &stats, &input(&keys, 1, moment));
        let stages = ours.stages.unwrap();
        for (score, expected) in stages.raw.row(0).iter().zip([1.0, 3.0, 2.0]) {
            assert!((score - expected).abs() < 1e-6, "{:?}", stages.raw);
        }
        assert_eq!(ours.keep.unwrap().sets, vec![vec![1]]);
    }

    /// Undoing the rotation by any positions gives the scores of the rotated form.
    #[test]
    fn the_two_forms_of_the_key_agree() {
        let stats = stats(&[0], &[0], &[1.0, 0.5], &[0.25, 2.0], &[0.7, 0.01]);
        let keys = [bytes(&[[1.0, 2.0, 3.0, 4.0], [-1.0, 0.5, 2.0, -3.0], [0.1, 7.0, -2.0, 1.0]])];
        let input = input(&keys, 1, Moment::at(40, 0));
        let spec = PolicySpec { normalize: Some(false), ..spec(RuleSet::Hf, 1) };
        let unrotated = run(&spec, &stats, &input).stages.unwrap();
        let spec = PolicySpec { rule_set: Some(RuleSet::Vllm), ..spec };
        let rotated = run(&spec, &stats, &input).stages.unwrap();
        for (a, b) in unrotated.raw.values.iter().zip(&rotated.raw.values) {
            assert!((a - b).abs() < 1e-5, "{a} {b}");
        }
    }

    /// hf without the trigonometric term: the score is m * |key|; two heads look at one frequency each.
    #[test]
    fn hf_keeps_the_prefix_and_then_scores_descending() {
        let mut stats_parts = stats(&[0], &[0, 1], &[0.0; 4], &[0.0; 4], &[0.5, 0.5]);
        stats_parts = HeadStats::new(HeadArrays {
            layers: stats_parts.layers(),
            heads: stats_parts.heads(),
            mean_real: &[0.0; 4],
            mean_imag: &[0.0; 4],
            modulus: &[1.0, 0.0, 0.0, 1.0],
            omega: &[0.5, 0.5],
            scale: None,
            sampled: None,
        })
        .unwrap();
        // |key| at frequency 0: 9, 1, 2, 3, 4; at frequency 1: 9, 4, 4, 4, 1.
        let keys = [bytes(&[
            [9.0, 9.0, 0.0, 0.0],
            [1.0, 4.0, 0.0, 0.0],
            [2.0, 4.0, 0.0, 0.0],
            [0.0, 0.0, 3.0, 4.0],
            [4.0, 1.0, 0.0, 0.0],
        ])];
        let spec = PolicySpec { disable_trig: Some(true), ..spec(RuleSet::Hf, 3) };
        let ours = run(&spec, &stats_parts, &input(&keys, 2, Moment::at(5, 1)));
        let stages = ours.stages.unwrap();
        assert_eq!((stages.score_row_offset, stages.raw.shape.clone()), (1, vec![1, 2, 4]));
        assert_eq!(stages.raw.row(1), [4.0, 4.0, 4.0, 1.0]);
        // Head 0: mean 2.5, population deviation sqrt(1.25). Head 1: mean 3.25, deviation sqrt(27/16).
        let first = 1.5 / 1.25f64.sqrt();
        let second = 0.75 / (27.0f64 / 16.0).sqrt();
        let expected = [second, second, second, first];
        for (value, expected) in stages.final_scores.row(0).iter().zip(expected) {
            assert!((value - expected).abs() < 1e-12, "{:?}", stages.final_scores);
        }
        assert_eq!(ours.keep.unwrap().sets, vec![vec![0, 4, 1]]);
        assert_eq!((ours.protected, ours.candidates), (vec![0], vec![1, 2, 3, 4]));
    }

    /// Two layers whose z-scores are opposite at the ends: the mean cancels, the maximum does not.
    #[test]
    fn mean_and_maximum_over_layers_choose_different_rows() {
        let stats = stats(&[0, 1], &[0], &[1.0, 0.0, 1.0, 0.0], &[0.0; 4], &[0.0, 0.0]);
        let row = |x: f32| [x, 0.0, 0.0, 0.0];
        let keys = [
            bytes(&[row(3.0), row(1.0), row(2.0), row(-6.0)]),
            bytes(&[row(-6.0), row(1.0), row(2.0), row(3.0)]),
        ];
        let input = input(&keys, 1, Moment::at(4, 0));
        let mean = run(&spec(RuleSet::Trt, 2), &stats, &input);
        assert_eq!(mean.keep.unwrap().sets, vec![vec![1, 2]]);
        let max = PolicySpec { layer_aggregation: Some(Aggregation::Max), ..spec(RuleSet::Trt, 2) };
        assert_eq!(run(&max, &stats, &input).keep.unwrap().sets, vec![vec![0, 3]]);
    }

    /// A layer without statistics keeps the first rows of its decode part; the other one ranks.
    #[test]
    fn hf_by_layer_keeps_first_rows_where_there_are_no_statistics() {
        let stats = stats(&[1], &[0], &[1.0, 0.0], &[0.0; 2], &[0.0, 0.0]);
        let row = |x: f32| [x, 0.0, 0.0, 0.0];
        let rows = bytes(&[row(9.0), row(1.0), row(2.0), row(5.0)]);
        let keys = [rows.clone(), rows];
        let spec =
            PolicySpec { mode: Some(SelectionMode::PerLayerPerHead), ..spec(RuleSet::Hf, 2) };
        let ours = run(&spec, &stats, &input(&keys, 1, Moment::at(4, 1)));
        let keep = ours.keep.unwrap();
        assert_eq!(keep.leading, vec![2, 1]);
        assert_eq!(keep.sets, vec![vec![0, 1], vec![0, 3]]);
    }

    /// A KV head that no sampled head looks at is ranked by the mean of all rows.
    #[test]
    fn a_kv_head_without_sampled_heads_takes_the_mean_of_all() {
        let stats = HeadStats::new(HeadArrays {
            layers: &[0],
            heads: &[0, 1],
            mean_real: &[1.0, 0.0, 5.0, 5.0],
            mean_imag: &[0.0; 4],
            modulus: &[1.0, 0.0, 5.0, 5.0],
            omega: &[0.0, 0.0],
            scale: None,
            sampled: Some(&[(0, 0)]),
        })
        .unwrap();
        let values = bytes(&[[1.0, 0.0, 0.0, 0.0], [3.0, 0.0, 0.0, 0.0], [2.0, 0.0, 0.0, 0.0]]);
        let both: Vec<u8> = values.iter().chain(&values).copied().collect();
        let view = KeyView::new(DType::F32, [2, 3, 4], &both).unwrap();
        let input = Input {
            layers: vec![0],
            keys: vec![view],
            positions: Positions::Shared(vec![0, 1, 2]),
            heads: Heads { q_heads: 2, kv_heads: 2 },
            moment: Moment::at(3, 0),
        };
        let ours = run(&spec(RuleSet::Trt, 1), &stats, &input);
        let stages = ours.stages.unwrap();
        assert!(stages.raw.row(1).iter().all(|value| value.is_nan()));
        assert_eq!(stages.final_scores.row(0), stages.final_scores.row(1));
        assert_eq!(ours.keep.unwrap().sets, vec![vec![1], vec![1]]);
    }

    #[test]
    fn keys_of_another_width_or_another_model_are_refused() {
        let narrow = stats(&[0], &[0], &[1.0], &[0.0], &[0.0]);
        let keys = [bytes(&[[0.0; 4]; 4])];
        let input = input(&keys, 1, Moment::at(4, 0));
        let rules = Rules::resolve(&spec(RuleSet::Trt, 2)).unwrap();
        assert!(select::<f64>(&rules, &narrow, &input, None).is_err());
        let other = stats(&[7], &[0], &[1.0, 0.0], &[0.0; 2], &[0.0, 0.0]);
        assert!(select::<f64>(&rules, &other, &input, None).is_err());
    }
}
