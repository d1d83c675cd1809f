//! Log-probability files: do they hold together, what were they put through, and how far do two of them agree.
//!
//! What stands for "impossible" or is no number enters no sum, no maximum and no difference. Values of two files are only
//! held against each other where they mean the same; where they do not, the answer says what would be needed.

mod candidates;
mod consistency;
mod pairing;
mod relate;
mod relation;
mod report;
#[cfg(test)]
mod tests;
mod text;
mod transform;

pub use relate::{
    CompareOptions, LogOdds, LogprobDiff, LogprobMax, PairView, Relation, RelationKind, compare,
};
pub use report::{EntryView, LogprobFinding, LogprobReport, SequenceView, inspect};
pub use transform::{
    Convention, Distance, ListAnswer, Settings, ToRaw, Transforms, identify, identify_rows,
};
