//! What a source could say: which numbers its `top_logits` really are, whether its ids and row counts are its own.
//!
//! A run that this project's runtime wrote says everything, which is the default. An importer states what its source
//! leaves out, and a comparison then says "not available" instead of "equal" or "different".

use serde::{Deserialize, Serialize};

/// What stands in `top_logits`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Values {
    /// Logits as the model's head gave them, before temperature and filters.
    #[default]
    Logits,
    /// Natural log-probabilities over the whole vocabulary, before temperature and filters; `logsumexp` is 0.
    Logprobs,
    /// Log-probabilities after temperature or filters: ranks can be compared, values only with the same settings.
    ProcessedLogprobs,
    /// Log-probabilities, and the source does not say whether they are raw or processed.
    UnsaidLogprobs,
    /// No values at all: tokens or texts only.
    Nothing,
}

/// Where token ids come from.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TokenIds {
    /// The source's own.
    #[default]
    Given,
    /// The source gives texts; a tokenizer found the ids.
    Tokenizer,
    /// The source gives texts only; ids number the texts of this run (`token_texts.json` lists them).
    Invented,
    /// No token is known.
    Nothing,
}

/// What a run's source could say. Absent in a manifest: everything.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct SourceLimits {
    /// Meaning of `top_logits`.
    pub values: Values,
    /// Origin of the ids.
    pub token_ids: TokenIds,
    /// `rows_before` and `rows_after` are the source's; where false they are placeholders (`position`, `position + 1`).
    pub rows: bool,
    /// Digits behind the point of printed values (`ValueEncoding::Decimals`).
    pub decimals: Option<u8>,
    /// Largest absolute error of a stored value, in nats, by its encoding (`ValueEncoding::Codes16`).
    pub value_error: Option<f64>,
    /// What else the source cannot say, one line each.
    pub cannot: Vec<String>,
}

impl Default for SourceLimits {
    fn default() -> Self {
        Self {
            values: Values::Logits,
            token_ids: TokenIds::Given,
            rows: true,
            decimals: None,
            value_error: None,
            cannot: Vec::new(),
        }
    }
}
