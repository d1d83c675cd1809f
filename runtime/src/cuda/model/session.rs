//! What a run keeps on the device: kernels, working memory, random streams, recorded passes.

use std::collections::BTreeMap;

use bytemuck::Pod;
use lockstep_traces::DType;

use super::cache::{DeviceCache, DeviceCacheShape};
use super::setup::{DeviceOptions, Splits};
use super::weights::DeviceWeights;
use crate::Hyper;
use crate::cpu::{Arithmetic, NamedRows};
use crate::cuda::Slot;
use crate::cuda::gpu::{Buffer, Gpu, GpuError, Graph, Pinned};
use crate::cuda::ops::attention::{DecodeAttention, Heads};
use crate::cuda::ops::embed::{Embed, Frequencies, Table};
use crate::cuda::ops::linear::{Linear, MOST_COLUMNS};
use crate::cuda::ops::logits::{LogitsRecord, Summaries, SummaryOutput, row_summary, top_width};
use crate::cuda::ops::norm::{Norm, Rms};
use crate::cuda::ops::sample::{DeviceDraw, DeviceSampler, DrawRecord};
use crate::engine::RowSummary;
use crate::sample::{SampleError, Sampler};
use crate::weights::ModelWeights;

/// A model's weights on a device. `E` is `f32`, or `u16` for f16 and bf16.
#[derive(Debug)]
pub struct Model<E> {
    pub(super) gpu: Gpu,
    pub(super) hyper: Hyper,
    pub(super) dtype: DType,
    pub(super) weights: DeviceWeights<E>,
}

impl<E: Pod> Model<E> {
    /// Uploads a checkpoint.
    ///
    /// # Errors
    /// [`GpuError::Memory`] and driver errors.
    pub fn upload(
        gpu: &Gpu,
        hyper: &Hyper,
        weights: &ModelWeights,
        dtype: DType,
    ) -> Result<Self, GpuError> {
        let weights = DeviceWeights::upload(gpu, weights, dtype)?;
        Ok(Self { gpu: gpu.clone(), hyper: hyper.clone(), dtype, weights })
    }

    /// Random weights, made on the device.
    ///
    /// # Errors
    /// As [`Model::upload`].
    pub fn random(gpu: &Gpu, hyper: &Hyper, dtype: DType, seed: u64) -> Result<Self, GpuError> {
        let weights = DeviceWeights::random(gpu, hyper, dtype, seed)?;
        Ok(Self { gpu: gpu.clone(), hyper: hyper.clone(), dtype, weights })
    }

    /// Bytes of weights that one decode pass reads.
    #[must_use]
    pub fn bytes_per_pass(&self) -> usize {
        self.weights.bytes_per_pass()
    }
}

/// What a session is made for.
#[derive(Debug, Clone, Copy)]
pub struct SessionSetup<'a> {
    /// Everything that decides numbers besides the weights.
    pub arithmetic: &'a Arithmetic,
    /// Element type of the KV cache.
    pub cache_dtype: DType,
    /// Sampling of the run.
    pub sampler: &'a Sampler,
    /// Ids and logits of a step row.
    pub top_k: usize,
    /// Sequences at once.
    pub batch: usize,
    /// Device choices.
    pub options: &'a DeviceOptions,
}

/// A row of a decode batch.
#[derive(Debug)]
pub struct DecodeRow<'a> {
    /// Place in the batch, kept by a sequence for its life: its random stream lies there.
    pub slot: usize,
    /// Cache that the row is appended to.
    pub cache: &'a mut DeviceCache,
    /// Token fed.
    pub token: u32,
    /// Absolute position.
    pub position: u32,
    /// Rotary index.
    pub rope_index: u32,
}

/// Prompt rows of one sequence.
#[derive(Debug)]
pub struct PrefillChunk<'a> {
    /// Place in the batch.
    pub slot: usize,
    /// Cache that the rows are appended to.
    pub cache: &'a mut DeviceCache,
    /// Tokens fed.
    pub tokens: &'a [u32],
    /// Absolute position of the first.
    pub position: u32,
    /// Rotary index of the first.
    pub rope_index: u32,
    /// A token is drawn from the last row's logits.
    pub draw: bool,
}

/// What comes back of a row.
#[derive(Debug)]
pub struct RowOut {
    /// Summary of its logits.
    pub summary: RowSummary,
    /// The logits, where wanted.
    pub logits: Option<Vec<f32>>,
    /// Hidden states, where wanted.
    pub hidden: Option<NamedRows>,
    /// The draw, where one was asked for.
    pub drawn: Option<Result<DeviceDraw, SampleError>>,
    /// Row bucket of the pass, in decode.
    pub rows_bucketed: Option<u32>,
}

