//! Host side of `norm.cu`: RMSNorm, residual sum, SwiGLU, row by row.

use bytemuck::Pod;
use lockstep_traces::DType;

use super::arguments::check_width;
use super::embed::{THREADS, strided};
use crate::cuda::gpu::{
    Arg, Build, Gpu, GpuError, Kernel, KernelFile, Program, View, blocks, grid,
};

/// Elements of a row that one block of SwiGLU takes.
const SWIGLU_SPAN: usize = 1024;

/// The kernels for one element type.
#[derive(Debug)]
pub struct Norm {
    dtype: DType,
    rms_norm: Kernel,
    add_rows: Kernel,
    swiglu: Kernel,
}

/// Weight and epsilon of an RMSNorm.
#[derive(Debug, Clone, Copy)]
pub struct Rms {
    /// `[width]`, f32; its length is the width.
    pub weight: View<f32>,
    /// Added to the mean of squares.
    pub eps: f32,
}

impl Norm {
    /// Loads the kernels.
    ///
    /// # Errors
    /// Compiler and driver errors.
    pub fn new(gpu: &Gpu, dtype: DType) -> Result<Self, GpuError> {
        let program = Program { file: KernelFile::NORM, build: Build::of(dtype) };
        Ok(Self {
            dtype,
            rms_norm: gpu.kernel(program, "rms_norm")?,
            add_rows: gpu.kernel(program, "add_rows")?,
            swiglu: gpu.kernel(program, "swiglu")?,
        })
    }

    /// `out[row] = round(weight * round(x[row] / sqrt(mean(x[row]^2) + eps)))` for `rows` rows; statistics in f32.
    ///
    /// # Errors
    /// Views that are too short, elements of another width, no rows, no width.
    pub fn rms_norm<E: Pod>(
        &self,
        gpu: &Gpu,
        (x, rows): (View<E>, usize),
        norm: Rms,
        out: View<E>,
    ) -> Result<(), GpuError> {
        check_width::<E>(self.dtype)?;
        let width = wide(norm.weight.len())?;
        let arguments = [
            x.arg(rows.saturating_mul(width))?,
            norm.weight.arg(width)?,
            out.arg(rows.saturating_mul(width))?,
            Arg::count(width)?,
            Arg::from(norm.eps),
        ];
        let shape = grid([blocks(rows, 1)?, 1, 1], THREADS).overlapping();
        gpu.launch(&self.rms_norm, shape, &arguments)
    }

    /// `x[i] = round(x[i] + y[i])` over all of `x`.
    ///
    /// # Errors
    /// A `y` of another length, elements of another width, empty views.
    pub fn add_rows<E: Pod>(&self, gpu: &Gpu, x: View<E>, y: View<E>) -> Result<(), GpuError> {
        check_width::<E>(self.dtype)?;
        if x.len() != y.len() {
            let (x, y) = (x.len(), y.len());
            return Err(GpuError::unsupported(format!("a sum of {x} and {y} elements")));
        }
        let arguments = [x.arg(x.len())?, y.arg(x.len())?, Arg::long(x.len() as u64)];
        gpu.launch(&self.add_rows, grid([strided(x.len())?, 1, 1], THREADS), &arguments)
    }

    /// `out[row] = round(round(silu(both[row, ..width])) * both[row, width..])` for `rows` rows of `2 width`.
    ///
    /// # Errors
    /// Views that are too short, elements of another width, no rows, no width.
    pub fn swiglu<E: Pod>(
        &self,
        gpu: &Gpu,
        both: View<E>,
        (rows, width): (usize, usize),
        out: View<E>,
    ) -> Result<(), GpuError> {
        check_width::<E>(self.dtype)?;
        let width = wide(width)?;
        // The kernel steps through a row of both halves with 32-bit indices.
        Arg::count(width.saturating_mul(2))?;
        let arguments = [
            both.arg(rows.saturating_mul(width).saturating_mul(2))?,
            out.arg(rows.saturating_mul(width))?,
            Arg::count(width)?,
        ];
        let across = blocks(width, SWIGLU_SPAN)?.min(u32::from(u16::MAX));
        gpu.launch(&self.swiglu, grid([blocks(rows, 1)?, across, 1], THREADS), &arguments)
    }
}

fn wide(width: usize) -> Result<usize, GpuError> {
    if width == 0 {
        return Err(GpuError::unsupported("rows of no elements; a row has one at least"));
    }
    Ok(width)
}
