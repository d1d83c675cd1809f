//! Dumps in parts. One file takes bytes from one writer at a time, whatever the file system; a large dump goes to several files at once.
//!
//! The first part has the dump's own name and its metadata; `parts` there says how many files there are. Part `i` of `step.safetensors` is
//! `step.part_i.safetensors`, with `part_of` and `part` in its metadata. Each is a safetensors file like any other. The first part is
//! removed before the others are replaced and written after them, so that where it stands all of them do.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::fail::{io, malformed};
use super::tensors::{ordered, write_ordered};
use crate::{TensorRef, TraceError};

/// A dump gets another part for each of these, in bytes.
pub(super) const PART_BYTES: usize = 64 << 20;
/// Files of a dump at most.
const PARTS: usize = 16;

/// Writes a dump, in parts of about `part_bytes` where it is longer.
///
/// # Errors
/// As [`super::tensors::write_safetensors`].
pub(super) fn write(
    path: &Path,
    metadata: &BTreeMap<String, String>,
    tensors: &[TensorRef<'_>],
    part_bytes: usize,
) -> Result<(), TraceError> {
    let order = ordered(path, tensors)?;
    let runs = split(&order, part_bytes);
    let mut metadata = metadata.clone();
    let Some((first, others)) = runs.split_first().filter(|(_, others)| !others.is_empty()) else {
        return write_ordered(path, &metadata, &order);
    };
    if path.try_exists().map_err(io(path))? {
        std::fs::remove_file(path).map_err(io(path))?;
    }
    metadata.insert("parts".to_owned(), runs.len().to_string());
    std::thread::scope(|scope| {
        let writers: Vec<_> = others
            .iter()
            .enumerate()
            .map(|(i, run)| scope.spawn(move || write_part(path, i + 1, run)))
            .collect();
        // The first part waits under a name of its own until the others are there.
        let first = write_ordered(&waiting(path), &metadata, first);
        let written = writers.into_iter().map(|writer| {
            writer.join().unwrap_or_else(|_| Err(malformed(path, "a writer of this dump stopped")))
        });
        written.chain([first]).collect::<Result<(), TraceError>>()
    })?;
    std::fs::rename(waiting(path), path).map_err(io(path))
}

/// Names with a leading dot are files being written.
fn waiting(path: &Path) -> PathBuf {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    path.with_file_name(format!(".{name}"))
}

fn write_part(path: &Path, index: usize, run: &[&TensorRef<'_>]) -> Result<(), TraceError> {
    let metadata =
        [("part_of".to_owned(), file_name(path)), ("part".to_owned(), index.to_string())];
    write_ordered(&part_path(path, index), &BTreeMap::from(metadata), run)
}

/// Runs of tensors of about equal bytes, never a tensor in two.
fn split<'o, 'a>(
    order: &'o [&'a TensorRef<'a>],
    part_bytes: usize,
) -> Vec<&'o [&'a TensorRef<'a>]> {
    let total: usize = order.iter().map(|tensor| tensor.data.len()).sum();
    let parts = total.div_ceil(part_bytes.max(1)).clamp(1, PARTS);
    let mut runs = Vec::new();
    let (mut rest, mut done) = (order, 0);
    for part in 1..=parts {
        let until = total / parts * part;
        let mut taken = 0;
        while let Some(tensor) = rest.get(taken).filter(|_| part == parts || done < until) {
            done += tensor.data.len();
            taken += 1;
        }
        let (run, more) = rest.split_at(taken);
        rest = more;
        if !run.is_empty() || runs.is_empty() {
            runs.push(run);
        }
    }
    runs
}

fn file_name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

fn part_path(path: &Path, index: usize) -> PathBuf {
    let stem = path.file_stem().unwrap_or_default().to_string_lossy();
    path.with_file_name(format!("{stem}.part_{index}.safetensors"))
}

/// Is this the name of a part other than the first?
pub(super) fn is_part(name: &str) -> bool {
    name.strip_suffix(".safetensors")
        .and_then(|stem| stem.rsplit_once(".part_"))
        .is_some_and(|(_, index)| index.parse::<usize>().is_ok())
}

/// A part that the first one speaks of.
#[derive(Debug)]
pub(super) struct Part {
    /// The file.
    pub(super) path: PathBuf,
    of: String,
    index: usize,
}

impl Part {
    /// Does the file say of itself what the first part says of it?
    pub(super) fn belongs(&self, metadata: &BTreeMap<String, String>) -> Result<(), TraceError> {
        let (of, part) = (metadata.get("part_of"), metadata.get("part"));
        if of == Some(&self.of) && part == Some(&self.index.to_string()) {
            return Ok(());
        }
        let says = format!("{} of {}", word(part), word(of));
        let what = format!(
            "is part {says}, expected {} of {}; copy the folder again",
            self.index, self.of
        );
        Err(malformed(&self.path, what))
    }
}

fn word(value: Option<&String>) -> &str {
    value.map_or("nothing", String::as_str)
}

/// The parts beside `path`, by its metadata.
pub(super) fn others(
    path: &Path,
    metadata: &BTreeMap<String, String>,
) -> Result<Vec<Part>, TraceError> {
    let Some(parts) = metadata.get("parts") else { return Ok(Vec::new()) };
    let parts =
        parts.parse().ok().filter(|parts| (2..=PARTS).contains(parts)).ok_or_else(|| {
            malformed(path, format!("says that it has {parts} parts; 2 to {PARTS} are written"))
        })?;
    let part = |index| Part { path: part_path(path, index), of: file_name(path), index };
    Ok((1..parts).map(part).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::DumpFile;
    use crate::{DType, Tensor};

    fn tensor(name: &str, elements: usize, value: u8) -> Tensor {
        Tensor {
            name: name.to_owned(),
            dtype: DType::U8,
            shape: vec![elements],
            data: vec![value; elements],
        }
    }

    fn dump() -> Vec<Tensor> {
        (0..10_u8).map(|i| tensor(&format!("t{i}"), 100 + usize::from(i), i)).collect()
    }

    fn borrowed(tensors: &[Tensor]) -> Vec<TensorRef<'_>> {
        tensors.iter().map(Tensor::borrowed).collect()
    }

    fn written(dir: &Path) -> PathBuf {
        let path = dir.join("compaction_0001.safetensors");
        let metadata = BTreeMap::from([("rule".to_owned(), "trt".to_owned())]);
        write(&path, &metadata, &borrowed(&dump()), 300).unwrap();
        path
    }

    #[test]
    fn a_dump_in_parts_reads_as_one() {
        let dir = tempfile::tempdir().unwrap();
        let path = written(dir.path());
        let mut names: Vec<String> = std::fs::read_dir(dir.path())
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        assert_eq!(names.len(), 4, "{names:?}");
        let file = DumpFile::open(&path).unwrap();
        assert_eq!(file.names().count(), 10);
        for tensor in dump() {
            let view = file.get(&tensor.name).unwrap();
            assert_eq!((view.bytes, &view.shape), (tensor.data.as_slice(), &tensor.shape));
        }
        assert_eq!(file.metadata().get("rule").unwrap(), "trt");
        for name in names {
            let bytes = std::fs::read(dir.path().join(name)).unwrap();
            safetensors::SafeTensors::deserialize(&bytes).unwrap();
        }
    }

    #[test]
    fn a_small_dump_is_one_file_of_the_same_bytes() {
        let dir = tempfile::tempdir().unwrap();
        let (one, two) = (dir.path().join("a.safetensors"), dir.path().join("b.safetensors"));
        write(&one, &BTreeMap::new(), &borrowed(&dump()), PART_BYTES).unwrap();
        crate::store::write_safetensors(&two, &BTreeMap::new(), &dump()).unwrap();
        assert_eq!(std::fs::read(one).unwrap(), std::fs::read(two).unwrap());
    }

    #[test]
    fn a_part_that_is_missing_or_of_another_dump_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let path = written(dir.path());
        let part = |i| part_path(&path, i);
        std::fs::copy(part(2), part(1)).unwrap();
        let error = DumpFile::open(&path).unwrap_err().to_string();
        assert!(error.contains("part_1.safetensors"), "{error}");
        assert!(error.contains("is part 2 of") || error.contains("two parts"), "{error}");
        std::fs::remove_file(part(1)).unwrap();
        let error = DumpFile::open(&path).unwrap_err().to_string();
        assert!(error.contains("part_1.safetensors") && error.contains("missing"), "{error}");
    }

    #[test]
    fn a_lie_about_the_number_of_parts_is_refused() {
        for parts in ["0", "1", "17", "99999999999", "two"] {
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join("a.safetensors");
            let metadata = BTreeMap::from([("parts".to_owned(), parts.to_owned())]);
            crate::store::write_safetensors(&path, &metadata, &dump()).unwrap();
            let error = DumpFile::open(&path).unwrap_err().to_string();
            assert!(error.contains("parts"), "{parts}: {error}");
        }
    }

    #[test]
    fn every_tensor_lies_in_one_run_and_runs_are_even() {
        let tensors = dump();
        let tensors = borrowed(&tensors);
        let order: Vec<&TensorRef<'_>> = tensors.iter().collect();
        for part_bytes in [1, 100, 250, 300, 5000] {
            let runs = split(&order, part_bytes);
            assert_eq!(runs.concat().len(), order.len());
            assert!(runs.iter().all(|run| !run.is_empty()));
        }
        assert_eq!(
            split(&order, 300).iter().map(|run| run.len()).collect::<Vec<_>>(),
            [3, 3, 2, 2]
        );
        assert_eq!(split(&[], 300).len(), 1);
    }
}
