//! Scores by stage, in the names and shapes of a compaction dump.

use std::collections::BTreeMap;

use lockstep_traces::{RuleSet, SelectionMode, Tensor};

use super::reduce::{Layout, Reduced};
use super::rules::rule_set_name;
use super::score::Matrix;
use super::weights::Head;
use super::{Dims, Rules};

/// One stage: f32 values, row-major.
#[derive(Debug, Clone, PartialEq)]
pub struct Stage {
    /// Shape.
    pub shape: Vec<usize>,
    /// Values; NaN where the statistics sample no such head.
    pub values: Vec<f32>,
}

impl Stage {
    fn tensor(&self, name: &str) -> Tensor {
        Tensor::from_f32(name, self.shape.clone(), &self.values)
    }
}

/// Scores of one compaction by stage. Column `j` is cache row `row_offset + j`.
#[derive(Debug, Clone, PartialEq)]
pub struct Stages {
    /// Model layers of the first axis of `raw`, `z` and `group`.
    pub layers: Vec<u32>,
    /// Attention heads of the second axis of `raw` (KV heads where statistics are averaged over the group).
    pub heads: Vec<u32>,
    /// First scored cache row.
    pub row_offset: usize,
    /// Before normalising, `[layers, heads, cols]`.
    pub raw: Stage,
    /// After normalising, noise of `hf` included; as `raw`, or `[layers, kv_heads, cols]` under `sglang`.
    pub z: Stage,
    /// After the reduction over the group, without guards, `[layers, kv_heads, cols]`; before normalising under `sglang`. `None` in
    /// modes without such a stage.
    pub group: Option<Stage>,
    /// Exact input of the top-k, guards as +inf.
    pub last: Stage,
    rule_set: RuleSet,
    mode: SelectionMode,
}

impl Stages {
    /// Tensors `scores.raw`, `scores.z`, `scores.group` (where there is one) and `scores.final`.
    #[must_use]
    pub fn tensors(&self) -> Vec<Tensor> {
        let mut tensors = vec![self.raw.tensor("scores.raw"), self.z.tensor("scores.z")];
        tensors.extend(self.group.as_ref().map(|group| group.tensor("scores.group")));
        tensors.push(self.last.tensor("scores.final"));
        tensors
    }

    /// Metadata keys that describe the scores: `score_row_offset`, `rule_set`, `mode`, `score_layers`, `score_heads`.
    #[must_use]
    pub fn metadata(&self) -> BTreeMap<String, String> {
        let list =
            |numbers: &[u32]| numbers.iter().map(u32::to_string).collect::<Vec<_>>().join(",");
        [
            ("score_row_offset", self.row_offset.to_string()),
            ("rule_set", rule_set_name(self.rule_set).to_owned()),
            ("mode", mode_name(self.mode).to_owned()),
            ("score_layers", list(&self.layers)),
            ("score_heads", list(&self.heads)),
        ]
        .into_iter()
        .map(|(key, value)| (key.to_owned(), value))
        .collect()
    }
}

const fn mode_name(mode: SelectionMode) -> &'static str {
    match mode {
        SelectionMode::PerHead => "per_head",
        SelectionMode::PerLayerPerHead => "per_layer_per_head",
        SelectionMode::PerLayer => "per_layer",
        SelectionMode::Union => "union",
        SelectionMode::LegacyLayerLocal => "legacy_layer_local",
    }
}

/// Where each row of the score matrix lies in the dumped grid.
pub(crate) struct Grid<'a> {
    pub(crate) rules: &'a Rules,
    pub(crate) dims: Dims,
    pub(crate) heads: &'a [Head],
    pub(crate) layout: &'a Layout,
}

impl Grid<'_> {
    /// Assembles the stages; `raw` holds the scored columns only.
    pub(crate) fn stages(&self, raw: &Matrix, reduced: &Reduced, row_offset: usize) -> Stages {
        let columns = raw.first().map_or(0, Vec::len);
        let mut numbers: Vec<usize> = self.heads.iter().map(|head| head.head).collect();
        numbers.sort_unstable();
        numbers.dedup();
        let by_head = |matrix: &Matrix| {
            let mut values = vec![f32::NAN; self.layout.layers.len() * numbers.len() * columns];
            for (head, row) in self.heads.iter().zip(matrix) {
                let layer = self.layout.layers.binary_search(&head.layer).unwrap_or_default();
                let column = numbers.binary_search(&head.head).unwrap_or_default();
                let start = (layer * numbers.len() + column) * columns;
                values[start..start + columns].copy_from_slice(row);
            }
            Stage { shape: vec![self.layout.layers.len(), numbers.len(), columns], values }
        };
        let by_kv_head = |matrix: &Matrix| {
            let mut values = Vec::with_capacity(matrix.len() * columns);
            for row in matrix {
                if row.is_empty() {
                    values.resize(values.len() + columns, f32::NAN);
                } else {
                    values.extend_from_slice(row);
                }
            }
            Stage { shape: vec![self.layout.layers.len(), self.dims.kv_heads, columns], values }
        };
        let group_first = self.rules.rule_set == RuleSet::Sglang;
        let rankings = &reduced.rankings;
        Stages {
            layers: narrow(&self.layout.layers),
            heads: narrow(&numbers),
            row_offset,
            raw: by_head(raw),
            z: if group_first { by_kv_head(&reduced.z) } else { by_head(&reduced.z) },
            group: (!reduced.group.is_empty()).then(|| by_kv_head(&reduced.group)),
            last: Stage {
                shape: rankings.shape(),
                values: rankings.lists().into_iter().flatten().copied().collect(),
            },
            rule_set: self.rules.rule_set,
            mode: self.rules.mode,
        }
    }
}

fn narrow(numbers: &[usize]) -> Vec<u32> {
    numbers.iter().filter_map(|&number| u32::try_from(number).ok()).collect()
}
