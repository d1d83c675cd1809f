//! Checkpoint files: mapped, checked, and widened on demand.
//!
//! Files stay memory-mapped in their stored dtype. A tensor is turned into f32 or f64 when a layer is about to run,
//! and dropped after it, so that a checkpoint of any size is replayed in little more memory than its file.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::ops::Range;
use std::path::{Path, PathBuf};

use candle_core::{Device, Tensor};
use memmap2::Mmap;
use safetensors::{Dtype, SafeTensors};

use crate::ReferenceError;
use crate::forward::parallel::for_blocks;
use crate::forward::{Precision, Rounding};
use crate::gguf::{self, Stored, halves_apart, rounded_blocks};

/// One tensor of a checkpoint, not yet read.
#[derive(Debug, Clone)]
struct Entry {
    file: usize,
    stored: Stored,
    shape: Vec<usize>,
    bytes: Range<usize>,
    /// Heads whose rows stand pair by pair instead of half by half.
    pairs: Option<usize>,
}

/// The weight files of a model directory: `model.safetensors`, or the shards named by `model.safetensors.index.json`; or a GGUF file.
#[derive(Debug)]
pub struct Weights {
    dir: PathBuf,
    files: Vec<(PathBuf, Mmap)>,
    /// By the name that each has in its file.
    entries: BTreeMap<String, Entry>,
    gguf: bool,
}

impl Weights {
    /// Maps the files and reads their headers; no tensor data is touched.
    ///
    /// # Errors
    /// Missing files, headers that lie about sizes, a tensor in two shards, an index that names what is not there.
    pub fn open(dir: &Path) -> Result<Self, ReferenceError> {
        if dir.is_file() {
            return Self::open_gguf(dir);
        }
        let single = dir.join("model.safetensors");
        let index = dir.join("model.safetensors.index.json");
        let mut weights = Self {
            dir: dir.to_path_buf(),
            files: Vec::new(),
            entries: BTreeMap::new(),
            gguf: false,
        };
        if single.exists() || !index.exists() {
            weights.map(single)?;
            return Ok(weights);
        }
        let shards = read_index(&index)?;
        for name in shards.values().collect::<BTreeSet<_>>() {
            weights.map(dir.join(name))?;
        }
        for (tensor, shard) in &shards {
            let path = dir.join(shard);
            let there =
                weights.entries.get(tensor).is_some_and(|e| weights.files[e.file].0 == path);
            if !there {
                let what = format!("the index places it in {shard}, which does not hold it");
                return Err(ReferenceError::Weights { path: index, tensor: tensor.clone(), what });
            }
        }
        Ok(weights)
    }

    fn open_gguf(path: &Path) -> Result<Self, ReferenceError> {
        let opened = gguf::open(path)?;
        let start = opened.content.tensor_data_offset;
        let mut entries = BTreeMap::new();
        for (name, tensor) in &opened.header.tensors {
            let Some(info) = opened.content.tensor_infos.get(name) else { continue };
            let start = usize::try_from(start + info.offset).unwrap_or(usize::MAX);
            let entry = Entry {
                file: 0,
                stored: Stored::of(info.ggml_dtype),
                shape: info.shape.dims().to_vec(),
                bytes: start..start + tensor.range.len(),
                pairs: gguf::heads_in_pairs(&opened.content, name),
            };
            entries.insert(name.clone(), entry);
        }
        let files = vec![(path.to_path_buf(), opened.map)];
        Ok(Self { dir: path.to_path_buf(), files, entries, gguf: true })
    }

    /// The name that a tensor has in the files.
    #[must_use]
    pub(crate) fn stored_name(&self, name: &str) -> String {
        if self.gguf { gguf::stored_name(name) } else { name.to_owned() }
    }

