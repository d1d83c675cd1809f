//! What holds for every sample of one comparison.

use lockstep_traces::limits::Values;
use lockstep_traces::manifest::ValueEncoding;
use lockstep_traces::{DType, Status};

use crate::align::Align;
use crate::available::Available;
use crate::precision::Scale;
use crate::report::NoiseReport;
use crate::side::Side;
use crate::splits::{LogitRule, RowsRule};
use crate::text::Decode;
use crate::ulp::{Step, on_grid};

/// A fixed tolerance. It stands only with its reason.
#[derive(Debug, Clone, PartialEq)]
pub struct Tolerance {
    /// Largest `|L - R|_2 / |L|_2` that counts as noise.
    pub relative_l2: f64,
    /// Why this figure.
    pub reason: String,
}

/// How to compare. The default pairs rows by itself, takes buckets of 32 rows, and has no control.
#[derive(Clone, Copy)]
pub struct Options<'a> {
    /// Pairing of rows.
    pub align: Align,
    /// Bucket to which an engine rounds its row counts where they are not exact (32 in the native runtime).
    pub bucket: u32,
    /// High-precision truth and same-dtype control, in this order; both feed the same tokens.
    pub control: Option<(&'a Side<'a>, &'a Side<'a>)>,
    /// Fixed tolerance, used only where there is no control.
    pub tolerance: Option<&'a Tolerance>,
    /// Decodes ids of either side.
    pub decode: Option<&'a Decode<'a>>,
    /// Ids of both sides were brought to one numbering ([`crate::numbering`]); ids that number texts mean nothing otherwise.
    pub joint_ids: bool,
}

impl Default for Options<'_> {
    fn default() -> Self {
        Self {
            align: Align::Auto,
            bucket: 32,
            control: None,
            tolerance: None,
            decode: None,
            joint_ids: false,
        }
    }
}

impl std::fmt::Debug for Options<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Options")
            .field("align", &self.align)
            .field("bucket", &self.bucket)
            .field("control", &self.control.is_some())
            .field("tolerance", &self.tolerance)
            .field("decode", &self.decode.is_some())
            .field("joint_ids", &self.joint_ids)
            .finish()
    }
}

/// Rules of one comparison, resolved from both manifests.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Context<'a> {
    pub(crate) left: Side<'a>,
    pub(crate) right: Side<'a>,
    pub(crate) options: Options<'a>,
    pub(crate) step: Step,
    pub(crate) logit: LogitRule,
    pub(crate) rows: RowsRule,
    /// Policies of the two sides, where they are known to differ.
    pub(crate) policies: Option<&'a str>,
    /// Tokens are drawn at random on a side.
    pub(crate) draws: bool,
    pub(crate) noise: Option<&'a NoiseReport>,
    /// A side does not say whether its log-probabilities are raw.
    pub(crate) unsaid: bool,
    /// Which parts of the evidence both sides have.
    pub(crate) available: &'a Available,
}

impl<'a> Context<'a> {
    pub(crate) fn new(
        left: Side<'a>,
        right: Side<'a>,
        options: Options<'a>,
        scale: Scale,
        available: &'a Available,
    ) -> Self {
        let logit = LogitRule::of(&left, &right, scale);
        let unsaid =
            [left, right].iter().any(|side| side.manifest.limits.values == Values::UnsaidLogprobs);
        let step = Step::choose(left.manifest, right.manifest, |dtype| {
            all_on_grid(&left, dtype) && all_on_grid(&right, dtype)
        });
        Self {
            left,
            right,
            options,
            step,
            logit,
            rows: RowsRule {
                known: left.manifest.limits.rows && right.manifest.limits.rows,
                left_exact: left.manifest.rows_exact,
                right_exact: right.manifest.rows_exact,
                bucket: options.bucket,
            },
            policies: None,
            draws: left.greedy() == Some(false) || right.greedy() == Some(false),
            noise: None,
            unsaid: unsaid && !matches!(scale, Scale::Ranks | Scale::Nothing),
            available,
        }
    }

    /// A side was not finished.
    pub(crate) fn incomplete(side: &Side<'_>) -> bool {
        side.manifest.status == Status::Incomplete
    }

    /// One line: what the encodings can prove.
    pub(crate) fn proves(&self) -> String {
        let words = |side: &Side<'_>| {
            if side.manifest.limits.values == Values::Nothing {
                return "no values".to_owned();
            }
            let values = match side.manifest.encoding {
                ValueEncoding::F32 => "exact f32 values".to_owned(),
                ValueEncoding::Digits9 => "nine digits, f32 bits recoverable".to_owned(),
                ValueEncoding::SnappedF16 => {
                    "six digits snapped to the fp16 grid, exact".to_owned()
                }
                ValueEncoding::SnappedBf16 => {
                    "six digits snapped to the bf16 grid, exact".to_owned()
                }
                ValueEncoding::Digits6 => "six digits".to_owned(),
                ValueEncoding::Decimals => {
                    let digits = side.manifest.limits.decimals.unwrap_or(0);
                    format!("{digits} digits behind the point")
                }
                ValueEncoding::Codes16 => match side.manifest.limits.value_error {
                    Some(error) => format!("16-bit codes, each within {error:.1e}"),
                    None => "16-bit codes".to_owned(),
                },
            };
            format!("{values}, top {}", side.steps.top_k)
        };
        let scope = if self.logit.hashes {
            "both hash the whole vector with the same seeds: bit equality can be proved"
        } else if self.logit.exact {
            "no common hash: equality is proved for the stored values only"
        } else if self.logit.digits_only() {
            "no common hash and six digits: equal means equal to six digits, ties cannot be proved"
        } else {
            match self.logit.scale {
                Scale::Nothing => "no values in common",
                Scale::Ranks => "ranks in common, values are not",
                _ => {
                    "equal means equal within the summed errors of the two sides, ties cannot be proved"
                }
            }
        };
        format!("left {}; right {}; {scope}", words(&self.left), words(&self.right))
    }
}

/// Do all stored logits of a side lie on the grid of `dtype`? False where nothing finite is stored.
pub(crate) fn all_on_grid(side: &Side<'_>, dtype: DType) -> bool {
    let mut any = false;
    for logit in side.steps.top_logits.iter().filter(|logit| logit.is_finite()) {
        any = true;
        if !on_grid(dtype, *logit) {
            return false;
        }
    }
    any
}