/// Activations of a decode pass.
#[derive(Debug)]
pub(super) struct Scratch<E> {
    pub(super) slots: Buffer<Slot>,
    pub(super) x: Buffer<E>,
    pub(super) normed: Buffer<E>,
    pub(super) qkv: Buffer<E>,
    pub(super) heads: Buffer<E>,
    pub(super) act: Buffer<E>,
    pub(super) logits: Buffer<E>,
    pub(super) cos: Buffer<f32>,
    pub(super) sin: Buffer<f32>,
}

/// Rows of logits that are summarised at once.
pub(super) const LOGIT_ROWS: usize = 512;

/// What comes back of every pass: summaries and draws, on the device and in pinned memory.
#[derive(Debug)]
pub(super) struct Told {
    pub(super) top_k: usize,
    pub(super) records: Buffer<LogitsRecord>,
    pub(super) ids: Buffer<u32>,
    pub(super) logits: Buffer<f32>,
    pub(super) host_records: Pinned<LogitsRecord>,
    pub(super) host_ids: Pinned<u32>,
    pub(super) host_logits: Pinned<f32>,
    /// By slot.
    pub(super) draws: Buffer<DrawRecord>,
    pub(super) host_draws: Pinned<DrawRecord>,
}

impl Told {
    fn new(gpu: &Gpu, top_k: usize) -> Result<Self, GpuError> {
        let width = LOGIT_ROWS * top_width(top_k);
        Ok(Self {
            top_k,
            records: gpu.alloc(LOGIT_ROWS)?,
            ids: gpu.alloc(width)?,
            logits: gpu.alloc(width)?,
            host_records: gpu.pinned(LOGIT_ROWS)?,
            host_ids: gpu.pinned(width)?,
            host_logits: gpu.pinned(width)?,
            draws: gpu.zeros(MOST_COLUMNS)?,
            host_draws: gpu.pinned(MOST_COLUMNS)?,
        })
    }

    /// Where summaries go.
    pub(super) const fn output(&self) -> SummaryOutput {
        SummaryOutput {
            records: self.records.view(),
            top_ids: self.ids.view(),
            top_logits: self.logits.view(),
        }
    }

    /// Queues the copies of `rows` summaries.
    pub(super) fn fetch(&mut self, gpu: &Gpu, rows: usize) -> Result<(), GpuError> {
        let width = rows * top_width(self.top_k);
        gpu.queue_read(self.records.part(0..rows)?, &mut self.host_records)?;
        gpu.queue_read(self.ids.part(0..width)?, &mut self.host_ids)?;
        gpu.queue_read(self.logits.part(0..width)?, &mut self.host_logits)
    }

    /// Summary of a row, once its copy has ended.
    pub(super) fn summary(&self, row: usize) -> RowSummary {
        let width = top_width(self.top_k);
        let part = row * width..(row + 1) * width;
        row_summary(
            &self.host_records.slice()[row],
            &self.host_ids.slice()[part.clone()],
            &self.host_logits.slice()[part],
            self.top_k,
        )
    }

    /// The last draw of a slot, once its copy has ended.
    pub(super) fn drawn(&self, slot: usize) -> Result<DeviceDraw, SampleError> {
        self.host_draws.slice()[slot].outcome()
    }
}

/// A run on a device.
#[derive(Debug)]
pub struct Session<'m, E> {
    pub(super) model: &'m Model<E>,
    pub(super) arithmetic: Arithmetic,
    pub(super) cache_shape: DeviceCacheShape,
    pub(super) options: DeviceOptions,
    pub(super) inv_freq: Buffer<f32>,
    pub(super) linear: Linear,
    pub(super) embed: Embed,
    pub(super) norm: Norm,
    pub(super) attention: DecodeAttention,
    pub(super) summaries: Summaries,
    pub(super) sampler: DeviceSampler,
    pub(super) told: Told,
    pub(super) scratch: Scratch<E>,
    pub(super) pinned_slots: Pinned<Slot>,
    pub(super) graphs: BTreeMap<(usize, usize), Graph>,
    pub(super) prefill: Option<super::prefill::Workspace<E>>,
    pub(super) observing: Option<super::observe::Observed<E>>,
    /// Rows that the attention's working memory is for.
    pub(super) row_limit: usize,
}

