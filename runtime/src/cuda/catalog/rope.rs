//! Entries of `rope.cu`: `rope_append`, `bias_add`.

use std::ops::Range;

use bytemuck::Pod;
use lockstep_traces::DType;

use super::{Case, Cell, Contract, Entry, Guarded, Output, Tolerance};
use crate::cuda::gpu::{Buffer, Gpu, GpuError, KernelFile, View};
use crate::cuda::ops::attention::Heads;
use crate::cuda::ops::rope::{ObserveRows, Rope, RopeAppend};
use crate::cuda::testing::{Values, decode, encode, half_ulp, rounded};

const SOURCES: &[(&str, &str)] = &[
    ("src/cuda/ops/rope.rs", include_str!("../ops/rope.rs")),
    ("src/cuda/catalog/rope.rs", include_str!("rope.rs")),
];

const fn cell(elem: DType, cache: DType, sizes: &'static [usize]) -> Cell {
    Cell { elem, cache, sizes }
}

const APPEND_SIZES: &[&str] =
    &["rows", "rows_before", "heads", "kv_heads", "head_dim", "capacity", "norm"];

/// Without and with norm, every pair of types, widths whose half is no multiple of 32, full caches (their bytes are outputs then).
const APPEND_CELLS: &[Cell] = &[
    cell(DType::F32, DType::F32, &[1, 0, 4, 2, 64, 1, 0]),
    cell(DType::F32, DType::F32, &[9, 5, 4, 1, 128, 20, 0]),
    cell(DType::F32, DType::F32, &[9, 5, 3, 3, 6, 14, 1]),
    cell(DType::F32, DType::Bf16, &[5, 0, 8, 2, 80, 5, 1]),
    cell(DType::F32, DType::F16, &[5, 2, 2, 1, 32, 8, 0]),
    cell(DType::F16, DType::F16, &[33, 0, 8, 1, 64, 33, 0]),
    cell(DType::F16, DType::Bf16, &[7, 1, 5, 1, 128, 9, 1]),
    cell(DType::F16, DType::F32, &[7, 1, 2, 2, 256, 9, 1]),
    cell(DType::Bf16, DType::Bf16, &[17, 40, 4, 2, 64, 64, 0]),
    cell(DType::Bf16, DType::Bf16, &[16, 0, 4, 2, 128, 16, 1]),
    cell(DType::Bf16, DType::F16, &[3, 3, 2, 1, 96, 7, 0]),
    cell(DType::Bf16, DType::F32, &[3, 3, 2, 1, 250, 7, 1]),
    cell(DType::Bf16, DType::Bf16, &[2048, 100, 32, 8, 128, 3000, 1]),
];

const BIAS_SIZES: &[&str] = &["rows", "width"];

const BIAS_CELLS: &[Cell] = &[
    cell(DType::F32, DType::F32, &[1, 6]),
    cell(DType::F32, DType::F32, &[5, 300]),
    cell(DType::F16, DType::F16, &[3, 257]),
    cell(DType::Bf16, DType::Bf16, &[17, 1536]),
    cell(DType::Bf16, DType::Bf16, &[2048, 6144]),
];

fn append_tolerance(cell: &Cell) -> Tolerance {
    if cell.sizes.last() == Some(&0) {
        let why = "single products and sums, each rounded once: bits must agree";
        return Tolerance { bound: 0.0, why };
    }
    Tolerance {
        bound: 1.0,
        why: "error over, with u one unit of elem: 2 u of a normed value (its two roundings may fall the other way) and, in units of 2^-24, \
              head_dim / 64 + 16 for the mean and the root; after the rotation 3 u and that of |x cos| + |y sin| and 1 u of the sum; \
              in the cache one unit of its type more. v, which is only copied, must agree in bits",
    }
}

