//! Tensor files become a run, and the dumps of a run become tensor files.
//!
//! | layout | direction |
//! |---|---|
//! | SGLang, msProbe, TensorRT-LLM and Polygraphy dumps, any tensor file or folder | in, by a [`RunMap`] or under their own names |
//! | one safetensors file, a folder of `.npy` | out, and in again without a map |
//!
//! A map gives tensors the names of [`crate::dump`]; a tensor of logits becomes a step row, whose ids, logsumexp and hash are
//! computed from it. Files are mapped and pass through a small buffer, one tensor after another.

mod export;
mod import;
mod map;
mod own;
mod place;
mod rows;

#[cfg(test)]
mod tests;

pub use export::{export_npy, export_safetensors};
pub use import::{TensorImport, import_tensors};
pub use map::RunMap;
