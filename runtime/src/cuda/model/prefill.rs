//! A prompt chunk: many rows of one sequence, matrix products by the library.

use std::collections::BTreeMap;

use bytemuck::Pod;
use lockstep_traces::DType;

use super::observe::{HeadStages, Observer};
use super::session::{LOGIT_ROWS, PrefillChunk, RowOut, Session, heads};
use super::weights::{Layer, Matrix};
use crate::Hyper;
use crate::cpu::{Causal, Grouping, WantedRow};
use crate::cuda::gpu::{Buffer, Gpu, GpuError, View};
use crate::cuda::ops::attention::ObserveHeads;
use crate::cuda::ops::attention_prefill::{Prefill, PrefillAttention};
use crate::cuda::ops::embed::Turns;
use crate::cuda::ops::logits::LogitsRows;
use crate::cuda::ops::rope::{ObserveRows, Rope, RopeAppend};

/// Activations of a chunk of `rows` rows.
#[derive(Debug)]
pub(super) struct Workspace<E> {
    rope: Rope,
    attention: PrefillAttention,
    ids: Buffer<u32>,
    index: Buffer<u32>,
    cos: Buffer<f32>,
    sin: Buffer<f32>,
    x: Buffer<E>,
    normed: Buffer<E>,
    qkv: Buffer<E>,
    q: Buffer<E>,
    mixed: Buffer<E>,
    branch: Buffer<E>,
    gate_up: Buffer<E>,
    act: Buffer<E>,
    logits: Buffer<E>,
    observed: Option<ObservedRows<E>>,
}

/// Optional stages, `[rows, width]` each.
#[derive(Debug)]
struct ObservedRows<E> {
    q_norm: Buffer<E>,
    k_norm: Buffer<E>,
    k_rope: Buffer<E>,
}

impl<E: Pod> Workspace<E> {
    fn new(gpu: &Gpu, hyper: &Hyper, types: (DType, DType), rows: usize) -> Result<Self, GpuError> {
        let heads = heads(hyper);
        let wide = heads.heads * heads.head_dim;
        Ok(Self {
            rope: Rope::new(gpu, types, heads)?,
            attention: PrefillAttention::new(gpu, types, heads)?,
            ids: gpu.alloc(rows)?,
            index: gpu.alloc(rows)?,
            cos: gpu.alloc(rows * hyper.head_dim / 2)?,
            sin: gpu.alloc(rows * hyper.head_dim / 2)?,
            x: gpu.alloc(rows * hyper.hidden_size)?,
            normed: gpu.alloc(rows * hyper.hidden_size)?,
            // What cuBLAS writes is set once: its bulk stores are not seen by compute-sanitizer's initcheck, which would call every read of
            // them uninitialised and hide a real one.
            qkv: gpu.zeros(rows * heads.qkv())?,
            q: gpu.alloc(rows * wide)?,
            mixed: gpu.alloc(rows * wide)?,
            branch: gpu.zeros(rows * hyper.hidden_size)?,
            gate_up: gpu.zeros(rows * 2 * hyper.intermediate_size)?,
            act: gpu.alloc(rows * hyper.intermediate_size)?,
            logits: gpu.zeros(LOGIT_ROWS.min(rows) * hyper.vocab_size)?,
            observed: None,
        })
    }

    /// Makes room for the optional stages.
    fn observe(&mut self, gpu: &Gpu, hyper: &Hyper) -> Result<(), GpuError> {
        if self.observed.is_none() {
            let narrow = self.ids.len() * hyper.kv_heads * hyper.head_dim;
            self.observed = Some(ObservedRows {
                q_norm: gpu.alloc(self.q.len())?,
                k_norm: gpu.alloc(narrow)?,
                k_rope: gpu.alloc(narrow)?,
            });
        }
        Ok(())
    }
}

