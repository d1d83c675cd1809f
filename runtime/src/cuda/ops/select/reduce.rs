//! From raw scores to ranked ones: the kernels of `select_reduce.cu`.

use lockstep_traces::DType;

use super::DeviceNoise;
use super::score::{narrow, sparse};
use crate::cuda::gpu::{
    Arg, Buffer, Build, Gpu, GpuError, Kernel, KernelFile, Program, View, blocks, grid,
};

/// Words of a result: [0] a ranking holds a NaN, [1] guarded rows, [2] largest position.
pub(super) const WORDS: usize = 3;

/// How rows become one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Combine {
    /// Maximum; a NaN wins.
    Max,
    /// Sum in order, divided by the count.
    Mean,
    /// Sum in order times the rounded reciprocal of the count.
    ReciprocalMean,
    /// Zero everywhere.
    Zero,
}

/// Rows of a matrix by list, each with its rule.
#[derive(Debug)]
pub struct Lists {
    start: Buffer<u32>,
    rows: Buffer<u32>,
    how: Buffer<u32>,
    count: usize,
    inputs: usize,
}

impl Lists {
    /// Uploads them.
    ///
    /// # Errors
    /// [`GpuError::Unsupported`] for no list at all; driver errors.
    pub fn new(gpu: &Gpu, lists: &[(Combine, Vec<usize>)]) -> Result<Self, GpuError> {
        if lists.is_empty() {
            return Err(GpuError::unsupported("no list to combine; give at least one"));
        }
        let members: Vec<&Vec<usize>> = lists.iter().map(|(_, rows)| rows).collect();
        let (start, rows) = sparse(&members)?;
        let how = narrow(lists.iter().map(|(how, _)| match how {
            Combine::Max => 0,
            Combine::Mean => 1,
            Combine::ReciprocalMean => 2,
            Combine::Zero => 3,
        }))?;
        let inputs = rows.iter().max().map_or(0, |&row| row as usize + 1);
        Ok(Self {
            start: gpu.upload(&start)?,
            rows: gpu.upload(&rows)?,
            how: gpu.upload(&how)?,
            count: lists.len(),
            inputs,
        })
    }

    /// Lists.
    #[must_use]
    pub const fn count(&self) -> usize {
        self.count
    }
}

/// What is done to a ranking at its end.
#[derive(Debug, Clone, Copy)]
pub struct Guards {
    /// `[columns]`: 1 becomes +inf.
    pub flags: View<u32>,
    /// Bit 0 of the first word is set where a value was NaN before.
    pub words: View<u32>,
    /// The last column becomes -inf (a planted fault).
    pub newest_lost: bool,
}

/// Which rows are kept outright.
#[derive(Debug, Clone, Copy)]
pub struct GuardRows {
    /// `[lists][stride]`; the first list is KV head 0's.
    pub positions: View<u32>,
    /// Lists.
    pub lists: usize,
    /// Rows from one list to the next.
    pub stride: usize,
    /// Live rows.
    pub rows: usize,
    /// First row that is ranked; flags begin there.
    pub first_row: usize,
    /// Newest rows.
    pub window: usize,
    /// 0: the prompt is open; 1: its rows are the first ones; 2: those of positions below its length.
    pub prompt_rule: u32,
    /// Prompt tokens.
    pub prompt_len: usize,
}

/// The divisor of a z-score.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ZRule {
    /// Below 1e-6: 1.
    Native,
    /// Below 1e-8: 1.
    Triton,
    /// At least 1e-6.
    Clamped,
    /// No normalising: a copy.
    Off,
}

/// How rows are normalised.
#[derive(Debug, Clone, Copy)]
pub struct Moments {
    /// Divisor.
    pub rule: ZRule,
    /// n, else n - 1.
    pub population: bool,
    /// Columns that do not count, `[raw columns]` of 0 and 1.
    pub left_out: Option<View<u32>>,
    /// Leading columns that count and are dropped from the result.
    pub dropped: usize,
}

/// The kernels of `select_reduce.cu`.
#[derive(Debug)]
pub struct ReduceOps {
    guard: Kernel,
    zscore: Kernel,
    noise: Kernel,
    combine: Kernel,
}

impl ReduceOps {
    /// Compiles them.
    ///
    /// # Errors
    /// Compile errors.
    pub fn new(gpu: &Gpu) -> Result<Self, GpuError> {
        let program = Program { file: KernelFile::SELECT_REDUCE, build: Build::of(DType::F32) };
        Ok(Self {
            guard: gpu.kernel(program, "guard_rows")?,
            zscore: gpu.kernel(program, "zscore")?,
            noise: gpu.kernel(program, "mt19937")?,
            combine: gpu.kernel(program, "combine")?,
        })
    }

