//! The door: a file or a folder to a set of named tensors.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::element::Element;
use super::order::natural;
use super::raw::RawSpec;
use super::source::Mapped;
use super::tensor::PlainTensor;
use super::{folder, json, legacy, npy, polygraphy, safetensors, torch, zipped};
use crate::TraceError;
use crate::store::fail::malformed;

/// What a reader cannot find in the files.
#[derive(Debug, Clone, Default)]
pub struct ReadOptions {
    /// Type and shape of files without a header; the first that covers a file counts.
    pub raw: Vec<RawSpec>,
}

/// A raw file whose length contradicts its declaration: it has no values.
#[derive(Debug, Clone)]
pub struct Misfit {
    /// Name that the tensor would have.
    pub name: String,
    /// The file.
    pub path: PathBuf,
    /// What was declared.
    pub declared: RawSpec,
    /// Bytes of the file.
    pub bytes: u64,
    /// Element types with which the declared shape fits the file.
    pub fits: Vec<Element>,
}

impl Misfit {
    /// The file's bytes as another type of the declared shape.
    ///
    /// # Errors
    /// [`TraceError`] where the type does not fit either.
    pub fn read_as(&self, element: Element) -> Result<PlainTensor, TraceError> {
        let spec = RawSpec { element, ..self.declared.clone() };
        let file = Mapped::open(&self.path)?;
        spec.tensor(&self.name, &self.path, &file)?
            .map_err(|_| malformed(&self.path, format!("does not fit {}", element.name())))
    }
}

/// Named tensors of a file or of a folder.
#[derive(Debug)]
pub struct TensorSet {
    /// What was read.
    pub path: PathBuf,
    /// What it is, in words.
    pub format: &'static str,
    /// What the order of the tensors follows: `names`, `file`, `dump.json`, `dump_index`.
    pub order: &'static str,
    /// Tensors in that order; names are unique.
    pub tensors: Vec<PlainTensor>,
    /// Raw files that do not fit what was declared of them.
    pub misfits: Vec<Misfit>,
    /// Files that may hold tensors and that nothing says how to read.
    pub undeclared: Vec<String>,
    /// What a reader should know.
    pub remarks: Vec<String>,
}

/// What one file gave, names below it.
#[derive(Debug, Default)]
pub(super) struct Part {
    pub(super) format: &'static str,
    pub(super) tensors: Vec<PlainTensor>,
    pub(super) misfits: Vec<Misfit>,
    pub(super) undeclared: bool,
    pub(super) remarks: Vec<String>,
}

impl Part {
    /// Takes another part in, its names below `name`.
    pub(super) fn add(&mut self, name: &str, other: Self) {
        for mut tensor in other.tensors {
            tensor.name = below(name, &tensor.name);
            self.tensors.push(tensor);
        }
        for mut misfit in other.misfits {
            misfit.name = below(name, &misfit.name);
            self.misfits.push(misfit);
        }
        self.remarks.extend(other.remarks.into_iter().map(|remark| format!("{name}: {remark}")));
    }
}

fn below(name: &str, inner: &str) -> String {
    match (name.is_empty(), inner.is_empty()) {
        (true, _) => inner.to_owned(),
        (_, true) => name.to_owned(),
        _ => format!("{name}/{inner}"),
    }
}

/// Reads a file or a folder. Tensor bytes are mapped and not looked at.
///
/// # Errors
/// [`TraceError`] with the file and the place of the damage; also where there is no tensor at all.
pub fn read(path: &Path, options: &ReadOptions) -> Result<TensorSet, TraceError> {
    let set = if path.is_dir() { folder::read(path, options)? } else { file(path, options)? };
    unique(&set)?;
    if set.tensors.is_empty() && set.misfits.is_empty() && set.undeclared.is_empty() {
        let remarks = set.remarks.join("; ");
        let what = if remarks.is_empty() {
            "holds no tensor".to_owned()
        } else {
            format!("holds no tensor: {remarks}")
        };
        return Err(malformed(path, what));
    }
    Ok(set)
}

/// Is this a file that holds tensors by its content, or a folder with such a file in it?
#[must_use]
pub fn recognised(path: &Path) -> bool {
    if path.is_dir() {
        return folder::recognised(path);
    }
    let Ok(file) = Mapped::open(path) else { return false };
    let bytes = file.bytes();
    let safetensors = path.extension().is_some_and(|extension| extension == "safetensors");
    safetensors
        || bytes.starts_with(npy::MAGIC)
        || bytes.starts_with(b"PK\x03\x04")
        || pickled(bytes)
        || (bytes.first() == Some(&b'{')
            && (polygraphy::claims(bytes) || safetensors::is_index(bytes)))
}

fn file(path: &Path, options: &ReadOptions) -> Result<TensorSet, TraceError> {
    let mapped = Mapped::open(path)?;
    let name =
        path.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned());
    let part = content(path, &mapped, &name, Some(options))?;
    let order = match part.format {
        "safetensors" | "safetensors shards" => "names",
        _ => "file",
    };
    let mut set = TensorSet {
        path: path.to_path_buf(),
        format: part.format,
        order,
        tensors: part.tensors,
        misfits: part.misfits,
        undeclared: if part.undeclared { vec![name] } else { Vec::new() },
        remarks: part.remarks,
    };
    // A lone array has no name of its own; two files that hold one each are to be compared whatever they are called.
    for tensor in set.tensors.iter_mut().filter(|tensor| tensor.name.is_empty()) {
        "tensor".clone_into(&mut tensor.name);
    }
    for misfit in set.misfits.iter_mut().filter(|misfit| misfit.name.is_empty()) {
        "tensor".clone_into(&mut misfit.name);
    }
    Ok(set)
}

