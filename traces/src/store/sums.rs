//! Checksums of a run's files: a damaged byte must never come out as a different number.
//!
//! A table has a CRC-32 for each block of its file, kept in the manifest, so that a reader checks what it touches and
//! no more. A batch of the running stream carries its CRC-32 itself, in padding after its flatbuffer that every
//! reader of Arrow skips.

use std::fs::File;
use std::io::{BufReader, Read, Seek as _, SeekFrom};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use flate2::Crc;
use parquet::errors::ParquetError;
use parquet::file::reader::{ChunkReader, Length};

use super::fail::{io, malformed};
use crate::TraceError;
use crate::manifest::TableSums;

const BLOCK: usize = 256 << 10;

/// Marks the padding of a message that holds its checksum.
const SEAL: &[u8; 12] = b"lockstep-crc";

fn crc32(parts: &[&[u8]]) -> u32 {
    let mut crc = Crc::new();
    for part in parts {
        crc.update(part);
    }
    crc.sum()
}

/// Puts the checksum into a stream message (marker, length, flatbuffer, body): 16 bytes of padding after the
/// flatbuffer, of which the last four are the CRC-32 of all other bytes.
pub(super) fn seal(message: &mut Vec<u8>) -> Option<()> {
    let header = u32::from_le_bytes(message.get(4..8)?.try_into().ok()?);
    let end = usize::try_from(header).ok()?.checked_add(8).filter(|&end| end <= message.len())?;
    message.get_mut(4..8)?.copy_from_slice(&header.checked_add(16)?.to_le_bytes());
    message.splice(end..end, [SEAL.as_slice(), &[0; 4]].concat());
    let (head, rest) = message.split_at(end + 12);
    let sum = crc32(&[head, rest.get(4..)?]).to_le_bytes();
    message.get_mut(end + 12..end + 16)?.copy_from_slice(&sum);
    Some(())
}

/// Does the message carry the checksum of its bytes?
pub(super) fn sealed(message: &[u8]) -> bool {
    let check = || {
        let header = u32::from_le_bytes(message.get(4..8)?.try_into().ok()?);
        let (head, rest) =
            message.split_at_checked(usize::try_from(header).ok()?.checked_add(4)?)?;
        let (sum, body) = rest.split_first_chunk::<4>()?;
        Some(head.ends_with(SEAL) && u32::from_le_bytes(*sum) == crc32(&[head, body]))
    };
    check().unwrap_or(false)
}

/// Checksums of a whole file.
pub(super) fn sum_file(file: &mut File, path: &Path) -> Result<TableSums, TraceError> {
    file.seek(SeekFrom::Start(0)).map_err(io(path))?;
    let mut sums = TableSums { bytes: 0, block_bytes: BLOCK as u64, crc32: String::new() };
    let mut block = Vec::with_capacity(BLOCK);
    loop {
        block.clear();
        file.by_ref().take(BLOCK as u64).read_to_end(&mut block).map_err(io(path))?;
        if block.is_empty() {
            return Ok(sums);
        }
        sums.bytes += block.len() as u64;
        sums.crc32.extend(hex_digits(crc32(&[&block])));
    }
}

fn hex_digits(sum: u32) -> impl Iterator<Item = char> {
    let nibbles = (0..8).rev().map(move |place| (sum >> (4 * place)) & 15);
    nibbles.filter_map(|nibble| char::from_digit(nibble, 16))
}

/// A table file whose bytes are checked before anyone decodes them.
#[derive(Clone)]
pub(crate) struct SummedFile(Arc<Inner>);

struct Inner {
    file: Mutex<File>,
    len: u64,
    block: u64,
    /// One per block; none where the manifest has no sums.
    sums: Vec<u32>,
    checked: Vec<AtomicBool>,
}

impl SummedFile {
    /// Opens a table; `sums` are those of the manifest, where it has them.
    ///
    /// # Errors
    /// [`TraceError::Malformed`] where the file's length is not the one that was written; [`TraceError::Io`].
    pub(crate) fn open(path: &Path, sums: Option<&TableSums>) -> Result<Self, TraceError> {
        let file = File::open(path).map_err(io(path))?;
        let len = file.metadata().map_err(io(path))?.len();
        let (mut block, mut parsed) = (BLOCK as u64, Vec::new());
        if let Some(sums) = sums {
            if sums.bytes != len {
                return Err(malformed(
                    path,
                    format!("has {len} bytes, but {} were written; copy it again", sums.bytes),
                ));
            }
            block = sums.block_bytes;
            parsed = parse(sums, path)?;
        }
        let checked = parsed.iter().map(|_| AtomicBool::new(false)).collect();
        Ok(Self(Arc::new(Inner { file: Mutex::new(file), len, block, sums: parsed, checked })))
    }

    /// Are its bytes checked against sums of the manifest?
    pub(super) fn summed(&self) -> bool {
        !self.0.sums.is_empty()
    }

    fn read(&self, start: u64, len: u64) -> std::io::Result<Vec<u8>> {
        let end = start.checked_add(len).filter(|&end| end <= self.0.len);
        let end = end.ok_or(std::io::ErrorKind::UnexpectedEof)?;
        if len == 0 {
            return Ok(Vec::new());
        }
        let (first, last) = (start / self.0.block, (end - 1) / self.0.block);
        for number in first..=last {
            self.check(number)?;
        }
        self.read_plain(start, end - start)
    }

    fn read_plain(&self, start: u64, len: u64) -> std::io::Result<Vec<u8>> {
        let mut bytes = vec![0; usize::try_from(len).map_err(|_| std::io::ErrorKind::OutOfMemory)?];
        // A poisoned lock guards nothing but a file offset, which is set here.
        let mut file = self.0.file.lock().unwrap_or_else(PoisonError::into_inner);
        file.seek(SeekFrom::Start(start))?;
        file.read_exact(&mut bytes)?;
        Ok(bytes)
    }

