//! Attention of a decode batch.

use bytemuck::Pod;

use crate::cuda::gpu::{
    Arg, Buffer, Build, Gpu, GpuError, Kernel, KernelFile, Program, View, grid,
};
use crate::cuda::slot::Slot;

/// Shape of the attention.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Heads {
    /// Query heads.
    pub heads: usize,
    /// KV heads.
    pub kv_heads: usize,
    /// Width of a head.
    pub head_dim: usize,
}

impl Heads {
    /// Query heads of a KV head.
    #[must_use]
    pub const fn group(&self) -> usize {
        self.heads / self.kv_heads
    }

    /// Width of a row of q, k and v.
    #[must_use]
    pub const fn qkv(&self) -> usize {
        (self.heads + 2 * self.kv_heads) * self.head_dim
    }
}

/// Decode attention, with its working memory for a largest grid.
#[derive(Debug)]
pub struct DecodeAttention {
    heads: Heads,
    kernel: Kernel,
    parts: Buffer<f32>,
    counters: Buffer<u32>,
    batch: usize,
    splits: usize,
}

/// What one launch reads and writes.
#[derive(Debug, Clone, Copy)]
pub struct Attend<E> {
    /// Sequences, `[batch]`.
    pub slots: View<Slot>,
    /// Sequences of the grid.
    pub batch: usize,
    /// `[batch, qkv]`.
    pub qkv: View<E>,
    /// `[batch, head_dim / 2]`, rounded to the element type.
    pub cos: View<f32>,
    /// As `cos`.
    pub sin: View<f32>,
    /// QK norm weights `[head_dim]`, where the model has them.
    pub norms: Option<(View<f32>, View<f32>)>,
    /// Epsilon of the QK norm.
    pub eps: f32,
    /// Layer of the cache.
    pub layer: u32,
    /// Blocks over the rows of a KV head.
    pub splits: usize,
    /// Rows of a block; 0: the live rows divided by `splits`.
    pub split_rows: u32,
    /// Planted: query heads are tiled over KV heads.
    pub tile: bool,
    /// `[batch, heads * head_dim]`.
    pub out: View<E>,
    /// Where to leave q and k after norm and after RoPE.
    pub observe: Option<ObserveHeads<E>>,
}

/// Optional outputs: `[batch, heads * head_dim]` for q, `[batch, kv_heads * head_dim]` for k.
#[derive(Debug, Clone, Copy)]
pub struct ObserveHeads<E> {
    /// q after norm.
    pub q_norm: View<E>,
    /// q after RoPE.
    pub q_rope: View<E>,
    /// k after norm.
    pub k_norm: View<E>,
    /// k after RoPE.
    pub k_rope: View<E>,
}

impl DecodeAttention {
    /// Loads the kernel and allocates for `batch` sequences and `splits` blocks a KV head.
    ///
    /// # Errors
    /// A head shape that the kernel does not take, compiler and driver errors.
    pub fn new(
        gpu: &Gpu,
        (elem, cache): (lockstep_traces::DType, lockstep_traces::DType),
        heads: Heads,
        (batch, splits): (usize, usize),
    ) -> Result<Self, GpuError> {
        let group = heads.group();
        if heads.head_dim > 256 || !heads.head_dim.is_multiple_of(2) || group > 16 {
            return Err(GpuError::unsupported(format!(
                "head width {} with {group} query heads a KV head; even widths up to 256 and groups up to 16 are taken",
                heads.head_dim
            )));
        }
        let build = Build { elem, cache, head_dim: heads.head_dim, group };
        let program = Program { file: KernelFile::ATTENTION_DECODE, build };
        let part = group * (heads.head_dim + 2);
        Ok(Self {
            heads,
            kernel: gpu.kernel(program, "attend_decode")?,
            parts: gpu.alloc(batch * heads.kv_heads * splits * part)?,
            counters: gpu.zeros(batch * heads.kv_heads)?,
            batch,
            splits,
        })
    }

    /// Blocks over the rows that [`DecodeAttention::new`] made room for.
    #[must_use]
    pub const fn most_splits(&self) -> usize {
        self.splits
    }

    /// Appends k and v of the batch's new rows and attends.
    ///
    /// # Errors
    /// More sequences or splits than there is room for, views that are too short.
    pub fn queue<E: Pod>(&self, gpu: &Gpu, a: &Attend<E>) -> Result<(), GpuError> {
        let Heads { heads, kv_heads, head_dim } = self.heads;
        if a.batch == 0 || a.batch > self.batch || a.splits == 0 || a.splits > self.splits {
            return Err(GpuError::unsupported(format!(
                "{} sequences in {} splits; there is room for {} in {}",
                a.batch, a.splits, self.batch, self.splits
            )));
        }
        let (wide, narrow) = (a.batch * heads * head_dim, a.batch * kv_heads * head_dim);
        let (mut norms, mut observe) = ([Arg::none(); 2], [Arg::none(); 4]);
        if let Some((q, k)) = a.norms {
            norms = [q.arg(head_dim)?, k.arg(head_dim)?];
        }
        if let Some(o) = a.observe {
            observe = [
                o.q_norm.arg(wide)?,
                o.q_rope.arg(wide)?,
                o.k_norm.arg(narrow)?,
                o.k_rope.arg(narrow)?,
            ];
        }
        #[expect(clippy::cast_possible_truncation, reason = "the model's scale is an f32")]
        let scale = ((1.0 / (head_dim as f64).sqrt()) as f32) * std::f32::consts::LOG2_E;
        let arguments = [
            a.slots.arg(a.batch)?,
            a.qkv.arg(a.batch * self.heads.qkv())?,
            a.cos.arg(a.batch * head_dim / 2)?,
            a.sin.arg(a.batch * head_dim / 2)?,
            norms[0],
            norms[1],
            a.out.arg(wide)?,
            self.parts.view().arg(self.parts.len())?,
            self.counters.view().arg(self.counters.len())?,
            observe[0],
            observe[1],
            observe[2],
            observe[3],
            Arg::from(a.layer),
            Arg::from(a.eps),
            Arg::from(scale),
            Arg::from(a.split_rows),
            Arg::from(u32::from(a.tile)),
        ];
        let size = |value: usize| u32::try_from(value).unwrap_or(u32::MAX);
        let shape = grid([size(a.splits), size(kv_heads), size(a.batch)], 128).overlapping();
        gpu.launch(&self.kernel, shape, &arguments)
    }
}
