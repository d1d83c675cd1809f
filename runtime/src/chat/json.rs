//! The `tojson` filter as transformers defines it: Python's `json.dumps` without ASCII and HTML escapes.

use std::io;

use minijinja::value::Kwargs;
use minijinja::{Error, ErrorKind, Value};
use serde::Serialize as _;
use serde_json::Serializer;
use serde_json::ser::{Formatter, PrettyFormatter};

/// Python's default separators: `, ` and `: `.
struct Spaced;

impl Formatter for Spaced {
    fn begin_array_value<W: io::Write + ?Sized>(
        &mut self,
        writer: &mut W,
        first: bool,
    ) -> io::Result<()> {
        if first { Ok(()) } else { writer.write_all(b", ") }
    }

    fn begin_object_key<W: io::Write + ?Sized>(
        &mut self,
        writer: &mut W,
        first: bool,
    ) -> io::Result<()> {
        if first { Ok(()) } else { writer.write_all(b", ") }
    }

    fn begin_object_value<W: io::Write + ?Sized>(&mut self, writer: &mut W) -> io::Result<()> {
        writer.write_all(b": ")
    }
}

pub(super) fn tojson(value: &Value, options: Kwargs) -> Result<String, Error> {
    let indent: Option<usize> = options.get("indent")?;
    options.assert_all_used()?;
    let mut bytes = Vec::new();
    let written = match indent {
        None => value.serialize(&mut Serializer::with_formatter(&mut bytes, Spaced)),
        Some(width) => {
            let blanks = " ".repeat(width.min(16));
            let formatter = PrettyFormatter::with_indent(blanks.as_bytes());
            value.serialize(&mut Serializer::with_formatter(&mut bytes, formatter))
        }
    };
    let bad = |what: String| Error::new(ErrorKind::InvalidOperation, what);
    written.map_err(|error| bad(error.to_string()))?;
    String::from_utf8(bytes).map_err(|error| bad(error.to_string()))
}
