//! Attention of a chunk of new rows, whose k and v are in the cache already.

use bytemuck::Pod;
use lockstep_traces::DType;

use super::arguments::check_width;
use super::attention::Heads;
use super::rope::{check_heads, check_rows};
use crate::cuda::gpu::{
    Arg, Build, Gpu, GpuError, Kernel, KernelFile, Program, View, blocks, grid,
};

/// Threads of a block of both kernels.
const THREADS: u32 = 128;

/// Which kernel attends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Method {
    /// `attention_rows`: f32 sums, any element types.
    Rows,
    /// `attention_flash`: matrix instructions.
    Flash,
}

impl Method {
    const fn kernel(self) -> &'static str {
        match self {
            Self::Rows => "attention_rows",
            Self::Flash => "attention_flash",
        }
    }

    /// New rows of a block.
    const fn rows(self) -> usize {
        match self {
            Self::Rows => 16,
            Self::Flash => 128,
        }
    }

    /// Shared memory of a block, bytes; formulas at the head of `attention_prefill.cu`.
    const fn shared(self, head_dim: usize) -> usize {
        match self {
            Self::Rows => (80 * head_dim + 544) * 4,
            Self::Flash => (128 + 4 * 64) * if head_dim <= 64 { 64 } else { 128 } * 2,
        }
    }
}

/// Prefill attention for one pair of element types and one head shape.
#[derive(Debug)]
pub struct PrefillAttention {
    elem: DType,
    cache: DType,
    heads: Heads,
    method: Method,
    kernel: Kernel,
}

/// What one launch reads and writes. `E` holds the element type, `C` the cache's.
#[derive(Debug, Clone, Copy)]
pub struct Prefill<E, C> {
    /// New rows.
    pub rows: usize,
    /// Live rows of the cache before them.
    pub rows_before: usize,
    /// `[rows, heads, head_dim]`, rotated.
    pub q: View<E>,
    /// K of this layer, `[kv_heads, capacity, head_dim]`, the new rows included.
    pub k: View<C>,
    /// V of this layer.
    pub v: View<C>,
    /// Rows from one head of the cache to the next.
    pub capacity: usize,
    /// `[rows, heads, head_dim]`.
    pub out: View<E>,
    /// Planted: a row sees the next one, where the chunk has one.
    pub next: bool,
    /// Planted: query heads are tiled over KV heads.
    pub tile: bool,
}

impl PrefillAttention {
    /// `attention_flash` where it takes the types and the head width: 16-bit elements, a cache of the same type, a multiple of 16 up to
    /// 128; else `attention_rows`.
    ///
    /// # Errors
    /// A head shape that neither takes, compiler and driver errors.
    pub fn new(gpu: &Gpu, types: (DType, DType), heads: Heads) -> Result<Self, GpuError> {
        let (elem, cache) = types;
        let flash = elem.size() == 2
            && elem == cache
            && heads.head_dim.is_multiple_of(16)
            && heads.head_dim <= 128;
        Self::with(gpu, types, heads, if flash { Method::Flash } else { Method::Rows })
    }

    /// `attention_rows`, whatever the types: f32 throughout, and slow.
    ///
    /// # Errors
    /// As [`PrefillAttention::new`].
    pub fn in_f32(gpu: &Gpu, types: (DType, DType), heads: Heads) -> Result<Self, GpuError> {
        Self::with(gpu, types, heads, Method::Rows)
    }

    fn with(
        gpu: &Gpu,
        (elem, cache): (DType, DType),
        heads: Heads,
        method: Method,
    ) -> Result<Self, GpuError> {
        check_heads(heads)?;
        let build = Build { elem, cache, head_dim: heads.head_dim, group: 0 };
        let program = Program { file: KernelFile::ATTENTION_PREFILL, build };
        let kernel = gpu.kernel(program, method.kernel())?;
        Ok(Self { elem, cache, heads, method, kernel })
    }

    /// Kernel that attends.
    #[must_use]
    pub const fn kernel_name(&self) -> &'static str {
        self.method.kernel()
    }

    /// Attends; nothing beyond row `rows_before + rows` of the cache is read.
    ///
    /// # Errors
    /// No rows, fewer live rows than the cache has room for, elements of another width, views that are too short; for
    /// `attention_flash` addresses that are no multiple of 16.
    pub fn queue<E: Pod, C: Pod>(&self, gpu: &Gpu, p: &Prefill<E, C>) -> Result<(), GpuError> {
        let Heads { heads, kv_heads, head_dim } = self.heads;
        check_width::<E>(self.elem)?;
        check_width::<C>(self.cache)?;
        check_rows(p.rows, p.rows_before, p.capacity)?;
        self.check_alignment([p.q.address(), p.k.address(), p.v.address(), p.out.address()])?;
        let (wide, cached) = (p.rows * heads * head_dim, kv_heads * p.capacity * head_dim);
        #[expect(clippy::cast_possible_truncation, reason = "the factor is an f32 in the kernel")]
        let scale = (std::f64::consts::LOG2_E / (head_dim as f64).sqrt()) as f32;
        let arguments = [
            p.q.arg(wide)?,
            p.k.arg(cached)?,
            p.v.arg(cached)?,
            p.out.arg(wide)?,
            Arg::count(p.rows)?,
            Arg::count(p.rows_before)?,
            Arg::count(heads)?,
            Arg::count(kv_heads)?,
            Arg::count(p.capacity)?,
            Arg::from(scale),
            Arg::from(u32::from(p.next)),
            Arg::from(u32::from(p.tile)),
        ];
        let (tiles, heads) = (blocks(p.rows, self.method.rows())?, blocks(heads, 1)?);
        let shape = match self.method {
            Method::Rows => [tiles, heads, 1],
            Method::Flash => [heads, tiles, 1],
        };
        let shared = u32::try_from(self.method.shared(head_dim)).unwrap_or(u32::MAX);
        gpu.launch(&self.kernel, grid(shape, THREADS).shared(shared), &arguments)
    }

    /// Copies of 16 bytes need addresses that are multiples of it.
    fn check_alignment(&self, addresses: [u64; 4]) -> Result<(), GpuError> {
        if self.method == Method::Flash && addresses.iter().any(|at| !at.is_multiple_of(16)) {
            return Err(GpuError::unsupported(format!(
                "{} on q, k, v or out at an address that is no multiple of 16",
                self.kernel_name()
            )));
        }
        Ok(())
    }
}
