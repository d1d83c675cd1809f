//! One compaction: choose, dump, gather, report. Where the rows move is the backend's (`compact_cpu`, `compact_cuda`).

use std::collections::BTreeMap;

use lockstep_traces::{Dump, DumpId, EventRow, Probe, Tensor, TraceSink};

use super::backend::{Cache, Device};
use super::sequence::Sequence;
use super::{compact_cpu, compact_cuda};
use crate::RuntimeError;
use crate::cache::GatherMode;
use crate::policy::{Compaction, Policy};
use crate::select::{KeepSet, SelectError, Selection};

/// How rows are moved.
#[derive(Debug, Clone, Copy)]
pub(super) struct Gather<'a> {
    /// Faithful, or with a planted mistake.
    pub(super) mode: GatherMode,
    /// Rows to keep instead of the policy's choice.
    pub(super) forced: Option<&'a KeepSet>,
}

/// What a sink wants of a compaction.
#[derive(Debug, Clone, Copy)]
pub(super) struct Wanted {
    pub(super) cache: bool,
    pub(super) scores: bool,
}

/// A compaction that was done.
#[derive(Debug)]
pub(super) struct Moved {
    pub(super) selection: Selection,
    /// The policy's choice, where another one was forced.
    pub(super) own: Option<KeepSet>,
    pub(super) gather_seconds: f64,
    /// Rows and positions before and after, where wanted.
    pub(super) tensors: Vec<Tensor>,
}

/// Compacts the cache of `sequence` as `due` says and records it.
pub(super) fn compact(
    policy: &Policy,
    device: &mut Device<'_>,
    how: Gather<'_>,
    sequence: &mut Sequence<'_>,
    due: &Compaction,
    sink: &mut dyn TraceSink,
) -> Result<(), RuntimeError> {
    let request = sequence.request;
    let (sample_id, ordinal) = (request.sample_id.as_str(), due.ordinal);
    let wanted = Wanted {
        cache: sink.wants(Probe::Cache { sample_id, ordinal }),
        scores: sink.wants(Probe::Scores { sample_id, ordinal }),
    };
    // One compaction's rows lie in the device's staging memory at a time.
    device.deliver(sink)?;
    let moved = match (&mut sequence.cache, &mut *device) {
        (Cache::Cpu(cache), _) => {
            compact_cpu::compact(policy, how, (cache, &mut sequence.state), due, wanted)
        }
        (Cache::Cuda(cache), Device::Cuda(run)) => {
            compact_cuda::compact(policy, run, how, (cache, &mut sequence.state), due, wanted)
        }
        (Cache::Cuda(_), Device::Cpu(_)) => {
            unreachable!("caches are made by the run's own backend")
        }
    };
    let mut moved = moved.map_err(|error| located(error, sample_id, due))?;
    let mut dump_path = None;
    if wanted.cache || wanted.scores {
        let keep = &moved.selection.keep;
        let mut tensors = std::mem::take(&mut moved.tensors);
        tensors.push(Tensor::from_i32("keep", keep.shape(), &keep.to_i32()));
        let own = moved.own.as_ref();
        tensors.extend(own.map(|own| Tensor::from_i32("keep.own", own.shape(), &own.to_i32())));
        tensors.extend(moved.selection.stages.iter().flat_map(|stages| stages.tensors()));
        let id = DumpId::Compaction { sample_id: sample_id.to_owned(), ordinal };
        dump_path = Some(id.relative_path());
        let metadata = metadata(policy, sequence, due, &moved.selection);
        device.dump(Dump { id, metadata, tensors }, sink)?;
    }
    let Moved { selection, gather_seconds, .. } = moved;
    sink.event(EventRow {
        sample_id: sample_id.to_owned(),
        ordinal,
        absolute_position: due.absolute_position,
        round_start: selection.round_start,
        rows_before: count(due.rows),
        rows_after: count(selection.keep.len()),
        protected: selection.protected,
        candidates: selection.candidates,
        score_seconds: selection.seconds.score,
        reduce_seconds: selection.seconds.reduce,
        select_seconds: selection.seconds.select,
        gather_seconds,
        dump: dump_path,
    })?;
    Ok(())
}

/// Why a compaction came to nothing.
#[derive(Debug)]
pub(super) enum Failure {
    Select(SelectError),
    Other(RuntimeError),
}

impl From<SelectError> for Failure {
    fn from(error: SelectError) -> Self {
        Self::Select(error)
    }
}

impl From<RuntimeError> for Failure {
    fn from(error: RuntimeError) -> Self {
        Self::Other(error)
    }
}

impl From<crate::cuda::gpu::GpuError> for Failure {
    fn from(error: crate::cuda::gpu::GpuError) -> Self {
        Self::Other(error.into())
    }
}

fn located(failure: Failure, sample_id: &str, due: &Compaction) -> RuntimeError {
    match failure {
        Failure::Select(source) => RuntimeError::Compaction {
            sample_id: sample_id.to_owned(),
            ordinal: due.ordinal,
            position: due.absolute_position,
            source,
        },
        Failure::Other(error) => error,
    }
}

/// Puts the forced rows in the place of the chosen ones, which are returned.
pub(super) fn force(
    selection: &mut Selection,
    forced: &KeepSet,
    due: &Compaction,
) -> Result<KeepSet, RuntimeError> {
    let fits = forced.shape() == selection.keep.shape()
        && forced.lists().all(|list| {
            list.len() == forced.len() && list.iter().all(|&row| (row as usize) < due.rows)
        });
    if !fits {
        let what = format!(
            "compaction {} wants sets of shape {:?} of rows below {}, not {:?}",
            due.ordinal,
            selection.keep.shape(),
            due.rows,
            forced.shape()
        );
        return Err(RuntimeError::Option { name: "keeps", what });
    }
    Ok(std::mem::replace(&mut selection.keep, forced.clone()))
}

fn count(rows: usize) -> u32 {
    u32::try_from(rows).unwrap_or(u32::MAX)
}

fn metadata(
    policy: &Policy,
    sequence: &Sequence<'_>,
    due: &Compaction,
    selection: &Selection,
) -> BTreeMap<String, String> {
    let mut metadata = selection.stages.as_ref().map_or_else(BTreeMap::new, |s| s.metadata());
    for setting in policy.effective() {
        let name = match setting.key {
            "policy.kind" => "policy",
            "policy.rule_set" => "rule_set",
            "policy.mode" => "mode",
            _ => continue,
        };
        if let Some(value) = setting.value.as_str() {
            metadata.entry(name.to_owned()).or_insert_with(|| value.to_owned());
        }
    }
    if let Some(round_start) = selection.round_start {
        metadata.insert("round_start".to_owned(), round_start.to_string());
    }
    for (key, value) in [
        ("sample_id", sequence.request.sample_id.clone()),
        ("ordinal", due.ordinal.to_string()),
        ("absolute_position", due.absolute_position.to_string()),
        ("rows_before", due.rows.to_string()),
        ("rows_after", selection.keep.len().to_string()),
        ("prompt_len", sequence.request.prompt_ids.len().to_string()),
    ] {
        metadata.insert(key.to_owned(), value);
    }
    metadata
}
