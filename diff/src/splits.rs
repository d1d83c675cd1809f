//! Splits of one sample: rows, logits, choices, each on its own.

mod choice;
mod logits;
mod ranks;
mod structure;
mod view;

pub(crate) use choice::{Choice, choose};
pub(crate) use logits::{Beside, LogitRule, RowMatch, RowState};
pub(crate) use structure::{Offsets, RowsRule, event_difference, offsets};
pub(crate) use view::{plain_split, row_view};
