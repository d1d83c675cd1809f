//! Re-execution of recorded runs: what to feed when, offsets, self-checks, hypotheses.

pub mod conformance;
pub mod forward;
pub mod selector;
