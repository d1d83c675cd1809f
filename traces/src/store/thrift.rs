//! The Thrift structures of a Parquet file, walked before its decoder believes their counts.
//!
//! The `parquet` crate steps over a field that it does not know, and takes elements of a list of booleans for nothing: two bytes can
//! then stand for 2^31 steps, and lists within lists multiply that. No structure of a footer or a page header holds such a list.

use std::path::Path;

use parquet::arrow::ProjectionMask;
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use parquet::file::metadata::{ColumnChunkMetaData, ParquetMetaData};
use parquet::file::reader::{ChunkReader as _, Length as _};

use super::fail::{arrow, malformed};
use super::sums::SummedFile;
use crate::TraceError;

/// Levels within one another; a footer has fewer than ten.
const DEEPEST: usize = 32;
/// Footer length and magic.
const END: u64 = 8;
/// Bytes in which a page header lies that has no long statistics.
const HEADER: u64 = 16 << 10;
/// Field of a page header: bytes of the page behind it.
const PAGE_BYTES: i64 = 3;

/// Opens a table for its decoder. Where the file has no checksums of its own, its footer is walked first.
///
/// # Errors
/// [`TraceError::Malformed`] with what no writer writes; [`TraceError::Arrow`] from the decoder.
pub(crate) fn open(
    file: &SummedFile,
    path: &Path,
) -> Result<ParquetRecordBatchReaderBuilder<SummedFile>, TraceError> {
    if !file.summed() {
        footer(file, path)?;
    }
    ParquetRecordBatchReaderBuilder::try_new(file.clone()).map_err(arrow(path))
}

/// Walks the headers of those pages that will be decoded: columns of `mask` in row groups that `wanted` takes.
///
/// # Errors
/// As [`open`].
pub(crate) fn check_pages(
    file: &SummedFile,
    path: &Path,
    metadata: &ParquetMetaData,
    mask: &ProjectionMask,
    wanted: impl Fn(usize) -> bool,
) -> Result<(), TraceError> {
    if file.summed() {
        return Ok(());
    }
    let groups = metadata.row_groups().iter().enumerate().filter(|(number, _)| wanted(*number));
    for (_, group) in groups {
        for (leaf, column) in group.columns().iter().enumerate() {
            if mask.leaf_included(leaf) {
                pages(file, path, column)?;
            }
        }
    }
    Ok(())
}

fn footer(file: &SummedFile, path: &Path) -> Result<(), TraceError> {
    let bytes = |start: u64, length: u64| {
        let length = usize::try_from(length).unwrap_or(usize::MAX);
        file.get_bytes(start, length).map_err(arrow(path))
    };
    let at = file.len().saturating_sub(END);
    let end = bytes(at, END.min(file.len()))?;
    // Another end is the decoder's to name.
    let Some((length, b"PAR1")) = end.split_first_chunk::<4>() else { return Ok(()) };
    let length = u64::from(u32::from_le_bytes(*length));
    let Some(start) = at.checked_sub(length) else { return Ok(()) };
    let mut walk = Walk { bytes: &bytes(start, length)?, at: 0 };
    walk.structure(DEEPEST, &mut |_, _| {})
        .map_err(|what| malformed(path, format!("footer: {what}; write or copy it again")))
}

/// Walks the headers of a column's pages, as far as these lie inside the file.
fn pages(file: &SummedFile, path: &Path, column: &ColumnChunkMetaData) -> Result<(), TraceError> {
    let dictionary = column.dictionary_page_offset().filter(|offset| *offset > 0);
    let start = dictionary.unwrap_or(i64::MAX).min(column.data_page_offset());
    let end = start.saturating_add(column.compressed_size());
    let (Ok(mut at), Ok(end)) = (u64::try_from(start), u64::try_from(end)) else { return Ok(()) };
    let end = end.min(file.len());
    while at < end {
        let (header, page) = match header(file, path, at, HEADER.min(end - at))? {
            Err(_) if end - at > HEADER => header(file, path, at, end - at)?,
            found => found,
        }
        .map_err(|what| {
            let name = column.column_path().string();
            malformed(path, format!("column `{name}`, page at byte {at}: {what}"))
        })?;
        at = at.saturating_add(header).saturating_add(page);
    }
    Ok(())
}

/// Bytes of a page's header, and of the page.
fn header(
    file: &SummedFile,
    path: &Path,
    at: u64,
    length: u64,
) -> Result<Result<(u64, u64), String>, TraceError> {
    let length = usize::try_from(length).unwrap_or(usize::MAX);
    let bytes = file.get_bytes(at, length).map_err(arrow(path))?;
    let mut walk = Walk { bytes: &bytes, at: 0 };
    let mut page = None;
    let walked = walk.structure(DEEPEST, &mut |field, value| {
        if field == PAGE_BYTES {
            page = u64::try_from(value).ok();
        }
    });
    let page = page.ok_or_else(|| "its header states no length".to_owned());
    Ok(walked.and_then(|()| Ok((walk.at as u64, page?))))
}

/// A walk over the compact protocol. Every element of a collection takes at least one byte, so no walk is longer than its bytes.
struct Walk<'b> {
    bytes: &'b [u8],
    at: usize,
}

