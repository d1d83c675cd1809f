//! Entry of `attention_decode.cu`.

use std::ops::Range;

use bytemuck::Pod;
use lockstep_traces::DType;

use super::{Case, Cell, Contract, Entry, Guarded, Output, Tolerance};
use crate::cuda::Slot;
use crate::cuda::gpu::{Buffer, Gpu, GpuError, KernelFile, View};
use crate::cuda::ops::attention::{Attend, DecodeAttention, Heads};
use crate::cuda::testing::{Values, decode, encode, half_ulp, rounded};

const fn cell(elem: DType, cache: DType, sizes: &'static [usize]) -> Cell {
    Cell { elem, cache, sizes }
}

const F32: DType = DType::F32;
const F16: DType = DType::F16;
const BF16: DType = DType::Bf16;

/// One row, rows around the borders of warps, steps and splits; groups and widths of the known models; every way of splitting.
const CELLS: &[Cell] = &[
    cell(F32, F32, &[4, 2, 16, 1, 0, 1, 0]),
    cell(F32, F32, &[8, 2, 64, 3, 37, 4, 0]),
    cell(F32, BF16, &[4, 4, 80, 2, 150, 2, 0]),
    cell(F16, F16, &[8, 2, 64, 2, 95, 3, 32]),
    cell(F16, F16, &[8, 1, 32, 1, 64, 5, 16]),
    cell(BF16, BF16, &[8, 2, 128, 2, 130, 4, 0]),
    cell(BF16, BF16, &[10, 2, 128, 1, 63, 2, 64]),
    cell(BF16, BF16, &[3, 1, 48, 8, 20, 2, 0]),
    cell(BF16, BF16, &[32, 8, 128, 8, 3199, 16, 256]),
    cell(BF16, BF16, &[32, 8, 128, 1, 32767, 32, 0]),
    cell(F32, F32, &[32, 8, 128, 2, 3199, 16, 256]),
];

pub(super) const ENTRIES: &[Entry] = &[Entry {
    name: "attend_decode",
    file: KernelFile::ATTENTION_DECODE,
    sources: &[
        ("src/cuda/ops/attention.rs", include_str!("../ops/attention.rs")),
        ("src/cuda/catalog/attention_decode.rs", include_str!("attention_decode.rs")),
    ],
    sizes: &["heads", "kv_heads", "head_dim", "batch", "rows", "splits", "split_rows"],
    contract: Contract {
        shapes: "qkv [batch, (heads + 2 kv_heads) D], cos and sin [batch, D / 2] f32, K and V [layers, kv_heads, capacity, D] behind the slots, out [batch, heads D]",
        raises: &[
            "more sequences or splits than were allocated for",
            "a view shorter than its shape",
            "an odd head width, one above 256, more than 16 query heads a KV head",
        ],
        silent: &[
            "a slot whose addresses or capacity are wrong",
            "split_rows * splits below the live rows: the rest is not attended to",
            "a NaN in a live row spoils its head",
        ],
        rounding: "norm and RoPE at each product and sum; K and V to the cache type; scores and softmax f32; the output once",
    },
    reference: "softmax(q K^T / sqrt(D)) V in f64 over the cache as stored, q and k normed and rotated with the stated roundings",
    tolerance: |_| Tolerance {
        bound: 1.0,
        why: "error over the sum of: half a unit of the result; D + 40 f32 roundings of the largest score times the largest value; \
              and two elements of q or k rounded the other way after norm or RoPE",
    },
    cells: CELLS,
    open: |gpu, cell| {
        Ok(match cell.elem {
            DType::F32 => Box::new(Decode::<f32>::new(gpu, cell)?),
            _ => Box::new(Decode::<u16>::new(gpu, cell)?),
        })
    },
}];

const EPS: f32 = 1e-6;
const LAYERS: usize = 2;
const LAYER: u32 = 1;
/// Spare rows of the cache, never live: NaN.
const SPARE: usize = 3;

struct Decode<E> {
    elem: DType,
    cache: DType,
    heads: Heads,
    batch: usize,
    rows: usize,
    splits: usize,
    split_rows: u32,
    attention: DecodeAttention,
    slots: Buffer<Slot>,
    qkv: Buffer<E>,
    cos: Buffer<f32>,
    sin: Buffer<f32>,
    q_norm: Buffer<f32>,
    k_norm: Buffer<f32>,
    k: Buffer<u8>,
    v: Buffer<u8>,
    positions: Buffer<u32>,
    out: Guarded<u8>,
    host: Host,
}

