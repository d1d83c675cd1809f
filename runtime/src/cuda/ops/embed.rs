//! Host side of `embed.cu`: rows of the embedding, rotary tables, weights out of nothing.

use bytemuck::Pod;
use lockstep_traces::DType;

use super::arguments::check_width;
use crate::cuda::Slot;
use crate::cuda::gpu::{
    Arg, Build, Gpu, GpuError, Kernel, KernelFile, Program, View, blocks, grid,
};

/// Threads of a block that copies or fills.
pub(super) const THREADS: u32 = 256;
/// Threads of a block that turns one row's frequencies.
const ROPE_THREADS: u32 = 64;
/// Most blocks of a fill; each strides over the rest.
const FILL_BLOCKS: usize = 1024;

/// The kernels for one element type.
#[derive(Debug)]
pub struct Embed {
    dtype: DType,
    rows: Kernel,
    rope_table: Kernel,
    slots: Kernel,
    random_fill: Kernel,
    constant_fill: Kernel,
}

/// The embedding matrix on the device.
#[derive(Debug, Clone, Copy)]
pub struct Table<E> {
    /// `[vocab, hidden]`, row-major.
    pub matrix: View<E>,
    /// Rows. Every id must lie below; ids are on the device and not looked at.
    pub vocab: usize,
    /// Elements of a row.
    pub hidden: usize,
}

/// Rotary frequencies on the device.
#[derive(Debug, Clone, Copy)]
pub struct Frequencies {
    /// `[head_dim / 2]`, f32.
    pub inv_freq: View<f32>,
    /// Factor on cosine and sine.
    pub scaling: f32,
}

/// Where cosines and sines go: `[rows, head_dim / 2]` each, f32 that holds values of the element type.
#[derive(Debug, Clone, Copy)]
pub struct Turns {
    /// Cosines.
    pub cos: View<f32>,
    /// Sines.
    pub sin: View<f32>,
}

impl Turns {
    /// Both as arguments; elements are counted in 32 bits by the kernels.
    fn arguments(&self, rows: usize, freqs: usize) -> Result<[Arg; 2], GpuError> {
        let len = rows.saturating_mul(freqs);
        Arg::count(len)?;
        Ok([self.cos.arg(len)?, self.sin.arg(len)?])
    }
}

impl Embed {
    /// Loads the kernels.
    ///
    /// # Errors
    /// Compiler and driver errors.
    pub fn new(gpu: &Gpu, dtype: DType) -> Result<Self, GpuError> {
        let program = Program { file: KernelFile::EMBED, build: Build::of(dtype) };
        Ok(Self {
            dtype,
            rows: gpu.kernel(program, "embed_rows")?,
            rope_table: gpu.kernel(program, "rope_table")?,
            slots: gpu.kernel(program, "embed_slots")?,
            random_fill: gpu.kernel(program, "random_fill")?,
            constant_fill: gpu.kernel(program, "constant_fill")?,
        })
    }

    /// `out[row] = table[ids[row]]` for `rows` rows. Exact.
    ///
    /// # Errors
    /// Views that are too short, elements of another width, no rows.
    pub fn rows<E: Pod>(
        &self,
        gpu: &Gpu,
        table: &Table<E>,
        (ids, rows): (View<u32>, usize),
        out: View<E>,
    ) -> Result<(), GpuError> {
        check_width::<E>(self.dtype)?;
        let arguments = [
            table.matrix.arg(table.vocab.saturating_mul(table.hidden))?,
            ids.arg(rows)?,
            out.arg(rows.saturating_mul(table.hidden))?,
            Arg::count(table.hidden)?,
        ];
        gpu.launch(&self.rows, grid([blocks(rows, 1)?, 1, 1], THREADS), &arguments)
    }

    /// Cosine and sine of `index[row] * inv_freq[f]`, rounded to the element type.
    ///
    /// # Errors
    /// Views that are too short, no rows.
    pub fn rope_table(
        &self,
        gpu: &Gpu,
        frequencies: &Frequencies,
        (index, rows): (View<u32>, usize),
        turns: Turns,
    ) -> Result<(), GpuError> {
        let freqs = frequencies.inv_freq.len();
        let [cos, sin] = turns.arguments(rows, freqs)?;
        let arguments = [
            frequencies.inv_freq.arg(freqs)?,
            index.arg(rows)?,
            cos,
            sin,
            Arg::count(freqs)?,
            Arg::from(frequencies.scaling),
        ];
        gpu.launch(&self.rope_table, grid([blocks(rows, 1)?, 1, 1], ROPE_THREADS), &arguments)
    }

    /// Embedding row and rotary table of each slot of a decode batch. An empty slot's row becomes zero and its table stays as it is.
    ///
    /// # Errors
    /// Views that are too short, elements of another width, an empty batch.
    pub fn slots<E: Pod>(
        &self,
        gpu: &Gpu,
        (slots, batch): (View<Slot>, usize),
        table: &Table<E>,
        frequencies: &Frequencies,
        (out, turns): (View<E>, Turns),
    ) -> Result<(), GpuError> {
        check_width::<E>(self.dtype)?;
        let freqs = frequencies.inv_freq.len();
        let [cos, sin] = turns.arguments(batch, freqs)?;
        let arguments = [
            slots.arg(batch)?,
            table.matrix.arg(table.vocab.saturating_mul(table.hidden))?,
            frequencies.inv_freq.arg(freqs)?,
            out.arg(batch.saturating_mul(table.hidden))?,
            cos,
            sin,
            Arg::count(table.hidden)?,
            Arg::count(freqs)?,
            Arg::from(frequencies.scaling),
        ];
        // The first kernel of a pass waits for everything before it, so that later ones may read caches and slots ahead.
        gpu.launch(&self.slots, grid([blocks(batch, 1)?, 1, 1], THREADS), &arguments)
    }

    /// `out[i] = scale * u(i)`, u uniform between -1 and 1, the same for a seed on every device.
    ///
    /// # Errors
    /// Elements of another width, an empty view.
    pub fn random_fill<E: Pod>(
        &self,
        gpu: &Gpu,
        out: View<E>,
        seed: u64,
        scale: f32,
    ) -> Result<(), GpuError> {
        check_width::<E>(self.dtype)?;
        let arguments =
            [out.arg(out.len())?, Arg::long(out.len() as u64), Arg::long(seed), Arg::from(scale)];
        gpu.launch(&self.random_fill, grid([strided(out.len())?, 1, 1], THREADS), &arguments)
    }

    /// `out[i] = value`, rounded to the element type.
    ///
    /// # Errors
    /// Elements of another width, an empty view.
    pub fn constant_fill<E: Pod>(
        &self,
        gpu: &Gpu,
        out: View<E>,
        value: f32,
    ) -> Result<(), GpuError> {
        check_width::<E>(self.dtype)?;
        let arguments = [out.arg(out.len())?, Arg::long(out.len() as u64), Arg::from(value)];
        gpu.launch(&self.constant_fill, grid([strided(out.len())?, 1, 1], THREADS), &arguments)
    }
}

/// Blocks of a grid-stride launch over `len` elements.
pub(super) fn strided(len: usize) -> Result<u32, GpuError> {
    blocks(len.min(FILL_BLOCKS * THREADS as usize), THREADS as usize)
}
