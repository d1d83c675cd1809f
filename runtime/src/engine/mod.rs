//! The engine: loads a model, runs requests in a batch, and records what it does.

mod answer;
mod compact;
mod describe;
mod feed;
#[cfg(test)]
mod golden;
#[cfg(test)]
mod golden_compressed;
mod load;
mod options;
mod record;
mod run;
mod sequence;
mod summary;
#[cfg(test)]
mod tests;

pub use answer::boxed_answer;
pub use load::Engine;
pub use options::{LoadOptions, Progress, Request, RunOptions, RunSummary};
pub use run::OnProgress;
pub(crate) use run::QueryCount;
pub use summary::{RowSummary, summarize};
