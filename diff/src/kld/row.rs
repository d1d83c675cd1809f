//! One scored row: the figures that llama-perplexity adds up, and what the codes of the base can hide of them.
//!
//! The first part follows `log_softmax` of llama.cpp's tools/perplexity/perplexity.cpp width by width: f32 where it has `float`, f64
//! where it has `double`, so that sums agree to the printed digits. The second part is ours, in f64.

use lockstep_traces::llamacpp::KldRecord;

/// Base entries at and below this log-probability add nothing to llama-perplexity's KL.
const SKIPPED: f32 = -16.0;

/// The target's side of a row.
#[derive(Debug, Clone, Copy)]
pub(super) enum TargetRow<'a> {
    /// Logits.
    Logits(&'a [f32]),
    /// Log-probabilities in codes, taken as they are stored: no sum is divided out.
    Codes(KldRecord<'a>),
}

/// What a row adds to llama-perplexity's sums.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct RowFigures {
    /// Negative log-probability of the token that follows, target.
    pub(super) nll: f32,
    /// Same, base.
    pub(super) nll_base: f32,
    /// KL(base || target).
    pub(super) kld: f64,
    /// Probability of the token that follows: target minus base.
    pub(super) p_diff: f32,
    /// The highest entry has one id on both sides.
    pub(super) same_top: bool,
}

/// What the codes can hide of a row.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct RowBounds {
    /// Largest change of the row's KL by the rounding of codes to their steps, both sides.
    pub(super) rounding: f64,
    /// Largest change by base entries below the range of the codes and those that were skipped.
    pub(super) tail: f64,
    /// Base mass on target entries that were cut: the true log-probability of the target is lower, and KL higher.
    pub(super) cut_mass: f64,
    /// Entry with the largest difference of log-probabilities beyond what the codes can hide, where there is one.
    pub(super) worst: Option<WorstEntry>,
    /// Entries that differ by more than the codes can hide.
    pub(super) different: usize,
    /// No NaN and no infinity on the target's side, -inf of a token that cannot come aside.
    pub(super) finite: bool,
}

/// One entry of a row.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct WorstEntry {
    /// Token id.
    pub(super) id: usize,
    /// Log-probability, base.
    pub(super) base: f64,
    /// Log-probability, target.
    pub(super) target: f64,
    /// How far the difference goes beyond what the codes can hide, nats.
    pub(super) beyond: f64,
}

/// The target as `value - shift`, both as f32, for the first part.
struct Shifted<'a> {
    values: &'a [f32],
    highest: f32,
    log_sum: f32,
}

impl<'a> Shifted<'a> {
    fn of(target: &TargetRow<'_>, values: &'a [f32]) -> Self {
        let highest = values.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        match target {
            TargetRow::Codes(_) => Self { values, highest: 0.0, log_sum: 0.0 },
            TargetRow::Logits(_) => {
                let sum: f64 =
                    values.iter().fold(0.0, |sum, v| sum + f64::from((v - highest).exp()));
                Self { values, highest, log_sum: narrow(sum.ln()) }
            }
        }
    }
}

/// Both parts of one row. `token` is the one that follows, where it is known; without it the two negative log-probabilities are NaN.
pub(super) fn row(
    base: &KldRecord<'_>,
    target: &TargetRow<'_>,
    token: Option<usize>,
    scratch: &mut Vec<f32>,
) -> (RowFigures, RowBounds) {
    scratch.clear();
    match target {
        TargetRow::Logits(logits) => scratch.extend_from_slice(logits),
        TargetRow::Codes(record) => scratch.extend(record.values()),
    }
    let shifted = Shifted::of(target, scratch);
    (figures(base, &shifted, token), bounds(base, target, &shifted))
}

