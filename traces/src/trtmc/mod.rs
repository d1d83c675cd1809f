//! TensorRT-Model-Connect: step trace, keep dump, binary dumps, benchmark rows, summaries, bundles, ladders, configurations, statistics.

mod bins;
mod export_dump;
mod export_trace;
mod import_dump;
mod import_engine;
mod import_rows;
mod import_stats;
mod import_summary;
mod import_trace;
mod keep;
mod ordinal;

pub use bins::{BinFile, Bins, GatherFault, LayerBins, Part, gather_faults};
pub use export_dump::{DumpExport, export_dump};
pub use export_trace::{TraceExport, export_trace};
pub use import_dump::{DumpImport, import_dump};
pub use import_engine::{
    BUNDLE, CONFIG, LADDER, import_bundle, import_config, import_ladder, is_ladder,
};
pub use import_rows::{ROWS, import_rows};
pub use import_stats::{STATS, import_stats, is_stats};
pub use import_summary::{METHOD, SUMMARY, import_summary};
pub use import_trace::import_trace;
#[cfg(test)]
pub(crate) use keep::tests::example as example_dump;
pub use keep::{KeepDump, Profile};
pub use ordinal::{Ordinal, true_ordinal};
