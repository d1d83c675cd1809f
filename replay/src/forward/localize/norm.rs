//! Hypotheses about a norm: skipped, or with another epsilon.

use lockstep_reference::forward::{Model, Precision, stages};
use lockstep_traces::Cause;

use super::compare::distance;
use super::observed::Observed;
use super::{Named, Scene, figure};
use crate::ReplayError;

/// One recorded norm: what entered, what left, and its weight.
struct Pair<'a> {
    input: Vec<f64>,
    output: &'a [f64],
    weight: Vec<f64>,
}

/// Names what a norm stage did instead.
pub(super) fn name(scene: &Scene<'_>) -> Result<Option<Named>, ReplayError> {
    let slot = scene.departure.slot;
    let Some(pair) = scene.row().and_then(|row| input(row, slot.layer, slot.name)) else {
        return Ok(None);
    };
    let weight = weight(scene.model, slot.layer, slot.name)?;
    let pair = Pair { input: pair.0, output: pair.1, weight };
    if matches!(slot.name, "q_norm" | "k_norm") {
        let error = distance(&pair.input, pair.output);
        if scene.explains(error) {
            return Ok(Some(Named {
                cause: Some(Cause::QkNormSkipped),
                title: format!(
                    "{}: {} holds the values of the projection before it",
                    Cause::QkNormSkipped.title(),
                    slot.name
                ),
                evidence: vec![figure("error_if_skipped", error)],
                head: None,
                row: None,
            }));
        }
    }
    Ok(epsilon(scene, &pair))
}

/// Input and output of a norm stage as recorded.
pub(super) fn input<'a>(
    row: &'a Observed,
    layer: Option<usize>,
    name: &'static str,
) -> Option<(Vec<f64>, &'a [f64])> {
    let output = row.get(layer, name)?;
    let input = match (name, layer) {
        ("input_norm", Some(layer)) => row.input(layer)?.to_vec(),
        ("post_norm", Some(layer)) => {
            let attended = row.get(Some(layer), "attn_out")?;
            row.input(layer)?.iter().zip(attended).map(|(x, a)| x + a).collect()
        }
        ("q_norm", Some(_)) => row.get(layer, "q_proj")?.to_vec(),
        ("k_norm", Some(_)) => row.get(layer, "k_proj")?.to_vec(),
        _ => row.input(row.layers())?.to_vec(),
    };
    Some((input, output))
}

pub(super) fn weight(
    model: &Model,
    layer: Option<usize>,
    name: &'static str,
) -> Result<Vec<f64>, ReplayError> {
    let hyper = model.hyper();
    let inside = |part: &str| format!("model.layers.{}.{part}.weight", layer.unwrap_or(0));
    let (tensor, width) = match name {
        "input_norm" => (inside("input_layernorm"), hyper.hidden),
        "post_norm" => (inside("post_attention_layernorm"), hyper.hidden),
        "q_norm" => (inside("self_attn.q_norm"), hyper.head_dim),
        "k_norm" => (inside("self_attn.k_norm"), hyper.head_dim),
        _ => ("model.norm.weight".to_owned(), hyper.hidden),
    };
    let weights = model.weights();
    let values = weights.widen(&tensor, &[width], Precision::F64)?.to_vec1::<f64>();
    values.map_err(|error| lockstep_reference::ReferenceError::from(error).into())
}

/// Solves the epsilon from what entered and what left: `output = weight * input * s`, `s = 1 / sqrt(mean(input^2) + eps)`.
fn epsilon(scene: &Scene<'_>, pair: &Pair<'_>) -> Option<Named> {
    let configured = scene.model.hyper().norm_eps;
    let (estimate, spread) = estimate(pair)?;
    let reproduced = stages::norm(&pair.input, &pair.weight, estimate);
    let error = distance(&reproduced, pair.output);
    let expected = distance(&stages::norm(&pair.input, &pair.weight, configured), pair.output);
    // The estimate must reproduce the recorded values, and do so clearly better than the configured one.
    if !scene.explains(error) || error * 4.0 > expected || spread > 0.2 {
        return None;
    }
    Some(Named {
        cause: Some(Cause::NormEpsilon),
        title: format!(
            "{}: about {estimate:.3e} where the model has {configured:.3e}",
            Cause::NormEpsilon.title()
        ),
        evidence: vec![
            figure("epsilon_estimated", estimate),
            figure("epsilon_configured", configured),
            figure("error_with_estimate", error),
            figure("error_with_configured", expected),
        ],
        head: None,
        row: None,
    })
}

/// Estimate over the pieces of a stage (heads, or the whole row), weighted by how much the epsilon matters in each, and the
/// relative spread of the pieces around it.
fn estimate(pair: &Pair<'_>) -> Option<(f64, f64)> {
    let width = pair.weight.len();
    let pieces = pair.input.chunks_exact(width).zip(pair.output.chunks_exact(width));
    let solved: Vec<(f64, f64)> = pieces
        .filter_map(|(input, output)| {
            let square = input.iter().map(|v| v * v).sum::<f64>() / width as f64;
            let mut sums = [0.0; 2];
            for ((x, y), w) in input.iter().zip(output).zip(&pair.weight) {
                sums[0] += x * w * y;
                sums[1] += x * w * x * w;
            }
            let scale = sums[0] / sums[1];
            let eps = 1.0 / (scale * scale) - square;
            // An error of the scale enters the epsilon times the mean square.
            (eps.is_finite() && square > 0.0).then_some((eps, 1.0 / (square * square)))
        })
        .collect();
    let total: f64 = solved.iter().map(|(_, weight)| weight).sum();
    let mean = solved.iter().map(|(eps, weight)| eps * weight).sum::<f64>() / total;
    let variance =
        solved.iter().map(|(eps, weight)| (eps - mean).powi(2) * weight).sum::<f64>() / total;
    (mean.is_finite() && mean != 0.0).then(|| (mean, variance.sqrt() / mean.abs()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn epsilon_is_solved_from_input_and_output() {
        let input = vec![0.01, -0.02, 0.03, 0.005, 0.5, 0.1, -0.2, 0.3];
        let weight = vec![1.0, 2.0, 0.5, 1.5];
        let output = stages::norm(&input, &weight, 1e-3);
        let pair = Pair { input, output: &output, weight };
        let (eps, spread) = estimate(&pair).unwrap();
        assert!((eps / 1e-3 - 1.0).abs() < 1e-9 && spread < 1e-9, "{eps} {spread}");
    }

    #[test]
    fn no_single_epsilon_fits_another_computation() {
        let input = vec![0.1, -0.2, 0.3, 0.05, -0.1, 0.2, 0.3, 0.05];
        let weight = vec![1.0; 4];
        // Two pieces of one size, scaled by 3 and by 5: no normalisation does that.
        let scales = [3.0, 5.0];
        let output: Vec<f64> =
            input.iter().enumerate().map(|(index, v)| v * scales[index / 4]).collect();
        let (_, spread) = estimate(&Pair { input, output: &output, weight }).unwrap();
        assert!(spread > 0.2 || spread.is_nan(), "{spread}");
    }
}
