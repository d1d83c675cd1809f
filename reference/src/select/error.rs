//! Errors of the selector reference.

use lockstep_traces::{RuleSet, SelectionMode};

/// A selection cannot be computed as asked.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum SelectError {
    /// The rule set has no such setting.
    #[error("rule set {rule_set:?} has no {what}; {remedy}")]
    Unsupported {
        /// Rule set.
        rule_set: RuleSet,
        /// Setting or combination.
        what: String,
        /// What to do instead.
        remedy: String,
    },
    /// The rule set has no such shape of keep-sets.
    #[error("rule set {rule_set:?} has no mode {mode:?}; it has {available}")]
    Mode {
        /// Rule set.
        rule_set: RuleSet,
        /// Mode asked for.
        mode: SelectionMode,
        /// Modes it has.
        available: &'static str,
    },
    /// Two inputs disagree about a size.
    #[error("{what}: expected {expected}, found {found}")]
    Shape {
        /// Which input.
        what: String,
        /// Size wanted.
        expected: usize,
        /// Size found.
        found: usize,
    },
    /// An input holds a value that no rule covers.
    #[error("{what}")]
    Input {
        /// What is wrong and where.
        what: String,
    },
}

/// Fails with [`SelectError::Shape`] unless the two sizes agree.
pub(crate) fn same(what: &str, expected: usize, found: usize) -> Result<(), SelectError> {
    if expected == found {
        return Ok(());
    }
    Err(SelectError::Shape { what: what.to_owned(), expected, found })
}
