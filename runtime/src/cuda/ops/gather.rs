//! K, V and positions by keep-set, from one buffer to another.

use lockstep_traces::DType;

use crate::cache::GatherMode;
use crate::cuda::gpu::{
    Arg, Build, Gpu, GpuError, Kernel, KernelFile, Program, View, blocks, grid,
};
use crate::select::{Dims, KeepSet};

/// Cache slots that one block of `gather_rows` fills.
const SLOTS: usize = 64;
/// Threads of a block.
const THREADS: u32 = 256;

/// Which list of a keep-set a layer and KV head follow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeepShape {
    /// `[k]`.
    Shared,
    /// `[kv_heads][k]`.
    PerHead,
    /// `[layers][k]`.
    PerLayer,
    /// `[layers][kv_heads][k]`.
    PerLayerPerHead,
}

impl KeepShape {
    /// That of a keep-set.
    #[must_use]
    pub const fn of(keep: &KeepSet) -> Self {
        match keep {
            KeepSet::Shared(_) => Self::Shared,
            KeepSet::PerHead(_) => Self::PerHead,
            KeepSet::PerLayer(_) => Self::PerLayer,
            KeepSet::PerLayerPerHead(_) => Self::PerLayerPerHead,
        }
    }

    /// Lists of a model of these sizes.
    #[must_use]
    pub const fn lists(self, dims: Dims) -> usize {
        match self {
            Self::Shared => 1,
            Self::PerHead => dims.kv_heads,
            Self::PerLayer => dims.layers,
            Self::PerLayerPerHead => dims.layers * dims.kv_heads,
        }
    }

    /// Do layers keep different rows, so that positions are held by layer afterwards?
    #[must_use]
    pub const fn layers_differ(self) -> bool {
        matches!(self, Self::PerLayer | Self::PerLayerPerHead)
    }

    /// Lists from one layer to the next, and from one head to the next.
    const fn steps(self, dims: Dims) -> (usize, usize) {
        match self {
            Self::Shared => (0, 0),
            Self::PerHead => (0, 1),
            Self::PerLayer => (1, 0),
            Self::PerLayerPerHead => (dims.kv_heads, 1),
        }
    }

    /// The keep-set that lists in this shape, one after the other, make up.
    pub(super) fn keep_set(self, dims: Dims, lists: Vec<Vec<u32>>) -> KeepSet {
        match self {
            Self::Shared => KeepSet::Shared(lists.into_iter().next().unwrap_or_default()),
            Self::PerHead => KeepSet::PerHead(lists),
            Self::PerLayer => KeepSet::PerLayer(lists),
            Self::PerLayerPerHead => KeepSet::PerLayerPerHead(
                lists.chunks(dims.kv_heads.max(1)).map(<[Vec<u32>]>::to_vec).collect(),
            ),
        }
    }
}

/// A keep-set in device memory: `count` rows a list.
#[derive(Debug, Clone, Copy)]
pub struct KeepLists {
    /// `[lists][count]`.
    pub rows: View<u32>,
    /// Which list is whose.
    pub shape: KeepShape,
    /// Rows kept.
    pub count: usize,
}

impl KeepLists {
    fn check(&self, dims: Dims) -> Result<Arg, GpuError> {
        if self.count == 0 {
            return Err(GpuError::unsupported("a keep-set of no row; keep at least one"));
        }
        self.rows.arg(self.shape.lists(dims) * self.count)
    }
}

/// One side of a gather: K and V, each `[layers][kv_heads][capacity][head_dim]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CacheSide {
    /// Address of K.
    pub k: u64,
    /// Address of V.
    pub v: u64,
    /// Rows from one head to the next.
    pub capacity: usize,
}

/// One side's positions.
#[derive(Debug, Clone, Copy)]
pub struct Positions {
    /// `[kv_heads][capacity]`, or `[layers][kv_heads][capacity]`.
    pub list: View<u32>,
    /// The latter?
    pub by_layer: bool,
    /// Rows from one head to the next.
    pub capacity: usize,
}

impl Positions {
    const fn heads(&self, dims: Dims) -> usize {
        if self.by_layer { dims.layers * dims.kv_heads } else { dims.kv_heads }
    }
}

/// The kernels of `gather.cu`.
#[derive(Debug)]
pub struct GatherOps {
    rows: Kernel,
    positions: Kernel,
    dims: Dims,
    row_bytes: usize,
}

