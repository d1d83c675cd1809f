//! How PyTorch's CUDA fill kernels share out a tensor among threads, and how far a call moves the generator
//! (`aten/src/ATen/native/cuda/DistributionTemplates.h`: `calc_execution_policy`).

/// Threads that a multiprocessor holds on data-centre parts from the P100 to the B200.
pub const SM_THREADS: u32 = 2048;
const BLOCK: u64 = 256;
const UNROLL: u64 = 4;

/// One fill: `elements` numbers by `threads` threads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Geometry {
    /// Elements of the tensor.
    pub elements: u64,
    /// Threads of the grid.
    pub threads: u64,
    /// Blocks of 256 threads (or of another size, see [`Geometry::with_block`]).
    pub blocks: u64,
    unroll: u64,
}

impl Geometry {
    /// A device of `multiprocessors` with `threads_each`; `None` where a size is 0.
    #[must_use]
    pub fn new(elements: u64, multiprocessors: u32, threads_each: u32) -> Option<Self> {
        Self::with_block(elements, (multiprocessors, threads_each), BLOCK, UNROLL)
    }

    /// The same with another block size and another count of numbers that a thread takes of one Philox block (at most 4).
    #[must_use]
    pub fn with_block(
        elements: u64,
        (multiprocessors, threads_each): (u32, u32),
        block: u64,
        unroll: u64,
    ) -> Option<Self> {
        let resident = u64::from(threads_each).checked_div(block)?;
        let most = u64::from(multiprocessors) * resident;
        if elements == 0 || most == 0 || !(1..=UNROLL).contains(&unroll) {
            return None;
        }
        let blocks = elements.div_ceil(block).min(most);
        Some(Self { elements, threads: blocks.checked_mul(block)?, blocks, unroll })
    }

    /// What one fill adds to the generator's offset.
    #[must_use]
    pub const fn advance(&self) -> u64 {
        let passes = (self.elements - 1) / (self.threads * self.unroll) + 1;
        passes * UNROLL
    }

    /// Thread, call of its generator within the fill, and component of the call's four words for an element.
    #[must_use]
    pub const fn place(&self, element: u64) -> (u64, u64, u64) {
        let round = element / self.threads;
        (element % self.threads, round / self.unroll, round % self.unroll)
    }

    /// The four words behind an element's number, for a generator of `seed` at `offset`, and which of them it is.
    #[must_use]
    pub fn word(&self, seed: u64, offset: u64, element: u64) -> u32 {
        let (thread, call, component) = self.place(element);
        let counter = u128::from(thread) << 64 | u128::from(offset / UNROLL + call);
        let words = super::philox(counter, seed);
        usize::try_from(component).ok().and_then(|at| words.get(at)).copied().unwrap_or_default()
    }
}
