//! Lines of a text file that may be compressed, badly ended or cut, and what had to be read around.

use std::fs::File;
use std::io::{BufRead, BufReader, ErrorKind, Read};
use std::path::{Path, PathBuf};

use flate2::bufread::MultiGzDecoder;

use crate::TraceError;

/// Longest line that is read; a row of a whole vocabulary stays well below.
const MAX_LINE: u64 = 32 << 20;
const BUFFER: usize = 1 << 18;
const GZIP_MAGIC: [u8; 2] = [0x1f, 0x8b];
/// Remark on a packed file.
pub(crate) const GZIP: &str = "read through gzip";
const BOM: &[u8] = b"\xef\xbb\xbf";

/// What the file has besides its lines.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Oddities {
    gzip: bool,
    bom: bool,
    crlf: bool,
    blank: Option<usize>,
    nul_bytes: usize,
    gzip_cut: bool,
}

impl Oddities {
    /// One line each.
    pub(crate) fn remarks(&self) -> Vec<String> {
        let mut remarks = Vec::new();
        let mut say = |present: bool, text: String| {
            if present {
                remarks.push(text);
            }
        };
        say(self.gzip, GZIP.to_owned());
        say(self.bom, "UTF-8 byte order mark skipped".to_owned());
        say(self.crlf, "lines end in CR LF".to_owned());
        if let Some(line) = self.blank {
            say(true, format!("blank line {line} skipped"));
        }
        say(
            self.nul_bytes > 0,
            format!("{} NUL bytes at the end (left by a crash) skipped", self.nul_bytes),
        );
        say(self.gzip_cut, "the gzip stream is cut; what it holds was read".to_owned());
        remarks
    }

    /// The file does not end as its writer ends it.
    pub(crate) fn cut(&self) -> bool {
        self.gzip_cut || self.nul_bytes > 0
    }
}

/// Reads a file line by line.
pub(crate) struct Lines {
    path: PathBuf,
    reader: Box<dyn BufRead>,
    buffer: Vec<u8>,
    line: usize,
    ended: bool,
    nul_line: Option<usize>,
    odd: Oddities,
}

impl Lines {
    /// Opens `path`, unpacking it where its first bytes are those of gzip.
    ///
    /// # Errors
    /// [`TraceError::Io`].
    pub(crate) fn open(path: &Path) -> Result<Self, TraceError> {
        let io = |source| TraceError::Io { path: path.to_owned(), source };
        let mut file = BufReader::with_capacity(BUFFER, File::open(path).map_err(io)?);
        let gzip = file.fill_buf().map_err(io)?.starts_with(&GZIP_MAGIC);
        let reader: Box<dyn BufRead> = if gzip {
            Box::new(BufReader::with_capacity(BUFFER, MultiGzDecoder::new(file)))
        } else {
            Box::new(file)
        };
        let odd = Oddities { gzip, ..Oddities::default() };
        let path = path.to_owned();
        Ok(Self { path, reader, buffer: Vec::new(), line: 0, ended: false, nul_line: None, odd })
    }

    /// The next line that is not blank, without its end, and its 1-based number.
    ///
    /// # Errors
    /// [`TraceError::Io`], [`TraceError::Malformed`] for damaged gzip, [`TraceError::Line`] for NUL bytes that are
    /// not at the end and for a line that is too long.
    pub(crate) fn next(&mut self) -> Result<Option<(usize, &[u8])>, TraceError> {
        loop {
            if self.ended || !self.fill()? {
                return Ok(None);
            }
            let (start, end) = self.content();
            if start < end {
                if let Some(line) = self.nul_line.filter(|&line| line < self.line) {
                    let what = "NUL bytes before other lines: the file is damaged here".to_owned();
                    return Err(TraceError::Line { path: self.path.clone(), line, what });
                }
                return Ok(Some((self.line, &self.buffer[start..end])));
            }
        }
    }

    /// What was met so far.
    pub(crate) fn oddities(&self) -> &Oddities {
        &self.odd
    }

    fn fill(&mut self) -> Result<bool, TraceError> {
        self.buffer.clear();
        match self.reader.by_ref().take(MAX_LINE).read_until(b'\n', &mut self.buffer) {
            Ok(_) => {}
            Err(source) if self.odd.gzip && source.kind() == ErrorKind::UnexpectedEof => {
                self.odd.gzip_cut = true;
                self.ended = true;
            }
            Err(source)
                if self.odd.gzip
                    && matches!(
                        source.kind(),
                        ErrorKind::InvalidInput | ErrorKind::InvalidData
                    ) =>
            {
                return Err(self.damaged(&source));
            }
            Err(source) => return Err(TraceError::Io { path: self.path.clone(), source }),
        }
        if self.buffer.is_empty() {
            return Ok(false);
        }
        self.line += 1;
        if self.buffer.len() as u64 >= MAX_LINE {
            return Err(self.error(format!("a line of more than {MAX_LINE} bytes")));
        }
        Ok(true)
    }

