//! Comparison of what two runs recorded: splits, noise, ties, keep-sets, gathers, positions, drift and text.
//!
//! Pure data in, data out. Nothing here runs a model; the softmax of the metrics is this crate's own, in f64.

mod align;
pub mod answers;
pub mod arms;
pub mod audits;
mod available;
pub mod claims;
mod compare;
mod context;
pub mod drift;
mod factor;
mod figures;
pub mod gather;
mod identity;
mod inputs;
mod keep;
pub mod keepsets;
pub mod kld;
mod lists;
pub mod logprobs;
pub mod loose;
pub mod noise;
pub mod numbering;
pub mod positions;
mod precision;
mod presence;
pub mod report;
mod sample;
mod series;
pub mod settings;
mod side;
mod splits;
pub mod states;
pub mod stats;
pub mod tensor_sets;
pub mod tensors;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;
pub mod text;
mod ties;
pub mod tokens;
pub mod ulp;
mod verdict;
mod walk;

pub use align::Align;
pub use available::Available;
pub use compare::compare;
pub use context::{Options, Tolerance};
pub use lists::{ListFault, ListFaultKind};
pub use report::DiffReport;
pub use side::Side;
