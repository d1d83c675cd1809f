//! The files below `tensors/`.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use super::fail::{io, malformed};
use super::parts;
use crate::{Dump, DumpId, Tensor, TensorRef, TraceError};

/// Writes a dump below the run directory `dir` and returns its path.
///
/// # Errors
/// As [`super::tensors::write_safetensors`].
pub fn write_dump(dir: &Path, dump: &Dump) -> Result<PathBuf, TraceError> {
    write_dump_with(dir, dump, &[])
}

/// The same with tensors that lie elsewhere.
pub(super) fn write_dump_with(
    dir: &Path,
    dump: &Dump,
    rows: &[TensorRef<'_>],
) -> Result<PathBuf, TraceError> {
    let path = dir.join(dump.id.relative_path());
    if let Some(parent) = path.parent() {
        std::fs::create_dir_all(parent).map_err(io(parent))?;
    }
    let mut tensors: Vec<_> = dump.tensors.iter().map(Tensor::borrowed).collect();
    tensors.extend_from_slice(rows);
    parts::write(&path, &dump.metadata, &tensors, parts::PART_BYTES)?;
    Ok(path)
}

/// Every dump of the run in `dir`.
pub(crate) fn list(dir: &Path) -> Result<Vec<DumpId>, TraceError> {
    let mut found = BTreeSet::new();
    for (folder, sample_id) in folders(dir)? {
        for name in names(&folder)? {
            // A part is found through the file that names it.
            if name.as_deref().is_some_and(parts::is_part) {
                continue;
            }
            let id = name.as_deref().and_then(|name| parse(&sample_id, name)).filter(|id| {
                name.as_deref().is_some_and(|name| id.relative_path().ends_with(name))
            });
            let Some(id) = id else {
                let name = name.unwrap_or_else(|| "?".to_owned());
                return Err(malformed(
                    &folder.join(name),
                    "no dump is called so; move it out of tensors/",
                ));
            };
            found.insert(id);
        }
    }
    Ok(found.into_iter().collect())
}

/// Removes the dumps of every sample that is not in `keep`.
pub(super) fn retain(dir: &Path, keep: &BTreeSet<String>) -> Result<(), TraceError> {
    for (folder, sample_id) in folders(dir)? {
        if !keep.contains(&sample_id) {
            std::fs::remove_dir_all(&folder).map_err(io(&folder))?;
        }
    }
    Ok(())
}

/// Folders of samples, with the samples' ids.
fn folders(dir: &Path) -> Result<Vec<(PathBuf, String)>, TraceError> {
    let root = dir.join("tensors");
    if !root.try_exists().map_err(io(&root))? {
        return Ok(Vec::new());
    }
    let mut found = Vec::new();
    for name in names(&root)? {
        let name = name.ok_or_else(|| malformed(&root, "a folder's name is not UTF-8"))?;
        let folder = root.join(&name);
        let sample_id = decode(&name)
            .filter(|_| folder.is_dir())
            .ok_or_else(|| malformed(&folder, "no sample is called so; move it out of tensors/"))?;
        found.push((folder, sample_id));
    }
    Ok(found)
}

/// Names in a folder; `None` for a name that is not UTF-8. Names with a leading dot are files being written.
fn names(folder: &Path) -> Result<Vec<Option<String>>, TraceError> {
    let mut names = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(io(folder))? {
        let name = entry.map_err(io(folder))?.file_name().into_string().ok();
        if !name.as_deref().is_some_and(|name| name.starts_with('.')) {
            names.push(name);
        }
    }
    names.sort();
    Ok(names)
}

fn parse(sample_id: &str, name: &str) -> Option<DumpId> {
    let stem = name.strip_suffix(".safetensors")?;
    let sample_id = sample_id.to_owned();
    if let Some(number) = stem.strip_prefix("compaction_") {
        return Some(DumpId::Compaction { sample_id, ordinal: number.parse().ok()? });
    }
    let position = stem.strip_prefix("step_")?.parse().ok()?;
    Some(DumpId::Step { sample_id, position })
}

/// The sample id of a folder name; `None` where [`DumpId::relative_path`] would not write it so.
pub(crate) fn decode(name: &str) -> Option<String> {
    let mut bytes = Vec::new();
    let mut rest = name.bytes();
    if name != "%" {
        while let Some(byte) = rest.next() {
            if byte == b'%' {
                let high = char::from(rest.next()?).to_digit(16)?;
                let low = char::from(rest.next()?).to_digit(16)?;
                bytes.push(u8::try_from(high * 16 + low).ok()?);
            } else {
                bytes.push(byte);
            }
        }
    }
    let sample_id = String::from_utf8(bytes).ok()?;
    let again = DumpId::Step { sample_id: sample_id.clone(), position: 0 }.relative_path();
    (again.split('/').nth(1) == Some(name)).then_some(sample_id)
}