fn figures(base: &KldRecord<'_>, target: &Shifted<'_>, token: Option<usize>) -> RowFigures {
    let known = token.and_then(|token| Some((base.code(token)?, *target.values.get(token)?)));
    let (nll, nll_base) = known.map_or((f32::NAN, f32::NAN), |(code, value)| {
        (target.highest + target.log_sum - value, -base.value(code))
    });
    let shift = target.highest + target.log_sum;
    let mut kld = 0.0;
    let (mut top, mut top_base) = ((0, f32::NEG_INFINITY), (0, f32::NEG_INFINITY));
    for (id, (p_log, value)) in base.values().zip(target.values.iter().copied()).enumerate() {
        if value > top.1 {
            top = (id, value);
        }
        if p_log > top_base.1 {
            top_base = (id, p_log);
        }
        if p_log > SKIPPED {
            kld += f64::from(p_log.exp() * (p_log - value + shift));
        }
    }
    let p_diff = (-nll).exp() - (-nll_base).exp();
    RowFigures { nll, nll_base, kld, p_diff, same_top: top.0 == top_base.0 }
}

/// Rigorous bounds, entry by entry. With x = ln p - ln q as stored and |error of x| <= e, |p' x' - p x| <= p ((e^d - 1) |x| + e^d e),
/// where d is the base's part of e.
fn bounds(base: &KldRecord<'_>, target: &TargetRow<'_>, shifted: &Shifted<'_>) -> RowBounds {
    let base_error = base.error();
    let (normaliser, target_error, target_cut) = match target {
        TargetRow::Logits(logits) => (log_sum_exp(logits), 0.0, false),
        TargetRow::Codes(record) => (0.0, record.error(), record.cut_below()),
    };
    let error = base_error + target_error;
    let grown = base_error.exp();
    let mut out = RowBounds { finite: normaliser.is_finite(), ..RowBounds::default() };
    let target_code = |id: usize| match target {
        TargetRow::Codes(record) if target_cut => record.code(id) == Some(0),
        _ => false,
    };
    let lowest = base.cut_below();
    for (id, (code, value)) in base.codes().zip(shifted.values.iter()).enumerate() {
        let stored = base.value(code);
        let (p_log, q_log) = (f64::from(stored), f64::from(*value) - normaliser);
        let (p, x) = (p_log.exp(), p_log - q_log);
        let (base_open, target_open) = (lowest && code == 0, target_code(id));
        if base_open {
            out.tail +=
                open_entry(p_log + base_error, q_log, if stored > SKIPPED { p * x } else { 0.0 });
        } else if stored > SKIPPED {
            out.rounding += p * ((grown - 1.0) * x.abs() + grown * error);
        } else {
            out.tail += p * grown * (x.abs() + error);
        }
        if target_open {
            out.cut_mass += p;
        }
        // An entry that was cut off lies anywhere below its value.
        let beyond = if base_open && target_open {
            0.0
        } else if base_open {
            -x - error
        } else if target_open {
            x - error
        } else {
            x.abs() - error
        };
        // Two open ends hide each other; one open end hides one direction.
        let beyond = if beyond.is_nan() { f64::INFINITY } else { beyond };
        if beyond > 0.0 {
            out.different += 1;
            if out.worst.is_none_or(|worst| beyond > worst.beyond) {
                out.worst = Some(WorstEntry { id, base: p_log, target: q_log, beyond });
            }
        }
    }
    out
}

/// Largest distance between `counted` and e^l (l - q) for any l at or below `top`: the product is lowest at l = q - 1, and 0 far below.
fn open_entry(top: f64, q_log: f64, counted: f64) -> f64 {
    let product = |l: f64| l.exp() * (l - q_log);
    let dip = if q_log - 1.0 <= top { -(q_log - 1.0).exp() } else { product(top) };
    let (low, high) = (dip.min(0.0), product(top).max(0.0));
    (counted - low).abs().max((high - counted).abs())
}

fn log_sum_exp(logits: &[f32]) -> f64 {
    let highest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    if logits.iter().any(|logit| logit.is_nan()) || !highest.is_finite() {
        return f64::NAN;
    }
    let highest = f64::from(highest);
    highest + logits.iter().map(|logit| (f64::from(*logit) - highest).exp()).sum::<f64>().ln()
}

#[expect(clippy::cast_possible_truncation, reason = "llama.cpp keeps this value as float")]
fn narrow(value: f64) -> f32 {
    value as f32
}
