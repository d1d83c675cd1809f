//! The CPU backend: kernels, attention and the forward pass.
//!
//! Every sum of products runs over 16 lanes in one fixed order, fused, whatever the instruction set, the number of threads
//! or the number of rows computed together. So a row's result depends on its own inputs only: alone or in a batch, token by
//! token or in chunks, on one thread or many, with AVX-512, AVX2 or neither, the bits are the same.

mod attention;
mod forward;
mod kernels;
mod matmul;
mod ops;
#[expect(unsafe_code, reason = "vector instructions chosen at run time")]
mod simd;
mod taps;

pub use forward::{Arithmetic, Causal, CpuModel, Grouping, Segment};
pub use kernels::Isa;
pub use taps::{NamedRows, Taps, WantedRow};
