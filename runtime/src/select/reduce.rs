//! z-score, reduction over the query heads of a KV head, reduction over layers (`TRIATTENTION.md` 4.1, 4.2).

use lockstep_traces::{Aggregation, RuleSet, SelectionMode};
use rayon::prelude::*;

use super::columns::{maximum, mean, reciprocal_mean, sum};
use super::fault::Faults;
use super::phase::widen;
use super::score::Matrix;
use super::weights::Head;
use super::{Dims, NoiseGenerator, Rules};

/// The exact input of the top-k, by shape of the keep-sets.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Rankings {
    Shared(Vec<f32>),
    PerHead(Vec<Vec<f32>>),
    PerLayer(Vec<Vec<f32>>),
    PerLayerPerHead(Vec<Vec<Vec<f32>>>),
}

impl Rankings {
    pub(crate) fn lists_mut(&mut self) -> Vec<&mut Vec<f32>> {
        match self {
            Self::Shared(scores) => vec![scores],
            Self::PerHead(lists) | Self::PerLayer(lists) => lists.iter_mut().collect(),
            Self::PerLayerPerHead(layers) => layers.iter_mut().flatten().collect(),
        }
    }

    pub(crate) fn lists(&self) -> Vec<&Vec<f32>> {
        match self {
            Self::Shared(scores) => vec![scores],
            Self::PerHead(lists) | Self::PerLayer(lists) => lists.iter().collect(),
            Self::PerLayerPerHead(layers) => layers.iter().flatten().collect(),
        }
    }

    pub(crate) fn shape(&self) -> Vec<usize> {
        let columns = self.lists().first().map_or(0, |list| list.len());
        match self {
            Self::Shared(_) => vec![columns],
            Self::PerHead(lists) | Self::PerLayer(lists) => vec![lists.len(), columns],
            Self::PerLayerPerHead(layers) => {
                vec![layers.len(), layers.first().map_or(0, Vec::len), columns]
            }
        }
    }
}

/// Which rows of the score matrix belong to which layer and KV head.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Layout {
    /// Model layers that are scored, ascending.
    pub(crate) layers: Vec<usize>,
    /// Rows by index of the layer, then KV head.
    pub(crate) rows: Vec<Vec<Vec<usize>>>,
}

impl Layout {
    pub(crate) fn new(heads: &[Head], dims: Dims) -> Self {
        let mut layers: Vec<usize> = heads.iter().map(|head| head.layer).collect();
        layers.sort_unstable();
        layers.dedup();
        let mut rows = vec![vec![Vec::new(); dims.kv_heads]; layers.len()];
        for (row, head) in heads.iter().enumerate() {
            if let Ok(layer) = layers.binary_search(&head.layer) {
                rows[layer][head.kv_head].push(row);
            }
        }
        Self { layers, rows }
    }
}

/// Scores by stage on their way from the raw matrix to the top-k.
#[derive(Debug)]
pub(crate) struct Reduced {
    /// After normalising (and noise): rows of the matrix, or `[layer][kv_head]` flattened where the group is reduced first.
    pub(crate) z: Matrix,
    /// After the reduction over the group, `[layer][kv_head]` flattened; empty where the mode has no such stage. An empty list: no
    /// sampled head.
    pub(crate) group: Matrix,
    /// Before guards.
    pub(crate) rankings: Rankings,
}

/// What a reduction needs to know besides the scores.
pub(super) struct Reducer<'a> {
    pub(super) rules: &'a Rules,
    pub(super) dims: Dims,
    pub(super) layout: &'a Layout,
    pub(super) faults: Faults,
    /// By column: counts towards mean and deviation.
    pub(super) counted: Vec<bool>,
    /// Leading columns that are dropped after normalising.
    pub(super) dropped: usize,
}