pub(super) const ENTRIES: &[Entry] = &[
    Entry {
        name: "rope_append",
        file: KernelFile::ROPE,
        sources: SOURCES,
        sizes: APPEND_SIZES,
        contract: Contract {
            shapes: "qkv [rows, (heads + 2 kv_heads) head_dim], q [rows, heads, head_dim] of elem; norm weights [head_dim], cos and sin \
                     [rows, head_dim / 2] f32; k and v [kv_heads, capacity, head_dim] of the cache's type; q_norm as q, k_norm and k_rope \
                     [rows, kv_heads, head_dim] of elem, each optional",
            raises: &[
                "no rows",
                "more rows than the cache has room for",
                "a view shorter than its shape",
                "elements of another width than the kernels'",
                "a head width that is odd or above 256, query heads that are no multiple of the KV heads",
            ],
            silent: &[
                "cosines and sines that are not rounded to elem",
                "rows_before that is not the number of live rows: rows are overwritten or left out",
                "cache rows other than the new ones are not touched",
            ],
            rounding: "norm twice, each product and the sum of the rotation, to elem; k and v once more to the cache's type",
        },
        reference: "w x / sqrt(mean(x^2) + eps) and the rotation, in f64 with the same roundings",
        tolerance: append_tolerance,
        cells: APPEND_CELLS,
        open: open_append,
    },
    Entry {
        name: "bias_add",
        file: KernelFile::ROPE,
        sources: SOURCES,
        sizes: BIAS_SIZES,
        contract: Contract {
            shapes: "x [rows, width] of elem, bias [width] f32",
            raises: &[
                "no rows or no width",
                "a view shorter than its shape",
                "elements of another width",
            ],
            silent: &["a call that is repeated adds the bias again"],
            rounding: "the f32 sum, once to elem; x was rounded before, where decode and the CPU add the bias to the f32 product",
        },
        reference: "x + bias, rounded",
        tolerance: |_| Tolerance { bound: 0.0, why: "one sum, rounded: bits must agree" },
        cells: BIAS_CELLS,
        open: |gpu, cell| {
            Ok(match cell.elem {
                DType::F32 => Box::new(Bias::<f32>::new(gpu, cell)?),
                _ => Box::new(Bias::<u16>::new(gpu, cell)?),
            })
        },
    },
];

fn open_append(gpu: &Gpu, cell: &Cell) -> Result<Box<dyn Case>, GpuError> {
    Ok(match (cell.elem, cell.cache) {
        (DType::F32, DType::F32) => Box::new(Append::<f32, f32>::new(gpu, cell)?),
        (DType::F32, _) => Box::new(Append::<f32, u16>::new(gpu, cell)?),
        (_, DType::F32) => Box::new(Append::<u16, f32>::new(gpu, cell)?),
        _ => Box::new(Append::<u16, u16>::new(gpu, cell)?),
    })
}

const EPS: f32 = 1e-6;
/// What cache rows hold before.
const BEFORE: f32 = 7.5;

struct Append<E, C> {
    elem: DType,
    cache: DType,
    rows: usize,
    before: usize,
    heads: Heads,
    capacity: usize,
    norm: bool,
    rope: Rope,
    qkv: Buffer<E>,
    weights: [Buffer<f32>; 2],
    cos: Buffer<f32>,
    sin: Buffer<f32>,
    /// q, q_norm, k_norm, k_rope of `elem`.
    rows_out: [Guarded<u8>; 4],
    /// K and V.
    caches: [Guarded<u8>; 2],
    host: Host,
    kind: std::marker::PhantomData<C>,
}

#[derive(Default)]
struct Host {
    qkv: Vec<f32>,
    weights: [Vec<f32>; 2],
    cos: Vec<f32>,
    sin: Vec<f32>,
}

/// Values of one head with the error that each may have.
type Allowed = Vec<(f64, f64)>;

