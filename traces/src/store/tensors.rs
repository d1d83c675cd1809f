//! safetensors files: written byte for byte the same each time, read through a map with every length checked.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{BufWriter, Write as _};
use std::path::{Path, PathBuf};

use half::{bf16, f16};
use safetensors::tensor::{Dtype, Metadata, SafeTensorError, SafeTensors};
use serde_json::{Map, Value, json};

use super::fail::{io, malformed};
use super::format::replace_file;
use super::parts;
use crate::{DType, Tensor, TensorRef, TraceError};

/// Writes a safetensors file by temporary file and rename. Tensors are laid out by falling element size, then by
/// name, metadata by key, so that equal content gives equal bytes.
///
/// # Errors
/// [`TraceError::Tensor`] where data and shape disagree or a name occurs twice or is reserved; [`TraceError::Io`].
pub fn write_safetensors(
    path: &Path,
    metadata: &BTreeMap<String, String>,
    tensors: &[Tensor],
) -> Result<(), TraceError> {
    let tensors: Vec<_> = tensors.iter().map(Tensor::borrowed).collect();
    write_ordered(path, metadata, &ordered(path, &tensors)?)
}

/// The tensors in the order of the file, each checked: its bytes are those of its shape, its name is free.
pub(super) fn ordered<'a>(
    path: &Path,
    tensors: &'a [TensorRef<'a>],
) -> Result<Vec<&'a TensorRef<'a>>, TraceError> {
    let mut names = BTreeSet::new();
    for tensor in tensors {
        if byte_len(&tensor.shape, tensor.dtype) != Some(tensor.data.len()) {
            let (shape, given) = (&tensor.shape, tensor.data.len());
            let what =
                format!("shape {shape:?} of {} does not fit {given} bytes", tensor.dtype.name());
            return Err(tensor_fault(path, &tensor.name, what));
        }
        if tensor.name == "__metadata__" || !names.insert(tensor.name.as_str()) {
            return Err(tensor_fault(path, &tensor.name, "the name is taken".to_owned()));
        }
    }
    let mut order: Vec<&TensorRef<'_>> = tensors.iter().collect();
    order.sort_by(|a, b| b.dtype.size().cmp(&a.dtype.size()).then_with(|| a.name.cmp(&b.name)));
    Ok(order)
}

/// Writes tensors that [`ordered`] has passed.
pub(super) fn write_ordered(
    path: &Path,
    metadata: &BTreeMap<String, String>,
    order: &[&TensorRef<'_>],
) -> Result<(), TraceError> {
    let mut header = Map::new();
    if !metadata.is_empty() {
        header.insert("__metadata__".to_owned(), json!(metadata));
    }
    let mut offset = 0;
    for tensor in order {
        let end = offset + tensor.data.len();
        let entry = json!({"dtype": dtype_word(tensor.dtype), "shape": tensor.shape, "data_offsets": [offset, end]});
        header.insert(tensor.name.clone(), entry);
        offset = end;
    }
    let mut header = Value::Object(header).to_string().into_bytes();
    header.resize(header.len().next_multiple_of(8), b' ');
    replace_file(path, |file| {
        let mut out = BufWriter::with_capacity(1 << 20, file);
        out.write_all(&(header.len() as u64).to_le_bytes()).map_err(io(path))?;
        out.write_all(&header).map_err(io(path))?;
        for tensor in order {
            out.write_all(tensor.data).map_err(io(path))?;
        }
        out.flush().map_err(io(path))
    })
}

fn byte_len(shape: &[usize], dtype: DType) -> Option<usize> {
    shape.iter().try_fold(dtype.size(), |bytes, &size| bytes.checked_mul(size))
}

const fn dtype_word(dtype: DType) -> &'static str {
    match dtype {
        DType::F32 => "F32",
        DType::F16 => "F16",
        DType::Bf16 => "BF16",
        DType::F64 => "F64",
        DType::I32 => "I32",
        DType::I16 => "I16",
        DType::I64 => "I64",
        DType::U8 => "U8",
    }
}

