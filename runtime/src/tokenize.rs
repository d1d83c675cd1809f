//! `tokenizer.json` of a model directory.

use std::path::{Path, PathBuf};

use crate::RuntimeError;

/// Turns text into ids and back.
#[derive(Debug, Clone)]
pub struct Tokenizer {
    path: PathBuf,
    inner: tokenizers::Tokenizer,
}

impl Tokenizer {
    /// Reads `tokenizer.json` of `dir`; `None` where there is none.
    ///
    /// # Errors
    /// [`RuntimeError::Tokenizer`] where the file is not valid.
    pub fn read(dir: &Path) -> Result<Option<Self>, RuntimeError> {
        let path = dir.join("tokenizer.json");
        if !path.is_file() {
            return Ok(None);
        }
        match tokenizers::Tokenizer::from_file(&path) {
            Ok(inner) => Ok(Some(Self { path, inner })),
            Err(error) => Err(RuntimeError::Tokenizer { path, what: error.to_string() }),
        }
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

    /// Tokens of the vocabulary, added ones included.
    #[must_use]
    pub fn size(&self) -> usize {
        self.inner.get_vocab_size(true)
    }

    fn fault(&self, what: String) -> RuntimeError {
        RuntimeError::Tokenizer { path: self.path.clone(), what }
    }
}
