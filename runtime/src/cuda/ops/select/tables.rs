//! A selector's tables as the kernels read them: statistics by head, units, and which rows are combined into which.
//!
//! Normalised and reduced scores share one matrix, so that a ranking can draw on both. Where heads are normalised first its rows are the
//! heads, then the groups `[layer][kv_head]`; where groups are reduced first (`sglang`), the raw groups, then the normalised ones.

use lockstep_traces::{Aggregation, RuleSet, SelectionMode};

use super::reduce::Combine;
use super::score::HeadValues;
use crate::select::Rules;
use crate::select::parts::{Head, Parts};

/// Rows of the shared matrix and how they come about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Plan {
    /// Group stage: lists over the heads, empty where the mode has none.
    pub(super) group: Vec<(Combine, Vec<usize>)>,
    /// Rankings: lists over the shared matrix.
    pub(super) rankings: Vec<(Combine, Vec<usize>)>,
    /// Rows of the shared matrix.
    pub(super) rows: usize,
    /// Groups are reduced before they are normalised.
    pub(super) group_first: bool,
}

impl Plan {
    pub(super) fn new(rules: &Rules, parts: &Parts<'_>) -> Self {
        let group_first = rules.rule_set == RuleSet::Sglang;
        let heads = parts.heads.len();
        let lists: Vec<&Vec<usize>> = parts.layout.rows.iter().flatten().collect();
        let grouped = matches!(rules.mode, SelectionMode::PerHead | SelectionMode::PerLayerPerHead);
        let how = match rules.group_aggregation {
            Aggregation::Mean if !group_first => Combine::Mean,
            Aggregation::Mean | Aggregation::Max => Combine::Max,
        };
        let group: Vec<_> = lists
            .iter()
            .filter(|_| grouped || group_first)
            .map(|rows| (how, rows.to_vec()))
            .collect();
        let rows = if group_first { 2 * group.len() } else { heads + group.len() };
        let rankings =
            Rankings { rules, parts, first_group: if group_first { group.len() } else { heads } };
        let rankings = match rules.mode {
            SelectionMode::Union => vec![(Combine::Max, (0..heads).collect())],
            SelectionMode::PerHead => rankings.over_layers(),
            SelectionMode::PerLayerPerHead => rankings.by_layer(),
            SelectionMode::PerLayer => rankings.averaged(parts.dims.kv_heads),
            SelectionMode::LegacyLayerLocal => rankings.averaged(1),
        };
        Self { group, rankings, rows, group_first }
    }
}

struct Rankings<'a> {
    rules: &'a Rules,
    parts: &'a Parts<'a>,
    /// Row of the first group that rankings draw on.
    first_group: usize,
}

impl Rankings<'_> {
    /// One by KV head; a KV head without sampled heads takes the mean of all of them.
    fn over_layers(&self) -> Vec<(Combine, Vec<usize>)> {
        let largest = (self.rules.layer_aggregation == Aggregation::Max)
            != self.parts.faults.other_layer_reduction();
        let how = if largest {
            Combine::Max
        } else if self.rules.rule_set == RuleSet::Trt {
            Combine::ReciprocalMean
        } else {
            Combine::Mean
        };
        let kv_heads = self.parts.dims.kv_heads;
        (0..kv_heads)
            .map(|kv_head| {
                let layers = self.parts.layout.rows.iter().enumerate();
                let members: Vec<usize> = layers
                    .filter(|(_, heads)| !heads[kv_head].is_empty())
                    .map(|(layer, _)| self.first_group + layer * kv_heads + kv_head)
                    .collect();
                if members.is_empty() {
                    (Combine::Mean, (0..self.parts.heads.len()).collect())
                } else {
                    (how, members)
                }
            })
            .collect()
    }

    /// One by layer and KV head. A KV head without sampled heads takes the mean of its layer's; a layer without any ranks all rows
    /// equal.
    fn by_layer(&self) -> Vec<(Combine, Vec<usize>)> {
        let kv_heads = self.parts.dims.kv_heads;
        let layout = self.parts.layout;
        let mut lists = Vec::new();
        for layer in 0..self.parts.dims.layers {
            let Ok(index) = layout.layers.binary_search(&layer) else {
                lists.extend((0..kv_heads).map(|_| (Combine::Zero, Vec::new())));
                continue;
            };
            lists.extend(layout.rows[index].iter().enumerate().map(|(kv_head, rows)| {
                if rows.is_empty() {
                    let own = layout.rows[index].iter().flatten().copied().collect();
                    (Combine::Mean, own)
                } else {
                    (Combine::Max, vec![self.first_group + index * kv_heads + kv_head])
                }
            }));
        }
        lists
    }

    /// Statistics averaged over the group: the matrix has a row by layer and KV head; `step` of them make a ranking.
    fn averaged(&self, step: usize) -> Vec<(Combine, Vec<usize>)> {
        let kv_heads = self.parts.dims.kv_heads;
        let mut lists = Vec::new();
        for layer in 0..self.parts.dims.layers {
            let index = self.parts.layout.layers.binary_search(&layer);
            for first in (0..kv_heads).step_by(step.max(1)) {
                lists.push(match index {
                    Ok(index) => {
                        let start = index * kv_heads + first;
                        (Combine::Max, (start..start + step).collect())
                    }
                    Err(_) => (Combine::Zero, Vec::new()),
                });
            }
        }
        lists
    }
}

/// Rows of the score matrix in the order in which noise is drawn for them, and rows' worth of draws dropped before.
pub(super) fn noise_order(rules: &Rules, parts: &Parts<'_>) -> (Vec<usize>, usize) {
    let heads = parts.heads.len();
    if rules.mode != SelectionMode::PerLayerPerHead {
        return ((0..heads).collect(), 0);
    }
    let mut order = Vec::with_capacity(heads);
    for layer in &parts.layout.rows {
        let mut rows: Vec<usize> = layer.iter().flatten().copied().collect();
        rows.sort_unstable();
        order.extend(rows);
    }
    (order, heads)
}

/// Statistics of all heads, one after the other.
pub(super) fn values(heads: &[Head]) -> HeadValues {
    let join = |list: fn(&Head) -> &Vec<f32>| heads.iter().flat_map(list).copied().collect();
    HeadValues {
        re: join(|head| &head.re),
        im: join(|head| &head.im),
        modulus: join(|head| &head.modulus),
        scale: join(|head| &head.scale),
        energy: join(|head| &head.energy),
    }
}
