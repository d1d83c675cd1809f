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
        match tokenizers::Tokenizer::from_file(&path) {
            Ok(inner) => Ok(Found::Tokenizer(Box::new(Self { path, inner }))),
            Err(error) => Err(RuntimeError::Tokenizer { path, what: error.to_string() }),
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
