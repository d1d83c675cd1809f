//! What a selector reads (a view of the cache) and what it answers (rows to keep, scores by stage).

use half::{bf16, f16};
use lockstep_traces::DType;

use super::{SelectError, Stages};

/// Shape of the attention that the cache belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Dims {
    /// Layers of the model.
    pub layers: usize,
    /// KV heads of a layer.
    pub kv_heads: usize,
    /// Attention (query) heads of a layer; a multiple of `kv_heads`.
    pub q_heads: usize,
    /// Width of a head; even.
    pub head_dim: usize,
}

impl Dims {
    /// Query heads of one KV head.
    #[must_use]
    pub fn group(&self) -> usize {
        self.q_heads / self.kv_heads.max(1)
    }

    /// Rotary frequencies.
    #[must_use]
    pub fn freqs(&self) -> usize {
        self.head_dim / 2
    }

    /// Bytes that one cache row takes over all layers, K and V.
    #[must_use]
    pub fn row_bytes(&self, dtype: DType) -> u64 {
        let elements = [self.layers, self.kv_heads, self.head_dim]
            .iter()
            .fold(2_u64, |product, &size| product.saturating_mul(size as u64));
        elements.saturating_mul(dtype.size() as u64)
    }

    pub(crate) fn check(&self) -> Result<(), SelectError> {
        let whole = self.layers > 0
            && self.kv_heads > 0
            && self.q_heads > 0
            && self.q_heads.is_multiple_of(self.kv_heads)
            && self.head_dim > 0
            && self.head_dim.is_multiple_of(2);
        if whole {
            return Ok(());
        }
        Err(SelectError::Input(format!(
            "dimensions do not fit together: {} layers, {} KV heads, {} query heads, head width {}",
            self.layers, self.kv_heads, self.q_heads, self.head_dim
        )))
    }
}

/// Keys of one layer and KV head as they lie in the cache: rotated, halves paired (element `f` with `f + head_dim / 2`),
/// `[rows][head_dim]`, contiguous.
#[derive(Debug, Clone, Copy)]
pub enum Keys<'a> {
    /// binary32.
    F32(&'a [f32]),
    /// binary16.
    F16(&'a [f16]),
    /// bfloat16.
    Bf16(&'a [bf16]),
}

impl Keys<'_> {
    /// Elements.
    #[must_use]
    pub fn len(&self) -> usize {
        match self {
            Self::F32(values) => values.len(),
            Self::F16(values) => values.len(),
            Self::Bf16(values) => values.len(),
        }
    }

    /// No elements?
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Widens row `row` (exactly) into `out`, which is one row long.
    pub(super) fn widen(&self, row: usize, out: &mut [f32]) {
        let range = row * out.len()..(row + 1) * out.len();
        match self {
            Self::F32(values) => out.copy_from_slice(&values[range]),
            Self::F16(values) => {
                for (wide, narrow) in out.iter_mut().zip(&values[range]) {
                    *wide = narrow.to_f32();
                }
            }
            Self::Bf16(values) => {
                for (wide, narrow) in out.iter_mut().zip(&values[range]) {
                    *wide = narrow.to_f32();
                }
            }
        }
    }

    /// Rounds a value to the element type and widens it again.
    pub(super) fn round(&self, value: f32) -> f32 {
        match self {
            Self::F32(_) => value,
            Self::F16(_) => f16::from_f32(value).to_f32(),
            Self::Bf16(_) => bf16::from_f32(value).to_f32(),
        }
    }
}

/// The live rows of one sequence's cache, borrowed.
#[derive(Debug, Clone)]
pub struct CacheView<'a> {
    /// Live rows T, the same in every head.
    pub rows: usize,
    /// Keys by layer, then KV head: `layers * kv_heads` entries of `rows * head_dim` elements. Read by `triattention` only;
    /// may be empty for the other policies.
    pub keys: Vec<Keys<'a>>,
    /// Absolute position of each row: one list per KV head where layers share them (`kv_heads` entries), or one per
    /// layer and KV head (`layers * kv_heads`, layer-major).
    pub positions: Vec<&'a [u32]>,
}