const fn known(dtype: Dtype) -> Option<DType> {
    Some(match dtype {
        Dtype::F32 => DType::F32,
        Dtype::F16 => DType::F16,
        Dtype::BF16 => DType::Bf16,
        Dtype::F64 => DType::F64,
        Dtype::I32 => DType::I32,
        Dtype::I16 => DType::I16,
        Dtype::I64 => DType::I64,
        Dtype::U8 => DType::U8,
        _ => return None,
    })
}

/// A memory-mapped safetensors file: a dump, a statistics file, weights. A dump in parts is one of these over all of its files.
#[derive(Debug)]
pub struct DumpFile {
    path: PathBuf,
    files: Vec<Mapped>,
    metadata: BTreeMap<String, String>,
    entries: BTreeMap<String, Entry>,
}

/// A file of a dump.
#[derive(Debug)]
struct Mapped {
    path: PathBuf,
    map: memmap2::Mmap,
}

#[derive(Debug)]
struct Entry {
    file: usize,
    dtype: Dtype,
    shape: Vec<usize>,
    bytes: std::ops::Range<usize>,
}

impl DumpFile {
    /// Maps a file and checks its header: length within the file, offsets without gap or overlap up to the end of the
    /// file, sizes as shape and dtype say, no name twice. Tensor bytes are not read. The parts that the metadata name are opened
    /// with it, under the same checks.
    ///
    /// # Errors
    /// [`TraceError::Io`]; [`TraceError::Tensor`] where the file ends within a tensor; [`TraceError::Malformed`] for anything else,
    /// a part that is missing or belongs to another dump among it.
    pub fn open(path: &Path) -> Result<Self, TraceError> {
        let mut whole = Self {
            path: path.to_path_buf(),
            files: vec![],
            metadata: BTreeMap::new(),
            entries: BTreeMap::new(),
        };
        whole.metadata = whole.add(path)?;
        for part in parts::others(path, &whole.metadata)? {
            if !part.path.is_file() {
                return Err(malformed(
                    &part.path,
                    "a part of the dump is missing; copy the folder again",
                ));
            }
            let metadata = whole.add(&part.path)?;
            part.belongs(&metadata)?;
        }
        Ok(whole)
    }

    /// Maps one file and takes its tensors in; its metadata are returned.
    fn add(&mut self, path: &Path) -> Result<BTreeMap<String, String>, TraceError> {
        let file = File::open(path).map_err(io(path))?;
        if file.metadata().map_err(io(path))?.len() < 8 {
            return Err(malformed(
                path,
                "shorter than the 8 bytes of a safetensors length; copy or write it again",
            ));
        }
        let map = map(&file).map_err(io(path))?;
        let (header, parsed) =
            SafeTensors::read_metadata(&map).map_err(|error| explain(path, &map, &error))?;
        for (name, entry) in entries(&parsed, header + 8, self.files.len()) {
            if self.entries.insert(name.clone(), entry).is_some() {
                return Err(tensor_fault(path, &name, "lies in two parts of the dump".to_owned()));
            }
        }
        self.files.push(Mapped { path: path.to_path_buf(), map });
        Ok(parsed.metadata().iter().flatten().map(|(k, v)| (k.clone(), v.clone())).collect())
    }

    /// The file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// `__metadata__`.
    #[must_use]
    pub const fn metadata(&self) -> &BTreeMap<String, String> {
        &self.metadata
    }

    /// Tensor names, sorted.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.entries.keys().map(String::as_str)
    }

    /// Is there a tensor of this name?
    #[must_use]
    pub fn has(&self, name: &str) -> bool {
        self.entries.contains_key(name)
    }

    /// A tensor.
    ///
    /// # Errors
    /// [`TraceError::Tensor`] where it is missing or its dtype is none of [`DType`].
    pub fn get(&self, name: &str) -> Result<TensorView<'_>, TraceError> {
        let Some((name, entry)) = self.entries.get_key_value(name) else {
            return Err(tensor_fault(&self.path, name, "is not in this file".to_owned()));
        };
        let file = self.files.get(entry.file);
        let path = file.map_or(&self.path, |file| &file.path);
        let fault = |what: String| tensor_fault(path, name, what);
        let dtype = known(entry.dtype)
            .ok_or_else(|| fault(format!("has dtype {:?}, which is not read here", entry.dtype)))?;
        let bytes = file
            .and_then(|file| file.map.get(entry.bytes.clone()))
            .ok_or_else(|| fault("lies outside the file".to_owned()))?;
        Ok(TensorView { dtype, shape: entry.shape.clone(), bytes, name, path })
    }
}