/// A pickle of protocol 2 or later.
fn pickled(bytes: &[u8]) -> bool {
    matches!(bytes, [0x80, 2..=5, ..]) && !headed(bytes)
}

/// A safetensors header. Its length may begin as a pickle does (640 bytes are `80 02`); what follows in a pickle is no length that fits.
fn headed(bytes: &[u8]) -> bool {
    let length = bytes.first_chunk::<8>().map(|length| u64::from_le_bytes(*length));
    length.is_some_and(|length| length <= bytes.len() as u64 - 8) && bytes.get(8) == Some(&b'{')
}

/// Reads one mapped file by what it holds. `name` is its path below the root; without `options` (bytes out of another file) only
/// content decides.
pub(super) fn content(
    path: &Path,
    file: &Arc<Mapped>,
    name: &str,
    options: Option<&ReadOptions>,
) -> Result<Part, TraceError> {
    let bytes = file.bytes();
    let part = |format, tensors| Part { format, tensors, ..Part::default() };
    if let Some(spec) =
        options.and_then(|options| options.raw.iter().find(|spec| spec.covers(name)))
        && !known(path, bytes)
    {
        return Ok(match spec.tensor("", path, file)? {
            Ok(tensor) => part("raw", vec![tensor]),
            Err(misfit) => Part { format: "raw", misfits: vec![misfit], ..Part::default() },
        });
    }
    if bytes.starts_with(b"version https://git-lfs") {
        return Err(malformed(
            path,
            "a git-lfs pointer and not the data; fetch it with `git lfs pull`",
        ));
    }
    if bytes.starts_with(npy::MAGIC) {
        return Ok(part("npy", vec![npy::tensor("", path, file, (0, bytes.len()))?]));
    }
    if bytes.starts_with(b"PK") {
        return archive(path, file);
    }
    if pickled(bytes) {
        let (tensors, remarks) = legacy::tensors(path, file)?;
        return Ok(Part { format: "torch (bare pickle)", tensors, remarks, ..Part::default() });
    }
    if extension(path) == "safetensors" {
        return Ok(part("safetensors", safetensors::tensors(path, file)?));
    }
    if extension(path) == "json" {
        if polygraphy::claims(bytes) {
            return polygraphy::tensors(path, file);
        }
        if safetensors::is_index(bytes) {
            return Ok(part("safetensors shards", safetensors::sharded(path, file)?));
        }
        let (tensors, remarks) = json::tensors(path, file)?;
        return Ok(Part { format: "JSON numbers", tensors, remarks, ..Part::default() });
    }
    match extension(path).as_str() {
        "npy" | "npz" | "pt" | "pth" => {
            let first: Vec<String> =
                bytes.iter().take(4).map(|byte| format!("{byte:02x}")).collect();
            let what = format!(
                "byte 0: {} bytes that start with [{}]: not the {} that its name says; copy it again",
                bytes.len(),
                first.join(" "),
                extension(path)
            );
            Err(malformed(path, what))
        }
        _ => Ok(Part { format: "raw", undeclared: true, ..Part::default() }),
    }
}

/// Does the content name its own format, so that no declaration is looked at?
fn known(path: &Path, bytes: &[u8]) -> bool {
    bytes.starts_with(npy::MAGIC)
        || bytes.starts_with(b"PK\x03\x04")
        || matches!(extension(path).as_str(), "safetensors" | "json" | "npy" | "npz" | "pt" | "pth")
}

fn extension(path: &Path) -> String {
    path.extension()
        .map_or_else(String::new, |extension| extension.to_string_lossy().to_lowercase())
}

fn archive(path: &Path, file: &Arc<Mapped>) -> Result<Part, TraceError> {
    let entries = zipped::entries(path, file)?;
    if let Some(stem) = torch::stem(&entries) {
        let (tensors, remarks) = torch::tensors(path, file, &entries, stem)?;
        return Ok(Part { format: "torch", tensors, remarks, ..Part::default() });
    }
    let mut part = Part { format: "npz", ..Part::default() };
    for entry in &entries {
        let Some(name) = entry.name.strip_suffix(".npy") else {
            part.remarks.push(format!("entry `{}` is no array and was not read", entry.name));
            continue;
        };
        let storage = entry.storage(path, file)?;
        storage.verify()?;
        let (map, start) = storage.place();
        part.tensors.push(npy::tensor(name, path, map, (start, start + storage.bytes().len()))?);
    }
    if part.tensors.is_empty() {
        return Err(malformed(path, "a zip archive that neither torch.save nor numpy.savez wrote"));
    }
    Ok(part)
}

fn unique(set: &TensorSet) -> Result<(), TraceError> {
    let mut names: Vec<&str> = set.tensors.iter().map(|tensor| tensor.name.as_str()).collect();
    names.sort_unstable_by(|a, b| natural(a, b));
    match names.windows(2).find(|pair| matches!(pair, [a, b] if a == b)) {
        Some([twice, _]) => Err(malformed(&set.path, format!("two tensors are called `{twice}`"))),
        _ => Ok(()),
    }
}
