//! Tensors in the plain files that frameworks and debuggers write.
//!
//! | file | what is read |
//! |---|---|
//! | `.safetensors`, and folders or `*.index.json` of shards | every tensor; the index must name what the shards hold |
//! | `.npy` | format versions 1 to 3, C and Fortran order, either byte order, bf16 and fp8 as `V2`, `V1`, `u2`, `u1` by declaration |
//! | `.npz` | stored and deflated entries |
//! | `.pt` | the zip form and the older bare form of `torch.save`, every storage type; nested values; nothing is executed |
//! | `.json` | Polygraphy run results; else every list of numbers as f64 |
//! | any other | raw bytes of a declared type and shape |
//! | folders of these | SGLang dumps (`k=v___k=v.pt`), msProbe dumps (`dump.json`), TensorRT-LLM debug trees, anything else by file name |
//!
//! Files are mapped; deflated entries go through an unlinked temporary file, so that anonymous memory stays flat. Every length is
//! held against the file before it is used. What a file holds decides how it is read; its name decides only where content cannot.

mod element;
mod folder;
mod json;
mod legacy;
mod npy;
mod order;
mod pickle;
mod polygraphy;
mod raw;
mod read;
mod safetensors;
pub(crate) mod source;
mod tensor;
mod torch;
mod walk;
mod zipped;

#[cfg(test)]
mod tests;

pub use element::Element;
pub use order::natural;
pub use raw::RawSpec;
pub use read::{Misfit, ReadOptions, TensorSet, read, recognised};
pub use tensor::PlainTensor;