#[derive(Default)]
struct Host {
    qkv: Vec<f32>,
    cos: Vec<f32>,
    sin: Vec<f32>,
    q_norm: Vec<f32>,
    k_norm: Vec<f32>,
    k: Vec<f32>,
    v: Vec<f32>,
}

impl<E: Pod> Decode<E> {
    fn new(gpu: &Gpu, cell: &Cell) -> Result<Self, GpuError> {
        let &[heads, kv_heads, head_dim, batch, rows, splits, split_rows] = cell.sizes else {
            return Err(GpuError::unsupported("a cell has seven sizes"));
        };
        let shape = Heads { heads, kv_heads, head_dim };
        let cached = batch * LAYERS * kv_heads * (rows + 1 + SPARE) * head_dim * cell.cache.size();
        Ok(Self {
            elem: cell.elem,
            cache: cell.cache,
            heads: shape,
            batch,
            rows,
            splits,
            split_rows: u32::try_from(split_rows).unwrap_or(0),
            attention: DecodeAttention::new(gpu, (cell.elem, cell.cache), shape, (batch, splits))?,
            slots: gpu.alloc(batch)?,
            qkv: gpu.alloc(batch * shape.qkv())?,
            cos: gpu.alloc(batch * head_dim / 2)?,
            sin: gpu.alloc(batch * head_dim / 2)?,
            q_norm: gpu.alloc(head_dim)?,
            k_norm: gpu.alloc(head_dim)?,
            k: gpu.alloc(cached)?,
            v: gpu.alloc(cached)?,
            positions: gpu.alloc(batch * LAYERS * kv_heads * (rows + 1 + SPARE))?,
            out: Guarded::new(gpu, batch * heads * head_dim * size_of::<E>())?,
            host: Host::default(),
        })
    }

    fn capacity(&self) -> usize {
        self.rows + 1 + SPARE
    }

    /// Elements of one sequence's K.
    fn sequence(&self) -> usize {
        LAYERS * self.heads.kv_heads * self.capacity() * self.heads.head_dim
    }

    fn upload(&self, gpu: &Gpu) -> Result<(), GpuError> {
        let host = &self.host;
        gpu.write(self.qkv.view().cast()?, &encode(self.elem, &host.qkv))?;
        gpu.write(self.cos.view(), &host.cos)?;
        gpu.write(self.sin.view(), &host.sin)?;
        gpu.write(self.q_norm.view(), &host.q_norm)?;
        gpu.write(self.k_norm.view(), &host.k_norm)?;
        gpu.write(self.k.view(), &encode(self.cache, &host.k))?;
        gpu.write(self.v.view(), &encode(self.cache, &host.v))?;
        let bytes = (self.sequence() * self.cache.size()) as u64;
        let slots: Vec<Slot> = (0..self.batch as u64)
            .map(|b| Slot {
                k_base: self.k.view().address() + b * bytes,
                v_base: self.v.view().address() + b * bytes,
                rows: self.rows as u32,
                capacity: self.capacity() as u32,
                active: 1,
                position: 1000 + b as u32,
                positions: self.positions.view().address()
                    + b * (LAYERS * self.heads.kv_heads * self.capacity() * 4) as u64,
                position_layers: LAYERS as u32,
                ..Slot::default()
            })
            .collect();
        gpu.write(self.slots.view(), &slots)?;
        gpu.fill(self.positions.view(), 0xff)
    }

    fn call(&self, gpu: &Gpu, splits: usize, out: View<E>, tile: bool) -> Result<(), GpuError> {
        self.attention.queue(
            gpu,
            &Attend {
                slots: self.slots.view(),
                batch: self.batch,
                qkv: self.qkv.view(),
                cos: self.cos.view(),
                sin: self.sin.view(),
                norms: Some((self.q_norm.view(), self.k_norm.view())),
                eps: if tile { 0.5 } else { EPS },
                layer: LAYER,
                splits,
                split_rows: self.split_rows,
                tile,
                out,
                observe: None,
            },
        )
    }

    /// A head of a new row after norm and RoPE.
    fn turned(&self, b: usize, from: usize, weight: &[f32]) -> Vec<f32> {
        let dim = self.heads.head_dim;
        let at = b * self.heads.qkv() + from;
        let x = &self.host.qkv[at..at + dim];
        let squares: f64 = x.iter().map(|&v| f64::from(v) * f64::from(v)).sum();
        let scale = 1.0 / (squares / dim as f64 + f64::from(EPS)).sqrt();
        let r = |value: f32| rounded(self.elem, value);
        let normed: Vec<f32> =
            x.iter().zip(weight).map(|(&v, &w)| r(w * r((f64::from(v) * scale) as f32))).collect();
        let half = dim / 2;
        (0..dim)
            .map(|i| {
                let f = i % half;
                let (c, s) = (self.host.cos[b * half + f], self.host.sin[b * half + f]);
                let other = if i < half { -normed[i + half] } else { normed[f] };
                r(r(normed[i] * c) + r(other * s))
            })
            .collect()
    }

