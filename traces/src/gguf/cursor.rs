//! Reading a header without believing it: nothing is taken before it is known to be there.

use super::GgufError;

/// Longest key, tensor name or text that is read.
const LONGEST: u64 = 1 << 24;

/// A place in the bytes of a file.
pub(super) struct Cursor<'a> {
    bytes: &'a [u8],
    at: usize,
    /// Counts and lengths are u32 instead of u64.
    short: bool,
}

impl<'a> Cursor<'a> {
    pub(super) const fn new(bytes: &'a [u8], at: usize) -> Self {
        Self { bytes, at, short: false }
    }

    /// Version 1: counts and lengths of four bytes.
    pub(super) const fn shorten(&mut self) {
        self.short = true;
    }

    pub(super) const fn at(&self) -> usize {
        self.at
    }

    pub(super) fn left(&self) -> usize {
        self.bytes.len().saturating_sub(self.at)
    }

    /// Bytes that a count or length takes.
    pub(super) const fn length_size(&self) -> u64 {
        if self.short { 4 } else { 8 }
    }

    pub(super) fn take(&mut self, size: u64, what: &str) -> Result<&'a [u8], GgufError> {
        let rest = self.bytes.get(self.at..).unwrap_or_default();
        let taken = usize::try_from(size).ok().and_then(|size| rest.get(..size));
        let taken = taken.ok_or_else(|| GgufError::Cut {
            at: self.at,
            what: what.to_owned(),
            wanted: size,
            left: rest.len(),
        })?;
        self.at += taken.len();
        Ok(taken)
    }

    pub(super) fn array<const N: usize>(&mut self, what: &str) -> Result<[u8; N], GgufError> {
        let (at, left) = (self.at, self.left());
        let bytes = self.take(N as u64, what)?;
        bytes.first_chunk().copied().ok_or_else(|| GgufError::Cut {
            at,
            what: what.to_owned(),
            wanted: N as u64,
            left,
        })
    }

    pub(super) fn u32(&mut self, what: &str) -> Result<u32, GgufError> {
        self.array(what).map(u32::from_le_bytes)
    }

    pub(super) fn u64(&mut self, what: &str) -> Result<u64, GgufError> {
        self.array(what).map(u64::from_le_bytes)
    }

    /// A count of items that take at least `least` bytes each, so that a lie is seen before anything is allocated.
    pub(super) fn count(&mut self, what: &str, least: u64, limit: u64) -> Result<usize, GgufError> {
        let at = self.at;
        let count = if self.short { u64::from(self.u32(what)?) } else { self.u64(what)? };
        let fits = self.left() as u64 / least.max(1);
        let lie = |bound: String| GgufError::Count { at, what: what.to_owned(), count, bound };
        if count > limit {
            return Err(lie(format!("the limit of {limit}")));
        }
        if count > fits {
            return Err(lie(format!("the {fits} that fit in the rest of the file")));
        }
        usize::try_from(count).map_err(|_| lie("this machine can address".to_owned()))
    }

    pub(super) fn text(&mut self, what: &str) -> Result<&'a str, GgufError> {
        let length = self.count(&format!("the length of {what}"), 1, LONGEST)?;
        let at = self.at;
        let bytes = self.take(length as u64, what)?;
        std::str::from_utf8(bytes).map_err(|_| GgufError::Text { at, what: what.to_owned() })
    }
}
