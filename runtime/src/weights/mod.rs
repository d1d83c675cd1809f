//! Weight files: header, mapping, and the tensors of a model by name.

mod files;
mod gguf;
mod header;
mod model;
mod quant;
mod tensor;

pub use files::WeightFiles;
pub(crate) use gguf::ROPE_FACTORS;
pub use gguf::open_gguf;
pub use header::{Entry, Header, HeaderError, RowOrder};
pub use model::{Head, LayerWeights, Linear, ModelWeights, output_head};
pub use tensor::{Elements, Tensor};
