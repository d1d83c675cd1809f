//! Recorded stages against the reference, with a control beside them.

use std::collections::{BTreeMap, BTreeSet};

use lockstep_reference::forward::{Cache, Model, Precision};
use lockstep_traces::TraceError;
use lockstep_traces::store::RunReader;
use serde_json::{Value, json};

use super::caches;
use super::observed::Observed;
use super::order::Slot;
use super::passes::Pass;
use crate::ReplayError;
use crate::forward::recording::{Event, Recording};

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
    /// Stages that some rows hold and others do not.
    pub(super) missing: Vec<String>,
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

/// Runs truth and control over the sample, side by side, and compares every recorded stage and every dumped cache.
pub(super) fn compare(
    run: &RunReader,
    recording: &Recording,
    observed: &[Observed],
    events: &[Event],
    [truth, control]: [&Model; 2],
    chunk: usize,
) -> Result<Comparison, ReplayError> {
    let positions: Vec<u32> = observed.iter().map(|row| row.position).collect();
    let end = positions.last().map_or(0, |last| *last as usize + 1);
    if end > recording.rows.len() {
        let what = format!(
            "a dump stands at position {} and the trace ends at {}",
            end - 1,
            recording.rows.len()
        );
        return Err(ReplayError::incomparable(&recording.sample_id, what));
    }
    // Dumps are f32, whatever the arithmetic.
    let roundoff = control.precision().unit_roundoff().max(Precision::F32.unit_roundoff());
    let mut sides = [Side::new(run, recording, truth)?, Side::new(run, recording, control)?];
    let mut found = Tally::new(truth.hyper().layers, roundoff);
    for event in events {
        let stop = event.absolute_position as usize;
        let [exact, same] = [
            sides[0].advance(stop, chunk, &positions)?,
            sides[1].advance(stop, chunk, &positions)?,
        ];
        if let (Some(exact), Some(same)) = (exact, same) {
            found.caches(run, recording, event, [&exact, &same])?;
        }
    }
    for side in &mut sides {
        side.advance(end, chunk, &positions)?;
    }
    let names: BTreeSet<&str> = observed.iter().flat_map(Observed::names).collect();
    for row in observed {
        found.gaps(row, &names, &sides[0].stages);
        found.row(run, row, [&sides[0].stages, &sides[1].stages])?;
    }
    Ok(found.finish(positions))
}

/// One of the two passes.
struct Side<'a> {
    pass: Pass<'a>,
    layers: usize,
    stages: BTreeMap<(u32, usize), Vec<f64>>,
}

impl<'a> Side<'a> {
    fn new(
        run: &'a RunReader,
        recording: &'a Recording,
        model: &'a Model,
    ) -> Result<Self, ReplayError> {
        let pass = Pass::new(run, recording, model)?;
        Ok(Self { pass, layers: model.hyper().layers, stages: BTreeMap::new() })
    }

    /// Returns the cache as it stood before the compaction at `end`, if there is one.
    fn advance(
        &mut self,
        end: usize,
        chunk: usize,
        watched: &[u32],
    ) -> Result<Option<Cache>, ReplayError> {
        let mut last = None;
        let stages = self.pass.advance(end, chunk, watched, &mut |cache, _| {
            // Rows are shared with the running cache; a gather replaces them there and leaves these alone.
            last = Some(cache.clone());
            Ok(())
        })?;
        for (position, stage) in stages {
            let rank = Slot { layer: stage.layer, name: stage.name }.rank(self.layers);
            self.stages.insert((position, rank), stage.values);
        }
        Ok(last)
    }
}

/// Stages compared so far.
struct Tally {
    entries: Vec<Departure>,
    skipped: u64,
    missing: Vec<String>,
    layers: usize,
    roundoff: f64,
}

impl Tally {
    const fn new(layers: usize, roundoff: f64) -> Self {
        Self { entries: Vec::new(), skipped: 0, missing: Vec::new(), layers, roundoff }
    }