impl Reducer<'_> {
    pub(super) fn reduce(&self, raw: &Matrix, noise: Option<&mut NoiseGenerator>) -> Reduced {
        if self.rules.rule_set == RuleSet::Sglang {
            return self.group_first(raw);
        }
        let mut z: Matrix = raw.par_iter().map(|row| self.normalised(row)).collect();
        if let Some(noise) = noise {
            self.add_noise(&mut z, noise);
        }
        match self.rules.mode {
            SelectionMode::Union => {
                let rankings = Rankings::Shared(maximum(z.iter()));
                Reduced { z, group: Vec::new(), rankings }
            }
            SelectionMode::PerLayer | SelectionMode::LegacyLayerLocal => self.averaged(z),
            SelectionMode::PerHead | SelectionMode::PerLayerPerHead => self.grouped(z),
        }
    }

    /// `sglang`: raw maximum over the group, then z by KV head, then layers.
    fn group_first(&self, raw: &Matrix) -> Reduced {
        let group = self.group(raw, Aggregation::Max);
        let z: Matrix = group.par_iter().map(|row| self.normalised(row)).collect();
        let rankings = Rankings::PerHead(self.over_layers(&z, raw));
        Reduced { z, group, rankings }
    }

    fn grouped(&self, z: Matrix) -> Reduced {
        let group = self.group(&z, self.rules.group_aggregation);
        let rankings = if self.rules.mode == SelectionMode::PerHead {
            Rankings::PerHead(self.over_layers(&group, &z))
        } else {
            Rankings::PerLayerPerHead(self.by_layer(&group, &z))
        };
        Reduced { z, group, rankings }
    }

    /// Statistics were averaged over the group: one row by layer and KV head.
    fn averaged(&self, z: Matrix) -> Reduced {
        let layers = self.by_layer(&z, &z);
        let rankings = if self.rules.mode == SelectionMode::PerLayer {
            Rankings::PerLayer(layers.iter().map(|heads| maximum(heads.iter())).collect())
        } else {
            Rankings::PerLayerPerHead(layers)
        };
        Reduced { z, group: Vec::new(), rankings }
    }

    fn group(&self, matrix: &Matrix, how: Aggregation) -> Matrix {
        let lists: Vec<&Vec<usize>> = self.layout.rows.iter().flatten().collect();
        lists
            .par_iter()
            .map(|rows| {
                let members = rows.iter().map(|&row| &matrix[row]);
                match how {
                    Aggregation::Max => maximum(members),
                    Aggregation::Mean => mean(members),
                }
            })
            .collect()
    }

    /// One ranking by KV head from `[layer][kv_head]` rows; a KV head without any takes the mean of the whole matrix.
    fn over_layers(&self, rows: &Matrix, matrix: &Matrix) -> Vec<Vec<f32>> {
        let largest = (self.rules.layer_aggregation == Aggregation::Max)
            != self.faults.other_layer_reduction();
        (0..self.dims.kv_heads)
            .into_par_iter()
            .map(|kv_head| {
                let layers = rows.chunks(self.dims.kv_heads).map(|heads| &heads[kv_head]);
                let members: Vec<&Vec<f32>> = layers.filter(|row| !row.is_empty()).collect();
                if members.is_empty() {
                    mean(matrix.iter())
                } else if largest {
                    maximum(members.into_iter())
                } else if self.rules.rule_set == RuleSet::Trt {
                    reciprocal_mean(&members)
                } else {
                    mean(members.into_iter())
                }
            })
            .collect()
    }

    /// `[model layer][kv_head]` rankings. A KV head without sampled heads takes the mean of its layer's rows; a layer without
    /// statistics ranks all rows equal, so that the first ones are kept.
    fn by_layer(&self, rows: &Matrix, matrix: &Matrix) -> Vec<Vec<Vec<f32>>> {
        let columns = matrix.first().map_or(0, Vec::len);
        (0..self.dims.layers)
            .map(|layer| {
                let Ok(index) = self.layout.layers.binary_search(&layer) else {
                    return vec![vec![0.0; columns]; self.dims.kv_heads];
                };
                let start = index * self.dims.kv_heads;
                (start..start + self.dims.kv_heads)
                    .map(|row| {
                        if rows[row].is_empty() {
                            let own = self.layout.rows[index].iter().flatten();
                            mean(own.map(|&row| &matrix[row]))
                        } else {
                            rows[row].clone()
                        }
                    })
                    .collect()
            })
            .collect()
    }

    /// `hf`: one draw by matrix row and column. In per-layer mode a full draw is consumed first and the layers draw anew.
    fn add_noise(&self, z: &mut Matrix, noise: &mut NoiseGenerator) {
        if self.rules.mode == SelectionMode::PerLayerPerHead {
            noise.skip(z.iter().map(Vec::len).sum());
            for layer in &self.layout.rows {
                let mut rows: Vec<usize> = layer.iter().flatten().copied().collect();
                rows.sort_unstable();
                for row in rows {
                    noise.add_to(&mut z[row]);
                }
            }
        } else {
            for row in z {
                noise.add_to(row);
            }
        }
    }

    fn normalised(&self, row: &[f32]) -> Vec<f32> {
        if !self.rules.normalize || row.is_empty() {
            return row[self.dropped.min(row.len())..].to_vec();
        }
        let (mean, deviation) = self.moments(row);
        row[self.dropped..].iter().map(|value| (value - mean) / deviation).collect()
    }

    /// Mean and divisor of a row, two passes in f32.
    fn moments(&self, row: &[f32]) -> (f32, f32) {
        let all = self.counted.iter().all(|&counted| counted);
        let picked: Vec<f32>;
        let values = if all {
            row
        } else {
            picked = row
                .iter()
                .zip(&self.counted)
                .filter(|&(_, &counted)| counted)
                .map(|(&value, _)| value)
                .collect();
            &picked
        };
        let count = widen(values.len());
        let mean = sum(values, |value| value) / count;
        let squares = sum(values, |value| (value - mean) * (value - mean));
        let population = (self.rules.rule_set == RuleSet::Hf) != self.faults.zscore_population();
        let degrees = if population { count } else { count - 1.0 };
        let deviation = if degrees > 0.0 { (squares / degrees).sqrt() } else { 0.0 };
        let divisor = match self.rules.rule_set {
            RuleSet::Hf => deviation.max(1e-6),
            RuleSet::Trt if deviation < 1e-6 => 1.0,
            RuleSet::Vllm | RuleSet::Sglang if deviation < 1e-8 => 1.0,
            RuleSet::Trt | RuleSet::Vllm | RuleSet::Sglang => deviation,
        };
        (mean, divisor)
    }
}