    #[expect(unsafe_code, reason = "mapping a file is unsafe by definition")]
    fn map(&mut self, path: PathBuf) -> Result<(), ReferenceError> {
        let io = |source| ReferenceError::Io { path: path.clone(), source };
        let file = File::open(&path).map_err(io)?;
        // SAFETY: the map is read-only and lives as long as `self`. A checkpoint that is truncated while it is being
        // read is outside what any mapped reader can guard against; sizes are checked against the map just below.
        let map = unsafe { Mmap::map(&file) }.map_err(io)?;
        let damaged = |what: String| ReferenceError::Weights {
            path: path.clone(),
            tensor: "(header)".to_owned(),
            what,
        };
        let tensors = SafeTensors::deserialize(&map).map_err(|error| damaged(error.to_string()))?;
        let start = map.as_ptr() as usize;
        for (name, view) in tensors.iter() {
            let offset = view.data().as_ptr() as usize - start;
            let entry = Entry {
                file: self.files.len(),
                stored: Stored::Plain(view.dtype()),
                shape: view.shape().to_vec(),
                bytes: offset..offset + view.data().len(),
                pairs: None,
            };
            if self.entries.insert(name.to_owned(), entry).is_some() {
                let what = "stands in two shards".to_owned();
                return Err(ReferenceError::Weights { path, tensor: name.to_owned(), what });
            }
        }
        self.files.push((path, map));
        Ok(())
    }

    /// Names of all tensors, as the files have them.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.entries.keys().map(String::as_str)
    }

    /// Is there such a tensor?
    #[must_use]
    pub fn has(&self, name: &str) -> bool {
        self.entries.contains_key(&self.stored_name(name))
    }

    /// Bytes of all weight files.
    #[must_use]
    pub fn file_bytes(&self) -> u64 {
        self.files.iter().map(|(_, map)| map.len() as u64).sum()
    }

    /// An error about a tensor, with the file that holds it.
    pub(crate) fn error(&self, tensor: &str, what: impl Into<String>) -> ReferenceError {
        let tensor = self.stored_name(tensor);
        let path = self.entries.get(&tensor).map_or(&self.dir, |entry| &self.files[entry.file].0);
        ReferenceError::Weights { path: path.clone(), tensor, what: what.into() }
    }

    /// Checks that a tensor exists with this shape and a dtype that can be widened.
    ///
    /// # Errors
    /// Names the tensor and the file.
    pub fn check(&self, name: &str, shape: &[usize]) -> Result<(), ReferenceError> {
        self.entry(name, shape).map(|_| ())
    }

    fn entry(&self, name: &str, shape: &[usize]) -> Result<&Entry, ReferenceError> {
        let Some(entry) = self.entries.get(&self.stored_name(name)) else {
            return Err(self.error(name, "is missing"));
        };
        if entry.shape != shape {
            let source = if self.gguf { "the metadata" } else { "config.json" };
            return Err(self
                .error(name, format!("has shape {:?}, {source} asks for {shape:?}", entry.shape)));
        }
        match entry.stored {
            Stored::Plain(Dtype::F16 | Dtype::BF16 | Dtype::F32 | Dtype::F64)
            | Stored::Blocks(_) => Ok(entry),
            Stored::Plain(dtype) => Err(self.error(
                name,
                format!("has dtype {dtype:?}; F16, BF16, F32 and F64 can be widened"),
            )),
            Stored::Other(dtype) => Err(self.error(
                name,
                format!(
                    "has type {dtype:?}; F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q4_K, Q5_K and Q6_K can be widened"
                ),
            )),
        }
    }

    /// A whole tensor, widened exactly and then rounded as `precision` rounds weights.
    ///
    /// # Errors
    /// As [`Weights::check`].
    pub fn widen(
        &self,
        name: &str,
        shape: &[usize],
        precision: Precision,
    ) -> Result<Tensor, ReferenceError> {
        let entry = self.entry(name, shape)?;
        self.convert(entry, entry.bytes.clone(), shape, precision)
    }

    /// Rows `rows` of a matrix `[shape[0], shape[1]]`, widened.
    ///
    /// # Errors
    /// As [`Weights::check`], and rows outside the matrix.
    pub fn widen_rows(
        &self,
        name: &str,
        shape: [usize; 2],
        rows: Range<usize>,
        precision: Precision,
    ) -> Result<Tensor, ReferenceError> {
        let entry = self.entry(name, &shape)?;
        if entry.pairs.is_some() || rows.start >= rows.end || rows.end > shape[0] {
            return Err(self.error(name, format!("has no rows {rows:?}")));
        }
        let stride = entry.bytes.len() / shape[0];
        let start = entry.bytes.start;
        let bytes = start + rows.start * stride..start + rows.end * stride;
        self.convert(entry, bytes, &[rows.len(), shape[1]], precision)
    }

    fn convert(
        &self,
        entry: &Entry,
        bytes: Range<usize>,
        shape: &[usize],
        precision: Precision,
    ) -> Result<Tensor, ReferenceError> {
        let data = &self.files[entry.file].1[bytes];
        let tensor = match entry.stored {
            Stored::Blocks(dtype) | Stored::Other(dtype) => {
                rounded_blocks(data, dtype, shape, precision)?
            }
            Stored::Plain(dtype) if precision == Precision::F64 => {
                Tensor::from_vec(widen_f64(data, dtype), shape, &Device::Cpu)?
            }
            Stored::Plain(dtype) => {
                let values = widen_f32(data, dtype, precision.rounding());
                Tensor::from_vec(values, shape, &Device::Cpu)?
            }
        };
        match entry.pairs {
            Some(heads) => halves_apart(&tensor, heads),
            None => Ok(tensor),
        }
    }
}

