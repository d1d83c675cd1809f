//! `.npy`: the header is a Python dictionary literal of three known keys; it is parsed as that and never evaluated.

use std::path::Path;
use std::sync::Arc;

use super::element::Element;
use super::source::Mapped;
use super::tensor::{PlainTensor, count, range};
use crate::TraceError;
use crate::store::fail::malformed;

/// What the file starts with.
pub(super) const MAGIC: &[u8] = b"\x93NUMPY";
/// Bytes of a header at most: a shape of 64 axes needs far fewer.
const HEADER_LIMIT: usize = 1 << 16;

/// What a header says.
#[derive(Debug, PartialEq, Eq)]
struct Header {
    element: Element,
    big_endian: bool,
    fortran: bool,
    shape: Vec<usize>,
}

/// The array in bytes `start..end` of a map.
pub(super) fn tensor(
    name: &str,
    path: &Path,
    file: &Arc<Mapped>,
    (start, end): (usize, usize),
) -> Result<PlainTensor, TraceError> {
    let bytes = file.bytes().get(start..end).unwrap_or_default();
    let (header, data) = header(bytes).map_err(|(at, what)| {
        malformed(path, format!("array `{name}`, byte {}: {what}", start + at))
    })?;
    let need = count(&header.shape).and_then(|n| n.checked_mul(header.element.size()));
    let have = bytes.len() - data;
    match need {
        Some(need) if need == have => {}
        Some(need) if need < have => {
            let what = format!(
                "array `{name}`: {} bytes follow its end at byte {}",
                have - need,
                start + data + need
            );
            return Err(malformed(path, what));
        }
        _ => {
            let what = format!(
                "array `{name}`: {} {:?} needs {} bytes from byte {} on and {have} are there; the file is cut, copy it again",
                header.element.name(),
                header.shape,
                need.map_or_else(|| "too many".to_owned(), |need| need.to_string()),
                start + data
            );
            return Err(malformed(path, what));
        }
    }
    let storage = range(path, file, start + data..end)?;
    let mut tensor = if header.fortran {
        let mut strides = Vec::new();
        let mut step = 1_usize;
        for size in &header.shape {
            strides.push(step);
            step = step.saturating_mul((*size).max(1));
        }
        PlainTensor::strided(name, path, header.element, (header.shape, strides, 0), storage)?
    } else {
        PlainTensor::packed(name, path, header.element, header.shape, storage)?
    };
    tensor.big_endian = header.big_endian;
    Ok(tensor)
}

type Fault = (usize, String);

/// The header, and where the data start.
fn header(bytes: &[u8]) -> Result<(Header, usize), Fault> {
    let fault = |at: usize, what: &str| (at, what.to_owned());
    if !bytes.starts_with(MAGIC) {
        return Err(fault(0, "does not start with \\x93NUMPY"));
    }
    let version = *bytes.get(6).ok_or_else(|| fault(6, "the file ends in its version"))?;
    let short = || fault(8, "the file ends in its header length");
    let (length, start) = match version {
        1 => {
            let length = bytes.get(8..10).and_then(|b| b.first_chunk::<2>()).ok_or_else(short)?;
            (usize::from(u16::from_le_bytes(*length)), 10)
        }
        2 | 3 => {
            let length = bytes.get(8..12).and_then(|b| b.first_chunk::<4>()).ok_or_else(short)?;
            (usize::try_from(u32::from_le_bytes(*length)).unwrap_or(usize::MAX), 12)
        }
        other => return Err((6, format!("format version {other}; 1 to 3 are read"))),
    };
    if length > HEADER_LIMIT {
        return Err((8, format!("a header of {length} bytes; {HEADER_LIMIT} at most are read")));
    }
    let text = bytes.get(start..start + length);
    let text = text.ok_or_else(|| {
        (8, format!("a header of {length} bytes reaches past the end of the file"))
    })?;
    let text =
        std::str::from_utf8(text).map_err(|e| (start + e.valid_up_to(), "not UTF-8".to_owned()))?;
    let mut parser = Parser { text, at: 0 };
    let header = parser.header().map_err(|what| (start + parser.at, what))?;
    Ok((header, start + length))
}

/// A reader of the header's literal.
struct Parser<'a> {
    text: &'a str,
    at: usize,
}

