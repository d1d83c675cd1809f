//! Projections: by kernels of `linear.cu` for the few columns of decode, by the library for the many rows of prefill.

use bytemuck::Pod;
use lockstep_traces::DType;

use crate::cuda::gpu::{
    Arg, Build, Gemm, Gpu, GpuError, Kernel, KernelFile, Program, View, blocks, grid,
};

/// Columns that decode kernels take at once.
pub const MOST_COLUMNS: usize = 8;

/// Weight rows of a block.
const ROWS: usize = 16;
/// Padding of a column in shared memory, elements.
const PAD: usize = 32;

/// The decode kernels for one element type.
#[derive(Debug)]
pub struct Linear {
    dtype: DType,
    plain: Kernel,
    residual: Kernel,
    swiglu: Kernel,
}

/// A weight matrix on the device, `[rows, k]` (two times `rows` for SwiGLU), with its bias.
#[derive(Debug, Clone, Copy)]
pub struct Weight<E> {
    /// Elements, row-major.
    pub matrix: View<E>,
    /// `[rows]` (two times for SwiGLU), f32.
    pub bias: Option<View<f32>>,
    /// Output rows.
    pub rows: usize,
    /// Elements summed over.
    pub k: usize,
}

/// Norm that the input passes first.
#[derive(Debug, Clone, Copy)]
pub struct InputNorm<E> {
    /// `[k]`.
    pub weight: View<f32>,
    /// Epsilon.
    pub eps: f32,
    /// Where the normed input goes too, `[batch, k]`.
    pub observe: Option<View<E>>,
}

/// `None` as a null pointer.
fn optional<T: Pod>(view: Option<View<T>>, len: usize) -> Result<Arg, GpuError> {
    view.map_or_else(|| Ok(Arg::none()), |view| view.arg(len))
}

impl Linear {
    /// Loads the kernels.
    ///
    /// # Errors
    /// Compiler and driver errors.
    pub fn new(gpu: &Gpu, dtype: DType) -> Result<Self, GpuError> {
        let program = Program { file: KernelFile::LINEAR, build: Build::of(dtype) };
        Ok(Self {
            dtype,
            plain: gpu.kernel(program, "linear_plain")?,
            residual: gpu.kernel(program, "linear_residual")?,
            swiglu: gpu.kernel(program, "linear_swiglu")?,
        })
    }

    /// `out[batch, rows] = round(norm(x)[batch, k] w^T + bias)`.
    ///
    /// # Errors
    /// More than [`MOST_COLUMNS`] columns, views that are too short, a norm whose columns do not fit shared memory.
    pub fn plain<E: Pod>(
        &self,
        gpu: &Gpu,
        (x, batch): (View<E>, usize),
        w: &Weight<E>,
        norm: Option<InputNorm<E>>,
        out: View<E>,
    ) -> Result<(), GpuError> {
        self.check::<E>(batch)?;
        let bias = optional(w.bias, w.rows)?;
        let out = out.arg(batch * w.rows)?;
        self.normed(gpu, &self.plain, (x, batch), w, (norm, w.matrix.arg(w.rows * w.k)?, bias, out))
    }

    /// `out[batch, rows] = round(round(silu(gate)) * up)` of `norm(x)`; `w.rows` counts gate rows, the matrix holds gate then up.
    ///
    /// # Errors
    /// As [`Linear::plain`].
    pub fn swiglu<E: Pod>(
        &self,
        gpu: &Gpu,
        (x, batch): (View<E>, usize),
        w: &Weight<E>,
        norm: Option<InputNorm<E>>,
        out: View<E>,
    ) -> Result<(), GpuError> {
        self.check::<E>(batch)?;
        let bias = optional(w.bias, 2 * w.rows)?;
        let out = out.arg(batch * w.rows)?;
        let matrix = w.matrix.arg(2 * w.rows * w.k)?;
        self.normed(gpu, &self.swiglu, (x, batch), w, (norm, matrix, bias, out))
    }

    fn normed<E: Pod>(
        &self,
        gpu: &Gpu,
        kernel: &Kernel,
        (x, batch): (View<E>, usize),
        w: &Weight<E>,
        (norm, matrix, bias, out): (Option<InputNorm<E>>, Arg, Arg, Arg),
    ) -> Result<(), GpuError> {
        let (mut weight, mut observe, mut eps, mut shared) = (Arg::none(), Arg::none(), 0.0, 0);
        if let Some(norm) = norm {
            weight = norm.weight.arg(w.k)?;
            observe = optional(norm.observe, batch * w.k)?;
            eps = norm.eps;
            shared = batch * (w.k + PAD) * size_of::<E>();
        }
        let shared = u32::try_from(shared).unwrap_or(u32::MAX);
        let arguments = [
            x.arg(batch * w.k)?,
            matrix,
            bias,
            out,
            weight,
            observe,
            Arg::from(eps),
            Arg::count(w.rows)?,
            Arg::count(w.k)?,
            Arg::count(batch)?,
        ];
        let shape = grid([blocks(w.rows, ROWS)?, 1, 1], 256).shared(shared).overlapping();
        gpu.launch(kernel, shape, &arguments)
    }

    /// `residual[batch, rows] = round(residual + round(x[batch, k] w^T + bias))`; the inner rounding goes to `branch` too.
    ///
    /// # Errors
    /// As [`Linear::plain`].
    pub fn residual<E: Pod>(
        &self,
        gpu: &Gpu,
        (x, batch): (View<E>, usize),
        w: &Weight<E>,
        residual: View<E>,
        branch: Option<View<E>>,
    ) -> Result<(), GpuError> {
        self.check::<E>(batch)?;
        let arguments = [
            x.arg(batch * w.k)?,
            w.matrix.arg(w.rows * w.k)?,
            optional(w.bias, w.rows)?,
            residual.arg(batch * w.rows)?,
            optional(branch, batch * w.rows)?,
            Arg::count(w.rows)?,
            Arg::count(w.k)?,
            Arg::count(batch)?,
        ];
        let shape = grid([blocks(w.rows, ROWS)?, 1, 1], 256).overlapping();
        gpu.launch(&self.residual, shape, &arguments)
    }

    /// `out[rows of x, rows of w] = round(x w^T)` by the library; a bias is added by the caller.
    ///
    /// # Errors
    /// Views that are too short; cuBLAS errors.
    pub fn product<E: Pod>(
        &self,
        gpu: &Gpu,
        (x, rows): (View<E>, usize),
        (matrix, columns, k): (View<E>, usize, usize),
        out: View<E>,
    ) -> Result<(), GpuError> {
        x.arg(rows * k)?;
        matrix.arg(columns * k)?;
        out.arg(rows * columns)?;
        gpu.gemm(&Gemm {
            x: x.address(),
            w: matrix.address(),
            c: out.address(),
            rows,
            columns,
            inner: k,
            stride: columns,
            dtype: self.dtype,
        })
    }

    fn check<E>(&self, batch: usize) -> Result<(), GpuError> {
        if size_of::<E>() != self.dtype.size() {
            return Err(GpuError::unsupported(format!(
                "elements of {} bytes for kernels of {}",
                size_of::<E>(),
                self.dtype.name()
            )));
        }
        if batch == 0 || batch > MOST_COLUMNS {
            return Err(GpuError::unsupported(format!(
                "{batch} columns; decode takes 1 to {MOST_COLUMNS} sequences"
            )));
        }
        Ok(())
    }
}