fn read_index(path: &Path) -> Result<BTreeMap<String, String>, ReferenceError> {
    #[derive(serde::Deserialize)]
    struct Index {
        weight_map: BTreeMap<String, String>,
    }
    let bytes = std::fs::read(path)
        .map_err(|source| ReferenceError::Io { path: path.to_path_buf(), source })?;
    let index: Index = serde_json::from_slice(&bytes).map_err(|source| {
        lockstep_traces::TraceError::Json { path: path.to_path_buf(), line: source.line(), source }
    })?;
    for (tensor, shard) in &index.weight_map {
        if Path::new(shard).components().count() != 1 || shard.starts_with('.') {
            let what = format!("shard `{shard}` is no plain file name");
            return Err(ReferenceError::Weights {
                path: path.to_path_buf(),
                tensor: tensor.clone(),
                what,
            });
        }
    }
    Ok(index.weight_map)
}

/// Elements handed to a thread at a time.
const BLOCK: usize = 1 << 16;

fn widen_f32(data: &[u8], dtype: Dtype, rounding: Rounding) -> Vec<f32> {
    match dtype {
        Dtype::F16 => fill(data, |b: [u8; 2]| rounding.f32(half_to_f32(u16::from_le_bytes(b)))),
        Dtype::BF16 => fill(data, |b: [u8; 2]| rounding.f32(brain_to_f32(u16::from_le_bytes(b)))),
        Dtype::F64 => fill(data, |b: [u8; 8]| rounding.f32(f64::from_le_bytes(b) as f32)),
        _ => fill(data, |b: [u8; 4]| rounding.f32(f32::from_le_bytes(b))),
    }
}

fn widen_f64(data: &[u8], dtype: Dtype) -> Vec<f64> {
    match dtype {
        Dtype::F16 => fill(data, |b: [u8; 2]| f64::from(half_to_f32(u16::from_le_bytes(b)))),
        Dtype::BF16 => fill(data, |b: [u8; 2]| f64::from(brain_to_f32(u16::from_le_bytes(b)))),
        Dtype::F64 => fill(data, f64::from_le_bytes),
        _ => fill(data, |b: [u8; 4]| f64::from(f32::from_le_bytes(b))),
    }
}

fn fill<const N: usize, T, F>(data: &[u8], read: F) -> Vec<T>
where
    T: Copy + Default + Send,
    F: Fn([u8; N]) -> T + Sync,
{
    let elements = data.as_chunks::<N>().0;
    let mut values = vec![T::default(); elements.len()];
    for_blocks(&mut values, BLOCK, |start, block| {
        for (value, bytes) in block.iter_mut().zip(&elements[start..]) {
            *value = read(*bytes);
        }
    });
    values
}

fn brain_to_f32(bits: u16) -> f32 {
    f32::from_bits(u32::from(bits) << 16)
}

/// binary16 to binary32, exact, without a branch on the value's class: the exponent is rebased by a power of two, which
/// also normalises subnormals; infinities and NaN keep their mantissa.
fn half_to_f32(bits: u16) -> f32 {
    let magnitude = u32::from(bits & 0x7fff) << 13;
    let sign = u32::from(bits & 0x8000) << 16;
    // 2^112: the difference of the two exponent biases.
    let rebased = (f32::from_bits(magnitude) * f32::from_bits(0x7780_0000)).to_bits();
    let special = if magnitude >= 0x0f80_0000 { magnitude | 0x7f80_0000 } else { rebased };
    f32::from_bits(special | sign)
}

