//! Raw scores of cached rows: the direct form on rotated keys and the un-rotate form of `hf` (`TRIATTENTION.md` 3), all f32.
//!
//! Sums over frequencies run in eight lanes that are added pairwise at the end, for every rule set and every row alike, so that equal
//! rows get equal scores.

use lockstep_traces::RuleSet;
use rayon::prelude::*;

use super::kernel::{Direct, aggregate, dot, fold, moduli, products, turned_dot};
use super::phase::{self, Phases};
use super::trig::{self, Block, LANES};
use super::unrotate::{Padded, Unrotated, blocks};
use super::weights::Head;
use super::{CacheView, Dims, Keys, Rules};

/// Scores by head of the matrix, one value a scored row.
pub(crate) type Matrix = Vec<Vec<f32>>;

/// What is scored and from which position.
#[derive(Debug, Clone, Copy)]
pub(super) struct Span {
    /// First cache row that is scored.
    pub(super) first_row: usize,
    /// R.
    pub(super) round_start: usize,
}

/// The scorer of a rule set.
#[derive(Debug, Clone)]
pub(crate) struct Scorer {
    rules: Rules,
    dims: Dims,
    pub(crate) offsets: Vec<f32>,
    pub(crate) frequencies: Vec<f32>,
    pub(crate) attention_scaling: f32,
    /// Rows of the matrix that read each layer's KV head, by `layer * kv_heads + kv_head`; those without any are left out.
    pub(crate) units: Vec<(usize, Vec<usize>)>,
}

impl Scorer {
    pub(super) fn new(
        rules: &Rules,
        dims: Dims,
        inv_freq: &[f32],
        attention_scaling: f32,
        heads: &[Head],
    ) -> Self {
        let mut units: Vec<(usize, Vec<usize>)> = Vec::new();
        for layer in 0..dims.layers {
            for kv_head in 0..dims.kv_heads {
                let rows: Vec<usize> = heads
                    .iter()
                    .enumerate()
                    .filter(|(_, head)| head.layer == layer && head.kv_head == kv_head)
                    .map(|(row, _)| row)
                    .collect();
                if !rows.is_empty() {
                    units.push((layer * dims.kv_heads + kv_head, rows));
                }
            }
        }
        Self {
            rules: rules.clone(),
            dims,
            offsets: phase::offsets(rules.offset_max_length),
            frequencies: phase::frequencies(rules.rule_set, inv_freq),
            attention_scaling,
            units,
        }
    }

    /// Scores of every head over the rows from `span.first_row` on.
    pub(super) fn score(&self, heads: &[Head], cache: &CacheView<'_>, span: Span) -> Matrix {
        let columns = cache.rows - span.first_row;
        let phases = Phases::of(&self.rules, span.round_start, &self.offsets, &self.frequencies);
        let scored: Vec<Vec<(usize, Vec<f32>)>> = self
            .units
            .par_iter()
            .map(|(unit, rows)| {
                let group: Vec<&Head> = rows.iter().map(|&row| &heads[row]).collect();
                let mut out = vec![vec![0.0_f32; columns]; group.len()];
                let keys = cache.keys[*unit];
                if self.rules.rule_set == RuleSet::Hf {
                    let (layer, kv_head) = (unit / self.dims.kv_heads, unit % self.dims.kv_heads);
                    let positions = cache.positions(self.dims, layer, kv_head);
                    self.unrotate(&group, keys, positions, span, &mut out);
                } else {
                    self.direct(&group, keys, &phases, span.first_row, &mut out);
                }
                rows.iter().copied().zip(out).collect()
            })
            .collect();
        let mut matrix = vec![Vec::new(); heads.len()];
        for (row, values) in scored.into_iter().flatten() {
            matrix[row] = values;
        }
        matrix
    }

    /// How the direct form floors and rounds.
    pub(crate) fn form(&self) -> Direct {
        match self.rules.rule_set {
            RuleSet::Trt | RuleSet::Hf => Direct::Native,
            RuleSet::Vllm => Direct::Triton,
            RuleSet::Sglang if self.rules.disable_mlr => Direct::Torch,
            RuleSet::Sglang => Direct::Triton,
        }
    }

