//! What a step row says about its logits, computed where they lie.

use bytemuck::{Pod, Zeroable};
use lockstep_traces::DType;
use lockstep_traces::hash::DEFAULT_SEEDS;

use crate::cuda::Slot;
use crate::cuda::gpu::{
    Arg, Buffer, Build, Gpu, GpuError, Kernel, KernelFile, Program, View, grid,
};
use crate::engine::RowSummary;

/// Ids that one block looks at together.
const SLICE: usize = 2048;
/// Ids whose exponentials are summed together.
const CHUNK: usize = 256;
/// Most ids of a row that are reported.
pub const MAX_TOP: usize = 64;
/// Blocks that a multiprocessor is given in all, where the rows have that many slices.
const BLOCKS_PER_SM: usize = 16;

/// `LogitsRecord` of `logits.cu`.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Pod, Zeroable)]
pub struct LogitsRecord {
    /// Order-free hash under the default seeds.
    pub hash: [u64; 2],
    /// ln(sum(exp)); NaN where it is not a number.
    pub logsumexp: f64,
    /// 1: no NaN or infinity.
    pub finite: u32,
    /// Ids that the row gave.
    pub found: u32,
}

/// Where summaries go: one record a row, and [`top_width`] ids and logits.
#[derive(Debug, Clone, Copy)]
pub struct SummaryOutput {
    /// `[rows]`.
    pub records: View<LogitsRecord>,
    /// `[rows][top_width(k)]`; `u32::MAX` beyond what was found.
    pub top_ids: View<u32>,
    /// `[rows][top_width(k)]`, the logits of these ids; NaN beyond what was found.
    pub top_logits: View<f32>,
}

/// Rows of logits in device memory.
#[derive(Debug, Clone, Copy)]
pub struct LogitsRows {
    /// Bytes of the rows from the first one on.
    pub logits: View<u8>,
    /// Elements from one row to the next.
    pub stride: usize,
    /// Rows.
    pub rows: usize,
}

impl LogitsRows {
    /// The pointer, checked against what a kernel reads.
    pub(super) fn arg(&self, dtype: DType, vocab: usize) -> Result<Arg, GpuError> {
        if self.rows == 0 || self.stride < vocab {
            return Err(GpuError::unsupported(format!(
                "{} rows of logits at a stride of {}; 1 row or more at a stride of {vocab} or more would be taken",
                self.rows, self.stride
            )));
        }
        self.logits.arg(((self.rows - 1) * self.stride + vocab) * dtype_bytes(dtype)?)
    }
}

/// Ids kept of a row where `k` are wanted: two at least, since the margin needs the second.
#[must_use]
pub const fn top_width(k: usize) -> usize {
    if k < 2 { 2 } else { k }
}

/// Summaries of rows of one vocabulary. Decode and prefill, one row or many, give the same bits.
#[derive(Debug)]
pub struct Summaries {
    kernel: Kernel,
    dtype: DType,
    vocab: usize,
    max_rows: usize,
    max_k: usize,
    /// Blocks that fill the device.
    target: usize,
    block_keys: Buffer<u64>,
    block_sums: Buffer<u64>,
    chunk_tops: Buffer<f32>,
    chunk_sums: Buffer<f64>,
    arrived: Buffer<u32>,
}

impl Summaries {
    /// Room for up to `max_rows` rows a call and up to `max_k` ids a row.
    ///
    /// # Errors
    /// [`GpuError::Unsupported`] for sizes or an element type that no kernel takes; device errors.
    pub fn new(
        gpu: &Gpu,
        dtype: DType,
        vocab: usize,
        max_rows: usize,
        max_k: usize,
    ) -> Result<Self, GpuError> {
        check_sizes(dtype, vocab, max_rows)?;
        if max_k == 0 || max_k > MAX_TOP {
            let what = format!("{max_k} ids of a row; 1 to {MAX_TOP} can be reported");
            return Err(GpuError::unsupported(what));
        }
        let program = Program { file: KernelFile::LOGITS, build: Build::of(dtype) };
        let target = BLOCKS_PER_SM * (gpu.info().sm_count as usize).max(1);
        let blocks = (max_rows * vocab.div_ceil(SLICE)).min(target + max_rows);
        let chunks = max_rows * vocab.div_ceil(CHUNK);
        Ok(Self {
            kernel: gpu.kernel(program, "logits_summary")?,
            dtype,
            vocab,
            max_rows,
            max_k,
            target,
            block_keys: gpu.alloc(blocks * top_width(max_k))?,
            block_sums: gpu.alloc(blocks * 3)?,
            chunk_tops: gpu.alloc(chunks)?,
            chunk_sums: gpu.alloc(chunks)?,
            arrived: gpu.zeros(max_rows)?,
        })
    }

