//! `tokenizer_config.json`: the chat template and the special tokens.

use std::path::Path;

use serde_json::Value;

use crate::RuntimeError;

pub(super) const FILE: &str = "tokenizer_config.json";

/// Texts of a model's special tokens.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SpecialTokens {
    /// Beginning of sequence.
    pub bos: Option<String>,
    /// End of sequence.
    pub eos: Option<String>,
}

impl SpecialTokens {
    /// Those of a model folder; nothing where it has no `tokenizer_config.json`.
    ///
    /// # Errors
    /// [`RuntimeError::Tokenizer`] where that file is no JSON; [`RuntimeError::Io`].
    pub fn read(dir: &Path) -> Result<Self, RuntimeError> {
        let Some(config) = config(dir)? else { return Ok(Self::default()) };
        // A text, or an added token with its text under `content`.
        let token = |key: &str| {
            let value = config.get(key)?;
            value.as_str().or_else(|| value.get("content")?.as_str()).map(str::to_owned)
        };
        Ok(Self { bos: token("bos_token"), eos: token("eos_token") })
    }
}

/// The template text.
pub(super) fn template(dir: &Path) -> Result<Option<String>, RuntimeError> {
    let Some(config) = config(dir)? else { return Ok(None) };
    let fault =
        |what: &str| RuntimeError::Tokenizer { path: dir.join(FILE), what: what.to_owned() };
    match config.get("chat_template") {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => Ok(Some(text.clone())),
        Some(Value::Array(named)) => {
            let default = named
                .iter()
                .find(|entry| entry.get("name").and_then(Value::as_str) == Some("default"))
                .and_then(|entry| entry.get("template")?.as_str());
            let text = default.ok_or_else(|| {
                fault("`chat_template` lists no template named `default`; give one with --chat-template FILE")
            })?;
            Ok(Some(text.to_owned()))
        }
        Some(_) => Err(fault("`chat_template` is neither a text nor a list")),
    }
}

fn config(dir: &Path) -> Result<Option<Value>, RuntimeError> {
    let path = dir.join(FILE);
    if !path.is_file() {
        return Ok(None);
    }
    let text = std::fs::read(&path).map_err(RuntimeError::io(&path))?;
    match serde_json::from_slice(&text) {
        Ok(value) => Ok(Some(value)),
        Err(error) => Err(RuntimeError::Tokenizer { path, what: error.to_string() }),
    }
}
