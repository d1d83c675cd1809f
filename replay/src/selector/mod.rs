//! Selections of a run recomputed from its dumps: every stage in f64 under a named rule set, and under a matrix of known
//! mistakes where something differs.

mod affine;
mod case;
mod check;
mod detail;
mod error;
mod event;
mod facts;
mod findings;
mod hypotheses;
mod judge;
mod limits;
mod notes;
mod options;
mod sets;
mod settings;
mod setup;

#[cfg(test)]
mod tests;

pub use check::check;
pub use detail::{
    Cell, EventDetail, HypothesisDetail, SelectorDetail, SetDetail, SetStatus, StageDetail,
};
pub use error::SelectorError;
pub use options::SelectorOptions;
