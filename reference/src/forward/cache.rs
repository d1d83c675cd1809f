//! The KV cache: per layer and KV head its own rows, gathered by keep-sets.

use candle_core::{Device, Tensor};

use super::KeepSets;
use crate::ReferenceError;

/// K and V of one layer, `[kv_heads, capacity, head_dim]`; K is rotated at its absolute position.
#[derive(Debug, Clone)]
struct LayerRows {
    k: Tensor,
    v: Tensor,
}

/// One layer's live rows as numbers.
#[derive(Debug, Clone, PartialEq)]
pub struct CacheRows {
    /// KV heads.
    pub heads: usize,
    /// Live rows.
    pub rows: usize,
    /// Head width.
    pub head_dim: usize,
    /// K, `[heads, rows, head_dim]`.
    pub k: Vec<f64>,
    /// V, same shape.
    pub v: Vec<f64>,
}

impl CacheRows {
    /// K of one row of one head.
    #[must_use]
    pub fn k_row(&self, head: usize, row: usize) -> &[f64] {
        let start = (head * self.rows + row) * self.head_dim;
        &self.k[start..start + self.head_dim]
    }

    /// V of one row of one head.
    #[must_use]
    pub fn v_row(&self, head: usize, row: usize) -> &[f64] {
        let start = (head * self.rows + row) * self.head_dim;
        &self.v[start..start + self.head_dim]
    }
}

/// Rows of all layers. Every head of every layer holds the same number of rows, though not the same rows.
#[derive(Debug, Clone)]
pub struct Cache {
    layers: Vec<LayerRows>,
    heads: usize,
    head_dim: usize,
    rows: usize,
    capacity: usize,
    /// Absolute positions, per layer and head; one list while all agree.
    positions: Vec<Vec<u32>>,
    sets: (usize, usize),
}

impl Cache {
    pub(super) fn new(
        layers: usize,
        heads: usize,
        head_dim: usize,
        element: candle_core::DType,
    ) -> Result<Self, ReferenceError> {
        let capacity = 64;
        let empty = || Tensor::zeros((heads, capacity, head_dim), element, &Device::Cpu);
        let layers = (0..layers)
            .map(|_| Ok(LayerRows { k: empty()?, v: empty()? }))
            .collect::<Result<_, candle_core::Error>>()?;
        Ok(Self {
            layers,
            heads,
            head_dim,
            rows: 0,
            capacity,
            positions: vec![Vec::new()],
            sets: (1, 1),
        })
    }

    /// Live rows.
    #[must_use]
    pub const fn rows(&self) -> usize {
        self.rows
    }

    /// Layers.
    #[must_use]
    pub fn layers(&self) -> usize {
        self.layers.len()
    }

    /// KV heads.
    #[must_use]
    pub const fn heads(&self) -> usize {
        self.heads
    }

    /// Absolute positions of one head's rows, in order of the rows.
    #[must_use]
    pub fn positions(&self, layer: usize, head: usize) -> &[u32] {
        let (layers, heads) = self.sets;
        let layer = if layers == 1 { 0 } else { layer };
        let head = if heads == 1 { 0 } else { head };
        self.positions.get(layer * heads + head).map_or(&[], Vec::as_slice)
    }

    /// The live rows of one layer, widened to f64 (exact).
    ///
    /// # Errors
    /// A layer that the model does not have.
    pub fn layer(&self, layer: usize) -> Result<CacheRows, ReferenceError> {
        let (k, v) = self.views(layer, self.rows)?;
        let flat = |tensor: Tensor| -> Result<Vec<f64>, candle_core::Error> {
            tensor.contiguous()?.flatten_all()?.to_dtype(candle_core::DType::F64)?.to_vec1()
        };
        let (heads, rows, head_dim) = (self.heads, self.rows, self.head_dim);
        Ok(CacheRows { heads, rows, head_dim, k: flat(k)?, v: flat(v)? })
    }

    /// K and V of one layer up to row `rows`, `[kv_heads, rows, head_dim]`, without a copy.
    pub(super) fn views(
        &self,
        layer: usize,
        rows: usize,
    ) -> Result<(Tensor, Tensor), ReferenceError> {
        let Some(stored) = self.layers.get(layer) else {
            return Err(ReferenceError::input(format!(
                "layer {layer} of a model with {}",
                self.layers.len()
            )));
        };
        Ok((stored.k.narrow(1, 0, rows)?, stored.v.narrow(1, 0, rows)?))
    }

    /// Room for `more` rows; capacity doubles so that appending stays linear.
    pub(super) fn reserve(&mut self, more: usize) -> Result<(), ReferenceError> {
        let needed = self.rows + more;
        if needed <= self.capacity {
            return Ok(());
        }
        let capacity = needed.max(2 * self.capacity);
        for layer in &mut self.layers {
            for tensor in [&mut layer.k, &mut layer.v] {
                let grown = Tensor::zeros(
                    (self.heads, capacity, self.head_dim),
                    tensor.dtype(),
                    &Device::Cpu,
                )?;
                if self.rows > 0 {
                    grown.slice_set(&tensor.narrow(1, 0, self.rows)?.contiguous()?, 1, 0)?;
                }
                *tensor = grown;
            }
        }
        self.capacity = capacity;
        Ok(())
    }

