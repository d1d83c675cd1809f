//! Projections: by kernels of `linear.cu` for the few columns of decode, by the library for the many rows of prefill.

use bytemuck::Pod;
use lockstep_traces::DType;

use super::arguments::{check_width, optional};
use crate::cuda::gpu::{
    Arg, Build, Gemm, Gpu, GpuError, Kernel, KernelFile, Program, View, blocks, grid,
};

/// Columns that decode kernels take at once.
pub const MOST_COLUMNS: usize = 8;

/// Weight rows of a block.
const ROWS: usize = 16;

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

    /// `out[batch, rows] = round(x[batch, k] w^T + bias)`.
    ///
    /// # Errors
    /// More than [`MOST_COLUMNS`] columns, views that are too short.
    pub fn plain<E: Pod>(
        &self,
        gpu: &Gpu,
        x: (View<E>, usize),
        w: &Weight<E>,
        out: View<E>,
    ) -> Result<(), GpuError> {
        self.project(gpu, &self.plain, x, (w, w.rows), out)
    }

    /// `out[batch, rows] = round(round(silu(gate)) * up)`; `w.rows` counts gate rows, the matrix holds gate then up.
    ///
    /// # Errors
    /// As [`Linear::plain`].
    pub fn swiglu<E: Pod>(
        &self,
        gpu: &Gpu,
        x: (View<E>, usize),
        w: &Weight<E>,
        out: View<E>,
    ) -> Result<(), GpuError> {
        self.project(gpu, &self.swiglu, x, (w, 2 * w.rows), out)
    }

    fn project<E: Pod>(
        &self,
        gpu: &Gpu,
        kernel: &Kernel,
        (x, batch): (View<E>, usize),
        (w, matrix_rows): (&Weight<E>, usize),
        out: View<E>,
    ) -> Result<(), GpuError> {
        self.check::<E>(batch)?;
        let arguments = [
            x.arg(batch * w.k)?,
            w.matrix.arg(matrix_rows * w.k)?,
            optional(w.bias, matrix_rows)?,
            out.arg(batch * w.rows)?,
            Arg::count(w.rows)?,
            Arg::count(w.k)?,
            Arg::count(batch)?,
        ];
        let shape = grid([blocks(w.rows, ROWS)?, 1, 1], 256).overlapping();
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
        check_width::<E>(self.dtype)?;
        if batch == 0 || batch > MOST_COLUMNS {
            return Err(GpuError::unsupported(format!(
                "{batch} columns; decode takes 1 to {MOST_COLUMNS} sequences"
            )));
        }
        Ok(())
    }
}
