//! Answers of this crate as data: what the command line prints and the reports draw.
//!
//! Keys are stable. A figure that does not exist (not stored, not finite, nothing compared) is `null`, never 0.
//! Positions are absolute; a split names its deciding row `position` and the row `fed_at` that was fed the choice.

mod answer;
mod sample;
mod split;
mod tables;

pub use answer::{Counts, DiffReport, InputDifference, InputsCheck, SideInfo, SplitAt, Splits4};
pub use sample::{
    Alignment, AlignmentKind, CompactionMark, Kl, LogitStats, MaxDiff, NonFinite, Perplexity,
    Quantiles, SampleDiff, Series, SeriesPoint, TextDiff, TieEntry, TieLedger, TokenOp,
    TokenOpKind,
};
pub use split::{RowView, Split, SplitClass, SplitKind, Splits, TopEntry};
pub use tables::{
    Control, DriftCell, DriftReport, DriftRow, HeadKeep, KeepClass, KeepEvent, KeepSetReport,
    NoiseMetric, NoiseReport, TensorComparison, TensorsReport,
};