impl GatherOps {
    /// For a model of these sizes and a cache of `dtype`.
    ///
    /// # Errors
    /// [`GpuError::Unsupported`] for a row that is no multiple of 4 bytes; compile errors.
    pub fn new(gpu: &Gpu, dims: Dims, dtype: DType) -> Result<Self, GpuError> {
        let row_bytes = dims.head_dim * dtype.size();
        if row_bytes == 0 || !row_bytes.is_multiple_of(4) {
            return Err(GpuError::unsupported(format!(
                "cache rows of {row_bytes} bytes; whole 4-byte words are moved"
            )));
        }
        let program = Program { file: KernelFile::GATHER, build: Build::of(DType::F32) };
        Ok(Self {
            rows: gpu.kernel(program, "gather_rows")?,
            positions: gpu.kernel(program, "gather_positions")?,
            dims,
            row_bytes,
        })
    }

    /// Row `i` of each head of `to` becomes row `keep[i]` of the same head of `from`; the sides may not overlap. Rows of `keep` must be
    /// live ones: no one looks.
    ///
    /// # Errors
    /// [`GpuError::Range`] and [`GpuError::Unsupported`] where sizes do not fit; driver errors.
    pub fn rows(
        &self,
        gpu: &Gpu,
        from: CacheSide,
        to: CacheSide,
        keep: &KeepLists,
        mode: GatherMode,
    ) -> Result<(), GpuError> {
        let lists = keep.check(self.dims)?;
        check_room(keep.count, from.capacity, to.capacity)?;
        let bytes = self.dims.layers * self.dims.kv_heads * self.row_bytes;
        for (a, b) in [(from.k, to.k), (from.v, to.v), (from.k, to.v), (from.v, to.k)] {
            if a < b + (bytes * to.capacity) as u64 && b < a + (bytes * from.capacity) as u64 {
                return Err(GpuError::unsupported(
                    "a gather within one buffer; give another one to gather into",
                ));
            }
        }
        if [from.k, from.v, to.k, to.v].iter().any(|address| !address.is_multiple_of(16)) {
            return Err(GpuError::unsupported("a cache that does not begin at 16 whole bytes"));
        }
        // The two planted mistakes exclude each other in practice; the first one named wins.
        let planted = match (mode.value_kept_in_place, mode.stale_row) {
            (true, true) => {
                return Err(GpuError::unsupported("two planted gathers at once; plant one"));
            }
            (true, false) => 1,
            (false, true) => 2,
            (false, false) => 0_u32,
        };
        let (layer_step, head_step) = keep.shape.steps(self.dims);
        let arguments = [
            Arg::long(from.k),
            Arg::long(from.v),
            Arg::long(to.k),
            Arg::long(to.v),
            lists,
            Arg::count(keep.count)?,
            Arg::count(self.dims.kv_heads)?,
            Arg::count(layer_step)?,
            Arg::count(head_step)?,
            Arg::count(from.capacity)?,
            Arg::count(to.capacity)?,
            Arg::count(self.row_bytes)?,
            Arg::from(planted),
        ];
        let heads = blocks(self.dims.layers * self.dims.kv_heads, 1)?;
        gpu.launch(&self.rows, grid([blocks(keep.count, SLOTS)?, heads, 1], THREADS), &arguments)
    }

    /// Positions follow their rows. `to` is held by layer where `from` is or where layers keep different rows.
    ///
    /// # Errors
    /// As [`GatherOps::rows`].
    pub fn positions(
        &self,
        gpu: &Gpu,
        from: &Positions,
        to: &Positions,
        keep: &KeepLists,
    ) -> Result<(), GpuError> {
        let lists = keep.check(self.dims)?;
        check_room(keep.count, from.capacity, to.capacity)?;
        let by_layer = from.by_layer || keep.shape.layers_differ();
        if to.by_layer != by_layer {
            return Err(GpuError::unsupported(format!(
                "positions held by layer: {}; after this keep-set: {by_layer}",
                to.by_layer
            )));
        }
        let (from_heads, to_heads) = (from.heads(self.dims), to.heads(self.dims));
        let (layer_step, head_step) = keep.shape.steps(self.dims);
        let arguments = [
            from.list.arg(from_heads * from.capacity)?,
            to.list.arg(to_heads * to.capacity)?,
            lists,
            Arg::count(keep.count)?,
            Arg::count(self.dims.kv_heads)?,
            Arg::count(layer_step)?,
            Arg::count(head_step)?,
            Arg::count(from_heads)?,
            Arg::count(from.capacity)?,
            Arg::count(to.capacity)?,
        ];
        let shape = grid([blocks(keep.count, THREADS as usize)?, blocks(to_heads, 1)?, 1], THREADS);
        gpu.launch(&self.positions, shape, &arguments)
    }
}

fn check_room(count: usize, from: usize, to: usize) -> Result<(), GpuError> {
    if count > to || count > from {
        return Err(GpuError::unsupported(format!(
            "{count} rows kept; the buffers hold {from} and {to} rows a head"
        )));
    }
    Ok(())
}
