//! The forward pass of a batch of segments, each some new rows of one sequence.

use std::ops::Range;

use rayon::prelude::*;

use super::attention::{AttentionInput, attend};
use super::kernels::Isa;
use super::matmul::{Plan, linear, matmul};
use super::{Taps, ops};
use crate::cache::KvCache;
use crate::weights::{LayerWeights, ModelWeights};
use crate::{Hyper, RotaryTable};
use lockstep_traces::DType;

/// Multiply-adds of a pass below which it stays on the calling thread.
const PARALLEL_FROM: usize = 1 << 23;

/// Which KV head serves a query head.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Grouping {
    /// `head / group`.
    Repeat,
    /// `head % kv_heads`.
    Tile,
}

/// What a new row sees of the rows that are appended with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Causal {
    /// Up to itself.
    Itself,
    /// Up to the next one, where there is one in the segment.
    Next,
}

/// Everything that decides numbers besides the weights.
#[derive(Debug, Clone, PartialEq)]
pub struct Arithmetic {
    /// Dtype that activations are rounded to.
    pub dtype: DType,
    /// Rotary table.
    pub rotary: RotaryTable,
    /// RMSNorm epsilon.
    pub norm_eps: f32,
    /// RMSNorm on query and key heads.
    pub qk_norm: bool,
    /// Query head to KV head.
    pub grouping: Grouping,
    /// Mask.
    pub causal: Causal,
}

impl Arithmetic {
    /// The model's own, in `dtype`.
    #[must_use]
    pub fn of(hyper: &Hyper, dtype: DType) -> Self {
        Self {
            dtype,
            rotary: hyper.rotary(),
            norm_eps: hyper.norm_eps as f32,
            qk_norm: hyper.qk_norm,
            grouping: Grouping::Repeat,
            causal: Causal::Itself,
        }
    }
}

/// New rows of one sequence.
#[derive(Debug)]
pub struct Segment<'a> {
    /// Tokens fed, below the vocabulary size.
    pub tokens: &'a [u32],
    /// Absolute position of the first.
    pub position: u32,
    /// Rotary index of the first; the others count up.
    pub rope_index: u32,
    /// Cache that the rows are appended to; it has room for them.
    pub cache: &'a mut KvCache,
}

/// A model on the CPU.
#[derive(Debug)]
pub struct CpuModel {
    hyper: Hyper,
    weights: ModelWeights,
    isa: Isa,
}

/// Activations of one layer.
struct Scratch {
    rows: usize,
    x: Vec<f32>,
    normed: Vec<f32>,
    q: Vec<f32>,
    k: Vec<f32>,
    v: Vec<f32>,
    mixed: Vec<f32>,
    branch: Vec<f32>,
    gate: Vec<f32>,
    up: Vec<f32>,
    /// `[rows, head_dim / 2]`.
    cos: Vec<f32>,
    sin: Vec<f32>,
}

impl CpuModel {
    /// A model from its weights.
    #[must_use]
    pub fn new(hyper: Hyper, weights: ModelWeights, isa: Isa) -> Self {
        Self { hyper, weights, isa }
    }

    /// Resolved values.
    #[must_use]
    pub const fn hyper(&self) -> &Hyper {
        &self.hyper
    }

    /// Weights.
    #[must_use]
    pub const fn weights(&self) -> &ModelWeights {
        &self.weights
    }

    /// Instruction set of the kernels.
    #[must_use]
    pub const fn isa(&self) -> Isa {
        self.isa
    }