impl<E: Pod, C: Pod> Append<E, C> {
    fn new(gpu: &Gpu, cell: &Cell) -> Result<Self, GpuError> {
        let &[rows, before, heads, kv_heads, head_dim, capacity, norm] = cell.sizes else {
            return Err(GpuError::unsupported(format!("a cell has {}", APPEND_SIZES.join(", "))));
        };
        let heads = Heads { heads, kv_heads, head_dim };
        let wide = rows * heads.heads * head_dim * size_of::<E>();
        let narrow = rows * kv_heads * head_dim * size_of::<E>();
        let cached = kv_heads * capacity * head_dim * size_of::<C>();
        let buffer = |bytes| Guarded::new(gpu, bytes);
        Ok(Self {
            elem: cell.elem,
            cache: cell.cache,
            rows,
            before,
            heads,
            capacity,
            norm: norm != 0,
            rope: Rope::new(gpu, (cell.elem, cell.cache), heads)?,
            qkv: gpu.alloc(rows * heads.qkv())?,
            weights: [gpu.alloc(head_dim)?, gpu.alloc(head_dim)?],
            cos: gpu.alloc(rows * head_dim / 2)?,
            sin: gpu.alloc(rows * head_dim / 2)?,
            rows_out: [buffer(wide)?, buffer(wide)?, buffer(narrow)?, buffer(narrow)?],
            caches: [buffer(cached)?, buffer(cached)?],
            host: Host::default(),
            kind: std::marker::PhantomData,
        })
    }

    fn call(&self) -> Result<RopeAppend<E, C>, GpuError> {
        let [q_weight, k_weight] = &self.weights;
        let [q, q_norm, k_norm, k_rope] = &self.rows_out;
        Ok(RopeAppend {
            rows: self.rows,
            rows_before: self.before,
            qkv: self.qkv.view(),
            norms: self.norm.then(|| (q_weight.view(), k_weight.view())),
            eps: EPS,
            cos: self.cos.view(),
            sin: self.sin.view(),
            q: q.cast()?,
            k: self.caches[0].cast()?,
            v: self.caches[1].cast()?,
            capacity: self.capacity,
            observe: ObserveRows {
                q_norm: Some(q_norm.cast()?),
                k_norm: Some(k_norm.cast()?),
                k_rope: Some(k_rope.cast()?),
            },
        })
    }

    fn upload(&self, gpu: &Gpu) -> Result<(), GpuError> {
        gpu.write(self.qkv.view().cast()?, &encode(self.elem, &self.host.qkv))?;
        for (buffer, values) in self.weights.iter().zip(&self.host.weights) {
            gpu.write(buffer.view(), values)?;
        }
        gpu.write(self.cos.view(), &self.host.cos)?;
        gpu.write(self.sin.view(), &self.host.sin)
    }

    fn reset_caches(&self, gpu: &Gpu) -> Result<(), GpuError> {
        let len = self.heads.kv_heads * self.capacity * self.heads.head_dim;
        let bytes = encode(self.cache, &vec![BEFORE; len]);
        self.caches.iter().try_for_each(|cache| gpu.write(cache.view(), &bytes))
    }

    /// Every byte of the caches is a new row's.
    const fn fills_caches(&self) -> bool {
        self.rows == self.capacity
    }

    /// Head `at` of a row of qkv.
    fn head(&self, row: usize, at: usize) -> &[f32] {
        let start = row * self.heads.qkv() + at * self.heads.head_dim;
        &self.host.qkv[start..start + self.heads.head_dim]
    }

    /// Relative error of a normed value before its roundings.
    fn norm_error(&self) -> f64 {
        (self.heads.head_dim as f64 / 64.0 + 16.0) * half_ulp(DType::F32)
    }

    fn normed(&self, x: &[f32], weight: &[f32]) -> Allowed {
        if !self.norm {
            return x.iter().map(|&x| (f64::from(x), 0.0)).collect();
        }
        let squares: f64 = x.iter().map(|&x| f64::from(x) * f64::from(x)).sum();
        let scale = 1.0 / (squares / x.len() as f64 + f64::from(EPS)).sqrt();
        let slack = 4.0 * half_ulp(self.elem) + self.norm_error();
        x.iter()
            .zip(weight)
            .map(|(&x, &weight)| {
                let inner = rounded(self.elem, (f64::from(x) * scale) as f32);
                let value = f64::from(rounded(self.elem, weight * inner));
                (value, slack * value.abs())
            })
            .collect()
    }

