//! Records of a file, one after the other: JSON Lines a line at a time, anything else as whole documents.

use std::path::Path;

use super::super::json::{JsonFault, Reader};
use super::super::node::Node;
use super::super::read::documents;
use crate::TraceError;
use crate::foreign::lines::Lines;

/// How a file ended, and what was read around.
#[derive(Debug, Default)]
pub(super) struct Ending {
    /// The last record was cut, and left out.
    pub(super) cut: bool,
    pub(super) remarks: Vec<String>,
}

/// Takes each record; the number is its line, where the file is read by lines.
pub(super) type Visit<'a> = dyn FnMut(&Node, Option<usize>) -> Result<(), TraceError> + 'a;

/// Hands every record of `path` to `visit`. Where the first line holds whole documents, one line is in memory at a time.
///
/// # Errors
/// As [`documents`]; [`TraceError::Line`] for a line that is cut and is not the last; what `visit` returns.
pub(super) fn each(path: &Path, visit: &mut Visit<'_>) -> Result<Ending, TraceError> {
    if by_lines(path)? { stream(path, visit) } else { whole(path, visit) }
}

/// Does the first line hold whole documents? A line too long for a line is a document of its own.
fn by_lines(path: &Path) -> Result<bool, TraceError> {
    let mut lines = Lines::open(path)?;
    match lines.next() {
        Ok(Some((_, text))) => {
            let mut reader = Reader::new(text);
            loop {
                match reader.document() {
                    Ok(Some(_)) => {}
                    Ok(None) => return Ok(true),
                    Err(_) => return Ok(false),
                }
            }
        }
        Ok(None) | Err(TraceError::Line { .. }) => Ok(false),
        Err(error) => Err(error),
    }
}

fn stream(path: &Path, visit: &mut Visit<'_>) -> Result<Ending, TraceError> {
    let mut lines = Lines::open(path)?;
    let mut cut: Option<(usize, usize)> = None;
    let mut odd = 0;
    let fault = |line, what: String| TraceError::Line { path: path.to_owned(), line, what };
    while let Some((line, text)) = lines.next()? {
        if let Some((line, _)) = cut {
            let what = "the line is cut and is not the last: the file is damaged here, or a record takes several lines";
            return Err(fault(line, what.to_owned()));
        }
        let mut reader = Reader::new(text);
        loop {
            match reader.document() {
                Ok(Some(node)) => visit(&node, Some(line))?,
                Ok(None) => break,
                Err(JsonFault::Cut) => {
                    cut = Some((line, text.len()));
                    break;
                }
                Err(JsonFault::Bad(at, what)) => {
                    return Err(fault(line, format!("{what} (byte {at} of the line)")));
                }
            }
        }
        odd += reader.oddities().1;
    }
    let mut remarks = lines.oddities().remarks();
    if let Some((line, bytes)) = cut {
        remarks
            .push(format!("the last record is cut ({bytes} bytes at line {line}), and left out"));
    }
    remarks.extend(oddities(odd));
    Ok(Ending { cut: cut.is_some() || lines.oddities().cut(), remarks })
}

fn whole(path: &Path, visit: &mut Visit<'_>) -> Result<Ending, TraceError> {
    let found = documents(path)?;
    for node in &found.nodes {
        visit(node, None)?;
    }
    let mut remarks = found.remarks;
    remarks.extend(oddities(found.oddity_count));
    Ok(Ending { cut: !found.complete, remarks })
}

fn oddities(count: usize) -> Option<String> {
    (count > 0).then(|| {
        format!("{count} values are no JSON by the letter (`inspect` of the file lists them)")
    })
}
