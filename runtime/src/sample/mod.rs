//! Sampling: which tokens survive the filters, and which of them is drawn.
//!
//! Everything here works on one row of logits in f32 and knows no engine. The order of operations and the draws
//! are those of the native C++ runtime of TensorRT-Model-Connect, of transformers and of PyTorch; `gumbel` is Lockstep's own.

mod error;
pub(crate) mod fast_log;
mod fault;
mod filter;
#[cfg(test)]
mod golden;
mod gumbel;
mod hf;
mod philox;
mod race;
mod sampler;
mod settings;
pub(crate) mod torch_cpu;

pub use error::SampleError;
pub(crate) use filter::TOP_P_OFF;
pub use filter::{FilterMargins, Filters, Survivors};
pub use race::Race;
pub(crate) use race::Winner;
pub use sampler::{Draw, Sampler, SamplerState};
pub use settings::{DrawKind, FilterRules, HostDraw, Settings};
