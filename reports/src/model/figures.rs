//! Parts of a report that are drawn.

use serde::{Deserialize, Serialize};

use super::Token;
use crate::num::Num;

/// The four firsts of one sample as positions of their deciding rows; `null` where there is none.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Firsts {
    /// Rows, compactions or presence.
    pub structural: Option<u32>,
    /// Logits.
    pub logit: Option<u32>,
    /// Id of the largest logit.
    pub argmax: Option<u32>,
    /// Chosen token.
    pub token: Option<u32>,
}

impl Firsts {
    /// Name and position of each, in order of judgement.
    #[must_use]
    pub fn named(&self) -> [(&'static str, Option<u32>); 4] {
        [
            ("structural", self.structural),
            ("logit", self.logit),
            ("argmax", self.argmax),
            ("token", self.token),
        ]
    }
}

/// A compaction on the time line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct CompactionPoint {
    /// 1-based ordinal.
    pub ordinal: u32,
    /// Position of the row whose step compacted.
    pub position: u32,
    /// Rows before.
    pub rows_before: u32,
    /// Rows after.
    pub rows_after: u32,
}

/// Rows that one run holds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TimelineRun {
    /// Run.
    pub label: String,
    /// `[position, rows held]` at each bend of the line, in order; straight between them. A compaction has two points
    /// at its position: rows before and rows after.
    pub points: Vec<(u32, u32)>,
    /// Compactions.
    pub compactions: Vec<CompactionPoint>,
}

/// Rows held by several runs of one sample, and where they part.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Timeline {
    /// Sample.
    pub sample_id: String,
    /// Prompt length, where known.
    pub prompt_len: Option<u32>,
    /// Runs, baseline first.
    pub runs: Vec<TimelineRun>,
    /// Which two runs the firsts are of, in words.
    pub firsts_of: String,
    /// The four firsts.
    pub firsts: Firsts,
    /// First position whose fed token differs; rows from here are dependent.
    pub dependent_from: Option<u32>,
}

/// Curves over positions. All lists have one entry per position; rows are chosen, never averaged.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Curve {
    /// Sample.
    pub sample_id: String,
    /// Baseline.
    pub left_label: String,
    /// Target.
    pub right_label: String,
    /// Positions, rising.
    pub position: Vec<u32>,
    /// Largest minus second largest logit, baseline.
    pub margin_left: Vec<Option<Num>>,
    /// Same, target.
    pub margin_right: Vec<Option<Num>>,
    /// Largest absolute logit difference; `null` at rows that are not compared.
    pub logit_diff: Vec<Option<Num>>,
    /// First position whose fed token differs.
    pub dependent_from: Option<u32>,
    /// Prompt length, where known.
    pub prompt_len: Option<u32>,
    /// Rows in the trace; larger than the number of positions where rows were left out.
    pub rows: u64,
    /// The four firsts.
    pub firsts: Firsts,
}

/// Relative L2 of hidden states, stage by position.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DriftMap {
    /// Sample.
    pub sample_id: String,
    /// Baseline.
    pub left_label: String,
    /// Target.
    pub right_label: String,
    /// Stages in order of computation: `embed`, `layer00.q_norm`, ...
    pub rows: Vec<String>,
    /// First position of each column.
    pub columns: Vec<u32>,
    /// Positions merged into one column (the largest value stands); 1 where nothing was merged.
    pub merged: u32,
    /// `values[row][column]`: `|L - R|_2 / |L|_2`; `null` where there is none.
    pub values: Vec<Vec<Option<Num>>>,
    /// Same-dtype control: largest relative L2 that counts as noise, where one was measured.
    pub control: Option<Num>,
    /// First stage beyond the control: row name and position.
    pub first_beyond: Option<(String, u32)>,
}

/// What happened to one cache row in one head.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RowClass {
    /// Kept outright (prompt or window) by all sides: `P`.
    Protected,
    /// Ranked and kept by all sides: `K`.
    Kept,
    /// Ranked and dropped by all sides: `.`.
    Dropped,
    /// Kept by the left only: `L`.
    LeftOnly,
    /// Kept by the right only: `R`.
    RightOnly,
}

