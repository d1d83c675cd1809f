//! Calibration statistics of queries: `.pt` and safetensors (`TRIATTENTION.md` section 2).
//!
//! Reading is by content, not by name. A `.pt` file is a zip archive with a pickle inside; the pickle is interpreted
//! with four kinds of globals and nothing is ever executed.

mod dense;
mod pickle;
mod query;
mod torch_read;
mod torch_write;
mod variants;

#[cfg(test)]
mod tests;

pub use dense::write_safetensors;
pub use query::{HeadStats, QueryStats, read};
pub use torch_write::write_pt;
