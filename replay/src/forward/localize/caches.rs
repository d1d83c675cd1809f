//! Recorded caches around each compaction: is every row after it the row that the keep-set names?

use lockstep_reference::forward::{KeepSets, Model};
use lockstep_traces::store::{DumpFile, RunReader, TensorView};
use lockstep_traces::{Cause, DumpId, Finding, Location};

use super::super::keeps::read_keep;
use super::super::recording::{Event, Recording};
use super::super::self_check::figure;
use crate::ReplayError;

/// Result over all dumped compactions of a sample.
#[derive(Debug, Default)]
pub(super) struct Caches {
    pub(super) compared: u64,
    pub(super) findings: Vec<Finding>,
    pub(super) limits: Vec<String>,
}

/// A row that is not what the keep-set says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Wrong {
    layer: usize,
    head: usize,
    row: usize,
    part: &'static str,
    /// It holds the row that stood at the same place before.
    unmoved: bool,
    /// The bytes are those of some row before.
    known: bool,
}

/// The dump of a compaction.
pub(super) fn dump(
    run: &RunReader,
    recording: &Recording,
    event: &Event,
) -> Result<Option<DumpFile>, ReplayError> {
    let sample_id = recording.sample_id.clone();
    Ok(run.dump(&DumpId::Compaction { sample_id, ordinal: event.ordinal })?)
}

/// Compactions whose keys before them are dumped.
pub(super) fn dumped(run: &RunReader, recording: &Recording) -> Result<Vec<Event>, ReplayError> {
    let mut events = Vec::new();
    for event in &recording.events {
        let dump = dump(run, recording, event)?;
        if dump.is_some_and(|dump| dump.names().any(|name| name.starts_with("pre."))) {
            events.push(*event);
        }
    }
    Ok(events)
}

/// Checks `post == pre[keep]`, bit for bit, wherever both are dumped. A gather is a copy: it has no rounding to forgive.
pub(super) fn check(
    run: &RunReader,
    recording: &Recording,
    model: &Model,
) -> Result<Caches, ReplayError> {
    let mut caches = Caches::default();
    let hyper = model.hyper();
    for event in &recording.events {
        let Some(dump) = dump(run, recording, event)? else { continue };
        if !dump.has("keep") {
            continue;
        }
        let keep = read_keep(&dump, hyper.layers, hyper.kv_heads)?;
        let (mut wrong, mut moved) = (Vec::new(), 0u64);
        for layer in 0..hyper.layers {
            for part in ["k", "v"] {
                let names =
                    [format!("pre.{part}.layer{layer:02}"), format!("post.{part}.layer{layer:02}")];
                if names.iter().any(|name| !dump.has(name)) {
                    continue;
                }
                moved += gathered(&dump, &names, &keep, (layer, part), &mut wrong)?;
            }
        }
        caches.compared += moved;
        if let Some(first) = wrong.first() {
            caches.findings.push(finding(recording, event, &wrong, *first, moved));
        }
    }
    if caches.compared == 0 && !recording.events.is_empty() {
        caches
            .limits
            .push("no cache is dumped around a compaction; gathers were not compared".to_owned());
    }
    Ok(caches)
}

fn rows<'a>(view: &TensorView<'a>) -> Result<(usize, usize, usize, &'a [u8]), ReplayError> {
    match view.shape[..] {
        [heads, rows, width] if width > 0 => {
            Ok((heads, rows, width * view.dtype.size(), view.bytes))
        }
        _ => Err(view
            .error(format!("has shape {:?}, expected [heads, rows, width]", view.shape))
            .into()),
    }
}

/// Compares one tensor pair; returns the rows compared.
fn gathered(
    dump: &DumpFile,
    [before, after]: &[String; 2],
    keep: &KeepSets,
    (layer, part): (usize, &'static str),
    wrong: &mut Vec<Wrong>,
) -> Result<u64, ReplayError> {
    let (pre, post) = (dump.get(before)?, dump.get(after)?);
    let (heads, before_rows, width, pre_bytes) = rows(&pre)?;
    let (post_heads, after_rows, post_width, post_bytes) = rows(&post)?;
    if heads != post_heads || width != post_width || after_rows != keep.rows() {
        return Err(post.error("does not fit the cache before it or the keep-set").into());
    }
    let row = |bytes: &[u8], rows: usize, head: usize, row: usize| {
        let start = (head * rows + row) * width;
        bytes.get(start..start + width).map(<[u8]>::to_vec)
    };
    for head in 0..heads {
        for (place, from) in keep.of(layer, head).iter().enumerate() {
            let found = row(post_bytes, after_rows, head, place);
            if found != row(pre_bytes, before_rows, head, *from as usize) {
                let unmoved = found == row(pre_bytes, before_rows, head, place);
                let known =
                    (0..before_rows).any(|at| found == row(pre_bytes, before_rows, head, at));
                wrong.push(Wrong { layer, head, row: place, part, unmoved, known });
            }
        }
    }
    Ok((heads * after_rows) as u64)
}

/// V standing where it stood, and K gathered: not moved at all. A single row with another row's bytes: stale.
fn finding(
    recording: &Recording,
    event: &Event,
    wrong: &[Wrong],
    first: Wrong,
    moved: u64,
) -> Finding {
    let values = wrong.iter().all(|wrong| wrong.part == "v");
    let unmoved = wrong.iter().filter(|wrong| wrong.unmoved).count();
    let places = wrong.iter().map(|w| (w.layer, w.head, w.row));
    let places: std::collections::BTreeSet<_> = places.collect();
    let heads: std::collections::BTreeSet<_> = places.iter().map(|(_, head, _)| head).collect();
    let rows: std::collections::BTreeSet<_> = places.iter().map(|(_, _, row)| row).collect();
    let cause = if values && unmoved == wrong.len() && places.len() > 1 && rows.len() > 1 {
        Some(Cause::ValueNotGathered)
    } else if rows.len() == 1 && heads.len() == 1 && wrong.iter().all(|wrong| wrong.known) {
        Some(Cause::StaleRow)
    } else {
        None
    };
    let title = match cause {
        Some(cause) => format!("{} (compaction {})", cause.title(), event.ordinal),
        None => format!("rows after compaction {} are not those of the keep-set", event.ordinal),
    };
    let number = |value: usize| u32::try_from(value).ok();
    Finding {
        cause,
        title,
        location: Location {
            sample_id: Some(recording.sample_id.clone()),
            position: event.absolute_position.checked_sub(1),
            ordinal: Some(event.ordinal),
            layer: number(first.layer),
            head: number(first.head),
            row: number(first.row),
            stage: Some(format!("gather.{}", first.part)),
        },
        evidence: vec![
            figure("rows_wrong", wrong.len()),
            figure("rows_unmoved", unmoved),
            figure("rows_compared", moved),
        ],
    }
}
