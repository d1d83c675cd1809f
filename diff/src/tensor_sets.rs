//! Comparison of two sets of tensors out of plain files: names matched by rule, layouts declared, every failure listed.
//!
//! Order of judgement, by pair: shape -> non-finite values -> bits -> values -> the control or the tolerance. What has no partner, and
//! what could not be read, is never counted as equal; a comparison of nothing is incomparable. Tensors are read where they lie, in
//! blocks, so that memory does not grow with them.

mod blocks;
mod compare;
mod conclude;
mod decode;
mod detail;
mod hints;
mod judge;
mod layout;
mod map;
mod measure;
mod pairs;
mod quantile;
mod report;
mod roots;
mod shuffle;
mod view;

#[cfg(test)]
mod tests;

pub use compare::{Detail, SetOptions, compare};
pub(crate) use decode::decoded;
pub use judge::Preset;
pub use map::{MapError, NameMap};
pub use report::{
    AxisRun, ControlFigures, Figures, Hint, Judged, PairReport, Root, SetSummary, SetsReport,
    Status, UlpBin, Unfit, Worst,
};
