//! Dumps of a replay, in the layout of `lockstep_traces::dump`.

use std::collections::BTreeMap;

use lockstep_reference::ReferenceError;
use lockstep_reference::forward::{Cache, KeepSets, Stage};
use lockstep_traces::{Dump, DumpId, Probe, Tensor, TraceSink};

use super::recording::Event;

/// Is any stage of this row wanted?
pub(super) fn wants_row(sink: &dyn TraceSink, sample: &str, position: u32, layers: usize) -> bool {
    let layer =
        |layer: u32| sink.wants(Probe::Hidden { sample_id: sample, position, layer: Some(layer) });
    sink.wants(Probe::Logits { sample_id: sample, position })
        || sink.wants(Probe::Hidden { sample_id: sample, position, layer: None })
        || (0..).take(layers).any(layer)
}

/// The dump of one row from its stages.
pub(super) fn row_dump(
    sink: &dyn TraceSink,
    sample: &str,
    position: u32,
    stages: &[&Stage],
) -> Dump {
    let wanted = |stage: &Stage| match (stage.name, stage.layer) {
        ("logits", _) => sink.wants(Probe::Logits { sample_id: sample, position }),
        (_, layer) => {
            let layer = layer.and_then(|layer| u32::try_from(layer).ok());
            sink.wants(Probe::Hidden { sample_id: sample, position, layer })
        }
    };
    let tensors = stages
        .iter()
        .filter(|stage| wanted(stage))
        .map(|stage| {
            let values: Vec<f32> = stage.values.iter().map(|value| *value as f32).collect();
            let name = match stage.layer {
                _ if stage.name == "logits" => "logits".to_owned(),
                Some(layer) => format!("hidden.layer{layer:02}.{}", stage.name),
                None => format!("hidden.{}", stage.name),
            };
            Tensor::from_f32(name, vec![values.len()], &values)
        })
        .collect();
    let metadata = BTreeMap::from([
        ("sample_id".to_owned(), sample.to_owned()),
        ("position".to_owned(), position.to_string()),
    ]);
    Dump { id: DumpId::Step { sample_id: sample.to_owned(), position }, metadata, tensors }
}

/// K, V and positions of the cache, named `pre` or `post`.
pub(super) fn cache_tensors(
    cache: &Cache,
    when: &str,
    rows: bool,
) -> Result<Vec<Tensor>, ReferenceError> {
    let mut tensors = Vec::new();
    for layer in 0..if rows { cache.layers() } else { 0 } {
        let stored = cache.layer(layer)?;
        let shape = vec![stored.heads, stored.rows, stored.head_dim];
        for (part, values) in [("k", &stored.k), ("v", &stored.v)] {
            let values: Vec<f32> = values.iter().map(|value| *value as f32).collect();
            tensors.push(Tensor::from_f32(
                format!("{when}.{part}.layer{layer:02}"),
                shape.clone(),
                &values,
            ));
        }
    }
    let (layers, heads) = (cache.layers(), cache.heads());
    let list = |layer: usize, head: usize| -> Vec<i32> {
        let positions = cache.positions(layer, head).iter();
        positions.map(|position| i32::try_from(*position).unwrap_or(i32::MAX)).collect()
    };
    let alike =
        (0..layers).all(|l| (0..heads).all(|h| cache.positions(l, h) == cache.positions(0, h)));
    let mut shape = vec![heads, cache.rows()];
    let mut values = Vec::new();
    if !alike {
        shape.insert(0, layers);
    }
    for layer in 0..if alike { 1 } else { layers } {
        for head in 0..heads {
            values.extend(list(layer, head));
        }
    }
    tensors.push(Tensor::from_i32(format!("positions.{when}"), shape, &values));
    Ok(tensors)
}

/// The keep-sets as a tensor.
pub(super) fn keep_tensor(keep: &KeepSets) -> Tensor {
    let (layers, heads) = (keep.layers(), keep.heads());
    let shape = match (layers, heads) {
        (1, 1) => vec![keep.rows()],
        (1, heads) => vec![heads, keep.rows()],
        (layers, 1) => vec![layers, keep.rows()],
        (layers, heads) => vec![layers, heads, keep.rows()],
    };
    let values: Vec<i32> = (0..layers)
        .flat_map(|layer| (0..heads).map(move |head| (layer, head)))
        .flat_map(|(layer, head)| keep.of(layer, head).iter())
        .map(|row| i32::try_from(*row).unwrap_or(i32::MAX))
        .collect();
    Tensor::from_i32("keep", shape, &values)
}

/// The dump of one compaction.
pub(super) fn compaction_dump(
    sample: &str,
    prompt_len: usize,
    event: &Event,
    keep: &KeepSets,
    tensors: Vec<Tensor>,
) -> Dump {
    let mut metadata = BTreeMap::from([
        ("sample_id".to_owned(), sample.to_owned()),
        ("ordinal".to_owned(), event.ordinal.to_string()),
        ("absolute_position".to_owned(), event.absolute_position.to_string()),
        ("rows_before".to_owned(), event.rows_before.to_string()),
        ("rows_after".to_owned(), event.rows_after.to_string()),
        ("prompt_len".to_owned(), prompt_len.to_string()),
    ]);
    if keep.layers() > 1 && keep.heads() == 1 {
        metadata.insert("mode".to_owned(), "per_layer".to_owned());
    }
    if let Some(round_start) = event.round_start {
        metadata.insert("round_start".to_owned(), round_start.to_string());
    }
    let id = DumpId::Compaction { sample_id: sample.to_owned(), ordinal: event.ordinal };
    Dump { id, metadata, tensors }
}
