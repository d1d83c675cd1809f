//! The KLD base file: header, tokens, records; read through a map.
//!
//! `_logits_`, n_ctx (u32), n_vocab (i32), n_chunk (i32), the tokens of all chunks (i32 each), then for each chunk one record for each
//! scored position. Position p of a chunk is scored where n_ctx/2 <= p < n_ctx - 1; its record tells token p + 1. A record has
//! `2 * ((n_vocab + 1) / 2) + 4` values of 16 bits. Native byte order of the writer; little-endian is read.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::record::{KldRecord, RECORD_HEADER};
use crate::TraceError;
use crate::store::fail::malformed;
use crate::tensor_files::source::Mapped;

/// First bytes of a file.
pub(super) const MAGIC: &[u8; 8] = b"_logits_";
/// Bytes before the tokens.
pub(super) const HEADER: usize = 20;
/// Largest context and vocabulary that are read.
const MOST: u32 = 1 << 24;

/// The three sizes of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KldShape {
    /// Tokens of a chunk, at least 3.
    pub n_ctx: usize,
    /// Entries of a record.
    pub n_vocab: usize,
    /// Chunks that the header names.
    pub n_chunk: usize,
}

impl KldShape {
    /// First scored position of a chunk.
    #[must_use]
    pub const fn first(&self) -> usize {
        self.n_ctx / 2
    }

    /// Scored positions of a chunk.
    #[must_use]
    pub const fn scored(&self) -> usize {
        self.n_ctx - 1 - self.n_ctx / 2
    }

    /// Bytes of a record.
    #[must_use]
    pub const fn record_bytes(&self) -> usize {
        RECORD_HEADER + 4 * self.n_vocab.div_ceil(2)
    }
}

/// An opened file. Every length was held against the file; the tokens are ids below `n_vocab`.
#[derive(Debug)]
pub struct KldFile {
    path: PathBuf,
    map: Arc<Mapped>,
    shape: KldShape,
    whole: usize,
    data: usize,
    cut: Option<String>,
}

/// Does this file begin as KLD base files do? False for folders and what cannot be read.
#[must_use]
pub fn is_kld(path: &Path) -> bool {
    use std::io::Read as _;
    let mut magic = [0; MAGIC.len()];
    let read = std::fs::File::open(path).and_then(|mut file| file.read_exact(&mut magic));
    read.is_ok() && &magic == MAGIC
}

impl KldFile {
    /// Maps a file and checks its header, its length, its tokens, and the first and the last whole record. A file that ends inside its
    /// records is opened up to its last whole chunk ([`KldFile::cut`] says so).
    ///
    /// # Errors
    /// [`TraceError::Malformed`] with the byte and the reason; [`TraceError::Io`].
    pub fn open(path: &Path) -> Result<Self, TraceError> {
        let map = Mapped::open(path)?;
        let bytes = map.bytes();
        let length = bytes.len();
        let shape = header(path, bytes)?;
        let fault = |what: String| malformed(path, what);
        let KldShape { n_ctx, n_vocab, n_chunk } = shape;
        let data = n_ctx
            .checked_mul(n_chunk)
            .and_then(|tokens| tokens.checked_mul(4)?.checked_add(HEADER))
            .filter(|data| *data <= length)
            .ok_or_else(|| {
                fault(format!(
                    "n_ctx {n_ctx} x n_chunk {n_chunk} tokens do not fit the {length} bytes of the file: cut inside its tokens, or \
                     its header is wrong"
                ))
            })?;
        let chunk = shape.record_bytes() * shape.scored();
        let have = length - data;
        let whole = (have / chunk).min(n_chunk);
        let beyond = chunk.checked_mul(n_chunk).map_or(0, |full| have.saturating_sub(full));
        if beyond > 0 {
            return Err(fault(format!(
                "{beyond} bytes follow the {n_chunk} chunks of {} records of {} bytes that n_ctx {n_ctx} and n_vocab {n_vocab} make: \
                 another program's variant of the layout, or a wrong header; only llama.cpp's own layout is read",
                shape.scored(),
                shape.record_bytes()
            )));
        }
        if whole == 0 {
            return Err(fault(format!(
                "{have} bytes of records, and the first chunk takes {chunk}: cut before its first chunk ended, or a wrong header; \
                 write it again"
            )));
        }
        let cut = (whole < n_chunk).then(|| {
            format!(
                "cut: {whole} of {n_chunk} chunks are whole, chunk {} ends after {} of its {chunk} bytes of records; the rest is not read",
                whole + 1,
                have - whole * chunk
            )
        });
        let file = Self { path: path.to_path_buf(), map, shape, whole, data, cut };
        file.check_tokens()?;
        file.check_sum(0, 0)?;
        file.check_sum(whole - 1, shape.scored() - 1)?;
        Ok(file)
    }

    /// The file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Sizes as the header gives them.
    #[must_use]
    pub const fn shape(&self) -> KldShape {
        self.shape
    }