impl CacheView<'_> {
    /// Positions of a layer's KV head.
    pub(super) fn positions(&self, dims: Dims, layer: usize, kv_head: usize) -> &[u32] {
        if self.positions.len() == dims.kv_heads {
            self.positions[kv_head]
        } else {
            self.positions[layer * dims.kv_heads + kv_head]
        }
    }

    pub(crate) fn check(&self, dims: Dims, with_keys: bool) -> Result<(), SelectError> {
        let heads = dims.layers * dims.kv_heads;
        if self.rows == 0 {
            return Err(SelectError::Input("the cache holds no row".to_owned()));
        }
        if self.positions.len() != dims.kv_heads && self.positions.len() != heads {
            return Err(SelectError::Input(format!(
                "{} lists of positions; give {} (by KV head) or {heads} (by layer and KV head)",
                self.positions.len(),
                dims.kv_heads
            )));
        }
        if let Some(list) = self.positions.iter().find(|list| list.len() != self.rows) {
            return Err(SelectError::Input(format!(
                "a list of {} positions for {} cache rows",
                list.len(),
                self.rows
            )));
        }
        if !with_keys {
            return Ok(());
        }
        if self.keys.len() != heads {
            return Err(SelectError::Input(format!(
                "keys of {} heads; {} layers of {} KV heads need {heads}",
                self.keys.len(),
                dims.layers,
                dims.kv_heads
            )));
        }
        let wanted = self.rows * dims.head_dim;
        if let Some(keys) = self.keys.iter().find(|keys| keys.len() != wanted) {
            return Err(SelectError::Input(format!(
                "a head holds {} key elements; {} rows of width {} need {wanted}",
                keys.len(),
                self.rows,
                dims.head_dim
            )));
        }
        Ok(())
    }
}

/// Cache rows to keep, in the order in which they lie afterwards.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KeepSet {
    /// `[k]`: the same rows in every layer and head.
    Shared(Vec<u32>),
    /// `[kv_heads][k]`: shared by the layers.
    PerHead(Vec<Vec<u32>>),
    /// `[layers][k]`: shared by the heads of a layer.
    PerLayer(Vec<Vec<u32>>),
    /// `[layers][kv_heads][k]`.
    PerLayerPerHead(Vec<Vec<Vec<u32>>>),
}

impl KeepSet {
    /// Rows kept for this layer and KV head; empty outside the shape.
    #[must_use]
    pub fn rows(&self, layer: usize, kv_head: usize) -> &[u32] {
        let list = match self {
            Self::Shared(rows) => Some(rows),
            Self::PerHead(heads) => heads.get(kv_head),
            Self::PerLayer(layers) => layers.get(layer),
            Self::PerLayerPerHead(layers) => layers.get(layer).and_then(|heads| heads.get(kv_head)),
        };
        list.map_or(&[], Vec::as_slice)
    }

    /// Rows that each head holds afterwards.
    #[must_use]
    pub fn len(&self) -> usize {
        self.rows(0, 0).len()
    }

    /// Nothing kept?
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Do layers keep different rows, so that positions have to be held by layer?
    #[must_use]
    pub const fn layers_differ(&self) -> bool {
        matches!(self, Self::PerLayer(_) | Self::PerLayerPerHead(_))
    }

    /// Shape of [`KeepSet::to_i32`].
    #[must_use]
    pub fn shape(&self) -> Vec<usize> {
        match self {
            Self::Shared(rows) => vec![rows.len()],
            Self::PerHead(lists) | Self::PerLayer(lists) => vec![lists.len(), self.len()],
            Self::PerLayerPerHead(layers) => {
                vec![layers.len(), layers.first().map_or(0, Vec::len), self.len()]
            }
        }
    }

    /// All indices, row-major, as the `keep` tensor of a dump holds them.
    #[must_use]
    pub fn to_i32(&self) -> Vec<i32> {
        self.lists().flat_map(|list| list.iter().map(|&row| row.cast_signed())).collect()
    }

    /// The distinct lists, row-major.
    pub(crate) fn lists(&self) -> Box<dyn Iterator<Item = &Vec<u32>> + '_> {
        match self {
            Self::Shared(rows) => Box::new(std::iter::once(rows)),
            Self::PerHead(lists) | Self::PerLayer(lists) => Box::new(lists.iter()),
            Self::PerLayerPerHead(layers) => Box::new(layers.iter().flatten()),
        }
    }
}

/// Seconds that a selection took.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct StageSeconds {
    /// Raw scores.
    pub score: f64,
    /// Normalising and reducing.
    pub reduce: f64,
    /// Ranking.
    pub select: f64,
}

/// Answer of one compaction.
#[derive(Debug, Clone, PartialEq)]
pub struct Selection {
    /// Rows to keep.
    pub keep: KeepSet,
    /// Rows kept outright (prefix and window), KV head 0.
    pub protected: u32,
    /// Rows ranked, KV head 0.
    pub candidates: u32,
    /// R that entered the score; `None` where nothing was scored.
    pub round_start: Option<u32>,
    /// Scores by stage where they were asked for and something was scored.
    pub stages: Option<Stages>,
    /// Time taken.
    pub seconds: StageSeconds,
}

impl Selection {
    /// Every one of `rows` rows stays, without scores.
    pub(crate) fn whole(rows: usize) -> Self {
        let rows = u32::try_from(rows).unwrap_or(u32::MAX);
        Self {
            keep: KeepSet::Shared((0..rows).collect()),
            protected: rows,
            candidates: 0,
            round_start: None,
            stages: None,
            seconds: StageSeconds::default(),
        }
    }
}
