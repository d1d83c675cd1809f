//! What a measured difference means: bits, the control, or a tolerance with its reason.

use std::str::FromStr;

use lockstep_traces::DType;
use lockstep_traces::tensor_files::Element;
use regex::Regex;

use super::map::{METRICS, NameMap, whole};
use super::report::{ControlFigures, Figures, Judged, Status};
use crate::noise::{MAX_FACTOR, MEAN_FACTOR_F32, MEAN_FACTOR_HALF, ceiling};
use crate::report::NoiseMetric;
use crate::ulp::ulp;

/// What is allowed where the map says nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Preset {
    /// Nothing: two deterministic runs of one program, or a copy.
    #[default]
    Exact,
    /// Elementwise, as `torch.testing.assert_close` has it by element type.
    Torch,
    /// `1 - 2<x,y> / (|x|^2 + |y|^2)` up to 1e-3, as in DeepGEMM's own tests and SGLang's comparer.
    DeepGemm,
    /// `sum (x-y)^2 / sum x^2` up to 1e-6, as in llama.cpp's operator tests.
    Nmse,
}

impl FromStr for Preset {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        Ok(match text {
            "exact" => Self::Exact,
            "torch" => Self::Torch,
            "deepgemm" => Self::DeepGemm,
            "nmse" => Self::Nmse,
            other => {
                return Err(format!(
                    "no tolerance `{other}`; there are exact, torch, deepgemm, nmse"
                ));
            }
        })
    }
}

/// `rtol` and `atol` of `torch.testing.assert_close`; `None` for integers, which must be equal.
pub(super) fn elementwise(preset: Preset, left: Element, right: Element) -> Option<(f64, f64)> {
    let one = |element: Element| -> Option<(f64, f64)> {
        match element {
            Element::F64 => Some((1e-7, 1e-7)),
            Element::F32 => Some((1.3e-6, 1e-5)),
            Element::F16 => Some((1e-3, 1e-5)),
            Element::Bf16 => Some((1.6e-2, 1e-5)),
            _ => None,
        }
    };
    if preset != Preset::Torch {
        return None;
    }
    let ((a, b), (c, d)) = one(left).zip(one(right))?;
    Some((a.max(c), b.max(d)))
}

/// Bounds by name, compiled.
#[derive(Debug)]
pub(super) struct Bounds {
    rules: Vec<(Regex, String, f64, String)>,
    pub(super) preset: Preset,
    pub(super) nan_equal: bool,
}

/// An outcome with its reason.
#[derive(Debug)]
pub(super) struct Outcome {
    pub(super) status: Status,
    pub(super) why: String,
    pub(super) judged: Option<Judged>,
    pub(super) control: Option<ControlFigures>,
}

impl Bounds {
    pub(super) fn new(map: &NameMap, preset: Preset, nan_equal: bool) -> Result<Self, String> {
        let rules = map.tolerances.iter().map(|rule| {
            let names = whole(rule.names.as_deref().unwrap_or(".*"))?;
            Ok((names, rule.metric.clone(), rule.at_most, rule.reason.clone()))
        });
        Ok(Self { rules: rules.collect::<Result<_, String>>()?, preset, nan_equal })
    }

    /// Judges one pair: non-finite -> bits -> control -> tolerance.
    pub(super) fn judge(
        &self,
        name: &str,
        figures: &Figures,
        (left, right): (Element, Element),
        control: Option<(&Figures, Element)>,
    ) -> Outcome {
        let plain = |status, why: String| Outcome { status, why, judged: None, control: None };
        if figures.elements == 0 {
            return plain(Status::Identical, "empty on both sides".to_owned());
        }
        let nan = (figures.nan_left, figures.nan_right);
        let infinite = (figures.inf_left, figures.inf_right);
        if nan.0 != nan.1 || infinite.0 != infinite.1 || figures.non_finite > 0 {
            let why = format!(
                "non-finite values differ: NaN {} and {}, infinite {} and {}{}",
                nan.0,
                nan.1,
                infinite.0,
                infinite.1,
                first(figures)
            );
            return plain(Status::Diverged, why);
        }
        let outcome = self.values(name, figures, (left, right), control);
        if nan.0 > 0 && !self.nan_equal && outcome.status != Status::Diverged {
            let why =
                format!("{} values are NaN on both sides: neither equal nor different", nan.0);
            return Outcome { status: Status::Incomparable, why, ..outcome };
        }
        outcome
    }

