//! Parts of a report that are words and tables.

use std::collections::BTreeMap;

use lockstep_diff::stats::PairedScores;
use lockstep_traces::manifest::Setting;
use lockstep_traces::{Status, Verdict};
use serde::{Deserialize, Serialize};

use crate::num::Num;

/// How a paragraph is set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ParagraphKind {
    /// One line that says it all.
    Headline,
    /// Running text.
    Text,
    /// An item of a list.
    Item,
    /// Something passed; the terminal hides it.
    Passed,
    /// Something wrong or unexpected.
    Problem,
}

/// A piece of the story.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Paragraph {
    /// How it is set.
    pub kind: ParagraphKind,
    /// Plain text.
    pub text: String,
}

impl Paragraph {
    /// A paragraph.
    #[must_use]
    pub fn new(kind: ParagraphKind, text: impl Into<String>) -> Self {
        Self { kind, text: text.into() }
    }
}

/// A run in a few words.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RunSummary {
    /// Name in this report: `dense`, `trt`, ...
    pub label: String,
    /// Writer and version.
    pub producer: String,
    /// Policy with its rule set, budget and divide length.
    pub policy: String,
    /// Arithmetic dtype.
    pub dtype: Option<String>,
    /// Element type of the KV cache.
    pub cache_dtype: Option<String>,
    /// Device.
    pub device: String,
    /// Samples.
    pub samples: u64,
    /// Step rows.
    pub rows: u64,
    /// Compactions.
    pub compactions: u64,
    /// State.
    pub status: Status,
    /// Slug of a fault planted on purpose.
    pub plant: Option<String>,
    /// Remarks of the writer or importer.
    pub remarks: Vec<String>,
    /// Effective configuration with the source of each value.
    pub config: BTreeMap<String, Setting>,
}

/// One policy in the comparison of policies.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PolicyRow {
    /// Policy, as shown.
    pub policy: String,
    /// Samples that compacted at least once.
    pub n: u64,
    /// Of them: completions equal to the baseline's, token for token.
    pub exact: u64,
    /// Of them: answers equal to the gold answer, where there is one.
    pub right: Option<u64>,
    /// Earliest first differing token, counted from the first compaction.
    pub first_wrong: Option<u64>,
    /// Median of the share of the completion before the first differing token, 0 to 1.
    pub prefix_share: Option<Num>,
    /// Policy that the p value is against.
    pub against: Option<String>,
    /// Exact two-sided McNemar p of `exact`, paired by sample.
    pub mcnemar_p: Option<Num>,
    /// The two policies' `exact` side by side: the policy of `against` left, this one right.
    #[serde(default)]
    pub paired: Option<PairedScores>,
    /// One line.
    pub note: Option<String>,
}

/// A token as it is shown.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Token {
    /// Id.
    pub id: u32,
    /// Text with everything hidden made visible (`\xNN` for bytes that are no UTF-8).
    pub text: String,
    /// The bytes in hex, where `text` is not simply the bytes.
    pub hex: Option<String>,
}

impl Token {
    /// A token of this id and these bytes.
    #[must_use]
    pub fn new(id: u32, bytes: &[u8]) -> Self {
        let hex = (!crate::escape::is_plain(bytes)).then(|| crate::escape::hex(bytes));
        Self { id, text: crate::escape::visible(bytes), hex }
    }
}

/// One position of a token strip.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TokenCell {
    /// Absolute position at which the token is fed.
    pub position: u32,
    /// Token of the baseline.
    pub left: Option<Token>,
    /// Token of the target.
    pub right: Option<Token>,
    /// Both sides feed the same id.
    pub same: bool,
    /// Part of the prompt.
    pub prompt: bool,
    /// Ordinal of the target's compaction in this step.
    pub compaction: Option<u32>,
}

/// Tokens around a split, by the position at which they are fed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TokenStrip {
    /// Sample.
    pub sample_id: String,
    /// Baseline.
    pub left_label: String,
    /// Target.
    pub right_label: String,
    /// Deciding row.
    pub row: Option<u32>,
    /// Position at which the first differing token is fed.
    pub fed_at: Option<u32>,
    /// Cells in order of position.
    pub cells: Vec<TokenCell>,
}

/// One line that says what a verdict means for a reader.
#[must_use]
pub(crate) fn verdict_sentence(verdict: &Verdict) -> String {
    match verdict {
        Verdict::Identical => "bit for bit equal".to_owned(),
        Verdict::WithinNoise => "different by no more than the same-dtype control".to_owned(),
        Verdict::Tie => "only choices among exactly equal values differ".to_owned(),
        Verdict::Diverged => "different".to_owned(),
        Verdict::Incomparable { why } => format!("not decidable: {why}"),
    }
}
