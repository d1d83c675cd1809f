//! Where the bytes of a tensor lie: a range of a map, with the checksum that its container states.

use std::fs::File;
use std::io::{Read, Seek as _, SeekFrom, Write as _};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use crate::TraceError;
use crate::store::fail::{io, malformed};

/// A mapped file.
#[derive(Debug)]
pub(crate) struct Mapped {
    /// The file, or what it was taken out of.
    pub(super) path: PathBuf,
    map: memmap2::Mmap,
}

impl Mapped {
    /// Maps a file.
    pub(crate) fn open(path: &Path) -> Result<Arc<Self>, TraceError> {
        let file = File::open(path).map_err(io(path))?;
        if !file.metadata().map_err(io(path))?.is_file() {
            return Err(malformed(path, "not a file"));
        }
        Ok(Arc::new(Self { path: path.to_path_buf(), map: map(&file).map_err(io(path))? }))
    }

    /// Copies at most `limit` bytes into a temporary file that has no name, and maps it. `Err(None)` where there is more.
    pub(super) fn spool(
        path: &Path,
        mut from: impl Read,
        limit: u64,
    ) -> Result<Arc<Self>, Option<std::io::Error>> {
        let mut file = tempfile::tempfile().map_err(Some)?;
        let mut buffer = vec![0_u8; 1 << 16];
        let mut total = 0_u64;
        loop {
            let read = from.read(&mut buffer).map_err(Some)?;
            if read == 0 {
                break;
            }
            total += read as u64;
            if total > limit {
                return Err(None);
            }
            file.write_all(buffer.get(..read).unwrap_or_default()).map_err(Some)?;
        }
        file.seek(SeekFrom::Start(0)).map_err(Some)?;
        Ok(Arc::new(Self { path: path.to_path_buf(), map: map(&file).map_err(Some)? }))
    }

    /// Every byte.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.map
    }
}

#[expect(unsafe_code, reason = "dumps are larger than memory; only a map reads them in place")]
fn map(file: &File) -> std::io::Result<memmap2::Mmap> {
    // SAFETY: a dump that is compared has been written; whoever cuts it meanwhile ends the process, as with any reader of maps, and
    // no byte pattern is invalid as `u8`.
    unsafe { memmap2::Mmap::map(file) }
}

/// A range of a map.
#[derive(Debug)]
pub(super) struct Storage {
    file: Arc<Mapped>,
    range: Range<usize>,
    /// CRC-32 that the container states, and the name of the entry.
    crc: Option<(u32, String)>,
    checked: OnceLock<Option<u32>>,
}

impl Storage {
    /// A range that must lie in the map.
    pub(super) fn new(file: Arc<Mapped>, range: Range<usize>) -> Option<Arc<Self>> {
        file.bytes().get(range.clone())?;
        Some(Arc::new(Self { file, range, crc: None, checked: OnceLock::new() }))
    }

    /// The same with a checksum that is looked at before the first use.
    pub(super) fn with_crc(
        file: Arc<Mapped>,
        range: Range<usize>,
        crc: u32,
        entry: &str,
    ) -> Option<Arc<Self>> {
        file.bytes().get(range.clone())?;
        let crc = Some((crc, entry.to_owned()));
        Some(Arc::new(Self { file, range, crc, checked: OnceLock::new() }))
    }

    /// The bytes.
    pub(super) fn bytes(&self) -> &[u8] {
        self.file.bytes().get(self.range.clone()).unwrap_or_default()
    }

    /// The map, and where in it this lies.
    pub(super) fn place(&self) -> (&Arc<Mapped>, usize) {
        (&self.file, self.range.start)
    }

    /// Holds the bytes against the stated checksum, once.
    pub(super) fn verify(&self) -> Result<(), TraceError> {
        let Some((stated, entry)) = &self.crc else { return Ok(()) };
        let found = self.checked.get_or_init(|| {
            let mut crc = flate2::Crc::new();
            crc.update(self.bytes());
            (crc.sum() != *stated).then(|| crc.sum())
        });
        match found {
            None => Ok(()),
            Some(found) => Err(malformed(
                &self.file.path,
                format!(
                    "entry `{entry}` at byte {}: its CRC-32 is {found:08x}, the archive says {stated:08x}; the bytes are damaged, copy \
                     the file again",
                    self.range.start
                ),
            )),
        }
    }
}
