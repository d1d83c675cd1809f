//! JSON rows as programs really write them: raw control bytes and cut UTF-8 inside strings, `NaN` and `Infinity` as numbers.

use std::fmt::Write as _;

use serde_json::error::Category;
use serde_json::{Map, Value};

/// Why a line is no row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Problem {
    /// It ends inside a value.
    Cut,
    /// It is something else.
    Other(String),
}

/// What had to be read around, over a file.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Repairs {
    /// Rows with raw control bytes or bytes that are no UTF-8 in a string.
    pub(super) bytes: u64,
    /// Rows with NaN or an infinity, read as no value.
    pub(super) non_finite: u64,
}

impl Repairs {
    pub(super) fn remarks(self) -> Vec<String> {
        let mut out = Vec::new();
        if self.bytes > 0 {
            out.push(format!(
                "{} rows hold raw control bytes or broken UTF-8; they were read",
                self.bytes
            ));
        }
        if self.non_finite > 0 {
            out.push(format!(
                "{} rows hold NaN or an infinity; these count as no value",
                self.non_finite
            ));
        }
        out
    }
}

/// One line as an object.
pub(super) fn object(line: &[u8], repairs: &mut Repairs) -> Result<Map<String, Value>, Problem> {
    let parsed = match serde_json::from_slice(line) {
        Ok(value) => Ok(value),
        Err(_) => {
            let (text, found) = repair(line);
            let parsed = serde_json::from_str(&text);
            if parsed.is_ok() {
                repairs.bytes += found.bytes.min(1);
                repairs.non_finite += found.non_finite.min(1);
            }
            parsed
        }
    };
    match parsed {
        Ok(Value::Object(map)) => Ok(map),
        Ok(_) => Err(Problem::Other("a row is a JSON object; this is another value".to_owned())),
        Err(error) if error.classify() == Category::Eof => Err(Problem::Cut),
        Err(error) => Err(Problem::Other(format!(
            "no JSON object ({error}); text of a log or a progress bar must be taken out first"
        ))),
    }
}

/// Escapes raw control characters inside strings, replaces bytes that are no UTF-8, and turns bare NaN and infinities to null.
fn repair(line: &[u8]) -> (String, Repairs) {
    let text = String::from_utf8_lossy(line);
    let mut found =
        Repairs { bytes: u64::from(matches!(text, std::borrow::Cow::Owned(_))), non_finite: 0 };
    let mut out = String::with_capacity(text.len());
    let (mut inside, mut escaped) = (false, false);
    let mut rest = text.as_ref();
    while let Some(char) = rest.chars().next() {
        let mut step = char.len_utf8();
        if inside {
            match char {
                _ if escaped => escaped = false,
                '\\' => escaped = true,
                '"' => inside = false,
                _ => {}
            }
            if (char as u32) < 0x20 {
                found.bytes += 1;
                let _ = write!(out, "\\u{:04x}", char as u32);
            } else {
                out.push(char);
            }
        } else if let Some(word) =
            ["-Infinity", "Infinity", "NaN"].into_iter().find(|word| rest.starts_with(word))
        {
            found.non_finite += 1;
            out.push_str("null");
            step = word.len();
        } else {
            inside = char == '"';
            out.push(char);
        }
        rest = rest.get(step..).unwrap_or_default();
    }
    (out, found)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(line: &[u8]) -> (Result<Map<String, Value>, Problem>, Repairs) {
        let mut repairs = Repairs::default();
        (object(line, &mut repairs), repairs)
    }

    #[test]
    fn raw_control_bytes_and_broken_utf8_are_read_and_counted() {
        let (row, repairs) = read(b"{\"text\":\"a\x0b\x1b[0m \xe2\x82 \\\"NaN\\\"\"}");
        assert_eq!(row.unwrap()["text"], "a\u{b}\u{1b}[0m \u{fffd} \"NaN\"");
        assert_eq!(repairs, Repairs { bytes: 1, non_finite: 0 });
        assert_eq!(repairs.remarks().len(), 1);
    }

    #[test]
    fn numbers_that_are_none_are_no_value() {
        let (row, repairs) = read(b"{\"a\": NaN, \"b\": [-Infinity, Infinity, 1], \"c\": \"NaN\"}");
        let row = row.unwrap();
        assert!(row["a"].is_null() && row["b"][0].is_null() && row["b"][1].is_null());
        assert_eq!((row["b"][2].as_i64(), row["c"].as_str()), (Some(1), Some("NaN")));
        assert_eq!(repairs, Repairs { bytes: 0, non_finite: 1 });
    }

    #[test]
    fn a_cut_row_is_told_from_one_that_is_none() {
        assert_eq!(read(b"{\"a\": 1, \"b").0.unwrap_err(), Problem::Cut);
        assert_eq!(read(b"{\"a\": \"x\x0b").0.unwrap_err(), Problem::Cut);
        for other in [&b"100%|####| 3/3"[..], b"[1]", b"{\"a\": 1} {\"b\": 2}", b"{a: 1}"] {
            assert!(
                matches!(read(other).0, Err(Problem::Other(_))),
                "{}",
                String::from_utf8_lossy(other)
            );
        }
    }
}
