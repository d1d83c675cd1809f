//! Which keys each query sees, by engine.

use std::path::Path;

use super::fields::{Field, root};
use crate::TraceError;
use crate::logprobs::Node;

/// Keys that the queries of several engines see. The JSON:
///
/// `{"sliding_window": W, "first_query": 0, ENGINE: [[key, ..], ..], ..}`
///
/// List i of an engine belongs to query `first_query` + i: its visible key positions, or a row of a mask, `true` for each visible key
/// from 0 on. `sliding_window` may be absent: the engines are then held against each other only. It counts the current key unless
/// `"window_counts_current": false` is there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VisibleKeys {
    /// The configured window.
    pub window: Option<u64>,
    /// The window counts the current key.
    pub counts_current: bool,
    /// Position of the first query.
    pub first_query: u64,
    /// Engines in their order.
    pub engines: Vec<EngineKeys>,
}

/// One engine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EngineKeys {
    /// Name.
    pub name: String,
    /// Keys by query, rising.
    pub keys: Vec<Vec<u64>>,
}

impl VisibleKeys {
    /// Reads a file.
    ///
    /// # Errors
    /// [`TraceError`] with the place of what is no list of keys, or of a key that stands twice.
    pub fn read(path: &Path) -> Result<Self, TraceError> {
        let node = root(path)?;
        let form = Field::root(path, &node);
        let mut out =
            Self { window: None, counts_current: true, first_query: 0, engines: Vec::new() };
        for (name, field) in form.members()? {
            match name {
                "sliding_window" | "window" => out.window = field.maybe(Field::index)?,
                "first_query" => out.first_query = field.index()?,
                "window_counts_current" => {
                    let Node::Bool(said) = field.node else {
                        return Err(field.fault("true or false is expected"));
                    };
                    out.counts_current = *said;
                }
                "note" => {}
                name => {
                    let keys = field.list()?.iter().map(keys).collect::<Result<Vec<_>, _>>()?;
                    out.engines.push(EngineKeys { name: name.to_owned(), keys });
                }
            }
        }
        if out.window == Some(0) {
            return Err(form.fault("a window of 0 shows no key"));
        }
        if out.engines.is_empty() {
            return Err(form.fault("no engine: a member with a list of keys by query is expected"));
        }
        Ok(out)
    }
}

fn keys(row: &Field<'_>) -> Result<Vec<u64>, TraceError> {
    let items = row.list()?;
    if items.first().is_some_and(|item| matches!(item.node, Node::Bool(_))) {
        let mut keys = Vec::new();
        for (key, item) in (0_u64..).zip(&items) {
            match item.node {
                Node::Bool(true) => keys.push(key),
                Node::Bool(false) => {}
                _ => return Err(item.fault("true or false is expected in a mask")),
            }
        }
        return Ok(keys);
    }
    let mut keys = row.indices()?;
    keys.sort_unstable();
    if let Some(pair) = keys.windows(2).find(|pair| pair[0] == pair[1]) {
        return Err(row.fault(format!("key {} stands twice", pair[0])));
    }
    Ok(keys)
}
