//! The whole answer of a comparison of two traces.

use lockstep_traces::manifest::ValueEncoding;
use lockstep_traces::{Finding, SourceLimits, Verdict};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::audits::AuditReport;
use crate::available::Available;
use crate::lists::ListFault;

use super::{NoiseReport, SampleDiff, TieLedger};
use crate::stats::PairedScores;

/// One side as far as the comparison is concerned.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SideInfo {
    /// Path or name as given.
    pub label: String,
    /// Writer of the trace.
    pub producer: String,
    /// Device.
    pub device: String,
    /// Declared dtype.
    pub dtype: Option<String>,
    /// KV cache dtype.
    pub cache_dtype: Option<String>,
    /// `policy.kind`.
    pub policy: Option<String>,
    /// `policy.rule_set`.
    pub rule_set: Option<String>,
    /// Slug of a fault planted on purpose.
    pub plant: Option<String>,
    /// Encoding of the stored logits.
    pub encoding: ValueEncoding,
    /// False where rows are rounded up to buckets.
    pub rows_exact: bool,
    /// Prompt rows are in the trace.
    pub includes_prompt: bool,
    /// The run finished.
    pub complete: bool,
    /// Samples.
    pub samples: u64,
    /// Step rows.
    pub rows: u64,
    /// Compactions.
    pub compactions: u64,
    /// Logits kept per row.
    pub top_k: u64,
    /// What the source could say; a run of this project could say everything.
    #[serde(default)]
    pub limits: SourceLimits,
    /// Remarks of the writer or importer.
    pub remarks: Vec<String>,
}

/// A setting that differs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct InputDifference {
    /// Dotted key: `model.rope_theta`, `sampling.seed`, `dtype`, ...
    pub key: String,
    /// Value and source on the left; `null` where not recorded.
    pub left: Option<Value>,
    /// Same on the right.
    pub right: Option<Value>,
    /// Source of the left value.
    pub left_source: Option<String>,
    /// Source of the right value.
    pub right_source: Option<String>,
}

/// Are the inputs equal? Looked at before anything else.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct InputsCheck {
    /// Settings recorded on both sides with unequal values: resolved model values first, then policy, sampling, others.
    pub differences: Vec<InputDifference>,
    /// Keys recorded on one side only.
    pub one_sided: Vec<String>,
    /// Keys equal on both sides.
    pub equal: u64,
    /// Weights, config and tokenizer hashes agree; `null` where one side has none.
    pub model_equal: Option<bool>,
    /// Prompt ids agree for every common sample; `null` where one side has none.
    pub prompts_equal: Option<bool>,
    /// Sampling settings agree; `null` where one side has none.
    pub sampling_equal: Option<bool>,
    /// Policies agree; `null` where one side has none.
    pub policy_equal: Option<bool>,
}

/// What was covered.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Counts {
    /// Samples on both sides.
    pub samples: u64,
    /// Rows compared.
    pub rows_compared: u64,
    /// Rows paired and not compared, because their inputs differ already.
    pub rows_dependent: u64,
    /// Rows on one side only, left.
    pub rows_left_only: u64,
    /// Rows on one side only, right.
    pub rows_right_only: u64,
    /// Rows with a non-finite logit on a side.
    pub rows_non_finite: u64,
    /// Samples by verdict: identical.
    pub identical: u64,
    /// Within noise.
    pub within_noise: u64,
    /// Tie.
    pub tie: u64,
    /// Diverged.
    pub diverged: u64,
    /// Incomparable.
    pub incomparable: u64,
}

/// A split without its rows.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SplitAt {
    /// Sample.
    pub sample_id: String,
    /// Deciding row.
    pub position: u32,
    /// Row that is fed what it decided.
    pub fed_at: u32,
}

/// The four firsts of the first sample that has each (samples in the left trace's order).
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Splits4 {
    /// Structural.
    pub structural: Option<SplitAt>,
    /// Logits.
    pub logit: Option<SplitAt>,
    /// Argmax.
    pub argmax: Option<SplitAt>,
    /// Chosen token.
    pub token: Option<SplitAt>,
}

/// Answer of a comparison, in order of judgement.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DiffReport {
    /// Left: the baseline.
    pub left: SideInfo,
    /// Right: the target.
    pub right: SideInfo,
    /// Inputs.
    pub inputs: InputsCheck,
    /// Which parts of the evidence were compared.
    #[serde(default)]
    pub available: Available,
    /// Rows of either side whose list of largest values contradicts itself or falls short, one entry for each kind.
    #[serde(default)]
    pub list_faults: Vec<ListFault>,
    /// What the encodings of the two sides can prove, one line.
    pub proves: String,
    /// Dtype whose ULP judges ties: `f32`, `f16`, `bf16`.
    pub ulp_dtype: String,
    /// Where that dtype comes from: `declared`, `encoding` or `values`.
    pub ulp_source: String,
    /// Samples in the left trace's order.
    pub samples: Vec<SampleDiff>,
    /// Samples that only the right side has.
    pub missing_left: Vec<String>,
    /// Samples that only the left side has.
    pub missing_right: Vec<String>,
    /// Coverage.
    pub counts: Counts,
    /// The four firsts.
    pub splits: Splits4,
    /// Ties over all samples (entries are with the samples).
    pub ties: TieLedger,
    /// Share of compared rows that are tied or nearly tied on a side: how many flips are to be expected.
    pub near_tie_density: Option<f64>,
    /// Judgement against a same-dtype control, where one was given.
    pub noise: Option<NoiseReport>,
    /// Paired answers, where both sides have gold and answers.
    pub pairing: Option<PairedScores>,
    /// Audits of the pair, where they ran; a void one has taken the verdict.
    #[serde(default)]
    pub audits: Option<AuditReport>,
    /// Named causes that the comparison alone shows (offsets, shifts).
    pub findings: Vec<Finding>,
    /// What the evidence does not cover, one line each.
    pub limits: Vec<String>,
    /// Outcome.
    pub verdict: Verdict,
    /// One line for people: why this verdict.
    pub summary: String,
}
