//! The KV cache of one sequence on the device: `[layers][kv_heads][capacity][head_dim]`, K and V, and the rows' positions.

use lockstep_traces::DType;

use crate::cuda::Slot;
use crate::cuda::gpu::{Buffer, Gpu, GpuError, View};
use crate::cuda::ops::select::DeviceNoise;

/// Sizes of a cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeviceCacheShape {
    /// Layers.
    pub layers: usize,
    /// KV heads of a layer.
    pub kv_heads: usize,
    /// Width of a head.
    pub head_dim: usize,
    /// Element type.
    pub dtype: DType,
}

impl DeviceCacheShape {
    const fn heads(&self) -> usize {
        self.layers * self.kv_heads
    }

    /// Bytes of K (or V) of one row over all layers and heads.
    #[must_use]
    pub const fn row_bytes(&self) -> usize {
        self.heads() * self.head_dim * self.dtype.size()
    }
}

/// K, V and positions of one allocation.
#[derive(Debug)]
pub(crate) struct Store {
    pub(crate) k: Buffer<u8>,
    pub(crate) v: Buffer<u8>,
    /// `[kv_heads][capacity]`, or `[layers][kv_heads][capacity]`.
    pub(crate) positions: Buffer<u32>,
    pub(crate) capacity: usize,
}

impl Store {
    fn new(gpu: &Gpu, shape: &DeviceCacheShape, capacity: usize) -> Result<Self, GpuError> {
        let bytes = shape.row_bytes() * capacity;
        Ok(Self {
            k: gpu.alloc(bytes)?,
            v: gpu.alloc(bytes)?,
            positions: gpu.alloc(shape.heads() * capacity)?,
            capacity,
        })
    }
}

/// One sequence's cache. A compaction gathers from one store into a second one, so that the rows before it stay as they were until the next.
#[derive(Debug)]
pub struct DeviceCache {
    shape: DeviceCacheShape,
    live: Store,
    spare: Option<Store>,
    rows: usize,
    by_layer: bool,
    /// Noise of rule set `hf`, once it lies on the device.
    pub(crate) noise: Option<DeviceNoise>,
}

impl DeviceCache {
    /// An empty cache with room for `capacity` rows; it grows where more are appended.
    ///
    /// # Errors
    /// [`GpuError::Memory`].
    pub fn new(gpu: &Gpu, shape: DeviceCacheShape, capacity: usize) -> Result<Self, GpuError> {
        let live = Store::new(gpu, &shape, capacity.max(1))?;
        Ok(Self { shape, live, spare: None, rows: 0, by_layer: false, noise: None })
    }

    /// Sizes.
    #[must_use]
    pub const fn shape(&self) -> &DeviceCacheShape {
        &self.shape
    }

    /// Live rows.
    #[must_use]
    pub const fn rows(&self) -> usize {
        self.rows
    }

    /// Bytes of the live rows, K and V.
    #[must_use]
    pub const fn live_bytes(&self) -> usize {
        2 * self.rows * self.shape.row_bytes()
    }

    /// May layers hold different rows?
    #[must_use]
    pub const fn by_layer(&self) -> bool {
        self.by_layer
    }

    /// Where the rows lie.
    pub(crate) const fn store(&self) -> &Store {
        &self.live
    }

    /// Makes room for `more` rows: where the store is too small, everything moves into one twice as large.
    ///
    /// # Errors
    /// [`GpuError::Memory`].
    pub fn reserve(&mut self, gpu: &Gpu, more: usize) -> Result<(), GpuError> {
        let wanted = self.rows + more;
        if wanted <= self.live.capacity {
            return Ok(());
        }
        let wider = Store::new(gpu, &self.shape, wanted.max(2 * self.live.capacity))?;
        let row = self.shape.head_dim * self.shape.dtype.size();
        for head in 0..self.shape.heads() {
            let (from, to) = (head * self.live.capacity, head * wider.capacity);
            for (old, new) in [(&self.live.k, &wider.k), (&self.live.v, &wider.v)] {
                let source = old.part(from * row..(from + self.rows) * row)?;
                gpu.copy(source, new.part(to * row..(to + self.rows) * row)?)?;
            }
            if head < self.position_lists() {
                let source = self.live.positions.part(from..from + self.rows)?;
                gpu.copy(source, wider.positions.part(to..to + self.rows)?)?;
            }
        }
        gpu.synchronize()?;
        self.live = wider;
        self.spare = None;
        Ok(())
    }