    /// Whole chunks; the others are not read.
    #[must_use]
    pub const fn chunks(&self) -> usize {
        self.whole
    }

    /// What is missing at the end, in one line; `None` for a whole file.
    #[must_use]
    pub fn cut(&self) -> Option<&str> {
        self.cut.as_deref()
    }

    /// The token at a position of a chunk (both from 0), as it is in the text: the program may have fed BOS at position 0.
    #[must_use]
    pub fn token(&self, chunk: usize, position: usize) -> Option<u32> {
        if position >= self.shape.n_ctx || chunk >= self.shape.n_chunk {
            return None;
        }
        let at = HEADER + 4 * (chunk * self.shape.n_ctx + position);
        let bytes = self.map.bytes().get(at..at + 4)?;
        Some(u32::from_le_bytes(bytes.try_into().ok()?))
    }

    /// The record of a scored position: `index` counts from position `n_ctx/2` of a whole chunk. `None` outside of them.
    #[must_use]
    pub fn record(&self, chunk: usize, index: usize) -> Option<KldRecord<'_>> {
        if chunk >= self.whole || index >= self.shape.scored() {
            return None;
        }
        let size = self.shape.record_bytes();
        let start = self.data + (chunk * self.shape.scored() + index) * size;
        KldRecord::of(self.map.bytes().get(start..start + size)?, self.shape.n_vocab)
    }

    /// The record, which must be one that the programs can have written.
    ///
    /// # Errors
    /// [`TraceError::Malformed`] with chunk (from 1), position and reason.
    pub fn sound_record(&self, chunk: usize, index: usize) -> Result<KldRecord<'_>, TraceError> {
        let record = self.record(chunk, index);
        match record.and_then(|record| record.fault()) {
            None => record.ok_or_else(|| self.damaged(chunk, index, "outside the file")),
            Some(fault) => Err(self.damaged(chunk, index, &fault)),
        }
    }

    fn check_tokens(&self) -> Result<(), TraceError> {
        for chunk in 0..self.shape.n_chunk {
            for position in 0..self.shape.n_ctx {
                let token = self.token(chunk, position).unwrap_or(u32::MAX);
                if usize::try_from(token).map_or(true, |token| token >= self.shape.n_vocab) {
                    return Err(malformed(
                        &self.path,
                        format!(
                            "token {token} of chunk {} at position {position} is no id below n_vocab {}: damaged, or a wrong header",
                            chunk + 1,
                            self.shape.n_vocab
                        ),
                    ));
                }
            }
        }
        Ok(())
    }

    fn check_sum(&self, chunk: usize, index: usize) -> Result<(), TraceError> {
        match self.sound_record(chunk, index)?.fault_of_sum() {
            None => Ok(()),
            Some(fault) => Err(self.damaged(chunk, index, &fault)),
        }
    }

    fn damaged(&self, chunk: usize, index: usize, what: &str) -> TraceError {
        malformed(
            &self.path,
            format!(
                "the record of chunk {}, position {} is none that llama-perplexity writes ({what}): damaged, a wrong header, or another \
                 program's variant of the layout",
                chunk + 1,
                self.shape.first() + index
            ),
        )
    }
}

fn header(path: &Path, bytes: &[u8]) -> Result<KldShape, TraceError> {
    let fault = |what: String| malformed(path, what);
    if !bytes.starts_with(MAGIC) {
        let first = String::from_utf8_lossy(bytes.get(..8).unwrap_or(bytes)).into_owned();
        return Err(fault(format!(
            "no KLD base file: it begins with {first:?} instead of \"_logits_\"; `llama-perplexity --save-all-logits FILE` writes one"
        )));
    }
    let number = |at: usize| -> Option<u32> {
        Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
    };
    let (Some(n_ctx), Some(n_vocab), Some(n_chunk)) = (number(8), number(12), number(16)) else {
        return Err(fault(format!("cut inside its header of {HEADER} bytes; write it again")));
    };
    if n_ctx > MOST && (3..=MOST).contains(&n_ctx.swap_bytes()) {
        return Err(fault(
            "written on a big-endian machine; only little-endian files are read".to_owned(),
        ));
    }
    let sized = |name: &str, value: u32, at: usize, least: u32, most: u32| {
        let found = usize::try_from(value).ok().filter(|_| (least..=most).contains(&value));
        found.ok_or_else(|| {
            fault(format!(
                "{name} at byte {at} is {}; {least} to {most} is possible: damaged",
                value.cast_signed()
            ))
        })
    };
    Ok(KldShape {
        n_ctx: sized("n_ctx", n_ctx, 8, 3, MOST)?,
        n_vocab: sized("n_vocab", n_vocab, 12, 1, MOST)?,
        n_chunk: sized("n_chunk", n_chunk, 16, 1, i32::MAX.cast_unsigned())?,
    })
}
