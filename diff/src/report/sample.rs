//! The comparison of one sample: splits, coverage, ties, figures, curves and text.

use std::ops::Range;

use lockstep_traces::Verdict;
use serde::{Deserialize, Serialize};

use super::{Split, Splits};

/// How rows of the two sides were paired.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AlignmentKind {
    /// Rows of equal absolute position.
    Position,
    /// The n-th row with the n-th row: positions differ by a constant.
    Step,
}

/// Pairing of rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Alignment {
    /// Rule.
    pub by: AlignmentKind,
    /// Position on the right minus position on the left.
    pub offset: i64,
    /// Rows before append on the right minus on the left, where this is one constant over all paired rows.
    pub rows_offset: Option<i64>,
}

/// Non-finite logits, counted before anything else is compared.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct NonFinite {
    /// Paired rows non-finite on the left.
    pub left: u64,
    /// Paired rows non-finite on the right.
    pub right: u64,
    /// Paired rows non-finite on both sides.
    pub both: u64,
    /// Position of the first.
    pub first: Option<u32>,
    /// Paired rows in which a side has no finite logit at all among those stored.
    pub no_finite_logit: u64,
    /// What this is typical of.
    pub hint: Option<String>,
}

/// A row whose two largest logits are equal, or one ULP apart.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TieEntry {
    /// Position (left).
    pub position: u32,
    /// Ids of equal largest logit, or the two nearest.
    pub left_ids: Vec<u32>,
    /// Same on the right.
    pub right_ids: Vec<u32>,
    /// Left margin in ULPs.
    pub left_ulps: Option<f64>,
    /// Right margin in ULPs.
    pub right_ulps: Option<f64>,
    /// The two sides chose otherwise here.
    pub chose_otherwise: bool,
}

/// Ties and near ties among the compared rows.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct TieLedger {
    /// Rows looked at.
    pub rows: u64,
    /// Rows with an exact tie on the left.
    pub exact_left: u64,
    /// Rows with an exact tie on the right.
    pub exact_right: u64,
    /// Rows with a margin above 0 and at most one ULP on the left.
    pub near_left: u64,
    /// Same on the right.
    pub near_right: u64,
    /// Rows in which the argmax differs between exactly equal values: ties, not splits.
    pub tie_flips: u64,
    /// Rows in which either side is tied or nearly tied.
    pub near_rows: u64,
    /// `near_rows / rows`.
    pub density: Option<f64>,
    /// The first of them, flips first (at most 200).
    pub entries: Vec<TieEntry>,
    /// The remaining entries were cut.
    pub entries_cut: bool,
}

/// Quantiles of a distribution (nearest rank), with its size.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Quantiles {
    /// Values.
    pub n: u64,
    /// Mean.
    pub mean: f64,
    /// Median.
    pub p50: f64,
    /// 90 %.
    pub p90: f64,
    /// 95 %.
    pub p95: f64,
    /// 99 %.
    pub p99: f64,
    /// 99.9 %.
    pub p999: f64,
    /// Largest.
    pub max: f64,
}

/// Kullback-Leibler divergence per row, in nats.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Kl {
    /// `left||right`: the expectation is taken under the left side.
    pub direction: String,
    /// Lower bound per row: stored ids exactly, all others as one bin (log-sum inequality).
    pub lower: Quantiles,
    /// Upper bound per row; `null` where logits outside the stored ones exist, for then there is none.
    pub upper: Option<Quantiles>,
    /// Mean probability outside the compared ids on the left.
    pub tail_left: f64,
    /// Same on the right.
    pub tail_right: f64,
}

/// Where the largest difference lies.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct MaxDiff {
    /// Position (left).
    pub position: u32,
    /// Token id.
    pub id: u32,
    /// Left logit.
    pub left: f64,
    /// Right logit.
    pub right: f64,
    /// `|left - right|`.
    pub abs: f64,
    /// In ULPs of the declared dtype at the size of the larger value.
    pub ulps: Option<f64>,
}

/// Perplexity of the fed tokens under both sides.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Perplexity {
    /// Tokens whose log-probability is known on both sides.
    pub tokens: u64,
    /// Left.
    pub left: f64,
    /// Right.
    pub right: f64,
    /// Right over left.
    pub ratio: f64,
    /// Standard error of `ln(ratio)`, with the covariance of the two sides; tokens counted as independent.
    pub ln_ratio_se: f64,
}

