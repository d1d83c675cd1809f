//! Between the fused projection and attention of a prefill chunk: bias, QK norm, rotary embedding, append to the cache.

use bytemuck::Pod;
use lockstep_traces::DType;

use super::arguments::{check_width, optional};
use super::attention::Heads;
use crate::cuda::gpu::{
    Arg, Build, Gpu, GpuError, Kernel, KernelFile, Program, View, blocks, grid,
};

/// Warps of a block of `rope_append`, each with one head of one row.
const WARPS: usize = 8;

/// The kernels of `rope.cu` for one pair of element types.
#[derive(Debug)]
pub struct Rope {
    elem: DType,
    cache: DType,
    heads: Heads,
    append: Kernel,
    bias: Kernel,
}

/// What one launch reads and writes. `E` holds the element type, `C` the cache's.
#[derive(Debug, Clone, Copy)]
pub struct RopeAppend<E, C> {
    /// New rows.
    pub rows: usize,
    /// Live rows of the cache before them.
    pub rows_before: usize,
    /// `[rows, (heads + 2 kv_heads) * head_dim]`: q, k, v, biases added.
    pub qkv: View<E>,
    /// QK norm weights of q and k, `[head_dim]`, where the model has them.
    pub norms: Option<(View<f32>, View<f32>)>,
    /// Epsilon of the QK norm.
    pub eps: f32,
    /// `[rows, head_dim / 2]`, rounded to the element type.
    pub cos: View<f32>,
    /// As `cos`.
    pub sin: View<f32>,
    /// `[rows, heads, head_dim]`.
    pub q: View<E>,
    /// K of this layer, `[kv_heads, capacity, head_dim]`.
    pub k: View<C>,
    /// V of this layer.
    pub v: View<C>,
    /// Rows from one head of the cache to the next.
    pub capacity: usize,
    /// Intermediate results wanted besides.
    pub observe: ObserveRows<E>,
}

/// Optional outputs of [`Rope::append`].
#[derive(Debug, Clone, Copy)]
pub struct ObserveRows<E> {
    /// q after the norm, `[rows, heads, head_dim]`.
    pub q_norm: Option<View<E>>,
    /// k after the norm, `[rows, kv_heads, head_dim]`.
    pub k_norm: Option<View<E>>,
    /// k after the rotation, `[rows, kv_heads, head_dim]`, not rounded to the cache's type.
    pub k_rope: Option<View<E>>,
}

impl<E> ObserveRows<E> {
    /// None of them.
    pub const NONE: Self = Self { q_norm: None, k_norm: None, k_rope: None };
}

impl Rope {
    /// Loads the kernels.
    ///
    /// # Errors
    /// A head shape that the kernel does not take, compiler and driver errors.
    pub fn new(gpu: &Gpu, (elem, cache): (DType, DType), heads: Heads) -> Result<Self, GpuError> {
        check_heads(heads)?;
        let build = Build { elem, cache, head_dim: 0, group: 0 };
        let program = Program { file: KernelFile::ROPE, build };
        Ok(Self {
            elem,
            cache,
            heads,
            append: gpu.kernel(program, "rope_append")?,
            bias: gpu.kernel(program, "bias_add")?,
        })
    }

    /// QK norm and rotation of a chunk; q goes to its buffer, k and v to the cache.
    ///
    /// # Errors
    /// No rows, more rows than the cache has room for, elements of another width, views that are too short.
    pub fn append<E: Pod, C: Pod>(&self, gpu: &Gpu, a: &RopeAppend<E, C>) -> Result<(), GpuError> {
        let Heads { heads, kv_heads, head_dim } = self.heads;
        check_width::<E>(self.elem)?;
        check_width::<C>(self.cache)?;
        check_rows(a.rows, a.rows_before, a.capacity)?;
        let (wide, narrow) = (a.rows * heads * head_dim, a.rows * kv_heads * head_dim);
        let cached = kv_heads * a.capacity * head_dim;
        let (q_weight, k_weight) = match a.norms {
            Some((q, k)) => (q.arg(head_dim)?, k.arg(head_dim)?),
            None => (Arg::none(), Arg::none()),
        };
        let arguments = [
            a.qkv.arg(a.rows * self.heads.qkv())?,
            q_weight,
            k_weight,
            a.cos.arg(a.rows * head_dim / 2)?,
            a.sin.arg(a.rows * head_dim / 2)?,
            a.q.arg(wide)?,
            a.k.arg(cached)?,
            a.v.arg(cached)?,
            optional(a.observe.q_norm, wide)?,
            optional(a.observe.k_norm, narrow)?,
            optional(a.observe.k_rope, narrow)?,
            Arg::count(a.rows)?,
            Arg::count(a.rows_before)?,
            Arg::count(heads)?,
            Arg::count(kv_heads)?,
            Arg::count(head_dim)?,
            Arg::count(a.capacity)?,
            Arg::from(a.eps),
        ];
        let warps = a.rows * (heads + 2 * kv_heads);
        let shape = grid([blocks(warps, WARPS)?, 1, 1], 32 * WARPS as u32);
        gpu.launch(&self.append, shape, &arguments)
    }

    /// `x[rows, width] = round(x + bias[width])`, in place.
    ///
    /// # Errors
    /// No rows, elements of another width, views that are too short.
    pub fn add_bias<E: Pod>(
        &self,
        gpu: &Gpu,
        (x, rows): (View<E>, usize),
        (bias, width): (View<f32>, usize),
    ) -> Result<(), GpuError> {
        check_width::<E>(self.elem)?;
        if rows == 0 || width == 0 {
            return Err(GpuError::unsupported(format!(
                "a bias of {width} for {rows} rows; one of each at least is taken"
            )));
        }
        let arguments = [x.arg(rows * width)?, bias.arg(width)?, Arg::count(width)?];
        let across = blocks(width, 256)?.min(64);
        gpu.launch(&self.bias, grid([blocks(rows, 1)?, across, 1], 256), &arguments)
    }
}

/// Head shapes that the prefill kernels take.
pub(super) fn check_heads(heads: Heads) -> Result<(), GpuError> {
    let Heads { heads, kv_heads, head_dim } = heads;
    if kv_heads == 0 || heads == 0 || !heads.is_multiple_of(kv_heads) {
        return Err(GpuError::unsupported(format!(
            "{heads} query heads over {kv_heads} KV heads; a multiple of the KV heads is taken"
        )));
    }
    if head_dim == 0 || head_dim > 256 || !head_dim.is_multiple_of(2) {
        return Err(GpuError::unsupported(format!(
            "head width {head_dim}; even widths up to 256 are taken"
        )));
    }
    Ok(())
}

/// A chunk has rows, and the cache has room for them.
pub(super) fn check_rows(rows: usize, before: usize, capacity: usize) -> Result<(), GpuError> {
    if rows == 0 || before.checked_add(rows).is_none_or(|end| end > capacity) {
        return Err(GpuError::unsupported(format!(
            "{rows} new rows after {before} in a cache of {capacity}; one at least and no more than fit are taken"
        )));
    }
    Ok(())
}