    fn turned(&self, normed: &Allowed, row: usize) -> Allowed {
        let half = self.heads.head_dim / 2;
        let unit = if self.norm { 2.0 * half_ulp(self.elem) } else { 0.0 };
        let slack = if self.norm { 3.0 * unit + self.norm_error() } else { 0.0 };
        // Products and the sum in f32, as single operations.
        let sum = |x: f64, c: f32, y: f64, s: f32| {
            let (left, right) =
                (rounded(self.elem, x as f32 * c), rounded(self.elem, y as f32 * s));
            let value = f64::from(rounded(self.elem, left + right));
            let size = f64::from(left).abs() + f64::from(right).abs();
            (value, slack * size + unit * value.abs())
        };
        let angle = |f: usize| (self.host.cos[row * half + f], self.host.sin[row * half + f]);
        let low = (0..half).map(|f| {
            let (c, s) = angle(f);
            sum(normed[f].0, c, -normed[half + f].0, s)
        });
        let high = (0..half).map(|f| {
            let (c, s) = angle(f);
            sum(normed[half + f].0, c, normed[f].0, s)
        });
        low.chain(high).collect()
    }

    /// The same in the cache.
    fn stored(&self, values: &Allowed) -> Allowed {
        let unit = if self.norm { 2.0 * half_ulp(self.cache) } else { 0.0 };
        let store = |&(value, slack): &(f64, f64)| {
            let stored = f64::from(rounded(self.cache, value as f32));
            (stored, if slack > 0.0 { slack + unit * stored.abs() } else { 0.0 })
        };
        values.iter().map(store).collect()
    }

    /// Largest error of the new rows, over its allowance.
    fn new_rows(&self, found: &[Vec<f32>; 4], caches: &[Vec<f32>; 2]) -> f64 {
        let Heads { heads, kv_heads, head_dim } = self.heads;
        let part = |values: &[f32], at: usize| values[at * head_dim..(at + 1) * head_dim].to_vec();
        let mut worst = 0.0;
        for row in 0..self.rows {
            for head in 0..heads {
                let normed = self.normed(self.head(row, head), &self.host.weights[0]);
                let at = row * heads + head;
                worst = worse(worst, compare(&part(&found[1], at), &normed));
                worst = worse(worst, compare(&part(&found[0], at), &self.turned(&normed, row)));
            }
            for head in 0..kv_heads {
                let normed = self.normed(self.head(row, heads + head), &self.host.weights[1]);
                let turned = self.turned(&normed, row);
                let at = row * kv_heads + head;
                worst = worse(worst, compare(&part(&found[2], at), &normed));
                worst = worse(worst, compare(&part(&found[3], at), &turned));
                let at = head * self.capacity + self.before + row;
                worst = worse(worst, compare(&part(&caches[0], at), &self.stored(&turned)));
                let value = self.head(row, heads + kv_heads + head);
                let value: Allowed = value.iter().map(|&v| (f64::from(v), 0.0)).collect();
                worst = worse(worst, compare(&part(&caches[1], at), &self.stored(&value)));
            }
        }
        worst
    }

    /// Cache rows beside the new ones are as they were.
    fn others_untouched(&self, cache: &[f32]) -> bool {
        let Heads { head_dim, .. } = self.heads;
        cache.chunks_exact(head_dim).enumerate().all(|(at, row)| {
            let at = at % self.capacity;
            let new = at >= self.before && at < self.before + self.rows;
            new || row.iter().all(|value| value.to_bits() == BEFORE.to_bits())
        })
    }
}

/// Largest error over its allowance; where nothing is allowed, the error over the smallest number.
fn compare(found: &[f32], wanted: &Allowed) -> f64 {
    let errors = found.iter().zip(wanted).map(|(&found, &(value, slack))| {
        (f64::from(found) - value).abs() / slack.max(f64::MIN_POSITIVE)
    });
    errors.fold(0.0, worse)
}

/// The larger one; NaN stays.
fn worse(worst: f64, error: f64) -> f64 {
    if error.is_nan() || worst.is_nan() { f64::NAN } else { worst.max(error) }
}

