//! A decode pass: one new row of each sequence, recorded once for each bucket and replayed.

use std::collections::BTreeMap;

use bytemuck::Pod;

use super::observe::{Observed, Observer};
use super::session::{DecodeRow, RowOut, Session, heads};
use super::setup::Splits;
use super::weights::Layer;
use crate::cpu::{Grouping, WantedRow};
use crate::cuda::Slot;
use crate::cuda::gpu::GpuError;
use crate::cuda::ops::attention::Attend;
use crate::cuda::ops::embed::Turns;
use crate::cuda::ops::linear::Weight;
use crate::cuda::ops::logits::LogitsRows;

/// Shape of a pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Bucket {
    pub(super) batch: usize,
    pub(super) rows: usize,
}

impl<E: Pod> Session<'_, E> {
    /// Feeds one token of each sequence and appends its row. `wanted` names rows by their index in `rows`.
    ///
    /// # Errors
    /// A batch or cache that does not fit, driver errors.
    pub fn decode(
        &mut self,
        rows: &mut [DecodeRow<'_>],
        wanted: &BTreeMap<usize, WantedRow>,
        want_logits: &[bool],
    ) -> Result<Vec<RowOut>, GpuError> {
        let bucket = self.prepare(rows)?;
        let mut observer = Observer::new(rows, wanted);
        if observer.is_idle() {
            self.replay(bucket)?;
        } else {
            if self.observing.is_none() {
                self.observing = Some(Observed::new(self.gpu(), &self.model.hyper)?);
            }
            self.pass(bucket, &mut observer)?;
        }
        self.gpu().synchronize()?;
        for row in rows.iter_mut() {
            row.cache.commit(1);
        }
        let mut out = Vec::with_capacity(rows.len());
        for (index, row) in rows.iter().enumerate() {
            let logits = if want_logits.get(index).copied().unwrap_or(false) {
                Some(self.logits_of(row.slot)?)
            } else {
                None
            };
            out.push(RowOut {
                summary: self.told.summary(row.slot),
                logits,
                hidden: observer.take(index),
                drawn: Some(self.told.drawn(row.slot)),
                rows_bucketed: u32::try_from(bucket.rows).ok(),
            });
        }
        Ok(out)
    }

    /// Slots of the batch, room in every cache, and the bucket.
    fn prepare(&mut self, rows: &mut [DecodeRow<'_>]) -> Result<Bucket, GpuError> {
        let gpu = self.gpu().clone();
        let widest = rows.iter().map(|row| row.slot + 1).max().unwrap_or(1);
        let batch = self.options.batch_bucket(widest).ok_or_else(|| {
            GpuError::unsupported(format!("slot {} is beyond the largest batch bucket", widest - 1))
        })?;
        for row in rows.iter_mut() {
            row.cache.reserve(&gpu, 1)?;
        }
        let live = rows.iter().map(|row| row.cache.rows() + 1).max().unwrap_or(1);
        let bucket = Bucket { batch, rows: self.options.row_bucket(live) };
        self.grow(bucket.rows)?;
        let slots = self.pinned_slots.slice_mut();
        slots.fill(Slot::default());
        for row in rows.iter() {
            slots[row.slot] = row.cache.slot(row.token, row.position, row.rope_index);
        }
        Ok(bucket)
    }

    fn replay(&mut self, bucket: Bucket) -> Result<(), GpuError> {
        if !self.options.graphs {
            return self.pass(bucket, &mut Observer::idle());
        }
        let key = (bucket.batch, bucket.rows);
        if !self.graphs.contains_key(&key) {
            let gpu = self.gpu().clone();
            let graph = gpu.record(|| self.pass(bucket, &mut Observer::idle()))?;
            self.graphs.insert(key, graph);
        }
        self.graphs.get(&key).map_or(Ok(()), crate::cuda::gpu::Graph::launch)
    }

    /// Queues the whole pass; with an observer that wants something it waits in between.
    fn pass(&mut self, bucket: Bucket, observer: &mut Observer) -> Result<(), GpuError> {
        let Bucket { batch, .. } = bucket;
        let (gpu, hyper, weights) = (self.gpu(), &self.model.hyper, &self.model.weights);
        let s = &self.scratch;
        let splits =
            Splits::of(&self.options, (batch, bucket.rows), hyper.kv_heads, gpu.info().sm_count);
        let seen = self.observing.as_ref().filter(|_| !observer.is_idle());
        let (hidden, dtype) = (hyper.hidden_size, self.model.dtype);
        let (x, normed) = ((s.x.view(), batch), (s.normed.view(), batch));
        gpu.queue_write(s.slots.view(), &self.pinned_slots)?;
        let turns = Turns { cos: s.cos.view(), sin: s.sin.view() };
        self.embed.slots(
            gpu,
            (s.slots.view(), batch),
            &self.table(),
            &self.frequencies(),
            (s.x.view(), turns),
        )?;
        observer.end(gpu, "embed", (s.x.view(), hidden), dtype)?;
        for (index, layer) in weights.layers.iter().enumerate() {
            let at = |stage| (index, stage);
            self.norm.rms_norm(gpu, x, self.rms(&layer.input_norm), s.normed.view())?;
            self.linear.plain(gpu, normed, &layer.qkv.weight(), s.qkv.view())?;
            self.attend(index, layer, (batch, splits), seen)?;
            if let Some(seen) = seen {
                let normed = layer.norms.is_some() && self.arithmetic.qk_norm;
                observer.attention(gpu, index, &self.stages(seen), normed)?;
            }
            let branch = seen.map(|seen| seen.branch.view());
            let mixed = (s.heads.view(), batch);
            self.linear.residual(gpu, mixed, &layer.o.weight(), s.x.view(), branch)?;
            if let Some(branch) = branch {
                observer.layer(gpu, at("attn_out"), (branch, hidden), dtype)?;
            }
            self.norm.rms_norm(gpu, x, self.rms(&layer.post_norm), s.normed.view())?;
            observer.layer(gpu, at("post_norm"), (s.normed.view(), hidden), dtype)?;
            self.linear.swiglu(gpu, normed, &layer.gate_up.halves(), s.act.view())?;
            let act = (s.act.view(), batch);
            self.linear.residual(gpu, act, &layer.down.weight(), s.x.view(), branch)?;
            if let Some(branch) = branch {
                observer.layer(gpu, at("mlp_out"), (branch, hidden), dtype)?;
                observer.layer(gpu, at("out"), (s.x.view(), hidden), dtype)?;
            }
        }
        self.norm.rms_norm(gpu, x, self.rms(&weights.final_norm), s.normed.view())?;
        observer.end(gpu, "final_norm", (s.normed.view(), hidden), dtype)?;
        self.finish(batch)
    }

    /// Attention of one layer.
    fn attend(
        &self,
        index: usize,
        layer: &Layer<E>,
        (batch, splits): (usize, Splits),
        seen: Option<&Observed<E>>,
    ) -> Result<(), GpuError> {
        let s = &self.scratch;
        let norms = layer.norms.as_ref().filter(|_| self.arithmetic.qk_norm);
        let attend = Attend {
            slots: s.slots.view(),
            batch,
            qkv: s.qkv.view(),
            cos: s.cos.view(),
            sin: s.sin.view(),
            norms: norms.map(|(q, k)| (q.view(), k.view())),
            eps: self.arithmetic.norm_eps,
            layer: u32::try_from(index).unwrap_or(u32::MAX),
            splits: splits.count,
            split_rows: splits.rows,
            tile: self.arithmetic.grouping == Grouping::Tile,
            out: s.heads.view(),
            observe: seen.map(Observed::heads),
        };
        self.attention.queue(self.gpu(), &attend)
    }

    /// Logits, their summaries, the draws, and the copies of what comes back.
    fn finish(&mut self, batch: usize) -> Result<(), GpuError> {
        let (model, gpu) = (self.model, &self.model.gpu);
        let (hyper, s) = (&model.hyper, &self.scratch);
        let head = Weight {
            matrix: model.weights.head().view(),
            bias: None,
            rows: hyper.vocab_size,
            k: hyper.hidden_size,
        };
        self.linear.plain(gpu, (s.normed.view(), batch), &head, s.logits.view())?;
        let logits = s.logits.view().cast()?;
        let rows = LogitsRows { logits, stride: hyper.vocab_size, rows: batch };
        let slots = Some(s.slots.view());
        if self.options.summaries {
            self.summaries.queue(gpu, rows, slots, self.told.top_k, self.told.output())?;
        }
        self.sampler.queue(gpu, rows, 0, slots, self.told.draws.view())?;
        if self.options.summaries {
            self.told.fetch(gpu, batch)?;
        }
        let draws = self.told.draws.part(0..batch)?;
        gpu.queue_read(draws, &mut self.told.host_draws)
    }

    /// Full logits of a slot after a pass.
    fn logits_of(&self, slot: usize) -> Result<Vec<f32>, GpuError> {
        let vocab = self.model.hyper.vocab_size;
        let row = self.scratch.logits.part(slot * vocab..(slot + 1) * vocab)?;
        super::observe::values(self.gpu(), row, self.model.dtype)
    }

    /// Where the stages of an observed pass lie, with their widths.
    fn stages<'a>(&'a self, seen: &'a Observed<E>) -> super::observe::HeadStages<E> {
        super::observe::HeadStages::new(
            heads(&self.model.hyper),
            &self.scratch,
            seen,
            self.model.dtype,
        )
    }
}
