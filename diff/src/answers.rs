//! Answers: what a completion says, by which rule it was read, and whether it is the gold answer.
//!
//! A rule is always declared and comes back with what it found; an answer that was not found is no wrong answer.

mod boxed;
mod decimal;
mod degenerate;
mod judge;
mod normalise;
mod plain;
mod repeats;
mod rule;
mod score;
mod scorer;
#[cfg(test)]
mod tests;
mod trtmc;
mod versus;

pub use degenerate::{
    DISTINCT_SHARE, Degeneracy, Loop, State, Stream, Unit, WINDOW, degenerate, degenerate_text,
};
pub use judge::{Completion, Judged, Outcome, judge};
pub use normalise::{Comparison, Normal, Normalise, compare, normalise};
pub use rule::{Extracted, Found, Rule, extract};
pub use score::{Entry, FilterScore, GoldEcho, RecordedScore, Repeated, ScoreReport};
pub use scorer::{ScoreOptions, Scorer};
pub use versus::{FilterPair, Versus, versus};
