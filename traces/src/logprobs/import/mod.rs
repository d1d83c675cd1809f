//! Files of log-probabilities become runs.

mod kind;
mod lists;
mod miles;
mod names;
mod records;
mod rows;
mod run;
mod tally;
#[cfg(test)]
mod tests;
mod track;

pub use kind::LogprobKind;
pub use miles::Labels;
pub use names::{FoundId, Lookup};
pub use run::{LogprobImport, import};
