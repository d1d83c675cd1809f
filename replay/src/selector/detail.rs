//! Figures of a selector check, in the report's `detail` with stable keys.

use serde::{Deserialize, Serialize};

/// One stage of one compaction against the reference.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StageDetail {
    /// `scores.raw`, `scores.z`, `scores.group` or `scores.final`.
    pub stage: String,
    /// Numbers compared.
    pub compared: u64,
    /// Largest absolute difference of finite numbers.
    pub max_abs: f64,
    /// The figure that is judged: relative to the largest expected modulus for raw scores, absolute elsewhere.
    pub error: f64,
    /// Its limit.
    pub tolerance: f64,
    /// The same figure between the reference in f32 and in f64, where it was needed.
    pub control: Option<f64>,
    /// Within the limit, with infinities in the same places.
    pub within: bool,
    /// Where the first wrong infinity or else the largest difference is.
    pub worst: Option<Cell>,
    /// What is wrong beyond numbers.
    pub note: Option<String>,
}

/// One number of a stage.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cell {
    /// Layer, where the stage has layers.
    pub layer: Option<u32>,
    /// Attention head (raw, z) or KV head, where the stage has heads.
    pub head: Option<u32>,
    /// Cache row.
    pub row: u32,
}

/// How one keep-set relates to the reference's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SetStatus {
    /// The same rows.
    Exact,
    /// Other rows, all of which tie with the threshold.
    Tie,
    /// Other rows.
    Differs,
}

/// One keep-set.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SetDetail {
    /// Layer, where sets are by layer.
    pub layer: Option<u32>,
    /// KV head, where sets are by head.
    pub head: Option<u32>,
    /// Outcome.
    pub status: SetStatus,
    /// Rows in both over rows in either.
    pub jaccard: f64,
    /// Rows that the reference keeps and the run does not.
    pub missing: Vec<u32>,
    /// Rows that the run keeps and the reference does not.
    pub extra: Vec<u32>,
    /// Rows kept outright by the rule that the run does not hold.
    pub unprotected: Vec<u32>,
    /// The recorded set is a top-k of the recorded ranked scores; `None` where no scores are recorded.
    pub follows_scores: Option<bool>,
    /// Rows whose scores equal the threshold exactly were chosen against the rule's order of rows.
    pub against_tie_rule: bool,
    /// Rows are in the order of the rule set.
    pub ordered: bool,
}

/// One hypothesis at one compaction.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct HypothesisDetail {
    /// Stable name.
    pub name: String,
    /// The cause it stands for, as a slug.
    pub cause: Option<String>,
    /// Keep-sets equal to the recorded ones.
    pub exact_heads: u64,
    /// Keep-sets that differ only in ties.
    pub tie_heads: u64,
    /// Keep-sets compared.
    pub heads: u64,
    /// Mean Jaccard index over keep-sets.
    pub mean_jaccard: f64,
    /// Largest ratio of a stage's error to its limit; `None` where no stage is recorded, or infinities or shapes differ.
    pub max_stage_error: Option<f64>,
    /// First stage that does not agree.
    pub first_stage: Option<String>,
    /// Everything recorded agrees with it.
    pub reproduces: bool,
    /// It gives what the rule set itself gives here, so that this compaction cannot tell them apart.
    pub indistinguishable: bool,
}

/// One compaction.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct EventDetail {
    /// Sample.
    pub sample_id: String,
    /// 1-based ordinal.
    pub ordinal: u32,
    /// N.
    pub absolute_position: u32,
    /// R as the run says it used it.
    pub round_start: Option<u32>,
    /// Rows before.
    pub rows_before: u32,
    /// Rows after.
    pub rows_after: u32,
    /// Worst outcome over its keep-sets and stages.
    pub status: SetStatus,
    /// First stage that differs: `score`, `normalise`, `reduce`, `protect`, `budget`, `tie`, `select` or `sort`.
    pub first_stage: Option<String>,
    /// Keep-sets compared.
    pub heads: u64,
    /// Of these exact.
    pub exact: u64,
    /// Of these ties.
    pub tie: u64,
    /// Of these different.
    pub differs: u64,
    /// Stages.
    pub stages: Vec<StageDetail>,
    /// What is wrong with the number of rows or the axes of the keep-sets.
    pub budget: Option<String>,
    /// Keep-sets that are not exact, not ordered or not protected.
    pub sets: Vec<SetDetail>,
    /// The matrix, where it was run.
    pub hypotheses: Vec<HypothesisDetail>,
}

/// `detail` of the report.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SelectorDetail {
    /// Rule set judged by.
    pub rule_set: String,
    /// Compactions compared.
    pub events: u64,
    /// Keep-sets compared.
    pub heads: u64,
    /// Of these exact.
    pub exact: u64,
    /// Of these ties.
    pub tie: u64,
    /// Of these different.
    pub differs: u64,
    /// By compaction.
    pub by_event: Vec<EventDetail>,
}
