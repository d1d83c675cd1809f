//! Tensor dumps: which file, which names, which shapes.
//!
//! `tensors/<sample>/compaction_<ordinal:04>.safetensors` holds one compaction:
//!
//! | tensor | dtype | shape |
//! |---|---|---|
//! | `pre.k.layerNN`, `pre.v.layerNN` | cache dtype | `[kv_heads, rows_before, head_dim]`, K as stored (rotated) |
//! | `post.k.layerNN`, `post.v.layerNN` | cache dtype | `[kv_heads, rows_after, head_dim]` |
//! | `positions.pre`, `positions.post` | i32 | `[kv_heads, rows]`, or `[layers, kv_heads, rows]` where layers differ |
//! | `keep` | i32 | `[kv_heads, k]`, `[layers, kv_heads, k]`, `[layers, k]` or `[k]`, in the order of the rows after |
//! | `keep.own` | i32 | as `keep`: the policy's own choice, where the gather was told to follow given sets |
//! | `scores.raw` | f32 | `[score_layers, heads, cols]`, before normalisation |
//! | `scores.z` | f32 | same as `scores.raw` (or `[score_layers, kv_heads, cols]` where the group is reduced first) |
//! | `scores.group` | f32 | `[score_layers, kv_heads, cols]`, after the reduction over the GQA group |
//! | `scores.final` | f32 | `[kv_heads, cols]`, `[layers, kv_heads, cols]`, `[layers, cols]` or `[cols]`: the exact input of the top-k, guards as +inf |
//!
//! Score column `j` is cache row `score_row_offset + j`. Metadata keys (strings): `sample_id`, `ordinal`,
//! `absolute_position` (N), `round_start` (R as used), `rows_before`, `rows_after`, `score_row_offset`, `rule_set`,
//! `mode`, `prompt_len`, `score_layers` (comma-separated layer numbers), `score_heads` (comma-separated attention heads).
//!
//! `tensors/<sample>/step_<position:07>.safetensors` holds one fed row: `logits` f32 `[vocab]`, and `hidden.embed`,
//! `hidden.layerNN.{input_norm, q_proj, k_proj, v_proj, q_norm, k_norm, q_rope, k_rope, attn_heads, attn_out, post_norm, mlp_out, out}`,
//! `hidden.final_norm`, each f32, 1-D. `q_norm`/`k_norm` are before RoPE, flattened `[heads * head_dim]` (where the architecture has no
//! QK norm they are absent); `q_rope`/`k_rope` after RoPE; `attn_heads` before `o_proj`; `attn_out` after it, without the residual;
//! `post_norm` is the norm before the MLP; `out` is after both residuals. A recording of a live engine ([`crate::recorded`]) may add
//! `cache.k.layerNN`, `cache.v.layerNN`, cache dtype, `[kv_heads, rows, head_dim]`: what the cache holds after this row.

use std::collections::BTreeMap;

use crate::DType;

/// Stage names of one layer in the order in which they are computed.
pub const LAYER_STAGES: [&str; 13] = [
    "input_norm",
    "q_proj",
    "k_proj",
    "v_proj",
    "q_norm",
    "k_norm",
    "q_rope",
    "k_rope",
    "attn_heads",
    "attn_out",
    "post_norm",
    "mlp_out",
    "out",
];

/// Which dump file.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum DumpId {
    /// One compaction of one sample.
    Compaction {
        /// Sample.
        sample_id: String,
        /// 1-based ordinal.
        ordinal: u32,
    },
    /// One fed row of one sample.
    Step {
        /// Sample.
        sample_id: String,
        /// Absolute position.
        position: u32,
    },
}

impl DumpId {
    /// Path below the run directory, with `/` separators. Sample ids are percent-encoded outside `[A-Za-z0-9._-]`.
    #[must_use]
    pub fn relative_path(&self) -> String {
        match self {
            Self::Compaction { sample_id, ordinal } => {
                format!("tensors/{}/compaction_{ordinal:04}.safetensors", file_name(sample_id))
            }
            Self::Step { sample_id, position } => {
                format!("tensors/{}/step_{position:07}.safetensors", file_name(sample_id))
            }
        }
    }
}

fn file_name(sample_id: &str) -> String {
    let mut name = String::new();
    for byte in sample_id.bytes() {
        let plain = byte.is_ascii_alphanumeric()
            || matches!(byte, b'_' | b'-')
            || (byte == b'.' && !name.is_empty());
        if plain {
            name.push(char::from(byte));
        } else {
            name.push('%');
            name.push(char::from(b"0123456789ABCDEF"[usize::from(byte >> 4)]));
            name.push(char::from(b"0123456789ABCDEF"[usize::from(byte & 15)]));
        }
    }
    if name.is_empty() { "%".to_owned() } else { name }
}

/// One tensor of a dump: little-endian bytes, row-major.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tensor {
    /// Name inside the file.
    pub name: String,
    /// Element type.
    pub dtype: DType,
    /// Shape.
    pub shape: Vec<usize>,
    /// `shape.product() * dtype.size()` bytes.
    pub data: Vec<u8>,
}

impl Tensor {
    /// A tensor of `f32` values.
    #[must_use]
    pub fn from_f32(name: impl Into<String>, shape: Vec<usize>, values: &[f32]) -> Self {
        let data = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        Self { name: name.into(), dtype: DType::F32, shape, data }
    }

    /// A tensor of `i32` values.
    #[must_use]
    pub fn from_i32(name: impl Into<String>, shape: Vec<usize>, values: &[i32]) -> Self {
        let data = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        Self { name: name.into(), dtype: DType::I32, shape, data }
    }
}

impl Tensor {
    /// The same tensor, bytes borrowed.
    #[must_use]
    pub fn borrowed(&self) -> TensorRef<'_> {
        let (name, shape) = (self.name.clone(), self.shape.clone());
        TensorRef { name, dtype: self.dtype, shape, data: &self.data }
    }
}

/// A tensor whose bytes lie elsewhere, e.g. in pinned memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorRef<'a> {
    /// Name inside the file.
    pub name: String,
    /// Element type.
    pub dtype: DType,
    /// Shape.
    pub shape: Vec<usize>,
    /// `shape.product() * dtype.size()` bytes.
    pub data: &'a [u8],
}

impl TensorRef<'_> {
    /// A copy with bytes of its own.
    #[must_use]
    pub fn to_tensor(&self) -> Tensor {
        let (name, shape) = (self.name.clone(), self.shape.clone());
        Tensor { name, dtype: self.dtype, shape, data: self.data.to_vec() }
    }
}

/// A whole dump file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Dump {
    /// Which file.
    pub id: DumpId,
    /// safetensors `__metadata__`.
    pub metadata: BTreeMap<String, String>,
    /// Content.
    pub tensors: Vec<Tensor>,
}