    /// Row `row` of head `h` in the cache of sequence `b`, index of its first element.
    fn at(&self, b: usize, h: usize, row: usize) -> usize {
        let head = (b * LAYERS + LAYER as usize) * self.heads.kv_heads + h;
        (head * self.capacity() + row) * self.heads.head_dim
    }

    /// Largest error of one query head over its allowance. `k`, `v`: the cache with the new row in it.
    fn head_error(
        &self,
        (b, h, j): (usize, usize, usize),
        (k, v): (&[f32], &[f32]),
        found: &[f32],
    ) -> f64 {
        let dim = self.heads.head_dim;
        let head = h * self.heads.group() + j;
        let q = self.turned(b, head * dim, &self.host.q_norm);
        let scale = 1.0 / (dim as f64).sqrt();
        let rows = self.rows + 1;
        let dot = |row: usize| -> (f64, f64) {
            let key = &k[self.at(b, h, row)..][..dim];
            q.iter().zip(key).fold((0.0, 0.0), |(sum, size), (&q, &k)| {
                let term = f64::from(q) * f64::from(k) * scale;
                (sum + term, size + term.abs())
            })
        };
        let scores: Vec<(f64, f64)> = (0..rows).map(dot).collect();
        let most = scores.iter().map(|s| s.0).fold(f64::NEG_INFINITY, f64::max);
        let size = scores.iter().map(|s| s.1).fold(0.0, f64::max);
        let weights: Vec<f64> = scores.iter().map(|s| (s.0 - most).exp()).collect();
        let sum: f64 = weights.iter().sum();
        let largest = (0..rows)
            .flat_map(|row| &v[self.at(b, h, row)..][..dim])
            .fold(0.0_f64, |largest, &v| largest.max(f64::from(v).abs()));
        let half = half_ulp(self.elem);
        let adds = (dim as f64 + 40.0) / 16_777_216.0;
        let flips = 4.0 * half * size / (dim as f64).sqrt();
        (0..dim)
            .map(|d| {
                let value = |(row, w): (usize, &f64)| w * f64::from(v[self.at(b, h, row) + d]);
                let wanted = weights.iter().enumerate().map(value).sum::<f64>() / sum;
                let slack = half * wanted.abs() + 2.0 * largest * (size * adds + flips + adds);
                (f64::from(found[d]) - wanted).abs() / slack
            })
            .fold(0.0, |worst, error| if error.is_nan() { f64::NAN } else { error.max(worst) })
    }
}

impl<E: Pod> Case for Decode<E> {
    fn fill(&mut self, gpu: &Gpu, seed: u64) -> Result<(), GpuError> {
        let mut values = Values::new(seed);
        let Heads { kv_heads, head_dim, .. } = self.heads;
        let (elem, cache) = (self.elem, self.cache);
        let mut draw = |dtype: DType, count: usize, scale: f32| -> Vec<f32> {
            values.many(count, scale).iter().map(|&v| rounded(dtype, v)).collect()
        };
        self.host = Host {
            qkv: draw(elem, self.batch * self.heads.qkv(), 2.0),
            cos: draw(elem, self.batch * head_dim / 2, 1.0),
            sin: draw(elem, self.batch * head_dim / 2, 1.0),
            q_norm: draw(F32, head_dim, 2.0),
            k_norm: draw(F32, head_dim, 2.0),
            k: draw(cache, self.batch * self.sequence(), 2.0),
            v: draw(cache, self.batch * self.sequence(), 2.0),
        };
        for b in 0..self.batch {
            for h in 0..kv_heads {
                let dead =
                    self.at(b, h, self.rows)..self.at(b, h, self.rows) + (1 + SPARE) * head_dim;
                self.host.k[dead.clone()].fill(f32::NAN);
                self.host.v[dead].fill(f32::NAN);
            }
        }
        self.upload(gpu)
    }

    fn run(&self, gpu: &Gpu) -> Result<(), GpuError> {
        self.call(gpu, self.splits, self.out.cast()?, false)
    }

    fn run_wrong(&self, gpu: &Gpu) -> Result<(), GpuError> {
        self.call(gpu, self.splits, self.out.cast()?, true)
    }