impl Walk<'_> {
    fn byte(&mut self) -> Result<u8, String> {
        let byte = self.bytes.get(self.at).copied();
        self.at += 1;
        byte.ok_or_else(|| "cut inside a structure".to_owned())
    }

    fn skip(&mut self, length: usize) -> Result<(), String> {
        self.at = self.at.saturating_add(length);
        if self.at > self.bytes.len() { Err("cut inside a value".to_owned()) } else { Ok(()) }
    }

    fn number(&mut self) -> Result<u64, String> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err("a number of more than ten bytes".to_owned())
    }

    /// A whole number written with its sign in the last bit.
    fn signed(&mut self) -> Result<i64, String> {
        let value = self.number()?;
        Ok((value >> 1).cast_signed() ^ -(value & 1).cast_signed())
    }

    /// Walks a structure; its whole numbers are handed on with the number of their field.
    fn structure(&mut self, depth: usize, seen: &mut dyn FnMut(i64, i64)) -> Result<(), String> {
        let mut field = 0_i64;
        loop {
            let head = self.byte()?;
            let kind = head & 0x0f;
            if kind == 0 {
                return Ok(());
            }
            field = match head >> 4 {
                0 => self.signed()?,
                more => field.saturating_add(i64::from(more)),
            };
            match kind {
                // The kind is the value.
                1 | 2 => {}
                4..=6 => seen(field, self.signed()?),
                kind => self.value(kind, depth)?,
            }
        }
    }

    fn value(&mut self, kind: u8, depth: usize) -> Result<(), String> {
        let Some(depth) = depth.checked_sub(1) else {
            return Err(format!("structures within one another beyond {DEEPEST} levels"));
        };
        match kind {
            3 => self.skip(1),
            4..=6 => self.number().map(|_| ()),
            7 => self.skip(8),
            8 => {
                let length = self.number()?;
                self.skip(usize::try_from(length).unwrap_or(usize::MAX))
            }
            9 | 10 => {
                let head = self.byte()?;
                let count = match head >> 4 {
                    15 => self.number()?,
                    short => u64::from(short),
                };
                self.elements(count, &[head & 0x0f], depth)
            }
            11 => {
                let count = self.number()?;
                let kinds = if count > 0 { self.byte()? } else { 0 };
                self.elements(count, &[kinds >> 4, kinds & 0x0f], depth)
            }
            12 => self.structure(depth, &mut |_, _| {}),
            13 => self.skip(16),
            other => Err(format!("a value of unknown kind {other}")),
        }
    }

    fn elements(&mut self, count: u64, kinds: &[u8], depth: usize) -> Result<(), String> {
        let left = self.bytes.len().saturating_sub(self.at) as u64;
        if count > left {
            return Err(format!("a list of {count} elements in {left} bytes"));
        }
        if count > 0 && kinds.iter().any(|kind| matches!(kind, 1 | 2)) {
            return Err("a list of booleans, which no footer and no page header has".to_owned());
        }
        for _ in 0..count {
            for kind in kinds {
                self.value(*kind, depth)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn walked(bytes: &[u8]) -> Result<Vec<(i64, i64)>, String> {
        let mut numbers = Vec::new();
        let mut walk = Walk { bytes, at: 0 };
        walk.structure(DEEPEST, &mut |field, value| numbers.push((field, value)))?;
        assert_eq!(walk.at, bytes.len());
        Ok(numbers)
    }

    #[test]
    fn structures_are_walked_by_the_letter_of_the_compact_protocol() {
        // Field 1 (i32) = -2, field 3 (binary) = "ab", field 4 (list of two i64), field 5 = true, field 20 (i16, long form) = 150.
        let bytes = [0x15, 3, 0x28, 2, b'a', b'b', 0x19, 0x26, 2, 4, 0x11, 0x04, 40, 0xac, 0x02, 0];
        assert_eq!(walked(&bytes), Ok(vec![(1, -2), (20, 150)]));
        // A map of one i32 to a structure that holds a double.
        let map = [0x1b, 1, 0x5c, 8, 0x17, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        assert_eq!(walked(&map), Ok(vec![]));
    }

    #[test]
    fn counts_that_no_bytes_stand_behind_are_refused() {
        for (bytes, part) in [
            (
                &[0x19, 0xf5, 0xff, 0xff, 0xff, 0xff, 0x07, 0][..],
                "a list of 2147483647 elements in 1 bytes",
            ),
            (&[0x19, 0x21, 1, 1, 0], "a list of booleans"),
            (&[0x1b, 1, 0x51, 8, 0], "a list of booleans"),
            (&[0x18, 200, 1, 0], "cut inside a value"),
            (&[0x15], "cut inside a structure"),
            (&[0x1e, 0], "unknown kind 14"),
        ] {
            let found = walked(bytes).unwrap_err();
            assert!(found.contains(part), "{found}");
        }
        // Lists of one list each, 40 levels deep.
        let deep: Vec<u8> = std::iter::once(0x19).chain([0x19; 40]).collect();
        assert!(walked(&deep).unwrap_err().contains("beyond 32 levels"));
    }
}
