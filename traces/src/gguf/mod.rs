//! GGUF files, versions 1 to 3 (little-endian): header, key-value metadata and the directory of tensors.
//!
//! Layout: magic `GGUF`, version (u32), number of tensors, number of key-value pairs (both u64, u32 in version 1), the pairs, the
//! tensors' descriptions (name, dimensions with the fastest first, element type, offset), padding to `general.alignment` (32 where it
//! is not given), then the data. Offsets count from the start of the data. Lengths are u64 (u32 in version 1).
//!
//! Only the format is here. What a value means for a model, and how blocks of quantised elements become numbers, is read by the
//! runtime and by the reference, each by itself.

mod cursor;
mod element;
mod error;
mod header;
mod value;

pub use element::GgmlType;
pub use error::GgufError;
pub use header::{GgufHeader, GgufTensor, is_gguf};
pub use value::{GgufArray, GgufValue};

#[cfg(test)]
mod tests;