    /// Appends the segments' rows to their caches and returns the logits of every row, `[rows, vocab]`, f32 (rounded to the
    /// arithmetic's dtype).
    pub fn forward(
        &self,
        arithmetic: &Arithmetic,
        segments: &mut [Segment<'_>],
        taps: &mut Taps<'_>,
    ) -> Vec<f32> {
        let rows: usize = segments.iter().map(|segment| segment.tokens.len()).sum();
        let weights = self.weights.bytes_per_token() / self.weights.embedding.dtype().size();
        let seen: usize =
            segments.iter().map(|segment| segment.tokens.len() * segment.cache.rows()).sum();
        let attention = 2 * seen * self.hyper.layers * self.hyper.heads * self.hyper.head_dim;
        let parallel = rows * weights + attention >= PARALLEL_FROM;
        let plan = Plan { isa: self.isa, dtype: arithmetic.dtype, parallel };
        if parallel {
            // One entry into the pool: a parallel loop started from outside it would block and wake a thread each time.
            rayon::scope(|_| self.pass(plan, arithmetic, segments, taps))
        } else {
            self.pass(plan, arithmetic, segments, taps)
        }
    }

    fn pass(
        &self,
        plan: Plan,
        arithmetic: &Arithmetic,
        segments: &mut [Segment<'_>],
        taps: &mut Taps<'_>,
    ) -> Vec<f32> {
        let mut scratch = self.embed(arithmetic, segments);
        let rows = scratch.rows;
        taps.end("embed", &scratch.x, rows);
        for (layer, weights) in self.weights.layers.iter().enumerate() {
            let pass = LayerPass { hyper: &self.hyper, arithmetic, weights, layer, plan };
            pass.attention(&mut scratch, segments, taps);
            pass.mlp(&mut scratch, taps);
        }
        for segment in segments {
            let count = segment.tokens.len() as u32;
            segment.cache.commit(segment.position..segment.position + count);
        }
        norm_rows(arithmetic, &scratch.x, &self.weights.final_norm, &mut scratch.normed);
        taps.end("final_norm", &scratch.normed, rows);
        let mut logits = vec![0.0; rows * self.hyper.vocab_size];
        matmul(plan, self.weights.head_matrix(), &scratch.normed, &mut logits);
        ops::round(arithmetic.dtype, &mut logits);
        logits
    }

    fn embed(&self, arithmetic: &Arithmetic, segments: &[Segment<'_>]) -> Scratch {
        let hyper = &self.hyper;
        let rows: usize = segments.iter().map(|segment| segment.tokens.len()).sum();
        let (hidden, freqs) = (hyper.hidden_size, hyper.head_dim / 2);
        let mut scratch = Scratch {
            rows,
            x: vec![0.0; rows * hidden],
            normed: vec![0.0; rows * hidden],
            q: vec![0.0; rows * hyper.heads * hyper.head_dim],
            k: vec![0.0; rows * hyper.kv_heads * hyper.head_dim],
            v: vec![0.0; rows * hyper.kv_heads * hyper.head_dim],
            mixed: vec![0.0; rows * hyper.heads * hyper.head_dim],
            branch: vec![0.0; rows * hidden],
            gate: vec![0.0; rows * hyper.intermediate_size],
            up: vec![0.0; rows * hyper.intermediate_size],
            cos: vec![0.0; rows * freqs],
            sin: vec![0.0; rows * freqs],
        };
        let tokens = segments.iter().flat_map(|segment| segment.tokens);
        for (token, x) in tokens.zip(scratch.x.chunks_exact_mut(hidden)) {
            let start = *token as usize * hidden;
            self.weights.embedding.elements().widen(start..start + hidden, x);
        }
        let indices = segments.iter().flat_map(|segment| {
            (0..segment.tokens.len()).map(|row| segment.rope_index + row as u32)
        });
        let tables = scratch.cos.chunks_exact_mut(freqs).zip(scratch.sin.chunks_exact_mut(freqs));
        for (index, (cos, sin)) in indices.zip(tables) {
            arithmetic.rotary.cos_sin(index, cos, sin);
        }
        ops::round(arithmetic.dtype, &mut scratch.cos);
        ops::round(arithmetic.dtype, &mut scratch.sin);
        scratch
    }
}

/// One layer of one pass.
struct LayerPass<'a> {
    hyper: &'a Hyper,
    arithmetic: &'a Arithmetic,
    weights: &'a LayerWeights,
    layer: usize,
    plan: Plan,
}

impl LayerPass<'_> {
    fn attention(&self, s: &mut Scratch, segments: &mut [Segment<'_>], taps: &mut Taps<'_>) {
        let Self { hyper, arithmetic, weights, layer, plan } = *self;
        let (rows, dtype) = (s.rows, arithmetic.dtype);
        norm_rows(arithmetic, &s.x, &weights.input_norm, &mut s.normed);
        taps.layer(layer, "input_norm", &s.normed, rows);
        linear(plan, &weights.q_proj, &s.normed, &mut s.q);
        linear(plan, &weights.k_proj, &s.normed, &mut s.k);
        linear(plan, &weights.v_proj, &s.normed, &mut s.v);
        taps.layer(layer, "q_proj", &s.q, rows);
        taps.layer(layer, "k_proj", &s.k, rows);
        taps.layer(layer, "v_proj", &s.v, rows);
        if let (true, Some(q_norm), Some(k_norm)) =
            (arithmetic.qk_norm, &weights.q_norm, &weights.k_norm)
        {
            norm_heads(arithmetic, &mut s.q, q_norm);
            norm_heads(arithmetic, &mut s.k, k_norm);
            taps.layer(layer, "q_norm", &s.q, rows);
            taps.layer(layer, "k_norm", &s.k, rows);
        }
        if let Some(sums) = &mut taps.queries {
            sums.add(layer, &s.q, rows);
        }
        let freqs = hyper.head_dim / 2;
        for row in 0..rows {
            let (cos, sin) =
                (&s.cos[row * freqs..(row + 1) * freqs], &s.sin[row * freqs..(row + 1) * freqs]);
            for (values, heads) in [(&mut s.q, hyper.heads), (&mut s.k, hyper.kv_heads)] {
                let width = heads * hyper.head_dim;
                let row = &mut values[row * width..(row + 1) * width];
                for head in row.chunks_exact_mut(hyper.head_dim) {
                    ops::rotate(dtype, head, cos, sin);
                }
            }
        }
        taps.layer(layer, "q_rope", &s.q, rows);
        taps.layer(layer, "k_rope", &s.k, rows);
        self.attend(s, segments);
        taps.layer(layer, "attn_heads", &s.mixed, rows);
        linear(plan, &weights.o_proj, &s.mixed, &mut s.branch);
        taps.layer(layer, "attn_out", &s.branch, rows);
        ops::add(dtype, &mut s.x, &s.branch);
    }

    /// Appends K and V and attends, segment by segment.
    fn attend(&self, s: &mut Scratch, segments: &mut [Segment<'_>]) {
        let Self { hyper, arithmetic, layer, plan, .. } = *self;
        let tile = arithmetic.grouping == Grouping::Tile;
        let queries = if tile { regroup(&s.q, hyper, Direction::ToTile) } else { s.q.clone() };
        let (wide, narrow) = (hyper.heads * hyper.head_dim, hyper.kv_heads * hyper.head_dim);
        let mut row = 0;
        for segment in segments {
            let count = segment.tokens.len();
            let part = row * narrow..(row + count) * narrow;
            let before = segment.cache.rows();
            segment.cache.append(layer, &s.k[part.clone()], &s.v[part]);
            let window = hyper.windows.get(layer).copied().flatten();
            let visible: Vec<Range<usize>> = (0..count)
                .map(|row| {
                    let end = match arithmetic.causal {
                        Causal::Itself => before + row + 1,
                        Causal::Next => (before + row + 2).min(before + count),
                    };
                    // The window counts the row itself.
                    window.map_or(0, |window| (before + row + 1).saturating_sub(window))..end
                })
                .collect();
            let part = row * wide..(row + count) * wide;
            let input = AttentionInput {
                cache: segment.cache,
                layer,
                queries: &queries[part.clone()],
                visible: &visible,
            };
            attend(plan, &input, &mut s.mixed[part]);
            row += count;
        }
        if tile {
            s.mixed = regroup(&s.mixed, hyper, Direction::FromTile);
        }
    }

    fn mlp(&self, s: &mut Scratch, taps: &mut Taps<'_>) {
        let Self { arithmetic, weights, layer, plan, hyper } = *self;
        let (rows, dtype) = (s.rows, arithmetic.dtype);
        norm_rows(arithmetic, &s.x, &weights.post_norm, &mut s.normed);
        taps.layer(layer, "post_norm", &s.normed, rows);
        linear(plan, &weights.gate_proj, &s.normed, &mut s.gate);
        linear(plan, &weights.up_proj, &s.normed, &mut s.up);
        let width = hyper.intermediate_size;
        if plan.parallel && rows > 1 {
            let rows = s.gate.par_chunks_mut(width).zip(s.up.par_chunks(width));
            rows.for_each(|(gate, up)| ops::swiglu(dtype, gate, up));
        } else {
            ops::swiglu(dtype, &mut s.gate, &s.up);
        }
        linear(plan, &weights.down_proj, &s.gate, &mut s.branch);
        taps.layer(layer, "mlp_out", &s.branch, rows);
        ops::add(dtype, &mut s.x, &s.branch);
        taps.layer(layer, "out", &s.x, rows);
    }
}

fn norm_rows(arithmetic: &Arithmetic, x: &[f32], weight: &[f32], out: &mut [f32]) {
    let width = weight.len();
    for (x, out) in x.chunks_exact(width).zip(out.chunks_exact_mut(width)) {
        ops::rms_norm(arithmetic.dtype, x, weight, arithmetic.norm_eps, out);
    }
}

fn norm_heads(arithmetic: &Arithmetic, heads: &mut [f32], weight: &[f32]) {
    let mut normed = vec![0.0; weight.len()];
    for head in heads.chunks_exact_mut(weight.len()) {
        ops::rms_norm(arithmetic.dtype, head, weight, arithmetic.norm_eps, &mut normed);
        head.copy_from_slice(&normed);
    }
}

#[derive(Clone, Copy)]
enum Direction {
    ToTile,
    FromTile,
}

/// Reorders heads between query order and the order (KV head, place in group) of tiled grouping, where query head
/// `place * kv_heads + kv_head` belongs to `kv_head`. Repeated grouping is in that order already.
fn regroup(values: &[f32], hyper: &Hyper, direction: Direction) -> Vec<f32> {
    let dim = hyper.head_dim;
    let group = hyper.group();
    let head_range = |head: usize| -> Range<usize> { head * dim..(head + 1) * dim };
    let mut out = vec![0.0; values.len()];
    let width = hyper.heads * dim;
    for (from, to) in values.chunks_exact(width).zip(out.chunks_exact_mut(width)) {
        for kv_head in 0..hyper.kv_heads {
            for place in 0..group {
                let grouped = head_range(kv_head * group + place);
                let query = head_range(place * hyper.kv_heads + kv_head);
                match direction {
                    Direction::ToTile => to[grouped].copy_from_slice(&from[query]),
                    Direction::FromTile => to[query].copy_from_slice(&from[grouped]),
                }
            }
        }
    }
    out
}
