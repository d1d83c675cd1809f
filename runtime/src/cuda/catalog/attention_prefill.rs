//! Entries of `attention_prefill.cu`: `attention_rows`, `attention_flash`.

use std::ops::Range;

use bytemuck::Pod;
use lockstep_traces::DType;

use super::{Case, Cell, Contract, Entry, Guarded, Output, Tolerance};
use crate::cuda::gpu::{Buffer, Gpu, GpuError, KernelFile};
use crate::cuda::ops::attention::Heads;
use crate::cuda::ops::attention_prefill::{Prefill, PrefillAttention};
use crate::cuda::testing::{Values, decode, encode, half_ulp, rounded};

const SOURCES: &[(&str, &str)] = &[
    ("src/cuda/ops/attention_prefill.rs", include_str!("../ops/attention_prefill.rs")),
    ("src/cuda/catalog/attention_prefill.rs", include_str!("attention_prefill.rs")),
];
const SIZES: &[&str] = &["rows", "rows_before", "heads", "kv_heads", "head_dim", "capacity"];

const fn cell(elem: DType, cache: DType, sizes: &'static [usize]) -> Cell {
    Cell { elem, cache, sizes }
}

/// One row, tails of 16 rows and of 32 keys, every pair of types, widths that are no multiple of 32; the last ones are for a GPU.
const ROWS_CELLS: &[Cell] = &[
    cell(DType::F32, DType::F32, &[1, 0, 4, 2, 32, 3]),
    cell(DType::F32, DType::F32, &[17, 40, 4, 1, 64, 64]),
    cell(DType::F32, DType::F32, &[33, 31, 2, 2, 6, 64]),
    cell(DType::F32, DType::Bf16, &[20, 100, 5, 1, 128, 128]),
    cell(DType::F32, DType::F16, &[16, 16, 4, 4, 64, 32]),
    cell(DType::Bf16, DType::F32, &[16, 15, 8, 4, 64, 40]),
    cell(DType::F16, DType::Bf16, &[31, 1, 2, 1, 80, 50]),
    cell(DType::F16, DType::F16, &[50, 33, 4, 2, 250, 90]),
    cell(DType::Bf16, DType::Bf16, &[9, 64, 2, 1, 256, 80]),
    cell(DType::Bf16, DType::Bf16, &[64, 0, 8, 1, 64, 64]),
    cell(DType::F32, DType::F32, &[1000, 1500, 16, 8, 128, 2600]),
    cell(DType::Bf16, DType::F32, &[333, 2000, 32, 8, 128, 2400]),
];

/// One row, tails of 128 rows and of 64 keys, every width class of shared memory, every group; the last ones are for a GPU.
const FLASH_CELLS: &[Cell] = &[
    cell(DType::F16, DType::F16, &[1, 0, 4, 2, 64, 2]),
    cell(DType::Bf16, DType::Bf16, &[1, 200, 8, 2, 128, 240]),
    cell(DType::Bf16, DType::Bf16, &[64, 0, 2, 1, 64, 64]),
    cell(DType::F16, DType::F16, &[65, 63, 4, 4, 32, 130]),
    cell(DType::Bf16, DType::Bf16, &[127, 1, 2, 1, 128, 140]),
    cell(DType::F16, DType::F16, &[128, 64, 2, 2, 64, 200]),
    cell(DType::F16, DType::F16, &[129, 100, 5, 1, 80, 300]),
    cell(DType::Bf16, DType::Bf16, &[40, 300, 4, 1, 96, 431]),
    cell(DType::Bf16, DType::Bf16, &[33, 31, 8, 1, 16, 70]),
    cell(DType::F16, DType::F16, &[96, 32, 2, 1, 128, 128]),
    cell(DType::Bf16, DType::Bf16, &[1024, 100, 16, 2, 64, 1200]),
    cell(DType::F16, DType::F16, &[700, 3333, 32, 8, 128, 5000]),
    cell(DType::Bf16, DType::Bf16, &[2048, 0, 32, 8, 128, 2048]),
    cell(DType::Bf16, DType::Bf16, &[8192, 0, 32, 8, 128, 8192]),
];

const CONTRACT: Contract = Contract {
    shapes: "q and out [rows, heads, head_dim] of elem; k and v [kv_heads, capacity, head_dim] of the cache's type, rows_before + rows of them live",
    raises: &[
        "no rows",
        "more live rows than the cache holds",
        "a view shorter than its shape",
        "elements of another width than the kernel's",
        "a head width that is odd or above 256, query heads that are no multiple of the KV heads",
        "attention_flash: addresses that are no multiple of 16",
    ],
    silent: &[
        "a NaN or infinity in v of a live row spoils earlier rows of the same tile too, where its weight is 0",
        "overlapping q and out",
        "live rows that were never written count as they lie",
    ],
    rounding: "scores, softmax and sums in f32, out rounded once; attention_flash rounds each weight to elem before it meets v",
};

