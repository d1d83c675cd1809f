//! One compaction: choose, dump, gather, report.

use std::collections::BTreeMap;
use std::time::Instant;

use lockstep_traces::{DType, Dump, DumpId, EventRow, Probe, Tensor, TraceSink};

use super::sequence::Sequence;
use crate::RuntimeError;
use crate::cache::{GatherMode, KvCache};
use crate::policy::{Compaction, Policy};
use crate::select::{CacheView, KeepSet, Keys, Selection};
use crate::weights::Elements;

/// How rows are moved.
#[derive(Debug, Clone, Copy)]
pub(super) struct Gather<'a> {
    /// Faithful, or with a planted mistake.
    pub(super) mode: GatherMode,
    /// Rows to keep instead of the policy's choice.
    pub(super) forced: Option<&'a KeepSet>,
}

/// Compacts the cache of `sequence` as `due` says and records it.
pub(super) fn compact(
    policy: &Policy,
    how: Gather<'_>,
    sequence: &mut Sequence<'_>,
    due: &Compaction,
    sink: &mut dyn TraceSink,
) -> Result<(), RuntimeError> {
    let request = sequence.request;
    let (sample_id, ordinal) = (request.sample_id.as_str(), due.ordinal);
    let cache_wanted = sink.wants(Probe::Cache { sample_id, ordinal });
    let scores_wanted = sink.wants(Probe::Scores { sample_id, ordinal });
    let mut tensors = Vec::new();
    if cache_wanted {
        tensors.extend(rows(&sequence.cache, "pre"));
    }
    if cache_wanted || scores_wanted {
        tensors.push(positions(&sequence.cache, "positions.pre"));
    }
    let view = view(&sequence.cache);
    let mut selection =
        policy.choose(&mut sequence.state, due, &view, scores_wanted).map_err(|source| {
            RuntimeError::Compaction {
                sample_id: sample_id.to_owned(),
                ordinal,
                position: due.absolute_position,
                source,
            }
        })?;
    let own = how.forced.map(|forced| force(&mut selection, forced, due)).transpose()?;
    let started = Instant::now();
    sequence.cache.gather(|layer, head| selection.keep.rows(layer, head), how.mode)?;
    let gather_seconds = started.elapsed().as_secs_f64();
    if cache_wanted {
        tensors.extend(rows(&sequence.cache, "post"));
    }
    let mut dump_path = None;
    if !tensors.is_empty() {
        tensors.push(positions(&sequence.cache, "positions.post"));
        let keep = selection.keep.to_i32();
        tensors.push(Tensor::from_i32("keep", selection.keep.shape(), &keep));
        tensors.extend(own.map(|own| Tensor::from_i32("keep.own", own.shape(), &own.to_i32())));
        tensors.extend(selection.stages.iter().flat_map(|stages| stages.tensors()));
        let id = DumpId::Compaction { sample_id: sample_id.to_owned(), ordinal };
        dump_path = Some(id.relative_path());
        let metadata = metadata(policy, sequence, due, &selection);
        sink.dump(Dump { id, metadata, tensors })?;
    }
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

/// Puts the forced rows in the place of the chosen ones, which are returned.
fn force(
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

fn heads(cache: &KvCache) -> impl Iterator<Item = (usize, usize)> {
    let shape = cache.shape();
    (0..shape.layers).flat_map(move |layer| (0..shape.kv_heads).map(move |head| (layer, head)))
}

fn view(cache: &KvCache) -> CacheView<'_> {
    let keys = heads(cache)
        .map(|(layer, head)| match cache.k(layer, head) {
            Elements::F32(rows) => Keys::F32(rows),
            Elements::F16(rows) => Keys::F16(rows),
            Elements::Bf16(rows) => Keys::Bf16(rows),
        })
        .collect();
    let positions = heads(cache)
        .filter(|(layer, _)| *layer == 0 || cache.by_layer())
        .map(|(layer, head)| cache.positions(layer, head))
        .collect();
    CacheView { rows: cache.rows(), keys, positions }
}

/// K and V of every layer, `[kv_heads, rows, head_dim]`, as stored.
fn rows(cache: &KvCache, when: &str) -> Vec<Tensor> {
    let shape = cache.shape();
    let tensor = |name: &str, layer: usize, data: Vec<u8>| Tensor {
        name: format!("{when}.{name}.layer{layer:02}"),
        dtype: shape.dtype,
        shape: vec![shape.kv_heads, cache.rows(), shape.head_dim],
        data,
    };
    (0..shape.layers)
        .flat_map(|layer| {
            [tensor("k", layer, cache.k_bytes(layer)), tensor("v", layer, cache.v_bytes(layer))]
        })
        .collect()
}

fn positions(cache: &KvCache, name: &str) -> Tensor {
    let shape = cache.shape();
    let mut sizes = vec![shape.kv_heads, cache.rows()];
    if cache.by_layer() {
        sizes.insert(0, shape.layers);
    }
    let data = heads(cache)
        .filter(|(layer, _)| *layer == 0 || cache.by_layer())
        .flat_map(|(layer, head)| cache.positions(layer, head))
        .flat_map(|position| position.to_le_bytes())
        .collect();
    Tensor { name: name.to_owned(), dtype: DType::I32, shape: sizes, data }
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
