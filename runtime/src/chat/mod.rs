//! Chat templates: conversations become the text that a model was trained on.
//!
//! A template is Jinja source in `chat_template.jinja`, or under `chat_template` of `tokenizer_config.json` (a text, or
//! a list of named ones, of which `default` is taken). It is rendered with the whitespace rules and the variables that
//! Hugging Face transformers gives it (`messages`, `add_generation_prompt`, `bos_token`, `eos_token`, `tools` and
//! `documents` as none). `strftime_now` is left undefined on purpose: a prompt that depends on the day of the run cannot
//! be compared, and templates that ask for the date have a fixed one for this case.

mod config;
mod json;
#[cfg(test)]
mod tests;

use std::path::Path;

use lockstep_traces::dataset::Message;
use lockstep_traces::hash::sha256_hex;
use minijinja::syntax::SyntaxConfig;
use minijinja::{AutoEscape, Environment, Error, ErrorKind, Value, context};

pub use config::SpecialTokens;

use crate::RuntimeError;

/// Name of the template file of a model folder.
const FILE: &str = "chat_template.jinja";
/// Instructions that a template may take, and 64 bytes of output each: a conversation of megabytes stays below.
const FUEL: u64 = 5_000_000;

/// A model's chat template.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChatTemplate {
    /// File it was read from.
    pub source: String,
    text: String,
    special: SpecialTokens,
}

/// What a template is told besides the messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChatFlags {
    /// End with the opening of the assistant's turn.
    pub add_generation_prompt: bool,
    /// `enable_thinking`, where it is to be defined at all.
    pub enable_thinking: Option<bool>,
}

impl Default for ChatFlags {
    fn default() -> Self {
        Self { add_generation_prompt: true, enable_thinking: None }
    }
}

impl ChatTemplate {
    /// The template of a model folder; `None` where it has none. `chat_template.jinja` goes before `tokenizer_config.json`.
    ///
    /// # Errors
    /// [`RuntimeError::Tokenizer`] for a `tokenizer_config.json` that cannot be used; [`RuntimeError::Io`].
    pub fn read(dir: &Path) -> Result<Option<Self>, RuntimeError> {
        let path = dir.join(FILE);
        if path.is_file() {
            return Self::from_file(&path, dir).map(Some);
        }
        let found = config::template(dir)?;
        let special = SpecialTokens::read(dir)?;
        Ok(found.map(|text| Self { source: config::FILE.to_owned(), text, special }))
    }

    /// A template from a file of its own, with the special tokens of the model folder `dir`.
    ///
    /// # Errors
    /// As [`ChatTemplate::read`].
    pub fn from_file(path: &Path, dir: &Path) -> Result<Self, RuntimeError> {
        let text = std::fs::read_to_string(path).map_err(RuntimeError::io(path))?;
        let name = path.file_name().map(|name| name.to_string_lossy().into_owned());
        Ok(Self { source: name.unwrap_or_default(), text, special: SpecialTokens::read(dir)? })
    }

    /// sha256 of the template's text, hex.
    #[must_use]
    pub fn sha256(&self) -> String {
        sha256_hex(self.text.as_bytes())
    }

    /// The conversation as text. Special tokens are in it; encode it without adding them again.
    ///
    /// # Errors
    /// [`RuntimeError::Template`] with the template's line where it does not parse, fails, or refuses the conversation.
    pub fn render(&self, messages: &[Message], flags: ChatFlags) -> Result<String, RuntimeError> {
        self.rendered(messages, flags).map_err(|error| RuntimeError::Template {
            source_name: self.source.clone(),
            what: described(&error),
        })
    }

    fn rendered(&self, messages: &[Message], flags: ChatFlags) -> Result<String, Error> {
        if signs_in_a_row(&self.text) > MOST_SIGNS {
            let what = format!("more than {MOST_SIGNS} signs or `not` in a row");
            return Err(Error::new(ErrorKind::SyntaxError, what));
        }
        let environment = environment()?;
        let template = environment.template_from_str(&self.text)?;
        let turns: Vec<Value> = messages
            .iter()
            .map(|turn| {
                Value::from_pairs([
                    ("role", turn.role.as_str()),
                    ("content", turn.content.as_str()),
                ])
            })
            .collect();
        let thinking = flags.enable_thinking.map_or(Value::UNDEFINED, Value::from);
        template.render(context! {
            messages => turns,
            add_generation_prompt => flags.add_generation_prompt,
            enable_thinking => thinking,
            bos_token => self.special.bos.clone().map_or(Value::UNDEFINED, Value::from),
            eos_token => self.special.eos.clone().map_or(Value::UNDEFINED, Value::from),
            tools => Value::from(()),
            documents => Value::from(()),
        })
    }
}

/// Signs in a row at most. The template engine bounds every nesting but this one: each takes about a kilobyte of its stack.
const MOST_SIGNS: usize = 500;

/// The longest run of `-`, `+` and `not` with nothing but blanks between them.
fn signs_in_a_row(text: &str) -> usize {
    let (mut most, mut run, mut rest) = (0, 0, text);
    while let Some(first) = rest.chars().next() {
        let word = rest.strip_prefix("not");
        if word.is_some() || matches!(first, '-' | '+') {
            run += 1;
            most = most.max(run);
        } else if !first.is_whitespace() {
            run = 0;
        }
        rest = word.unwrap_or_else(|| rest.get(first.len_utf8()..).unwrap_or_default());
    }
    most
}

/// Jinja as transformers sets it up: blocks take the newline after them and the blanks before them, nothing is escaped,
/// strings have Python's methods, `break` and `continue` exist.
fn environment() -> Result<Environment<'static>, Error> {
    let mut environment = Environment::new();
    environment.set_syntax(SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build()?);
    environment.set_auto_escape_callback(|_| AutoEscape::None);
    environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
    environment.set_fuel(Some(FUEL));
    environment.add_filter("tojson", json::tojson);
    environment.add_function("raise_exception", |what: String| -> Result<Value, Error> {
        Err(Error::new(ErrorKind::InvalidOperation, what))
    });
    Ok(environment)
}

/// One line.
fn described(error: &Error) -> String {
    let line = error.line().map_or_else(String::new, |line| format!("line {line}: "));
    let detail = error.detail().map_or_else(String::new, |detail| format!(": {detail}"));
    format!("{line}{}{detail}", error.kind()).replace('\n', " ")
}
