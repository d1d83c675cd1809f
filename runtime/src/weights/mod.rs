//! Weight files: header, mapping, and the tensors of a model by name.

mod files;
mod header;
mod model;
mod tensor;

pub use files::WeightFiles;
pub use header::{Entry, Header, HeaderError};
pub use model::{Head, LayerWeights, Linear, ModelWeights, output_head};
pub use tensor::{Elements, Tensor};
