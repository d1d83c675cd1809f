//! The form of an entry.

use lockstep_traces::DType;

use super::Guarded;
use crate::cuda::gpu::{Gpu, GpuError, KernelFile};

/// What an operation takes and promises.
#[derive(Debug, Clone, Copy)]
pub struct Contract {
    /// Inputs and outputs with shapes and element types.
    pub shapes: &'static str,
    /// What the host side refuses.
    pub raises: &'static [&'static str],
    /// What goes wrong without a word.
    pub silent: &'static [&'static str],
    /// Where values are rounded.
    pub rounding: &'static str,
}

/// How far an output may lie from the f64 reference.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Tolerance {
    /// Bound on the figure that `Case::error` gives; 0: bits must agree.
    pub bound: f64,
    /// Where the bound comes from.
    pub why: &'static str,
}

/// One combination of element types and sizes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cell {
    /// Activations and weights.
    pub elem: DType,
    /// KV cache.
    pub cache: DType,
    /// Sizes, in the order that the entry's `sizes` names.
    pub sizes: &'static [usize],
}

impl Cell {
    /// Rough size of the work: the three largest sizes multiplied.
    #[must_use]
    pub fn work(&self) -> u64 {
        let mut sizes: Vec<u64> = self.sizes.iter().map(|&size| size as u64).collect();
        sizes.sort_unstable_by(|a, b| b.cmp(a));
        sizes.iter().take(3).fold(1, |work, &size| work.saturating_mul(size.max(1)))
    }
}

/// Makes a case of a cell.
pub type Open = fn(&Gpu, &Cell) -> Result<Box<dyn Case>, GpuError>;

/// An operation of the catalog.
#[derive(Clone, Copy)]
pub struct Entry {
    /// Name, e.g. `rms_norm`.
    pub name: &'static str,
    /// Kernel file.
    pub file: KernelFile,
    /// Other files that decide the result, below `runtime`, with their text: host side, this entry.
    pub sources: &'static [(&'static str, &'static str)],
    /// Names of `Cell::sizes`.
    pub sizes: &'static [&'static str],
    /// Promise.
    pub contract: Contract,
    /// Formula of the f64 reference.
    pub reference: &'static str,
    /// Tolerance of a cell.
    pub tolerance: fn(&Cell) -> Tolerance,
    /// Cells that a run covers.
    pub cells: &'static [Cell],
    /// Allocates buffers and loads kernels for a cell. Buffers keep their addresses from then on.
    pub open: Open,
}

/// An output of a case: bytes that a run must write (all of them), in a guarded buffer.
#[derive(Debug)]
pub struct Output<'a> {
    /// Name.
    pub name: &'static str,
    /// Its buffer.
    pub bytes: &'a Guarded<u8>,
}

/// One cell under test.
pub trait Case {
    /// Fresh random inputs of this seed, written to the case's buffers; state that the operation updates in place is reset too.
    ///
    /// # Errors
    /// Device errors.
    fn fill(&mut self, gpu: &Gpu, seed: u64) -> Result<(), GpuError>;

    /// Queues the operation.
    ///
    /// # Errors
    /// Device errors.
    fn run(&self, gpu: &Gpu) -> Result<(), GpuError>;

    /// The same with a mistake planted in its arguments: `error` must then be out of tolerance.
    ///
    /// # Errors
    /// Device errors.
    fn run_wrong(&self, gpu: &Gpu) -> Result<(), GpuError>;

    /// Outputs.
    fn outputs(&self) -> Vec<Output<'_>>;

    /// Is the output also an input (a residual that is added to)? Then it is not poisoned before a run, and `fill` resets it.
    fn updates_in_place(&self) -> bool {
        false
    }

    /// Do all inputs lie in plain arguments (a fill by value)? A recording holds them, so its replays are compared with an eager call of
    /// the inputs that were recorded. Everything that decode replays reads its inputs from memory and must not say so.
    fn by_argument(&self) -> bool {
        false
    }

    /// Largest deviation of the outputs from the f64 reference of the inputs last filled, in the tolerance's unit; NaN or infinity where
    /// something is missing or is no number that should be one.
    ///
    /// # Errors
    /// Device errors.
    fn error(&self, gpu: &Gpu) -> Result<f64, GpuError>;

    /// Changes the inputs of one sequence (row, head) only and returns the byte ranges of each output, in the order of `outputs`, that may
    /// not change by that. `None`: the operation has one sequence.
    ///
    /// # Errors
    /// Device errors.
    fn disturb(&mut self, gpu: &Gpu) -> Result<Option<Vec<Vec<std::ops::Range<usize>>>>, GpuError>;

    /// Calls outside the contract, each with what it does wrong: every one must be refused before anything is launched.
    fn misuse(&self, gpu: &Gpu) -> Vec<(&'static str, Result<(), GpuError>)>;
}
