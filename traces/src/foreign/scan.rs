//! A cursor over one line of JSON that allocates nothing and tells a cut line from a wrong one.

use super::number::{self, Number};

/// Why a line cannot be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Fault {
    /// The line ends before its value does.
    Cut,
    /// Something that cannot stand here.
    Bad(String),
}

impl Fault {
    pub(super) fn bad(what: impl Into<String>) -> Self {
        Self::Bad(what.into())
    }
}

/// Deepest nesting that is skipped over.
const MAX_DEPTH: usize = 64;

/// Reads one line from front to back.
pub(super) struct Cursor<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Cursor<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0 }
    }

    /// Next byte that is no white space, not consumed.
    pub(super) fn peek(&mut self) -> Result<u8, Fault> {
        while let Some(&byte) = self.bytes.get(self.at) {
            if !matches!(byte, b' ' | b'\t' | b'\r' | b'\n') {
                return Ok(byte);
            }
            self.at += 1;
        }
        Err(Fault::Cut)
    }

    fn expect(&mut self, wanted: u8) -> Result<(), Fault> {
        let found = self.peek()?;
        if found != wanted {
            return Err(Fault::bad(format!(
                "`{}` where `{}` was expected (column {})",
                char::from(found).escape_default(),
                char::from(wanted),
                self.at + 1
            )));
        }
        self.at += 1;
        Ok(())
    }

    /// Reads an object; `field` must consume the value of each key.
    pub(super) fn object(
        &mut self,
        mut field: impl FnMut(&'a [u8], &mut Self) -> Result<(), Fault>,
    ) -> Result<(), Fault> {
        self.expect(b'{')?;
        if self.peek()? == b'}' {
            self.at += 1;
            return Ok(());
        }
        loop {
            let key = self.string()?;
            self.expect(b':')?;
            field(key, self)?;
            if self.more(b'}')? {
                continue;
            }
            return Ok(());
        }
    }

    /// Reads an array; `element` must consume one element.
    pub(super) fn array(
        &mut self,
        mut element: impl FnMut(&mut Self) -> Result<(), Fault>,
    ) -> Result<(), Fault> {
        self.expect(b'[')?;
        if self.peek()? == b']' {
            self.at += 1;
            return Ok(());
        }
        loop {
            element(self)?;
            if self.more(b']')? {
                continue;
            }
            return Ok(());
        }
    }

    /// Consumes a comma (`true`) or the closing byte (`false`).
    fn more(&mut self, close: u8) -> Result<bool, Fault> {
        let found = self.peek()?;
        self.at += 1;
        match found {
            b',' => Ok(true),
            found if found == close => Ok(false),
            found => Err(Fault::bad(format!(
                "`{}` where `,` or `{}` was expected (column {})",
                char::from(found).escape_default(),
                char::from(close),
                self.at
            ))),
        }
    }

    /// A string, its escapes left as they stand.
    fn string(&mut self) -> Result<&'a [u8], Fault> {
        self.expect(b'"')?;
        let start = self.at;
        loop {
            match self.bytes.get(self.at) {
                None => return Err(Fault::Cut),
                Some(b'"') => break,
                Some(b'\\') => self.at += 2,
                Some(_) => self.at += 1,
            }
        }
        let text = &self.bytes[start..self.at];
        self.at += 1;
        Ok(text)
    }

    /// A number, or a word that stands for a value which is not finite (`null` counts as NaN).
    pub(super) fn number(&mut self) -> Result<Number, Fault> {
        self.peek()?;
        let (number, length) = number::parse(&self.bytes[self.at..])?;
        self.at += length;
        Ok(number)
    }

    /// An integer of 0 ..= u32::MAX.
    pub(super) fn index(&mut self, key: &str) -> Result<u32, Fault> {
        let first = self.peek()?;
        let mut value = 0_u64;
        let start = self.at;
        while let Some(digit @ b'0'..=b'9') = self.bytes.get(self.at) {
            value = value.saturating_mul(10).saturating_add(u64::from(digit - b'0'));
            self.at += 1;
        }
        if self.at == start {
            let cut = first == b'-' && self.at + 1 == self.bytes.len();
            let what = if first == b'-' { "is negative" } else { "is no whole number" };
            return Err(if cut { Fault::Cut } else { Fault::bad(format!("`{key}` {what}")) });
        }
        if matches!(self.bytes.get(self.at), Some(b'.' | b'e' | b'E')) {
            return Err(Fault::bad(format!("`{key}` is no whole number")));
        }
        u32::try_from(value).map_err(|_| Fault::bad(format!("`{key}` is larger than {}", u32::MAX)))
    }

    /// As [`Self::index`], with `null` as `None`.
    pub(super) fn optional_index(&mut self, key: &str) -> Result<Option<u32>, Fault> {
        if self.peek()? == b'n' {
            let value = self.number()?;
            return if value.value.is_nan() { Ok(None) } else { Err(Fault::bad("null expected")) };
        }
        self.index(key).map(Some)
    }

    /// Skips any value.
    pub(super) fn skip(&mut self) -> Result<(), Fault> {
        let mut depth = 0_usize;
        loop {
            match self.peek()? {
                b'{' | b'[' => {
                    depth += 1;
                    self.at += 1;
                    if depth > MAX_DEPTH {
                        return Err(Fault::bad("nested too deeply"));
                    }
                    continue;
                }
                b'}' | b']' if depth > 0 => {
                    depth -= 1;
                    self.at += 1;
                }
                b',' | b':' if depth > 0 => {
                    self.at += 1;
                    continue;
                }
                b'"' => {
                    self.string()?;
                }
                b't' => self.literal(b"true")?,
                b'f' => self.literal(b"false")?,
                _ => {
                    self.number()?;
                }
            }
            if depth == 0 {
                return Ok(());
            }
        }
    }

    fn literal(&mut self, word: &[u8]) -> Result<(), Fault> {
        let rest = &self.bytes[self.at..];
        if rest.starts_with(word) {
            self.at += word.len();
            return Ok(());
        }
        Err(if word.starts_with(rest) { Fault::Cut } else { Fault::bad("an unknown word") })
    }

    /// Nothing but white space may follow.
    pub(super) fn end(&mut self) -> Result<(), Fault> {
        match self.peek() {
            Err(Fault::Cut) => Ok(()),
            _ => Err(Fault::bad(format!("text after the object (column {})", self.at + 1))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(text: &str) -> Result<Vec<String>, Fault> {
        let mut cursor = Cursor::new(text.as_bytes());
        let mut keys = Vec::new();
        cursor.object(|key, cursor| {
            keys.push(String::from_utf8_lossy(key).into_owned());
            cursor.skip()
        })?;
        cursor.end()?;
        Ok(keys)
    }

    #[test]
    fn any_value_can_be_skipped() {
        let text =
            r#"{"a":1, "b":[1,[2,{"x":null}],[]] , "c":{"d":"q\"}"},"e":true,"f":-Infinity}"#;
        assert_eq!(keys(text).unwrap(), ["a", "b", "c", "e", "f"]);
    }

    #[test]
    fn every_proper_prefix_of_a_row_is_cut_and_never_bad() {
        let text = r#"{"a":-1.5e-3,"b":[1,[2,{"x":null}],[NaN]],"c":"q\"}","e":false}"#;
        for end in 0..text.len() {
            assert_eq!(keys(&text[..end]), Err(Fault::Cut), "{}", &text[..end]);
        }
    }

    #[test]
    fn wrong_text_is_bad_and_never_cut() {
        for text in
            [r#"{"a":1}{"#, r#"{"a" 1}"#, r#"{"a":1;"b":2}"#, "[1]", r#"{"a":yes}"#, r#"{a:1}"#]
        {
            assert!(matches!(keys(text), Err(Fault::Bad(_))), "{text}: {:?}", keys(text));
        }
    }

    #[test]
    fn indices_refuse_signs_fractions_and_overflow() {
        let index = |text: &str| Cursor::new(text.as_bytes()).index("n");
        assert_eq!(index("4294967295"), Ok(u32::MAX));
        for text in ["4294967296", "-1", "1.0", "1e3", "x", "99999999999999999999999"] {
            assert!(matches!(index(text), Err(Fault::Bad(_))), "{text}");
        }
    }
}
