//! Keep-sets of one compaction, whatever their shape.

use lockstep_traces::TraceError;
use lockstep_traces::store::{DumpFile, TensorView};

/// Which dimensions a keep tensor has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Layout {
    /// `[k]`.
    Shared,
    /// `[kv_heads, k]`.
    PerHead,
    /// `[layers, k]`.
    PerLayer,
    /// `[layers, kv_heads, k]`.
    PerLayerHead,
}

/// Rows kept, in the order of the rows after.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct KeepSets {
    values: Vec<u32>,
    pub(crate) layout: Layout,
    pub(crate) k: usize,
    layers: usize,
    heads: usize,
}

impl KeepSets {
    /// Reads `keep` of a dump, or `None` where it has none. `kv_heads` is needed to tell `[kv_heads, k]` from
    /// `[layers, k]`; where both fit, the `mode` of the dump decides, and without one it is `[kv_heads, k]`.
    ///
    /// # Errors
    /// [`TraceError::Tensor`] for another rank, a negative index, or sizes that fit neither.
    pub(crate) fn read(
        dump: &DumpFile,
        kv_heads: Option<usize>,
    ) -> Result<Option<Self>, TraceError> {
        if !dump.has("keep") {
            return Ok(None);
        }
        let view = dump.get("keep")?;
        let per_layer = dump.metadata().get("mode").is_some_and(|mode| mode == "per_layer");
        let (layout, k, layers, heads) = match *view.shape.as_slice() {
            [k] => (Layout::Shared, k, 1, 1),
            [layers, heads, k] => (Layout::PerLayerHead, k, layers, heads),
            [rows, k] if per_layer || kv_heads.is_some_and(|heads| heads != rows) => {
                (Layout::PerLayer, k, rows, 1)
            }
            [heads, k] => (Layout::PerHead, k, 1, heads),
            _ => return Err(view.error("has a shape that no keep-set has")),
        };
        if layout == Layout::PerLayerHead && kv_heads.is_some_and(|expected| expected != heads) {
            return Err(view.error(format!("is for {heads} KV heads, the cache has {kv_heads:?}")));
        }
        Ok(Some(Self { values: indices(&view)?, layout, k, layers, heads }))
    }

    /// Rows kept in this layer and KV head; `None` where the tensor does not cover it.
    pub(crate) fn of(&self, layer: usize, head: usize) -> Option<&[u32]> {
        let at = match self.layout {
            Layout::Shared => 0,
            Layout::PerHead => (head < self.heads).then_some(head)?,
            Layout::PerLayer => (layer < self.layers).then_some(layer)?,
            Layout::PerLayerHead => {
                (layer < self.layers && head < self.heads).then_some(layer * self.heads + head)?
            }
        };
        self.values.get(at * self.k..(at + 1) * self.k)
    }

    /// Layers and heads in which sets may differ: 1 where they are shared.
    pub(crate) const fn units(&self) -> (usize, usize) {
        (self.layers, self.heads)
    }
}

fn indices(view: &TensorView<'_>) -> Result<Vec<u32>, TraceError> {
    let values = view.to_i32()?;
    let converted: Result<Vec<u32>, _> = values.into_iter().map(u32::try_from).collect();
    converted.map_err(|_| view.error("holds a negative row index"))
}

/// Rows of `positions.pre` or `positions.post`: `[kv_heads, rows]` or `[layers, kv_heads, rows]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Positions {
    values: Vec<u32>,
    layers: usize,
    pub(crate) heads: usize,
    pub(crate) rows: usize,
}

impl Positions {
    /// Reads the tensor, or `None` where the dump has none.
    ///
    /// # Errors
    /// [`TraceError::Tensor`] for another rank or a negative position.
    pub(crate) fn read(dump: &DumpFile, name: &str) -> Result<Option<Self>, TraceError> {
        if !dump.has(name) {
            return Ok(None);
        }
        let view = dump.get(name)?;
        let (layers, heads, rows) = match *view.shape.as_slice() {
            [heads, rows] => (1, heads, rows),
            [layers, heads, rows] => (layers, heads, rows),
            _ => return Err(view.error("has a shape that no position table has")),
        };
        Ok(Some(Self { values: indices(&view)?, layers, heads, rows }))
    }

    /// Positions of this layer and KV head; a table without layers holds for every layer.
    pub(crate) fn of(&self, layer: usize, head: usize) -> Option<&[u32]> {
        let layer = if self.layers == 1 { 0 } else { layer };
        if layer >= self.layers || head >= self.heads {
            return None;
        }
        let at = layer * self.heads + head;
        self.values.get(at * self.rows..(at + 1) * self.rows)
    }

    /// Layers in the table: 1 where it holds for all.
    pub(crate) const fn layers(&self) -> usize {
        self.layers
    }
}
