//! `rope_append` under test.

use std::ops::Range;

use bytemuck::Pod;
use lockstep_traces::DType;

use super::super::{Case, Cell, Guarded, Output};
use super::{APPEND_SIZES, Allowed, compare, worse};
use crate::cuda::gpu::{Buffer, Gpu, GpuError};
use crate::cuda::ops::attention::Heads;
use crate::cuda::ops::rope::{ObserveRows, Rope, RopeAppend};
use crate::cuda::testing::{Values, decode, encode, half_ulp, rounded};

const EPS: f32 = 1e-6;
/// What cache rows hold before.
const BEFORE: f32 = 7.5;

/// `rope_append` of one cell.
pub(super) struct Append<E, C> {
    elem: DType,
    cache: DType,
    rows: usize,
    before: usize,
    heads: Heads,
    capacity: usize,
    norm: bool,
    pub(super) rope: Rope,
    qkv: Buffer<E>,
    weights: [Buffer<f32>; 2],
    cos: Buffer<f32>,
    sin: Buffer<f32>,
    /// q, q_norm, k_norm, k_rope of `elem`.
    pub(super) rows_out: [Guarded<u8>; 4],
    /// K and V.
    pub(super) caches: [Guarded<u8>; 2],
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

impl<E: Pod, C: Pod> Append<E, C> {
    pub(super) fn new(gpu: &Gpu, cell: &Cell) -> Result<Self, GpuError> {
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

    pub(super) fn call(&self) -> Result<RopeAppend<E, C>, GpuError> {
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
            .map(|heads| std::iter::once(0..heads * bytes).collect())
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