    fn direct(
        &self,
        group: &[&Head],
        keys: Keys<'_>,
        phases: &Phases,
        first_row: usize,
        out: &mut [Vec<f32>],
    ) {
        let form = self.form();
        let freqs = self.dims.freqs();
        let mut key = vec![0.0_f32; self.dims.head_dim];
        let mut modulus = vec![0.0_f32; freqs];
        let (mut along, mut across) = (vec![0.0_f32; freqs], vec![0.0_f32; freqs]);
        let mut sums = vec![0.0_f32; self.offsets.len()];
        for column in 0..out.first().map_or(0, Vec::len) {
            keys.widen(first_row + column, &mut key);
            let (xs, ys) = key.split_at(freqs);
            moduli(form, &keys, xs, ys, &mut modulus);
            for (head, scores) in group.iter().zip(out.iter_mut()) {
                let norm = dot(&head.energy, &modulus);
                if self.rules.trig_dropped() {
                    scores[column] = norm;
                    continue;
                }
                products(head, xs, ys, &mut along, &mut across);
                let rows = phases.cos.chunks_exact(freqs).zip(phases.sin.chunks_exact(freqs));
                for (sum, (cos, sin)) in sums.iter_mut().zip(rows) {
                    *sum = turned_dot(&along, cos, &across, sin);
                }
                scores[column] = if form == Direct::Triton {
                    aggregate(self.rules.score_aggregation, sums.iter().map(|sum| sum + norm))
                } else {
                    aggregate(self.rules.score_aggregation, sums.iter().copied()) + norm
                };
            }
        }
    }

