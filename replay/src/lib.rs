//! Re-execution of recorded runs: what to feed when, offsets, self-checks, hypotheses.

pub mod conformance;
pub mod error;
pub mod forward;
pub mod keepsets;
pub mod rope;
pub mod sampler;
pub mod selector;

pub use error::ReplayError;
pub use forward::forward;
