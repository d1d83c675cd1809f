//! Rows and positions by keep-set, bit by bit.

use lockstep_traces::DType;

use super::select_score::Random;
use super::{Case, Cell, Contract, Entry, Guarded, Output, Tolerance};
use crate::cache::GatherMode;
use crate::cuda::gpu::{Buffer, Gpu, GpuError, KernelFile, View};
use crate::cuda::ops::gather::{CacheSide, GatherOps, KeepLists, KeepShape, Positions};
use crate::select::Dims;

pub(super) const ENTRIES: &[Entry] = &[
    Entry {
        name: "gather_rows",
        file: KernelFile::GATHER,
        sources: SOURCES,
        sizes: SIZES,
        contract: Contract {
            shapes: "K, V [layers][kv_heads][capacity][head_dim] of the cache dtype on either side; keep [lists][count] u32",
            raises: &[
                "sides that overlap or do not begin at 16 whole bytes",
                "more rows than either side holds; no row",
                "a keep view that is too short",
            ],
            silent: &[
                "a row of the keep-set beyond the capacity",
                "addresses that are not the cache's",
            ],
            rounding: "none",
        },
        reference: "out[layer][head][i] = in[layer][head][keep[list][i]]",
        tolerance: |_| EXACT,
        cells: CELLS,
        open: |gpu, cell| Ok(Box::new(Rows::new(gpu, cell)?)),
    },
    Entry {
        name: "gather_positions",
        file: KernelFile::GATHER,
        sources: SOURCES,
        sizes: SIZES,
        contract: Contract {
            shapes: "positions [kv_heads][capacity] or [layers][kv_heads][capacity] u32 on either side; keep [lists][count] u32",
            raises: &[
                "a target that is by layer where it need not be, or is not where it must",
                "more rows than either side holds; no row",
                "views that are too short",
            ],
            silent: &["a row of the keep-set beyond the capacity"],
            rounding: "none",
        },
        reference: "out[unit][i] = in[unit][keep[list][i]]",
        tolerance: |_| EXACT,
        cells: CELLS,
        open: |gpu, cell| Ok(Box::new(At::new(gpu, cell)?)),
    },
];

const EXACT: Tolerance =
    Tolerance { bound: 0.0, why: "bytes are moved; counted are words that differ" };
const SOURCES: &[(&str, &str)] = &[
    ("src/cuda/ops/gather.rs", include_str!("../ops/gather.rs")),
    ("src/cuda/catalog/gather.rs", include_str!("gather.rs")),
];
/// `shape`: 0 shared, 1 by head, 2 by layer, 3 by both; `by_layer`: positions before are held by layer.
const SIZES: &[&str] =
    &["layers", "kv_heads", "head_dim", "capacity", "count", "shape", "by_layer"];
const CELLS: &[Cell] = &[
    cell(DType::Bf16, &[3, 2, 128, 90, 65, 1, 0]),
    cell(DType::F32, &[2, 3, 64, 70, 64, 3, 0]),
    cell(DType::F16, &[2, 2, 32, 40, 1, 2, 1]),
    cell(DType::Bf16, &[1, 2, 10, 33, 33, 0, 0]),
    cell(DType::F16, &[2, 2, 2, 300, 257, 1, 1]),
];

const fn cell(cache: DType, sizes: &'static [usize]) -> Cell {
    Cell { elem: cache, cache, sizes }
}

/// What both cases share: sizes and a keep-set without repeated rows.
struct Keep {
    dims: Dims,
    capacity: usize,
    count: usize,
    shape: KeepShape,
    by_layer: bool,
    lists: Vec<Vec<u32>>,
    device: Buffer<u32>,
    /// The same, each list one row on: a mistake.
    shifted: Buffer<u32>,
}

