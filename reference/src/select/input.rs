//! What a selection reads: cached keys, positions, where the sequence stands.

use half::{bf16, f16};
use lockstep_traces::{DType, RuleSet};

use super::error::same;
use super::{Real, SelectError};

/// Cached keys of one layer as stored: little-endian bytes `[kv_heads, rows, head_dim]`.
#[derive(Debug, Clone, Copy)]
pub struct KeyView<'a> {
    dtype: DType,
    bytes: &'a [u8],
    rows: usize,
    head_dim: usize,
}

impl<'a> KeyView<'a> {
    /// A checked view.
    ///
    /// # Errors
    /// [`SelectError::Shape`] where the bytes are not `shape`; [`SelectError::Input`] for a dtype without a float value.
    pub fn new(dtype: DType, shape: [usize; 3], bytes: &'a [u8]) -> Result<Self, SelectError> {
        if !matches!(dtype, DType::F32 | DType::F16 | DType::Bf16 | DType::F64) {
            return Err(SelectError::Input {
                what: format!("cached keys are {}; expected f32, f16, bf16 or f64", dtype.name()),
            });
        }
        let [kv_heads, rows, head_dim] = shape;
        let size = kv_heads
            .checked_mul(rows)
            .and_then(|n| n.checked_mul(head_dim))
            .and_then(|n| n.checked_mul(dtype.size()))
            .unwrap_or(usize::MAX);
        same("bytes of cached keys", size, bytes.len())?;
        if !head_dim.is_multiple_of(2) || head_dim == 0 {
            return Err(SelectError::Input {
                what: format!("head width {head_dim} of the cached keys is not even"),
            });
        }
        Ok(Self { dtype, bytes, rows, head_dim })
    }

    /// Element type.
    #[must_use]
    pub const fn dtype(&self) -> DType {
        self.dtype
    }

    /// Rows.
    #[must_use]
    pub const fn rows(&self) -> usize {
        self.rows
    }

    /// Head width.
    #[must_use]
    pub const fn head_dim(&self) -> usize {
        self.head_dim
    }

    /// One KV head, widened: `[rows, head_dim]`.
    #[must_use]
    pub fn head<R: Real>(&self, kv_head: usize) -> Vec<R> {
        let size = self.rows * self.head_dim * self.dtype.size();
        let bytes = self.bytes.get(kv_head * size..(kv_head + 1) * size).unwrap_or_default();
        widen(self.dtype, bytes).into_iter().map(R::of).collect()
    }
}

/// Floats of a little-endian byte slice, exactly widened.
#[must_use]
pub fn widen(dtype: DType, bytes: &[u8]) -> Vec<f64> {
    fn each<const N: usize>(bytes: &[u8], one: impl Fn([u8; N]) -> f64) -> Vec<f64> {
        bytes.as_chunks::<N>().0.iter().map(|chunk| one(*chunk)).collect()
    }
    match dtype {
        DType::F32 => each(bytes, |b| f64::from(f32::from_le_bytes(b))),
        DType::F64 => each(bytes, f64::from_le_bytes),
        DType::F16 => each(bytes, |b| f16::from_le_bytes(b).to_f64()),
        DType::Bf16 => each(bytes, |b| bf16::from_le_bytes(b).to_f64()),
        DType::I32 => each(bytes, |b| f64::from(i32::from_le_bytes(b))),
        DType::I16 => each(bytes, |b| f64::from(i16::from_le_bytes(b))),
        DType::U8 => bytes.iter().map(|byte| f64::from(*byte)).collect(),
        DType::I64 => each(bytes, |b| i64::from_le_bytes(b) as f64),
    }
}

/// Absolute positions of the cached rows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Positions {
    /// The same for every head and layer.
    Shared(Vec<i32>),
    /// By KV head.
    PerHead(Vec<Vec<i32>>),
    /// By layer, then KV head.
    PerLayer(Vec<Vec<Vec<i32>>>),
}

impl Positions {
    /// Rows of one head; empty where there is no such head.
    #[must_use]
    pub fn of(&self, layer: usize, kv_head: usize) -> &[i32] {
        match self {
            Self::Shared(rows) => rows,
            Self::PerHead(heads) => heads.get(kv_head).map_or(&[], Vec::as_slice),
            Self::PerLayer(layers) => {
                layers.get(layer).and_then(|heads| heads.get(kv_head)).map_or(&[], Vec::as_slice)
            }
        }
    }

    pub(crate) fn check(
        &self,
        layers: usize,
        kv_heads: usize,
        rows: usize,
    ) -> Result<(), SelectError> {
        for layer in 0..layers {
            for head in 0..kv_heads {
                same("positions of a head", rows, self.of(layer, head).len())?;
            }
        }
        Ok(())
    }
}

/// Heads of the model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Heads {
    /// Attention heads.
    pub q_heads: usize,
    /// KV heads.
    pub kv_heads: usize,
}

