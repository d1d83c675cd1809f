//! Runs in formats of other tools: responses with log-probabilities, the neutral trace, CSV. Every file is written beside
//! its place and renamed; some thousand rows are in memory at a time.

mod chat;
mod completions;
mod csv;
mod frame;
mod neutral;
mod rows;
#[cfg(test)]
mod tests;
mod values;
mod vllm;

pub use chat::openai_chat;
pub use completions::openai_completions;
pub use csv::csv;
pub use neutral::neutral;
pub use rows::Selection;
pub use vllm::vllm;

/// Bytes of a token by its id; `None` for an id without text.
pub type Texts<'a> = &'a dyn Fn(u32) -> Option<Vec<u8>>;
