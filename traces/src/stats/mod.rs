//! Calibration statistics of queries: `.pt` and safetensors.

use std::collections::BTreeMap;

/// Calibration statistics of queries (`TRIATTENTION.md` 2).
#[derive(Debug, Clone, PartialEq)]
pub struct QueryStats {
    /// Model layers of the first axis.
    pub layers: Vec<u32>,
    /// Attention heads of the second axis.
    pub heads: Vec<u32>,
    /// Frequencies F.
    pub freqs: usize,
    /// Re of the mean query, `[layers, heads, freqs]`.
    pub q_mean_real: Vec<f32>,
    /// Im of the mean query, same shape.
    pub q_mean_imag: Vec<f32>,
    /// Mean modulus, same shape.
    pub q_abs_mean: Vec<f32>,
    /// Inverse frequencies `[freqs]`, where the file has them.
    pub inv_freq: Option<Vec<f32>>,
    /// Square of the attention scaling by frequency, where the file has it.
    pub freq_scale_sq: Option<Vec<f32>>,
    /// Sampled (layer, head) pairs in file order.
    pub sampled: Vec<(u32, u32)>,
    /// Metadata as written.
    pub metadata: BTreeMap<String, serde_json::Value>,
}