    const fn position_lists(&self) -> usize {
        if self.by_layer { self.shape.heads() } else { self.shape.kv_heads }
    }

    /// Counts `count` rows as appended.
    pub(crate) fn commit(&mut self, count: usize) {
        self.rows += count;
    }

    /// Writes the positions of rows that a prompt chunk appends, before they are counted.
    pub(crate) fn write_positions(&self, gpu: &Gpu, positions: &[u32]) -> Result<(), GpuError> {
        for list in 0..self.position_lists() {
            let at = list * self.live.capacity + self.rows;
            gpu.write(self.live.positions.part(at..at + positions.len())?, positions)?;
        }
        Ok(())
    }

    /// This sequence as a row of a decode batch.
    pub(crate) fn slot(&self, token: u32, position: u32, rope_index: u32) -> Slot {
        let narrow = |value: usize| u32::try_from(value).unwrap_or(u32::MAX);
        Slot {
            k_base: self.live.k.view().address(),
            v_base: self.live.v.view().address(),
            positions: self.live.positions.view().address(),
            rows: narrow(self.rows),
            capacity: narrow(self.live.capacity),
            position,
            rope_index,
            token,
            active: 1,
            position_layers: if self.by_layer { narrow(self.shape.layers) } else { 1 },
            unused: 0,
        }
    }

    /// The second store, as large as the first.
    pub(crate) fn spare(&mut self, gpu: &Gpu) -> Result<&Store, GpuError> {
        if self.spare.as_ref().is_none_or(|spare| spare.capacity < self.live.capacity) {
            self.spare = None;
            self.spare = Some(Store::new(gpu, &self.shape, self.live.capacity)?);
        }
        self.spare.as_ref().ok_or_else(|| GpuError::unsupported("a cache without a second store"))
    }

    /// The second store becomes the live one, with `rows` rows.
    pub(crate) fn swap(&mut self, rows: usize, by_layer: bool) {
        if let Some(spare) = self.spare.take() {
            self.spare = Some(std::mem::replace(&mut self.live, spare));
        }
        self.rows = rows;
        self.by_layer = by_layer;
    }

    /// As [`DeviceCache::swap`], for rows that are written by the host afterwards.
    pub(crate) fn swap_from_host(
        &mut self,
        gpu: &Gpu,
        rows: usize,
        by_layer: bool,
    ) -> Result<(), GpuError> {
        gpu.join_beside()?;
        self.spare(gpu)?;
        self.swap(rows, by_layer);
        Ok(())
    }

    /// Positions of one layer's head, live rows.
    pub(crate) fn position_list(&self, layer: usize, head: usize) -> Result<View<u32>, GpuError> {
        let list = if self.by_layer { layer * self.shape.kv_heads + head } else { head };
        let at = list * self.live.capacity;
        self.live.positions.part(at..at + self.rows)
    }

    /// Positions of every list, `[lists][rows]`, read back.
    pub(crate) fn positions(&self, gpu: &Gpu) -> Result<Vec<Vec<u32>>, GpuError> {
        let kv_heads = self.shape.kv_heads;
        (0..self.position_lists())
            .map(|list| gpu.read(self.position_list(list / kv_heads, list % kv_heads)?))
            .collect()
    }

    /// K or V of one layer and head, `[rows][head_dim]`, as bytes.
    pub(crate) fn head(
        &self,
        value: bool,
        layer: usize,
        head: usize,
    ) -> Result<View<u8>, GpuError> {
        let row = self.shape.head_dim * self.shape.dtype.size();
        let at = (layer * self.shape.kv_heads + head) * self.live.capacity * row;
        let buffer = if value { &self.live.v } else { &self.live.k };
        buffer.part(at..at + self.rows * row)
    }
}