    fn damaged(&self, source: &std::io::Error) -> TraceError {
        TraceError::Malformed {
            path: self.path.clone(),
            what: format!("the gzip stream is damaged after line {}: {source}", self.line),
        }
    }

    fn error(&self, what: String) -> TraceError {
        TraceError::Line { path: self.path.clone(), line: self.line, what }
    }

    /// Range of the line without byte order mark, line end, NUL tail and outer white space.
    fn content(&mut self) -> (usize, usize) {
        let text = &self.buffer;
        let mut start = 0;
        if self.line == 1 && text.starts_with(BOM) {
            self.odd.bom = true;
            start = BOM.len();
        }
        let mut end = text.len();
        if text.ends_with(b"\r\n") {
            self.odd.crlf = true;
        }
        let before = self.odd.nul_bytes;
        while end > start && matches!(text[end - 1], b'\n' | b'\r' | b' ' | b'\t' | 0) {
            self.odd.nul_bytes += usize::from(text[end - 1] == 0);
            end -= 1;
        }
        while start < end && matches!(text[start], b' ' | b'\t' | b'\r') {
            start += 1;
        }
        let nul = self.odd.nul_bytes > before;
        if nul {
            self.nul_line = Some(self.line);
        } else if start == end && self.odd.blank.is_none() {
            self.odd.blank = Some(self.line);
        }
        (start, end)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn read(bytes: &[u8]) -> Result<(Vec<(usize, String)>, Oddities), TraceError> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x");
        std::fs::write(&path, bytes).unwrap();
        let mut lines = Lines::open(&path)?;
        let mut seen = Vec::new();
        while let Some((number, text)) = lines.next()? {
            seen.push((number, String::from_utf8_lossy(text).into_owned()));
        }
        Ok((seen, lines.oddities().clone()))
    }

    fn gzip(bytes: &[u8]) -> Vec<u8> {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    }

    #[test]
    fn marks_line_ends_and_blank_lines_are_read_around_and_said() {
        let (lines, odd) = read(b"\xef\xbb\xbf{1}\r\n{2}\r\n\r\n{3}").unwrap();
        assert_eq!(lines, [(1, "{1}".into()), (2, "{2}".into()), (4, "{3}".into())]);
        assert_eq!(
            odd.remarks(),
            ["UTF-8 byte order mark skipped", "lines end in CR LF", "blank line 3 skipped"]
        );
        assert!(!odd.cut());
    }

    #[test]
    fn a_tail_of_nul_bytes_is_counted() {
        let (lines, odd) = read(b"{1}\n\0\0\0\0\n").unwrap();
        assert_eq!(lines, [(1, "{1}".into())]);
        assert_eq!(odd.remarks(), ["4 NUL bytes at the end (left by a crash) skipped"]);
        assert!(odd.cut());
    }

    #[test]
    fn nul_bytes_before_other_lines_are_damage() {
        assert!(matches!(read(b"{1}\n\0\0\n{2}\n"), Err(TraceError::Line { line: 2, .. })));
        assert!(matches!(read(b"{1}\n{\"a\0\0\n{2}\n"), Err(TraceError::Line { line: 2, .. })));
    }

    #[test]
    fn gzip_is_known_by_its_first_bytes_and_a_cut_stream_gives_what_it_holds() {
        let text: String =
            (0..5000).map(|row| format!("{{{row}:{}}}\n", row * 7919 % 1013)).collect();
        let packed = gzip(text.as_bytes());
        let (lines, odd) = read(&packed).unwrap();
        assert_eq!((lines.len(), odd.cut()), (5000, false));
        let (lines, odd) = read(&packed[..packed.len() / 2]).unwrap();
        assert!(odd.cut() && lines.len() > 100 && lines.len() < 5000, "{}", lines.len());
        assert_eq!(lines[100].1, format!("{{100:{}}}", 100 * 7919 % 1013));
    }

    #[test]
    fn damaged_gzip_is_an_error() {
        let text: String =
            (0..5000).map(|row| format!("{{{row}:{}}}\n", row * 7919 % 1013)).collect();
        let mut packed = gzip(text.as_bytes());
        let end = packed.len() - 6;
        packed[end] ^= 0x55;
        assert!(matches!(read(&packed), Err(TraceError::Malformed { .. })));
    }
}