fn entries(parsed: &Metadata, start: usize, file: usize) -> BTreeMap<String, Entry> {
    let entry = |info: &safetensors::tensor::TensorInfo| Entry {
        file,
        dtype: info.dtype,
        shape: info.shape.clone(),
        bytes: start + info.data_offsets.0..start + info.data_offsets.1,
    };
    parsed.tensors().into_iter().map(|(name, info)| (name, entry(info))).collect()
}

#[expect(unsafe_code, reason = "dumps are larger than memory; only a map reads them in place")]
fn map(file: &File) -> std::io::Result<memmap2::Mmap> {
    // SAFETY: files of a run are replaced by rename and never written in place, so the mapped inode keeps its
    // length and bytes; every byte pattern is a valid `u8`.
    unsafe { memmap2::Mmap::map(file) }
}

fn tensor_fault(path: &Path, name: &str, what: String) -> TraceError {
    TraceError::Tensor { path: path.to_path_buf(), tensor: name.to_owned(), what }
}

/// Says what a refused header means.
fn explain(path: &Path, bytes: &[u8], error: &SafeTensorError) -> TraceError {
    if bytes.starts_with(b"version https://git-lfs") {
        return malformed(path, "a git-lfs pointer and not the data; fetch it with `git lfs pull`");
    }
    let claimed = bytes.first_chunk::<8>().map_or(0, |prefix| u64::from_le_bytes(*prefix));
    let present = bytes.len() as u64 - 8;
    let what = match error {
        SafeTensorError::HeaderTooLarge | SafeTensorError::InvalidHeaderLength => {
            format!(
                "claims a header of {claimed} bytes but {present} bytes follow: not safetensors, or cut"
            )
        }
        SafeTensorError::MetadataIncompleteBuffer => {
            return incomplete(path, bytes, claimed);
        }
        SafeTensorError::InvalidOffset(name) => {
            return tensor_fault(
                path,
                name,
                "its bytes overlap another tensor's, leave a gap, or its name occurs twice"
                    .to_owned(),
            );
        }
        SafeTensorError::TensorInvalidInfo => {
            "shape, dtype and offsets of a tensor disagree".to_owned()
        }
        SafeTensorError::InvalidHeaderDeserialization(error) => {
            format!("header is not valid JSON: {error}")
        }
        other => format!("not a safetensors file: {other}"),
    };
    malformed(path, what)
}

/// The data part is shorter or longer than the header says: names the first tensor that is cut.
fn incomplete(path: &Path, bytes: &[u8], header: u64) -> TraceError {
    let start = usize::try_from(header).unwrap_or(usize::MAX).saturating_add(8);
    let data = bytes.len().saturating_sub(start) as u64;
    let parsed: Option<Map<String, Value>> =
        bytes.get(8..start).and_then(|text| serde_json::from_slice(text).ok());
    let ends = parsed.iter().flatten().filter_map(|(name, info)| {
        Some((info.get("data_offsets")?.get(1)?.as_u64()?, name.as_str()))
    });
    match ends.clone().filter(|(end, _)| *end > data).min() {
        Some((end, name)) => tensor_fault(
            path,
            name,
            format!(
                "ends at byte {end} of the data, of which only {data} are present; the file is cut, copy it again"
            ),
        ),
        None => {
            let end = ends.map(|(end, _)| end).max().unwrap_or(0);
            malformed(path, format!("{} bytes follow the last tensor", data.saturating_sub(end)))
        }
    }
}