impl<E: Pod, C: Pod> Case for Append<E, C> {
    fn fill(&mut self, gpu: &Gpu, seed: u64) -> Result<(), GpuError> {
        let mut values = Values::new(seed);
        let Heads { head_dim, .. } = self.heads;
        let elem = self.elem;
        let round = |values: Vec<f32>| values.into_iter().map(|v| rounded(elem, v)).collect();
        let qkv = round(values.many(self.rows * self.heads.qkv(), 3.0));
        let weights = [values.many(head_dim, 1.5), values.many(head_dim, 1.5)];
        let angles = values.many(self.rows * head_dim / 2, 4.0);
        let cos = round(angles.iter().map(|angle| angle.cos()).collect());
        let sin = round(angles.iter().map(|angle| angle.sin()).collect());
        self.host = Host { qkv, weights, cos, sin };
        self.reset_caches(gpu)?;
        self.upload(gpu)
    }

    fn run(&self, gpu: &Gpu) -> Result<(), GpuError> {
        self.rope.append(gpu, &self.call()?)
    }

    fn run_wrong(&self, gpu: &Gpu) -> Result<(), GpuError> {
        let call = self.call()?;
        self.rope.append(gpu, &RopeAppend { cos: call.sin, sin: call.cos, ..call })
    }

    fn outputs(&self) -> Vec<Output<'_>> {
        let names = ["q", "q_norm", "k_norm", "k_rope"];
        let rows = names.into_iter().zip(&self.rows_out);
        // A cache with other rows in it is not written as a whole; `error` looks at all of it.
        let caches = ["k", "v"].into_iter().zip(&self.caches).filter(|_| self.fills_caches());
        rows.chain(caches).map(|(name, bytes)| Output { name, bytes }).collect()
    }

    fn error(&self, gpu: &Gpu) -> Result<f64, GpuError> {
        let mut found = [const { Vec::new() }; 4];
        for (found, buffer) in found.iter_mut().zip(&self.rows_out) {
            *found = decode(self.elem, &gpu.read(buffer.view())?);
        }
        let mut caches = [const { Vec::new() }; 2];
        for (found, buffer) in caches.iter_mut().zip(&self.caches) {
            *found = decode(self.cache, &gpu.read(buffer.view())?);
            if !buffer.intact(gpu)? || !self.others_untouched(found) {
                return Ok(f64::INFINITY);
            }
        }
        Ok(self.new_rows(&found, &caches))
    }

    fn disturb(&mut self, gpu: &Gpu) -> Result<Option<Vec<Vec<Range<usize>>>>, GpuError> {
        if self.rows == 1 {
            return Ok(None);
        }
        let Heads { heads, kv_heads, head_dim } = self.heads;
        let last = self.rows - 1;
        let elem = self.elem;
        for value in &mut self.host.qkv[last * self.heads.qkv()..] {
            *value = rounded(elem, 0.25 - 0.75 * *value);
        }
        self.upload(gpu)?;
        let bytes = last * head_dim * elem.size();
        let mut kept: Vec<Vec<Range<usize>>> = [heads, heads, kv_heads, kv_heads]
            .into_iter()
            .map(|heads| vec![0..heads * bytes])
            .collect();
        if self.fills_caches() {
            let row = head_dim * self.cache.size();
            let head =
                |head: usize| head * self.capacity * row..(head * self.capacity + last) * row;
            let ranges: Vec<Range<usize>> = (0..kv_heads).map(head).collect();
            kept.extend([ranges.clone(), ranges]);
        }
        Ok(Some(kept))
    }

    fn misuse(&self, gpu: &Gpu) -> Vec<(&'static str, Result<(), GpuError>)> {
        let Ok(good) = self.call() else { return Vec::new() };
        let append = |call: RopeAppend<E, C>| self.rope.append(gpu, &call);
        let room = self.capacity - self.before;
        let larger = self.capacity + 1;
        let mut list = vec![
            ("no rows", append(RopeAppend { rows: 0, ..good })),
            ("one row more than qkv holds", append(RopeAppend { rows: self.rows + 1, ..good })),
            (
                "rows beyond the cache",
                append(RopeAppend { rows_before: room + 1 + self.before, ..good }),
            ),
            ("a cache that is said larger", append(RopeAppend { capacity: larger, ..good })),
        ];
        if let Ok(short) = good.cos.part(1..good.cos.len()) {
            list.push(("cosines that are too few", append(RopeAppend { cos: short, ..good })));
            let norms = Some((short, short));
            if short.len() < self.heads.head_dim {
                list.push(("norm weights that are too few", append(RopeAppend { norms, ..good })));
            }
        }
        if let Ok(short) = good.q.part(1..good.q.len()) {
            list.push(("a q that is too short", append(RopeAppend { q: short, ..good })));
            let observe = ObserveRows { q_norm: Some(short), ..good.observe };
            list.push(("a q_norm that is too short", append(RopeAppend { observe, ..good })));
        }
        let types = (self.elem, self.cache);
        for (what, heads) in [
            ("an odd head width", Heads { head_dim: 33, ..self.heads }),
            ("a head width of 258", Heads { head_dim: 258, ..self.heads }),
            ("no KV heads", Heads { kv_heads: 0, ..self.heads }),
        ] {
            list.push((what, Rope::new(gpu, types, heads).map(drop)));
        }
        list
    }
}

