//! Files of one JSON object a line, with lines among them that are none.

use std::path::{Path, PathBuf};

use super::fields::Fields;
use super::tidy::tidy;
use crate::TraceError;
use crate::foreign::lines::Lines;
use crate::store::fail::malformed;

/// Most rows of one file; a benchmark has tens, an evaluation thousands.
const MAX_ROWS: usize = 1 << 20;
/// Most bytes of lines that are kept in memory.
const MAX_BYTES: usize = 1 << 30;
/// Characters of a polluted line that are kept.
const HEAD: usize = 80;

/// A line that is no row of its file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Polluted {
    /// 1-based.
    pub line: usize,
    /// Why it is none.
    pub what: String,
    /// Its first 80 characters.
    pub head: String,
}

/// Rows of a JSON Lines artifact, and the lines that are none.
#[derive(Debug, Clone, PartialEq)]
pub struct Rows<T> {
    /// File.
    pub path: PathBuf,
    /// Rows in the order of the file.
    pub rows: Vec<T>,
    /// Lines that are no rows: facts about the file, to be judged by an audit.
    pub polluted: Vec<Polluted>,
    /// Line that is cut, where the last one is.
    pub cut: Option<usize>,
    /// What was read around, one line each.
    pub remarks: Vec<String>,
}

/// Where a row stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Place {
    /// 1-based line.
    pub(super) line: usize,
    /// 0-based, blank lines not counted, polluted lines counted.
    pub(super) index: usize,
}

/// Reads all rows of `path`. `row` says why an object is no row of this kind of file; such an object and everything
/// that is no object are kept as [`Polluted`].
///
/// # Errors
/// [`TraceError::Io`]; [`TraceError::Malformed`] for a file beyond the limits and for damaged gzip;
/// [`TraceError::Line`] for a line that is too long.
pub(super) fn read<T>(
    path: &Path,
    mut row: impl FnMut(Place, Fields) -> Result<T, String>,
) -> Result<Rows<T>, TraceError> {
    let mut lines = Lines::open(path)?;
    let mut read = Rows {
        path: path.to_owned(),
        rows: Vec::new(),
        polluted: Vec::new(),
        cut: None,
        remarks: Vec::new(),
    };
    let (mut index, mut bytes, mut tally) = (0, 0_usize, Tally::default());
    while let Some((line, text)) = lines.next()? {
        if let Some(line) = read.cut.take() {
            read.polluted.push(pollution(line, "the object is cut", b"{"));
        }
        bytes = bytes.saturating_add(text.len());
        if index >= MAX_ROWS || bytes > MAX_BYTES {
            return Err(malformed(
                path,
                format!("more than {MAX_ROWS} rows or {MAX_BYTES} bytes of rows: split the file"),
            ));
        }
        let parsed = parse(text, &mut tally);
        match parsed {
            Ok(fields) => match checked(Place { line, index }, fields, &mut row) {
                Ok(row) => read.rows.push(row),
                Err(what) => read.polluted.push(pollution(line, &what, text)),
            },
            Err(Why::Cut) => read.cut = Some(line),
            Err(Why::NoObject) => {
                read.polluted.push(pollution(line, "the line is no JSON object", text));
            }
        }
        index += 1;
    }
    read.remarks = lines.oddities().remarks();
    read.remarks.extend(tally.remarks());
    if let Some(line) = read.cut {
        read.remarks.push(format!("the last line ({line}) is cut"));
    }
    Ok(read)
}

fn checked<T>(
    place: Place,
    fields: Fields,
    row: &mut impl FnMut(Place, Fields) -> Result<T, String>,
) -> Result<T, String> {
    match fields.twice() {
        Some(key) => Err(format!("`{key}` stands twice")),
        None => row(place, fields),
    }
}

/// Why a line is no object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Why {
    /// It opens one and ends before it closes.
    Cut,
    /// It is something else.
    NoObject,
}

/// What lines had to be changed.
#[derive(Debug, Default)]
pub(super) struct Tally {
    lossy: usize,
    controls: usize,
    non_finite: usize,
}

impl Tally {
    fn remarks(&self) -> Vec<String> {
        let say = |count: usize, what: &str| (count > 0).then(|| format!("{count} {what}"));
        [
            say(self.lossy, "rows hold bytes that are no UTF-8, read as U+FFFD"),
            say(self.controls, "control characters stand unescaped inside strings"),
            say(self.non_finite, "numbers are not finite, read as absent"),
        ]
        .into_iter()
        .flatten()
        .collect()
    }
}

/// One line as an object: strictly, then tidied.
pub(super) fn parse(text: &[u8], tally: &mut Tally) -> Result<Fields, Why> {
    if let Ok(fields) = serde_json::from_slice(text) {
        return Ok(fields);
    }
    let tidied = tidy(text);
    match serde_json::from_str(&tidied.text) {
        Ok(fields) => {
            tally.lossy += usize::from(tidied.lossy);
            tally.controls += tidied.controls;
            tally.non_finite += tidied.non_finite;
            Ok(fields)
        }
        Err(error) if error.is_eof() && text.starts_with(b"{") => Err(Why::Cut),
        Err(_) => Err(Why::NoObject),
    }
}

fn pollution(line: usize, what: &str, text: &[u8]) -> Polluted {
    let text = text.get(..text.len().min(4 * HEAD)).unwrap_or_default();
    let head = String::from_utf8_lossy(text).chars().take(HEAD).collect();
    Polluted { line, what: what.to_owned(), head }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_text(text: &[u8]) -> Rows<(usize, usize, String)> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.jsonl");
        std::fs::write(&path, text).unwrap();
        read(&path, |place, fields| Ok((place.line, place.index, fields.text("id")?))).unwrap()
    }

    #[test]
    fn lines_that_are_no_rows_are_kept_with_their_numbers() {
        let text = b"\r 10%|# | 3/30\n{\"id\":\"a\"}\n\n{\"name\":\"b\"}\n[1]\n{\"id\":\"c\",\"id\":\"d\"}\n{\"id\":\"e\"}\n";
        let read = read_text(text);
        assert_eq!(read.rows, [(2, 1, "a".to_owned()), (7, 5, "e".to_owned())]);
        let found: Vec<_> = read.polluted.iter().map(|p| (p.line, p.what.as_str())).collect();
        assert_eq!(
            found,
            [
                (1, "the line is no JSON object"),
                (4, "the object has no `id`"),
                (5, "the line is no JSON object"),
                (6, "`id` stands twice"),
            ]
        );
        assert_eq!(read.polluted[0].head, "10%|# | 3/30");
        assert_eq!(read.cut, None);
    }

    #[test]
    fn a_cut_last_line_is_a_state_and_a_cut_middle_line_is_pollution() {
        let read = read_text(b"{\"id\":\"a\"}\n{\"id\":\"b");
        assert_eq!((read.rows.len(), read.cut, read.polluted.len()), (1, Some(2), 0));
        let read = read_text(b"{\"id\":\"a\n{\"id\":\"b\"}\n");
        assert_eq!((read.rows.len(), read.cut), (1, None));
        assert_eq!(
            (read.polluted[0].line, read.polluted[0].what.as_str()),
            (1, "the object is cut")
        );
    }

    #[test]
    fn untidy_rows_are_read_and_counted() {
        let read = read_text(b"{\"id\":\"a\x02\xff\",\"t\":nan}\n");
        assert_eq!(read.rows[0].2, "a\u{2}\u{fffd}");
        assert_eq!(read.remarks.len(), 3, "{:?}", read.remarks);
    }
}
