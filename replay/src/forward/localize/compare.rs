//! Recorded stages against the reference, with a control beside them.

use std::collections::BTreeMap;

use lockstep_reference::forward::{Model, Precision};
use lockstep_traces::TraceError;
use lockstep_traces::store::RunReader;
use serde_json::{Value, json};

use super::observed::Observed;
use super::order::Slot;
use super::passes::Pass;
use crate::ReplayError;
use crate::forward::recording::Recording;

/// A stage departs where its error exceeds this many times the control's. Two sound programs of one dtype differ in order
/// of accumulation and in rounding points, which moves an error by a factor of up to 3 (transformers against this
/// reference in f32: 1.4); every known mistake moves it by 30 and more.
pub(super) const RATIO: f64 = 8.0;

/// ... and this many unit roundoffs: where the control happens to be exact, one or two roundings are no departure.
const FLOOR: f64 = 2.0;

/// The first stage that departs.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Departure {
    pub(super) position: u32,
    pub(super) slot: Slot,
    /// Relative L2 error of the recording against f64.
    pub(super) error: f64,
    /// The same of the control.
    pub(super) control: f64,
    /// Largest error that would have passed.
    pub(super) tolerance: f64,
}

/// Everything compared.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Comparison {
    pub(super) compared: u64,
    pub(super) different: u64,
    pub(super) skipped: u64,
    pub(super) positions: Vec<u32>,
    pub(super) first: Option<Departure>,
    worst: BTreeMap<&'static str, (f64, Departure)>,
}

impl Comparison {
    /// Worst ratio of each stage over positions and layers.
    pub(super) fn worst(&self) -> Value {
        let entries = self.worst.iter().map(|(name, (ratio, worst))| {
            let value = json!({
                "ratio_to_tolerance": ratio,
                "error": worst.error,
                "control_error": worst.control,
                "position": worst.position,
                "layer": worst.slot.layer,
            });
            ((*name).to_owned(), value)
        });
        Value::Object(entries.collect())
    }
}

/// Relative L2 distance of `values` from `truth`; infinite where a value is not finite.
pub(super) fn distance(values: &[f64], truth: &[f64]) -> f64 {
    let mut sums = [0.0; 2];
    for (value, truth) in values.iter().zip(truth) {
        sums[0] += (value - truth).powi(2);
        sums[1] += truth.powi(2);
    }
    if values.len() != truth.len() || !sums[0].is_finite() {
        return f64::INFINITY;
    }
    // A vector of zeros has no relative error; what departs from it departs absolutely.
    (sums[0] / if sums[1] > 0.0 { sums[1] } else { 1.0 }).sqrt()
}

/// Runs truth and control over the sample and compares every recorded stage.
pub(super) fn compare(
    run: &RunReader,
    recording: &Recording,
    observed: &[Observed],
    [truth, control]: [&Model; 2],
    chunk: usize,
) -> Result<Comparison, ReplayError> {
    let positions: Vec<u32> = observed.iter().map(|row| row.position).collect();
    let end = positions.last().map_or(0, |last| *last as usize + 1);
    if end > recording.rows.len() {
        return Err(ReplayError::incomparable(
            &recording.sample_id,
            format!(
                "a dump stands at position {} and the trace ends at {}",
                end - 1,
                recording.rows.len()
            ),
        ));
    }
    let layers = truth.hyper().layers;
    let collect = |model: &Model| -> Result<BTreeMap<(u32, usize), Vec<f64>>, ReplayError> {
        let mut pass = Pass::new(run, recording, model)?;
        let stages = pass.advance(end, chunk, &positions, &mut |_, _| Ok(()))?;
        Ok(stages
            .into_iter()
            .map(|(position, stage)| {
                let rank = Slot { layer: stage.layer, name: stage.name }.rank(layers);
                ((position, rank), stage.values)
            })
            .collect())
    };
    let (exact, same) = (collect(truth)?, collect(control)?);
    // Dumps are f32, whatever the arithmetic.
    let roundoff = control.precision().unit_roundoff().max(Precision::F32.unit_roundoff());
    let mut result = Comparison {
        compared: 0,
        different: 0,
        skipped: 0,
        positions,
        first: None,
        worst: BTreeMap::new(),
    };
    for row in observed {
        for slot in Slot::all(layers) {
            let Some(values) = row.get(slot.layer, slot.name) else { continue };
            let key = (row.position, slot.rank(layers));
            let (Some(exact), Some(same)) = (exact.get(&key), same.get(&key)) else {
                result.skipped += 1;
                continue;
            };
            if exact.len() != values.len() {
                return Err(TraceError::Tensor {
                    path: run.dir().to_path_buf(),
                    tensor: format!("{} at position {}", slot.tensor(), row.position),
                    what: format!("holds {} values, the model has {}", values.len(), exact.len()),
                }
                .into());
            }
            let (error, control) = (distance(values, exact), distance(same, exact));
            let tolerance = (RATIO * control).max(FLOOR * roundoff);
            result.add(Departure { position: row.position, slot, error, control, tolerance });
        }
    }
    Ok(result)
}

impl Comparison {
    fn add(&mut self, stage: Departure) {
        self.compared += 1;
        let ratio = stage.error / stage.tolerance;
        let worst = self.worst.get(stage.slot.name).map_or(-1.0, |(worst, _)| *worst);
        if ratio > worst {
            self.worst.insert(stage.slot.name, (ratio, stage.clone()));
        }
        if stage.error > stage.tolerance {
            self.different += 1;
            self.first.get_or_insert(stage);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distance_is_relative_and_never_forgives_what_is_not_finite() {
        assert!((distance(&[3.0, 4.0], &[3.0, 3.0]) - 1.0 / 18f64.sqrt()).abs() < 1e-12);
        assert!(distance(&[f64::NAN], &[1.0]).is_infinite());
        assert!(distance(&[1.0], &[1.0, 2.0]).is_infinite());
        assert!((distance(&[0.5], &[0.0]) - 0.5).abs() < 1e-12);
    }
}
