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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache::{CacheShape, KvCache};
    use crate::cuda::gpu::Buffer;
    use crate::weights::Elements;

    const DIMS: Dims = Dims { layers: 3, kv_heads: 2, q_heads: 2, head_dim: 8 };
    const ROWS: usize = 11;
    const CAPACITY: usize = 14;
    const TARGET: usize = 9;

    /// A cache on the host whose elements are all different, and the same K or V as the device holds it.
    fn filled() -> (KvCache, Vec<f32>, Vec<f32>) {
        let shape = CacheShape {
            layers: DIMS.layers,
            kv_heads: DIMS.kv_heads,
            head_dim: DIMS.head_dim,
            dtype: DType::F32,
            capacity: CAPACITY,
        };
        let mut cache = KvCache::new(shape);
        let width = DIMS.kv_heads * DIMS.head_dim;
        for layer in 0..DIMS.layers {
            let k: Vec<f32> =
                (0..ROWS * width).map(|index| (layer * 10_000 + index) as f32 + 0.5).collect();
            let v: Vec<f32> = k.iter().map(|value| -value).collect();
            cache.append(layer, &k, &v);
        }
        cache.commit(100..100 + ROWS as u32);
        let side = |of: &dyn Fn(usize, usize) -> Vec<f32>| {
            let mut all = Vec::new();
            for unit in 0..DIMS.layers * DIMS.kv_heads {
                all.extend(of(unit / DIMS.kv_heads, unit % DIMS.kv_heads));
                all.resize((unit + 1) * CAPACITY * DIMS.head_dim, f32::NAN);
            }
            all
        };
        let k = side(&|layer, head| floats(cache.k(layer, head)));
        let v = side(&|layer, head| floats(cache.v(layer, head)));
        (cache, k, v)
    }

    fn floats(elements: Elements<'_>) -> Vec<f32> {
        match elements {
            Elements::F32(values) => values.to_vec(),
            _ => panic!("an f32 cache"),
        }
    }

    fn keeps() -> Vec<KeepSet> {
        let list = |start: u32| (0..6).map(|row| (row * 3 + start) % 11).collect::<Vec<u32>>();
        vec![
            KeepSet::Shared(vec![0, 1, 2, 5, 7, 10]),
            KeepSet::PerHead(vec![vec![0, 1, 4, 5, 6, 7], list(2)]),
            KeepSet::PerLayer(vec![list(0), list(1), list(5)]),
            KeepSet::PerLayerPerHead(
                (0..3).map(|layer| vec![list(layer), list(layer + 4)]).collect(),
            ),
        ]
    }

    #[test]
    fn a_gather_moves_what_the_hosts_cache_moves_planted_or_not() {
        let gpu = match Gpu::emulated() {
            Ok(gpu) => gpu,
            Err(error) => {
                eprintln!("skipped: {error}");
                return;
            }
        };
        let ops = GatherOps::new(&gpu, DIMS, DType::F32).unwrap();
        let modes = [
            GatherMode::default(),
            GatherMode { value_kept_in_place: true, stale_row: false },
            GatherMode { value_kept_in_place: false, stale_row: true },
        ];
        for keep in keeps() {
            for mode in modes {
                let (mut cache, k, v) = filled();
                let (k, v) = (gpu.upload(&k).unwrap(), gpu.upload(&v).unwrap());
                let size = DIMS.layers * DIMS.kv_heads * TARGET;
                let to: [Buffer<f32>; 2] = [0, 1].map(|_| gpu.zeros(size * DIMS.head_dim).unwrap());
                let rows: Vec<u32> = keep.lists().flatten().copied().collect();
                let rows = gpu.upload(&rows).unwrap();
                let lists =
                    KeepLists { rows: rows.view(), shape: KeepShape::of(&keep), count: keep.len() };
                let from =
                    CacheSide { k: k.view().address(), v: v.view().address(), capacity: CAPACITY };
                let [to_k, to_v] = [0, 1].map(|side| to[side].view().address());
                let target = CacheSide { k: to_k, v: to_v, capacity: TARGET };
                ops.rows(&gpu, from, target, &lists, mode).unwrap();
                let at: Vec<u32> = (0..DIMS.kv_heads)
                    .flat_map(|_| (0..CAPACITY as u32).map(|row| 100 + row))
                    .collect();
                let at = gpu.upload(&at).unwrap();
                let by_layer = keep.layers_differ();
                let heads = if by_layer { 6 } else { 2 };
                let after = gpu.zeros::<u32>(heads * TARGET).unwrap();
                let before = Positions { list: at.view(), by_layer: false, capacity: CAPACITY };
                let moved = Positions { list: after.view(), by_layer, capacity: TARGET };
                ops.positions(&gpu, &before, &moved, &lists).unwrap();
                cache.gather(|layer, head| keep.rows(layer, head), mode).unwrap();
                let [ours_k, ours_v] = to.map(|side| gpu.read(side.view()).unwrap());
                let after = gpu.read(after.view()).unwrap();
                for unit in 0..DIMS.layers * DIMS.kv_heads {
                    let (layer, head) = (unit / DIMS.kv_heads, unit % DIMS.kv_heads);
                    let start = unit * TARGET * DIMS.head_dim;
                    let range = start..start + keep.len() * DIMS.head_dim;
                    assert_eq!(ours_k[range.clone()], floats(cache.k(layer, head)));
                    assert_eq!(ours_v[range], floats(cache.v(layer, head)), "{mode:?}");
                    let start = unit % heads * TARGET;
                    assert_eq!(after[start..start + keep.len()], *cache.positions(layer, head));
                }
            }
        }
        let odd = Dims { head_dim: 1, ..DIMS };
        assert!(GatherOps::new(&gpu, odd, DType::F16).is_err());
    }
}