impl Keep {
    fn new(gpu: &Gpu, cell: &Cell) -> Result<Self, GpuError> {
        let &[layers, kv_heads, head_dim, capacity, count, shape, by_layer] = cell.sizes else {
            return Err(GpuError::unsupported("a gather cell of other sizes than seven"));
        };
        let shape = [
            KeepShape::Shared,
            KeepShape::PerHead,
            KeepShape::PerLayer,
            KeepShape::PerLayerPerHead,
        ][shape.min(3)];
        let dims = Dims { layers, kv_heads, q_heads: kv_heads, head_dim };
        let words = shape.lists(dims) * count;
        let (device, shifted) = (gpu.alloc(words)?, gpu.alloc(words)?);
        let by_layer = by_layer == 1;
        Ok(Self { dims, capacity, count, shape, by_layer, lists: Vec::new(), device, shifted })
    }

    fn fill(&mut self, gpu: &Gpu, random: &mut Random) -> Result<(), GpuError> {
        self.lists = (0..self.shape.lists(self.dims))
            .map(|_| {
                let mut rows: Vec<u32> = (0..self.capacity as u32).collect();
                for end in (1..rows.len()).rev() {
                    rows.swap(end, random.below(end + 1));
                }
                rows.truncate(self.count);
                rows
            })
            .collect();
        gpu.write(self.device.view(), &self.lists.concat())?;
        let capacity = self.capacity as u32;
        let on: Vec<u32> = self.lists.iter().flatten().map(|row| (row + 1) % capacity).collect();
        gpu.write(self.shifted.view(), &on)
    }

    const fn keep(&self, rows: View<u32>) -> KeepLists {
        KeepLists { rows, shape: self.shape, count: self.count }
    }

    fn row(&self, unit: usize, slot: usize) -> usize {
        let (layer, head) = (unit / self.dims.kv_heads, unit % self.dims.kv_heads);
        let list = match self.shape {
            KeepShape::Shared => 0,
            KeepShape::PerHead => head,
            KeepShape::PerLayer => layer,
            KeepShape::PerLayerPerHead => unit,
        };
        self.lists[list][slot] as usize
    }

    const fn units(&self) -> usize {
        self.dims.layers * self.dims.kv_heads
    }
}

struct Rows {
    ops: GatherOps,
    keep: Keep,
    /// 16-bit words of a row.
    width: usize,
    k: Vec<u16>,
    v: Vec<u16>,
    from: [Buffer<u16>; 2],
    to: [Guarded<u8>; 2],
}

impl Rows {
    fn new(gpu: &Gpu, cell: &Cell) -> Result<Self, GpuError> {
        let keep = Keep::new(gpu, cell)?;
        let width = keep.dims.head_dim * cell.cache.size() / 2;
        let size = keep.units() * keep.capacity * width;
        let out = keep.units() * keep.count * width * 2;
        Ok(Self {
            ops: GatherOps::new(gpu, keep.dims, cell.cache)?,
            from: [gpu.alloc(size)?, gpu.alloc(size)?],
            to: [Guarded::new(gpu, out)?, Guarded::new(gpu, out)?],
            k: Vec::new(),
            v: Vec::new(),
            keep,
            width,
        })
    }

    fn sides(&self) -> (CacheSide, CacheSide) {
        let [k, v] = [0, 1].map(|side| self.from[side].view().address());
        let from = CacheSide { k, v, capacity: self.keep.capacity };
        let [k, v] = [0, 1].map(|side| self.to[side].view().address());
        (from, CacheSide { k, v, capacity: self.keep.count })
    }

    fn call(&self, gpu: &Gpu, rows: View<u32>) -> Result<(), GpuError> {
        let (from, to) = self.sides();
        self.ops.rows(gpu, from, to, &self.keep.keep(rows), GatherMode::default())
    }

    fn write(&self, gpu: &Gpu) -> Result<(), GpuError> {
        gpu.write(self.from[0].view(), &self.k)?;
        gpu.write(self.from[1].view(), &self.v)
    }
}

