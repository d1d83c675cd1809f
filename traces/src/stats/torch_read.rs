//! The zip container of `torch.save`: the pickle and the storages it refers to.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use half::{bf16, f16};
use zip::{CompressionMethod, ZipArchive};

use super::pickle::{Element, Pickle, Storage, Tensor};
use crate::TraceError;
use crate::store::fail::{io, malformed};

/// Values of one tensor at most: strides of 0 make more elements than bytes.
const TENSOR_LIMIT: usize = 1 << 24;

/// An open `.pt` file.
pub(super) struct TorchFile {
    path: PathBuf,
    archive: ZipArchive<File>,
    file_len: u64,
    stem: String,
    storages: BTreeMap<String, Vec<u8>>,
}

impl TorchFile {
    /// Opens the archive and interprets its pickle.
    pub(super) fn open(path: &Path) -> Result<(Self, Pickle), TraceError> {
        let file = File::open(path).map_err(io(path))?;
        let file_len = file.metadata().map_err(io(path))?.len();
        let archive = ZipArchive::new(file).map_err(|error| {
            malformed(path, format!("not a whole zip archive ({error}); copy it again"))
        })?;
        let names: Result<Vec<String>, _> =
            archive.file_names().map(|name| name.map(|name| name.into_owned())).collect();
        let names = names.map_err(|error| malformed(path, format!("zip directory: {error}")))?;
        let pickles: Vec<&str> =
            names.iter().filter_map(|name| name.strip_suffix("data.pkl")).collect();
        let stem = match pickles.as_slice() {
            [stem] if stem.matches('/').count() == 1 && stem.len() > 1 => (*stem).to_owned(),
            _ => {
                return Err(malformed(
                    path,
                    "a zip archive that torch.save did not write: no `<name>/data.pkl`",
                ));
            }
        };
        let storages = BTreeMap::new();
        let mut torch = Self { path: path.to_path_buf(), archive, file_len, stem, storages };
        if names.contains(&format!("{}byteorder", torch.stem)) {
            let order = torch.entry("byteorder")?;
            if order != b"little" {
                return Err(malformed(
                    path,
                    "saved on a big-endian machine; only little-endian files are read",
                ));
            }
        }
        let bytes = torch.entry("data.pkl")?;
        let pickle = Pickle::parse(&bytes).map_err(|error| malformed(path, error.to_string()))?;
        Ok((torch, pickle))
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    fn entry(&mut self, name: &str) -> Result<Vec<u8>, TraceError> {
        let path = &self.path;
        let fault = |what: String| malformed(path, format!("entry `{name}`: {what}"));
        let mut entry = self
            .archive
            .by_name(&format!("{}{name}", self.stem))
            .map_err(|error| fault(error.to_string()))?;
        if entry.compression() != CompressionMethod::Stored {
            return Err(fault(format!(
                "is compressed ({}), but torch.save stores",
                entry.compression()
            )));
        }
        let size = entry.size();
        if size > self.file_len {
            return Err(fault(format!("claims {size} bytes in a file of {}", self.file_len)));
        }
        let mut bytes = Vec::new();
        entry.read_to_end(&mut bytes).map_err(|error| fault(error.to_string()))?;
        if bytes.len() as u64 != size {
            return Err(fault(format!("claims {size} bytes and has {}", bytes.len())));
        }
        Ok(bytes)
    }

    /// Values of a tensor in row-major order, whatever its strides.
    pub(super) fn values(&mut self, tensor: &Tensor) -> Result<Vec<f32>, TraceError> {
        let count = tensor.size.iter().try_fold(1_usize, |count, &size| count.checked_mul(size));
        let count = count.filter(|&count| count <= TENSOR_LIMIT).ok_or_else(|| {
            malformed(
                &self.path,
                format!("a tensor of size {:?}: no statistics are so large", tensor.size),
            )
        })?;
        let storage = tensor.storage.clone();
        let bytes = self.storage(&storage)?;
        let read = reader(storage.element);
        let width = width(storage.element);
        let mut values = Vec::with_capacity(count);
        let mut index = vec![0_usize; tensor.size.len()];
        for _ in 0..count {
            // The tensor was checked against its storage's length, and that against its bytes.
            let at = index
                .iter()
                .zip(&tensor.stride)
                .fold(tensor.offset, |at, (i, stride)| at + i * stride);
            values.push(read(bytes.get(at * width..).unwrap_or_default()));
            for (i, size) in index.iter_mut().zip(&tensor.size).rev() {
                *i += 1;
                if *i < *size {
                    break;
                }
                *i = 0;
            }
        }
        Ok(values)
    }

    fn storage(&mut self, storage: &Storage) -> Result<&[u8], TraceError> {
        if !self.storages.contains_key(&storage.key) {
            let bytes = self.entry(&format!("data/{}", storage.key))?;
            self.storages.insert(storage.key.clone(), bytes);
        }
        let bytes = self.storages.get(&storage.key).map(Vec::as_slice).unwrap_or_default();
        if storage.numel.checked_mul(width(storage.element)) != Some(bytes.len()) {
            let (key, numel, len) = (&storage.key, storage.numel, bytes.len());
            return Err(malformed(
                &self.path,
                format!(
                    "storage `{key}` claims {numel} {:?} elements but has {len} bytes",
                    storage.element
                ),
            ));
        }
        Ok(bytes)
    }
}

const fn width(element: Element) -> usize {
    match element {
        Element::Float => 4,
        Element::Double => 8,
        Element::Half | Element::BFloat16 => 2,
    }
}

#[expect(
    clippy::cast_possible_truncation,
    reason = "double statistics are rounded to the nearest f32, as torch's .float() does"
)]
fn reader(element: Element) -> fn(&[u8]) -> f32 {
    fn first<const N: usize>(bytes: &[u8]) -> [u8; N] {
        bytes.first_chunk().copied().unwrap_or([0; N])
    }
    match element {
        Element::Float => |bytes| f32::from_le_bytes(first(bytes)),
        Element::Double => |bytes| f64::from_le_bytes(first(bytes)) as f32,
        Element::Half => |bytes| f16::from_le_bytes(first(bytes)).to_f32(),
        Element::BFloat16 => |bytes| bf16::from_le_bytes(first(bytes)).to_f32(),
    }
}
