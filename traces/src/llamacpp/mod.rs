//! Evidence files of llama.cpp's programs.
//!
//! | file | program | what is read |
//! |---|---|---|
//! | KLD base file | `llama-perplexity --save-all-logits` (or `--kl-divergence-base` without `--kl-divergence`) | tokens and, for the second half of each chunk, log-probabilities of the whole vocabulary as 16-bit codes |
//! | results file | `llama-results` | GGUF with the prompt's tokens and a row of logits for each |
//! | bare row | `llama-debug --save-logits`, model-conversion scripts | one row of f32 logits without a header |
//!
//! The layouts and the arithmetic of the codes are those of `tools/perplexity/perplexity.cpp`, `tools/results/results.cpp` and
//! `examples/debug/debug.cpp` of ggml-org/llama.cpp. ik_llama.cpp writes the same KLD layout with a range of 24 nats instead of 16.

mod debug;
mod encode;
mod export;
mod import;
mod kld;
mod record;
mod results;
mod rows;
mod windows;

#[cfg(test)]
mod tests;

pub use debug::{DebugRow, import_debug};
pub use encode::{EncodedRow, encode_row};
pub use export::{KldExport, KldWritten, export_kld};
pub use import::import_kld;
pub use kld::{KldFile, KldShape, is_kld};
pub use record::KldRecord;
pub use results::{ResultsFile, import_results, is_results};
pub use rows::LogitRows;
pub use windows::{RunWindows, Window};
