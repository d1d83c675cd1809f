//! `tokenizer.json` of a model directory, or the tokenizer in the metadata of a GGUF file.

mod gguf;

use std::path::{Path, PathBuf};

use crate::RuntimeError;

/// Turns text into ids and back.
#[derive(Debug, Clone)]
pub struct Tokenizer {
    path: PathBuf,
    inner: tokenizers::Tokenizer,
}

/// What stands where a tokenizer is looked for.
#[derive(Debug)]
pub enum Found {
    /// A tokenizer.
    Tokenizer(Box<Tokenizer>),
    /// One of a kind that is not built here, and which; prompts can still be given as ids.
    Unsupported(String),
    /// None.
    Nothing,
}

/// Builds a tokenizer. The crate panics on some damaged definitions where it should report them; such a file is an error here.
fn built(
    build: impl FnOnce() -> tokenizers::Result<tokenizers::Tokenizer>,
) -> Result<tokenizers::Tokenizer, String> {
    // Nothing that `build` may have left half-done is used after a panic.
    match std::panic::catch_unwind(std::panic::AssertUnwindSafe(build)) {
        Ok(built) => built.map_err(|error| error.to_string()),
        Err(_) => Err("damaged: its reader gave up; copy the file again".to_owned()),
    }
}

impl Tokenizer {
    /// Looks for `tokenizer.json` in `dir`, or in the metadata where `dir` is a GGUF file.
    ///
    /// # Errors
    /// [`RuntimeError::Tokenizer`] where it is not valid.
    pub fn find(dir: &Path) -> Result<Found, RuntimeError> {
        if dir.is_file() {
            return gguf::read(dir);
        }
        let path = dir.join("tokenizer.json");
        if !path.is_file() {
            return Ok(Found::Nothing);
        }
        match built(|| tokenizers::Tokenizer::from_file(&path)) {
            Ok(inner) => Ok(Found::Tokenizer(Box::new(Self { path, inner }))),
            Err(what) => Err(RuntimeError::Tokenizer { path, what }),
        }
    }

    /// As [`Tokenizer::find`], `None` where there is none of a kind that is built here.
    ///
    /// # Errors
    /// As [`Tokenizer::find`].
    pub fn read(dir: &Path) -> Result<Option<Self>, RuntimeError> {
        Ok(match Self::find(dir)? {
            Found::Tokenizer(tokenizer) => Some(*tokenizer),
            Found::Unsupported(_) | Found::Nothing => None,
        })
    }

    /// Ids of a text, with the tokenizer's own special tokens around it where it adds any.
    ///
    /// # Errors
    /// [`RuntimeError::Tokenizer`].
    pub fn encode(&self, text: &str) -> Result<Vec<u32>, RuntimeError> {
        let encoded =
            self.inner.encode(text, true).map_err(|error| self.fault(error.to_string()))?;
        Ok(encoded.get_ids().to_vec())
    }

    /// Ids of a text that holds its special tokens already, as a rendered chat template does.
    ///
    /// # Errors
    /// [`RuntimeError::Tokenizer`].
    pub fn encode_as_is(&self, text: &str) -> Result<Vec<u32>, RuntimeError> {
        let encoded =
            self.inner.encode(text, false).map_err(|error| self.fault(error.to_string()))?;
        Ok(encoded.get_ids().to_vec())
    }

    /// Text of ids, special tokens left out.
    ///
    /// # Errors
    /// [`RuntimeError::Tokenizer`].
    pub fn decode(&self, ids: &[u32]) -> Result<String, RuntimeError> {
        self.inner.decode(ids, true).map_err(|error| self.fault(error.to_string()))
    }

    /// Text of one id as the vocabulary has it; `None` outside it.
    #[must_use]
    pub fn token(&self, id: u32) -> Option<String> {
        self.inner.id_to_token(id)
    }

    /// Id of a token as the vocabulary has it; `None` for another text.
    #[must_use]
    pub fn id(&self, token: &str) -> Option<u32> {
        self.inner.token_to_id(token)
    }

    /// Tokens of the vocabulary, added ones included.
    #[must_use]
    pub fn size(&self) -> usize {
        self.inner.get_vocab_size(true)
    }

    fn fault(&self, what: String) -> RuntimeError {
        RuntimeError::Tokenizer { path: self.path.clone(), what }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_definition_on_which_the_crate_panics_is_an_error() {
        // A step's type that ends in the middle of the next key.
        let text = r#"{"version":"1.0","added_tokens":[],"decoder":{"type":"Byteull,"model":{"type":"BPE","vocab":{"a":0},"merges":[]}}"#;
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("tokenizer.json");
        for end in 1..text.len() {
            std::fs::write(&path, &text[..end]).unwrap();
            let error = Tokenizer::find(dir.path()).unwrap_err().to_string();
            assert!(error.contains("tokenizer.json"), "{error}");
        }
        let gave_up = built(|| panic!("as the crate does")).unwrap_err();
        assert!(gave_up.contains("gave up"));
    }
}
