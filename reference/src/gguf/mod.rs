//! GGUF files through candle's own reader.
//!
//! The header is first held against the file by the shared format reader, which bounds every length; then candle reads it again, and the
//! two must agree on name, shape, element type and place of every tensor. Names, keys and row order are translated here, apart from the
//! runtime; blocks become numbers in candle.

mod blocks;
mod config;
mod names;

use std::fs::File;
use std::io::Cursor;
use std::path::Path;

use candle_core::quantized::gguf_file::Content;
use lockstep_traces::TraceError;
use lockstep_traces::gguf::{GgufError, GgufHeader};
use memmap2::Mmap;

use crate::ReferenceError;

pub(crate) use blocks::{Stored, halves_apart, rounded_blocks};
pub(crate) use config::read_config;
pub(crate) use names::{heads_in_pairs, stored_name};

/// Divisors of the rotary frequencies; no weight of a layer.
pub(crate) const ROPE_DIVISORS: &str = "rope_freqs.weight";

/// A mapped file, and what candle and the shared reader agree it holds.
pub(crate) struct Opened {
    pub(crate) map: Mmap,
    pub(crate) content: Content,
    pub(crate) header: GgufHeader,
}

/// Maps and reads a file.
///
/// # Errors
/// A file that contradicts itself, or on which the two readers differ.
#[expect(unsafe_code, reason = "mapping a file is unsafe by definition")]
pub(crate) fn open(path: &Path) -> Result<Opened, ReferenceError> {
    let io = |source| ReferenceError::Io { path: path.to_path_buf(), source };
    let file = File::open(path).map_err(io)?;
    let damaged = |source: GgufError| TraceError::Gguf { path: path.to_path_buf(), source };
    if file.metadata().map_err(io)?.len() == 0 {
        return Err(damaged(GgufError::Magic(String::new())).into());
    }
    // SAFETY: the map is read-only and lives as long as the weights. A file that is truncated while it is being read is outside what
    // any mapped reader can guard against; every range is checked against the map by the header's reader.
    let map = unsafe { Mmap::map(&file) }.map_err(io)?;
    let header = GgufHeader::parse(&map).map_err(damaged)?;
    let content = Content::read(&mut Cursor::new(&map[..]))?;
    let opened = Opened { map, content, header };
    opened.agree(path)?;
    Ok(opened)
}

impl Opened {
    fn agree(&self, path: &Path) -> Result<(), ReferenceError> {
        let differ = |tensor: &str, what: String| ReferenceError::Weights {
            path: path.to_path_buf(),
            tensor: tensor.to_owned(),
            what,
        };
        for (name, tensor) in &self.header.tensors {
            let Some(info) = self.content.tensor_infos.get(name) else {
                return Err(differ(name, "is not found by candle's reader".to_owned()));
            };
            let start = self.content.tensor_data_offset.saturating_add(info.offset);
            let bytes = info.shape.elem_count() / info.ggml_dtype.block_size()
                * info.ggml_dtype.type_size();
            let same = info.shape.dims() == tensor.shape()
                && start == tensor.range.start as u64
                && bytes == tensor.range.len();
            if !same {
                let what = format!(
                    "candle reads {:?} {:?} at byte {start}, the header says {} {:?} at {}",
                    info.ggml_dtype,
                    info.shape.dims(),
                    tensor.element,
                    tensor.shape(),
                    tensor.range.start
                );
                return Err(differ(name, what));
            }
        }
        if self.header.tensors.len() == self.content.tensor_infos.len() {
            return Ok(());
        }
        let what = format!(
            "candle's reader finds {} tensors, {} are described",
            self.content.tensor_infos.len(),
            self.header.tensors.len()
        );
        Err(differ("(header)", what))
    }
}