    /// Flags of guarded rows, `[rows - first_row]`; counts them and finds the largest position (`words`, zeroed before).
    ///
    /// # Errors
    /// [`GpuError::Range`] and [`GpuError::Unsupported`] where sizes do not fit; driver errors.
    pub fn guard(
        &self,
        gpu: &Gpu,
        call: &GuardRows,
        flags: View<u32>,
        words: View<u32>,
    ) -> Result<(), GpuError> {
        if call.rows == 0 || call.rows > call.stride || call.first_row >= call.rows {
            return Err(GpuError::unsupported(format!(
                "{} rows of {}, ranked from row {} on",
                call.rows, call.stride, call.first_row
            )));
        }
        if call.prompt_rule > 2 {
            return Err(GpuError::unsupported("a prompt rule beyond 2"));
        }
        let arguments = [
            call.positions.arg(call.lists * call.stride)?,
            flags.arg(call.rows - call.first_row)?,
            words.arg(WORDS)?,
            Arg::count(call.stride)?,
            Arg::count(call.rows)?,
            Arg::count(call.first_row)?,
            Arg::count(call.window)?,
            Arg::from(call.prompt_rule),
            Arg::count(call.prompt_len)?,
        ];
        let shape = grid([blocks(call.rows, 256)?, blocks(call.lists, 1)?, 1], 256);
        gpu.launch(&self.guard, shape, &arguments)
    }

    /// `z[rows][columns - dropped]` of `raw[rows][columns]`.
    ///
    /// # Errors
    /// As [`ReduceOps::guard`].
    pub fn zscore(
        &self,
        gpu: &Gpu,
        (raw, rows, columns): (View<f32>, usize, usize),
        how: &Moments,
        z: View<f32>,
    ) -> Result<(), GpuError> {
        if rows == 0 || how.dropped >= columns {
            return Err(GpuError::unsupported(format!(
                "{rows} rows of {columns} scores, {} of them dropped",
                how.dropped
            )));
        }
        let rule = match how.rule {
            ZRule::Native => 0,
            ZRule::Triton => 1,
            ZRule::Clamped => 2,
            ZRule::Off => 3_u32,
        };
        let arguments = [
            raw.arg(rows * columns)?,
            how.left_out.map_or(Ok(Arg::none()), |flags| flags.arg(columns))?,
            z.arg(rows * (columns - how.dropped))?,
            Arg::count(columns)?,
            Arg::count(how.dropped)?,
            Arg::from(rule),
            Arg::from(u32::from(how.population)),
        ];
        gpu.launch(&self.zscore, grid([blocks(rows, 1)?, 1, 1], 256), &arguments)
    }

    /// Adds one draw times 1e-6 to each value of `z`, rows in the order of `order`, after `skip` draws that are dropped.
    ///
    /// # Errors
    /// As [`ReduceOps::guard`].
    pub fn noise(
        &self,
        gpu: &Gpu,
        noise: &DeviceNoise,
        (z, columns): (View<f32>, usize),
        order: View<u32>,
        skip: usize,
    ) -> Result<(), GpuError> {
        let count = order.len() * columns;
        if count == 0 {
            return Err(GpuError::unsupported("noise for no value"));
        }
        let arguments = [
            noise.state().arg(DeviceNoise::WORDS)?,
            z.arg(count)?,
            order.arg(order.len())?,
            Arg::long(count as u64),
            Arg::long(skip as u64),
            Arg::count(columns)?,
        ];
        gpu.launch(&self.noise, grid([1, 1, 1], 256), &arguments)
    }

    /// `out[lists][columns]` of `input[..][columns]`.
    ///
    /// # Errors
    /// As [`ReduceOps::guard`].
    pub fn combine(
        &self,
        gpu: &Gpu,
        (input, columns): (View<f32>, usize),
        lists: &Lists,
        guards: Option<&Guards>,
        out: View<f32>,
    ) -> Result<(), GpuError> {
        if columns == 0 {
            return Err(GpuError::unsupported("no column to combine"));
        }
        let arguments = [
            input.arg(lists.inputs * columns)?,
            lists.start.view().arg(lists.count + 1)?,
            lists.rows.view().arg(lists.rows.len())?,
            lists.how.view().arg(lists.count)?,
            guards.map_or(Ok(Arg::none()), |guards| guards.flags.arg(columns))?,
            guards.map_or(Ok(Arg::none()), |guards| guards.words.arg(WORDS))?,
            out.arg(lists.count * columns)?,
            Arg::count(columns)?,
            Arg::from(u32::from(guards.is_some_and(|guards| guards.newest_lost))),
        ];
        let shape = grid([blocks(columns, 128)?, blocks(lists.count, 1)?, 1], 128);
        gpu.launch(&self.combine, shape, &arguments)
    }
}
