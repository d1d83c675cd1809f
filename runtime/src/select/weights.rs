//! Statistics as the rule set scores with them: which heads, in which order, and the coefficients of the norm term.

use std::collections::BTreeMap;

use lockstep_traces::stats::QueryStats;
use lockstep_traces::{RuleSet, SelectionMode};

use super::{Dims, Rules, SelectError};
use crate::RotaryTable;

/// One row of the score matrix: a head of a layer with its statistics, each `[freqs]`.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Head {
    /// Model layer.
    pub(crate) layer: usize,
    /// Attention head, or KV head where statistics are averaged over the group.
    pub(crate) head: usize,
    /// KV head whose keys it scores.
    pub(crate) kv_head: usize,
    /// Re of the mean query.
    pub(crate) re: Vec<f32>,
    /// Im of the mean query.
    pub(crate) im: Vec<f32>,
    /// |mu| with the rule set's floor.
    pub(crate) modulus: Vec<f32>,
    /// s.
    pub(crate) scale: Vec<f32>,
    /// c * s.
    pub(crate) energy: Vec<f32>,
}

/// Raw means of one head, before anything is derived from them.
struct Means {
    re: Vec<f32>,
    im: Vec<f32>,
    abs: Vec<f32>,
    scale: Vec<f32>,
}

/// Heads of the score matrix in its row order.
///
/// # Errors
/// [`SelectError::Stats`] where shapes contradict the model, heads are missing that the rule set needs, or the pairing
/// is not by halves.
pub(super) fn heads(
    rules: &Rules,
    stats: &QueryStats,
    rotary: &RotaryTable,
    dims: Dims,
) -> Result<Vec<Head>, SelectError> {
    let source = Source::new(rules, stats, rotary, dims)?;
    let sampled = source.sampled()?;
    match rules.rule_set {
        RuleSet::Hf => {
            sampled.iter().map(|&(layer, head)| source.sampled_head(layer, head)).collect()
        }
        RuleSet::Trt => {
            let mut sorted = sampled;
            sorted.sort_unstable();
            sorted.dedup();
            sorted.iter().map(|&(layer, head)| source.sampled_head(layer, head)).collect()
        }
        RuleSet::Vllm | RuleSet::Sglang => source.every_layer(&sampled),
    }
}

struct Source<'a> {
    rules: &'a Rules,
    stats: &'a QueryStats,
    dims: Dims,
    /// Index of a layer number in the arrays.
    layers: BTreeMap<u32, usize>,
    /// Index of an attention head in the arrays.
    heads: BTreeMap<u32, usize>,
    shared_scale: f32,
}

impl<'a> Source<'a> {
    fn new(
        rules: &'a Rules,
        stats: &'a QueryStats,
        rotary: &RotaryTable,
        dims: Dims,
    ) -> Result<Self, SelectError> {
        dims.check()?;
        let freqs = dims.freqs();
        if stats.freqs != freqs {
            return Err(SelectError::Stats(format!(
                "{} frequencies a head; the model's head width {} needs {freqs}",
                stats.freqs, dims.head_dim
            )));
        }
        if rotary.inv_freq.len() != freqs {
            return Err(SelectError::Input(format!(
                "{} inverse frequencies for {freqs} frequencies",
                rotary.inv_freq.len()
            )));
        }
        let size = stats.layers.len() * stats.heads.len() * freqs;
        let arrays = [
            ("q_mean_real", stats.q_mean_real.len()),
            ("q_mean_imag", stats.q_mean_imag.len()),
            ("q_abs_mean", stats.q_abs_mean.len()),
        ];
        if let Some((name, found)) = arrays.into_iter().find(|&(_, found)| found != size) {
            return Err(SelectError::Stats(format!("{name} holds {found} values, not {size}")));
        }
        if let Some(scale) = &stats.freq_scale_sq
            && scale.len() != freqs
        {
            return Err(SelectError::Stats(format!(
                "freq_scale_sq holds {} values, not {freqs}",
                scale.len()
            )));
        }
        check_metadata(stats, dims)?;
        let index = |numbers: &[u32]| numbers.iter().zip(0..).map(|(&n, i)| (n, i)).collect();
        Ok(Self {
            rules,
            stats,
            dims,
            layers: index(&stats.layers),
            heads: index(&stats.heads),
            shared_scale: rotary.attention_scaling * rotary.attention_scaling,
        })
    }

    /// Sampled heads in file order, checked against the model.
    fn sampled(&self) -> Result<Vec<(u32, u32)>, SelectError> {
        if self.stats.sampled.is_empty() {
            return Err(SelectError::Stats("no sampled head".to_owned()));
        }
        for &(layer, head) in &self.stats.sampled {
            if layer as usize >= self.dims.layers || head as usize >= self.dims.q_heads {
                return Err(SelectError::Stats(format!(
                    "layer {layer}, head {head} lies outside the model's {} layers of {} heads",
                    self.dims.layers, self.dims.q_heads
                )));
            }
        }
        Ok(self.stats.sampled.clone())
    }

    fn means(&self, layer: u32, head: u32) -> Result<Means, SelectError> {
        let (Some(&row), Some(&column)) = (self.layers.get(&layer), self.heads.get(&head)) else {
            return Err(SelectError::Stats(format!(
                "layer {layer}, head {head} is listed as sampled and has no values"
            )));
        };
        let freqs = self.stats.freqs;
        let start = (row * self.stats.heads.len() + column) * freqs;
        let range = start..start + freqs;
        let scale = match &self.stats.freq_scale_sq {
            // `hf` takes the scale from the model and not from the file.
            Some(scale) if self.rules.rule_set != RuleSet::Hf => {
                if scale.len() == freqs {
                    scale.clone()
                } else {
                    scale[range.clone()].to_vec()
                }
            }
            _ => vec![self.shared_scale; freqs],
        };
        Ok(Means {
            re: self.stats.q_mean_real[range.clone()].to_vec(),
            im: self.stats.q_mean_imag[range.clone()].to_vec(),
            abs: self.stats.q_abs_mean[range].to_vec(),
            scale,
        })
    }

