//! Blocks of a pair: how large they are, and how threads share them.

use std::sync::atomic::{AtomicUsize, Ordering};

use rayon::prelude::*;

use super::view::View;

/// Elements of a block at least: its bytes stay in the second-level cache.
const BLOCK: usize = 1 << 16;
/// Blocks of a pair at most, so that what is kept of each does not grow with the tensor.
const BLOCKS: usize = 1 << 16;

/// The blocks of a number of elements.
#[derive(Debug, Clone, Copy)]
pub(super) struct Blocks {
    elements: usize,
    size: usize,
}

impl Blocks {
    pub(super) fn of(elements: usize) -> Self {
        let size = elements.div_ceil(BLOCKS).max(BLOCK).next_multiple_of(1 << 10);
        Self { elements, size }
    }

    pub(super) const fn count(self) -> usize {
        self.elements.div_ceil(self.size)
    }

    /// First element of a block.
    pub(super) const fn start(self, at: usize) -> usize {
        at * self.size
    }

    /// Elements of a block.
    pub(super) fn length(self, at: usize) -> usize {
        self.size.min(self.elements - self.start(at))
    }

    /// The bytes of a block of both sides.
    pub(super) fn bytes<'b>(
        self,
        at: usize,
        (left, right): (&View<'b>, &View<'b>),
        buffers: &'b mut Buffers,
    ) -> (&'b [u8], &'b [u8]) {
        let (start, length) = (self.start(at), self.length(at));
        (
            left.block(start, length, &mut buffers.left),
            right.block(start, length, &mut buffers.right),
        )
    }
}

/// Copies of a block of views that do not lie straight.
#[derive(Debug, Default)]
pub(super) struct Buffers {
    pub(super) left: Vec<u8>,
    pub(super) right: Vec<u8>,
}

/// A block decoded, for the types without a vector form.
#[derive(Debug, Default)]
pub(super) struct Decoded {
    pub(super) left: Vec<f64>,
    pub(super) right: Vec<f64>,
    pub(super) left_ranks: Vec<i64>,
    pub(super) right_ranks: Vec<i64>,
}

/// Gives `count` numbers to the threads as they come free, about in order; each thread fills an accumulator of its own. What comes back
/// must be joined in a way that no schedule shows in.
pub(super) fn shared<T: Send>(
    count: usize,
    new: impl Fn() -> T + Sync,
    each: impl Fn(&mut T, usize) + Sync,
) -> Vec<T> {
    let next = AtomicUsize::new(0);
    let threads = rayon::current_num_threads().clamp(1, count.max(1));
    (0..threads)
        .into_par_iter()
        .with_max_len(1)
        .map(|_| {
            let mut own = new();
            loop {
                let at = next.fetch_add(1, Ordering::Relaxed);
                if at >= count {
                    return own;
                }
                each(&mut own, at);
            }
        })
        .collect()
}
