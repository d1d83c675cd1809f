//! Bytes of a tokenizer's tokens, and ids by bytes.

use std::collections::BTreeMap;
use std::path::Path;

use lockstep_runtime::tokenize::Tokenizer;
use lockstep_traces::logprobs::{FoundId, TokenName};
use lockstep_traces::tokens::Vocabulary;

use crate::exit::usage;

/// Ids beyond the vocabulary's size that are looked at: added tokens may leave gaps.
const BEYOND: usize = 4096;

/// The vocabulary of a tokenizer.
pub(crate) struct TokenBytes {
    vocabulary: Vocabulary,
    /// Lowest id, and how many there are.
    ids: BTreeMap<Vec<u8>, (u32, usize)>,
}

impl TokenBytes {
    /// Reads the tokenizer of a model folder, of a folder with a `tokenizer.json`, or of a GGUF file.
    pub(crate) fn read(model: &Path) -> anyhow::Result<Self> {
        let folder = model.is_dir() || lockstep_traces::gguf::is_gguf(model);
        let place = if folder { model } else { model.parent().unwrap_or(model) };
        let tokenizer = Tokenizer::read(place)?
            .ok_or_else(|| usage(format!("--model {}: no tokenizer there", place.display())))?;
        let most = u32::try_from(tokenizer.size().saturating_add(BEYOND)).unwrap_or(u32::MAX);
        let pieces: BTreeMap<u32, String> =
            (0..most).filter_map(|id| Some((id, tokenizer.token(id)?))).collect();
        let known: Vec<u32> = pieces.keys().copied().collect();
        let vocabulary = Vocabulary::new(pieces);
        let mut ids: BTreeMap<Vec<u8>, (u32, usize)> = BTreeMap::new();
        for id in known {
            if let Some(bytes) = vocabulary.bytes(id) {
                ids.entry(bytes).or_insert((id, 0)).1 += 1;
            }
        }
        Ok(Self { vocabulary, ids })
    }

    /// Bytes of an id.
    pub(crate) fn bytes(&self, id: u32) -> Option<Vec<u8>> {
        self.vocabulary.bytes(id)
    }

    /// The id of a token that is known by its bytes, or by a text that holds all of them.
    pub(crate) fn find(&self, token: &TokenName) -> FoundId {
        let by_text = || {
            let text = token.text.as_deref()?;
            (!text.contains(char::REPLACEMENT_CHARACTER)).then_some(text.as_bytes())
        };
        let found = token.bytes.as_deref().or_else(by_text).and_then(|bytes| self.ids.get(bytes));
        match found {
            None => FoundId::Nothing,
            Some((id, 1)) => FoundId::One(*id),
            Some((id, _)) => FoundId::Several(*id),
        }
    }
}
