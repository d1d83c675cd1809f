//! The weight files of a model: one safetensors file, shards named by an index, or a GGUF file.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use lockstep_traces::DType;
use memmap2::Mmap;
use serde::Deserialize;

use super::gguf::{self, open_gguf};
use super::quant::Quant;
use super::{Entry, Header, RowOrder, Tensor};
use crate::RuntimeError;

const SINGLE: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";

struct Shard {
    path: PathBuf,
    map: Arc<Mmap>,
    entries: BTreeMap<String, Entry>,
}

/// Mapped weight files with checked headers.
pub struct WeightFiles {
    dir: PathBuf,
    shards: Vec<Shard>,
    /// Tensor name to shard.
    place: BTreeMap<String, usize>,
    /// Names are translated from a GGUF file's.
    gguf: bool,
}

#[derive(Deserialize)]
struct Index {
    weight_map: BTreeMap<String, String>,
}

impl WeightFiles {
    /// Opens `model.safetensors`, or else the shards of `model.safetensors.index.json`; where `dir` is a file, that file as GGUF.
    ///
    /// # Errors
    /// A file that is missing, a header that lies, an index that does not fit its files, a tensor in two files.
    pub fn open(dir: &Path) -> Result<Self, RuntimeError> {
        if dir.is_file() {
            let (map, header) = open_gguf(dir)?;
            let mut files = Self { gguf: true, ..Self::none(dir.to_owned()) };
            files.place_all(dir, Arc::new(map), gguf::entries(&header, dir)?)?;
            return Ok(files);
        }
        let single = dir.join(SINGLE);
        let index = dir.join(INDEX);
        let mut files = Self::none(dir.to_owned());
        if single.is_file() {
            files.add(&single)?;
        } else if index.is_file() {
            files.add_index(&index)?;
        } else {
            let what = format!("no weights here; {SINGLE} or {INDEX} is needed");
            return Err(RuntimeError::Weights { path: dir.to_owned(), what });
        }
        Ok(files)
    }

    /// Opens one file.
    ///
    /// # Errors
    /// As [`WeightFiles::open`].
    pub fn open_file(path: &Path) -> Result<Self, RuntimeError> {
        let dir = path.parent().unwrap_or(Path::new("")).to_owned();
        let mut files = Self::none(dir);
        files.add(path)?;
        Ok(files)
    }

    const fn none(dir: PathBuf) -> Self {
        Self { dir, shards: Vec::new(), place: BTreeMap::new(), gguf: false }
    }

    fn add_index(&mut self, path: &Path) -> Result<(), RuntimeError> {
        let bytes = std::fs::read(path).map_err(RuntimeError::io(path))?;
        let index: Index = serde_json::from_slice(&bytes).map_err(|source| {
            lockstep_traces::TraceError::Json { path: path.to_owned(), line: source.line(), source }
        })?;
        let mut names: Vec<&String> = index.weight_map.values().collect();
        names.sort_unstable();
        names.dedup();
        for name in names {
            if Path::new(name).file_name().is_none_or(|base| base != name.as_str()) {
                let what = format!("`{name}` is not a plain file name");
                return Err(RuntimeError::Weights { path: path.to_owned(), what });
            }
            self.add(&self.dir.join(name))?;
        }
        for (tensor, name) in &index.weight_map {
            let shard = self.dir.join(name);
            let found = self.place.get(tensor).map(|place| &self.shards[*place].path);
            if found != Some(&shard) {
                let what = format!("{INDEX} places it here, but it is not in the header");
                return Err(RuntimeError::tensor(&shard, tensor, what));
            }
        }
        Ok(())
    }

    fn add(&mut self, path: &Path) -> Result<(), RuntimeError> {
        let map = Arc::new(map_file(path)?);
        let header = Header::parse(&map)
            .map_err(|source| RuntimeError::Safetensors { path: path.to_owned(), source })?;
        self.place_all(path, map, header.entries)
    }

    fn place_all(
        &mut self,
        path: &Path,
        map: Arc<Mmap>,
        entries: BTreeMap<String, Entry>,
    ) -> Result<(), RuntimeError> {
        let number = self.shards.len();
        for name in entries.keys() {
            if let Some(other) = self.place.insert(name.clone(), number) {
                let other = self.shards[other].path.display();
                return Err(RuntimeError::tensor(path, name, format!("is also in {other}")));
            }
        }
        self.shards.push(Shard { path: path.to_owned(), map, entries });
        Ok(())
    }

