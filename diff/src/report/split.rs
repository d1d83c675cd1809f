//! A split: the row whose logits or rows decided otherwise, both sides in full.

use serde::{Deserialize, Serialize};

/// Which of the four firsts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SplitKind {
    /// Cache rows, compactions or the presence of rows.
    Structural,
    /// Logits: hash where both sides have one, stored values otherwise.
    Logit,
    /// Id of the largest logit.
    Argmax,
    /// Chosen token.
    Token,
}

/// What a split is worth.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SplitClass {
    /// Both sides hold the same values and the gap between the two choices is exactly 0 in the declared dtype.
    Tie,
    /// The gap is at most one ULP of the declared dtype on one side at least.
    NearTie,
    /// The gap is larger.
    Clear,
    /// A side has no finite logits here; its choice says nothing.
    NonFinite,
    /// Expected: the policies of the two sides differ.
    Policy,
    /// A plain difference to which no gap applies (rows, values).
    Plain,
}

/// One entry of a row's top list.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TopEntry {
    /// Token id.
    pub id: u32,
    /// Raw logit; `null` where it is not finite.
    pub logit: Option<f32>,
}

/// One side of a row.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct RowView {
    /// Absolute position of this side's row.
    pub position: u32,
    /// Token fed at this row.
    pub token_id: u32,
    /// Token chosen from this row's logits, where known.
    pub chosen: Option<u32>,
    /// Id of the largest logit.
    pub argmax: u32,
    /// Largest logits, as stored.
    pub top: Vec<TopEntry>,
    /// Largest minus second largest logit.
    pub margin: Option<f64>,
    /// That margin in ULPs of [`Split::ulp_dtype`] at the size of the largest logit.
    pub margin_ulps: Option<f64>,
    /// This side's logit of its own choice minus its logit of the other side's choice.
    pub gap: Option<f64>,
    /// That gap in ULPs of [`Split::ulp_dtype`].
    pub gap_ulps: Option<f64>,
    /// Random number that decided the draw.
    pub uniform: Option<f32>,
    /// Counter of the random stream before the draw.
    pub rng_offset: Option<u64>,
    /// Rows before this token was appended; `null` where the source does not count them.
    pub rows_before: Option<u32>,
    /// Rows after append and compaction.
    pub rows_after: Option<u32>,
    /// Ordinal of the compaction of this step.
    pub compaction: Option<u32>,
    /// False where a logit is NaN or infinite.
    pub finite: bool,
}

/// One of the four firsts of one sample.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Split {
    /// Which first.
    pub kind: SplitKind,
    /// What it is worth.
    pub class: SplitClass,
    /// Deciding row r: absolute position on the left side.
    pub position: u32,
    /// Row that is fed what r decided: r + 1.
    pub fed_at: u32,
    /// Left side; `null` where it has no such row.
    pub left: Option<RowView>,
    /// Right side; `null` where it has no such row.
    pub right: Option<RowView>,
    /// The smaller of the two gaps in ULPs, where the split is one between two ids.
    pub margin_ulps: Option<f64>,
    /// Dtype whose ULP is meant: `f32`, `f16`, `bf16`.
    pub ulp_dtype: String,
    /// True where the class is [`SplitClass::NearTie`].
    pub near_tie: bool,
    /// Largest absolute difference of the logits that both sides stored at this row.
    pub max_abs_diff: Option<f64>,
    /// One line for people.
    pub note: String,
}

/// The four firsts of one sample; never merged.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Splits {
    /// First difference of rows, compactions or presence.
    pub structural: Option<Split>,
    /// First difference of logits.
    pub logit: Option<Split>,
    /// First difference of the argmax id that is no tie.
    pub argmax: Option<Split>,
    /// First difference of the chosen token that is no tie.
    pub token: Option<Split>,
}