    fn values(
        &self,
        name: &str,
        figures: &Figures,
        (left, right): (Element, Element),
        control: Option<(&Figures, Element)>,
    ) -> Outcome {
        let plain = |status, why: String| Outcome { status, why, judged: None, control: None };
        if figures.equal == figures.elements {
            return if left == right {
                plain(Status::Identical, "bit-equal".to_owned())
            } else {
                plain(
                    Status::EqualValues,
                    format!("equal values, {} against {}", left.name(), right.name()),
                )
            };
        }
        if let Some((control, element)) = control {
            return by_control(figures, control, element);
        }
        let rules: Vec<_> = self.rules.iter().filter(|(names, ..)| names.is_match(name)).collect();
        if !rules.is_empty() {
            let bounds = rules
                .iter()
                .map(|(_, metric, at_most, reason)| (metric.as_str(), *at_most, reason.as_str()));
            return bounded(figures, bounds);
        }
        match self.preset {
            Preset::Exact => plain(Status::Diverged, size(figures)),
            Preset::DeepGemm => {
                let reason = "the bound of DeepGEMM's own tests and of SGLang's comparer for kernels in low precision";
                bounded(figures, [("deepgemm", 1e-3, reason)].into_iter())
            }
            Preset::Nmse => {
                let reason = "the bound of llama.cpp's operator tests across backends";
                bounded(figures, [("nmse", 1e-6, reason)].into_iter())
            }
            Preset::Torch => elementwise_outcome(figures, elementwise(self.preset, left, right)),
        }
    }
}

fn first(figures: &Figures) -> String {
    figures.first.as_ref().map_or_else(String::new, |at| format!(", first at {at:?}"))
}

/// One line on a difference.
pub(super) fn size(figures: &Figures) -> String {
    let mut parts = vec![format!(
        "{} of {} elements differ",
        figures.elements - figures.equal,
        figures.elements
    )];
    let figure = |name: &str, value: Option<f64>| value.map(|value| format!("{name} {value:.3e}"));
    parts.extend(figure("max |d|", figures.max_abs));
    parts.extend(figure("relative L2", figures.relative_l2));
    parts.extend(figures.max_ulp.map(|ulp| format!("up to {ulp} ulp")));
    format!("{}{}", parts.join(", "), first(figures))
}

/// The figure of a metric; NMSE is the square of the relative L2.
#[expect(clippy::cast_precision_loss, reason = "a distance of 2^53 ulp is beyond any bound")]
fn metric(figures: &Figures, name: &str) -> Option<f64> {
    debug_assert!(METRICS.contains(&name), "{name}");
    match name {
        "deepgemm" => figures.deepgemm,
        "relative_l2" => figures.relative_l2,
        "nmse" => figures.relative_l2.map(|l2| l2 * l2),
        "max_abs" => figures.max_abs,
        "mean_abs" => figures.mean_abs,
        "max_rel" => figures.max_rel,
        "rmse" => figures.rmse,
        "max_ulp" => figures.max_ulp.map(|ulp| ulp as f64),
        _ => None,
    }
}

/// Every bound must hold; the first that does not is named, else the last.
fn bounded<'r>(
    figures: &Figures,
    bounds: impl Iterator<Item = (&'r str, f64, &'r str)>,
) -> Outcome {
    let mut last = None;
    for (name, at_most, reason) in bounds {
        let value = metric(figures, name);
        let within = value.is_some_and(|value| value <= at_most);
        let judged = Judged {
            by: name.to_owned(),
            value,
            at_most: Some(at_most),
            reason: reason.to_owned(),
        };
        let shown =
            value.map_or_else(|| "is not defined here".to_owned(), |value| format!("{value:.3e}"));
        let why = format!("{name} {shown}, {at_most:.1e} allowed ({reason})");
        if !within {
            let why = format!("{why}; {}", size(figures));
            return Outcome { status: Status::Diverged, why, judged: Some(judged), control: None };
        }
        last = Some(Outcome { status: Status::Within, why, judged: Some(judged), control: None });
    }
    last.unwrap_or_else(|| Outcome {
        status: Status::Diverged,
        why: size(figures),
        judged: None,
        control: None,
    })
}