impl RowClass {
    /// All classes.
    pub const ALL: [Self; 5] =
        [Self::Protected, Self::Kept, Self::Dropped, Self::LeftOnly, Self::RightOnly];

    /// Letter in [`KeepHead::rows`].
    #[must_use]
    pub const fn letter(self) -> char {
        match self {
            Self::Protected => 'P',
            Self::Kept => 'K',
            Self::Dropped => '.',
            Self::LeftOnly => 'L',
            Self::RightOnly => 'R',
        }
    }

    /// The class of a letter.
    #[must_use]
    pub fn from_letter(letter: char) -> Option<Self> {
        Self::ALL.into_iter().find(|class| class.letter() == letter)
    }
}

/// Rows of one head.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeepHead {
    /// Layer, where sets differ by layer.
    pub layer: Option<u32>,
    /// KV head, where sets differ by head.
    pub head: Option<u32>,
    /// One letter per cache row before the compaction (see [`RowClass`]).
    pub rows: String,
    /// Rows by class.
    pub counts: KeepCounts,
}

/// Rows by class.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct KeepCounts {
    /// Protected.
    pub protected: u64,
    /// Kept by all sides.
    pub kept: u64,
    /// Dropped by all sides.
    pub dropped: u64,
    /// Kept by the left only.
    pub left_only: u64,
    /// Kept by the right only.
    pub right_only: u64,
}

impl KeepCounts {
    /// Counts the letters of a head; other letters are not counted.
    #[must_use]
    pub fn of(rows: &str) -> Self {
        let mut counts = Self::default();
        for class in rows.chars().filter_map(RowClass::from_letter) {
            *match class {
                RowClass::Protected => &mut counts.protected,
                RowClass::Kept => &mut counts.kept,
                RowClass::Dropped => &mut counts.dropped,
                RowClass::LeftOnly => &mut counts.left_only,
                RowClass::RightOnly => &mut counts.right_only,
            } += 1;
        }
        counts
    }

    /// Sum of two counts.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self {
            protected: self.protected + other.protected,
            kept: self.kept + other.kept,
            dropped: self.dropped + other.dropped,
            left_only: self.left_only + other.left_only,
            right_only: self.right_only + other.right_only,
        }
    }
}

/// Rows kept and dropped by one compaction, head by head.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeepMap {
    /// Sample.
    pub sample_id: String,
    /// 1-based ordinal.
    pub ordinal: u32,
    /// Run, or the first of the two compared.
    pub left_label: String,
    /// The other; `null` where one run is shown alone.
    pub right_label: Option<String>,
    /// Cache rows before the compaction.
    pub rows: u32,
    /// Prompt length, where known.
    pub prompt_len: Option<u32>,
    /// Heads in order.
    pub heads: Vec<KeepHead>,
    /// Rows by class over all heads.
    pub counts: KeepCounts,
}

/// One candidate of a split.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Candidate {
    /// Token.
    pub token: Token,
    /// Raw logit; `null` where it is not finite.
    pub logit: Option<Num>,
}

/// One side of a split.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SplitSide {
    /// Run.
    pub label: String,
    /// Id chosen here.
    pub chosen: Option<u32>,
    /// Largest minus second largest logit.
    pub margin: Option<Num>,
    /// This side's logit of its own choice minus that of the other's choice.
    pub gap: Option<Num>,
    /// That gap in ULPs of the declared dtype.
    pub gap_ulps: Option<Num>,
    /// Random number that decided the draw.
    pub uniform: Option<Num>,
    /// Rows held before this row, where they are counted.
    pub rows_before: Option<u32>,
    /// Candidates, largest logit first.
    pub candidates: Vec<Candidate>,
}

/// The row at which two sides chose otherwise.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SplitView {
    /// Sample.
    pub sample_id: String,
    /// Which of the four firsts: `argmax`, `token`, ...
    pub kind: String,
    /// What it is worth: `clear`, `near_tie`, `tie`, ...
    pub class: String,
    /// Deciding row.
    pub row: u32,
    /// Row that is fed what it decided.
    pub fed_at: u32,
    /// Dtype whose ULP is meant.
    pub ulp_dtype: String,
    /// Baseline.
    pub left: Option<SplitSide>,
    /// Target.
    pub right: Option<SplitSide>,
    /// One line.
    pub note: String,
}