/// Units of f32: 2^-24.
const F32: f64 = 1.0 / 16_777_216.0;

fn tolerance(_: &Cell) -> Tolerance {
    Tolerance {
        bound: 1.0,
        why: "error over the sum of: half a unit of out; with A = sum p |v| / sum p, A times twice the relative error of a weight \
              (ln 2 times the absolute error of its exponent: 2 head_dim 2^-24 of the sum of |q k| scaled, matrix instructions cutting \
              off where they add, and 3 * 2^-24 of exponent and maximum each; 2^-20 for exp2 and the changes of the maximum), A times \
              2^-23 a row added; attention_flash: A times half a unit of the weights, and in f16 2^-25 of the largest |v| a row \
              for weights that are subnormal. With many rows an evenly spread part of them is compared, the first and the last included",
    }
}

const REFERENCE: &str =
    "sum_r p_r v_r / sum_r p_r, p_r = exp(q k_r / sqrt(D) - max), r <= rows_before + i, in f64";

macro_rules! entry {
    ($name:literal, $cells:expr, $flash:literal) => {
        Entry {
            name: $name,
            file: KernelFile::ATTENTION_PREFILL,
            sources: SOURCES,
            sizes: SIZES,
            contract: CONTRACT,
            reference: REFERENCE,
            tolerance,
            cells: $cells,
            open: |gpu, cell| open(gpu, cell, $flash),
        }
    };
}

pub(super) const ENTRIES: &[Entry] =
    &[entry!("attention_rows", ROWS_CELLS, false), entry!("attention_flash", FLASH_CELLS, true)];

fn open(gpu: &Gpu, cell: &Cell, flash: bool) -> Result<Box<dyn Case>, GpuError> {
    Ok(match (cell.elem, cell.cache) {
        (DType::F32, DType::F32) => Box::new(Attention::<f32, f32>::new(gpu, cell, flash)?),
        (DType::F32, _) => Box::new(Attention::<f32, u16>::new(gpu, cell, flash)?),
        (_, DType::F32) => Box::new(Attention::<u16, f32>::new(gpu, cell, flash)?),
        _ => Box::new(Attention::<u16, u16>::new(gpu, cell, flash)?),
    })
}

struct Attention<E, C> {
    flash: bool,
    elem: DType,
    cache: DType,
    rows: usize,
    before: usize,
    heads: Heads,
    capacity: usize,
    attention: PrefillAttention,
    q: Buffer<E>,
    k: Buffer<C>,
    v: Buffer<C>,
    out: Guarded<u8>,
    host: Host,
}

/// Values as the device holds them; NaN in cache rows that are not live.
#[derive(Default)]
struct Host {
    q: Vec<f32>,
    k: Vec<f32>,
    v: Vec<f32>,
}

/// f64 result of one row and head, with what its allowance is made from.
struct Wanted {
    value: Vec<f64>,
    /// sum p |v| / sum p.
    size: Vec<f64>,
    /// Absolute error that the exponent (base 2) of a weight may have.
    exponent: f64,
}

impl<E: Pod, C: Pod> Attention<E, C> {
    fn new(gpu: &Gpu, cell: &Cell, flash: bool) -> Result<Self, GpuError> {
        let &[rows, before, heads, kv_heads, head_dim, capacity] = cell.sizes else {
            return Err(GpuError::unsupported(format!("a cell has {}", SIZES.join(", "))));
        };
        let heads = Heads { heads, kv_heads, head_dim };
        let types = (cell.elem, cell.cache);
        let attention = if flash {
            PrefillAttention::new(gpu, types, heads)?
        } else {
            PrefillAttention::in_f32(gpu, types, heads)?
        };
        if flash != (attention.kernel_name() == "attention_flash") {
            let name = attention.kernel_name();
            return Err(GpuError::unsupported(format!("{name} was picked for {cell:?}")));
        }
        let (wide, cached) = (rows * heads.heads * head_dim, kv_heads * capacity * head_dim);
        Ok(Self {
            flash,
            elem: cell.elem,
            cache: cell.cache,
            rows,
            before,
            heads,
            capacity,
            attention,
            q: gpu.alloc(wide)?,
            k: gpu.alloc(cached)?,
            v: gpu.alloc(cached)?,
            out: Guarded::new(gpu, wide * size_of::<E>())?,
            host: Host::default(),
        })
    }

    fn call(&self) -> Result<Prefill<E, C>, GpuError> {
        Ok(Prefill {
            rows: self.rows,
            rows_before: self.before,
            q: self.q.view(),
            k: self.k.view(),
            v: self.v.view(),
            capacity: self.capacity,
            out: self.out.cast()?,
            next: false,
            tile: false,
        })
    }

