//! Answers about tensors: noise against a control, hidden-state drift, keep-sets, pairs of dump files.

use lockstep_traces::Verdict;
use serde::{Deserialize, Serialize};

/// One metric of the target next to the same metric of the control; both are errors against the truth.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct NoiseMetric {
    /// `rmse`, `max_abs`, `relative_l2`.
    pub name: String,
    /// Target against truth.
    pub target: f64,
    /// Same-dtype reference against truth.
    pub control: f64,
    /// Target over control; `null` where the control is exactly 0.
    pub ratio: Option<f64>,
    /// Largest ratio that counts as noise.
    pub allowed: f64,
    /// Why that factor.
    pub reason: String,
    /// Target is within `allowed * control + floor`.
    pub within: bool,
}

/// Which control was used, in words.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Control {
    /// Truth.
    pub truth: String,
    /// Same-dtype reference.
    pub control: String,
}

/// Is the target further from the truth than a reference of the same dtype?
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct NoiseReport {
    /// What stands for truth and control.
    pub against: Control,
    /// Rows that all three have and that depend on equal inputs.
    pub rows: u64,
    /// Values compared.
    pub values: u64,
    /// Metrics.
    pub metrics: Vec<NoiseMetric>,
    /// Position of the first row whose own error exceeds what the control allows.
    pub first_beyond: Option<u32>,
    /// Rows beyond.
    pub rows_beyond: u64,
    /// Share of rows in which the control's own argmax is not the truth's.
    pub control_flips: f64,
    /// Share of rows in which the target's argmax is not the truth's.
    pub target_flips: f64,
    /// Outcome.
    pub verdict: Verdict,
    /// One line for people.
    pub summary: String,
}

/// Relative L2 of one stage at one position.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DriftCell {
    /// `|L - R|_2 / |L|_2`; `null` where the tensor is missing, not finite or of norm 0 on the left.
    pub relative_l2: Option<f64>,
    /// Largest absolute difference.
    pub max_abs: Option<f64>,
    /// Same relative L2 of the control.
    pub control: Option<f64>,
    /// Why there is no figure.
    pub missing: Option<String>,
}

/// One stage over all positions.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DriftRow {
    /// Tensor name without `hidden.`: `embed`, `layer00.q_norm`, `final_norm`, `logits`.
    pub tensor: String,
    /// Layer; `null` for `embed`, `final_norm` and `logits`.
    pub layer: Option<u32>,
    /// Stage in order of computation.
    pub stage: String,
    /// One cell per position.
    pub cells: Vec<DriftCell>,
}

/// Hidden-state drift of one sample.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DriftReport {
    /// Sample.
    pub sample_id: String,
    /// Columns: positions that both runs dumped.
    pub positions: Vec<u32>,
    /// Rows in order of computation.
    pub rows: Vec<DriftRow>,
    /// First stage (in order of computation, earliest position first) beyond the control: tensor and position.
    pub first_beyond: Option<(String, u32)>,
    /// Cells compared.
    pub compared: u64,
    /// Cells that could not be compared.
    pub skipped: u64,
    /// Outcome.
    pub verdict: Verdict,
    /// One line for people.
    pub summary: String,
}

/// What two keep-sets of one head are to each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum KeepClass {
    /// Same rows in the same order.
    Equal,
    /// Same rows in another order.
    Order,
    /// Rows differ only among candidates of the score at the cut: each is a valid choice.
    TieEquivalent,
    /// Rows differ within the near-threshold tolerance.
    NearCut,
    /// Rows differ.
    Different,
}

/// One head of one compaction.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct HeadKeep {
    /// Layer, where sets differ by layer.
    pub layer: Option<u32>,
    /// KV head, where sets differ by head.
    pub head: Option<u32>,
    /// Class.
    pub class: KeepClass,
    /// `|A and B| / |A or B|`.
    pub jaccard: f64,
    /// Positions kept by the left only.
    pub left_only: Vec<u32>,
    /// Positions kept by the right only.
    pub right_only: Vec<u32>,
    /// Score of the last kept row minus that of the first dropped one, from the left's recorded scores.
    pub cut_gap: Option<f64>,
}

/// One compaction.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct KeepEvent {
    /// Sample.
    pub sample_id: String,
    /// 1-based ordinal.
    pub ordinal: u32,
    /// The two sides had the same rows before the event (else the event is dependent).
    pub same_rows_before: bool,
    /// Heads.
    pub heads: Vec<HeadKeep>,
    /// All heads of the left keep one set.
    pub left_identical_across_heads: bool,
    /// All heads of the right keep one set.
    pub right_identical_across_heads: bool,
}

/// Keep-sets of two runs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct KeepSetReport {
    /// Events on both sides.
    pub events: Vec<KeepEvent>,
    /// Heads compared in events with equal rows before.
    pub heads: u64,
    /// Of them: equal, order, tie-equivalent, near cut, different.
    pub equal: u64,
    /// Same set in another order.
    pub order: u64,
    /// Tie-equivalent.
    pub tie_equivalent: u64,
    /// Near the cut.
    pub near_cut: u64,
    /// Different.
    pub different: u64,
    /// Heads in events whose rows before differ already.
    pub dependent: u64,
    /// Events on one side only or without keep-sets.
    pub skipped: u64,
    /// Mean Jaccard over `heads`.
    pub mean_jaccard: Option<f64>,
    /// Remarks.
    pub remarks: Vec<String>,
    /// Outcome.
    pub verdict: Verdict,
    /// One line for people.
    pub summary: String,
}

/// One tensor of a pair of dump files.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TensorComparison {
    /// Name.
    pub name: String,
    /// Element type.
    pub dtype: String,
    /// Shape.
    pub shape: Vec<usize>,
    /// Elements.
    pub elements: u64,
    /// Elements of equal bits.
    pub bit_equal: u64,
    /// Elements that are NaN or infinite on a side and not the same infinity on both.
    pub non_finite: u64,
    /// Largest absolute difference of finite elements.
    pub max_abs: Option<f64>,
    /// Largest `|L - R| / |L|` of finite elements with L not 0.
    pub max_rel: Option<f64>,
    /// `|L - R|_2 / |L|_2`.
    pub relative_l2: Option<f64>,
    /// Largest distance in representable values of the dtype.
    pub max_ulp: Option<u64>,
    /// Flat index of the first element that differs.
    pub first: Option<u64>,
    /// Outcome.
    pub verdict: Verdict,
}

/// A pair of dump files.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TensorsReport {
    /// Tensors on both sides, by name.
    pub tensors: Vec<TensorComparison>,
    /// Names on the left only.
    pub left_only: Vec<String>,
    /// Names on the right only.
    pub right_only: Vec<String>,
    /// Bytes compared, each side.
    pub bytes: u64,
    /// Outcome.
    pub verdict: Verdict,
    /// One line for people.
    pub summary: String,
}
