//! `cases.json`: which cases a golden directory lists.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::ConformanceError;

/// One case of the index, as listed.
#[derive(Debug, Clone, Deserialize)]
pub struct Case {
    /// Unique name.
    pub name: String,
    /// Group: `vllm_selector`, `hf`, ...
    #[serde(rename = "impl")]
    pub group: String,
    /// Cached keys, relative to the directory.
    #[serde(default)]
    pub input: Option<String>,
    /// Calibration statistics, relative to the directory.
    #[serde(default)]
    pub stats: Option<String>,
    /// Expected tensors, relative to the directory.
    #[serde(default)]
    pub expected: Option<String>,
    /// Settings; the keys depend on the group.
    pub config: Value,
    /// Sizes.
    #[serde(default)]
    pub dims: Option<Dims>,
    /// About the input.
    #[serde(default)]
    pub input_info: Option<InputInfo>,
    /// Tensors of the expected file: dtype and shape by name.
    #[serde(default)]
    pub tensors: BTreeMap<String, (String, Vec<usize>)>,
    /// Upstream's own label of the outcome.
    #[serde(default)]
    pub result: Option<String>,
    /// Lifecycles: compactions in order of time.
    #[serde(default)]
    pub events: Option<Vec<Value>>,
    /// hf lifecycles.
    #[serde(default)]
    pub cache_len_per_step: Option<Vec<usize>>,
    /// vllm lifecycles.
    #[serde(default)]
    pub rows_per_step: Option<Vec<usize>>,
    /// Compaction cases.
    #[serde(default)]
    pub cache_len_after: Option<usize>,
    /// Compaction cases.
    #[serde(default)]
    pub kept_block_ids: Option<Vec<usize>>,
    /// Compaction cases.
    #[serde(default)]
    pub removed_block_ids: Option<Vec<usize>>,
}

/// Sizes of a case.
#[derive(Debug, Clone, Copy, Deserialize)]
pub struct Dims {
    /// Layers of the statistics file.
    pub layers: usize,
    /// Attention heads.
    pub q_heads: usize,
    /// KV heads.
    pub kv_heads: usize,
    /// Head width.
    pub head_dim: usize,
}

/// About an input file.
#[derive(Debug, Clone, Deserialize)]
pub struct InputInfo {
    /// Rows.
    #[serde(rename = "T")]
    pub rows: usize,
    /// N.
    #[serde(rename = "abs")]
    pub absolute_position: usize,
}

impl Case {
    /// The settings as a type of the group.
    ///
    /// # Errors
    /// One line with the field.
    pub(crate) fn settings<T: DeserializeOwned>(&self) -> Result<T, String> {
        T::deserialize(&self.config).map_err(|error| format!("config: {error}"))
    }
}

/// What a golden directory is.
#[derive(Debug)]
pub(crate) enum Index {
    /// Selector vectors.
    Selector(Vec<Case>),
    /// Vectors of a kind that has no replay here: kind and number of cases.
    Other {
        /// Which kind.
        kind: &'static str,
        /// How many cases it lists.
        cases: usize,
    },
}

/// Reads the index of a directory.
pub(crate) fn read(dir: &Path) -> Result<Index, ConformanceError> {
    let present = |name: &str| Some(dir.join(name)).filter(|path| path.is_file());
    let path = present("cases.json")
        .or_else(|| present("index.json"))
        .ok_or_else(|| ConformanceError::NoIndex { dir: dir.to_owned() })?;
    let bytes = std::fs::read(&path)
        .map_err(|source| lockstep_traces::TraceError::Io { path: path.clone(), source })?;
    let index: Value = serde_json::from_slice(&bytes).map_err(|source| {
        lockstep_traces::TraceError::Json { path: path.clone(), line: source.line(), source }
    })?;
    let cases = index.get("cases").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    if cases.is_empty() {
        return Err(ConformanceError::Empty { path });
    }
    if let Some(kind) = other_kind(&index, cases) {
        return Ok(Index::Other { kind, cases: cases.len() });
    }
    parse(&path, cases).map(Index::Selector)
}

/// The sampler and filter vectors have an index of their own shape.
fn other_kind(index: &Value, cases: &[Value]) -> Option<&'static str> {
    let is_selector = |case: &Value| case.get("impl").is_some();
    if cases.iter().any(is_selector) {
        return None;
    }
    match index.get("draws") {
        Some(_) => Some("sampling filters"),
        None => Some("sampler draws"),
    }
}

fn parse(path: &PathBuf, cases: &[Value]) -> Result<Vec<Case>, ConformanceError> {
    let mut names = std::collections::BTreeSet::new();
    let mut list = Vec::new();
    for (number, case) in cases.iter().enumerate() {
        let refuse = |what: String| ConformanceError::Index { path: path.clone(), what };
        let case = Case::deserialize(case)
            .map_err(|error| refuse(format!("case {number} of the list: {error}")))?;
        if !names.insert(case.name.clone()) {
            return Err(refuse(format!("case `{}` is listed twice", case.name)));
        }
        list.push(case);
    }
    Ok(list)
}
