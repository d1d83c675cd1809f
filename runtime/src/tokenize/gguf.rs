//! The byte-level BPE tokenizer in the metadata of a GGUF file, built through the `tokenizers` crate.
//!
//! The file holds tokens, their kinds, merges, and the name of a pre-tokenizer; what that name means is told by llama.cpp's table of
//! regular expressions. Control tokens are matched in the text before anything else, as are user-defined ones; `add_bos_token` and
//! `add_eos_token` decide what is put around a text. No normalisation is applied: the file names none.

use std::collections::BTreeSet;
use std::path::Path;

use lockstep_traces::gguf::{GgufHeader, GgufValue};
use serde_json::{Value, json};

use super::{Found, Tokenizer};
use crate::RuntimeError;
use crate::weights::open_gguf;

/// Kinds of tokens (`tokenizer.ggml.token_type`).
const CONTROL: i64 = 3;
const USER_DEFINED: i64 = 4;

/// Contractions, words with at most one other character in front, single digits, runs of other characters, line ends, spaces.
const QWEN2: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
/// As [`QWEN2`] with up to three digits together.
const LLAMA3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// The tokenizer of a file.
pub(super) fn read(path: &Path) -> Result<Found, RuntimeError> {
    let (_, header) = open_gguf(path)?;
    let source = Source { path, header: &header };
    let Some(model) = source.text("tokenizer.ggml.model")? else { return Ok(Found::Nothing) };
    if model != "gpt2" {
        return Ok(unsupported(&format!("tokenizer.ggml.model is `{model}`, only gpt2 is built")));
    }
    let pre = source.text("tokenizer.ggml.pre")?.unwrap_or("default");
    let Some(pre) = pre_tokenizer(pre) else {
        return Ok(unsupported(&format!("tokenizer.ggml.pre is `{pre}`, which is not known")));
    };
    if source.flag("tokenizer.ggml.add_space_prefix")? == Some(true) {
        return Ok(unsupported("tokenizer.ggml.add_space_prefix is true"));
    }
    let definition = source.definition(&pre)?;
    let built = serde_json::to_vec(&definition)
        .map_err(|error| error.to_string())
        .and_then(|text| super::built(|| tokenizers::Tokenizer::from_bytes(text)));
    match built {
        Ok(inner) => Ok(Found::Tokenizer(Box::new(Tokenizer { path: path.to_owned(), inner }))),
        Err(what) => Err(source.error(what)),
    }
}

fn unsupported(why: &str) -> Found {
    Found::Unsupported(format!(
        "the file's tokenizer cannot be used: {why}; give prompts as token ids"
    ))
}

/// How text is cut before merging.
struct Pre {
    steps: Vec<Value>,
    /// A whole word that is a token is taken without merging.
    ignore_merges: bool,
    /// A beginning-of-sequence token where the file does not say.
    bos: bool,
}

/// The pre-tokenizer of this name. The names are llama.cpp's; those that share an expression stand together.
fn pre_tokenizer(name: &str) -> Option<Pre> {
    let byte_level = |regex: bool| json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": regex});
    let split = |pattern: &str| json!({"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": false});
    let pre = |steps, ignore_merges, bos| Some(Pre { steps, ignore_merges, bos });
    match name {
        "gpt-2" | "phi-2" | "jina-es" | "jina-de" | "mpt" | "olmo" | "jais" | "trillion" => {
            pre(vec![byte_level(true)], false, false)
        }
        "smollm" | "starcoder" | "refact" | "command-r" | "codeshell" | "exaone" => {
            let digits = json!({"type": "Digits", "individual_digits": true});
            pre(vec![digits, byte_level(true)], false, false)
        }
        "llama3" | "llama-v3" | "llama-bpe" | "dbrx" | "smaug-bpe" => {
            pre(vec![split(LLAMA3), byte_level(false)], true, name.starts_with("llama"))
        }
        "qwen2" | "deepseek-r1-qwen" => pre(vec![split(QWEN2), byte_level(false)], false, false),
        _ => None,
    }
}

struct Source<'a> {
    path: &'a Path,
    header: &'a GgufHeader,
}