struct Bias<E> {
    dtype: DType,
    rows: usize,
    width: usize,
    rope: Rope,
    x: Guarded<u8>,
    bias: Buffer<f32>,
    zeros: Buffer<f32>,
    host: (Vec<f32>, Vec<f32>),
    kind: std::marker::PhantomData<E>,
}

impl<E: Pod> Bias<E> {
    fn new(gpu: &Gpu, cell: &Cell) -> Result<Self, GpuError> {
        let &[rows, width] = cell.sizes else {
            return Err(GpuError::unsupported("a cell has rows and width"));
        };
        let heads = Heads { heads: 1, kv_heads: 1, head_dim: 2 };
        Ok(Self {
            dtype: cell.elem,
            rows,
            width,
            rope: Rope::new(gpu, (cell.elem, cell.cache), heads)?,
            x: Guarded::new(gpu, rows * width * size_of::<E>())?,
            bias: gpu.alloc(width)?,
            zeros: gpu.zeros(width)?,
            host: Default::default(),
            kind: std::marker::PhantomData,
        })
    }

    fn upload(&self, gpu: &Gpu) -> Result<(), GpuError> {
        gpu.write(self.x.view(), &encode(self.dtype, &self.host.0))?;
        gpu.write(self.bias.view(), &self.host.1)
    }

    fn add(&self, gpu: &Gpu, bias: View<f32>) -> Result<(), GpuError> {
        self.rope.add_bias::<E>(gpu, (self.x.cast()?, self.rows), (bias, self.width))
    }
}

impl<E: Pod> Case for Bias<E> {
    fn fill(&mut self, gpu: &Gpu, seed: u64) -> Result<(), GpuError> {
        let mut values = Values::new(seed);
        let x = values.many(self.rows * self.width, 3.0);
        let x = x.into_iter().map(|x| rounded(self.dtype, x)).collect();
        self.host = (x, values.many(self.width, 2.0));
        self.upload(gpu)
    }

    fn run(&self, gpu: &Gpu) -> Result<(), GpuError> {
        self.add(gpu, self.bias.view())
    }

    fn run_wrong(&self, gpu: &Gpu) -> Result<(), GpuError> {
        self.add(gpu, self.zeros.view())
    }