    fn check(&self, number: u64) -> std::io::Result<()> {
        let index = usize::try_from(number).unwrap_or(usize::MAX);
        let (Some(&expected), Some(checked)) = (self.0.sums.get(index), self.0.checked.get(index))
        else {
            return Ok(());
        };
        if checked.load(Ordering::Relaxed) {
            return Ok(());
        }
        let start = number * self.0.block;
        let len = self.0.block.min(self.0.len - start);
        if crc32(&[&self.read_plain(start, len)?]) != expected {
            let what = format!(
                "bytes {start} to {} are damaged (checksum differs); copy it again or record the run again",
                start + len
            );
            return Err(std::io::Error::other(what));
        }
        checked.store(true, Ordering::Relaxed);
        Ok(())
    }
}

fn parse(sums: &TableSums, path: &Path) -> Result<Vec<u32>, TraceError> {
    let (digits, rest) = sums.crc32.as_bytes().as_chunks::<8>();
    let parsed: Option<Vec<u32>> = digits
        .iter()
        .map(|eight| u32::from_str_radix(std::str::from_utf8(eight).ok()?, 16).ok())
        .collect();
    let blocks =
        sums.bytes.checked_div(sums.block_bytes).map(|_| sums.bytes.div_ceil(sums.block_bytes));
    parsed
        .filter(|parsed| rest.is_empty() && Some(parsed.len() as u64) == blocks)
        .ok_or_else(|| malformed(path, "the manifest's checksums of it are damaged"))
}

impl Length for SummedFile {
    fn len(&self) -> u64 {
        self.0.len
    }
}

impl ChunkReader for SummedFile {
    type T = BufReader<Cursor>;

    fn get_read(&self, start: u64) -> parquet::errors::Result<Self::T> {
        Ok(BufReader::new(Cursor { file: self.clone(), at: start }))
    }

    fn get_bytes(&self, start: u64, length: usize) -> parquet::errors::Result<Bytes> {
        let bytes = self.read(start, length as u64);
        bytes.map(Into::into).map_err(|error| ParquetError::External(Box::new(error)))
    }
}

/// Sequential reading with the same checks.
pub(crate) struct Cursor {
    file: SummedFile,
    at: u64,
}

impl Read for Cursor {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let len = (buffer.len() as u64).min(self.file.0.len.saturating_sub(self.at));
        let bytes = self.file.read(self.at, len)?;
        self.at += len;
        bytes.as_slice().read(buffer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_have_the_published_crc() {
        // The check value of CRC-32 (ISO-HDLC) over "123456789" is CBF43926.
        let mut file = tempfile::tempfile().unwrap();
        std::io::Write::write_all(&mut file, b"123456789").unwrap();
        let sums = sum_file(&mut file, Path::new("x")).unwrap();
        assert_eq!((sums.bytes, sums.crc32.as_str()), (9, "cbf43926"));
    }

    #[test]
    fn a_file_of_several_blocks_is_checked_block_by_block() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("table");
        let mut bytes: Vec<u8> = (0..2 * BLOCK + 10).map(|i| (i % 251) as u8).collect();
        std::fs::write(&path, &bytes).unwrap();
        let sums = sum_file(&mut File::open(&path).unwrap(), &path).unwrap();
        assert_eq!(sums.crc32.len(), 24);
        bytes[BLOCK + 5] ^= 1;
        std::fs::write(&path, &bytes).unwrap();
        let file = SummedFile::open(&path, Some(&sums)).unwrap();
        assert_eq!(file.get_bytes(3, 4).unwrap().as_ref(), &bytes[3..7]);
        assert_eq!(file.get_bytes(2 * BLOCK as u64, 10).unwrap().as_ref(), &bytes[2 * BLOCK..]);
        let error = file.get_bytes(BLOCK as u64 - 1, 2).unwrap_err().to_string();
        assert!(error.contains("bytes 262144 to 524288 are damaged"), "{error}");
        let mut all = Vec::new();
        assert!(file.get_read(0).unwrap().read_to_end(&mut all).is_err());
        assert!(file.get_bytes(2 * BLOCK as u64, 11).is_err());
        assert!(file.get_bytes(u64::MAX, 2).is_err());
    }

    #[test]
    fn sums_that_are_no_sums_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("table");
        std::fs::write(&path, b"12").unwrap();
        for (bytes, block_bytes, crc32) in [
            (3, 8, "00000000"),
            (2, 8, ""),
            (2, 8, "0000000g"),
            (2, 1, "00000000"),
            (2, 0, "00000000"),
        ] {
            let sums = TableSums { bytes, block_bytes, crc32: crc32.to_owned() };
            assert!(SummedFile::open(&path, Some(&sums)).is_err(), "{sums:?}");
        }
    }

    #[test]
    fn a_sealed_message_is_the_same_message_with_padding() {
        let mut message = [&[0xFF; 4][..], &8_u32.to_le_bytes(), b"headhead", b"body"].concat();
        assert!(!sealed(&message));
        seal(&mut message).unwrap();
        assert_eq!(message.len(), 20 + 16);
        assert_eq!(message[4..8], 24_u32.to_le_bytes());
        assert!(message.ends_with(b"body") && sealed(&message));
        for at in 0..message.len() {
            message[at] ^= 4;
            assert!(!sealed(&message), "byte {at}");
            message[at] ^= 4;
        }
        for short in 0..message.len() {
            assert!(!sealed(&message[..short]));
        }
    }
}