impl<E: Pod> Session<'_, E> {
    /// Feeds prompt rows of one sequence and appends them to its cache. `wanted` and `want_logits` go by index in the chunk.
    ///
    /// # Errors
    /// More rows than the options say, driver errors.
    pub fn prefill(
        &mut self,
        chunk: &mut PrefillChunk<'_>,
        wanted: &BTreeMap<usize, WantedRow>,
        want_logits: &[bool],
    ) -> Result<Vec<RowOut>, GpuError> {
        let rows = chunk.tokens.len();
        if rows == 0 || rows > self.options.prefill_rows {
            return Err(GpuError::unsupported(format!(
                "{rows} prompt rows in a pass; 1 to {} are taken",
                self.options.prefill_rows
            )));
        }
        let gpu = self.gpu().clone();
        let types = (self.model.dtype, self.cache_shape.dtype);
        let mut w = match self.prefill.take() {
            Some(w) => w,
            None => Workspace::new(&gpu, &self.model.hyper, types, self.options.prefill_rows)?,
        };
        let mut observer = Observer::of_chunk(wanted);
        if !observer.is_idle() {
            w.observe(&gpu, &self.model.hyper)?;
        }
        let passed = self
            .chunk(&w, chunk, &mut observer)
            .and_then(|()| self.chunk_logits(&w, chunk, want_logits));
        self.prefill = Some(w);
        let mut out = passed?;
        for (index, row) in out.iter_mut().enumerate() {
            row.hidden = observer.take(index);
        }
        chunk.cache.commit(rows);
        Ok(out)
    }

    /// The layers, up to the final norm in `normed`.
    fn chunk(
        &self,
        w: &Workspace<E>,
        chunk: &mut PrefillChunk<'_>,
        observer: &mut Observer,
    ) -> Result<(), GpuError> {
        let (gpu, rows) = (self.gpu(), chunk.tokens.len());
        let (hyper, dtype) = (&self.model.hyper, self.model.dtype);
        let hidden = hyper.hidden_size;
        chunk.cache.reserve(gpu, rows)?;
        let count = |first: u32| (first..).take(rows).collect::<Vec<u32>>();
        chunk.cache.write_positions(gpu, &count(chunk.position))?;
        gpu.write(w.ids.view(), chunk.tokens)?;
        gpu.write(w.index.view(), &count(chunk.rope_index))?;
        self.embed.rows(gpu, &self.table(), (w.ids.view(), rows), w.x.view())?;
        let turns = Turns { cos: w.cos.view(), sin: w.sin.view() };
        self.embed.rope_table(gpu, &self.frequencies(), (w.index.view(), rows), turns)?;
        observer.end(gpu, "embed", (w.x.view(), hidden), dtype)?;
        let x = (w.x.view(), rows);
        for (index, layer) in self.model.weights.layers.iter().enumerate() {
            let at = |stage| (index, stage);
            self.norm.rms_norm(gpu, x, self.rms(&layer.input_norm), w.normed.view())?;
            self.matrix(w, (w.normed.view(), rows), &layer.qkv, w.qkv.view())?;
            self.attend_chunk(w, chunk, index, layer)?;
            if !observer.is_idle() {
                let normed = layer.norms.is_some() && self.arithmetic.qk_norm;
                observer.attention(gpu, index, &self.chunk_stages(w), normed)?;
            }
            self.matrix(w, (w.mixed.view(), rows), &layer.o, w.branch.view())?;
            observer.layer(gpu, at("attn_out"), (w.branch.view(), hidden), dtype)?;
            let span = 0..rows * hidden;
            self.norm.add_rows(gpu, w.x.part(span.clone())?, w.branch.part(span.clone())?)?;
            self.norm.rms_norm(gpu, x, self.rms(&layer.post_norm), w.normed.view())?;
            observer.layer(gpu, at("post_norm"), (w.normed.view(), hidden), dtype)?;
            self.matrix(w, (w.normed.view(), rows), &layer.gate_up, w.gate_up.view())?;
            let width = hyper.intermediate_size;
            self.norm.swiglu(gpu, w.gate_up.view(), (rows, width), w.act.view())?;
            self.matrix(w, (w.act.view(), rows), &layer.down, w.branch.view())?;
            observer.layer(gpu, at("mlp_out"), (w.branch.view(), hidden), dtype)?;
            self.norm.add_rows(gpu, w.x.part(span.clone())?, w.branch.part(span)?)?;
            observer.layer(gpu, at("out"), (w.x.view(), hidden), dtype)?;
        }
        let weight = &self.model.weights.final_norm;
        self.norm.rms_norm(gpu, x, self.rms(weight), w.normed.view())?;
        observer.end(gpu, "final_norm", (w.normed.view(), hidden), dtype)
    }

    /// A projection with its bias.
    fn matrix(
        &self,
        w: &Workspace<E>,
        (x, rows): (View<E>, usize),
        matrix: &Matrix<E>,
        out: View<E>,
    ) -> Result<(), GpuError> {
        let gpu = self.gpu();
        self.linear.product(gpu, (x, rows), (matrix.matrix.view(), matrix.rows, matrix.k), out)?;
        match &matrix.bias {
            Some(bias) => w.rope.add_bias(gpu, (out, rows), (bias.view(), matrix.rows)),
            None => Ok(()),
        }
    }

    fn attend_chunk(
        &self,
        w: &Workspace<E>,
        chunk: &PrefillChunk<'_>,
        index: usize,
        layer: &Layer<E>,
    ) -> Result<(), GpuError> {
        match self.cache_shape.dtype {
            DType::F32 => self.attend_typed::<f32>(w, chunk, index, layer),
            _ => self.attend_typed::<u16>(w, chunk, index, layer),
        }
    }

    /// Norm, rotation, append and attention of one layer; `C` holds elements of the cache.
    fn attend_typed<C: Pod>(
        &self,
        w: &Workspace<E>,
        chunk: &PrefillChunk<'_>,
        index: usize,
        layer: &Layer<E>,
    ) -> Result<(), GpuError> {
        let (gpu, store) = (self.gpu(), chunk.cache.store());
        let (rows, rows_before) = (chunk.tokens.len(), chunk.cache.rows());
        let bytes = store.capacity * self.cache_shape.row_bytes() / self.cache_shape.layers;
        let part = index * bytes..(index + 1) * bytes;
        let (k, v): (View<C>, View<C>) =
            (store.k.part(part.clone())?.cast()?, store.v.part(part)?.cast()?);
        let norms = layer.norms.as_ref().filter(|_| self.arithmetic.qk_norm);
        let observed = w.observed.as_ref();
        let append = RopeAppend {
            rows,
            rows_before,
            qkv: w.qkv.view(),
            norms: norms.map(|(q, k)| (q.view(), k.view())),
            eps: self.arithmetic.norm_eps,
            cos: w.cos.view(),
            sin: w.sin.view(),
            q: w.q.view(),
            k,
            v,
            capacity: store.capacity,
            observe: ObserveRows {
                q_norm: observed.map(|o| o.q_norm.view()),
                k_norm: observed.map(|o| o.k_norm.view()),
                k_rope: observed.map(|o| o.k_rope.view()),
            },
        };
        w.rope.append(gpu, &append)?;
        let attend = Prefill {
            rows,
            rows_before,
            q: w.q.view(),
            k,
            v,
            capacity: store.capacity,
            out: w.mixed.view(),
            next: self.arithmetic.causal == Causal::Next,
            tile: self.arithmetic.grouping == Grouping::Tile,
        };
        w.attention.queue(gpu, &attend)
    }

    /// Where the stages of a chunk lie.
    fn chunk_stages(&self, w: &Workspace<E>) -> HeadStages<E> {
        let observed = w.observed.as_ref();
        HeadStages {
            heads: heads(&self.model.hyper),
            dtype: self.model.dtype,
            hidden: self.model.hyper.hidden_size,
            input_norm: w.normed.view(),
            qkv: w.qkv.view(),
            observed: ObserveHeads {
                q_norm: observed.map_or(w.q.view(), |o| o.q_norm.view()),
                q_rope: w.q.view(),
                k_norm: observed.map_or(w.q.view(), |o| o.k_norm.view()),
                k_rope: observed.map_or(w.q.view(), |o| o.k_rope.view()),
            },
            mixed: w.mixed.view(),
        }
    }

    /// Logits of every row, some hundred at a time, with their summaries; the draw from the last one.
    fn chunk_logits(
        &mut self,
        w: &Workspace<E>,
        chunk: &PrefillChunk<'_>,
        want_logits: &[bool],
    ) -> Result<Vec<RowOut>, GpuError> {
        let (model, rows) = (self.model, chunk.tokens.len());
        let (gpu, hyper) = (&model.gpu, &model.hyper);
        let (vocab, hidden) = (hyper.vocab_size, hyper.hidden_size);
        let mut out = Vec::with_capacity(rows);
        for first in (0..rows).step_by(LOGIT_ROWS) {
            let count = LOGIT_ROWS.min(rows - first);
            let x = w.normed.part(first * hidden..(first + count) * hidden)?;
            let head = (model.weights.head().view(), vocab, hidden);
            self.linear.product(gpu, (x, count), head, w.logits.view())?;
            let logits = LogitsRows { logits: w.logits.view().cast()?, stride: vocab, rows: count };
            self.summaries.queue(gpu, logits, None, self.told.top_k, self.told.output())?;
            self.told.fetch(gpu, count)?;
            let last = first + count == rows;
            if last && chunk.draw {
                let row = w.logits.part((count - 1) * vocab..count * vocab)?.cast()?;
                let row = LogitsRows { logits: row, stride: vocab, rows: 1 };
                let own = self.told.draws.part(chunk.slot..chunk.slot + 1)?;
                self.sampler.queue(gpu, row, chunk.slot, None, own)?;
                gpu.queue_read(self.told.draws.view(), &mut self.told.host_draws)?;
            }
            gpu.synchronize()?;
            for row in 0..count {
                let wanted = want_logits.get(first + row).copied().unwrap_or(false);
                let logits = if wanted {
                    let part = w.logits.part(row * vocab..(row + 1) * vocab)?;
                    Some(super::observe::values(gpu, part, model.dtype)?)
                } else {
                    None
                };
                let draws = chunk.draw && last && row + 1 == count;
                out.push(RowOut {
                    summary: self.told.summary(row),
                    logits,
                    hidden: None,
                    drawn: draws.then(|| self.told.drawn(chunk.slot)),
                    rows_bucketed: None,
                });
            }
        }
        Ok(out)
    }
}
