//! Recorded hidden states.

use std::collections::BTreeMap;

use lockstep_reference::Hyper;
use lockstep_traces::DumpId;
use lockstep_traces::store::RunReader;

use super::LocalizeOptions;
use super::order::Slot;
use crate::ReplayError;

/// Recorded stages of one row.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Observed {
    pub(super) position: u32,
    stages: BTreeMap<usize, Vec<f64>>,
    layers: usize,
}

impl Observed {
    /// The recorded values of a stage.
    pub(super) fn get(&self, layer: Option<usize>, name: &'static str) -> Option<&[f64]> {
        self.stages.get(&Slot { layer, name }.rank(self.layers)).map(Vec::as_slice)
    }

    /// Names of the recorded stages.
    pub(super) fn names(&self) -> impl Iterator<Item = &'static str> {
        let held = |slot: &Slot| self.stages.contains_key(&slot.rank(self.layers));
        Slot::all(self.layers).filter(held).map(|slot| slot.name)
    }

    /// Is any stage of this layer recorded? What stands outside the layers always counts as wanted.
    pub(super) fn holds(&self, layer: Option<usize>) -> bool {
        layer.is_none()
            || Slot::all(self.layers)
                .any(|slot| slot.layer == layer && self.get(layer, slot.name).is_some())
    }

    /// Layers of the model.
    pub(super) const fn layers(&self) -> usize {
        self.layers
    }

    /// What entered a layer: the embedding or the layer before.
    pub(super) fn input(&self, layer: usize) -> Option<&[f64]> {
        match layer.checked_sub(1) {
            Some(before) => self.get(Some(before), "out"),
            None => self.get(None, "embed"),
        }
    }
}

/// The sample to look at: the one asked for, the first with step dumps, or the first with any dump.
pub(super) fn sample(
    run: &RunReader,
    options: &LocalizeOptions,
) -> Result<Option<String>, ReplayError> {
    if let Some(sample) = &options.sample {
        return Ok(Some(sample.clone()));
    }
    let mut any = None;
    for id in run.dumps()? {
        match id {
            DumpId::Step { sample_id, .. } => return Ok(Some(sample_id)),
            DumpId::Compaction { sample_id, .. } => any = any.or(Some(sample_id)),
        }
    }
    Ok(any)
}

/// Reads every wanted step dump that holds hidden states, in order of position.
pub(super) fn read(
    run: &RunReader,
    sample: &str,
    options: &LocalizeOptions,
    hyper: &Hyper,
) -> Result<Vec<Observed>, ReplayError> {
    let mut rows = Vec::new();
    for id in run.dumps()? {
        let DumpId::Step { sample_id, position } = &id else { continue };
        let wanted =
            options.positions.as_ref().is_none_or(|positions| positions.contains(position));
        if sample_id != sample || !wanted {
            continue;
        }
        let Some(dump) = run.dump(&id)? else { continue };
        let mut stages = BTreeMap::new();
        for slot in Slot::all(hyper.layers) {
            let name = slot.tensor();
            if dump.has(&name) {
                stages.insert(slot.rank(hyper.layers), dump.get(&name)?.to_f64()?);
            }
        }
        if !stages.is_empty() {
            rows.push(Observed { position: *position, stages, layers: hyper.layers });
        }
    }
    rows.sort_by_key(|row| row.position);
    Ok(rows)
}