    fn unrotate(
        &self,
        group: &[&Head],
        keys: Keys<'_>,
        positions: &[u32],
        span: Span,
        out: &mut [Vec<f32>],
    ) {
        let w = blocks(&self.frequencies);
        let heads: Vec<Padded> = group.iter().map(|head| Padded::new(head)).collect();
        let mut key = vec![0.0_f32; self.dims.head_dim];
        let mut row = Unrotated::new(w.len());
        let mut sums = vec![[0.0_f32; LANES]; self.offsets.len()];
        for column in 0..out.first().map_or(0, Vec::len) {
            keys.widen(span.first_row + column, &mut key);
            let position = phase::widen(positions[span.first_row + column] as usize);
            row.fill(&key, &w, position, self.attention_scaling);
            let since = phase::widen(span.round_start) - position;
            for (head, scores) in heads.iter().zip(out.iter_mut()) {
                let norm = head.norm(&row);
                if self.rules.trig_dropped() {
                    scores[column] = norm;
                    continue;
                }
                sums.fill([0.0; LANES]);
                for (block, w) in w.iter().enumerate() {
                    let (amplitude, angle) = head.polar(&row, block);
                    for (sum, offset) in sums.iter_mut().zip(&self.offsets) {
                        let time = since + offset;
                        let phase: Block = std::array::from_fn(|i| time * w[i] + angle[i]);
                        let cosine = trig::cos(&phase);
                        for lane in 0..LANES {
                            sum[lane] += amplitude[lane] * cosine[lane];
                        }
                    }
                }
                let per_offset = sums.iter().map(|lanes| fold(lanes) + norm);
                scores[column] = aggregate(self.rules.score_aggregation, per_offset);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use lockstep_traces::{Aggregation, PolicySpec};

    use super::*;

    const DIMS: Dims = Dims { layers: 1, kv_heads: 1, q_heads: 1, head_dim: 6 };
    const W: [f32; 3] = [1.0, 0.1, 0.01];

    fn rules(rule_set: RuleSet, change: impl Fn(&mut PolicySpec)) -> Rules {
        let mut spec = PolicySpec { rule_set: Some(rule_set), ..PolicySpec::default() };
        change(&mut spec);
        Rules::resolve(&spec).unwrap()
    }

    fn head(modulus: [f32; 3], energy: [f32; 3]) -> Head {
        Head {
            layer: 0,
            head: 0,
            kv_head: 0,
            re: vec![0.6, -0.2, 0.5],
            im: vec![0.8, 0.4, -0.1],
            modulus: modulus.to_vec(),
            scale: vec![1.0; 3],
            energy: energy.to_vec(),
        }
    }

    /// The formula of the direct form in f64 with an unrotated key at position 0, so that both forms must give it.
    fn truth(key: &[f32; 6], round_start: f64, energy: &[f32; 3], max: bool) -> f64 {
        let (re, im) = ([0.6, -0.2, 0.5], [0.8, 0.4, -0.1]);
        let sums: Vec<f64> = (0..17)
            .map(|power| {
                let time = round_start + f64::from(1 << power);
                (0..3)
                    .map(|f| {
                        let (x, y) = (f64::from(key[f]), f64::from(key[f + 3]));
                        // Each phase is one f32 product in the programs; repeat that rounding here.
                        #[expect(
                            clippy::cast_possible_truncation,
                            reason = "times are small integers"
                        )]
                        let phase = f64::from(time as f32 * W[f]);
                        (re[f] * x + im[f] * y) * phase.cos()
                            - (im[f] * x - re[f] * y) * phase.sin()
                    })
                    .sum()
            })
            .collect();
        let norm: f64 = (0..3)
            .map(|f| f64::from(energy[f]) * f64::from(key[f]).hypot(f64::from(key[f + 3])))
            .sum();
        let trig = if max {
            sums.iter().copied().fold(f64::NEG_INFINITY, f64::max)
        } else {
            sums.iter().sum::<f64>() / 17.0
        };
        trig + norm
    }

    fn score(rules: &Rules, head: &Head, key: &[f32], round_start: usize) -> f32 {
        let scorer = Scorer::new(rules, DIMS, &W, 1.0, std::slice::from_ref(head));
        let view = CacheView { rows: 1, keys: vec![Keys::F32(key)], positions: vec![&[0]] };
        let span = Span { first_row: 0, round_start };
        scorer.score(std::slice::from_ref(head), &view, span)[0][0]
    }

    #[test]
    fn every_form_gives_the_formula() {
        let key = [0.3, -1.2, 0.7, 1.1, 0.4, -0.9];
        let energy = [0.5, 0.25, 0.125];
        let modulus = [1.0, 0.2_f32.sqrt(), 0.26_f32.sqrt()];
        for rule_set in [RuleSet::Trt, RuleSet::Hf, RuleSet::Vllm] {
            for max in [false, true] {
                let how = if max { Aggregation::Max } else { Aggregation::Mean };
                let rules = rules(rule_set, |spec| spec.score_aggregation = Some(how));
                let ours = f64::from(score(&rules, &head(modulus, energy), &key, 128));
                let truth = truth(&key, 128.0, &energy, max);
                // `hf` rounds phase plus angle near 65536 to steps of 1/128 rad.
                let allowed = if rule_set == RuleSet::Hf { 5e-3 } else { 2e-6 };
                assert!((ours - truth).abs() < allowed, "{rule_set:?}: {ours} {truth}");
            }
        }
    }

    #[test]
    fn floors_show_on_a_key_of_zeros() {
        let zero = [0.0; 6];
        let head = head([1.0; 3], [1.0, 2.0, 4.0]);
        let value = |rule_set, mlr: bool| {
            let rules = rules(rule_set, |spec| spec.disable_mlr = mlr.then_some(true));
            score(&rules, &head, &zero, 128)
        };
        // 7 * sqrt(1e-8), except where there is no floor.
        assert!((value(RuleSet::Trt, false) - 7e-4).abs() < 1e-9);
        assert!((value(RuleSet::Vllm, false) - 7e-4).abs() < 1e-9);
        assert_eq!(value(RuleSet::Hf, false).to_bits(), 0);
        assert_eq!(value(RuleSet::Sglang, true).to_bits(), 0);
        assert!((value(RuleSet::Sglang, false) - 7e-4).abs() < 1e-9);
    }

    #[test]
    fn dropping_the_trigonometric_term_leaves_the_norm_term() {
        let key = [0.3, -1.2, 0.7, 1.1, 0.4, -0.9];
        let energy = [0.5, 0.25, 0.125];
        let norm: f64 = (0..3)
            .map(|f| f64::from(energy[f]) * f64::from(key[f]).hypot(f64::from(key[f + 3])))
            .sum();
        for rule_set in [RuleSet::Trt, RuleSet::Hf] {
            let rules = rules(rule_set, |spec| spec.disable_trig = Some(true));
            let ours = score(&rules, &head([1.0; 3], energy), &key, 128);
            assert!((f64::from(ours) - norm).abs() < 1e-6);
        }
    }

    #[test]
    fn equal_rows_get_equal_bits_wherever_they_lie() {
        let one = [0.3, -1.2, 0.7, 1.1, 0.4, -0.9];
        let other = [0.1, 0.2, -0.7, 0.5, 0.6, 0.9];
        let keys: Vec<f32> = [one, other, one].concat();
        let rules = rules(RuleSet::Trt, |_| ());
        let heads = [head([1.0; 3], [0.5; 3])];
        let scorer = Scorer::new(&rules, DIMS, &W, 1.0, &heads);
        let view = CacheView { rows: 3, keys: vec![Keys::F32(&keys)], positions: vec![&[0, 1, 2]] };
        let scores = scorer.score(&heads, &view, Span { first_row: 0, round_start: 9 });
        assert_eq!(scores[0][0].to_bits(), scores[0][2].to_bits());
        assert_ne!(scores[0][0].to_bits(), scores[0][1].to_bits());
    }
}
