//! Is the target further from the truth than a reference of the same dtype is?
//!
//! Errors are judged by ratio and never by a fixed tolerance: `err(target, truth) <= factor * err(control, truth) + floor`.
//! The control is printed next to the target, and nothing below it is called wrong.

use lockstep_traces::limits::{TokenIds, Values};
use lockstep_traces::{DType, UNKNOWN_TOKEN, Verdict};

use crate::align::{Align, pair};
use crate::precision::{Precision, softmax_rounding};
use crate::report::{Control, NoiseMetric, NoiseReport};
use crate::side::{Row, Side, Track};
use crate::ulp::ulp;

/// Factor for mean errors of f32: two orders of summation of one formula differ by up to about twice (the bound of
/// `torch._dynamo.utils.same` for f32).
pub const MEAN_FACTOR_F32: f64 = 2.0;
/// Factor for mean errors of f16 and bf16: rounding points between kernels differ as well (the same source allows 3).
pub const MEAN_FACTOR_HALF: f64 = 3.0;
/// Factor for the largest error: an extreme of thousands of values scatters more than their mean (msProbe warns at 5).
pub const MAX_FACTOR: f64 = 5.0;
/// How far one row may go beyond what the control's largest row and the factor of the means allow: the root mean square of
/// the few values stored of a row scatters less than their largest does, and the control's largest row is an extreme already.
pub const ROW_FACTOR: f64 = 4.0;

/// Relative L2 above which a control that claims f32 cannot be f32: 4096 roundings of 2^-24, all one way.
const CEILING_ROUNDINGS: f64 = 4096.0;

#[derive(Debug, Default, Clone, Copy)]
struct Errors {
    sum_sq: f64,
    max_abs: f64,
    flips: u64,
}

impl Errors {
    fn add(&mut self, error: f64) {
        self.sum_sq += error * error;
        self.max_abs = self.max_abs.max(error.abs());
    }
}

#[derive(Debug, Default)]
struct Sums {
    target: Errors,
    control: Errors,
    truth_sq: f64,
    largest: f64,
    values: u64,
    rows: u64,
    /// A side holds log-probabilities: every value less its row's log-sum-exp.
    normalise: bool,
    non_finite: u64,
    /// Target rows that are not finite where the truth is: the first and their number.
    broken: Option<(u32, u64)>,
    row_max: Vec<(u32, f64)>,
    /// Largest root mean square error of one row of the target, with its position.
    worst_row: (u32, f64),
    /// The same of the control.
    control_row: f64,
}

