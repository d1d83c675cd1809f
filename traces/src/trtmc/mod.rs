//! TensorRT-Model-Connect: step trace, keep dump, binary dumps.

mod bins;
mod export_dump;
mod export_trace;
mod import_dump;
mod import_trace;
mod keep;
mod ordinal;

pub use bins::{BinFile, Bins, GatherFault, LayerBins, Part, gather_faults};
pub use export_dump::{DumpExport, export_dump};
pub use export_trace::{TraceExport, export_trace};
pub use import_dump::{DumpImport, import_dump};
pub use import_trace::import_trace;
#[cfg(test)]
pub(crate) use keep::tests::example as example_dump;
pub use keep::{KeepDump, Profile};
pub use ordinal::{Ordinal, true_ordinal};