impl Case for Rows {
    fn fill(&mut self, gpu: &Gpu, seed: u64) -> Result<(), GpuError> {
        let mut random = Random(seed);
        self.keep.fill(gpu, &mut random)?;
        let size = self.from[0].len();
        self.k = (0..size).map(|_| random.word() as u16).collect();
        self.v = (0..size).map(|_| random.word() as u16).collect();
        self.write(gpu)
    }

    fn run(&self, gpu: &Gpu) -> Result<(), GpuError> {
        self.call(gpu, self.keep.device.view())
    }

    fn run_wrong(&self, gpu: &Gpu) -> Result<(), GpuError> {
        self.call(gpu, self.keep.shifted.view())
    }

    fn outputs(&self) -> Vec<Output<'_>> {
        let [k, v] = &self.to;
        vec![Output { name: "k", bytes: k }, Output { name: "v", bytes: v }]
    }

    fn error(&self, gpu: &Gpu) -> Result<f64, GpuError> {
        let mut wrong = 0.0;
        for (from, to) in [&self.k, &self.v].into_iter().zip(&self.to) {
            let found = gpu.read(to.cast::<u16>()?)?;
            for (index, row) in found.chunks(self.width).enumerate() {
                let (unit, slot) = (index / self.keep.count, index % self.keep.count);
                let start = (unit * self.keep.capacity + self.keep.row(unit, slot)) * self.width;
                let wanted = &from[start..start + self.width];
                wrong += row.iter().zip(wanted).filter(|(a, b)| a != b).count() as f64;
            }
        }
        Ok(wrong)
    }

    fn disturb(&mut self, gpu: &Gpu) -> Result<Option<Vec<Vec<std::ops::Range<usize>>>>, GpuError> {
        if self.keep.units() == 1 {
            return Ok(None);
        }
        let head = self.keep.capacity * self.width;
        self.k[..head].iter_mut().chain(&mut self.v[..head]).for_each(|word| *word ^= 1);
        self.write(gpu)?;
        let bytes = self.keep.count * self.width * 2;
        let rest: Vec<_> = std::iter::once(bytes..self.keep.units() * bytes).collect();
        Ok(Some(vec![rest.clone(), rest]))
    }

    fn misuse(&self, gpu: &Gpu) -> Vec<(&'static str, Result<(), GpuError>)> {
        let (from, to) = self.sides();
        let good = self.keep.keep(self.keep.device.view());
        let short = KeepLists { rows: good.rows.part(0..1).unwrap_or(good.rows), ..good };
        let many = KeepLists { count: good.count + 1, ..good };
        let none = KeepLists { count: 0, ..good };
        let call = |from, to, keep: &KeepLists, mode| self.ops.rows(gpu, from, to, keep, mode);
        let plain = GatherMode::default();
        let both = GatherMode { value_kept_in_place: true, stale_row: true };
        let mut calls = vec![
            ("onto itself", call(from, from, &good, plain)),
            ("into its own rows", call(from, CacheSide { k: from.k + 16, ..to }, &good, plain)),
            ("off a boundary", call(from, CacheSide { v: to.v + 4, ..to }, &good, plain)),
            ("more rows than there is room for", call(from, to, &many, plain)),
            ("no row", call(from, to, &none, plain)),
            ("two planted mistakes", call(from, to, &good, both)),
        ];
        if good.shape.lists(self.keep.dims) * good.count > 1 {
            calls.push(("a keep-set that is too short", call(from, to, &short, plain)));
        }
        calls
    }
}

struct At {
    ops: GatherOps,
    keep: Keep,
    values: Vec<u32>,
    from: Buffer<u32>,
    to: Guarded<u8>,
}