impl Source<'_> {
    fn error(&self, what: impl Into<String>) -> RuntimeError {
        RuntimeError::Tokenizer { path: self.path.to_owned(), what: what.into() }
    }

    fn typed<'v, T>(
        &'v self,
        key: &str,
        wanted: &str,
        read: impl Fn(&'v GgufValue) -> Option<T>,
    ) -> Result<Option<T>, RuntimeError> {
        let Some(value) = self.header.get(key) else { return Ok(None) };
        read(value).map(Some).ok_or_else(|| {
            self.error(format!("key `{key}` is {}, {wanted} is expected", value.kind()))
        })
    }

    fn text(&self, key: &str) -> Result<Option<&str>, RuntimeError> {
        self.typed(key, "a text", GgufValue::as_text)
    }

    fn flag(&self, key: &str) -> Result<Option<bool>, RuntimeError> {
        self.typed(key, "a truth value", GgufValue::as_bool)
    }

    fn list<'v, T>(
        &'v self,
        key: &str,
        read: impl Fn(&'v GgufValue) -> Option<T>,
    ) -> Result<Option<Vec<T>>, RuntimeError> {
        self.typed(key, "a list", |value| value.as_array()?.iter().map(&read).collect())
    }

    /// The `tokenizer.json` that says what the metadata says.
    fn definition(&self, pre: &Pre) -> Result<Value, RuntimeError> {
        let tokens = self.list("tokenizer.ggml.tokens", GgufValue::as_text)?;
        let tokens = tokens.ok_or_else(|| self.error("key `tokenizer.ggml.tokens` is missing"))?;
        let mut seen = BTreeSet::new();
        if let Some(id) = tokens.iter().position(|token| !seen.insert(*token)) {
            return Err(self.error(format!("token {id}, {:?}, is there twice", tokens[id])));
        }
        let vocab: serde_json::Map<String, Value> =
            tokens.iter().enumerate().map(|(id, token)| ((*token).to_owned(), id.into())).collect();
        Ok(json!({
            "version": "1.0", "truncation": null, "padding": null, "normalizer": null,
            "added_tokens": self.added(&tokens)?,
            "pre_tokenizer": {"type": "Sequence", "pretokenizers": pre.steps},
            "post_processor": self.around(&tokens, pre)?,
            "decoder": {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true},
            "model": {
                "type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
                "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false,
                "ignore_merges": pre.ignore_merges, "vocab": vocab, "merges": self.merges(&seen)?
            }
        }))
    }

    /// Two tokens each, both of the vocabulary.
    fn merges(&self, vocab: &BTreeSet<&str>) -> Result<Vec<(String, String)>, RuntimeError> {
        let key = "tokenizer.ggml.merges";
        let merges = self.list(key, GgufValue::as_text)?;
        let merges = merges.ok_or_else(|| self.error(format!("key `{key}` is missing")))?;
        let pairs = merges.iter().enumerate().map(|(number, merge)| {
            let pair = merge.split_once(' ').filter(|(a, b)| {
                vocab.contains(a) && vocab.contains(b) && vocab.contains(format!("{a}{b}").as_str())
            });
            pair.map(|(a, b)| (a.to_owned(), b.to_owned())).ok_or_else(|| {
                self.error(format!(
                    "merge {number}, {merge:?}, does not join two tokens to a third"
                ))
            })
        });
        pairs.collect()
    }

    fn added(&self, tokens: &[&str]) -> Result<Vec<Value>, RuntimeError> {
        let key = "tokenizer.ggml.token_type";
        let kind = |value: &GgufValue| match value {
            GgufValue::Signed(kind) => Some(*kind),
            other => other.as_u64().and_then(|kind| i64::try_from(kind).ok()),
        };
        let kinds = self.list(key, kind)?.unwrap_or_else(|| vec![1; tokens.len()]);
        if kinds.len() != tokens.len() {
            let what = format!(
                "key `{key}` has {} entries, {} tokens are there",
                kinds.len(),
                tokens.len()
            );
            return Err(self.error(what));
        }
        let tokens = tokens.iter().zip(kinds).enumerate();
        let added = tokens.filter(|(_, (token, kind))| {
            !token.is_empty() && matches!(*kind, CONTROL | USER_DEFINED)
        });
        Ok(added
            .map(|(id, (token, kind))| {
                json!({"id": id, "content": token, "single_word": false, "lstrip": false, "rstrip": false,
                       "normalized": false, "special": kind == CONTROL})
            })
            .collect())
    }

    /// The tokens that are put around a text.
    fn around(&self, tokens: &[&str], pre: &Pre) -> Result<Value, RuntimeError> {
        let bos = self.flag("tokenizer.ggml.add_bos_token")?.unwrap_or(pre.bos);
        let eos = self.flag("tokenizer.ggml.add_eos_token")?.unwrap_or(false);
        let mut specials = serde_json::Map::new();
        let mut special = |wanted: bool, key: &str| -> Result<Option<Value>, RuntimeError> {
            if !wanted {
                return Ok(None);
            }
            let id =
                self.typed(key, "a token id", |value| usize::try_from(value.as_u64()?).ok())?;
            let token = id.and_then(|id| tokens.get(id).map(|token| (id, *token)));
            let (id, token) =
                token.ok_or_else(|| self.error(format!("key `{key}` names no token")))?;
            specials.insert(token.to_owned(), json!({"id": token, "ids": [id], "tokens": [token]}));
            Ok(Some(json!({"SpecialToken": {"id": token, "type_id": 0}})))
        };
        let first = special(bos, "tokenizer.ggml.bos_token_id")?;
        let last = special(eos, "tokenizer.ggml.eos_token_id")?;
        if first.is_none() && last.is_none() {
            return Ok(Value::Null);
        }
        let text = |id: &str| json!({"Sequence": {"id": id, "type_id": 0}});
        let single: Vec<Value> =
            first.clone().into_iter().chain([text("A")]).chain(last.clone()).collect();
        let pair: Vec<Value> =
            first.into_iter().chain([text("A"), text("B")]).chain(last).collect();
        Ok(
            json!({"type": "TemplateProcessing", "single": single, "pair": pair, "special_tokens": specials}),
        )
    }
}

#[cfg(test)]
mod tests;
