//! Rows of logits as inputs of a case.

use half::{bf16, f16};
use lockstep_traces::DType;

use crate::cuda::gpu::{Buffer, Gpu, GpuError};
use crate::cuda::ops::logits::LogitsRows;

/// Elements between two rows and after the last, so that rows read one element late stay within the buffer.
const PADDING: usize = 8;

/// Steele, Lea, Flood: "Fast splittable pseudorandom number generators".
pub(in super::super) fn splitmix64(state: u64) -> u64 {
    let z = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

/// Rows in device memory, and the values that they hold.
pub(in super::super) struct Rows {
    dtype: DType,
    vocab: usize,
    buffer: Buffer<u8>,
    values: Vec<Vec<f32>>,
}

impl Rows {
    pub(in super::super) fn new(
        gpu: &Gpu,
        dtype: DType,
        rows: usize,
        vocab: usize,
    ) -> Result<Self, GpuError> {
        let size = if dtype == DType::F32 { 4 } else { 2 };
        let buffer = gpu.alloc(rows * (vocab + PADDING) * size)?;
        Ok(Self { dtype, vocab, buffer, values: vec![vec![0.0; vocab]; rows] })
    }

    pub(in super::super) fn vocab(&self) -> usize {
        self.vocab
    }

    pub(in super::super) fn values(&self) -> &[Vec<f32>] {
        &self.values
    }

    pub(in super::super) fn view(&self) -> LogitsRows {
        LogitsRows {
            logits: self.buffer.view(),
            stride: self.vocab + PADDING,
            rows: self.values.len(),
        }
    }

    /// The rows from their second element on.
    pub(in super::super) fn one_off(&self) -> Result<LogitsRows, GpuError> {
        let right = self.view();
        let size = if self.dtype == DType::F32 { 4 } else { 2 };
        Ok(LogitsRows { logits: right.logits.part(size..right.logits.len())?, ..right })
    }

    /// In turn: rows without ties, rows with many, rows with NaN and infinities, rows with -inf and both zeros.
    pub(in super::super) fn fill(&mut self, gpu: &Gpu, seed: u64) -> Result<(), GpuError> {
        let vocab = self.vocab as u64;
        for (row, values) in (0_u64..).zip(&mut self.values) {
            for (id, value) in (0_u64..).zip(values.iter_mut()) {
                let bits = splitmix64(seed.wrapping_mul(1 << 40) ^ (row * vocab + id));
                let unit = (bits >> 40) as f32 / (1 << 23) as f32 - 1.0;
                let logit = unit * 12.0;
                *value = match (row % 4, bits % 64) {
                    (1, _) => (logit * 2.0).round() / 2.0,
                    (2, 0) => f32::NAN,
                    (2, 1) => f32::INFINITY,
                    (2, 2) | (3, 0..8) => f32::NEG_INFINITY,
                    (3, 8) => 0.0,
                    (3, 9) => -0.0,
                    _ => logit,
                };
            }
        }
        self.write(gpu)
    }

    /// Leaves every value a number, and one at least finite, so that each row can be drawn from.
    pub(in super::super) fn fill_finite(&mut self, gpu: &Gpu, seed: u64) -> Result<(), GpuError> {
        self.fill(gpu, seed)?;
        for value in self.values.iter_mut().flatten() {
            if value.is_nan() || *value == f32::INFINITY {
                *value = f32::NEG_INFINITY;
            }
        }
        for row in &mut self.values {
            row[0] = row[0].max(-2.0);
        }
        self.write(gpu)
    }

    /// Puts `value` at `id` of a row; at every id for `None`.
    pub(in super::super) fn spoil(
        &mut self,
        gpu: &Gpu,
        row: usize,
        id: Option<usize>,
        value: f32,
    ) -> Result<(), GpuError> {
        match id {
            Some(id) => self.values[row][id] = value,
            None => self.values[row].fill(value),
        }
        self.write(gpu)
    }

    /// Turns one row round.
    pub(in super::super) fn disturb(&mut self, gpu: &Gpu, row: usize) -> Result<(), GpuError> {
        let values = &mut self.values[row];
        values.reverse();
        values[0] += 0.5;
        self.write(gpu)
    }

    /// Rounds to the element type and uploads, NaN between the rows.
    fn write(&mut self, gpu: &Gpu) -> Result<(), GpuError> {
        let mut bytes = Vec::with_capacity(self.buffer.len());
        let each = self.buffer.len() / self.values.len();
        for row in &mut self.values {
            let end = bytes.len() + each;
            for value in row.iter_mut() {
                match self.dtype {
                    DType::F16 => {
                        let half = f16::from_f32(*value);
                        *value = half.to_f32();
                        bytes.extend(half.to_le_bytes());
                    }
                    DType::Bf16 => {
                        let half = bf16::from_f32(*value);
                        *value = half.to_f32();
                        bytes.extend(half.to_le_bytes());
                    }
                    _ => bytes.extend(value.to_le_bytes()),
                }
            }
            bytes.resize(end, 0xff);
        }
        gpu.write(self.buffer.view(), &bytes)
    }
}