/// One tensor in a mapped file: little-endian, row-major, at any alignment.
#[derive(Debug, Clone)]
pub struct TensorView<'a> {
    /// Element type.
    pub dtype: DType,
    /// Shape.
    pub shape: Vec<usize>,
    /// `shape.product() * dtype.size()` bytes.
    pub bytes: &'a [u8],
    name: &'a str,
    path: &'a Path,
}

impl<'a> TensorView<'a> {
    /// Elements.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.bytes.len() / self.dtype.size()
    }

    /// True for a tensor with no element.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// An error about this tensor, with its file and name.
    #[must_use]
    pub fn error(&self, what: impl Into<String>) -> TraceError {
        tensor_fault(self.path, self.name, what.into())
    }

    /// Checks shape and dtype.
    ///
    /// # Errors
    /// [`TraceError::Tensor`] that says both the found and the expected.
    pub fn expect(&self, dtype: DType, shape: &[usize]) -> Result<(), TraceError> {
        if self.dtype == dtype && self.shape == shape {
            return Ok(());
        }
        let found = self.dtype.name();
        Err(self.error(format!("is {found} {:?}, expected {} {shape:?}", self.shape, dtype.name())))
    }

    /// The values as `f32`, exactly: from f32, f16, bf16, i16 and u8.
    ///
    /// # Errors
    /// [`TraceError::Tensor`] for a dtype that `f32` does not hold exactly.
    pub fn to_f32(&self) -> Result<Vec<f32>, TraceError> {
        Ok(match self.dtype {
            DType::F32 => self.each(f32::from_le_bytes),
            DType::F16 => self.each(|b| f16::from_le_bytes(b).to_f32()),
            DType::Bf16 => self.each(|b| bf16::from_le_bytes(b).to_f32()),
            DType::I16 => self.each(|b| f32::from(i16::from_le_bytes(b))),
            DType::U8 => self.each(|[b]| f32::from(b)),
            DType::F64 | DType::I32 | DType::I64 => return Err(self.inexact("f32")),
        })
    }

    /// The values as `f64`, exactly: from every dtype but i64.
    ///
    /// # Errors
    /// [`TraceError::Tensor`] for i64.
    pub fn to_f64(&self) -> Result<Vec<f64>, TraceError> {
        Ok(match self.dtype {
            DType::F64 => self.each(f64::from_le_bytes),
            DType::F32 => self.each(|b| f64::from(f32::from_le_bytes(b))),
            DType::F16 => self.each(|b| f16::from_le_bytes(b).to_f64()),
            DType::Bf16 => self.each(|b| bf16::from_le_bytes(b).to_f64()),
            DType::I32 => self.each(|b| f64::from(i32::from_le_bytes(b))),
            DType::I16 => self.each(|b| f64::from(i16::from_le_bytes(b))),
            DType::U8 => self.each(|[b]| f64::from(b)),
            DType::I64 => return Err(self.inexact("f64")),
        })
    }

    /// The values as `i32`, exactly: from i32, i16, u8, and i64 where every value fits.
    ///
    /// # Errors
    /// [`TraceError::Tensor`] for floating point and for i64 values out of range.
    pub fn to_i32(&self) -> Result<Vec<i32>, TraceError> {
        Ok(match self.dtype {
            DType::I32 => self.each(i32::from_le_bytes),
            DType::I16 => self.each(|b| i32::from(i16::from_le_bytes(b))),
            DType::U8 => self.each(|[b]| i32::from(b)),
            DType::I64 => {
                let wide = self.each(i64::from_le_bytes);
                let narrow: Result<Vec<i32>, _> = wide.into_iter().map(i32::try_from).collect();
                narrow.map_err(|_| self.inexact("i32"))?
            }
            DType::F32 | DType::F16 | DType::Bf16 | DType::F64 => return Err(self.inexact("i32")),
        })
    }

    fn inexact(&self, to: &str) -> TraceError {
        self.error(format!("is {} and cannot be read as {to} without loss", self.dtype.name()))
    }

    fn each<const N: usize, T>(&self, convert: impl Fn([u8; N]) -> T) -> Vec<T> {
        let (whole, _) = self.bytes.as_chunks::<N>();
        whole.iter().map(|bytes| convert(*bytes)).collect()
    }
}
