//! What a file of answers holds, whatever it calls its fields.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Whose rows these are; told by their keys.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Schema {
    /// lm-eval's samples: one row for each document and filter.
    LmEval,
    /// lm-eval's samples from before rows named their filter: the rows of all filters, one filter after another.
    LmEvalNoFilter,
    /// First rows of TensorRT-Model-Connect's benchmark: `answer` is the gold answer copied from the data set, and there is no
    /// prediction.
    TrtmcGoldEcho,
    /// Its later rows: `gold_answer` and `pred_answer`.
    Trtmc,
    /// Its rows with `generated_token_ids`.
    TrtmcTokenIds,
    /// Rows of its Hugging Face driver: no prefill and decode times.
    TrtmcHf,
    /// Rows with an id, a gold answer, and a prediction or a text.
    #[default]
    Plain,
    /// Samples of a run.
    Run,
}

impl Schema {
    /// One of lm-eval's.
    #[must_use]
    pub const fn is_lm_eval(self) -> bool {
        matches!(self, Self::LmEval | Self::LmEvalNoFilter)
    }

    /// Every row has a place for its prediction: one that is not there was not made.
    #[must_use]
    pub const fn has_predictions(self) -> bool {
        matches!(self, Self::Trtmc | Self::TrtmcTokenIds | Self::TrtmcHf | Self::Run)
    }

    /// Name in answers.
    #[must_use]
    pub const fn slug(self) -> &'static str {
        match self {
            Self::LmEval => "lm-eval",
            Self::LmEvalNoFilter => "lm-eval-no-filter",
            Self::TrtmcGoldEcho => "trtmc-gold-echo",
            Self::Trtmc => "trtmc",
            Self::TrtmcTokenIds => "trtmc-token-ids",
            Self::TrtmcHf => "trtmc-hf",
            Self::Plain => "plain",
            Self::Run => "run",
        }
    }
}

/// Names of fields that the caller declares, where a file calls them otherwise.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Fields {
    /// Id of the question.
    pub id: Option<String>,
    /// Gold answer.
    pub gold: Option<String>,
    /// Recorded prediction.
    pub answer: Option<String>,
    /// Completion.
    pub text: Option<String>,
}

/// One row.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct AnswerRow {
    /// Whose row.
    pub schema: Schema,
    /// 1-based line; for samples of a run their 1-based place.
    pub line: usize,
    /// Question.
    pub id: String,
    /// Which of several runs of the question, where the row says so (`seed_index`).
    pub repeat: Option<u64>,
    /// lm-eval's filter.
    pub filter: Option<String>,
    /// Gold answer as recorded; of a GSM8K solution what stands behind its last `####`.
    pub gold: Option<String>,
    /// Completion.
    pub text: Option<String>,
    /// Recorded prediction.
    pub answer: Option<String>,
    /// Rule that a run names for it.
    pub answer_rule: Option<String>,
    /// lm-eval's prompt as it was sent: text, or a chat's messages as JSON text.
    pub prompt: Option<String>,
    /// lm-eval's generation settings of the row.
    pub settings: Option<Value>,
    /// Log-likelihoods of lm-eval's requests in order, nats, each with "it is what greedy decoding gives": such a row has no text.
    pub likelihoods: Option<Vec<(f64, bool)>>,
    /// Recorded metric and its value.
    pub metric: Option<(String, f64)>,
    /// Generated token ids.
    pub tokens: Option<Vec<u32>>,
    /// A length limit or a full cache stopped the completion.
    pub stopped: bool,
    /// `doc_hash`, `prompt_hash`, `target_hash` where recorded.
    pub hashes: BTreeMap<String, String>,
    /// sha256 of the row as JSON with sorted keys: equal rows have equal hashes.
    pub content: String,
}

/// What was read beside the rows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AnswerSource {
    /// Whose rows.
    pub schema: Schema,
    /// Rows.
    pub rows: u64,
    /// The file ends inside a row, or the run did not finish: what is there is a prefix.
    pub cut: bool,
    /// What was read around, one line each.
    pub remarks: Vec<String>,
}
