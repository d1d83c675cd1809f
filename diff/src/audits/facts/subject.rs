//! One run, artifact or benchmark output.

use std::borrow::Cow;
use std::collections::BTreeMap;

use lockstep_traces::store::StepColumns;
use lockstep_traces::{CheckReport, EventRow, Manifest, SampleRow, Setting};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::Sample;

/// What a subject is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// A Lockstep run of a runtime.
    #[default]
    Run,
    /// A Lockstep run of the reference.
    Replay,
    /// A foreign step trace.
    Trace,
    /// Rows of a benchmark.
    Benchmark,
    /// A summary over benchmark rows (one subject per method).
    Summary,
    /// An engine bundle.
    Bundle,
    /// A keep-set dump with its binaries.
    Dump,
    /// A dataset file.
    Dataset,
    /// An exported effective configuration.
    Config,
    /// A log.
    Log,
    /// An answer of a check.
    Check,
    /// Claims with their evidence.
    Claims,
}

impl Kind {
    /// A subject that holds what a model did: it can be the side of a pair.
    #[must_use]
    pub const fn is_run(self) -> bool {
        matches!(self, Self::Run | Self::Replay | Self::Trace | Self::Benchmark | Self::Summary)
    }

    /// `run`, `replay`, `trace`, ...
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Run => "run",
            Self::Replay => "replay",
            Self::Trace => "trace",
            Self::Benchmark => "benchmark",
            Self::Summary => "summary",
            Self::Bundle => "bundle",
            Self::Dump => "dump",
            Self::Dataset => "dataset",
            Self::Config => "config",
            Self::Log => "log",
            Self::Check => "check",
            Self::Claims => "claims",
        }
    }
}

/// Who made it, from which code, when.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Made {
    /// Program.
    pub producer: Option<String>,
    /// Its version.
    pub version: Option<String>,
    /// sha256 of the executable, hex.
    pub binary_sha256: Option<String>,
    /// Commit of the code.
    pub commit: Option<String>,
    /// The working tree had changes.
    pub dirty: Option<bool>,
    /// sha256 of those changes, hex.
    pub diff_sha256: Option<String>,
    /// RFC 3339 UTC, as written inside.
    pub created_at: Option<String>,
    /// RFC 3339 UTC, modification time of the file.
    pub modified_at: Option<String>,
}

/// An engine artifact: what it was built into.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Artifact {
    /// sha256 of each section by name (`engine_plan`, `config.json`, ...), hex.
    pub sections: Option<BTreeMap<String, String>>,
    /// Row counts of the optimization profiles, ascending.
    pub profile_rows: Option<Vec<u64>>,
    /// Rows that its cache can hold.
    pub capacity_rows: Option<u64>,
    /// `fp16`, `bf16`, ...
    pub precision: Option<String>,
    /// Version of the builder.
    pub builder: Option<String>,
    /// GPU it was built for.
    pub gpu: Option<String>,
    /// When each section was made, where that is known, RFC 3339 UTC.
    pub section_times: BTreeMap<String, String>,
    /// Declared to be put together from parts of others.
    pub composite: Option<bool>,
}

/// What computed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Engine {
    /// Arithmetic dtype: `f32`, `f16`, `bf16`, `f64`.
    pub dtype: Option<String>,
    /// Element type of the KV cache.
    pub cache_dtype: Option<String>,
    /// `cpu`, `cuda: ...`, `candle-cpu`.
    pub device: Option<String>,
    /// SM architecture, `sm_90`.
    pub sm_arch: Option<String>,
    /// Multiprocessors of the GPU whose draws are made.
    pub sm_count: Option<u32>,
    /// Compile options and isa of the kernels.
    pub kernel_options: Option<Vec<String>>,
    /// sha256 of the weight files by name, hex.
    pub weights: Option<BTreeMap<String, String>>,
    /// sha256 of other model files by name (`config.json`, `tokenizer.json`, `statistics`), hex.
    pub files: BTreeMap<String, String>,
    /// Ids in the vocabulary.
    pub vocab: Option<u64>,
}

/// A reference: whose rules it follows.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Reference {
    /// Name of the selector's rules: `trt`, `hf`, `vllm`, `sglang`.
    pub selector_id: Option<String>,
    /// Commit of the code that the rules were taken from.
    pub commit: Option<String>,
    /// Attention implementation.
    pub attention: Option<String>,
    /// Positions at which its warm-up chunks end.
    pub chunk_edges: Option<Vec<u32>>,
}

/// How it ended.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct State {
    /// Finished.
    pub complete: Option<bool>,
    /// Exit code of the process.
    pub exit_code: Option<i32>,
    /// Rows that the file holds.
    pub rows_written: Option<u64>,
    /// Ids that should be there, in order.
    pub expected_ids: Option<Vec<String>>,
}

/// A file of lines as it was read.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Lines {
    /// Lines that are not empty.
    pub read: u64,
    /// 1-based number of each line that is no row, and what is wrong with it.
    pub damaged: Vec<(u64, String)>,
}

/// A dumped compaction as its file says it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Dump {
    /// File.
    pub path: String,
    /// Sample, where it says one.
    pub sample_id: Option<String>,
    /// Ordinal as written.
    pub ordinal: Option<u32>,
    /// Position of the next token.
    pub absolute_position: Option<u32>,
    /// Rows before.
    pub rows_before: Option<u32>,
    /// Rows kept.
    pub keep_count: Option<u32>,
    /// Kept rows by KV head.
    pub keep: Option<Vec<Vec<u32>>>,
    /// Positions of the old rows by KV head.
    pub positions: Option<Vec<Vec<u32>>>,
    /// Binaries that the dump names and that are not there.
    pub files_missing: Vec<String>,
    /// Profiling was on when it was written.
    pub profiled: Option<bool>,
    /// The rows after held against the kept rows before, where the caches were dumped.
    pub gathered: Option<Gathered>,
}

