//! The bare form of `torch.save` before 1.6: five pickles one after another (a magic number, a protocol number, the writer's number
//! sizes, the value, the keys of its storages), then for each key a 64-bit count and the elements.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use super::pickle::{Node, Pickle};
use super::source::{Mapped, Storage};
use super::tensor::{PlainTensor, range};
use super::torch::{build, parse};
use crate::TraceError;
use crate::store::fail::malformed;

const MAGIC: i128 = 0x1950_a86a_20f9_469c_fc6c;

/// The tensors of a bare pickle file.
pub(super) fn tensors(
    path: &Path,
    file: &Arc<Mapped>,
) -> Result<(Vec<PlainTensor>, Vec<String>), TraceError> {
    let length = file.bytes().len();
    let mut at = 0;
    let mut next = |what: &str| -> Result<Pickle, TraceError> {
        let storage = range(path, file, at..length)?;
        let pickle = parse(path, &storage, what)?;
        at += pickle.end;
        Ok(pickle)
    };
    let magic = next("first pickle")?;
    if !matches!(magic.node(magic.root), Node::Int(MAGIC)) {
        return Err(malformed(
            path,
            "a pickle that torch.save did not write; only tensors are read from pickles, save them with torch.save",
        ));
    }
    next("protocol")?;
    let system = next("system sizes")?;
    let value = next("value")?;
    let keys = next("storage keys")?;
    let (Node::List(keys_listed) | Node::Tuple(keys_listed)) = keys.node(keys.root) else {
        return Err(malformed(path, "the storage keys are no list"));
    };
    let mut storages: BTreeMap<String, Arc<Storage>> = BTreeMap::new();
    for id in keys_listed {
        let Node::Text(key) = keys.node(*id) else {
            return Err(malformed(path, "a storage key is no text"));
        };
        let width = value.storages.iter().find(|storage| storage.key == *key);
        let width = width
            .ok_or_else(|| malformed(path, format!("storage `{key}` belongs to no tensor")))?
            .element
            .map_or(1, super::element::Element::size);
        let count = file.bytes().get(at..).and_then(<[u8]>::first_chunk::<8>);
        let count = count.ok_or_else(|| {
            malformed(path, format!("byte {at}: the file ends before storage `{key}`"))
        })?;
        let bytes = usize::try_from(u64::from_le_bytes(*count))
            .ok()
            .and_then(|count| count.checked_mul(width));
        let start = at + 8;
        let end = bytes.and_then(|bytes| start.checked_add(bytes)).filter(|end| *end <= length);
        let end = end.ok_or_else(|| {
            malformed(path, format!("byte {at}: storage `{key}` reaches past the end; the file is cut, copy it again"))
        })?;
        storages.insert(key.clone(), range(path, file, start..end)?);
        at = end;
    }
    if at != length {
        return Err(malformed(
            path,
            format!("byte {at}: {} bytes follow the last storage", length - at),
        ));
    }
    let big_endian = !little(&system);
    build(path, &value, big_endian, |tensor| {
        let key = &tensor.storage.key;
        storages
            .get(key)
            .cloned()
            .ok_or_else(|| malformed(path, format!("storage `{key}` is not in the file")))
    })
}

/// Was the writer little-endian? It says so.
fn little(system: &Pickle) -> bool {
    let Node::Dict(items) = system.node(system.root) else { return true };
    !items.iter().any(|(key, value)| {
        matches!(system.node(*key), Node::Text(text) if text == "little_endian")
            && matches!(system.node(*value), Node::Bool(false))
    })
}
