//! Recorded keep-sets.

use lockstep_reference::Hyper;
use lockstep_reference::forward::KeepSets;
use lockstep_traces::store::{DumpFile, RunReader};
use lockstep_traces::{DumpId, SelectionMode, TraceError};

use super::recording::Event;
use crate::ReplayError;

/// The keep-sets of one compaction.
///
/// # Errors
/// [`ReplayError::Incomparable`] where they were not recorded or contradict the event: a replay without them would be of
/// another run.
pub(super) fn recorded_keep(
    run: &RunReader,
    sample: &str,
    event: &Event,
    hyper: &Hyper,
) -> Result<KeepSets, ReplayError> {
    let id = DumpId::Compaction { sample_id: sample.to_owned(), ordinal: event.ordinal };
    let missing = || {
        ReplayError::incomparable(
            sample,
            format!(
                "compaction {} at position {} has no keep-set recorded; record with scores of all compactions, or replay dense",
                event.ordinal, event.absolute_position
            ),
        )
    };
    let dump = run.dump(&id)?.ok_or_else(missing)?;
    if !dump.has("keep") {
        return Err(missing());
    }
    let keep = read_keep(&dump, hyper.layers, hyper.kv_heads)?;
    if keep.rows() != event.rows_after as usize {
        return Err(TraceError::Tensor {
            path: dump.path().to_path_buf(),
            tensor: "keep".to_owned(),
            what: format!("holds {} rows, the event says {}", keep.rows(), event.rows_after),
        }
        .into());
    }
    Ok(keep)
}

/// Reads tensor `keep` of a compaction dump for a model of `layers` and `kv_heads`.
///
/// A matrix is one set per KV head, unless its first size fits the layers alone or the metadata `mode` says per layer.
///
/// # Errors
/// [`ReplayError::Trace`] with the tensor's name: missing, of another shape, with negative or repeated indices.
pub fn read_keep(dump: &DumpFile, layers: usize, kv_heads: usize) -> Result<KeepSets, ReplayError> {
    let view = dump.get("keep")?;
    let fail = |what: String| TraceError::Tensor {
        path: dump.path().to_path_buf(),
        tensor: "keep".to_owned(),
        what,
    };
    let per_layer = dump.metadata().get("mode").is_some_and(|mode| {
        serde_json::from_value::<SelectionMode>(mode.as_str().into())
            .is_ok_and(|mode| mode == SelectionMode::PerLayer)
    });
    let (sets, heads, rows) = match view.shape[..] {
        [rows] => (1, 1, rows),
        [first, rows] if first == layers && (per_layer || first != kv_heads) => (first, 1, rows),
        [first, rows] if first == kv_heads => (1, first, rows),
        [first, second, rows] if first == layers && second == kv_heads => (first, second, rows),
        _ => {
            return Err(fail(format!(
                "has shape {:?}; the model has {layers} layers and {kv_heads} KV heads",
                view.shape
            ))
            .into());
        }
    };
    let indices = view
        .to_i32()?
        .into_iter()
        .map(|index| u32::try_from(index).map_err(|_| fail(format!("holds the index {index}"))))
        .collect::<Result<Vec<_>, _>>()?;
    KeepSets::new(sets, heads, rows, indices).map_err(|error| fail(error.to_string()).into())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use lockstep_traces::store::write_dump;
    use lockstep_traces::{Dump, Tensor};

    use super::*;

    /// A keep-set of two layers and `heads` KV heads read back from a dump.
    fn read(
        shape: &[usize],
        values: &[i32],
        mode: Option<&str>,
        heads: usize,
    ) -> Result<KeepSets, ReplayError> {
        let dir = tempfile::tempdir().unwrap();
        let metadata: BTreeMap<String, String> =
            mode.map(|mode| ("mode".to_owned(), mode.to_owned())).into_iter().collect();
        let tensors = vec![Tensor::from_i32("keep", shape.to_vec(), values)];
        let id = DumpId::Compaction { sample_id: "s".to_owned(), ordinal: 1 };
        let path = write_dump(dir.path(), &Dump { id, metadata, tensors }).unwrap();
        read_keep(&DumpFile::open(&path).unwrap(), 2, heads)
    }

    #[test]
    fn a_matrix_is_per_head_unless_sizes_or_mode_say_per_layer() {
        let per_head = read(&[2, 1], &[5, 6], None, 2).unwrap();
        assert_eq!((per_head.of(1, 0), per_head.of(0, 1)), (&[5][..], &[6][..]));
        let per_layer = read(&[2, 1], &[5, 6], Some("per_layer"), 2).unwrap();
        assert_eq!((per_layer.of(1, 0), per_layer.of(0, 1)), (&[6][..], &[5][..]));
        let by_size = read(&[2, 1], &[5, 6], None, 4).unwrap();
        assert_eq!(by_size.of(1, 3), [6]);
        assert_eq!(read(&[2, 2, 1], &[5, 6, 7, 8], None, 2).unwrap().of(1, 0), [7]);
        assert_eq!(read(&[2], &[5, 6], None, 2).unwrap().of(1, 1), [5, 6]);
    }

    #[test]
    fn shapes_and_indices_that_fit_nothing_are_refused() {
        let message = read(&[3, 1], &[1, 2, 3], None, 2).unwrap_err().to_string();
        assert!(message.contains("keep") && message.contains("[3, 1]"), "{message}");
        let message = read(&[2, 1], &[1, -2], None, 2).unwrap_err().to_string();
        assert!(message.contains("-2"), "{message}");
    }
}
