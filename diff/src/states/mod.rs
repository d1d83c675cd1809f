//! States of a cache against stated rules: rows kept, keys seen, positions and angles after shifts.
//!
//! A mistake is named where a hypothesis gives every observed state and the rule does not. Several hypotheses that give the same states
//! are all named: the evidence does not tell them apart.

mod cache;
mod moves;
mod policies;
mod rotations;
mod shifts;
#[cfg(test)]
mod tests;
mod visible;

use serde::Serialize;

pub use cache::{CacheReport, Fault, Implementation, Rule, StateOfStep, check as check_states};
pub use policies::Fit;
pub use rotations::RotationFit;
pub use shifts::{AngleList, CellShift, PositionList, ShiftReport, check as check_shifts};
pub use visible::{
    EngineWindow, FirstDifference, QueryFault, VisiblePair, VisibleReport, check as check_visible,
};

/// Something that a reader must know.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct StateFinding {
    /// Stable name.
    pub name: String,
    /// Implementation, engine or list that it is about; empty where it is about all.
    pub of: String,
    /// One line for people.
    pub title: String,
}

impl StateFinding {
    fn new(name: &str, of: &str, title: impl Into<String>) -> Self {
        Self { name: name.to_owned(), of: of.to_owned(), title: title.into() }
    }
}

/// `2`, `2, 3` or `4..7` for a rising list.
fn ranges(list: &[u64]) -> String {
    let mut parts: Vec<(u64, u64)> = Vec::new();
    for value in list {
        match parts.last_mut() {
            Some((_, last)) if *last + 1 == *value => *last = *value,
            _ => parts.push((*value, *value)),
        }
    }
    let part = |(first, last): &(u64, u64)| match last - first {
        0 => first.to_string(),
        1 => format!("{first}, {last}"),
        _ => format!("{first}..{last}"),
    };
    parts.iter().map(part).collect::<Vec<_>>().join(", ")
}
