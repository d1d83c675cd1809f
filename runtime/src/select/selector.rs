//! The selector: score, normalise, reduce, choose.

use lockstep_traces::stats::QueryStats;
use lockstep_traces::{Cause, RuleSet};

use super::choose::{self, Plan};
use super::fault::Faults;
use super::job::Job;
use super::reduce::Layout;
use super::score::Scorer;
use super::weights::{self, Head};
use super::{CacheView, Dims, NoiseGenerator, Rules, SelectError, Selection, StageSeconds};
use crate::RotaryTable;

/// Positions and R + offset stay exact in f32 below this.
const EXACT: u32 = 1 << 23;

/// One compaction to decide.
#[derive(Debug, Clone, Copy)]
pub struct SelectInput<'a> {
    /// The cache before it.
    pub cache: &'a CacheView<'a>,
    /// R: N, except where the lifecycle of the rule set says otherwise.
    pub round_start: u32,
    /// P: prompt tokens. `trt` compares it with positions, the others take as many leading rows.
    pub prompt_len: usize,
    /// Rows wanted in all (B of `hf` and `sglang`, `budget_total` of `vllm`, `keep` of `trt`); at most T are kept.
    pub keep: usize,
}

/// A rule set bound to a model and its statistics.
#[derive(Debug, Clone)]
pub struct Selector {
    pub(super) rules: Rules,
    pub(super) dims: Dims,
    pub(super) heads: Vec<Head>,
    pub(super) layout: Layout,
    pub(super) scorer: Scorer,
    pub(super) faults: Faults,
    frequencies_from: &'static str,
}

impl Selector {
    /// Binds rules to statistics. Inverse frequencies: those of the statistics file where it holds any, except under `hf`, which
    /// takes the model's.
    ///
    /// # Errors
    /// [`SelectError::Stats`] and [`SelectError::Input`] where shapes contradict each other, [`SelectError::Plant`] where the fault
    /// cannot show.
    pub fn new(
        rules: Rules,
        stats: &QueryStats,
        rotary: &RotaryTable,
        dims: Dims,
        plant: Option<Cause>,
    ) -> Result<Self, SelectError> {
        let faults = Faults::new(plant, &rules)?;
        let heads = weights::heads(&rules, stats, rotary, dims)?;
        let (inv_freq, frequencies_from) = match &stats.inv_freq {
            Some(inv_freq) if rules.rule_set != RuleSet::Hf => (inv_freq, "statistics"),
            _ => (&rotary.inv_freq, "model"),
        };
        if inv_freq.len() != dims.freqs() {
            return Err(SelectError::Stats(format!(
                "inv_freq holds {} values; head width {} needs {}",
                inv_freq.len(),
                dims.head_dim,
                dims.freqs()
            )));
        }
        let scorer = Scorer::new(&rules, dims, inv_freq, rotary.attention_scaling, &heads);
        let layout = Layout::new(&heads, dims);
        Ok(Self { rules, dims, heads, layout, scorer, faults, frequencies_from })
    }

    /// Rules in force.
    #[must_use]
    pub const fn rules(&self) -> &Rules {
        &self.rules
    }

    /// Where the inverse frequencies came from: `statistics` or `model`.
    #[must_use]
    pub const fn frequencies_from(&self) -> &'static str {
        self.frequencies_from
    }

    /// A fresh noise generator, where the rules add noise.
    #[must_use]
    pub fn noise(&self) -> Option<NoiseGenerator> {
        self.rules.noise_seed.map(NoiseGenerator::new)
    }

    /// Decides which rows stay. `None`: the rule set declines (`vllm` with a protected prompt longer than the budget) and the cache
    /// keeps growing. Noise is drawn only where something is scored.
    ///
    /// # Errors
    /// [`SelectError::Input`] where the view does not fit, [`SelectError::NotANumber`] where a score is no number.
    pub fn select(
        &self,
        input: &SelectInput<'_>,
        noise: Option<&mut NoiseGenerator>,
        want_stages: bool,
    ) -> Result<Option<Selection>, SelectError> {
        self.check(input)?;
        match choose::plan(&self.rules, self.dims, input) {
            Plan::Refused => Ok(None),
            Plan::Settled { keep, protected } => Ok(Some(Selection {
                keep,
                protected: count(protected),
                candidates: count(input.cache.rows - protected),
                round_start: None,
                stages: None,
                seconds: StageSeconds::default(),
            })),
            Plan::Rank { first_row, count, guarded } => {
                let job = Job { selector: self, input, first_row, count, guarded };
                job.run(noise, want_stages).map(Some)
            }
        }
    }

    fn check(&self, input: &SelectInput<'_>) -> Result<(), SelectError> {
        input.cache.check(self.dims, true)?;
        let positions = input.cache.positions.iter().copied().flatten();
        let largest = positions.copied().max().unwrap_or(0).max(input.round_start);
        check_exact(largest, input.cache.rows)
    }
}