#[cfg(test)]
mod tests {
    use lockstep_traces::{Cause, PolicySpec};

    use super::*;

    const DIMS: Dims = Dims { layers: 2, kv_heads: 2, q_heads: 4, head_dim: 2 };

    fn rules(rule_set: RuleSet, mode: SelectionMode) -> Rules {
        let spec =
            PolicySpec { rule_set: Some(rule_set), mode: Some(mode), ..PolicySpec::default() };
        Rules::resolve(&spec).unwrap()
    }

    fn head(layer: usize, head: usize) -> Head {
        let none = Vec::new();
        Head {
            layer,
            head,
            kv_head: head / 2,
            re: none.clone(),
            im: none.clone(),
            modulus: none.clone(),
            scale: none.clone(),
            energy: none,
        }
    }

    fn reduce(rules: &Rules, heads: &[Head], raw: &[[f32; 3]], faults: Faults) -> Reduced {
        let layout = Layout::new(heads, DIMS);
        let reducer = Reducer {
            rules,
            dims: DIMS,
            layout: &layout,
            faults,
            counted: vec![true; 3],
            dropped: 0,
        };
        reducer.reduce(&raw.iter().map(|row| row.to_vec()).collect(), None)
    }

    fn close(ours: &[f32], wanted: &[f32]) {
        assert_eq!(ours.len(), wanted.len());
        for (a, b) in ours.iter().zip(wanted) {
            assert!((a - b).abs() < 1e-6, "{ours:?} {wanted:?}");
        }
    }