/// Figures over the compared rows of one sample.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct LogitStats {
    /// Rows whose hash was compared.
    pub rows_by_hash: u64,
    /// Rows that were compared by stored values only.
    pub rows_by_values: u64,
    /// Rows proved or read as equal.
    pub rows_equal: u64,
    /// Share of rows with the same argmax (ties counted as the same).
    pub same_top: Option<f64>,
    /// Largest difference.
    pub max_diff: Option<MaxDiff>,
    /// Largest difference of each row.
    pub row_max_diff: Option<Quantiles>,
    /// `|L - R|_2 / |L|_2` over all stored ids common to both sides.
    pub relative_l2: Option<f64>,
    /// KL of left against right.
    pub kl: Option<Kl>,
    /// KL of right against left.
    pub kl_reverse: Option<Kl>,
    /// Absolute differences of the log-probability of the chosen token.
    pub logprob_diff: Option<Quantiles>,
    /// Perplexity of the chosen tokens.
    pub perplexity: Option<Perplexity>,
}

/// One point of the curves over positions.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SeriesPoint {
    /// Position (left).
    pub position: u32,
    /// Left top-2 margin.
    pub left_margin: Option<f64>,
    /// Right top-2 margin.
    pub right_margin: Option<f64>,
    /// Largest logit difference; `null` at dependent rows.
    pub max_diff: Option<f64>,
    /// Rows held after the step, left; `null` where the source does not count them.
    pub left_rows: Option<u32>,
    /// Rows held after the step, right.
    pub right_rows: Option<u32>,
    /// At or after the first fed token that differs.
    pub dependent: bool,
}

/// Curves over positions: at most 2000 rows, among them the largest difference and the smallest margins of each stretch.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Series {
    /// Rows before thinning.
    pub rows: u64,
    /// Points in order of position.
    pub points: Vec<SeriesPoint>,
    /// Compactions of the left side, all of them up to 2000.
    pub left_compactions: Vec<CompactionMark>,
    /// Same of the right side.
    pub right_compactions: Vec<CompactionMark>,
}

/// A compaction on the time line.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CompactionMark {
    /// Position of the row whose step compacted.
    pub position: u32,
    /// 1-based ordinal.
    pub ordinal: u32,
    /// Rows before.
    pub rows_before: u32,
    /// Rows after.
    pub rows_after: u32,
}

/// Kind of a stretch of tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TokenOpKind {
    /// Equal on both sides.
    Equal,
    /// Only on the left.
    Delete,
    /// Only on the right.
    Insert,
    /// Left stretch replaced by right stretch.
    Replace,
}

/// A stretch of the token difference; indices into the generated ids.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TokenOp {
    /// Kind.
    pub kind: TokenOpKind,
    /// Left tokens.
    pub left: Range<usize>,
    /// Right tokens.
    pub right: Range<usize>,
}

/// Difference of the generated tokens and of their text.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TextDiff {
    /// Tokens left.
    pub left_tokens: usize,
    /// Tokens right.
    pub right_tokens: usize,
    /// Ids are equal. Equal text does not imply it.
    pub ids_equal: bool,
    /// Texts are equal, where both could be decoded. Does not imply equal ids.
    pub text_equal: Option<bool>,
    /// Index of the first generated token that differs.
    pub first_token: Option<usize>,
    /// Index of the first character that differs.
    pub first_char: Option<usize>,
    /// Index of the left token that holds that character.
    pub first_char_token: Option<usize>,
    /// Stretches in order.
    pub ops: Vec<TokenOp>,
    /// The stretches end where the first difference was found: the rest was too long to be aligned.
    pub ops_cut: bool,
    /// Text around the first difference, left.
    pub left_excerpt: Option<String>,
    /// Text around the first difference, right.
    pub right_excerpt: Option<String>,
}

/// One sample.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SampleDiff {
    /// Sample.
    pub sample_id: String,
    /// Prompt length, where known.
    pub prompt_len: Option<u32>,
    /// Pairing of rows.
    pub alignment: Alignment,
    /// The four firsts.
    pub splits: Splits,
    /// The streams part here between exactly equal values: a tie, not a split. Later rows are dependent all the same.
    pub tie_parting: Option<Split>,
    /// Position (left) of the first fed token that differs; from here on rows are dependent.
    pub dependent_from: Option<u32>,
    /// Position at which the prompts differ: no claim about the engines is possible from there.
    pub prompt_differs_at: Option<u32>,
    /// Rows compared.
    pub rows_compared: u64,
    /// Rows at or after the first differing fed token: paired, not compared.
    pub rows_dependent: u64,
    /// Rows on one side only, left.
    pub rows_left_only: u64,
    /// Rows on one side only, right.
    pub rows_right_only: u64,
    /// Non-finite logits.
    pub non_finite: NonFinite,
    /// Ties.
    pub ties: TieLedger,
    /// Figures.
    pub stats: LogitStats,
    /// Curves.
    pub series: Series,
    /// Tokens and text.
    pub text: Option<TextDiff>,
    /// Remarks, one line each.
    pub remarks: Vec<String>,
    /// Outcome.
    pub verdict: Verdict,
    /// One line for people: why this verdict.
    pub summary: String,
}
