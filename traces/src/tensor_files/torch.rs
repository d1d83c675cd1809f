//! The zip form of `torch.save`: `<name>/data.pkl`, `<name>/data/<key>`, `<name>/byteorder`.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use super::pickle::{Pickle, TensorRef};
use super::source::{Mapped, Storage};
use super::tensor::{PlainTensor, fault};
use super::walk;
use super::zipped::Entry;
use crate::TraceError;
use crate::store::fail::malformed;

/// Bytes of a pickle at most; tensors lie beside it.
const PICKLE_LIMIT: usize = 1 << 28;

/// The folder of the archive that `torch.save` wrote, with its slash; `None` for another archive.
pub(super) fn stem(entries: &[Entry]) -> Option<&str> {
    let pickles: Vec<&str> =
        entries.iter().filter_map(|entry| entry.name.strip_suffix("data.pkl")).collect();
    match pickles.as_slice() {
        [stem] if stem.matches('/').count() == 1 && stem.len() > 1 => Some(stem),
        _ => None,
    }
}

/// The tensors of an archive, with what was not read.
pub(super) fn tensors(
    path: &Path,
    file: &Arc<Mapped>,
    entries: &[Entry],
    stem: &str,
) -> Result<(Vec<PlainTensor>, Vec<String>), TraceError> {
    let find =
        |name: &str| entries.iter().find(|entry| entry.name.strip_prefix(stem) == Some(name));
    let mut big_endian = false;
    if let Some(order) = find("byteorder") {
        match order.storage(path, file)?.bytes() {
            b"little" => {}
            b"big" => big_endian = true,
            _ => return Err(malformed(path, "entry `byteorder` says neither little nor big")),
        }
    }
    let storage =
        find("data.pkl").ok_or_else(|| malformed(path, "no data.pkl"))?.storage(path, file)?;
    storage.verify()?;
    let pickle = parse(path, &storage, "data.pkl")?;
    let mut storages: BTreeMap<String, Arc<Storage>> = BTreeMap::new();
    build(path, &pickle, big_endian, |wanted| {
        let key = &wanted.storage.key;
        if let Some(known) = storages.get(key) {
            return Ok(Arc::clone(known));
        }
        let entry = find(&format!("data/{key}")).ok_or_else(|| {
            malformed(path, format!("no entry `{stem}data/{key}`, which a tensor refers to"))
        })?;
        let storage = entry.storage(path, file)?;
        storages.insert(key.clone(), Arc::clone(&storage));
        Ok(storage)
    })
}

/// Interprets the pickle of a storage; an error has its byte in the file.
pub(super) fn parse(path: &Path, storage: &Storage, what: &str) -> Result<Pickle, TraceError> {
    if storage.bytes().len() > PICKLE_LIMIT {
        return Err(malformed(
            path,
            format!("{what} is {} bytes long; refused", storage.bytes().len()),
        ));
    }
    Pickle::parse(storage.bytes()).map_err(|(at, error)| {
        let place = storage.place().1;
        malformed(path, format!("{what}, byte {at} (byte {} of the file): {error}", place + at))
    })
}

/// Named tensors of a pickle, their storages found by `storage`.
pub(super) fn build(
    path: &Path,
    pickle: &Pickle,
    big_endian: bool,
    mut storage: impl FnMut(&TensorRef) -> Result<Arc<Storage>, TraceError>,
) -> Result<(Vec<PlainTensor>, Vec<String>), TraceError> {
    let mut found = walk::tensors(pickle).map_err(|what| malformed(path, what))?;
    let mut remarks = Vec::new();
    if !found.opaque.is_empty() {
        found.opaque.sort();
        found.opaque.dedup();
        remarks
            .push(format!("objects of {} were not read and not executed", found.opaque.join(", ")));
    }
    if found.others > 0 {
        remarks.push(format!("{} values are no tensors and are not compared", found.others));
    }
    let mut tensors = Vec::new();
    for (name, tensor) in found.tensors {
        let bytes = storage(&tensor)?;
        let width = tensor.storage.element.map_or(1, super::element::Element::size);
        if tensor.storage.count.checked_mul(width) != Some(bytes.bytes().len()) {
            let what = format!(
                "its storage `{}` claims {} elements of {width} bytes and has {} bytes",
                tensor.storage.key,
                tensor.storage.count,
                bytes.bytes().len()
            );
            return Err(fault(path, &name, what));
        }
        let layout = (tensor.size, tensor.stride, tensor.offset);
        let mut tensor = PlainTensor::strided(&name, path, tensor.element, layout, bytes)?;
        tensor.big_endian = big_endian && tensor.element.size() > 1;
        tensors.push(tensor);
    }
    Ok((tensors, remarks))
}