    /// Queues the summaries of `input` with `k` ids. With `slots`, rows whose slot is not active keep their outputs.
    ///
    /// # Errors
    /// [`GpuError::Unsupported`] for more rows or ids than there is room for, [`GpuError::Range`] for a view that is too short.
    pub fn queue(
        &self,
        gpu: &Gpu,
        input: LogitsRows,
        slots: Option<View<Slot>>,
        k: usize,
        output: SummaryOutput,
    ) -> Result<(), GpuError> {
        let LogitsRows { stride, rows, .. } = input;
        if rows > self.max_rows || k == 0 || k > self.max_k {
            return Err(GpuError::unsupported(format!(
                "{rows} rows with {k} ids each; up to {} rows with 1 to {} ids would be taken",
                self.max_rows, self.max_k
            )));
        }
        let logits = input.arg(self.dtype, self.vocab)?;
        let (width, all) = (top_width(k), self.vocab.div_ceil(SLICE));
        let slices = all.div_ceil(all.min(self.target.div_ceil(rows)));
        let blocks = all.div_ceil(slices);
        let chunks = rows * self.vocab.div_ceil(CHUNK);
        let arguments = [
            logits,
            slots.map_or(Ok(Arg::none()), |slots| slots.arg(rows))?,
            output.records.arg(rows)?,
            output.top_ids.arg(rows * width)?,
            output.top_logits.arg(rows * width)?,
            self.block_keys.view().arg(rows * blocks * width)?,
            self.block_sums.view().arg(rows * blocks * 3)?,
            self.chunk_tops.view().arg(chunks)?,
            self.chunk_sums.view().arg(chunks)?,
            self.arrived.view().arg(rows)?,
            Arg::long(stride as u64),
            Arg::count(self.vocab)?,
            Arg::count(width)?,
            Arg::count(slices)?,
            Arg::long(DEFAULT_SEEDS[0]),
            Arg::long(DEFAULT_SEEDS[1]),
        ];
        let shape = grid([grid_size(blocks)?, grid_size(rows)?, 1], 256).overlapping();
        gpu.launch(&self.kernel, shape, &arguments)
    }
}

/// The summary of a row from its record and its [`top_width`] ids and logits, `k` of which are kept.
#[must_use]
pub fn row_summary(
    record: &LogitsRecord,
    top_ids: &[u32],
    top_logits: &[f32],
    k: usize,
) -> RowSummary {
    let found = (record.found as usize).min(top_ids.len()).min(top_logits.len());
    let (ids, logits) = (&top_ids[..found], &top_logits[..found]);
    let margin = match logits {
        [first, second, ..] => Some(first - second).filter(|margin| !margin.is_nan()),
        _ => None,
    };
    let kept = found.min(k);
    RowSummary {
        argmax: ids.first().copied().unwrap_or(0),
        top_ids: ids[..kept].to_vec(),
        top_logits: logits[..kept].to_vec(),
        logsumexp: Some(record.logsumexp).filter(|value| !value.is_nan()),
        top2_margin: margin,
        finite: record.finite == 1,
        hash: record.hash,
    }
}

/// Bytes of an element of logits.
pub(super) fn dtype_bytes(dtype: DType) -> Result<usize, GpuError> {
    match dtype {
        DType::F32 => Ok(4),
        DType::F16 | DType::Bf16 => Ok(2),
        other => Err(GpuError::unsupported(format!(
            "logits in {other:?}; f32, f16, bf16 would be taken"
        ))),
    }
}

pub(super) fn check_sizes(dtype: DType, vocab: usize, max_rows: usize) -> Result<(), GpuError> {
    dtype_bytes(dtype)?;
    // Room for the ids of a block that ends beyond the vocabulary.
    if vocab == 0 || vocab > (u32::MAX >> 1) as usize || max_rows == 0 || max_rows > 65_535 {
        return Err(GpuError::unsupported(format!(
            "{max_rows} rows over {vocab} ids; 1 to 65535 rows over 1 to 2^31 - 1 ids would be taken"
        )));
    }
    Ok(())
}

pub(super) fn grid_size(blocks: usize) -> Result<u32, GpuError> {
    crate::cuda::gpu::blocks(blocks, 1)
}

#[cfg(test)]
mod tests;
