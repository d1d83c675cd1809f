//! Vocabulary and formats of Lockstep: what a run records, how it is stored, and how foreign traces are read.
//!
//! This crate holds no model mathematics. The runtime under test and the independent reference meet only
//! here, in names, shapes and files; defaults and derived values are resolved on each side by itself
//! (see `ARCHITECTURE.md`).

pub mod answers;
pub mod artifacts;
pub mod cause;
pub mod check;
pub mod claims;
pub mod config;
pub mod dataset;
pub mod dtype;
pub mod dump;
pub mod error;
pub mod export;
pub mod foreign;
pub mod forms;
pub mod gguf;
pub mod hash;
pub mod imported;
pub mod limits;
pub mod llamacpp;
pub mod lm_eval;
pub mod logprobs;
pub mod manifest;
pub mod parquet_trace;
pub mod perfetto;
pub mod plan;
pub mod recorded;
pub mod responses;
pub mod rows;
pub mod sink;
pub mod spec;
pub mod stats;
pub mod store;
mod summary;
pub mod tensor_files;
pub mod tensor_runs;
pub mod token_texts;
pub mod tokens;
pub mod trtmc;

pub use cause::Cause;
pub use check::{CheckKind, CheckReport, Evidence, Finding, Location, Verdict};
pub use config::{ModelConfig, RopeParameters};
pub use dtype::DType;
pub use dump::{Dump, DumpId, Tensor, TensorRef};
pub use error::TraceError;
pub use foreign::{ForeignOptions, Loaded, UNKNOWN_TOKEN, load, load_with};
pub use limits::SourceLimits;
pub use manifest::{Manifest, Setting, Status};
pub use plan::{Choice, RecordPlan};
pub use rows::{EventRow, FinishReason, Phase, SampleRow, StepRow};
pub use sink::{MemorySink, Probe, TraceSink};
pub use spec::{
    Aggregation, PolicyKind, PolicySpec, RuleSet, SamplingSpec, SelectionMode, Trigger,
};
pub use store::{DumpFile, RunReader, RunWriter, StepColumn, StepColumns, StepQuery, TensorView};
pub use token_texts::{TokenText, TokenTexts};
