//! The forward pass: whole chunks of rows, layer by layer, on candle's CPU matmul.

mod attention;
mod cache;
#[cfg(test)]
mod golden;
#[cfg(test)]
mod golden_gguf;
mod keep;
mod layer;
mod model;
mod ops;
pub(crate) mod parallel;
mod precision;
pub mod stages;
mod watch;

pub use cache::{Cache, CacheRows};
pub use keep::KeepSets;
pub use model::{Chunk, Fed, Logits, Model};
pub use ops::gemm_flops;
pub use precision::{Precision, Rounding};
pub use watch::{Stage, Watch};
