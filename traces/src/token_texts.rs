//! `token_texts.json` of a run: what its token ids stand for, where the source gave texts and no ids.
//!
//! Such a run has `limits.token_ids == Invented`: its ids number the texts of this run and mean nothing outside it. The
//! file is `{"texts": [{"id": 0, "text": " the", "bytes": [32, 116, 104, 101]}, ...]}`; `bytes` is null where the source
//! gave a text only. Two runs are brought to one numbering by what their tokens are, [`TokenText::key`].

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read as _, Write as _};
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::store::fail::{io, malformed};
use crate::store::replace_file;
use crate::{TraceError, UNKNOWN_TOKEN};

/// Name of the file in a run folder.
pub const FILE: &str = "token_texts.json";

/// A file larger than this is none: a whole vocabulary of 256,000 tokens with bytes takes about 20 MB.
const LIMIT: u64 = 128 << 20;

/// One numbered text.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TokenText {
    /// Its number in this run.
    pub id: u32,
    /// Text as the source gave it; may hold U+FFFD where the token is a part of a character.
    pub text: String,
    /// Its bytes, where the source gave them.
    pub bytes: Option<Vec<u8>>,
}

impl TokenText {
    /// The bytes by which this token is known: its own, or those of a whole text. `None` where the text holds U+FFFD and
    /// no bytes are there: many tokens read like that.
    #[must_use]
    pub fn key(&self) -> Option<&[u8]> {
        key(&self.text, self.bytes.as_deref())
    }
}

fn key<'a>(text: &'a str, bytes: Option<&'a [u8]>) -> Option<&'a [u8]> {
    bytes.or_else(|| (!text.contains(char::REPLACEMENT_CHARACTER)).then_some(text.as_bytes()))
}

/// Texts of a run by id. Also numbers them while a run is imported.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TokenTexts {
    texts: BTreeMap<u32, TokenText>,
    ids: BTreeMap<Vec<u8>, u32>,
}

#[derive(Serialize, Deserialize)]
struct Document {
    texts: Vec<TokenText>,
}

impl TokenTexts {
    /// No text yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The number of a token: that of an equal one, else the next free one, from 0 on. Tokens are equal where their bytes
    /// are; a text without bytes counts as its UTF-8 bytes. A text with U+FFFD and no bytes is [`UNKNOWN_TOKEN`]: it could
    /// be any of many tokens. Two candidates of one list with equal texts cannot both have a number; the second is for its
    /// importer to call [`UNKNOWN_TOKEN`].
    pub fn number(&mut self, text: &str, bytes: Option<&[u8]>) -> u32 {
        let Some(key) = key(text, bytes) else { return UNKNOWN_TOKEN };
        if let Some(id) = self.ids.get(key) {
            if let (Some(known), Some(bytes)) = (self.texts.get_mut(id), bytes) {
                known.bytes.get_or_insert_with(|| bytes.to_vec());
            }
            return *id;
        }
        let next = self.texts.last_key_value().map_or(0, |(id, _)| id.saturating_add(1));
        // 4 billion texts are more than any source holds.
        if next == UNKNOWN_TOKEN {
            return UNKNOWN_TOKEN;
        }
        self.ids.insert(key.to_vec(), next);
        let text = TokenText { id: next, text: text.to_owned(), bytes: bytes.map(<[u8]>::to_vec) };
        self.texts.insert(next, text);
        next
    }

    /// What an id stands for.
    #[must_use]
    pub fn get(&self, id: u32) -> Option<&TokenText> {
        self.texts.get(&id)
    }

    /// All, by id.
    pub fn iter(&self) -> impl Iterator<Item = &TokenText> {
        self.texts.values()
    }

    /// Texts.
    #[must_use]
    pub fn len(&self) -> usize {
        self.texts.len()
    }

