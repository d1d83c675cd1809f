//! The best rows of each ranking: the kernels of `select_top.cu`.

use lockstep_traces::DType;

use crate::cuda::gpu::{
    Arg, Build, Gpu, GpuError, Kernel, KernelFile, Program, View, blocks, grid,
};

/// Keys that are sorted in shared memory; more need scratch memory.
const SHARED_KEYS: usize = 8192;
/// Threads of a block.
const THREADS: u32 = 1024;

/// What is chosen of each ranking.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Choice {
    /// Rankings.
    pub lists: usize,
    /// Scores of each.
    pub columns: usize,
    /// Columns taken.
    pub count: usize,
    /// Rows before the first column, which stay.
    pub prefix: usize,
    /// Chosen rows by falling score, else ascending.
    pub falling: bool,
    /// A tie goes to the higher column (a planted fault).
    pub higher: bool,
}

/// The kernels of `select_top.cu`.
#[derive(Debug)]
pub struct TopOps {
    ascending: Kernel,
    falling: Kernel,
    in_order: Kernel,
}

impl TopOps {
    /// Compiles them.
    ///
    /// # Errors
    /// Compile errors.
    pub fn new(gpu: &Gpu) -> Result<Self, GpuError> {
        let program = Program { file: KernelFile::SELECT_TOP, build: Build::of(DType::F32) };
        Ok(Self {
            ascending: gpu.kernel(program, "top_k")?,
            falling: gpu.kernel(program, "top_k_falling")?,
            in_order: gpu.kernel(program, "rows_in_order")?,
        })
    }

    /// Words of scratch memory for sorting up to `count` chosen rows of `lists` rankings.
    #[must_use]
    pub const fn scratch(lists: usize, count: usize) -> usize {
        let width = count.next_power_of_two();
        if width <= SHARED_KEYS { 0 } else { lists * width }
    }

    /// `rows[lists][prefix + count]` of `scores[lists][columns]`. `keys`: scratch memory of [`TopOps::scratch`] words.
    ///
    /// # Errors
    /// [`GpuError::Range`] and [`GpuError::Unsupported`] where sizes do not fit; driver errors.
    pub fn best(
        &self,
        gpu: &Gpu,
        choice: &Choice,
        scores: View<f32>,
        keys: View<u64>,
        rows: View<u32>,
    ) -> Result<(), GpuError> {
        let Choice { lists, columns, count, prefix, .. } = *choice;
        if lists == 0 || count > columns || prefix + count == 0 {
            return Err(GpuError::unsupported(format!(
                "{count} of {columns} columns of {lists} rankings after {prefix} rows"
            )));
        }
        let scores = scores.arg(lists * columns)?;
        let rows = rows.arg(lists * (prefix + count))?;
        let shape = grid([blocks(lists, 1)?, 1, 1], THREADS);
        let higher = Arg::from(u32::from(choice.higher));
        let (columns, prefix) = (Arg::count(columns)?, Arg::count(prefix)?);
        if !choice.falling {
            let arguments = [scores, rows, columns, Arg::count(count)?, prefix, higher];
            return gpu.launch(&self.ascending, shape, &arguments);
        }
        let (width, scratch) = (count.next_power_of_two(), Self::scratch(lists, count));
        let (keys, shared) = if scratch == 0 {
            (Arg::none(), u32::try_from(width * size_of::<u64>()).unwrap_or(u32::MAX))
        } else {
            (keys.arg(scratch)?, 0)
        };
        let arguments =
            [scores, rows, keys, columns, Arg::count(count)?, Arg::count(width)?, prefix, higher];
        gpu.launch(&self.falling, shape.shared(shared), &arguments)
    }

    /// `rows[lists][count]` = 0, 1, 2, ...
    ///
    /// # Errors
    /// As [`TopOps::best`].
    pub fn in_order(
        &self,
        gpu: &Gpu,
        rows: View<u32>,
        lists: usize,
        count: usize,
    ) -> Result<(), GpuError> {
        if lists == 0 || count == 0 {
            return Err(GpuError::unsupported(format!("{lists} lists of {count} rows")));
        }
        let arguments = [rows.arg(lists * count)?, Arg::count(count)?];
        gpu.launch(&self.in_order, grid([blocks(lists, 1)?, 1, 1], THREADS), &arguments)
    }
}