    fn per_head(reduced: &Reduced) -> &[Vec<f32>] {
        match &reduced.rankings {
            Rankings::PerHead(heads) => heads,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_sample_deviation_of_one_two_three_is_one_and_the_population_deviation_is_not() {
        let heads = [head(0, 0)];
        for (rule_set, wanted) in [
            (RuleSet::Trt, [-1.0, 0.0, 1.0]),
            (RuleSet::Vllm, [-1.0, 0.0, 1.0]),
            (RuleSet::Hf, [-1.224_744_9, 0.0, 1.224_744_9]),
        ] {
            let rules = rules(rule_set, SelectionMode::PerHead);
            let reduced = reduce(&rules, &heads, &[[1.0, 2.0, 3.0]], Faults::default());
            close(&reduced.z[0], &wanted);
            let faults = Faults::new(Some(Cause::ZscorePopulation), &rules).unwrap();
            let reduced = reduce(&rules, &heads, &[[1.0, 2.0, 3.0]], faults);
            let swapped = if rule_set == RuleSet::Hf { 1.0 } else { 1.224_744_9 };
            close(&reduced.z[0], &[-swapped, 0.0, swapped]);
        }
    }

    #[test]
    fn a_row_without_spread_divides_by_one_or_by_the_clamp() {
        let heads = [head(0, 0)];
        // Deviation 1e-7: below the limit of `trt` and above that of `vllm`.
        let raw = [[0.0, 1e-7, 2e-7]];
        let z = |rule_set| {
            reduce(&rules(rule_set, SelectionMode::PerHead), &heads, &raw, Faults::default()).z
        };
        close(&z(RuleSet::Trt)[0], &[-1e-7, 0.0, 1e-7]);
        close(&z(RuleSet::Vllm)[0], &[-1.0, 0.0, 1.0]);
        close(&z(RuleSet::Hf)[0], &[-0.1, 0.0, 0.1]);
    }

    #[test]
    fn heads_of_a_group_take_the_maximum_after_z_and_layers_the_mean() {
        let heads = [head(0, 0), head(0, 1), head(1, 0), head(1, 1), head(1, 2)];
        let raw = [
            [1.0, 2.0, 3.0],
            [3.0, 2.0, 1.0],
            [10.0, 20.0, 30.0],
            [1.0, 2.0, 3.0],
            [3.0, 1.0, 2.0],
        ];
        let rules = rules(RuleSet::Trt, SelectionMode::PerHead);
        let reduced = reduce(&rules, &heads, &raw, Faults::default());
        let ranked = per_head(&reduced);
        // KV head 0: max(-1 0 1, 1 0 -1) = 1 0 1 and -1 0 1, mean 0 0 1. KV head 1: layer 1 alone.
        close(&ranked[0], &[0.0, 0.0, 1.0]);
        close(&ranked[1], &[1.0, -1.0, 0.0]);
        let faults = Faults::new(Some(Cause::LayerMax), &rules).unwrap();
        close(&per_head(&reduce(&rules, &heads, &raw, faults))[0], &[1.0, 0.0, 1.0]);
    }

    #[test]
    fn sglang_reduces_the_group_before_z_and_layers_by_maximum() {
        let heads: Vec<Head> =
            (0..2).flat_map(|layer| (0..4).map(move |index| head(layer, index))).collect();
        let mut raw = vec![[0.0, 0.0, 0.0]; 8];
        raw[0] = [1.0, 0.0, 0.0];
        raw[1] = [0.0, 2.0, 3.0];
        raw[4] = [4.0, 2.0, 0.0];
        let rules = rules(RuleSet::Sglang, SelectionMode::PerHead);
        let reduced = reduce(&rules, &heads, &raw, Faults::default());
        close(&reduced.group[0], &[1.0, 2.0, 3.0]);
        close(&reduced.z[0], &[-1.0, 0.0, 1.0]);
        close(&per_head(&reduced)[0], &[1.0, 0.0, 1.0]);
        let faults = Faults::new(Some(Cause::LayerMax), &rules).unwrap();
        close(&per_head(&reduce(&rules, &heads, &raw, faults))[0], &[0.0, 0.0, 0.0]);
    }

    #[test]
    fn a_kv_head_without_sampled_heads_takes_the_mean_of_all_rows() {
        let heads = [head(0, 0), head(1, 1)];
        let raw = [[1.0, 2.0, 3.0], [3.0, 2.0, 1.0]];
        for rule_set in [RuleSet::Trt, RuleSet::Hf] {
            let rules = rules(rule_set, SelectionMode::PerHead);
            let reduced = reduce(&rules, &heads, &raw, Faults::default());
            close(&per_head(&reduced)[1], &[0.0, 0.0, 0.0]);
        }
    }

    #[test]
    fn a_layer_without_statistics_ranks_its_rows_equal() {
        let heads = [head(1, 0), head(1, 2)];
        let raw = [[1.0, 2.0, 3.0], [3.0, 2.0, 1.0]];
        let rules = rules(RuleSet::Hf, SelectionMode::PerLayerPerHead);
        let reduced = reduce(&rules, &heads, &raw, Faults::default());
        let Rankings::PerLayerPerHead(layers) = &reduced.rankings else { panic!("{reduced:?}") };
        assert_eq!(layers[0], vec![vec![0.0; 3]; 2]);
        close(&layers[1][0], &[-1.224_744_9, 0.0, 1.224_744_9]);
    }

    #[test]
    fn union_is_the_maximum_over_every_row() {
        let heads = [head(0, 0), head(1, 3)];
        let raw = [[1.0, 2.0, 3.0], [3.0, 2.0, 1.0]];
        let rules = rules(RuleSet::Hf, SelectionMode::Union);
        let reduced = reduce(&rules, &heads, &raw, Faults::default());
        let Rankings::Shared(ranked) = &reduced.rankings else { panic!("{reduced:?}") };
        close(ranked, &[1.224_744_9, 0.0, 1.224_744_9]);
    }

    #[test]
    fn noise_is_drawn_row_by_row_and_in_per_layer_mode_after_a_discarded_draw() {
        let heads = [head(0, 0), head(1, 0)];
        let layout = Layout::new(&heads, DIMS);
        let drawn = |mode, skip: usize| {
            let rules = rules(RuleSet::Hf, mode);
            let reducer = Reducer {
                rules: &rules,
                dims: DIMS,
                layout: &layout,
                faults: Faults::default(),
                counted: vec![true; 3],
                dropped: 0,
            };
            // Rows without spread are zero after z, so that the noise stands alone.
            let raw = vec![vec![5.0; 3]; 2];
            let z = reducer.reduce(&raw, Some(&mut NoiseGenerator::new(7))).z;
            let mut expected = NoiseGenerator::new(7);
            expected.skip(skip);
            for value in z.iter().flatten() {
                assert_eq!(value.to_bits(), (expected.uniform() * 1e-6).to_bits());
            }
        };
        drawn(SelectionMode::PerHead, 0);
        drawn(SelectionMode::Union, 0);
        drawn(SelectionMode::PerLayerPerHead, 6);
    }
}