    fn upload(&self, gpu: &Gpu) -> Result<(), GpuError> {
        gpu.write(self.q.view().cast()?, &encode(self.elem, &self.host.q))?;
        gpu.write(self.k.view().cast()?, &encode(self.cache, &self.host.k))?;
        gpu.write(self.v.view().cast()?, &encode(self.cache, &self.host.v))
    }

    fn query(&self, row: usize, head: usize) -> Range<usize> {
        let start = (row * self.heads.heads + head) * self.heads.head_dim;
        start..start + self.heads.head_dim
    }

    fn cached(&self, kv_head: usize, row: usize) -> Range<usize> {
        let start = (kv_head * self.capacity + row) * self.heads.head_dim;
        start..start + self.heads.head_dim
    }

    /// Keys of even new rows are the query of their row, those of odd ones that of the row before, so that a row too many or too few
    /// in sight takes half of a row's weight or more away.
    fn plant_keys(&mut self) {
        for row in 0..self.rows {
            for kv_head in 0..self.heads.kv_heads {
                let query = self.query(row - row % 2, kv_head * self.heads.group());
                let key = self.cached(kv_head, self.before + row);
                for (key, query) in key.zip(query) {
                    self.host.k[key] = rounded(self.cache, self.host.q[query]);
                }
            }
        }
    }

    fn wanted(&self, row: usize, head: usize) -> Wanted {
        let Heads { head_dim, .. } = self.heads;
        let kv_head = head / self.heads.group();
        let query = &self.host.q[self.query(row, head)];
        let scale = 1.0 / (head_dim as f64).sqrt();
        let product = |row: usize| {
            let key = &self.host.k[self.cached(kv_head, row)];
            query.iter().zip(key).fold((0.0, 0.0), |(sum, size), (&q, &k)| {
                let term = f64::from(q) * f64::from(k);
                (sum + term, size + term.abs())
            })
        };
        let products: Vec<(f64, f64)> = (0..=self.before + row).map(product).collect();
        let most = products.iter().fold(f64::NEG_INFINITY, |most, (sum, _)| most.max(sum * scale));
        let log2e = std::f64::consts::LOG2_E;
        let (mut total, mut exponent) = (0.0, 0.0_f64);
        let (mut value, mut size) = (vec![0.0; head_dim], vec![0.0; head_dim]);
        for (at, (sum, magnitude)) in products.into_iter().enumerate() {
            let score = sum * scale;
            let p = (score - most).exp();
            total += p;
            let parts =
                2.0 * head_dim as f64 * magnitude * scale + 3.0 * (score.abs() + most.abs());
            exponent = exponent.max(parts * log2e * F32);
            let row = &self.host.v[self.cached(kv_head, at)];
            for ((value, size), &v) in value.iter_mut().zip(&mut size).zip(row) {
                *value += p * f64::from(v);
                *size += p * f64::from(v).abs();
            }
        }
        value.iter_mut().chain(&mut size).for_each(|sum| *sum /= total);
        Wanted { value, size, exponent }
    }

    /// Largest error of a row and head over its allowance.
    fn compare(&self, row: usize, head: usize, found: &[f32]) -> f64 {
        let wanted = self.wanted(row, head);
        let half = half_ulp(self.elem);
        let seen = (self.before + row + 1) as f64;
        let weight = 2.0 * (std::f64::consts::LN_2 * wanted.exponent + 16.0 * F32)
            + 2.0 * seen * F32
            + if self.flash { half } else { 0.0 };
        let subnormal = match (self.elem, self.flash) {
            (DType::F16, true) => (1.0 + seen * LARGEST) / 33_554_432.0,
            (DType::F16, false) => 1.0 / 33_554_432.0,
            _ => 0.0,
        };
        let errors =
            found.iter().zip(&wanted.value).zip(&wanted.size).map(|((&found, value), size)| {
                (f64::from(found) - value).abs() / (half * value.abs() + weight * size + subnormal)
            });
        errors.fold(0.0, worse)
    }
}

/// Bound of |v|, and of |q| and |k|.
const LARGEST: f64 = 2.0;

/// The larger one; NaN stays.
fn worse(worst: f64, error: f64) -> f64 {
    if error.is_nan() || worst.is_nan() { f64::NAN } else { worst.max(error) }
}