    fn sampled_head(&self, layer: u32, head: u32) -> Result<Head, SelectError> {
        let means = self.means(layer, head)?;
        let kv_head = head as usize / self.dims.group();
        Ok(self.derive(layer as usize, head as usize, kv_head, means))
    }

    /// `vllm`, `sglang`: every layer of the model, all its heads; a layer that the file lacks takes the statistics of layer
    /// `sorted[layer mod count]`.
    fn every_layer(&self, sampled: &[(u32, u32)]) -> Result<Vec<Head>, SelectError> {
        let mut by_layer: BTreeMap<u32, usize> = BTreeMap::new();
        for &(layer, _) in sampled {
            *by_layer.entry(layer).or_default() += 1;
        }
        if let Some((layer, count)) = by_layer.iter().find(|&(_, &n)| n != self.dims.q_heads) {
            return Err(SelectError::Stats(format!(
                "layer {layer} has {count} sampled heads; this rule set needs all {}",
                self.dims.q_heads
            )));
        }
        let sorted: Vec<u32> = by_layer.keys().copied().collect();
        let averaged =
            matches!(self.rules.mode, SelectionMode::PerLayer | SelectionMode::LegacyLayerLocal);
        let mut rows = Vec::new();
        for layer in 0..self.dims.layers {
            let named = u32::try_from(layer).ok().filter(|layer| by_layer.contains_key(layer));
            let from = named.unwrap_or(sorted[layer % sorted.len()]);
            if averaged {
                for kv_head in 0..self.dims.kv_heads {
                    let means = self.group_means(from, kv_head)?;
                    rows.push(self.derive(layer, kv_head, kv_head, means));
                }
            } else {
                for (head, number) in (0..self.dims.q_heads).zip(0..) {
                    let means = self.means(from, number)?;
                    rows.push(self.derive(layer, head, head / self.dims.group(), means));
                }
            }
        }
        Ok(rows)
    }

    /// Means over the query heads of one KV head.
    fn group_means(&self, layer: u32, kv_head: usize) -> Result<Means, SelectError> {
        let group = self.dims.group();
        let mut heads = (kv_head * group..(kv_head + 1) * group)
            .map(|head| self.means(layer, u32::try_from(head).unwrap_or(u32::MAX)));
        let first = heads.next().unwrap_or_else(|| self.means(layer, u32::MAX))?;
        let sum = heads.try_fold(first, |mut sum, next| {
            let next = next?;
            add(&mut sum.re, &next.re);
            add(&mut sum.im, &next.im);
            add(&mut sum.abs, &next.abs);
            add(&mut sum.scale, &next.scale);
            Ok::<_, SelectError>(sum)
        })?;
        let mean =
            |values: Vec<f32>| values.iter().map(|v| v / super::phase::widen(group)).collect();
        Ok(Means { re: mean(sum.re), im: mean(sum.im), abs: mean(sum.abs), scale: mean(sum.scale) })
    }

    fn derive(&self, layer: usize, head: usize, kv_head: usize, means: Means) -> Head {
        let modulus: Vec<f32> = means
            .re
            .iter()
            .zip(&means.im)
            .map(|(re, im)| match self.rules.rule_set {
                RuleSet::Trt => (re * re + im * im).max(1e-8).sqrt(),
                RuleSet::Hf => re.hypot(*im),
                RuleSet::Vllm | RuleSet::Sglang => (re * re + im * im + 1e-8).sqrt(),
            })
            .collect();
        let energy = means
            .abs
            .iter()
            .zip(&modulus)
            .zip(&means.scale)
            .map(|((abs, modulus), scale)| {
                let surplus = if self.rules.disable_mlr { *abs } else { abs - modulus };
                surplus * scale
            })
            .collect();
        Head {
            layer,
            head,
            kv_head,
            re: means.re,
            im: means.im,
            modulus,
            scale: means.scale,
            energy,
        }
    }
}

/// Refuses pairings and head counts that the selector would misread.
fn check_metadata(stats: &QueryStats, dims: Dims) -> Result<(), SelectError> {
    let text = |key: &str| stats.metadata.get(key).and_then(|value| value.as_str());
    if let Some(style) = text("rope_style")
        && style != "half"
    {
        return Err(SelectError::Stats(format!(
            "rope_style is `{style}`; the supported models pair halves, so recalibrate on this model"
        )));
    }
    let number = |key: &str| stats.metadata.get(key).and_then(serde_json::Value::as_u64);
    if let Some(heads) = number("num_attention_heads")
        && heads != dims.q_heads as u64
    {
        return Err(SelectError::Stats(format!(
            "made for {heads} attention heads, the model has {}",
            dims.q_heads
        )));
    }
    let by_kv_head = stats.heads.len() == dims.kv_heads
        && dims.kv_heads < dims.q_heads
        && number("num_kv_heads") == Some(stats.heads.len() as u64);
    if by_kv_head {
        return Err(SelectError::Stats(
            "given by KV head; the rule sets score attention heads, so recalibrate with those"
                .to_owned(),
        ));
    }
    Ok(())
}

fn add(sum: &mut [f32], values: &[f32]) {
    for (sum, value) in sum.iter_mut().zip(values) {
        *sum += value;
    }
}
