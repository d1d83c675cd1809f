//! The answer of a comparison of two sets. Keys are stable.

use lockstep_traces::Verdict;
use serde::{Deserialize, Serialize};

use crate::report::{NoiseMetric, Quantiles};

/// What a pair is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    /// Same element type, same bits.
    Identical,
    /// Every value equal in two element types.
    EqualValues,
    /// Different by no more than the tolerance or the control allows.
    Within,
    /// Different.
    Diverged,
    /// Not decidable: `why` says it.
    Incomparable,
}

/// One place.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Worst {
    /// Index by axis.
    pub index: Vec<u64>,
    /// Baseline value; `null` where it is not finite.
    pub left: Option<f64>,
    /// Target value; `null` where it is not finite.
    pub right: Option<f64>,
    /// `|left - right|`; `null` where a side is not finite.
    pub abs: Option<f64>,
}

/// Elements whose distance lies in `from..=to` representable values.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct UlpBin {
    /// Least distance.
    pub from: u64,
    /// Largest distance.
    pub to: u64,
    /// Elements.
    pub elements: u64,
}

/// Figures of one pair. Figures of differences are taken over elements that are finite on both sides; relative ones are of the baseline.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Figures {
    /// Elements.
    pub elements: u64,
    /// Elements of equal bits (of equal values where the element types differ).
    pub equal: u64,
    /// NaN on the baseline's side.
    pub nan_left: u64,
    /// NaN on the target's side.
    pub nan_right: u64,
    /// Infinities on the baseline's side.
    pub inf_left: u64,
    /// Infinities on the target's side.
    pub inf_right: u64,
    /// Elements that differ and are not finite on a side.
    pub non_finite: u64,
    /// Largest absolute difference.
    pub max_abs: Option<f64>,
    /// Mean absolute difference.
    pub mean_abs: Option<f64>,
    /// Largest `|L - R| / |L|` where L is not 0.
    pub max_rel: Option<f64>,
    /// Mean of `|L - R| / |L|` where L is not 0 (with details). Of f32 and narrower types its terms may be rounded to f32, by 2^-22 of each at
    /// most.
    pub mean_rel: Option<f64>,
    /// `|L - R|_2 / |L|_2`; `null` where a value is not finite or L is 0.
    pub relative_l2: Option<f64>,
    /// `1 - 2<L,R> / (|L|^2 + |R|^2)`, computed as `|L - R|^2 / (|L|^2 + |R|^2)`.
    pub deepgemm: Option<f64>,
    /// Cosine of the angle between L and R; blind to scale.
    pub cosine: Option<f64>,
    /// Root of the mean squared difference.
    pub rmse: Option<f64>,
    /// Largest distance in representable values; `null` where the element types differ.
    pub max_ulp: Option<u64>,
    /// Exact nearest-rank quantiles of the absolute differences (with details).
    pub abs_quantiles: Option<Quantiles>,
    /// Distances in representable values (with details; absent where the element types differ).
    pub ulp_histogram: Vec<UlpBin>,
    /// Elements beyond `atol + rtol |L|` where the tolerance is of that kind.
    pub beyond: Option<u64>,
    /// Index of the first element that differs.
    pub first: Option<Vec<u64>>,
    /// The largest difference (with details); where a side alone is not finite, the first such place.
    pub worst: Option<Worst>,
}

/// Slices of one axis that lie elsewhere on the other side.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct AxisRun {
    /// First baseline slice.
    pub left: u64,
    /// The target slice that equals it.
    pub right: u64,
    /// Slices that follow both.
    pub length: u64,
}

/// What would make the two sides agree: a named mistake, with the error before and after on a sample.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Hint {
    /// Stable word: `axes_permuted`, `axis_reordered`, `axis_shifted`, `runs_swapped`, `halves_interleaved`, `groups_transposed`,
    /// `axis_reversed`, `block_table_off`, `shards_reordered`, `byte_order`, `element_type`, `scaled`, `shape_only`.
    pub name: String,
    /// One line.
    pub text: String,
    /// Axis of the baseline, where there is one.
    pub axis: Option<usize>,
    /// Relative L2 on the sample as it is.
    pub before: Option<f64>,
    /// Relative L2 on the sample with the mistake undone.
    pub after: Option<f64>,
    /// Runs of slices, where slices moved.
    pub runs: Vec<AxisRun>,
}