/// Refuses positions that f32 phases cannot be exact for.
pub(crate) fn check_exact(largest: u32, rows: usize) -> Result<(), SelectError> {
    if largest >= EXACT || count(rows) >= EXACT {
        return Err(SelectError::Input(format!(
            "position {largest} is too large for exact f32 phases (limit {EXACT})"
        )));
    }
    Ok(())
}

pub(super) fn count(rows: usize) -> u32 {
    u32::try_from(rows).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use half::{bf16, f16};
    use lockstep_traces::PolicySpec;

    use super::super::Keys;
    use super::*;

    const DIMS: Dims = Dims { layers: 2, kv_heads: 2, q_heads: 4, head_dim: 4 };
    const ROWS: usize = 12;

    /// Small values that f16 and bf16 hold exactly.
    fn values(count: usize, mut state: u32) -> Vec<f32> {
        let mut next = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            f32::from(i8::try_from((state >> 24) % 128).unwrap_or(0) - 64) / 32.0
        };
        (0..count).map(|_| next()).collect()
    }

    fn stats() -> QueryStats {
        let size = 2 * 4 * 2;
        QueryStats {
            layers: vec![0, 1],
            heads: vec![0, 1, 2, 3],
            freqs: 2,
            q_mean_real: values(size, 1),
            q_mean_imag: values(size, 2),
            q_abs_mean: vec![4.0; size],
            sampled: (0..2).flat_map(|layer| (0..4).map(move |head| (layer, head))).collect(),
            ..QueryStats::default()
        }
    }

    fn rotary() -> RotaryTable {
        RotaryTable { inv_freq: vec![1.0, 0.01], attention_scaling: 1.0 }
    }

    fn selector(rule_set: RuleSet, plant: Option<Cause>) -> Result<Selector, SelectError> {
        let spec = PolicySpec {
            rule_set: Some(rule_set),
            kv_budget: Some(6),
            recent_window: matches!(rule_set, RuleSet::Trt | RuleSet::Vllm).then_some(2),
            ..PolicySpec::default()
        };
        Selector::new(Rules::resolve(&spec)?, &stats(), &rotary(), DIMS, plant)
    }

    fn select(selector: &Selector, keys: Vec<Keys<'_>>) -> Result<Selection, SelectError> {
        let positions: Vec<u32> = (0..12).collect();
        let cache = CacheView { rows: ROWS, keys, positions: vec![&positions; 2] };
        let input = SelectInput { cache: &cache, round_start: 20, prompt_len: 2, keep: 6 };
        let mut noise = selector.noise();
        Ok(selector.select(&input, noise.as_mut(), true)?.unwrap())
    }

    fn keys() -> Vec<f32> {
        values(DIMS.layers * DIMS.kv_heads * ROWS * DIMS.head_dim, 3)
    }

    fn as_f32(keys: &[f32]) -> Vec<Keys<'_>> {
        keys.chunks(ROWS * DIMS.head_dim).map(Keys::F32).collect()
    }

    #[test]
    fn half_precision_caches_are_read_as_what_they_hold() {
        let wide = keys();
        let half: Vec<f16> = wide.iter().map(|&value| f16::from_f32(value)).collect();
        let brain: Vec<bf16> = wide.iter().map(|&value| bf16::from_f32(value)).collect();
        let size = ROWS * DIMS.head_dim;
        for rule_set in [RuleSet::Trt, RuleSet::Hf, RuleSet::Vllm, RuleSet::Sglang] {
            let selector = selector(rule_set, None).unwrap();
            let one = select(&selector, as_f32(&wide)).unwrap();
            let two = select(&selector, half.chunks(size).map(Keys::F16).collect()).unwrap();
            let three = select(&selector, brain.chunks(size).map(Keys::Bf16).collect()).unwrap();
            assert_eq!(one.stages, two.stages);
            assert_eq!(one.stages, three.stages);
            assert_eq!((one.keep.len(), &one.keep), (6, &two.keep));
        }
    }

    #[test]
    fn stages_have_the_names_and_shapes_of_a_dump() {
        let wide = keys();
        for (rule_set, columns, offset) in
            [(RuleSet::Trt, 12, "0"), (RuleSet::Hf, 10, "2"), (RuleSet::Sglang, 12, "0")]
        {
            let selection = select(&selector(rule_set, None).unwrap(), as_f32(&wide)).unwrap();
            let stages = selection.stages.unwrap();
            let tensors = stages.tensors();
            let shapes: Vec<(&str, &[usize])> =
                tensors.iter().map(|tensor| (tensor.name.as_str(), &tensor.shape[..])).collect();
            let z = if rule_set == RuleSet::Sglang { [2, 2, columns] } else { [2, 4, columns] };
            assert_eq!(
                shapes,
                [
                    ("scores.raw", &[2, 4, columns][..]),
                    ("scores.z", &z),
                    ("scores.group", &[2, 2, columns]),
                    ("scores.final", &[2, columns]),
                ]
            );
            assert_eq!(stages.metadata()["score_row_offset"], offset);
            assert_eq!(stages.metadata()["score_heads"], "0,1,2,3");
            assert_eq!(selection.round_start, Some(20));
        }
    }

    #[test]
    fn protected_rows_are_counted_and_guarded_with_infinity() {
        let wide = keys();
        let selection = select(&selector(RuleSet::Trt, None).unwrap(), as_f32(&wide)).unwrap();
        assert_eq!((selection.protected, selection.candidates), (4, 8));
        let stages = selection.stages.unwrap();
        for scores in stages.last.values.chunks(ROWS) {
            let guarded: Vec<usize> = (0..ROWS).filter(|&row| scores[row].is_infinite()).collect();
            assert_eq!(guarded, [0, 1, 10, 11]);
        }
        for head in 0..2 {
            let kept = selection.keep.rows(0, head);
            assert!([0, 1, 10, 11].iter().all(|row| kept.contains(row)));
            assert!(kept.windows(2).all(|pair| pair[0] < pair[1]));
        }
    }

    #[test]
    fn the_rows_kept_are_those_with_the_largest_final_scores() {
        let wide = keys();
        for rule_set in [RuleSet::Trt, RuleSet::Hf, RuleSet::Vllm, RuleSet::Sglang] {
            let selection = select(&selector(rule_set, None).unwrap(), as_f32(&wide)).unwrap();
            let stages = selection.stages.unwrap();
            let columns = stages.last.shape[1];
            for (head, scores) in stages.last.values.chunks(columns).enumerate() {
                let kept = selection.keep.rows(0, head);
                let score = |row: usize| scores[row - stages.row_offset];
                let worst = kept
                    .iter()
                    .map(|&row| row as usize)
                    .filter(|&row| row >= stages.row_offset)
                    .map(score)
                    .fold(f32::INFINITY, f32::min);
                let dropped =
                    (stages.row_offset..ROWS).filter(|&row| !kept.contains(&(row as u32)));
                assert!(dropped.map(score).all(|score| score <= worst));
            }
        }
    }

    #[test]
    fn a_key_that_is_no_number_is_located_and_never_ranked() {
        let mut wide = keys();
        // Layer 1, KV head 0, row 7.
        wide[(2 * ROWS + 7) * DIMS.head_dim] = f32::NAN;
        for rule_set in [RuleSet::Trt, RuleSet::Hf, RuleSet::Vllm, RuleSet::Sglang] {
            let error = select(&selector(rule_set, None).unwrap(), as_f32(&wide)).unwrap_err();
            let SelectError::NotANumber { layer, head, row } = error else { panic!("{error}") };
            assert_eq!((layer, head, row), (1, 0, 7));
        }
    }

    #[test]
    fn a_round_start_from_the_row_count_is_what_the_answer_reports() {
        let wide = keys();
        let clean = select(&selector(RuleSet::Trt, None).unwrap(), as_f32(&wide)).unwrap();
        let planted = selector(RuleSet::Trt, Some(Cause::RoundStartRows)).unwrap();
        let planted = select(&planted, as_f32(&wide)).unwrap();
        assert_eq!(planted.round_start, Some(12));
        assert_ne!(clean.stages.unwrap().raw, planted.stages.unwrap().raw);
    }

    #[test]
    fn the_lost_window_row_is_dropped_by_every_head() {
        let wide = keys();
        let planted = selector(RuleSet::Trt, Some(Cause::WindowRowLost)).unwrap();
        let selection = select(&planted, as_f32(&wide)).unwrap();
        for head in 0..2 {
            let kept = selection.keep.rows(0, head);
            assert_eq!((kept.len(), kept.contains(&10), kept.contains(&11)), (6, true, false));
        }
    }

    #[test]
    fn each_other_fault_changes_its_own_stage_and_none_before_it() {
        let wide = keys();
        for rule_set in [RuleSet::Trt, RuleSet::Hf] {
            let stages = |plant| {
                let selector = selector(rule_set, plant).unwrap();
                select(&selector, as_f32(&wide)).unwrap().stages.unwrap()
            };
            let clean = stages(None);
            for cause in [Cause::ZscoreRows, Cause::ZscorePopulation] {
                let planted = stages(Some(cause));
                assert_eq!(clean.raw, planted.raw, "{cause:?}");
                assert_ne!(clean.z, planted.z, "{cause:?}");
            }
            let planted = stages(Some(Cause::LayerMax));
            assert_eq!((&clean.z, &clean.group), (&planted.z, &planted.group));
            assert_ne!(clean.last, planted.last);
        }
    }

    #[test]
    fn faults_that_cannot_show_and_statistics_that_do_not_fit_are_refused() {
        let error = selector(RuleSet::Hf, Some(Cause::WindowRowLost)).unwrap_err();
        assert!(matches!(error, SelectError::Plant { slug: "window-row-lost", .. }), "{error}");
        let error = selector(RuleSet::Sglang, Some(Cause::ZscoreRows)).unwrap_err();
        assert!(matches!(error, SelectError::Plant { .. }), "{error}");
        let rules = || Rules::resolve(&PolicySpec::default()).unwrap();
        let wide = Dims { head_dim: 8, ..DIMS };
        let error = Selector::new(rules(), &stats(), &rotary(), wide, None).unwrap_err();
        assert!(error.to_string().contains("needs 4"), "{error}");
        let outside = QueryStats { sampled: vec![(0, 4)], ..stats() };
        let error = Selector::new(rules(), &outside, &rotary(), DIMS, None).unwrap_err();
        assert!(error.to_string().contains("layer 0, head 4"), "{error}");
        let mut interleaved = stats();
        interleaved.metadata.insert("rope_style".to_owned(), "interleaved".into());
        let error = Selector::new(rules(), &interleaved, &rotary(), DIMS, None).unwrap_err();
        assert!(error.to_string().contains("interleaved"), "{error}");
    }

    #[test]
    fn vllm_needs_every_head_and_borrows_layers_that_are_missing() {
        let spec = PolicySpec { rule_set: Some(RuleSet::Vllm), ..PolicySpec::default() };
        let rules = || Rules::resolve(&spec).unwrap();
        let mut sparse = stats();
        sparse.sampled.pop();
        let error = Selector::new(rules(), &sparse, &rotary(), DIMS, None).unwrap_err();
        assert!(error.to_string().contains("layer 1 has 3 sampled heads"), "{error}");
        let one_layer = QueryStats {
            layers: vec![1],
            q_mean_real: values(8, 1),
            q_mean_imag: values(8, 2),
            q_abs_mean: vec![4.0; 8],
            sampled: (0..4).map(|head| (1, head)).collect(),
            ..stats()
        };
        let selector = Selector::new(rules(), &one_layer, &rotary(), DIMS, None).unwrap();
        assert_eq!(selector.heads.len(), 8);
        assert_eq!(selector.heads[0].re, selector.heads[4].re);
    }

    #[test]
    fn a_view_whose_parts_disagree_is_refused() {
        let selector = selector(RuleSet::Trt, None).unwrap();
        let wide = keys();
        let mut short = as_f32(&wide);
        short[3] = Keys::F32(&wide[..4]);
        let error = select(&selector, short).unwrap_err();
        assert!(error.to_string().contains("a head holds 4 key elements"), "{error}");
        let error = select(&selector, as_f32(&wide)[..3].to_vec()).unwrap_err();
        assert!(error.to_string().contains("keys of 3 heads"), "{error}");
    }
}
