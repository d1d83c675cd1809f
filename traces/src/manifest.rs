//! `manifest.json`: who made a run, from what, with which effective settings, and how it ended.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{DType, SourceLimits};

/// Schema version written by this build, `major.minor`. Another major is refused; a newer minor is refused with the remedy.
pub const SCHEMA_MAJOR: u32 = 1;
/// See [`SCHEMA_MAJOR`].
pub const SCHEMA_MINOR: u32 = 1;

/// An effective value and where it came from (`flag`, `config.json`, `rule set`, `default`, `manifest`, `imported`).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Setting {
    /// The value in force.
    pub value: Value,
    /// Its source.
    pub source: String,
}

/// How a run ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    /// Still being written, or killed while being written.
    Incomplete,
    /// Finished.
    Complete,
}

/// What the numbers in `top_logits` can prove.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ValueEncoding {
    /// Exact f32 bits.
    F32,
    /// Nine or more significant digits: f32 bits recoverable.
    Digits9,
    /// Six printed digits that all lie on the fp16 grid: exact after snapping.
    SnappedF16,
    /// Six printed digits that all lie on the bf16 grid: exact after snapping.
    SnappedBf16,
    /// Six printed digits of f32 values: equal text is not equal bits.
    Digits6,
    /// A fixed number of printed digits behind the point (`limits.decimals`).
    Decimals,
    /// 16-bit codes between a row's lowest and highest log-probability (`limits.value_error`).
    Codes16,
}

impl ValueEncoding {
    /// True where a stored value is the source's own to the last bit.
    #[must_use]
    pub const fn exact(self) -> bool {
        match self {
            Self::F32 | Self::Digits9 | Self::SnappedF16 | Self::SnappedBf16 => true,
            Self::Digits6 | Self::Decimals | Self::Codes16 => false,
        }
    }
}

/// Who wrote the run.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Producer {
    /// `lockstep-runtime`, `lockstep-reference`, `trtmc`, ...
    pub name: String,
    /// Version.
    pub version: String,
    /// sha256 of the executable, hex.
    pub binary_sha256: Option<String>,
    /// Command line arguments as given.
    pub args: Vec<String>,
}

/// Identity of the model.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ModelId {
    /// Directory as given.
    pub path: Option<String>,
    /// Architecture name from `config.json`.
    pub architecture: Option<String>,
    /// sha256 of `config.json`.
    pub config_sha256: Option<String>,
    /// sha256 of each weight file, by file name.
    pub weights_sha256: BTreeMap<String, String>,
    /// sha256 of `tokenizer.json`.
    pub tokenizer_sha256: Option<String>,
    /// sha256 of the selector statistics file.
    pub stats_sha256: Option<String>,
}

/// Length and checksums of a table file, so that a damaged byte is told from a different number.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TableSums {
    /// Length of the file.
    pub bytes: u64,
    /// Length of a block; the last one may be shorter.
    pub block_bytes: u64,
    /// CRC-32 of each block, eight hex digits each, in order.
    pub crc32: String,
}

/// `manifest.json`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Manifest {
    /// Schema version, `"major.minor"`.
    pub schema: String,
    /// Writer.
    pub producer: Producer,
    /// RFC 3339 UTC, or empty where unknown.
    #[serde(default)]
    pub created_at: String,
    /// State.
    pub status: Status,
    /// Model.
    #[serde(default)]
    pub model: ModelId,
    /// Arithmetic dtype of the forward pass.
    pub dtype: Option<DType>,
    /// Element type of the KV cache.
    pub cache_dtype: Option<DType>,
    /// `cpu`, `cuda`, `candle-cpu`, ...
    pub device: String,
    /// SM architecture, e.g. `sm_90`; `None` on a CPU.
    #[serde(default)]
    pub sm_arch: Option<String>,
    /// Kernel compile options.
    #[serde(default)]
    pub kernel_options: Vec<String>,
    /// Effective configuration with the source of each value. Keys are dotted: `policy.kind`, `policy.rule_set`,
    /// `policy.kv_budget`, `policy.divide_length`, `policy.recent_window`, `policy.protect_prefill`, ..., `sampling.temperature`, ...,
    /// `stop.max_new_tokens`, `model.rope_theta` and the other resolved model values, `trace.top_k`, `plant` (a planted fault's slug).
    #[serde(default)]
    pub config: BTreeMap<String, Setting>,
    /// Encoding of `top_logits`.
    pub encoding: ValueEncoding,
    /// What the source could say; absent where it could say everything.
    #[serde(default, skip_serializing_if = "says_everything")]
    pub limits: SourceLimits,
    /// True where `rows_before`/`rows_after` are exact and not rounded up to a bucket.
    pub rows_exact: bool,
    /// True where prompt rows are in the trace.
    pub includes_prompt: bool,
    /// Seeds of the two sums of the logits hash.
    pub logits_hash_seeds: Option<[u64; 2]>,
    /// Checksums of the tables by file name; written when a run is finished.
    #[serde(default)]
    pub tables: BTreeMap<String, TableSums>,
    /// Manifest hash of the run that this one replays.
    #[serde(default)]
    pub parent: Option<String>,
    /// Free remarks of the writer or importer, one line each (hazards found, what was read around).
    #[serde(default)]
    pub remarks: Vec<String>,
}

fn says_everything(limits: &SourceLimits) -> bool {
    *limits == SourceLimits::default()
}

impl Manifest {
    /// A manifest with this build's schema version and nothing else known.
    #[must_use]
    pub fn new(producer: Producer, device: impl Into<String>) -> Self {
        Self {
            schema: format!("{SCHEMA_MAJOR}.{SCHEMA_MINOR}"),
            producer,
            created_at: String::new(),
            status: Status::Incomplete,
            model: ModelId::default(),
            dtype: None,
            cache_dtype: None,
            device: device.into(),
            sm_arch: None,
            kernel_options: Vec::new(),
            config: BTreeMap::new(),
            encoding: ValueEncoding::F32,
            limits: SourceLimits::default(),
            rows_exact: true,
            includes_prompt: true,
            logits_hash_seeds: None,
            tables: BTreeMap::new(),
            parent: None,
            remarks: Vec::new(),
        }
    }

    /// Records an effective value and its source.
    pub fn set(&mut self, key: &str, value: impl Into<Value>, source: &str) {
        self.config
            .insert(key.to_owned(), Setting { value: value.into(), source: source.to_owned() });
    }

    /// Effective value of `key`, if recorded.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.config.get(key).map(|setting| &setting.value)
    }
}
