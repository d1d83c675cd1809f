//! Golden vectors: every case of a directory run through the reference (or another implementation) and compared.

mod compare;
mod configs;
mod error;
mod expected;
mod golden;
mod implementation;
mod index;
mod lifecycles;
mod plain;
mod report;
mod run;
mod sampling;
mod selections;
mod tolerance;

#[cfg(test)]
mod tests;

pub use error::ConformanceError;
pub use golden::CaseStats;
pub use implementation::{Implementation, Reference, SelectorCase};
pub use report::{CaseReport, CaseStatus, ConformanceReport, GroupReport};
pub use run::{run, run_with};