    /// Stages that a row lacks: of a layer of which it holds others, and that are recorded elsewhere.
    fn gaps(
        &mut self,
        row: &Observed,
        names: &BTreeSet<&str>,
        exact: &BTreeMap<(u32, usize), Vec<f64>>,
    ) {
        for slot in Slot::all(self.layers) {
            let computed = exact.contains_key(&(row.position, slot.rank(self.layers)));
            let wanted = computed && names.contains(slot.name) && row.holds(slot.layer);
            if wanted && row.get(slot.layer, slot.name).is_none() {
                self.skipped += 1;
                self.missing.push(format!("{} at position {}", slot.tensor(), row.position));
            }
        }
    }

    fn add(
        &mut self,
        position: u32,
        slot: Slot,
        values: &[f64],
        [exact, same]: [&[f64]; 2],
        roundoff: f64,
    ) {
        let (error, control) = (distance(values, exact), distance(same, exact));
        let tolerance = (RATIO * control).max(FLOOR * roundoff);
        self.entries.push(Departure { position, slot, error, control, tolerance });
    }

    fn row(
        &mut self,
        run: &RunReader,
        row: &Observed,
        [exact, same]: [&BTreeMap<(u32, usize), Vec<f64>>; 2],
    ) -> Result<(), ReplayError> {
        for slot in Slot::all(self.layers) {
            let Some(values) = row.get(slot.layer, slot.name) else { continue };
            let key = (row.position, slot.rank(self.layers));
            let (Some(exact), Some(same)) = (exact.get(&key), same.get(&key)) else {
                self.skipped += 1;
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
            self.add(row.position, slot, values, [exact, same], self.roundoff);
        }
        Ok(())
    }

    fn caches(
        &mut self,
        run: &RunReader,
        recording: &Recording,
        event: &Event,
        [exact, same]: [&Cache; 2],
    ) -> Result<(), ReplayError> {
        let Some(dump) = caches::dump(run, recording, event)? else { return Ok(()) };
        for layer in 0..self.layers {
            let (exact, same) = (exact.layer(layer)?, same.layer(layer)?);
            let pairs = [("pre.k", &exact.k, &same.k), ("pre.v", &exact.v, &same.v)];
            for (name, exact, same) in pairs {
                let tensor = format!("{name}.layer{layer:02}");
                if !dump.has(&tensor) {
                    continue;
                }
                let view = dump.get(&tensor)?;
                let values = view.to_f64()?;
                if values.len() != exact.len() {
                    return Err(view
                        .error(format!(
                            "holds {} values, the reference {}",
                            values.len(),
                            exact.len()
                        ))
                        .into());
                }
                let stored = Precision::of(view.dtype).map_or(0.0, Precision::unit_roundoff);
                let position = event.absolute_position.saturating_sub(1);
                let roundoff = self.roundoff.max(stored);
                self.add(position, Slot::cache(layer, name), &values, [exact, same], roundoff);
            }
        }
        Ok(())
    }

    fn finish(mut self, positions: Vec<u32>) -> Comparison {
        let layers = self.layers;
        self.entries.sort_by_key(|entry| (entry.position, entry.slot.rank(layers)));
        let departs = |entry: &&Departure| entry.error > entry.tolerance;
        let mut worst: BTreeMap<&'static str, (f64, Departure)> = BTreeMap::new();
        for entry in &self.entries {
            let ratio = entry.error / entry.tolerance;
            if worst.get(entry.slot.name).is_none_or(|(before, _)| ratio > *before) {
                worst.insert(entry.slot.name, (ratio, entry.clone()));
            }
        }
        Comparison {
            compared: self.entries.len() as u64,
            different: self.entries.iter().filter(departs).count() as u64,
            skipped: self.skipped,
            missing: self.missing,
            positions,
            first: self.entries.iter().find(departs).cloned(),
            worst,
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