/// Result of holding dumped caches against their keep-set, bit for bit.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Gathered {
    /// Layers with a cache before and after, K and V counted apart.
    pub layers: u64,
    /// KV heads of each.
    pub heads: u64,
    /// Rows (of single heads) compared.
    pub rows: u64,
    /// Layers that differ: `k 3` or `v 12`, with the rows that differ.
    pub different: Vec<(String, u64)>,
    /// Query heads that share one dumped head.
    pub group: Option<u64>,
}

/// What a replay believed about its place at one row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Believed {
    /// Position of the fed token, as the replayed trace has it.
    pub position: u32,
    /// Position that the replay's own cache policy counted before the row.
    pub absolute_position: u32,
}

/// A rate that a file states.
#[derive(Debug, Clone, PartialEq)]
pub struct Rate {
    /// `wall` or `decode`: which time it is divided by.
    pub metric: String,
    /// Tokens per second.
    pub tokens_per_sec: f64,
    /// A total over the subject's samples; otherwise the rate of single rows.
    pub total: bool,
}

/// How far a claim reaches. Empty lists and `None` mean: everything.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ClaimScope {
    /// Samples.
    pub samples: Vec<String>,
    /// Compaction ordinals.
    pub ordinals: Vec<u32>,
    /// First and last position.
    pub window: Option<(u32, u32)>,
    /// `greedy` or `sampled`.
    pub mode: Option<String>,
}

/// A claim and what it rests on.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Claim {
    /// Its name.
    pub id: String,
    /// What is claimed.
    pub text: String,
    /// What sort of claim: `policy`, `capacity-inactive`, `keep-set-parity`, `native-only`, ...
    pub kind: Option<String>,
    /// Labels or ids of the subjects that it rests on.
    pub evidence: Vec<String>,
    /// How far it reaches.
    pub scope: ClaimScope,
    /// Withdrawn.
    pub retracted: bool,
    /// Why a claims ledger calls it unsupported, one line each.
    pub unsupported: Vec<String>,
    /// Where a claims ledger finds it wider than its evidence, one line each.
    pub wider: Vec<String>,
    /// A claims ledger has held its scope against what it cites.
    pub held: bool,
}

/// Commits of the code under test.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct History {
    /// Commits, oldest first.
    pub commits: Vec<String>,
    /// The commit that last touched what is checked; evidence from before it is stale.
    pub touched: Option<String>,
}

/// A trace in memory.
#[derive(Debug, Clone)]
pub struct Trace<'a> {
    /// The run's manifest, or the one made from a foreign file.
    pub manifest: Cow<'a, Manifest>,
    /// Finished samples; empty for foreign traces.
    pub rows: Cow<'a, [SampleRow]>,
    /// Step rows by sample and position.
    pub steps: Cow<'a, StepColumns>,
    /// Compactions.
    pub events: Cow<'a, [EventRow]>,
}

/// Everything that is known of one run, artifact or benchmark output.
#[derive(Debug, Clone, Default)]
pub struct Subject<'a> {
    /// Path or name, for people.
    pub label: String,
    /// What it is.
    pub kind: Kind,
    /// Origin.
    pub made: Made,
    /// What a child names as its parent: sha256 of the manifest, hex.
    pub identity: Option<String>,
    /// Identity of the run that this one replays.
    pub parent: Option<String>,
    /// Engine artifact that it ran from, or that it is.
    pub artifact: Option<Artifact>,
    /// What computed.
    pub engine: Engine,
    /// Effective configuration with the source of each value. Keys as in a run's manifest: `policy.kind`, `policy.kv_budget`,
    /// `policy.divide_length`, `policy.count_prompt_tokens`, `sampling.temperature`, `sampling.sampler`, `sampling.sm_count`,
    /// `stop.max_new_tokens`, `stop.rule`, `stop.interval`, ...
    pub settings: Option<BTreeMap<String, Setting>>,
    /// What the artifact declares, by the same keys.
    pub declared: Option<BTreeMap<String, Value>>,
    /// Samples in the order in which they ran.
    pub samples: Option<Vec<Sample>>,
    /// Rows.
    pub trace: Option<Trace<'a>>,
    /// Compactions from a trace or a log, in order.
    pub events: Option<Vec<EventRow>>,
    /// Dumped compactions.
    pub dumps: Option<Vec<Dump>>,
    /// Prompt rows that each compaction kept, by the position of the next token.
    pub kept_prefix: Option<BTreeMap<u32, u32>>,
    /// Where a replay believed to be, row by row.
    pub believed: Option<Vec<Believed>>,
    /// Rates as stated.
    pub rates: Option<Vec<Rate>>,
    /// Answers of checks about it.
    pub checks: Vec<CheckReport>,
    /// Log lines.
    pub log: Option<Vec<String>>,
    /// Claims.
    pub claims: Vec<Claim>,
    /// The file as lines.
    pub lines: Option<Lines>,
    /// Whose rules it follows, where it is a reference.
    pub reference: Option<Reference>,
    /// How it ended.
    pub state: State,
    /// Remarks of the writer or reader.
    pub remarks: Vec<String>,
}
