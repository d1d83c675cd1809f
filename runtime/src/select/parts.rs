//! What another backend needs of a selector: the same tables, rules and stages, worked by other code.

pub(crate) use super::choose::{Outline, PromptRows, Protection, Sizes, outline};
pub(crate) use super::fault::Faults;
pub(crate) use super::job::not_a_number;
pub(crate) use super::kernel::Direct;
pub(crate) use super::phase::table_row;
pub(crate) use super::reduce::{Layout, Rankings, Reduced};
pub(crate) use super::score::{Matrix, Scorer};
pub(crate) use super::selector::check_exact;
pub(crate) use super::stages::Grid;
pub(crate) use super::weights::Head;
use super::{Dims, Selector};

/// A selector's tables.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Parts<'a> {
    /// Shape of the attention.
    pub(crate) dims: Dims,
    /// Rows of the score matrix.
    pub(crate) heads: &'a [Head],
    /// Which of them belong to which layer and KV head.
    pub(crate) layout: &'a Layout,
    /// Offsets, frequencies, units.
    pub(crate) scorer: &'a Scorer,
    /// The planted fault.
    pub(crate) faults: Faults,
}

impl Selector {
    /// Its tables.
    pub(crate) fn parts(&self) -> Parts<'_> {
        Parts {
            dims: self.dims,
            heads: &self.heads,
            layout: &self.layout,
            scorer: &self.scorer,
            faults: self.faults,
        }
    }
}