/// How a difference was judged.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Judged {
    /// `bits`, `control`, or a tolerance's metric.
    pub by: String,
    /// Measured.
    pub value: Option<f64>,
    /// Allowed.
    pub at_most: Option<f64>,
    /// Why that much is allowed.
    pub reason: String,
}

/// Error of the control against the baseline, and the ratio that decides.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ControlFigures {
    /// Metrics: target, control, allowed factor.
    pub metrics: Vec<NoiseMetric>,
}

/// One pair.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PairReport {
    /// Name: that of the baseline.
    pub name: String,
    /// Baseline tensors; several where shards are joined.
    pub left: Vec<String>,
    /// Target tensors.
    pub right: Vec<String>,
    /// Rule of the map that matched them, 0-based; `null` for equal names.
    pub rule: Option<usize>,
    /// Place in the order of execution, 0-based.
    pub order: usize,
    /// Element type of the baseline.
    pub left_element: String,
    /// Element type of the target.
    pub right_element: String,
    /// Shape as compared.
    pub shape: Vec<usize>,
    /// `input`, `output`, or neither.
    pub role: Option<String>,
    /// Outcome.
    pub status: Status,
    /// One line on the outcome.
    pub why: String,
    /// How it was judged.
    pub judged: Option<Judged>,
    /// Against the control.
    pub control: Option<ControlFigures>,
    /// Figures.
    pub figures: Figures,
    /// What would explain a difference.
    pub hints: Vec<Hint>,
}

/// A call whose inputs agree and whose outputs do not.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Root {
    /// The call.
    pub call: String,
    /// Place of its first failing output in the order of execution.
    pub order: usize,
    /// Inputs, all of which agree.
    pub inputs: Vec<String>,
    /// Outputs that differ.
    pub outputs: Vec<String>,
}

/// A raw file that does not fit its declaration, with what other types would give.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Unfit {
    /// Name.
    pub name: String,
    /// `baseline` or `target`.
    pub side: String,
    /// One line.
    pub why: String,
    /// Element types that fit the length; with the other side's tensor: how many values are equal under each.
    pub fits: Vec<(String, Option<u64>)>,
}

/// One side.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SetSummary {
    /// Path.
    pub path: String,
    /// Format in words.
    pub format: String,
    /// Tensors.
    pub tensors: usize,
    /// What a reader should know.
    pub remarks: Vec<String>,
}

/// Two sets.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SetsReport {
    /// Baseline.
    pub left: SetSummary,
    /// Target.
    pub right: SetSummary,
    /// Same-dtype control.
    pub control: Option<SetSummary>,
    /// What the order of execution follows: `declared`, `names`, `file`, `dump.json`, `dump_index`.
    pub order: String,
    /// Every pair, in that order.
    pub pairs: Vec<PairReport>,
    /// Names of the pairs that diverged or could not be compared, in that order.
    pub failed: Vec<String>,
    /// The first of those that diverged.
    pub first: Option<String>,
    /// Calls with equal inputs and different outputs, in that order.
    pub roots: Vec<Root>,
    /// Tensors without a partner on the left.
    pub left_only: Vec<String>,
    /// Tensors without a partner on the right.
    pub right_only: Vec<String>,
    /// Names that were allowed to be without a partner.
    pub skipped: Vec<String>,
    /// Files that do not fit their declaration.
    pub unfit: Vec<Unfit>,
    /// Bytes compared on the baseline's side.
    pub bytes: u64,
    /// Outcome.
    pub verdict: Verdict,
    /// One line.
    pub summary: String,
    /// What the evidence does not show.
    pub limits: Vec<String>,
}
