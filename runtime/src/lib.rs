//! The runtime under test: model, KV cache, cache policies, sampler, recorder.
//!
//! Weight files are memory-mapped and must not be truncated while a model is loaded.

#[cfg(target_endian = "big")]
compile_error!("weights are used in place as little-endian; a big-endian host is not supported");

pub mod cache;
pub mod calibrate;
pub mod chat;
pub mod conformance;
pub mod cpu;
pub mod cuda;
pub mod engine;
pub mod error;
pub mod faults;
pub mod hyper;
pub mod policy;
pub mod rope;
pub mod sample;
pub mod select;
pub mod tokenize;
pub mod weights;

pub use engine::{Engine, LoadOptions, Progress, Request, RunOptions, RunSummary};
pub use error::RuntimeError;
pub use hyper::{Architecture, Hyper};
pub use rope::{RopeScaling, RotaryTable};
pub use tokenize::Tokenizer;
