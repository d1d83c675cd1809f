//! The file of a response cache: opened, cut where its end is cut, appended to.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{BufRead as _, BufReader, Read as _, Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};

use super::record::{self, Header, Outline};
use super::{Configuration, Response};
use crate::TraceError;
use crate::store::fail::{io, malformed};

/// Longest line that is read: a row of a million recorded tokens stays below.
const MAX_LINE: u64 = 512 << 20;

/// Where a line lies.
#[derive(Debug, Clone, Copy)]
struct Place {
    offset: u64,
    /// Without the newline.
    len: u64,
    line: usize,
}

/// Responses of one configuration. Open, it belongs to this process alone.
#[derive(Debug)]
pub struct ResponseCache {
    path: PathBuf,
    file: File,
    places: BTreeMap<String, Place>,
    end: u64,
    lines: usize,
    broken: bool,
    remarks: Vec<String>,
}

/// What a scan found.
struct Scan {
    header: Option<Header>,
    places: BTreeMap<String, Place>,
    /// End of the last whole line.
    end: u64,
    lines: usize,
    /// Bytes after it.
    tail: u64,
}

impl ResponseCache {
    /// Opens the cache at `path` for `configuration`, or begins it. A cut or damaged last line is cut off.
    /// `binary_sha256` is that of the running executable, where known.
    ///
    /// # Errors
    /// [`TraceError::Malformed`] for a cache of another configuration (with the first key that differs), one that
    /// another process has open, or one that is damaged before its end; [`TraceError::Line`] for a line that is whole
    /// and no record; [`TraceError::Io`].
    pub fn open(
        path: &Path,
        configuration: &Configuration,
        binary_sha256: Option<&str>,
    ) -> Result<Self, TraceError> {
        if let Some(parent) = path.parent() {
            std::fs::create_dir_all(parent).map_err(io(parent))?;
        }
        let mut options = OpenOptions::new();
        let file = options.read(true).append(true).create(true).open(path).map_err(io(path))?;
        if let Err(TryLockError::WouldBlock) = file.try_lock() {
            return Err(malformed(
                path,
                "another process has this response cache open; give each its own --cache",
            ));
        }
        let scan = scan(&file, path)?;
        let mut cache = Self {
            path: path.to_owned(),
            file,
            places: scan.places,
            end: scan.end,
            lines: scan.lines,
            broken: false,
            remarks: Vec::new(),
        };
        if scan.tail > 0 {
            cache.file.set_len(scan.end).map_err(io(path))?;
            let (tail, whole) = (scan.tail, cache.places.len());
            cache.remark(format!("the last {tail} bytes were a cut record and were dropped; {whole} whole responses before it"));
        }
        match scan.header {
            Some(header) => cache.accept(&header, configuration, binary_sha256)?,
            None => cache.begin(configuration, binary_sha256)?,
        }
        Ok(cache)
    }

    fn begin(
        &mut self,
        configuration: &Configuration,
        binary: Option<&str>,
    ) -> Result<(), TraceError> {
        let header = Header {
            schema: record::SCHEMA,
            binary_sha256: binary.map(str::to_owned),
            configuration: configuration.clone(),
        };
        let line = record::header_line(&header).map_err(|source| TraceError::Json {
            path: self.path.clone(),
            line: 1,
            source,
        })?;
        self.write(&line).map(|_| ())
    }

    fn accept(
        &mut self,
        header: &Header,
        configuration: &Configuration,
        binary: Option<&str>,
    ) -> Result<(), TraceError> {
        if header.schema != record::SCHEMA {
            let what = format!(
                "response cache of schema {}, this build reads {}; give another --cache",
                header.schema,
                record::SCHEMA
            );
            return Err(malformed(&self.path, what));
        }
        if let Some(difference) = header.configuration.first_difference(configuration) {
            let what = format!(
                "responses of another configuration: {difference}; give another --cache, or the old settings"
            );
            return Err(malformed(&self.path, what));
        }
        if header.binary_sha256.as_deref() != binary {
            self.remark("begun by another build of this version".to_owned());
        }
        Ok(())
    }

    fn remark(&mut self, text: String) {
        let name = self.path.file_name().map(|name| name.to_string_lossy().into_owned());
        self.remarks.push(format!("{}: {text}", name.unwrap_or_default()));
    }

    /// File.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Responses held.
    #[must_use]
    pub fn len(&self) -> usize {
        self.places.len()
    }

