//! Parts of a report from traces and answers: time lines, curves, splits, strips, drift and keep-set maps.
//!
//! Nothing is averaged: where a list is shortened, the rows that stay are rows of the trace, extremes among them.

mod curve;
mod drift;
mod keep;
mod runs;
mod split;
mod timeline;

pub use curve::{curve, firsts};
pub use drift::drift;
pub use keep::{KeepSet, KeepSets, keep_map};
pub use runs::{RunCounts, run_summary, summarize};
pub use split::{Labels, split_view, strip};
pub use timeline::{TimelineInput, timeline, timeline_of_diff};

/// Bytes of a token id; they may be no UTF-8.
pub type TokenText<'a> = dyn Fn(u32) -> Vec<u8> + 'a;
