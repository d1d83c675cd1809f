//! Host side of the kernels: one file an operation family. Each checks shapes and lengths and queues the launch; nothing waits.

mod arguments;
pub mod attention;
pub mod attention_prefill;
pub mod embed;
pub mod gather;
pub mod linear;
pub mod logits;
pub mod norm;
pub mod rope;
pub mod sample;
pub mod select;