    /// True without responses.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    /// What was read around, one line each.
    #[must_use]
    pub fn remarks(&self) -> &[String] {
        &self.remarks
    }

    /// Is there a response under `key`?
    #[must_use]
    pub fn has(&self, key: &str) -> bool {
        self.places.contains_key(key)
    }

    /// The response under `key`; `None` where there is none.
    ///
    /// # Errors
    /// [`TraceError::Line`] where the line no longer is what it was when the file was opened; [`TraceError::Io`].
    pub fn get(&mut self, key: &str) -> Result<Option<Response>, TraceError> {
        let Some(place) = self.places.get(key).copied() else { return Ok(None) };
        let fault =
            |what: String| TraceError::Line { path: self.path.clone(), line: place.line, what };
        let len =
            usize::try_from(place.len).map_err(|_| fault("the line is too long".to_owned()))?;
        // The scan has seen that the file holds this many bytes.
        let mut bytes = vec![0_u8; len];
        self.file.seek(SeekFrom::Start(place.offset)).map_err(io(&self.path))?;
        self.file.read_exact(&mut bytes).map_err(io(&self.path))?;
        let body = record::body(&bytes)
            .ok_or_else(|| fault("changed since it was opened: its sum differs".to_owned()))?;
        let response = record::response(body, &self.path).map_err(fault)?;
        if response.key != key {
            return Err(fault("changed since it was opened: another key".to_owned()));
        }
        Ok(Some(response))
    }

    /// Appends a response in one write.
    ///
    /// # Errors
    /// [`TraceError::Malformed`] for a key that is there already; [`TraceError::Io`], after which the file ends where
    /// it ended before and nothing more is accepted.
    pub fn append(&mut self, response: &Response) -> Result<(), TraceError> {
        if self.has(&response.key) {
            let what = format!("sample `{}` is there already", response.sample.sample_id);
            return Err(malformed(&self.path, what));
        }
        let line = record::response_line(response, &self.path)?;
        let place = self.write(&line)?;
        self.places.insert(response.key.clone(), place);
        Ok(())
    }

    fn write(&mut self, line: &[u8]) -> Result<Place, TraceError> {
        if self.broken {
            return Err(malformed(&self.path, "an earlier write failed; resume to go on"));
        }
        if let Err(error) = self.file.write_all(line) {
            self.broken = true;
            // Without this the next opening cuts the tail, which is as good.
            let _cut = self.file.set_len(self.end);
            return Err(io(&self.path)(error));
        }
        self.lines += 1;
        let len = line.len() as u64;
        let place = Place { offset: self.end, len: len.saturating_sub(1), line: self.lines };
        self.end += len;
        Ok(place)
    }
}

/// Walks the lines. What follows the last line whose sum holds is the tail, if no good line comes after it.
fn scan(file: &File, path: &Path) -> Result<Scan, TraceError> {
    let mut reader = BufReader::with_capacity(1 << 18, file);
    reader.seek(SeekFrom::Start(0)).map_err(io(path))?;
    let mut scan = Scan { header: None, places: BTreeMap::new(), end: 0, lines: 0, tail: 0 };
    let mut bytes = Vec::new();
    let mut number = 0;
    loop {
        bytes.clear();
        let read =
            reader.by_ref().take(MAX_LINE).read_until(b'\n', &mut bytes).map_err(io(path))?;
        if read == 0 {
            return Ok(scan);
        }
        number += 1;
        let fault = |what: String| TraceError::Line { path: path.to_owned(), line: number, what };
        let body = bytes.strip_suffix(b"\n").and_then(record::body);
        let Some(body) = body else {
            scan.tail += read as u64;
            continue;
        };
        if scan.tail > 0 {
            return Err(fault("the records before this one are damaged; restore the file, or give another --cache".to_owned()));
        }
        let place = Place { offset: scan.end, len: read as u64 - 1, line: number };
        match serde_json::from_slice::<Outline>(body) {
            Ok(Outline::Header(header)) if number == 1 => scan.header = Some(header),
            Ok(Outline::Response { key }) if number > 1 => {
                if let Some(other) = scan.places.insert(key, place) {
                    return Err(fault(format!(
                        "the same key as line {}; one response a key",
                        other.line
                    )));
                }
            }
            Ok(_) => {
                return Err(fault(
                    "a record out of order: the header comes first and once".to_owned(),
                ));
            }
            Err(error) => return Err(fault(format!("no record of this schema: {error}"))),
        }
        scan.end += read as u64;
        scan.lines = number;
    }
}
