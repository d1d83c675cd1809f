//! Entries of a zip archive, with the bounds that a hostile one would break.

use std::io::Cursor;
use std::path::Path;
use std::sync::Arc;

use zip::{CompressionMethod, ZipArchive};

use super::source::{Mapped, Storage};
use crate::TraceError;
use crate::store::fail::malformed;

/// Entries at most.
const ENTRY_LIMIT: usize = 1 << 20;
/// Bytes that all deflated entries of one archive may become.
const INFLATED_LIMIT: u64 = 1 << 36;
/// Above this size an entry may not be packed tighter than [`RATIO_LIMIT`]; arrays of zeros are, but not such large ones.
const LARGE: u64 = 1 << 28;
const RATIO_LIMIT: u64 = 200;

/// One entry: a name without folders above it, and where its bytes lie.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) name: String,
    start: usize,
    end: usize,
    deflated: bool,
    size: u64,
    crc: u32,
}

/// The entries of an archive in the order of its directory.
pub(super) fn entries(path: &Path, file: &Arc<Mapped>) -> Result<Vec<Entry>, TraceError> {
    let mut archive = ZipArchive::new(Cursor::new(file.bytes())).map_err(|error| {
        malformed(path, format!("not a whole zip archive ({error}); copy it again"))
    })?;
    if archive.len() > ENTRY_LIMIT {
        let what = format!("{} entries; {ENTRY_LIMIT} at most are read", archive.len());
        return Err(malformed(path, what));
    }
    let mut found = Vec::new();
    for index in 0..archive.len() {
        let entry = archive
            .by_index_raw(index)
            .map_err(|error| malformed(path, format!("zip entry {index}: {error}")))?;
        let name =
            entry.name().map_err(|error| malformed(path, format!("zip entry {index}: {error}")))?;
        let name = name.into_owned();
        let at = entry.header_start();
        let fault = |what: String| {
            malformed(path, format!("entry `{}` at byte {at}: {what}", name.escape_debug()))
        };
        let climbs = name.split('/').any(|part| part == "..");
        if climbs || name.starts_with('/') || name.contains(['\\', '\0', ':']) {
            return Err(fault("its name leaves the archive; the file is not a dump".to_owned()));
        }
        if entry.is_dir() {
            continue;
        }
        if entry.encrypted() {
            return Err(fault("is encrypted".to_owned()));
        }
        let deflated = match entry.compression() {
            CompressionMethod::Stored => false,
            CompressionMethod::DEFLATE => true,
            other => {
                return Err(fault(format!(
                    "is packed by {other}; stored and deflated entries are read"
                )));
            }
        };
        let (size, packed) = (entry.size(), entry.compressed_size());
        let start = entry.data_start().and_then(|start| usize::try_from(start).ok());
        let end = start.and_then(|start| start.checked_add(usize::try_from(packed).ok()?));
        let inside = start.zip(end).filter(|(_, end)| *end <= file.bytes().len());
        let (start, end) = inside.ok_or_else(|| {
            fault(format!("claims {packed} bytes and reaches past the end of the file"))
        })?;
        if !deflated && size != packed {
            return Err(fault(format!("is stored in {packed} bytes and claims {size}")));
        }
        if size > LARGE && size / RATIO_LIMIT > packed {
            return Err(fault(format!(
                "claims to become {size} bytes out of {packed}: refused as a zip bomb"
            )));
        }
        let crc = entry.crc32();
        found.push(Entry { name, start, end, deflated, size, crc });
    }
    apart(path, &found)?;
    Ok(found)
}

/// No two entries share bytes or a name, and together they stay below the limit.
fn apart(path: &Path, entries: &[Entry]) -> Result<(), TraceError> {
    let mut by_place: Vec<&Entry> =
        entries.iter().filter(|entry| entry.end > entry.start).collect();
    by_place.sort_by_key(|entry| entry.start);
    for pair in by_place.windows(2) {
        if let [a, b] = pair
            && b.start < a.end
        {
            let what = format!(
                "entries `{}` and `{}` share bytes from {} on: refused as a zip bomb",
                a.name, b.name, b.start
            );
            return Err(malformed(path, what));
        }
    }
    let mut names: Vec<&str> = entries.iter().map(|entry| entry.name.as_str()).collect();
    names.sort_unstable();
    if let Some([twice, _]) = names.windows(2).find(|pair| matches!(pair, [a, b] if a == b)) {
        return Err(malformed(path, format!("two entries are called `{twice}`")));
    }
    let inflated = entries
        .iter()
        .filter(|entry| entry.deflated)
        .fold(0_u64, |sum, entry| sum.saturating_add(entry.size));
    if inflated > INFLATED_LIMIT {
        return Err(malformed(
            path,
            format!("its entries claim to become {inflated} bytes: refused as a zip bomb"),
        ));
    }
    Ok(())
}

impl Entry {
    /// The bytes: where they lie if stored (their checksum is looked at before the first use), else inflated and checked now.
    pub(super) fn storage(
        &self,
        path: &Path,
        file: &Arc<Mapped>,
    ) -> Result<Arc<Storage>, TraceError> {
        let fault = |what: String| {
            malformed(path, format!("entry `{}` at byte {}: {what}", self.name, self.start))
        };
        let outside = || fault("lies outside the file".to_owned());
        if !self.deflated {
            return Storage::with_crc(Arc::clone(file), self.start..self.end, self.crc, &self.name)
                .ok_or_else(outside);
        }
        let packed = file.bytes().get(self.start..self.end).ok_or_else(outside)?;
        let inflate = flate2::read::DeflateDecoder::new(packed);
        let spool = Mapped::spool(path, inflate, self.size).map_err(|error| match error {
            Some(error) => fault(format!("cannot be inflated: {error}; copy the file again")),
            None => fault(format!(
                "becomes more than the {} bytes that it claims: refused as a zip bomb",
                self.size
            )),
        })?;
        let length = spool.bytes().len();
        if length as u64 != self.size {
            return Err(fault(format!("becomes {length} bytes and claims {}", self.size)));
        }
        let storage =
            Storage::with_crc(spool, 0..length, self.crc, &self.name).ok_or_else(outside)?;
        storage.verify()?;
        Ok(storage)
    }
}
