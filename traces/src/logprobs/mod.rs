//! Files of token log-probabilities as servers write them, in one neutral form.
//!
//! Read are the chat and completions layouts of the OpenAI API (with vLLM's and llama-server's extra fields), vLLM's
//! `prompt_logprobs`, SGLang's `meta_info`, llama-server's `completion_probabilities`, and lists over a whole vocabulary
//! beside the logits they come from. Maps keep keys that stand twice, and what stands for "impossible" is no number.

mod import;
mod json;
mod model;
mod native;
mod node;
mod openai;
mod read;
#[cfg(test)]
mod tests;
mod vllm;

pub use import::{FoundId, Labels, LogprobImport, LogprobKind, Lookup, import};
pub use json::{JsonFault, Oddity, Reader};
pub use model::{
    Candidate, Entry, ListSettings, Logprob, LogprobFile, Part, Said, Sequence, Source, State,
    TokenName,
};
pub use node::{Node, Number};
pub use read::{asked, documents, looks_like, read};