impl Parser<'_> {
    fn header(&mut self) -> Result<Header, String> {
        let (mut descr, mut fortran, mut shape) = (None, None, None);
        self.expect('{')?;
        while !self.take('}') {
            let key = self.string()?;
            self.expect(':')?;
            match key.as_str() {
                "descr" if self.peek() == Some('[') => {
                    return Err(
                        "records of several fields; save one array for each field".to_owned()
                    );
                }
                "descr" => descr = Some(self.string()?),
                "fortran_order" => fortran = Some(self.truth()?),
                "shape" => shape = Some(self.tuple()?),
                other => return Err(format!("unknown key `{other}`")),
            }
            if !self.take(',') {
                self.expect('}')?;
                break;
            }
        }
        if self.peek().is_some() {
            return Err("text follows the header's dictionary".to_owned());
        }
        let (element, big_endian) = element(&descr.ok_or("no `descr`")?)?;
        let (fortran, shape) = (fortran.ok_or("no `fortran_order`")?, shape.ok_or("no `shape`")?);
        Ok(Header { element, big_endian, fortran, shape })
    }

    fn rest(&self) -> &str {
        self.text.get(self.at..).unwrap_or_default()
    }

    fn peek(&mut self) -> Option<char> {
        let rest = self.rest();
        let skipped = rest.len() - rest.trim_start().len();
        self.at += skipped;
        self.rest().chars().next()
    }

    fn take(&mut self, wanted: char) -> bool {
        let found = self.peek() == Some(wanted);
        if found {
            self.at += wanted.len_utf8();
        }
        found
    }

    fn expect(&mut self, wanted: char) -> Result<(), String> {
        if self.take(wanted) { Ok(()) } else { Err(format!("expected `{wanted}`")) }
    }

    fn string(&mut self) -> Result<String, String> {
        let quote = self.peek().filter(|c| matches!(c, '\'' | '"')).ok_or("expected a string")?;
        self.at += 1;
        let end = self.rest().find(quote).ok_or("a string without end")?;
        let text = self.rest().get(..end).unwrap_or_default().to_owned();
        self.at += end + 1;
        Ok(text)
    }

    fn truth(&mut self) -> Result<bool, String> {
        self.peek();
        for (word, value) in [("True", true), ("False", false)] {
            if self.rest().starts_with(word) {
                self.at += word.len();
                return Ok(value);
            }
        }
        Err("expected True or False".to_owned())
    }

    fn tuple(&mut self) -> Result<Vec<usize>, String> {
        let mut sizes = Vec::new();
        self.expect('(')?;
        while !self.take(')') {
            self.peek();
            let digits = self.rest().chars().take_while(char::is_ascii_digit).count();
            let size = self.rest().get(..digits).unwrap_or_default().parse();
            sizes.push(size.map_err(|_| "expected a size of the shape")?);
            self.at += digits;
            // Python 2 wrote sizes as `3L`.
            if self.rest().starts_with('L') {
                self.at += 1;
            }
            if !self.take(',') {
                self.expect(')')?;
                break;
            }
        }
        Ok(sizes)
    }
}

/// Element type and byte order of a `descr`.
fn element(descr: &str) -> Result<(Element, bool), String> {
    let order = descr.chars().next().unwrap_or(' ');
    let (big, code) = match order {
        '<' | '|' | '=' => (false, descr.get(1..).unwrap_or_default()),
        '>' => (true, descr.get(1..).unwrap_or_default()),
        _ => (false, descr),
    };
    let element = match code {
        "f8" => Element::F64,
        "f4" => Element::F32,
        "f2" => Element::F16,
        "i8" => Element::I64,
        "i4" => Element::I32,
        "i2" => Element::I16,
        "i1" => Element::I8,
        "u8" => Element::U64,
        "u4" => Element::U32,
        // The bfloat16 and fp8 types that NumPy does not know arrive as opaque bytes; a declaration gives them their type.
        "u2" | "V2" => Element::U16,
        "u1" | "V1" => Element::U8,
        "b1" => Element::Bool,
        "O" => {
            return Err(
                "holds pickled Python objects, which are never executed; save numbers".to_owned()
            );
        }
        other => {
            return Err(format!(
                "element type `{other}` is not read; save it as floats or integers"
            ));
        }
    };
    Ok((element, big && element.size() > 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Header, String> {
        Parser { text, at: 0 }.header()
    }

    #[test]
    fn headers_of_every_form_are_read_and_nothing_else() {
        let plain =
            parse("{'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), }  \n").unwrap();
        assert_eq!((plain.element, plain.fortran, plain.shape), (Element::F32, false, vec![3, 4]));
        let scalar = parse("{\"shape\": (), 'fortran_order': True, 'descr': '>i2'}").unwrap();
        assert_eq!((scalar.element, scalar.big_endian, scalar.shape), (Element::I16, true, vec![]));
        assert_eq!(
            parse("{'descr': '|V2', 'fortran_order': False, 'shape': (7L,)}").unwrap().shape,
            [7]
        );
        for (text, part) in [
            ("{'descr': '|O', 'fortran_order': False, 'shape': (1,)}", "never executed"),
            ("{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (1,)}", "several fields"),
            ("{'descr': '<f4', 'fortran_order': False, 'shape': (-1,)}", "a size"),
            (
                "{'descr': '<f4', 'fortran_order': False, 'shape': (99999999999999999999,)}",
                "a size",
            ),
            ("{'descr': '<f4', 'fortran_order': __import__('os'), 'shape': (1,)}", "True or False"),
            ("{'descr': '<c8', 'fortran_order': False, 'shape': (1,)}", "`c8`"),
            ("{'descr': '<f4', 'fortran_order': False}", "no `shape`"),
            ("{'descr': '<f4', 'fortran_order': False, 'shape': (1,)} x", "follows"),
            ("{'descr': '<f4", "without end"),
            ("", "`{`"),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.contains(part), "{text}: {error}");
        }
    }
}