    fn outputs(&self) -> Vec<Output<'_>> {
        vec![Output { name: "out", bytes: &self.out }]
    }

    fn error(&self, gpu: &Gpu) -> Result<f64, GpuError> {
        let found = decode(self.elem, &gpu.read(self.out.view())?);
        let (k, v) = (gpu.read(self.k.view())?, gpu.read(self.v.view())?);
        let (k, v) = (decode(self.cache, &k), decode(self.cache, &v));
        let Heads { heads, kv_heads, head_dim } = self.heads;
        let (mut wanted_k, mut wanted_v) = (self.host.k.clone(), self.host.v.clone());
        let mut worst = 0.0_f64;
        for b in 0..self.batch {
            for h in 0..kv_heads {
                let at = self.at(b, h, self.rows);
                let key = self.turned(b, (heads + h) * head_dim, &self.host.k_norm);
                for (d, key) in key.iter().enumerate() {
                    // A step of the element type either way: the sum of squares is f32 there and f64 here.
                    let step = 4.0 * half_ulp(self.elem).max(half_ulp(self.cache)) * 8.0;
                    if f64::from((k[at + d] - key).abs()) > step {
                        return Ok(f64::INFINITY);
                    }
                    wanted_k[at + d] = k[at + d];
                    let value =
                        self.host.qkv[b * self.heads.qkv() + (heads + kv_heads + h) * head_dim + d];
                    wanted_v[at + d] = rounded(self.cache, value);
                }
                for j in 0..self.heads.group() {
                    let to = (b * heads + h * self.heads.group() + j) * head_dim;
                    let error = self.head_error((b, h, j), (&k, &v), &found[to..to + head_dim]);
                    if error.is_nan() {
                        return Ok(error);
                    }
                    worst = worst.max(error);
                }
            }
        }
        let mut wanted = vec![u32::MAX; self.positions.len()];
        for b in 0..self.batch {
            for h in 0..kv_heads {
                wanted[self.at(b, h, self.rows) / head_dim] = 1000 + b as u32;
            }
        }
        if gpu.read(self.positions.view())? != wanted {
            return Ok(f64::INFINITY);
        }
        // Nothing but the new rows may have changed.
        let same = |a: &[f32], b: &[f32]| {
            a.iter().zip(b).all(|(a, b)| a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan())
        };
        Ok(if same(&k, &wanted_k) && same(&v, &wanted_v) { worst } else { f64::INFINITY })
    }

    fn disturb(&mut self, gpu: &Gpu) -> Result<Option<Vec<Vec<Range<usize>>>>, GpuError> {
        if self.batch == 1 {
            return Ok(None);
        }
        let last = self.batch - 1;
        for value in &mut self.host.qkv[last * self.heads.qkv()..] {
            *value = rounded(self.elem, 1.0 - *value);
        }
        let from = last * self.sequence();
        for value in &mut self.host.v[from..] {
            *value = -*value;
        }
        self.upload(gpu)?;
        let kept = last * self.heads.heads * self.heads.head_dim * self.elem.size();
        Ok(Some(vec![vec![0..kept]]))
    }

    fn misuse(&self, gpu: &Gpu) -> Vec<(&'static str, Result<(), GpuError>)> {
        let Ok(out) = self.out.cast::<E>() else { return Vec::new() };
        let short = out.part(0..out.len() - 1).unwrap_or(out);
        let odd = Heads { head_dim: 33, ..self.heads };
        let dtypes = (self.elem, self.cache);
        vec![
            ("more splits than allocated", self.call(gpu, self.splits + 1, out, false)),
            ("no split", self.call(gpu, 0, out, false)),
            ("an output one element short", self.call(gpu, self.splits, short, false)),
            ("an odd head width", DecodeAttention::new(gpu, dtypes, odd, (1, 1)).map(|_| ())),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decode_attention_holds_its_promise_on_the_emulator() {
        let Ok(gpu) = Gpu::emulated() else {
            eprintln!("skipped: no C++ compiler");
            return;
        };
        for cell in CELLS.iter().filter(|cell| cell.sizes[4] < 1000) {
            let mut case = (ENTRIES[0].open)(&gpu, cell).unwrap();
            for seed in 1..3 {
                case.fill(&gpu, seed).unwrap();
                case.run(&gpu).unwrap();
                let error = case.error(&gpu).unwrap();
                assert!(error <= 1.0, "{cell:?}: {error}");
            }
            case.fill(&gpu, 4).unwrap();
            case.run_wrong(&gpu).unwrap();
            let wrong = case.error(&gpu).unwrap();
            assert!(wrong > 1.0, "{cell:?}: {wrong}");
            for (what, result) in case.misuse(&gpu) {
                assert!(result.is_err(), "{cell:?}: {what} passed");
            }
        }
    }
}
