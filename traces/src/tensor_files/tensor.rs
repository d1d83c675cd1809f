//! One tensor of a plain file.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::element::Element;
use super::source::Storage;
use crate::TraceError;
use crate::store::fail::malformed;

/// Elements at most of a tensor that has more of them than its bytes hold (strides of 0): such a view costs no bytes and any time.
const EXPANDED_LIMIT: u64 = 1 << 31;
/// Axes at most.
const RANK_LIMIT: usize = 64;

/// A tensor in a mapped file. Every index that shape and strides allow lies within the bytes.
#[derive(Debug, Clone)]
pub struct PlainTensor {
    /// Name, unique in its set.
    pub name: String,
    /// The file.
    pub path: PathBuf,
    /// Element type.
    pub element: Element,
    /// Shape, slowest axis first.
    pub shape: Vec<usize>,
    /// Elements from one index to the next, by axis.
    pub strides: Vec<usize>,
    /// Element of index 0 in [`PlainTensor::bytes`].
    pub offset: usize,
    /// The bytes of an element are stored most significant first.
    pub big_endian: bool,
    storage: Arc<Storage>,
}

/// Strides of a tensor that lies in row-major order.
fn row_major(shape: &[usize]) -> Vec<usize> {
    let mut strides = vec![0; shape.len()];
    let mut step = 1_usize;
    for (stride, size) in strides.iter_mut().zip(shape).rev() {
        *stride = step;
        step = step.saturating_mul((*size).max(1));
    }
    strides
}

/// Elements of a shape.
pub(super) fn count(shape: &[usize]) -> Option<usize> {
    shape.iter().try_fold(1_usize, |count, &size| count.checked_mul(size))
}

impl PlainTensor {
    /// A tensor in row-major order that fills `storage`.
    ///
    /// # Errors
    /// One line where bytes and shape disagree.
    pub(super) fn packed(
        name: &str,
        path: &Path,
        element: Element,
        shape: Vec<usize>,
        storage: Arc<Storage>,
    ) -> Result<Self, TraceError> {
        let need = count(&shape).and_then(|count| count.checked_mul(element.size()));
        let have = storage.bytes().len();
        if need != Some(have) {
            let what = format!("{} {shape:?} does not fit {have} bytes", element.name());
            return Err(fault(path, name, what));
        }
        let strides = row_major(&shape);
        Self::strided(name, path, element, (shape, strides, 0), storage)
    }

    /// A view of `storage`: shape, strides and offset in elements.
    ///
    /// # Errors
    /// One line where an index would leave the bytes.
    pub(super) fn strided(
        name: &str,
        path: &Path,
        element: Element,
        (shape, strides, offset): (Vec<usize>, Vec<usize>, usize),
        storage: Arc<Storage>,
    ) -> Result<Self, TraceError> {
        if shape.len() != strides.len() || shape.len() > RANK_LIMIT {
            let what = format!(
                "{} sizes and {} strides; up to {RANK_LIMIT} axes",
                shape.len(),
                strides.len()
            );
            return Err(fault(path, name, what));
        }
        let have = storage.bytes().len() / element.size();
        let last = shape.iter().zip(&strides).try_fold(offset, |at, (size, stride)| {
            at.checked_add(size.saturating_sub(1).checked_mul(*stride)?)
        });
        let empty = shape.contains(&0);
        if !empty && last.is_none_or(|last| last >= have) {
            let what = format!(
                "shape {shape:?} with strides {strides:?} from element {offset} reaches past the {have} elements that are stored"
            );
            return Err(fault(path, name, what));
        }
        let elements = if empty { Some(0) } else { count(&shape) };
        if !elements.is_some_and(|n| n <= have || n as u64 <= EXPANDED_LIMIT) {
            return Err(fault(
                path,
                name,
                format!(
                    "shape {shape:?} repeats {have} stored elements; up to {EXPANDED_LIMIT} elements of a repeating view are read, save \
                     what it repeats"
                ),
            ));
        }
        Ok(Self {
            name: name.to_owned(),
            path: path.to_path_buf(),
            element,
            shape,
            strides,
            offset,
            big_endian: false,
            storage,
        })
    }

