//! JSON as servers write it: keys in order and as often as they stand, `NaN` and `Infinity` read and told, bounded in
//! depth and size.

use std::fmt::Write as _;

use super::node::{Node, Number};

/// Deepest nesting that is read.
const DEEPEST: usize = 64;
/// Most values of one file; each takes some 40 bytes.
const MOST_VALUES: usize = 16_000_000;
/// Most oddities that are listed; all are counted.
const MOST_ODD: usize = 64;

/// Something that is no JSON by the letter, and was read all the same.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Oddity {
    /// Byte at which it stands, counted from 0 in the unpacked text.
    pub offset: usize,
    /// Path of the value: `choices[0].logprobs.content[1].logprob`.
    pub path: String,
    /// What it is, one line.
    pub what: String,
}

/// Why a text is no JSON.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum JsonFault {
    /// It ends before its value does.
    Cut,
    /// Something that cannot stand at this byte.
    Bad(usize, String),
}

/// Reads documents one after the other, and keeps what was odd about them.
pub struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
    values: usize,
    path: Vec<Step>,
    odd: Vec<Oddity>,
    odd_count: usize,
}

enum Step {
    Key(String),
    Index(usize),
}

impl<'a> Reader<'a> {
    /// A reader at the front of `bytes`.
    #[must_use]
    pub const fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0, values: 0, path: Vec::new(), odd: Vec::new(), odd_count: 0 }
    }

    /// The next document; `None` at the end.
    ///
    /// # Errors
    /// [`JsonFault`] where it is cut, no JSON, nested too deeply, or the file holds too many values.
    pub fn document(&mut self) -> Result<Option<Node>, JsonFault> {
        self.blank();
        if self.at >= self.bytes.len() {
            return Ok(None);
        }
        self.path.clear();
        self.value(0).map(Some)
    }

    /// What was read though it is no JSON: the first of them, and how many there are.
    #[must_use]
    pub fn oddities(self) -> (Vec<Oddity>, usize) {
        (self.odd, self.odd_count)
    }

    /// Byte at which the reader stands.
    #[must_use]
    pub const fn offset(&self) -> usize {
        self.at
    }

    fn blank(&mut self) {
        while matches!(self.bytes.get(self.at), Some(b' ' | b'\t' | b'\r' | b'\n')) {
            self.at += 1;
        }
    }

    fn peek(&mut self) -> Result<u8, JsonFault> {
        self.blank();
        self.bytes.get(self.at).copied().ok_or(JsonFault::Cut)
    }

    fn bad<T>(&self, what: impl Into<String>) -> Result<T, JsonFault> {
        Err(JsonFault::Bad(self.at, what.into()))
    }

    fn note(&mut self, offset: usize, what: &str) {
        self.odd_count += 1;
        if self.odd.len() < MOST_ODD {
            let mut path = String::new();
            for step in &self.path {
                // Writing to a String cannot fail.
                let _ = match step {
                    Step::Key(key) if path.is_empty() => write!(path, "{key}"),
                    Step::Key(key) => write!(path, ".{key}"),
                    Step::Index(index) => write!(path, "[{index}]"),
                };
            }
            self.odd.push(Oddity { offset, path, what: what.to_owned() });
        }
    }

    fn value(&mut self, depth: usize) -> Result<Node, JsonFault> {
        if depth > DEEPEST {
            return self.bad(format!("nested more than {DEEPEST} deep"));
        }
        self.values += 1;
        if self.values > MOST_VALUES {
            return self.bad(format!("more than {MOST_VALUES} values in one file: split it"));
        }
        match self.peek()? {
            b'{' => self.object(depth),
            b'[' => self.list(depth),
            b'"' => self.string().map(Node::Text),
            b't' => self.word("true", Node::Bool(true)),
            b'f' => self.word("false", Node::Bool(false)),
            b'n' => match self.bytes.get(self.at..self.at + 3) {
                Some(b"nan") => self.odd_number("nan", f64::NAN),
                _ => self.word("null", Node::Null),
            },
            b'N' => self.odd_number("NaN", f64::NAN),
            b'I' => self.odd_number("Infinity", f64::INFINITY),
            b'i' => self.odd_number("inf", f64::INFINITY),
            b'-' if matches!(self.bytes.get(self.at + 1), Some(b'I')) => {
                self.odd_number("-Infinity", f64::NEG_INFINITY)
            }
            b'-' if matches!(self.bytes.get(self.at + 1), Some(b'i')) => {
                self.odd_number("-inf", f64::NEG_INFINITY)
            }
            b'-' | b'0'..=b'9' => self.number(),
            other => self.bad(format!(
                "`{}` where a value was expected",
                char::from(other).escape_default()
            )),
        }
    }

    fn word(&mut self, word: &str, node: Node) -> Result<Node, JsonFault> {
        let rest = self.bytes.get(self.at..).unwrap_or_default();
        if rest.starts_with(word.as_bytes()) {
            self.at += word.len();
            return Ok(node);
        }
        if word.as_bytes().starts_with(rest) {
            Err(JsonFault::Cut)
        } else {
            self.bad("an unknown word")
        }
    }

    fn odd_number(&mut self, word: &str, value: f64) -> Result<Node, JsonFault> {
        let start = self.at;
        let node = self.word(word, Node::Number(Number { value, decimals: 0 }))?;
        self.note(start, &format!("`{word}` is no JSON"));
        Ok(node)
    }

    fn number(&mut self) -> Result<Node, JsonFault> {
        let start = self.at;
        let number = |byte: &u8| matches!(byte, b'0'..=b'9' | b'-' | b'+' | b'.' | b'e' | b'E');
        while self.bytes.get(self.at).is_some_and(number) {
            self.at += 1;
        }
        let text = self.bytes.get(start..self.at).unwrap_or_default();
        let text = std::str::from_utf8(text).unwrap_or_default();
        let shaped = !text.trim_start_matches('-').starts_with('.') && !text.ends_with('.');
        match text.parse::<f64>() {
            Ok(value) if shaped => Ok(Node::Number(Number { value, decimals: decimals(text) })),
            _ if self.at == self.bytes.len() => Err(JsonFault::Cut),
            _ => Err(JsonFault::Bad(start, format!("`{text}` is no number"))),
        }
    }

    fn list(&mut self, depth: usize) -> Result<Node, JsonFault> {
        self.at += 1;
        let mut items = Vec::new();
        if self.peek()? == b']' {
            self.at += 1;
            return Ok(Node::List(items));
        }
        loop {
            self.path.push(Step::Index(items.len()));
            items.push(self.value(depth + 1)?);
            self.path.pop();
            if !self.more(b']')? {
                return Ok(Node::List(items));
            }
        }
    }

    fn object(&mut self, depth: usize) -> Result<Node, JsonFault> {
        self.at += 1;
        let mut members = Vec::new();
        if self.peek()? == b'}' {
            self.at += 1;
            return Ok(Node::Object(members));
        }
        loop {
            if self.peek()? != b'"' {
                return self.bad("a key was expected");
            }
            let key = self.string()?;
            if self.peek()? != b':' {
                return self.bad("`:` was expected");
            }
            self.at += 1;
            self.path.push(Step::Key(key));
            let value = self.value(depth + 1)?;
            if let Some(Step::Key(key)) = self.path.pop() {
                members.push((key, value));
            }
            if !self.more(b'}')? {
                return Ok(Node::Object(members));
            }
        }
    }

    fn more(&mut self, close: u8) -> Result<bool, JsonFault> {
        let found = self.peek()?;
        if found != b',' && found != close {
            return self.bad(format!("`,` or `{}` was expected", char::from(close)));
        }
        self.at += 1;
        Ok(found == b',')
    }

    fn string(&mut self) -> Result<String, JsonFault> {
        let start = self.at;
        self.at += 1;
        let mut bytes = Vec::new();
        let mut lone = false;
        loop {
            match self.bytes.get(self.at) {
                None => return Err(JsonFault::Cut),
                Some(b'"') => break,
                Some(b'\\') => lone |= self.escape(&mut bytes)?,
                Some(byte) => {
                    bytes.push(*byte);
                    self.at += 1;
                }
            }
        }
        self.at += 1;
        if lone {
            self.note(start, "half of a surrogate pair, read as U+FFFD");
        }
        match String::from_utf8(bytes) {
            Ok(text) => Ok(text),
            Err(error) => {
                self.note(start, "bytes that are no UTF-8, read as U+FFFD");
                Ok(String::from_utf8_lossy(error.as_bytes()).into_owned())
            }
        }
    }

    /// Reads one escape; true where it is half of a surrogate pair.
    fn escape(&mut self, out: &mut Vec<u8>) -> Result<bool, JsonFault> {
        let byte = *self.bytes.get(self.at + 1).ok_or(JsonFault::Cut)?;
        self.at += 2;
        let plain = match byte {
            b'"' | b'\\' | b'/' => byte,
            b'b' => 8,
            b'f' => 12,
            b'n' => b'\n',
            b'r' => b'\r',
            b't' => b'\t',
            b'u' => return self.unicode(out),
            other => {
                return self
                    .bad(format!("`\\{}` is no escape", char::from(other).escape_default()));
            }
        };
        out.push(plain);
        Ok(false)
    }

    fn unicode(&mut self, out: &mut Vec<u8>) -> Result<bool, JsonFault> {
        let first = self.hex4()?;
        let paired = (0xD800..0xDC00).contains(&first)
            && self.bytes.get(self.at..self.at + 2) == Some(b"\\u");
        let mut code = first;
        if paired {
            let before = self.at;
            self.at += 2;
            let second = self.hex4()?;
            if (0xDC00..0xE000).contains(&second) {
                code = 0x1_0000 + ((first - 0xD800) << 10) + (second - 0xDC00);
            } else {
                self.at = before;
            }
        }
        let character = char::from_u32(code);
        let mut buffer = [0; 4];
        out.extend(character.unwrap_or('\u{FFFD}').encode_utf8(&mut buffer).bytes());
        Ok(character.is_none())
    }

    fn hex4(&mut self) -> Result<u32, JsonFault> {
        let digits = self.bytes.get(self.at..self.at + 4).ok_or(JsonFault::Cut)?;
        let text = std::str::from_utf8(digits)
            .ok()
            .filter(|text| text.bytes().all(|b| b.is_ascii_hexdigit()));
        match text.and_then(|text| u32::from_str_radix(text, 16).ok()) {
            Some(code) => {
                self.at += 4;
                Ok(code)
            }
            None => self.bad("`\\u` needs four hex digits"),
        }
    }
}

/// Digits behind the point of a printed number, less its exponent.
fn decimals(text: &str) -> u8 {
    let (mantissa, exponent) = text.split_once(['e', 'E']).unwrap_or((text, "0"));
    let behind = mantissa.split_once('.').map_or(0, |(_, digits)| digits.len());
    let behind = i64::try_from(behind).unwrap_or(i64::MAX);
    let shifted =
        behind.saturating_sub(exponent.trim_start_matches('+').parse::<i64>().unwrap_or(0));
    u8::try_from(shifted.clamp(0, 255)).unwrap_or(u8::MAX)
}

#[cfg(test)]
mod tests;
