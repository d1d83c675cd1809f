//! The epsilon of narrow norms: below the resolution of the dtype an error does not show, bits do.
//!
//! Every recorded norm is computed again from its recorded input, in f32 with the roundings of the run's dtype, under the
//! configured epsilon and under the usual others; the elements that come out bit for bit are counted.

use lockstep_reference::forward::{Model, Precision, Rounding};
use lockstep_traces::dump::LAYER_STAGES;
use lockstep_traces::{Cause, Finding, Location};

use super::norm;
use super::observed::Observed;
use crate::ReplayError;
use crate::forward::self_check::figure;

/// Epsilons in use.
const USUAL: [f64; 6] = [1e-3, 1e-4, 1e-5, 1e-6, 1e-8, 1e-12];

/// Fewest elements that another epsilon must explain beyond the configured one.
const GAIN: u64 = 4;

/// One recorded norm.
struct Recorded {
    position: u32,
    layer: Option<usize>,
    name: &'static str,
    input: Vec<f32>,
    output: Vec<f32>,
    weight: Vec<f32>,
}

impl Recorded {
    /// Elements that are not the recorded bits under `eps`. `twice`: rounded before the weight as well.
    fn misses(&self, eps: f64, rounding: Rounding, twice: bool) -> u64 {
        let width = self.weight.len().max(1);
        let pieces = self.input.chunks_exact(width).zip(self.output.chunks_exact(width));
        let missed = pieces.map(|(input, output)| {
            let square = input.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>() / width as f64;
            let scale = (1.0 / (square + eps).sqrt()) as f32;
            let wrong = input.iter().zip(output).zip(&self.weight).filter(|((x, y), w)| {
                let normed = **x * scale;
                let normed = if twice { rounding.f32(normed) } else { normed };
                rounding.f32(normed * **w).to_bits() != y.to_bits()
            });
            wrong.count() as u64
        });
        missed.sum()
    }
}

/// What the bits say of the epsilon.
#[derive(Debug, Default)]
pub(super) struct Bits {
    pub(super) finding: Option<Finding>,
    pub(super) limit: Option<String>,
}

/// Counts bits over every recorded norm of a run in `dtype`; nothing is said of wide ones, whose errors show by themselves.
pub(super) fn check(
    sample: &str,
    observed: &[Observed],
    model: &Model,
    dtype: Precision,
) -> Result<Bits, ReplayError> {
    let rounding = dtype.rounding();
    if rounding == Rounding::None {
        return Ok(Bits::default());
    }
    let norms = recorded(observed, model, rounding)?;
    let configured = model.hyper().norm_eps;
    let finding = find(sample, &norms, rounding, configured);
    let limit = finding.is_none().then(|| {
        format!(
            "another norm epsilon than {configured:e} shows in {} only where it moves a rounding",
            dtype.dtype().name()
        )
    });
    Ok(Bits { finding, limit })
}

fn recorded(
    observed: &[Observed],
    model: &Model,
    rounding: Rounding,
) -> Result<Vec<Recorded>, ReplayError> {
    let narrow = |values: &[f64]| values.iter().map(|value| *value as f32).collect::<Vec<f32>>();
    let mut norms = Vec::new();
    let layers = observed.first().map_or(0, Observed::layers);
    let inner = LAYER_STAGES.into_iter().filter(|name| name.ends_with("norm"));
    let slots = (0..layers)
        .flat_map(|layer| inner.clone().map(move |name| (Some(layer), name)))
        .chain([(None, "final_norm")]);
    for (layer, name) in slots {
        let mut weight = None;
        for row in observed {
            let Some((input, output)) = norm::input(row, layer, name) else { continue };
            if weight.is_none() {
                weight = Some(narrow(&norm::weight(model, layer, name)?));
            }
            let round = |values: Vec<f32>| values.into_iter().map(|v| rounding.f32(v)).collect();
            norms.push(Recorded {
                position: row.position,
                layer,
                name,
                input: round(narrow(&input)),
                output: narrow(output),
                weight: round(weight.clone().unwrap_or_default()),
            });
        }
    }
    Ok(norms)
}

/// The other epsilon that leaves at most half of the misses and a tenth of all elements.
fn find(sample: &str, norms: &[Recorded], rounding: Rounding, configured: f64) -> Option<Finding> {
    let total: u64 = norms.iter().map(|norm| norm.output.len() as u64).sum();
    let misses =
        |eps, twice| norms.iter().map(|norm| norm.misses(eps, rounding, twice)).sum::<u64>();
    let others = USUAL.into_iter().filter(|eps| (eps / configured - 1.0).abs() > 1e-6);
    let tried = others.flat_map(|eps| [true, false].map(|twice| (misses(eps, twice), eps, twice)));
    let (missed, eps, twice) =
        tried.min_by(|a, b| a.0.cmp(&b.0).then_with(|| b.1.total_cmp(&a.1)))?;
    // Either way of rounding may be the run's: the configured epsilon has the better of the two.
    let expected = misses(configured, true).min(misses(configured, false));
    if missed + GAIN > expected || missed * 2 > expected || missed * 10 > total {
        return None;
    }
    let gains = |norm: &&Recorded| {
        norm.misses(configured, rounding, twice) > norm.misses(eps, rounding, twice)
    };
    let first = norms.iter().filter(gains).min_by_key(|norm| {
        let place = LAYER_STAGES.iter().position(|name| *name == norm.name);
        (norm.position, norm.layer.unwrap_or(usize::MAX), place)
    })?;
    Some(Finding {
        cause: Some(Cause::NormEpsilon),
        title: format!(
            "{}: {eps:e} gives the recorded bits where the model has {configured:e}",
            Cause::NormEpsilon.title()
        ),
        location: Location {
            sample_id: Some(sample.to_owned()),
            position: Some(first.position),
            layer: first.layer.and_then(|layer| u32::try_from(layer).ok()),
            stage: Some(first.name.to_owned()),
            ..Location::default()
        },
        evidence: vec![
            figure("epsilon_found", eps),
            figure("epsilon_configured", configured),
            figure("elements", total),
            figure("elements_equal_with_found", total - missed),
            figure("elements_equal_with_configured", total - expected),
        ],
    })
}