    /// Writes new rows of one layer behind the live ones; they count once [`Cache::advance`] is called.
    /// `k` and `v` are `[kv_heads, new_rows, head_dim]`.
    pub(super) fn write(&self, layer: usize, k: &Tensor, v: &Tensor) -> Result<(), ReferenceError> {
        let Some(stored) = self.layers.get(layer) else {
            return Err(ReferenceError::input(format!("no layer {layer} in the cache")));
        };
        stored.k.slice_set(k, 1, self.rows)?;
        stored.v.slice_set(v, 1, self.rows)?;
        Ok(())
    }

    /// Makes the rows written at these positions live.
    pub(super) fn advance(&mut self, positions: &[u32]) {
        self.rows += positions.len();
        for list in &mut self.positions {
            list.extend_from_slice(positions);
        }
    }

    /// Keeps the rows of each set and forgets the others: `after[h][i] = before[h][keep[h][i]]`, K, V and positions.
    ///
    /// # Errors
    /// Sets that do not fit (see [`KeepSets::check`]); the cache is then unchanged.
    pub fn gather(&mut self, keep: &KeepSets) -> Result<(), ReferenceError> {
        keep.check(self.layers.len(), self.heads, self.rows)?;
        let mut layers = Vec::with_capacity(self.layers.len());
        for (index, stored) in self.layers.iter().enumerate() {
            layers.push(LayerRows {
                k: self.gathered(&stored.k, index, keep)?,
                v: self.gathered(&stored.v, index, keep)?,
            });
        }
        let sets = (self.sets.0.max(keep.layers()), self.sets.1.max(keep.heads()));
        let mut positions = Vec::with_capacity(sets.0 * sets.1);
        for layer in 0..sets.0 {
            for head in 0..sets.1 {
                let before = self.positions(layer, head);
                positions
                    .push(keep.of(layer, head).iter().map(|row| before[*row as usize]).collect());
            }
        }
        self.layers = layers;
        self.positions = positions;
        self.sets = sets;
        self.rows = keep.rows();
        Ok(())
    }

    fn gathered(
        &self,
        tensor: &Tensor,
        layer: usize,
        keep: &KeepSets,
    ) -> Result<Tensor, ReferenceError> {
        let out = Tensor::zeros(tensor.shape(), tensor.dtype(), &Device::Cpu)?;
        for head in 0..self.heads {
            let set = keep.of(layer, head);
            let index = Tensor::from_vec(set.to_vec(), set.len(), &Device::Cpu)?;
            let rows = tensor.narrow(0, head, 1)?.contiguous()?.index_select(&index, 1)?;
            let target = out.narrow(0, head, 1)?;
            // `slice_set` writes through the view into `out`.
            target.slice_set(&rows.contiguous()?, 1, 0)?;
        }
        Ok(out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(heads: usize, values: &[f32]) -> Tensor {
        Tensor::from_vec(values.to_vec(), (heads, values.len() / heads / 2, 2), &Device::Cpu)
            .unwrap()
    }

    fn filled() -> Cache {
        let mut cache = Cache::new(2, 2, 2, candle_core::DType::F32).unwrap();
        let k = rows(2, &[0.0, 0.5, 1.0, 1.5, 2.0, 2.5, 10.0, 10.5, 11.0, 11.5, 12.0, 12.5]);
        let v = (&k * -1.0).unwrap();
        cache.reserve(3).unwrap();
        for layer in 0..2 {
            cache.write(layer, &k, &v).unwrap();
        }
        cache.advance(&[0, 1, 2]);
        cache
    }

    #[test]
    fn each_head_keeps_its_own_rows_in_the_order_given() {
        let mut cache = filled();
        cache.gather(&KeepSets::new(1, 2, 2, vec![2, 0, 0, 1]).unwrap()).unwrap();
        let layer = cache.layer(1).unwrap();
        assert_eq!(layer.k, [2.0, 2.5, 0.0, 0.5, 10.0, 10.5, 11.0, 11.5]);
        assert_eq!(layer.v_row(0, 0), [-2.0, -2.5]);
        assert_eq!((cache.positions(1, 0), cache.positions(1, 1)), (&[2, 0][..], &[0, 1][..]));
        assert_eq!(cache.rows(), 2);
    }

    #[test]
    fn rows_appended_after_a_gather_stand_behind_the_kept_ones() {
        let mut cache = filled();
        cache.gather(&KeepSets::new(1, 1, 1, vec![1]).unwrap()).unwrap();
        cache.reserve(100).unwrap();
        cache.write(0, &rows(2, &[7.0, 7.5, 8.0, 8.5]), &rows(2, &[7.0, 7.5, 8.0, 8.5])).unwrap();
        cache.advance(&[3]);
        let layer = cache.layer(0).unwrap();
        assert_eq!(layer.k, [1.0, 1.5, 7.0, 7.5, 11.0, 11.5, 8.0, 8.5]);
        assert_eq!(cache.positions(0, 1), [1, 3]);
    }

    #[test]
    fn sets_per_layer_split_the_positions() {
        let mut cache = filled();
        cache.gather(&KeepSets::new(2, 1, 1, vec![0, 2]).unwrap()).unwrap();
        assert_eq!((cache.positions(0, 1), cache.positions(1, 1)), (&[0][..], &[2][..]));
    }

    #[test]
    fn a_set_that_does_not_fit_leaves_the_cache_as_it_was() {
        let mut cache = filled();
        let before = cache.layer(0).unwrap();
        assert!(cache.gather(&KeepSets::new(1, 1, 1, vec![3]).unwrap()).is_err());
        assert_eq!(cache.layer(0).unwrap(), before);
    }
}