impl At {
    fn new(gpu: &Gpu, cell: &Cell) -> Result<Self, GpuError> {
        let keep = Keep::new(gpu, cell)?;
        let heads = |by_layer: bool| if by_layer { keep.units() } else { keep.dims.kv_heads };
        let after = keep.by_layer || keep.shape.layers_differ();
        Ok(Self {
            ops: GatherOps::new(gpu, keep.dims, cell.cache)?,
            values: Vec::new(),
            from: gpu.alloc(heads(keep.by_layer) * keep.capacity)?,
            to: Guarded::new(gpu, heads(after) * keep.count * 4)?,
            keep,
        })
    }

    fn sides(&self) -> Result<(Positions, Positions), GpuError> {
        let Keep { by_layer, capacity, count, shape, .. } = self.keep;
        let from = Positions { list: self.from.view(), by_layer, capacity };
        let by_layer = by_layer || shape.layers_differ();
        Ok((from, Positions { list: self.to.cast()?, by_layer, capacity: count }))
    }

    fn call(&self, gpu: &Gpu, rows: View<u32>) -> Result<(), GpuError> {
        let (from, to) = self.sides()?;
        self.ops.positions(gpu, &from, &to, &self.keep.keep(rows))
    }
}

impl Case for At {
    fn fill(&mut self, gpu: &Gpu, seed: u64) -> Result<(), GpuError> {
        let mut random = Random(seed);
        self.keep.fill(gpu, &mut random)?;
        self.values = (0..self.from.len()).map(|_| random.word() as u32).collect();
        gpu.write(self.from.view(), &self.values)
    }

    fn run(&self, gpu: &Gpu) -> Result<(), GpuError> {
        self.call(gpu, self.keep.device.view())
    }

    fn run_wrong(&self, gpu: &Gpu) -> Result<(), GpuError> {
        self.call(gpu, self.keep.shifted.view())
    }

    fn outputs(&self) -> Vec<Output<'_>> {
        vec![Output { name: "positions", bytes: &self.to }]
    }

    fn error(&self, gpu: &Gpu) -> Result<f64, GpuError> {
        let found = gpu.read(self.to.cast::<u32>()?)?;
        let heads = self.from.len() / self.keep.capacity;
        let wrong = found.iter().enumerate().filter(|&(index, &position)| {
            let (unit, slot) = (index / self.keep.count, index % self.keep.count);
            let row = self.keep.row(unit, slot);
            position != self.values[unit % heads * self.keep.capacity + row]
        });
        Ok(wrong.count() as f64)
    }

    fn disturb(&mut self, gpu: &Gpu) -> Result<Option<Vec<Vec<std::ops::Range<usize>>>>, GpuError> {
        let heads = self.from.len() / self.keep.capacity;
        self.values[..self.keep.capacity].iter_mut().for_each(|position| *position ^= 1);
        gpu.write(self.from.view(), &self.values)?;
        let bytes = self.keep.count * 4;
        let units = self.to.view().len() / bytes;
        let same = (0..units).filter(|unit| unit % heads != 0);
        Ok(Some(vec![same.map(|unit| unit * bytes..(unit + 1) * bytes).collect()]))
    }

    fn misuse(&self, gpu: &Gpu) -> Vec<(&'static str, Result<(), GpuError>)> {
        let Ok((from, to)) = self.sides() else { return Vec::new() };
        let good = self.keep.keep(self.keep.device.view());
        let call = |from: Positions, to: Positions, keep: KeepLists| {
            self.ops.positions(gpu, &from, &to, &keep)
        };
        vec![
            ("the other form", call(from, Positions { by_layer: !to.by_layer, ..to }, good)),
            ("no row", call(from, to, KeepLists { count: 0, ..good })),
            ("no room", call(from, Positions { capacity: good.count - 1, ..to }, good)),
            ("a longer source", call(Positions { capacity: from.capacity + 1, ..from }, to, good)),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::super::select_score::drive::drive;
    use super::*;

    #[test]
    fn rows_and_positions_land_where_the_keep_set_says() {
        drive(ENTRIES);
    }
}