impl Heads {
    /// Attention heads per KV head.
    ///
    /// # Errors
    /// [`SelectError::Input`] unless it is a whole number of at least 1.
    pub fn group(self) -> Result<usize, SelectError> {
        if self.kv_heads == 0 || self.q_heads == 0 || !self.q_heads.is_multiple_of(self.kv_heads) {
            return Err(SelectError::Input {
                what: format!(
                    "{} attention heads over {} KV heads is no whole group",
                    self.q_heads, self.kv_heads
                ),
            });
        }
        Ok(self.q_heads / self.kv_heads)
    }
}

/// Where the sequence stands when the selection runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Moment {
    /// N: position of the next token.
    pub absolute_position: usize,
    /// R: round start of the score; N, in `sglang` N + 1 (see [`Moment::of`]).
    pub round_start: usize,
    /// P: prompt length (planned length while the prompt is being filled).
    pub prompt_len: usize,
    /// The compaction makes room for a row that is not appended yet (`trt`, full cache).
    pub before_append: bool,
}

impl Moment {
    /// A moment with R as the rule set has it: N, but N + 1 in `sglang`, which counts the newest sampled token before its
    /// row is written (`TRIATTENTION.md` 7.3, which leaves this open).
    #[must_use]
    pub fn of(rule_set: RuleSet, absolute_position: usize, prompt_len: usize) -> Self {
        let more = usize::from(rule_set == RuleSet::Sglang);
        let round_start = absolute_position.saturating_add(more);
        Self { round_start, ..Self::at(absolute_position, prompt_len) }
    }

    /// A moment with R = N.
    #[must_use]
    pub const fn at(absolute_position: usize, prompt_len: usize) -> Self {
        Self { absolute_position, round_start: absolute_position, prompt_len, before_append: false }
    }
}

/// Everything a selection reads.
#[derive(Debug, Clone)]
pub struct Input<'a> {
    /// Layer numbers of `keys`.
    pub layers: Vec<u32>,
    /// Cached keys by layer.
    pub keys: Vec<KeyView<'a>>,
    /// Positions of the rows.
    pub positions: Positions,
    /// Heads of the model.
    pub heads: Heads,
    /// Where the sequence stands.
    pub moment: Moment,
}

impl Input<'_> {
    /// T: rows in the cache.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.keys.first().map_or_else(|| self.positions.of(0, 0).len(), KeyView::rows)
    }

    /// Checks that every part has the same rows, heads and width. Keys may be absent altogether where raw scores are
    /// given.
    ///
    /// # Errors
    /// [`SelectError::Shape`] or [`SelectError::Input`].
    pub fn check(&self, freqs: usize) -> Result<(), SelectError> {
        if let Some(first) = self.keys.first() {
            same("layers of cached keys", self.layers.len(), self.keys.len())?;
            same("frequencies of statistics", first.head_dim / 2, freqs)?;
            for key in &self.keys {
                same("rows of a layer", first.rows, key.rows)?;
                same("head width of a layer", first.head_dim, key.head_dim)?;
                let bytes = self.heads.kv_heads * key.rows * key.head_dim * key.dtype.size();
                same("bytes of a layer's keys", bytes, key.bytes.len())?;
            }
        }
        self.heads.group()?;
        self.positions.check(self.layers.len(), self.heads.kv_heads, self.rows())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_cache_dtype_widens_exactly() {
        let bytes = [0x80, 0x3f, 0x20, 0xc1];
        assert_eq!(widen(DType::Bf16, &bytes), vec![1.0, -10.0]);
        assert_eq!(widen(DType::F16, &f16::from_f32(-0.5).to_le_bytes()), vec![-0.5]);
        assert_eq!(widen(DType::I32, &(-7i32).to_le_bytes()), vec![-7.0]);
    }

    #[test]
    fn a_view_whose_bytes_disagree_with_its_shape_is_refused() {
        let error = KeyView::new(DType::F32, [1, 2, 2], &[0; 12]).unwrap_err();
        assert!(matches!(error, SelectError::Shape { expected: 16, found: 12, .. }), "{error}");
        assert!(KeyView::new(DType::F32, [1, 1, 3], &[0; 12]).is_err());
        assert!(KeyView::new(DType::I32, [1, 1, 2], &[0; 8]).is_err());
        assert!(KeyView::new(DType::F32, [usize::MAX, 2, 2], &[]).is_err());
    }

    #[test]
    fn one_head_is_cut_out_of_the_layer() {
        let values: Vec<u8> = (0u8..8).flat_map(|v| f32::from(v).to_le_bytes()).collect();
        let view = KeyView::new(DType::F32, [2, 2, 2], &values).unwrap();
        assert_eq!(view.head::<f64>(1), vec![4.0, 5.0, 6.0, 7.0]);
    }
}
