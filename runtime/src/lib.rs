//! The runtime under test: model, KV cache, cache policies, sampler, recorder.

pub mod policy;
pub mod sample;
pub mod select;