    /// True where none is known.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.texts.is_empty()
    }

    /// Writes the file into a run folder.
    ///
    /// # Errors
    /// [`TraceError::Io`].
    pub fn write(&self, run: &Path) -> Result<(), TraceError> {
        let path = run.join(FILE);
        let document = Document { texts: self.texts.values().cloned().collect() };
        let mut text = serde_json::to_vec(&document).map_err(|source| TraceError::Json {
            path: path.clone(),
            line: source.line(),
            source,
        })?;
        text.push(b'\n');
        replace_file(&path, |file| file.write_all(&text).map_err(io(&path)))
    }

    /// Reads the file of a run folder; `None` where there is none.
    ///
    /// # Errors
    /// [`TraceError::Json`] where it is not such a document; [`TraceError::Malformed`] where an id or a token comes twice,
    /// or an id is [`UNKNOWN_TOKEN`]; [`TraceError::Io`].
    pub fn read(run: &Path) -> Result<Option<Self>, TraceError> {
        let path = run.join(FILE);
        let file = match File::open(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(io(&path)(error)),
        };
        let mut text = Vec::new();
        file.take(LIMIT + 1).read_to_end(&mut text).map_err(io(&path))?;
        if text.len() as u64 > LIMIT {
            return Err(malformed(&path, "larger than 128 MiB: not the texts of a vocabulary"));
        }
        let document: Document = serde_json::from_slice(&text).map_err(|source| {
            TraceError::Json { path: path.clone(), line: source.line(), source }
        })?;
        let mut out = Self::default();
        for text in document.texts {
            out.insert(text).map_err(|what| malformed(&path, what))?;
        }
        Ok(Some(out))
    }

    fn insert(&mut self, text: TokenText) -> Result<(), String> {
        let id = text.id;
        if id == UNKNOWN_TOKEN {
            return Err(format!("id {id} stands for an unknown token and cannot have a text"));
        }
        if let Some(key) = text.key()
            && let Some(other) = self.ids.insert(key.to_vec(), id)
        {
            return Err(format!("ids {other} and {id} stand for one token, {:?}", text.text));
        }
        match self.texts.insert(id, text) {
            Some(_) => Err(format!("id {id} is listed twice")),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_numbered_by_their_bytes() {
        let mut texts = TokenTexts::new();
        assert_eq!(texts.number(" the", None), 0);
        assert_eq!(texts.number("\u{FFFD}", Some(&[0xE2])), 1);
        assert_eq!(texts.number("\u{FFFD}", Some(&[0x80])), 2);
        assert_eq!(texts.number(" the", Some(b" the")), 0);
        // A part of a character without bytes could be any of many tokens.
        assert_eq!(texts.number("\u{FFFD}", None), UNKNOWN_TOKEN);
        assert_eq!(texts.len(), 3);
        assert_eq!(texts.get(0).and_then(|text| text.bytes.clone()), Some(b" the".to_vec()));
    }

    #[test]
    fn what_is_written_is_read_again() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(TokenTexts::read(dir.path()).unwrap(), None);
        let mut texts = TokenTexts::new();
        texts.number("a\n", None);
        texts.number("\u{FFFD}", Some(&[0xE2, 0x80]));
        texts.write(dir.path()).unwrap();
        assert_eq!(
            std::fs::read_to_string(dir.path().join(FILE)).unwrap(),
            "{\"texts\":[{\"id\":0,\"text\":\"a\\n\",\"bytes\":null},{\"id\":1,\"text\":\"\u{FFFD}\",\"bytes\":[226,128]}]}\n"
        );
        assert_eq!(TokenTexts::read(dir.path()).unwrap(), Some(texts));
    }

    #[test]
    fn a_damaged_file_is_an_error_that_says_where() {
        let dir = tempfile::tempdir().unwrap();
        for (text, word) in [
            ("{\"texts\": [", "token_texts.json:1"),
            (r#"{"texts": [{"id": 0, "text": "a"}, {"id": 0, "text": "b"}]}"#, "listed twice"),
            (r#"{"texts": [{"id": 0, "text": "a"}, {"id": 1, "text": "a"}]}"#, "one token"),
            (r#"{"texts": [{"id": 4294967295, "text": "a"}]}"#, "unknown token"),
            (r#"{"texts": [{"id": 0, "text": "a", "bytes": [256]}]}"#, "256"),
        ] {
            std::fs::write(dir.path().join(FILE), text).unwrap();
            let error = TokenTexts::read(dir.path()).unwrap_err().to_string();
            assert!(error.contains(word), "{error}");
        }
    }
}
