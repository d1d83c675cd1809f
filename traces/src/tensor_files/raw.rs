//! Bytes without a header, whose type and shape are declared.

use std::path::Path;
use std::sync::Arc;

use super::element::Element;
use super::read::Misfit;
use super::source::Mapped;
use super::tensor::{PlainTensor, count, range};
use crate::TraceError;

/// Type and shape of a raw file: `f32:8x128`, `*.bin=bf16:36x8x128`, `k.bin=f32:8x4:big`, `k.bin=f32:8x4:+64`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RawSpec {
    /// Which files, `*` standing for anything; matched against the path below the root and against the file's name.
    pub files: String,
    /// Element type.
    pub element: Element,
    /// Shape, slowest axis first.
    pub shape: Vec<usize>,
    /// Most significant byte first.
    pub big_endian: bool,
    /// Bytes before the first element.
    pub skip: usize,
}

impl RawSpec {
    /// Is this file meant?
    #[must_use]
    pub fn covers(&self, relative: &str) -> bool {
        let name = relative.rsplit('/').next().unwrap_or(relative);
        wildcard(&self.files, relative) || wildcard(&self.files, name)
    }

    fn bytes(&self) -> Option<usize> {
        count(&self.shape)?.checked_mul(self.element.size())?.checked_add(self.skip)
    }

    /// The tensor of a raw file, or how the file's length contradicts the declaration.
    pub(super) fn tensor(
        &self,
        name: &str,
        path: &Path,
        file: &Arc<Mapped>,
    ) -> Result<Result<PlainTensor, Misfit>, TraceError> {
        let have = file.bytes().len();
        if self.bytes() != Some(have) {
            // Of a file that ends before the first element nothing fits, not even a shape of no elements.
            let rest = have.checked_sub(self.skip);
            let fits = |element: &Element| {
                let wanted = count(&self.shape).and_then(|n| n.checked_mul(element.size()));
                rest.is_some() && wanted == rest
            };
            return Ok(Err(Misfit {
                name: name.to_owned(),
                path: path.to_path_buf(),
                declared: self.clone(),
                bytes: have as u64,
                fits: Element::ALL.into_iter().filter(|element| fits(element)).collect(),
            }));
        }
        let storage = range(path, file, self.skip..have)?;
        let mut tensor =
            PlainTensor::packed(name, path, self.element, self.shape.clone(), storage)?;
        tensor.big_endian = self.big_endian;
        Ok(Ok(tensor))
    }
}

impl std::str::FromStr for RawSpec {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let (files, rest) = text.split_once('=').unwrap_or(("*", text));
        let mut parts = rest.split(':');
        let element = parts.next().unwrap_or_default().parse()?;
        let form =
            || format!("`{text}`: write [FILES=]TYPE:SHAPE[:big][:+BYTES], as in k.bin=f32:8x128");
        let sizes = parts.next().ok_or_else(form)?;
        let sizes: Result<Vec<usize>, _> = sizes.split('x').map(str::parse).collect();
        let shape = sizes.map_err(|_| form())?;
        let mut spec = Self { files: files.to_owned(), element, shape, big_endian: false, skip: 0 };
        for part in parts {
            match part {
                "big" => spec.big_endian = true,
                "little" => spec.big_endian = false,
                skip => {
                    let bytes = skip.strip_prefix('+').and_then(|bytes| bytes.parse().ok());
                    spec.skip = bytes.ok_or_else(form)?;
                }
            }
        }
        if spec.bytes().is_none() {
            return Err(format!("`{text}`: larger than any file"));
        }
        Ok(spec)
    }
}

/// Does `text` match `pattern`, in which `*` stands for any characters?
fn wildcard(pattern: &str, text: &str) -> bool {
    let mut parts = pattern.split('*');
    let first = parts.next().unwrap_or_default();
    let Some(mut rest) = text.strip_prefix(first) else { return false };
    let Some(mut part) = parts.next() else { return rest.is_empty() };
    for next in parts {
        let Some(at) = rest.find(part) else { return false };
        rest = rest.get(at + part.len()..).unwrap_or_default();
        part = next;
    }
    rest.ends_with(part)
}
