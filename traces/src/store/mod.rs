//! The run directory: writer, reader, stream.
//!
//! While a run goes on its rows are in Arrow IPC streams (`steps.arrows`, `events.arrows`, `samples.arrows`);
//! [`RunWriter::finish`] turns them into Parquet tables of the same columns. `manifest.json` says which of the two
//! holds. `logits_hash` is stored as two columns, `logits_hash_0` and `logits_hash_1`.

mod access;
mod columns;
mod convert;
pub(crate) mod dumps;
mod events;
pub(crate) mod fail;
mod format;
pub(crate) mod packed;
mod parts;
mod pushdown;
mod reader;
pub(crate) mod resume;
mod samples;
mod steps;
mod stream;
pub(crate) mod streamed;
mod sums;
mod tensors;
pub(crate) mod thrift;
mod writer;

#[cfg(test)]
mod tests;

pub use columns::{StepColumn, StepColumns, StepQuery};
pub(crate) use dumps::decode as sample_of_folder;
pub use dumps::write_dump;
pub(crate) use format::replace_file;
pub use reader::RunReader;
pub(crate) use sums::SummedFile;
pub use tensors::{DumpFile, TensorView, write_safetensors};
pub use writer::{RunWriter, is_run};