/// Judges `target` by `control` (same dtype) against `truth` (higher precision). All three must have been fed the same
/// tokens; rows from the first that differ on are left out. Only ids stored on all three sides enter.
#[must_use]
pub fn judge(target: &Side<'_>, control: &Side<'_>, truth: &Side<'_>) -> NoiseReport {
    let mut sums = Sums {
        normalise: [target, control, truth].into_iter().any(|side| side.logprobs()),
        ..Sums::default()
    };
    let (controls, truths) = (control.tracks(), truth.tracks());
    let alone = controls.len() == 1 && truths.len() == 1;
    for t in target.tracks() {
        let by_id =
            |tracks: &[Track<'_>]| tracks.iter().position(|track| alone || track.id == t.id);
        let found = by_id(&controls).zip(by_id(&truths));
        let Some((c, h)) = found.and_then(|(c, h)| controls.get(c).zip(truths.get(h))) else {
            continue;
        };
        sums.sample(&t, c, h);
    }
    let unlike = [target, control, truth].into_iter().find_map(unlike);
    let against = Control { truth: truth.label.to_owned(), control: control.label.to_owned() };
    let dtype = control.manifest.dtype.or(target.manifest.dtype).unwrap_or(DType::F32);
    let written = [target, control, truth].map(|side| Precision::of(side.manifest));
    let written: f64 = written.into_iter().map(|precision| precision.error(sums.largest)).sum();
    let mut report = report(&sums, against, dtype, written);
    if let Some(why) = unlike {
        report.verdict = Verdict::Incomparable { why: why.clone() };
        report.summary = why;
    }
    report
}

/// Why a side's values cannot stand in an error at all.
fn unlike(side: &Side<'_>) -> Option<String> {
    let what = match side.manifest.limits.values {
        Values::ProcessedLogprobs => "stand after temperature or filters",
        Values::Nothing => "are not there",
        _ if side.manifest.limits.token_ids == TokenIds::Invented => {
            "belong to ids that number texts"
        }
        _ => return None,
    };
    Some(format!("not judged: the values of {} {what}", side.label))
}

impl Sums {
    fn sample(&mut self, target: &Track<'_>, control: &Track<'_>, truth: &Track<'_>) {
        let with_truth = pair(target, truth, Align::Position);
        let with_control = pair(target, control, Align::Position);
        let mut controls = with_control.pairs.iter().peekable();
        for (t, h) in &with_truth.pairs {
            while controls.peek().is_some_and(|(at, _)| at < t) {
                controls.next();
            }
            let Some((_, c)) = controls.peek().filter(|(at, _)| at == t) else { continue };
            if target.fed_differs(*t, truth, *h) || control.fed_differs(*c, truth, *h) {
                return;
            }
            let rows = (target.row(*t), control.row(*c), truth.row(*h));
            let (Some(t), Some(c), Some(h)) = rows else { continue };
            self.row(&t, &c, &h);
        }
    }

    fn row(&mut self, target: &Row<'_>, control: &Row<'_>, truth: &Row<'_>) {
        if target.non_finite() || control.non_finite() || truth.non_finite() {
            self.non_finite += 1;
            if target.non_finite() && !truth.non_finite() {
                self.broken.get_or_insert((target.position, 0)).1 += 1;
            }
            return;
        }
        let shift = |row: &Row<'_>| if self.normalise { row.logsumexp } else { Some(0.0) };
        let shifts = (shift(target), shift(control), shift(truth));
        let (Some(t_shift), Some(c_shift), Some(h_shift)) = shifts else { return };
        let (before, mut row_max) = (self.values, 0.0_f64);
        let (mut target_sq, mut control_sq) = (0.0, 0.0);
        for (id, h) in truth.ids.iter().zip(truth.logits) {
            let Some((t, c)) = target.logit(*id).zip(control.logit(*id)) else { continue };
            // Log-probabilities may be minus infinity, where no error exists.
            if !(t.is_finite() && c.is_finite() && h.is_finite()) || *id == UNKNOWN_TOKEN {
                continue;
            }
            let (t, c, h) = (t - t_shift, c - c_shift, f64::from(*h) - h_shift);
            self.target.add(t - h);
            self.control.add(c - h);
            target_sq += (t - h) * (t - h);
            control_sq += (c - h) * (c - h);
            row_max = row_max.max((t - h).abs());
            self.truth_sq += h * h;
            self.largest = self.largest.max(h.abs());
            self.values += 1;
        }
        if self.values > before {
            self.rows += 1;
            self.row_max.push((target.position, row_max));
            let values = wide(self.values - before);
            let (t, c) = ((target_sq / values).sqrt(), (control_sq / values).sqrt());
            if t > self.worst_row.1 {
                self.worst_row = (target.position, t);
            }
            self.control_row = self.control_row.max(c);
        }
        let flips = |row: &Row<'_>| {
            row.best().is_some_and(|best| truth.best().is_some_and(|other| best != other))
        };
        self.target.flips += u64::from(flips(target));
        self.control.flips += u64::from(flips(control));
    }
}

/// `written`: what printing or coding the values may have added to an error.
fn report(sums: &Sums, against: Control, dtype: DType, written: f64) -> NoiseReport {
    // Stored logits are f32: a control that equals the truth leaves the rounding of the stored values as the floor.
    let softmax = if sums.normalise { softmax_rounding(sums.largest) } else { 0.0 };
    let floor = ulp(DType::F32, sums.largest).unwrap_or(0.0) + written + softmax;
    let metrics = metrics(sums, dtype, floor);
    let rows = wide(sums.rows);
    let limit = MAX_FACTOR * sums.control.max_abs + floor;
    let beyond = || sums.row_max.iter().filter(|(_, max)| *max > limit);
    let (verdict, summary) = conclude(sums, &metrics, dtype);
    NoiseReport {
        against,
        rows: sums.rows,
        values: sums.values,
        first_beyond: beyond().next().map(|(position, _)| *position),
        rows_beyond: beyond().count() as u64,
        control_flips: if sums.rows > 0 { wide(sums.control.flips) / rows } else { 0.0 },
        target_flips: if sums.rows > 0 { wide(sums.target.flips) / rows } else { 0.0 },
        metrics,
        verdict,
        summary,
    }
}