    fn outputs(&self) -> Vec<Output<'_>> {
        vec![Output { name: "x", bytes: &self.x }]
    }

    fn updates_in_place(&self) -> bool {
        true
    }

    fn error(&self, gpu: &Gpu) -> Result<f64, GpuError> {
        let found = decode(self.dtype, &gpu.read(self.x.view())?);
        let (x, bias) = &self.host;
        let wanted: Allowed = x
            .iter()
            .zip(bias.iter().cycle())
            .map(|(x, bias)| (f64::from(rounded(self.dtype, x + bias)), 0.0))
            .collect();
        Ok(compare(&found, &wanted))
    }

    fn disturb(&mut self, gpu: &Gpu) -> Result<Option<Vec<Vec<Range<usize>>>>, GpuError> {
        if self.rows == 1 {
            return Ok(None);
        }
        let start = (self.rows - 1) * self.width;
        self.host.0[start..].iter_mut().for_each(|x| *x = rounded(self.dtype, 1.0 - *x));
        self.upload(gpu)?;
        Ok(Some(vec![vec![0..start * self.dtype.size()]]))
    }

    fn misuse(&self, gpu: &Gpu) -> Vec<(&'static str, Result<(), GpuError>)> {
        let Ok(x) = self.x.cast::<E>() else { return Vec::new() };
        let (bias, rows, width) = (self.bias.view(), self.rows, self.width);
        let add = |rows, width| self.rope.add_bias(gpu, (x, rows), (bias, width));
        vec![
            ("no rows", add(0, width)),
            ("no width", add(rows, 0)),
            ("one row more than x holds", add(rows + 1, width)),
            ("one column more than the bias holds", add(rows, width + 1)),
            ("bytes for elements", self.rope.add_bias(gpu, (self.x.view(), rows), (bias, width))),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn holds(gpu: &Gpu, entry: &Entry, cell: &Cell) {
        let name = entry.name;
        let bound = (entry.tolerance)(cell).bound;
        let mut case = (entry.open)(gpu, cell).unwrap();
        let read = |case: &dyn Case| -> Vec<Vec<u8>> {
            let outputs = case.outputs();
            assert!(outputs.iter().all(|output| output.bytes.intact(gpu).unwrap()));
            outputs.iter().map(|output| gpu.read(output.bytes.view()).unwrap()).collect()
        };
        let prepare = |case: &dyn Case| {
            for output in case.outputs().iter().filter(|_| !case.updates_in_place()) {
                output.bytes.poison(gpu).unwrap();
            }
        };
        case.fill(gpu, 3).unwrap();
        prepare(case.as_ref());
        case.run(gpu).unwrap();
        let error = case.error(gpu).unwrap();
        assert!(error <= bound, "{name} {cell:?}: {error}");
        let first = read(case.as_ref());
        if let Some(kept) = case.disturb(gpu).unwrap() {
            prepare(case.as_ref());
            case.run(gpu).unwrap();
            assert!(case.error(gpu).unwrap() <= bound, "{name} {cell:?}");
            let second = read(case.as_ref());
            assert_eq!(kept.len(), second.len());
            for ((first, second), kept) in first.iter().zip(&second).zip(kept) {
                assert!(first != second, "{name} {cell:?}");
                for range in kept {
                    assert!(first[range.clone()] == second[range], "{name} {cell:?}");
                }
            }
        }
        case.fill(gpu, 4).unwrap();
        case.run_wrong(gpu).unwrap();
        let wrong = case.error(gpu).unwrap();
        assert!(wrong > bound, "{name} {cell:?}: {wrong}");
        let launches = gpu.launches();
        for (what, result) in case.misuse(gpu) {
            assert!(result.is_err(), "{name} {cell:?}: {what} passed");
        }
        assert_eq!(gpu.launches(), launches, "{name} {cell:?}");
    }

    #[test]
    fn rope_and_bias_hold_their_promise_on_the_emulator() {
        let Ok(gpu) = Gpu::emulated() else {
            eprintln!("skipped: no C++ compiler");
            return;
        };
        for entry in ENTRIES {
            for cell in entry.cells.iter().filter(|cell| cell.sizes[0] < 1000) {
                holds(&gpu, entry, cell);
            }
        }
    }

    #[test]
    fn outputs_that_nobody_wants_change_nothing() {
        let Ok(gpu) = Gpu::emulated() else { return };
        let cell = cell(DType::Bf16, DType::Bf16, &[4, 0, 4, 2, 64, 4, 1]);
        let mut case = Append::<u16, u16>::new(&gpu, &cell).unwrap();
        case.fill(&gpu, 5).unwrap();
        case.run(&gpu).unwrap();
        let read = || {
            let buffers = [&case.rows_out[0], &case.caches[0], &case.caches[1]];
            buffers.map(|buffer| gpu.read(buffer.view()).unwrap())
        };
        let wanted = read();
        case.rows_out.iter().chain(&case.caches).for_each(|buffer| buffer.poison(&gpu).unwrap());
        let call = RopeAppend { observe: ObserveRows::NONE, ..case.call().unwrap() };
        case.rope.append(&gpu, &call).unwrap();
        assert!(read() == wanted);
        let observed = gpu.read(case.rows_out[1].view()).unwrap();
        assert!(observed.iter().all(|&byte| byte == 0xff));
    }
}
