//! A safetensors file written tensor by tensor, so that a cache of any size passes through a small buffer.

use std::collections::BTreeMap;
use std::io::{BufWriter, Write};
use std::path::Path;

use serde_json::{Map, Value, json};

use super::fail::{io, malformed};
use super::format::replace_file;
use crate::TraceError;
use crate::tensor_files::Element;

/// Writes the bytes of one tensor.
type WriteBytes<'a> = dyn Fn(&mut dyn Write) -> std::io::Result<()> + 'a;

/// One tensor and what writes its little-endian bytes.
pub(crate) struct Streamed<'a> {
    pub(crate) name: String,
    pub(crate) element: Element,
    pub(crate) shape: Vec<usize>,
    pub(crate) write: Box<WriteBytes<'a>>,
}

impl<'a> Streamed<'a> {
    /// A table of positions or rows, `[heads, count]`.
    pub(crate) fn table(name: &str, heads: &'a [Vec<u32>]) -> Self {
        let count = heads.first().map_or(0, Vec::len);
        let write = move |out: &mut dyn Write| {
            heads.iter().flatten().try_for_each(|value| out.write_all(&value.to_le_bytes()))
        };
        Self {
            name: name.to_owned(),
            element: Element::I32,
            shape: vec![heads.len(), count],
            write: Box::new(write),
        }
    }

    fn bytes(&self) -> Option<usize> {
        self.shape.iter().try_fold(self.element.size(), |bytes, &size| bytes.checked_mul(size))
    }
}

/// Writes `tensors` by falling element size, then by name, so that every element lies at a multiple of its size.
pub(crate) fn write_streamed(
    path: &Path,
    metadata: &BTreeMap<String, String>,
    mut tensors: Vec<Streamed<'_>>,
) -> Result<(), TraceError> {
    let order = |tensor: &Streamed<'_>| std::cmp::Reverse(tensor.element.size());
    tensors.sort_by(|a, b| order(a).cmp(&order(b)).then_with(|| a.name.cmp(&b.name)));
    if let Some([twice, _]) =
        tensors.windows(2).find(|two| matches!(two, [a, b] if a.name == b.name))
    {
        return Err(malformed(path, format!("two tensors would be called `{}`", twice.name)));
    }
    let mut header = Map::new();
    header.insert("__metadata__".to_owned(), json!(metadata));
    let mut offset = 0_usize;
    for tensor in &tensors {
        let word = tensor.element.safetensors();
        let end = tensor
            .bytes()
            .and_then(|bytes| offset.checked_add(bytes))
            .ok_or_else(|| malformed(path, "more bytes than can be addressed"))?;
        header.insert(
            tensor.name.clone(),
            json!({"dtype": word, "shape": tensor.shape, "data_offsets": [offset, end]}),
        );
        offset = end;
    }
    let mut header = Value::Object(header).to_string().into_bytes();
    header.resize(header.len().next_multiple_of(8), b' ');
    if let Some(parent) = path.parent() {
        std::fs::create_dir_all(parent).map_err(io(parent))?;
    }
    replace_file(path, |file| {
        let mut out = BufWriter::with_capacity(1 << 20, file);
        out.write_all(&(header.len() as u64).to_le_bytes()).map_err(io(path))?;
        out.write_all(&header).map_err(io(path))?;
        for tensor in &tensors {
            (tensor.write)(&mut out).map_err(io(path))?;
        }
        out.flush().map_err(io(path))
    })
}
