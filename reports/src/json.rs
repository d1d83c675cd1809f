//! `report.json`: keys in the order of the types, floats in the shortest text that names their bits, lists of plain values on one line.

use std::io::{self, Write};

use serde::Serialize;
use serde_json::ser::{Formatter, Serializer};

use crate::error::ReportError;
use crate::model::Report;

/// Bytes of `report.json`.
///
/// # Errors
/// [`ReportError::Json`] where a value cannot be written as JSON.
pub fn to_bytes(report: &Report) -> Result<Vec<u8>, ReportError> {
    let mut out = Vec::new();
    report.serialize(&mut Serializer::with_formatter(&mut out, Layout::default()))?;
    out.push(b'\n');
    Ok(out)
}

/// Reads a report back. A figure may differ by one unit in its last place from what was written, as the JSON reader rounds.
///
/// # Errors
/// [`ReportError::Json`] with line and column.
pub fn from_bytes(bytes: &[u8]) -> Result<Report, ReportError> {
    Ok(serde_json::from_slice(bytes)?)
}

/// Objects are broken over lines; arrays only where they hold objects or arrays.
#[derive(Default)]
struct Layout {
    depth: usize,
    /// For each open array: a member was broken onto a line of its own.
    arrays: Vec<bool>,
    pending_break: bool,
    has_value: Vec<bool>,
}

impl Layout {
    fn newline<W: ?Sized + Write>(&self, writer: &mut W) -> io::Result<()> {
        writer.write_all(b"\n")?;
        for _ in 0..self.depth {
            writer.write_all(b" ")?;
        }
        Ok(())
    }

    /// An object or array that is a member of an array starts a line.
    fn open<W: ?Sized + Write>(&mut self, writer: &mut W, bracket: &[u8]) -> io::Result<()> {
        if std::mem::take(&mut self.pending_break)
            && let Some(broken) = self.arrays.last_mut()
        {
            *broken = true;
            self.newline(writer)?;
        }
        self.depth += 1;
        writer.write_all(bracket)
    }
}

impl Formatter for Layout {
    fn begin_array<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.open(writer, b"[")?;
        self.arrays.push(false);
        Ok(())
    }

    fn end_array<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.depth -= 1;
        self.pending_break = false;
        if self.arrays.pop() == Some(true) {
            self.newline(writer)?;
        }
        writer.write_all(b"]")
    }

    fn begin_array_value<W: ?Sized + Write>(
        &mut self,
        writer: &mut W,
        first: bool,
    ) -> io::Result<()> {
        self.pending_break = true;
        if first { Ok(()) } else { writer.write_all(b",") }
    }

    fn end_array_value<W: ?Sized + Write>(&mut self, _writer: &mut W) -> io::Result<()> {
        self.pending_break = false;
        Ok(())
    }

    fn begin_object<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.open(writer, b"{")?;
        self.has_value.push(false);
        Ok(())
    }

    fn end_object<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.depth -= 1;
        self.pending_break = false;
        if self.has_value.pop() == Some(true) {
            self.newline(writer)?;
        }
        writer.write_all(b"}")
    }

    fn begin_object_key<W: ?Sized + Write>(
        &mut self,
        writer: &mut W,
        first: bool,
    ) -> io::Result<()> {
        if !first {
            writer.write_all(b",")?;
        }
        self.newline(writer)
    }

    fn begin_object_value<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.pending_break = false;
        if let Some(has) = self.has_value.last_mut() {
            *has = true;
        }
        writer.write_all(b": ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lockstep_traces::Verdict;

    #[test]
    fn plain_lists_stay_on_one_line_and_nothing_changes_in_value() {
        let value =
            serde_json::json!({"a": [1, 2, 3], "b": [{"c": [], "d": {}}, [4, 5]], "e": "x"});
        let mut out = Vec::new();
        value.serialize(&mut Serializer::with_formatter(&mut out, Layout::default())).unwrap();
        let text = String::from_utf8(out).unwrap();
        assert_eq!(
            text,
            "{\n \"a\": [1,2,3],\n \"b\": [\n  {\n   \"c\": [],\n   \"d\": {}\n  },\n  [4,5]\n ],\n \"e\": \"x\"\n}"
        );
        assert_eq!(serde_json::from_str::<serde_json::Value>(&text).unwrap(), value);
    }

    #[test]
    fn a_report_reads_back_and_its_bytes_do_not_change() {
        let report =
            Report::new("t", "lockstep demo", Verdict::Incomparable { why: "nothing".into() });
        let bytes = to_bytes(&report).unwrap();
        let back = from_bytes(&bytes).unwrap();
        assert_eq!(back, report);
        assert_eq!(to_bytes(&back).unwrap(), bytes);
    }
}