/// `target <= allowed * control + floor`, by metric; none where nothing was compared.
fn metrics(sums: &Sums, dtype: DType, floor: f64) -> Vec<NoiseMetric> {
    if sums.values == 0 {
        return Vec::new();
    }
    let half = matches!(dtype, DType::F16 | DType::Bf16);
    let mean_factor = if half { MEAN_FACTOR_HALF } else { MEAN_FACTOR_F32 };
    let mean_reason = if half {
        "two kernels of one half-precision formula round at different points; mean errors up to 3 times apart"
    } else {
        "two summation orders of one f32 formula; mean errors up to 2 times apart"
    };
    let metric = |name: &str, pair: (f64, f64), allowed: f64, floor: f64, reason: &str| {
        let (target, control) = pair;
        NoiseMetric {
            name: name.to_owned(),
            target,
            control,
            ratio: (control > 0.0).then(|| target / control),
            allowed,
            reason: reason.to_owned(),
            within: target <= allowed * control + floor,
        }
    };
    let (values, norm) = (wide(sums.values), sums.truth_sq.sqrt());
    let rmse = |errors: &Errors| (errors.sum_sq / values).sqrt();
    let relative = |errors: &Errors| if norm > 0.0 { errors.sum_sq.sqrt() / norm } else { 0.0 };
    let relative_floor = if norm > 0.0 { floor * values.sqrt() / norm } else { 0.0 };
    let (t, c) = (&sums.target, &sums.control);
    let max_reason = "an extreme of many values scatters more than their mean";
    let row_reason = format!(
        "the worst row, at position {}, against the control's largest row; one row of few values scatters up to \
         {ROW_FACTOR} times more than the mean of all",
        sums.worst_row.0
    );
    let row = (sums.worst_row.1, sums.control_row);
    vec![
        metric("rmse", (rmse(t), rmse(c)), mean_factor, floor, mean_reason),
        metric("max_abs", (t.max_abs, c.max_abs), MAX_FACTOR, floor, max_reason),
        metric("relative_l2", (relative(t), relative(c)), mean_factor, relative_floor, mean_reason),
        metric("row_rmse", row, ROW_FACTOR * mean_factor, floor, &row_reason),
    ]
}

fn conclude(sums: &Sums, metrics: &[NoiseMetric], dtype: DType) -> (Verdict, String) {
    let inconclusive = |why: String| (Verdict::Incomparable { why: why.clone() }, why);
    if let Some((position, rows)) = sums.broken {
        let text = format!(
            "{rows} rows of the target are not finite where the truth is, first at position {position}"
        );
        return (Verdict::Diverged, text);
    }
    if sums.values == 0 {
        return inconclusive(
            "target, control and truth have no finite logit of a common row in common".to_owned(),
        );
    }
    let by_name = |name: &str| metrics.iter().find(|metric| metric.name == name);
    let Some(relative) = by_name("relative_l2") else {
        return inconclusive("no metric".to_owned());
    };
    let ceiling = ceiling(dtype);
    if relative.control > ceiling {
        return inconclusive(format!(
            "the control's own error ({:.1e} relative) is larger than {} arithmetic can leave ({ceiling:.1e}): it does \
             not compute in the dtype that it claims",
            relative.control,
            dtype.name()
        ));
    }
    let figures = format!(
        "error against the truth {:.2e}, same-dtype control {:.2e} (relative L2)",
        relative.target, relative.control
    );
    match metrics.iter().find(|metric| !metric.within) {
        None => (Verdict::WithinNoise, format!("within noise: {figures}")),
        Some(metric) => (
            Verdict::Diverged,
            format!(
                "beyond noise: {figures}; {}{} is {} the control's, {} allowed",
                metric.name,
                if metric.name == "row_rmse" {
                    format!(" at position {}", sums.worst_row.0)
                } else {
                    String::new()
                },
                metric.ratio.map_or("above".to_owned(), |ratio| format!("{ratio:.1} times")),
                metric.allowed
            ),
        ),
    }
}

/// Relative error that arithmetic in `dtype` can leave: `CEILING_ROUNDINGS` roundings for f32; for the half types the
/// rounding of the result dominates, so 64.
#[must_use]
pub fn ceiling(dtype: DType) -> f64 {
    match dtype {
        DType::F16 => 64.0 * 2f64.powi(-11),
        DType::Bf16 => 64.0 * 2f64.powi(-8),
        DType::F64 => CEILING_ROUNDINGS * 2f64.powi(-53) + 2f64.powi(-24),
        _ => CEILING_ROUNDINGS * 2f64.powi(-24),
    }
}

#[expect(clippy::cast_precision_loss, reason = "counts are far below 2^53")]
fn wide(value: u64) -> f64 {
    value as f64
}