#[cfg(test)]
mod tests {
    use super::*;
    use safetensors::tensor::TensorView;

    fn write(path: &Path, tensors: &[(&str, Dtype, Vec<usize>, Vec<u8>)]) {
        let views: Vec<(&str, TensorView<'_>)> = tensors
            .iter()
            .map(|(name, dtype, shape, data)| {
                (*name, TensorView::new(*dtype, shape.clone(), data).unwrap())
            })
            .collect();
        safetensors::serialize_to_file(views, None, path).unwrap();
    }

    fn f32_bytes(values: &[f32]) -> Vec<u8> {
        values.iter().flat_map(|value| value.to_le_bytes()).collect()
    }

    #[test]
    fn every_binary16_value_widens_as_the_half_crate_has_it() {
        for bits in 0..=u16::MAX {
            let (ours, theirs) = (half_to_f32(bits), half::f16::from_bits(bits).to_f32());
            assert!(
                ours.to_bits() == theirs.to_bits() || (ours.is_nan() && theirs.is_nan()),
                "{bits:#06x}: {ours} against {theirs}"
            );
        }
    }

    #[test]
    fn rows_are_cut_out_of_a_matrix_and_rounded_where_asked() {
        let dir = tempfile::tempdir().unwrap();
        let data = f32_bytes(&[1.0, 2.0, 3.0, 1.0 + 1.0 / 1024.0, 5.0, 6.0]);
        write(&dir.path().join("model.safetensors"), &[("w", Dtype::F32, vec![3, 2], data)]);
        let weights = Weights::open(dir.path()).unwrap();
        let rows = |precision| {
            let tensor = weights.widen_rows("w", [3, 2], 1..3, precision).unwrap();
            tensor
                .flatten_all()
                .unwrap()
                .to_dtype(candle_core::DType::F64)
                .unwrap()
                .to_vec1::<f64>()
                .unwrap()
        };
        assert_eq!(rows(Precision::F64), [3.0, 1.0 + 1.0 / 1024.0, 5.0, 6.0]);
        assert_eq!(rows(Precision::Bf16), [3.0, 1.0, 5.0, 6.0]);
    }

    #[test]
    fn shards_are_joined_and_a_lying_index_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let one = f32_bytes(&[1.0]);
        write(&dir.path().join("a.safetensors"), &[("x", Dtype::F32, vec![1], one.clone())]);
        write(&dir.path().join("b.safetensors"), &[("y", Dtype::F32, vec![1], one)]);
        let index = dir.path().join("model.safetensors.index.json");
        std::fs::write(&index, r#"{"weight_map":{"x":"a.safetensors","y":"b.safetensors"}}"#)
            .unwrap();
        let weights = Weights::open(dir.path()).unwrap();
        assert_eq!(weights.names().collect::<Vec<_>>(), ["x", "y"]);
        std::fs::write(&index, r#"{"weight_map":{"x":"b.safetensors","y":"b.safetensors"}}"#)
            .unwrap();
        let message = Weights::open(dir.path()).unwrap_err().to_string();
        assert!(message.contains("`x`") && message.contains("b.safetensors"), "{message}");
        std::fs::write(&index, r#"{"weight_map":{"x":"../a.safetensors"}}"#).unwrap();
        assert!(Weights::open(dir.path()).unwrap_err().to_string().contains("plain file name"));
    }

    #[test]
    fn damage_and_wrong_shapes_name_file_and_tensor() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("model.safetensors");
        write(
            &path,
            &[
                ("w", Dtype::F32, vec![2], f32_bytes(&[1.0, 2.0])),
                ("i", Dtype::I64, vec![1], vec![0; 8]),
            ],
        );
        let weights = Weights::open(dir.path()).unwrap();
        for (name, shape, word) in
            [("w", vec![3], "[2]"), ("i", vec![1], "I64"), ("z", vec![1], "missing")]
        {
            let message = weights.check(name, &shape).unwrap_err().to_string();
            assert!(message.contains(word) && message.contains(name), "{message}");
        }
        let bytes = std::fs::read(&path).unwrap();
        std::fs::write(&path, &bytes[..bytes.len() - 1]).unwrap();
        let message = Weights::open(dir.path()).unwrap_err().to_string();
        assert!(message.contains("model.safetensors") && message.contains("header"), "{message}");
    }
}