    /// Directory of the files.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Paths of the files, in name order.
    pub fn paths(&self) -> impl Iterator<Item = &Path> {
        self.shards.iter().map(|shard| shard.path.as_path())
    }

    /// Names of all tensors.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.place.keys().map(String::as_str)
    }

    /// Header entry of a tensor and the file it is in.
    #[must_use]
    pub fn entry(&self, name: &str) -> Option<(&Path, &Entry)> {
        let shard = &self.shards[*self.place.get(name)?];
        Some((&shard.path, shard.entries.get(name)?))
    }

    /// The name that a tensor has, or would have, in the files: the same, but in a GGUF file.
    #[must_use]
    pub fn stored_name(&self, name: &str) -> String {
        let stored = if self.gguf { gguf::stored_name(name) } else { None };
        stored.unwrap_or_else(|| name.to_owned())
    }

    /// Are these the tensors of a GGUF file?
    #[must_use]
    pub const fn is_gguf(&self) -> bool {
        self.gguf
    }

    /// Bytes of a tensor.
    #[must_use]
    pub fn bytes(&self, name: &str) -> Option<&[u8]> {
        let shard = &self.shards[*self.place.get(name)?];
        shard.map.get(shard.entries.get(name)?.range.clone())
    }

    /// A tensor of floating-point weights, its rows in the order of the Hugging Face layout. Quantised blocks become f32 here.
    ///
    /// # Errors
    /// [`RuntimeError::Tensor`] where it is missing or of another element type.
    pub fn tensor(&self, name: &str) -> Result<Tensor, RuntimeError> {
        let stored = self.stored_name(name);
        let place = self.place.get(name).ok_or_else(|| {
            RuntimeError::tensor(&self.dir, &stored, "is in none of the weight files")
        })?;
        let shard = &self.shards[*place];
        let fault = |what: String| RuntimeError::tensor(&shard.path, &stored, what);
        let entry = shard.entries.get(name).ok_or_else(|| fault("is not in the header".into()))?;
        let quant = if self.gguf { Quant::from_name(&entry.dtype) } else { None };
        if quant.is_some() || entry.order != RowOrder::Halves {
            let bytes = shard.map.get(entry.range.clone()).unwrap_or_default();
            return gguf::decoded(entry, quant, bytes)
                .ok_or_else(|| fault("data does not fit the shape".into()));
        }
        let dtype = match entry.dtype.as_str() {
            "F32" => DType::F32,
            "F16" => DType::F16,
            "BF16" => DType::Bf16,
            other => {
                let more = if self.gguf { ", Q8_0, Q4_0, Q4_1, Q4_K, Q5_K, Q6_K" } else { "" };
                let what =
                    format!("element type {other} is not supported; F32, F16, BF16{more} are");
                return Err(fault(what));
            }
        };
        Tensor::mapped(&shard.map, entry.range.clone(), dtype, entry.shape.clone())
            .ok_or_else(|| fault("data does not fit the shape".into()))
    }
}