    /// Every byte of the storage; the tensor starts at element [`PlainTensor::offset`].
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        self.storage.bytes()
    }

    /// Elements.
    #[must_use]
    pub fn elements(&self) -> u64 {
        if self.shape.contains(&0) {
            0
        } else {
            self.shape.iter().map(|&size| size as u64).product()
        }
    }

    /// In row-major order without gaps?
    #[must_use]
    pub fn is_packed(&self) -> bool {
        let dense = row_major(&self.shape);
        self.shape
            .iter()
            .zip(self.strides.iter().zip(dense))
            .all(|(size, (a, b))| *size == 1 || *a == b)
    }

    /// The same elements with the axes in another order: axis `i` of the result is axis `order[i]`.
    ///
    /// # Errors
    /// [`TraceError::Tensor`] where `order` does not name every axis once.
    pub fn permuted(&self, order: &[usize]) -> Result<Self, TraceError> {
        let mut named = order.to_vec();
        named.sort_unstable();
        if !named.iter().copied().eq(0..self.shape.len()) {
            let what =
                format!("has {} axes; {order:?} does not name each of them once", self.shape.len());
            return Err(fault(&self.path, &self.name, what));
        }
        let pick =
            |list: &[usize]| order.iter().filter_map(|axis| list.get(*axis).copied()).collect();
        Ok(Self { shape: pick(&self.shape), strides: pick(&self.strides), ..self.clone() })
    }

    /// Slice `at` of the first axis; `None` where there is none.
    #[must_use]
    pub fn slice(&self, at: usize) -> Option<Self> {
        let ((size, shape), (stride, strides)) =
            (self.shape.split_first()?, self.strides.split_first()?);
        (at < *size).then(|| Self {
            shape: shape.to_vec(),
            strides: strides.to_vec(),
            offset: self.offset + at * stride,
            ..self.clone()
        })
    }

    /// Writes the elements in row-major order, little-endian, through a small buffer.
    ///
    /// # Errors
    /// What `out` says.
    pub fn write_to(&self, out: &mut dyn std::io::Write) -> std::io::Result<()> {
        if self.elements() == 0 {
            return Ok(());
        }
        let width = self.element.size();
        // Trailing axes without gaps are copied in one piece.
        let (mut inner, mut run) = (0, 1_usize);
        for (size, stride) in self.shape.iter().zip(&self.strides).rev() {
            if *size != 1 && *stride != run {
                break;
            }
            run *= size;
            inner += 1;
        }
        let outer = self.shape.len() - inner;
        let mut index = vec![0; outer];
        let mut turned = Vec::new();
        loop {
            let at = index.iter().zip(&self.strides).map(|(at, stride)| at * stride).sum::<usize>();
            let from = (self.offset + at) * width;
            let bytes = self
                .bytes()
                .get(from..from + run * width)
                .ok_or(std::io::ErrorKind::UnexpectedEof)?;
            if self.big_endian {
                for part in bytes.chunks(width << 12) {
                    turned.clear();
                    part.chunks(width).for_each(|element| turned.extend(element.iter().rev()));
                    out.write_all(&turned)?;
                }
            } else {
                out.write_all(bytes)?;
            }
            let mut done = true;
            for (slot, size) in index.iter_mut().zip(&self.shape).rev() {
                *slot += 1;
                if *slot < *size {
                    done = false;
                    break;
                }
                *slot = 0;
            }
            if done {
                return Ok(());
            }
        }
    }

    /// Holds the bytes against the checksum of their container, where it states one.
    ///
    /// # Errors
    /// [`TraceError::Malformed`] with the file and the offset of the damaged entry.
    pub fn verify(&self) -> Result<(), TraceError> {
        self.storage.verify()
    }

    /// The same bytes as another element type of equal size: bf16 that was stored as u16, fp8 as u8.
    ///
    /// # Errors
    /// [`TraceError::Tensor`] where the sizes differ.
    pub fn declared(mut self, element: Element) -> Result<Self, TraceError> {
        if element.size() != self.element.size() {
            let what = format!(
                "is stored as {} of {} bytes and cannot be {} of {}; correct the declaration",
                self.element.name(),
                self.element.size(),
                element.name(),
                element.size()
            );
            return Err(fault(&self.path, &self.name, what));
        }
        self.element = element;
        Ok(self)
    }
}

/// An error about a tensor.
pub(super) fn fault(path: &Path, name: &str, what: String) -> TraceError {
    TraceError::Tensor { path: path.to_path_buf(), tensor: name.to_owned(), what }
}

/// The whole of a map as a storage.
pub(super) fn range(
    path: &Path,
    file: &Arc<super::source::Mapped>,
    range: std::ops::Range<usize>,
) -> Result<Arc<Storage>, TraceError> {
    let len = file.bytes().len();
    let (start, end) = (range.start, range.end);
    Storage::new(Arc::clone(file), range).ok_or_else(|| {
        malformed(path, format!("bytes {start}..{end} lie outside the {len} that are there"))
    })
}