fn elementwise_outcome(figures: &Figures, bound: Option<(f64, f64)>) -> Outcome {
    let Some((rtol, atol)) = bound else {
        let why = format!("must be equal in this element type; {}", size(figures));
        return Outcome { status: Status::Diverged, why, judged: None, control: None };
    };
    let beyond = figures.beyond.unwrap_or(figures.elements - figures.equal);
    let reason = format!("torch.testing.assert_close: |d| <= {atol:e} + {rtol:e} |left|");
    #[expect(clippy::cast_precision_loss, reason = "counts are far below 2^53")]
    let value = Some(beyond as f64);
    let judged =
        Judged { by: "beyond".to_owned(), value, at_most: Some(0.0), reason: reason.clone() };
    let status = if beyond == 0 { Status::Within } else { Status::Diverged };
    let why = format!("{beyond} elements beyond {reason}; {}", size(figures));
    Outcome { status, why, judged: Some(judged), control: None }
}

/// `error(target) <= factor * error(control) + floor`, both against the baseline.
fn by_control(figures: &Figures, control: &Figures, element: Element) -> Outcome {
    let dtype = element.dtype().unwrap_or(DType::F32);
    let half = element.size() <= 2;
    let mean = if half { MEAN_FACTOR_HALF } else { MEAN_FACTOR_F32 };
    // Size of the baseline, for the rounding that it carries itself when it is stored.
    let rms = figures
        .rmse
        .zip(figures.relative_l2)
        .filter(|(_, l2)| *l2 > 0.0)
        .map_or(0.0, |(rmse, l2)| rmse / l2);
    let floor = ulp(DType::F32, rms).unwrap_or(0.0);
    let mean_reason = if half {
        "two kernels of one formula in half precision round at different points; mean errors up to 3 times apart"
    } else {
        "two summation orders of one f32 formula; mean errors up to 2 times apart"
    };
    let max_reason = "an extreme of many values scatters more than their mean";
    let rows = [
        ("rmse", figures.rmse, control.rmse, mean, floor, mean_reason),
        (
            "relative_l2",
            figures.relative_l2,
            control.relative_l2,
            mean,
            f64::from(f32::EPSILON),
            mean_reason,
        ),
        ("max_abs", figures.max_abs, control.max_abs, MAX_FACTOR, floor, max_reason),
    ];
    let mut metrics = Vec::new();
    for (name, target, of_control, allowed, floor, reason) in rows {
        let Some((target, of_control)) = target.zip(of_control) else { continue };
        metrics.push(NoiseMetric {
            name: name.to_owned(),
            target,
            control: of_control,
            ratio: (of_control > 0.0).then(|| target / of_control),
            allowed,
            reason: reason.to_owned(),
            within: target <= allowed * of_control + floor,
        });
    }
    let figures_of = |metrics| Some(ControlFigures { metrics });
    let limit = ceiling(dtype);
    let claimed = control.relative_l2.unwrap_or(f64::INFINITY);
    if claimed > limit || metrics.len() < 3 {
        let why = format!(
            "the control's own error ({claimed:.1e} relative) is larger than {} arithmetic can leave ({limit:.1e}): it cannot judge",
            element.name()
        );
        return Outcome {
            status: Status::Incomparable,
            why,
            judged: None,
            control: figures_of(metrics),
        };
    }
    let worst = metrics.iter().find(|metric| !metric.within).or_else(|| metrics.first());
    let (status, why, judged) = match worst {
        Some(metric) => {
            let ratio = metric
                .ratio
                .map_or_else(|| "above".to_owned(), |ratio| format!("{ratio:.2} times"));
            let why = format!(
                "{} {:.3e} is {ratio} the control's {:.3e}, {} times allowed ({})",
                metric.name, metric.target, metric.control, metric.allowed, metric.reason
            );
            let status = if metric.within { Status::Within } else { Status::Diverged };
            let judged = Judged {
                by: "control".to_owned(),
                value: metric.ratio,
                at_most: Some(metric.allowed),
                reason: metric.reason.clone(),
            };
            (status, why, Some(judged))
        }
        None => (Status::Incomparable, "no metric".to_owned(), None),
    };
    Outcome { status, why, judged, control: figures_of(metrics) }
}