#[expect(unsafe_code, reason = "a mapping is the only way to use weights larger than memory")]
pub(super) fn map_file(path: &Path) -> Result<Mmap, RuntimeError> {
    let file = File::open(path).map_err(RuntimeError::io(path))?;
    let length = file.metadata().map_err(RuntimeError::io(path))?.len();
    if length == 0 {
        let source = super::HeaderError::TooShort(0);
        return Err(RuntimeError::Safetensors { path: path.to_owned(), source });
    }
    // SAFETY: the file is opened read-only and mapped privately; as with every mapping, it must not be truncated by
    // another program while the model is loaded (documented in the crate header).
    unsafe { Mmap::map(&file) }.map_err(RuntimeError::io(path))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(path: &Path, tensors: &[(&str, &[f32])]) {
        let views: Vec<_> = tensors
            .iter()
            .map(|(name, values)| {
                let bytes: &[u8] = bytemuck::cast_slice(values);
                let shape = vec![values.len()];
                let view =
                    safetensors::tensor::TensorView::new(safetensors::Dtype::F32, shape, bytes);
                (*name, view.unwrap())
            })
            .collect();
        std::fs::write(path, safetensors::serialize(views, None).unwrap()).unwrap();
    }

    #[test]
    fn shards_are_joined_by_their_index() {
        let dir = tempfile::tempdir().unwrap();
        write(&dir.path().join("one.safetensors"), &[("a", &[1.0, 2.0])]);
        write(&dir.path().join("two.safetensors"), &[("b", &[3.0])]);
        let index =
            r#"{"metadata": {}, "weight_map": {"a": "one.safetensors", "b": "two.safetensors"}}"#;
        std::fs::write(dir.path().join(INDEX), index).unwrap();
        let files = WeightFiles::open(dir.path()).unwrap();
        assert_eq!(files.names().collect::<Vec<_>>(), ["a", "b"]);
        assert_eq!(files.tensor("b").unwrap().elements().get(0), Some(3.0));
        let missing = files.tensor("c").unwrap_err();
        assert!(matches!(missing, RuntimeError::Tensor { tensor, .. } if tensor == "c"));
    }

    #[test]
    fn an_index_that_does_not_fit_its_files_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        write(&dir.path().join("one.safetensors"), &[("a", &[1.0, 2.0])]);
        let write_index = |text: &str| std::fs::write(dir.path().join(INDEX), text).unwrap();
        write_index(r#"{"weight_map": {"a": "one.safetensors", "b": "one.safetensors"}}"#);
        let error = WeightFiles::open(dir.path()).err().unwrap();
        assert!(matches!(error, RuntimeError::Tensor { tensor, .. } if tensor == "b"));
        write_index(r#"{"weight_map": {"a": "none.safetensors"}}"#);
        let error = WeightFiles::open(dir.path()).err().unwrap();
        assert!(matches!(error, RuntimeError::Io { .. }), "{error}");
        write_index(r#"{"weight_map": {"a": "../one.safetensors"}}"#);
        let error = WeightFiles::open(dir.path()).err().unwrap();
        assert!(matches!(error, RuntimeError::Weights { .. }), "{error}");
    }

    #[test]
    fn a_tensor_in_two_files_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        write(&dir.path().join("one.safetensors"), &[("a", &[1.0])]);
        write(&dir.path().join("two.safetensors"), &[("a", &[1.0]), ("b", &[1.0])]);
        let index = r#"{"weight_map": {"a": "one.safetensors", "b": "two.safetensors"}}"#;
        std::fs::write(dir.path().join(INDEX), index).unwrap();
        let error = WeightFiles::open(dir.path()).err().unwrap();
        assert!(matches!(error, RuntimeError::Tensor { tensor, .. } if tensor == "a"));
    }

    #[test]
    fn unaligned_data_is_read_all_the_same() {
        // A header of odd length puts the data at an odd offset.
        let json = r#"{"a":{"dtype":"F16","shape":[2],"data_offsets":[0,4]}}"#;
        let json = if json.len().is_multiple_of(2) { format!("{json} ") } else { json.to_owned() };
        let mut bytes = (json.len() as u64).to_le_bytes().to_vec();
        bytes.extend_from_slice(json.as_bytes());
        bytes.extend_from_slice(&0x3C00_u16.to_le_bytes());
        bytes.extend_from_slice(&0xC000_u16.to_le_bytes());
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("odd.safetensors");
        std::fs::write(&path, bytes).unwrap();
        let tensor = WeightFiles::open_file(&path).unwrap().tensor("a").unwrap();
        assert_eq!(tensor.elements().get(0), Some(1.0));
        assert_eq!(tensor.elements().get(1), Some(-2.0));
    }

    #[test]
    fn integer_weights_are_refused_by_name() {
        let json = r#"{"a":{"dtype":"I8","shape":[2],"data_offsets":[0,2]}}"#;
        let mut bytes = (json.len() as u64).to_le_bytes().to_vec();
        bytes.extend_from_slice(json.as_bytes());
        bytes.extend_from_slice(&[1, 2]);
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("int.safetensors");
        std::fs::write(&path, bytes).unwrap();
        let error = WeightFiles::open_file(&path).unwrap().tensor("a").unwrap_err();
        assert!(error.to_string().contains("I8"), "{error}");
    }
}
