//! The engine: loads a model, runs requests in a batch, and records what it does.

mod answer;
mod backend;
mod compact;
mod compact_cpu;
mod compact_cuda;
mod describe;
mod feed;
#[cfg(test)]
mod golden;
#[cfg(test)]
mod golden_compressed;
#[cfg(test)]
mod golden_gguf;
mod load;
#[cfg(test)]
mod on_device;
mod options;
mod pass;
mod random;
mod record;
mod run;
mod sequence;
mod staging;
mod stop;
mod summary;
#[cfg(test)]
mod tests;

pub use answer::boxed_answer;
pub use load::Engine;
pub use options::{DeviceChoice, LoadOptions, Progress, Request, RunOptions, RunSummary};
pub use random::SHAPES;
pub use run::OnProgress;
pub(crate) use run::QueryCount;
pub use stop::{ANSWER_RULE, StopRules};
pub use summary::{RowSummary, summarize};