impl<E: Pod, C: Pod> Case for Attention<E, C> {
    fn fill(&mut self, gpu: &Gpu, seed: u64) -> Result<(), GpuError> {
        let mut values = Values::new(seed);
        let Heads { heads, kv_heads, head_dim } = self.heads;
        let mut draw = |count: usize, dtype: DType| -> Vec<f32> {
            let scale = LARGEST as f32;
            values.many(count, scale).iter().map(|&v| rounded(dtype, v)).collect()
        };
        let cached = kv_heads * self.capacity * head_dim;
        self.host = Host {
            q: draw(self.rows * heads * head_dim, self.elem),
            k: draw(cached, self.cache),
            v: draw(cached, self.cache),
        };
        self.plant_keys();
        for kv_head in 0..kv_heads {
            for row in self.before + self.rows..self.capacity {
                let range = self.cached(kv_head, row);
                self.host.k[range.clone()].fill(f32::NAN);
                self.host.v[range].fill(f32::NAN);
            }
        }
        self.upload(gpu)
    }

    fn run(&self, gpu: &Gpu) -> Result<(), GpuError> {
        self.attention.queue(gpu, &self.call()?)
    }

    fn run_wrong(&self, gpu: &Gpu) -> Result<(), GpuError> {
        // A single row has no next one to see.
        let next = self.rows > 1;
        self.attention.queue(gpu, &Prefill { next, tile: !next, ..self.call()? })
    }

    fn outputs(&self) -> Vec<Output<'_>> {
        vec![Output { name: "out", bytes: &self.out }]
    }

    fn error(&self, gpu: &Gpu) -> Result<f64, GpuError> {
        let found = decode(self.elem, &gpu.read(self.out.view())?);
        if found.iter().any(|value| !value.is_finite()) {
            return Ok(f64::NAN);
        }
        let Heads { heads, head_dim, .. } = self.heads;
        let work = self.rows * (self.before + self.rows) * heads * head_dim;
        // Odd, so that rows of every place in a tile come up.
        let step = (work >> 27) | 1;
        let rows = (0..self.rows).step_by(step).chain([self.rows - 1]);
        let pairs = rows.flat_map(|row| (0..heads).map(move |head| (row, head)));
        Ok(pairs.fold(0.0, |worst, (row, head)| {
            worse(worst, self.compare(row, head, &found[self.query(row, head)]))
        }))
    }

    fn disturb(&mut self, gpu: &Gpu) -> Result<Option<Vec<Vec<Range<usize>>>>, GpuError> {
        if self.rows == 1 {
            return Ok(None);
        }
        // The last row: rows before it do not see its q, k and v.
        let last = self.rows - 1;
        let change = |dtype: DType, values: &mut [f32]| {
            values.iter_mut().for_each(|value| *value = rounded(dtype, -0.75 * *value + 0.25));
        };
        let start = self.query(last, 0).start;
        change(self.elem, &mut self.host.q[start..]);
        for kv_head in 0..self.heads.kv_heads {
            let range = self.cached(kv_head, self.before + last);
            change(self.cache, &mut self.host.k[range.clone()]);
            change(self.cache, &mut self.host.v[range]);
        }
        self.upload(gpu)?;
        let bytes = start * self.elem.size();
        Ok(Some(vec![vec![0..bytes]]))
    }

    fn misuse(&self, gpu: &Gpu) -> Vec<(&'static str, Result<(), GpuError>)> {
        let Ok(good) = self.call() else { return Vec::new() };
        let queue = |call: Prefill<E, C>| self.attention.queue(gpu, &call);
        let full = self.capacity - self.before;
        let mut list = vec![
            ("no rows", queue(Prefill { rows: 0, ..good })),
            ("one row more than q holds", queue(Prefill { rows: self.rows + 1, ..good })),
            ("one live row more than fits", queue(Prefill { rows: full + 1, ..good })),
            ("a cache that is said larger", queue(Prefill { capacity: self.capacity + 1, ..good })),
        ];
        let len = good.q.len();
        if let (Ok(q), Ok(out)) = (good.q.part(0..len - 1), good.out.part(1..len)) {
            list.push(("a q that is too short", queue(Prefill { q, ..good })));
            list.push(("an out that is too short", queue(Prefill { out, ..good })));
        }
        if let (Ok(q), Ok(out)) = (good.q.cast::<u8>(), good.out.cast::<u8>()) {
            let Prefill { rows, rows_before, k, v, capacity, next, tile, .. } = good;
            let bytes = Prefill { rows, rows_before, q, k, v, capacity, out, next, tile };
            list.push(("bytes for elements", self.attention.queue(gpu, &bytes)));
        }
        let types = (self.elem, self.cache);
        for (what, heads) in [
            ("an odd head width", Heads { head_dim: 33, ..self.heads }),
            ("a head width of 258", Heads { head_dim: 258, ..self.heads }),
            ("three query heads for two", Heads { heads: 3, kv_heads: 2, ..self.heads }),
        ] {
            list.push((what, PrefillAttention::new(gpu, types, heads).map(drop)));
        }
        list
    }
}

#[cfg(test)]
mod tests;
