//! `cases.json`: which cases a golden directory lists.

use std::collections::BTreeMap;
use std::path::Path;

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::ConformanceError;

/// One case of the index, as listed.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Case {
    /// Unique name.
    pub(crate) name: String,
    /// Group: `vllm_selector`, `hf`, ...
    #[serde(rename = "impl")]
    pub(crate) group: String,
    /// Cached keys, relative to the directory.
    #[serde(default)]
    pub(crate) input: Option<String>,
    /// Calibration statistics, relative to the directory.
    #[serde(default)]
    pub(crate) stats: Option<String>,
    /// Expected tensors, relative to the directory.
    #[serde(default)]
    pub(crate) expected: Option<String>,
    /// Settings; the keys depend on the group.
    pub(crate) config: Value,
    /// Sizes.
    #[serde(default)]
    pub(crate) dims: Option<Dims>,
    /// About the input.
    #[serde(default)]
    pub(crate) input_info: Option<InputInfo>,
    /// Tensors of the expected file: dtype and shape by name.
    #[serde(default)]
    pub(crate) tensors: BTreeMap<String, (String, Vec<usize>)>,
    /// Upstream's own label of the outcome.
    #[serde(default)]
    pub(crate) result: Option<String>,
    /// Lifecycles: compactions in order of time.
    #[serde(default)]
    pub(crate) events: Option<Vec<Value>>,
    /// hf lifecycles.
    #[serde(default)]
    pub(crate) cache_len_per_step: Option<Vec<usize>>,
    /// vllm lifecycles.
    #[serde(default)]
    pub(crate) rows_per_step: Option<Vec<usize>>,
    /// Compaction cases.
    #[serde(default)]
    pub(crate) cache_len_after: Option<usize>,
    /// Compaction cases.
    #[serde(default)]
    pub(crate) kept_block_ids: Option<Vec<usize>>,
    /// Compaction cases.
    #[serde(default)]
    pub(crate) removed_block_ids: Option<Vec<usize>>,
}

/// Sizes of a case.
#[derive(Debug, Clone, Copy, Deserialize)]
pub(crate) struct Dims {
    /// Layers of the statistics file.
    pub(crate) layers: usize,
    /// Attention heads.
    pub(crate) q_heads: usize,
    /// KV heads.
    pub(crate) kv_heads: usize,
    /// Head width.
    pub(crate) head_dim: usize,
}

/// About an input file.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct InputInfo {
    /// Rows.
    #[serde(rename = "T")]
    pub(crate) rows: usize,
    /// N.
    #[serde(rename = "abs")]
    pub(crate) absolute_position: usize,
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

fn parse(path: &Path, cases: &[Value]) -> Result<Vec<Case>, ConformanceError> {
    let mut names = std::collections::BTreeSet::new();
    let mut list = Vec::new();
    for (number, case) in cases.iter().enumerate() {
        let refuse = |what: String| ConformanceError::Index { path: path.to_path_buf(), what };
        let case = Case::deserialize(case)
            .map_err(|error| refuse(format!("case {number} of the list: {error}")))?;
        if !names.insert(case.name.clone()) {
            return Err(refuse(format!("case `{}` is listed twice", case.name)));
        }
        list.push(case);
    }
    Ok(list)
}
