//! Artifacts of an investigation that are no traces: datasets, benchmark rows, summaries, bundles, configurations, logs.
//!
//! Readers give neutral facts as plain data and judge nothing. Files are told apart by content ([`guess`]); damage is
//! refused with its file and line, or kept as a fact where an audit has to judge it (a polluted dataset line, a torn
//! log line).

mod artifact;
mod bench;
mod bundle;
mod dataset;
mod document;
mod fields;
mod jsonl;
mod kind;
mod log;
mod replayed;
mod sections;
#[cfg(test)]
pub(crate) mod testing;
mod tidy;
mod words;

pub use artifact::{Artifact, DumpFacts, Gathered, read};
pub use bench::{BenchRow, BenchSchema, read_bench};
pub use bundle::{Bundle, BundleFormat, BundleHeader, Section, read_bundle};
pub use dataset::{DatasetRow, read_dataset};
pub use document::{
    EffectiveConfig, Summary, SummaryMethod, SummarySample, SummarySampling, read_effective_config,
    read_engine_config, read_summary, run_key,
};
pub use jsonl::{Polluted, Rows};
pub use kind::{ArtifactKind, guess};
pub use log::{CacheLine, CompactLine, DecodeLine, EngineLog, InitLine, SampleLine, read_log};
pub use replayed::{ReplayRow, ReplayRows, ReplayState, read_replay};
pub use sections::{BundleConfig, StatsHeader};
