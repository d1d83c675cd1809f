//! Ids of tokens: the source's own, found by a tokenizer, or numbers given to the texts of this run.

use super::super::model::{Entry, TokenName};
use crate::limits::TokenIds;
use crate::token_texts::TokenTexts;
use crate::{TraceError, UNKNOWN_TOKEN};

/// What a tokenizer says of a token that is known by its text or bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FoundId {
    /// No token of the vocabulary reads like that.
    Nothing,
    /// Exactly one does.
    One(u32),
    /// Several do; this is the lowest.
    Several(u32),
}

/// Finds the id of a token by its bytes or text.
pub type Lookup<'a> = &'a dyn Fn(&TokenName) -> FoundId;

/// Gives ids to tokens.
pub(super) struct Names<'a> {
    lookup: Option<Lookup<'a>>,
    origin: Option<TokenIds>,
    texts: TokenTexts,
    unknown: u64,
    ambiguous: u64,
}

impl<'a> Names<'a> {
    pub(super) fn new(lookup: Option<Lookup<'a>>) -> Self {
        Self { lookup, origin: None, texts: TokenTexts::new(), unknown: 0, ambiguous: 0 }
    }

    /// Settles the origin of the ids by the first entries: the source's own only where every token has one.
    pub(super) fn settle(&mut self, entries: &[Entry]) {
        if self.origin.is_some() || entries.iter().all(|entry| entry.token.is_nothing()) {
            return;
        }
        let named = |token: &TokenName| token.id.is_some() || token.is_nothing();
        let given = entries.iter().all(|entry| {
            named(&entry.token) && entry.candidates.iter().all(|other| named(&other.token))
        });
        self.origin = Some(match (given, self.lookup) {
            (true, _) => TokenIds::Given,
            (false, Some(_)) => TokenIds::Tokenizer,
            (false, None) => TokenIds::Invented,
        });
    }

    /// The origin of the ids.
    pub(super) fn origin(&self) -> TokenIds {
        self.origin.unwrap_or(TokenIds::Nothing)
    }

    /// The id of a token; [`UNKNOWN_TOKEN`] where there is none.
    pub(super) fn id(&mut self, token: &TokenName) -> u32 {
        let id = match self.origin() {
            TokenIds::Given | TokenIds::Nothing => token.id.unwrap_or(UNKNOWN_TOKEN),
            TokenIds::Tokenizer => token.id.unwrap_or_else(|| self.look_up(token)),
            TokenIds::Invented => self.number(token),
        };
        self.unknown += u64::from(id == UNKNOWN_TOKEN);
        id
    }

    fn look_up(&mut self, token: &TokenName) -> u32 {
        match self.lookup.map_or(FoundId::Nothing, |lookup| lookup(&spelled(token))) {
            FoundId::Nothing => UNKNOWN_TOKEN,
            FoundId::One(id) => id,
            FoundId::Several(id) => {
                self.ambiguous += 1;
                id
            }
        }
    }

    fn number(&mut self, token: &TokenName) -> u32 {
        let token = spelled(token);
        match (&token.text, &token.bytes, token.id) {
            (Some(text), bytes, _) => self.texts.number(text, bytes.as_deref()),
            (None, Some(bytes), _) => {
                self.texts.number(&String::from_utf8_lossy(bytes), Some(bytes))
            }
            // An id among texts is one more name.
            (None, None, Some(id)) => self.texts.number(&format!("token_id:{id}"), None),
            (None, None, None) => UNKNOWN_TOKEN,
        }
    }

    /// Writes the texts of invented ids into the run folder.
    pub(super) fn write(&self, run: &std::path::Path) -> Result<(), TraceError> {
        if self.origin() == TokenIds::Invented { self.texts.write(run) } else { Ok(()) }
    }

    pub(super) fn remarks(&self, remarks: &mut Vec<String>) {
        match self.origin() {
            TokenIds::Invented => remarks.push(format!(
                "the file names tokens by text only: ids number the {} texts of this run (a model's tokenizer would find its own)",
                self.texts.len()
            )),
            TokenIds::Tokenizer => remarks.push("ids were found by the texts of a tokenizer's tokens".to_owned()),
            TokenIds::Given | TokenIds::Nothing => {}
        }
        if self.ambiguous > 0 {
            remarks.push(format!(
                "{} tokens read like several of the tokenizer; the lowest id was taken",
                self.ambiguous
            ));
        }
        if self.unknown > 0 {
            remarks
                .push(format!("{} tokens and candidates could not be given an id", self.unknown));
        }
    }
}

/// The token with its bytes, where the text is one of the OpenAI API's `bytes:\xe2\x80` for a part of a character.
fn spelled(token: &TokenName) -> TokenName {
    let escaped = token.text.as_deref().and_then(|text| text.strip_prefix("bytes:"));
    let Some(bytes) = escaped.filter(|_| token.bytes.is_none()).and_then(unescaped) else {
        return token.clone();
    };
    let text = String::from_utf8_lossy(&bytes).into_owned();
    TokenName { id: token.id, text: Some(text), bytes: Some(bytes) }
}

/// Bytes of a text of which every escape is `\xNN`; `None` where it holds none.
fn unescaped(text: &str) -> Option<Vec<u8>> {
    let mut parts = text.split("\\x");
    let mut bytes = parts.next()?.as_bytes().to_vec();
    let mut escapes = 0;
    for part in parts {
        let (digits, rest) = part.split_at_checked(2)?;
        bytes.push(u8::from_str_radix(digits, 16).ok()?);
        bytes.extend_from_slice(rest.as_bytes());
        escapes += 1;
    }
    (escapes > 0).then_some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escaped_parts_of_characters_are_their_bytes() {
        let named = |text: &str| TokenName { text: Some(text.to_owned()), ..TokenName::default() };
        assert_eq!(spelled(&named("bytes:\\xe2\\x80")).bytes, Some(vec![0xE2, 0x80]));
        assert_eq!(spelled(&named("bytes: \\xf0")).bytes, Some(vec![b' ', 0xF0]));
        for plain in ["bytes:", "bytes: of", "bytes:\\xzz", "bytes:\\x4"] {
            assert_eq!(spelled(&named(plain)).bytes, None, "{plain}");
        }
    }
}
