//! The names under which this project exports: `<sample>/<dump>/<tensor>`, sample ids escaped as in a run's folders.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::export::unescaped;
use crate::store::fail::malformed;
use crate::tensor_files::{PlainTensor, TensorSet};
use crate::{DumpFile, DumpId, TraceError};

/// What `origin` says in the metadata of an export.
pub(super) const ORIGIN: &str = "lockstep export";
/// File beside exported arrays.
pub(super) const SIDE: &str = "export.json";

/// What NumPy cannot say, and what the dumps say of themselves.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct Side {
    /// [`ORIGIN`].
    pub(super) origin: String,
    /// The run, as it was given.
    pub(super) run: String,
    /// Element types by file, where NumPy has none such: the codes are unsigned integers of the same width.
    pub(super) elements: BTreeMap<String, String>,
    /// Metadata by dump.
    pub(super) metadata: BTreeMap<String, BTreeMap<String, String>>,
}

/// What a name means.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// A tensor of a dump.
    Dump(DumpId, String),
    /// Fed ids of a sample, from this position on.
    Tokens(String, u32),
}

/// The folder of a dump: `<sample>/step_0000003`.
pub(super) fn folder(id: &DumpId) -> String {
    let path = id.relative_path();
    let path = path.strip_prefix("tensors/").unwrap_or(&path);
    path.strip_suffix(".safetensors").unwrap_or(path).to_owned()
}

/// The name of the fed ids of a sample.
pub(super) fn tokens(sample_id: &str, first: u32) -> String {
    let id = DumpId::Step { sample_id: sample_id.to_owned(), position: first };
    let folder = folder(&id);
    let sample = folder.split('/').next().unwrap_or_default();
    format!("{sample}/token_id_from_{first}")
}

/// What an exported name means; `None` for any other.
pub(super) fn place(name: &str) -> Option<Place> {
    let mut parts = name.splitn(3, '/');
    let (sample, dump, tensor) = (parts.next()?, parts.next()?, parts.next());
    let sample_id = crate::store::sample_of_folder(sample)?;
    if tensor.is_none() {
        let first = dump.strip_prefix("token_id_from_")?.parse().ok()?;
        return Some(Place::Tokens(sample_id, first));
    }
    let id = if let Some(ordinal) = dump.strip_prefix("compaction_") {
        DumpId::Compaction { sample_id, ordinal: ordinal.parse().ok()? }
    } else {
        DumpId::Step { sample_id, position: dump.strip_prefix("step_")?.parse().ok()? }
    };
    (folder(&id) == format!("{sample}/{dump}")).then_some(Place::Dump(id, tensor?.to_owned()))
}

/// A set of exported arrays with the element types that NumPy could not say, and the names of the tensors.
pub(super) fn restored(set: &TensorSet, tensor: &PlainTensor) -> Result<PlainTensor, TraceError> {
    let Some(side) = side(set)? else { return Ok(tensor.clone()) };
    let file = format!("{}.npy", tensor.name);
    let mut out = match side.elements.get(&file) {
        Some(element) => {
            let element = element.parse().map_err(|what: String| malformed(&set.path, what))?;
            tensor.clone().declared(element)?
        }
        None => tensor.clone(),
    };
    if let Some((folder, name)) = out.name.rsplit_once('/')
        && let Some(name) = unescaped(name)
    {
        out.name = format!("{folder}/{name}");
    }
    Ok(out)
}

/// Did this project export the set?
pub(super) fn exported(set: &TensorSet) -> bool {
    if set.path.is_dir() {
        return side(set).is_ok_and(|side| side.is_some());
    }
    set.format == "safetensors"
        && DumpFile::open(&set.path)
            .is_ok_and(|file| file.metadata().get("origin").is_some_and(|origin| origin == ORIGIN))
}

/// The file beside exported arrays.
pub(super) fn side(set: &TensorSet) -> Result<Option<Side>, TraceError> {
    let path = set.path.join(SIDE);
    let Ok(text) = std::fs::read(&path) else { return Ok(None) };
    let side: Side = serde_json::from_slice(&text).map_err(|source| TraceError::Json {
        path: path.clone(),
        line: source.line(),
        source,
    })?;
    Ok((side.origin == ORIGIN).then_some(side))
}

/// Metadata of the exported dumps.
pub(super) fn metadata(
    set: &TensorSet,
) -> Result<BTreeMap<DumpId, BTreeMap<String, String>>, TraceError> {
    let by_folder = if set.path.is_dir() {
        side(set)?.unwrap_or_default().metadata
    } else {
        let file = DumpFile::open(&set.path)?;
        let mut found: BTreeMap<String, BTreeMap<String, String>> = BTreeMap::new();
        for (key, value) in file.metadata() {
            if let Some((folder, key)) = key.rsplit_once('/') {
                found.entry(folder.to_owned()).or_default().insert(key.to_owned(), value.clone());
            }
        }
        found
    };
    let mut out = BTreeMap::new();
    for (folder, values) in by_folder {
        let Some(Place::Dump(id, _)) = place(&format!("{folder}/x")) else {
            return Err(malformed(&set.path, format!("`{folder}` names no dump")));
        };
        out.insert(id, values);
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exported_names_come_back() {
        let step = DumpId::Step { sample_id: "a/b".into(), position: 7 };
        let compaction = DumpId::Compaction { sample_id: "q".into(), ordinal: 2 };
        assert_eq!(folder(&step), "a%2Fb/step_0000007");
        for id in [step, compaction] {
            let name = format!("{}/pre.k.layer00", folder(&id));
            assert_eq!(place(&name), Some(Place::Dump(id, "pre.k.layer00".into())));
        }
        assert_eq!(place(&tokens("a/b", 3)), Some(Place::Tokens("a/b".into(), 3)));
        for other in ["x", "a/b", "a/b/c", "a/step_7/logits", "a/step_0000007"] {
            assert_eq!(place(other), None, "{other}");
        }
    }
}
