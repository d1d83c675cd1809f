//! Comparison of what two runs recorded: splits, noise, ties, keep-sets, gathers, positions, drift and text.
//!
//! Pure data in, data out. Nothing here runs a model; the softmax of the metrics is this crate's own, in f64.

pub mod report;
pub mod stats;
pub mod ulp;