impl<'m, E: Pod> Session<'m, E> {
    /// Loads kernels and allocates working memory.
    ///
    /// # Errors
    /// Options or shapes that the kernels do not take, compiler and driver errors.
    pub fn new(model: &'m Model<E>, setup: &SessionSetup<'_>) -> Result<Self, GpuError> {
        setup.options.check()?;
        let (gpu, hyper, dtype) = (&model.gpu, &model.hyper, model.dtype);
        if setup.batch > MOST_COLUMNS || setup.options.batch_bucket(setup.batch).is_none() {
            return Err(GpuError::unsupported(format!(
                "{} sequences at once; the largest batch bucket is {:?}",
                setup.batch,
                setup.options.batch_buckets.last()
            )));
        }
        let batch = MOST_COLUMNS;
        let top_k = setup.top_k.max(1);
        let heads = heads(hyper);
        let row_limit = setup.options.row_bucket(1);
        Ok(Self {
            model,
            arithmetic: setup.arithmetic.clone(),
            cache_shape: DeviceCacheShape {
                layers: hyper.layers,
                kv_heads: hyper.kv_heads,
                head_dim: hyper.head_dim,
                dtype: setup.cache_dtype,
            },
            options: setup.options.clone(),
            inv_freq: gpu.upload(&setup.arithmetic.rotary.inv_freq)?,
            linear: Linear::new(gpu, dtype)?,
            embed: Embed::new(gpu, dtype)?,
            norm: Norm::new(gpu, dtype)?,
            attention: attention(gpu, (dtype, setup.cache_dtype), heads, setup.options, row_limit)?,
            summaries: Summaries::new(gpu, dtype, hyper.vocab_size, LOGIT_ROWS, top_k)?,
            sampler: DeviceSampler::new(gpu, setup.sampler, dtype, batch)?,
            told: Told::new(gpu, top_k)?,
            scratch: Scratch {
                slots: gpu.zeros(batch)?,
                x: gpu.zeros(batch * hyper.hidden_size)?,
                normed: gpu.zeros(batch * hyper.hidden_size)?,
                qkv: gpu.zeros(batch * heads.qkv())?,
                heads: gpu.zeros(batch * heads.heads * heads.head_dim)?,
                act: gpu.zeros(batch * hyper.intermediate_size)?,
                logits: gpu.zeros(batch * hyper.vocab_size)?,
                cos: gpu.zeros(batch * hyper.head_dim / 2)?,
                sin: gpu.zeros(batch * hyper.head_dim / 2)?,
            },
            pinned_slots: gpu.pinned(batch)?,
            graphs: BTreeMap::new(),
            prefill: None,
            observing: None,
            row_limit,
        })
    }

    /// The device.
    #[must_use]
    pub const fn gpu(&self) -> &'m Gpu {
        &self.model.gpu
    }

    /// An empty cache with room for `rows`.
    ///
    /// # Errors
    /// [`GpuError::Memory`].
    pub fn cache(&self, rows: usize) -> Result<DeviceCache, GpuError> {
        DeviceCache::new(self.gpu(), self.cache_shape, rows)
    }

    /// Begins the random stream of a sequence.
    ///
    /// # Errors
    /// Driver errors.
    pub fn start(&mut self, slot: usize, effective_seed: Option<u64>) -> Result<(), GpuError> {
        self.sampler.start(self.gpu(), slot, effective_seed)
    }

    /// Rotary frequencies in force.
    pub(super) const fn frequencies(&self) -> Frequencies {
        Frequencies {
            inv_freq: self.inv_freq.view(),
            scaling: self.arithmetic.rotary.attention_scaling,
        }
    }

    /// The embedding.
    pub(super) fn table(&self) -> Table<E> {
        let hyper = &self.model.hyper;
        let (vocab, hidden) = (hyper.vocab_size, hyper.hidden_size);
        Table { matrix: self.model.weights.embedding.view(), vocab, hidden }
    }

    /// A norm of the model.
    pub(super) const fn rms(&self, weight: &Buffer<f32>) -> Rms {
        Rms { weight: weight.view(), eps: self.arithmetic.norm_eps }
    }

    /// Makes the attention's working memory large enough for a row bucket; recorded passes that used a smaller one are dropped.
    pub(super) fn grow(&mut self, row_bucket: usize) -> Result<(), GpuError> {
        if row_bucket <= self.row_limit {
            return Ok(());
        }
        let dtypes = (self.model.dtype, self.cache_shape.dtype);
        let heads = heads(&self.model.hyper);
        let attention = attention(self.gpu(), dtypes, heads, &self.options, row_bucket)?;
        self.gpu().synchronize()?;
        self.graphs.clear();
        self.attention = attention;
        self.row_limit = row_bucket;
        Ok(())
    }
}

pub(super) const fn heads(hyper: &Hyper) -> Heads {
    Heads { heads: hyper.heads, kv_heads: hyper.kv_heads, head_dim: hyper.head_dim }
}

/// Decode attention with working memory for every batch up to the largest and `rows` live rows.
fn attention(
    gpu: &Gpu,
    dtypes: (DType, DType),
    heads: Heads,
    options: &DeviceOptions,
    rows: usize,
) -> Result<DecodeAttention, GpuError> {
    let count = |batch: usize| {
        Splits::of(options, (batch, rows), heads.kv_heads, gpu.info().sm_count).count
    };
    let splits = options.batch_buckets.iter().map(|&batch| count(batch)).max().unwrap_or(1);
    DecodeAttention::new(gpu, dtypes, heads, (MOST_COLUMNS, splits))
}
