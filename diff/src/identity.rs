//! Which compaction a dump says it is, against its file name and its row in the event table.

use std::collections::BTreeSet;

use lockstep_traces::store::DumpFile;
use lockstep_traces::{DumpId, EventRow};

/// Title of the finding where the two disagree.
pub(crate) const ANOTHER: &str = "dump of another compaction";

/// Everything in the metadata of `dump` that contradicts `sample_id`, `ordinal` or the event row, in words.
/// Keys that the metadata does not have say nothing.
pub(crate) fn contradictions(
    dump: &DumpFile,
    sample_id: &str,
    ordinal: u32,
    event: Option<&EventRow>,
) -> Vec<String> {
    let said = |key: &str| dump.metadata().get(key);
    let mut out = Vec::new();
    if let Some(name) = said("sample_id").filter(|name| *name != sample_id) {
        out.push(format!("`sample_id` is `{name}`, the file belongs to `{sample_id}`"));
    }
    let numbers = [
        ("ordinal", Some(ordinal)),
        ("absolute_position", event.map(|event| event.absolute_position)),
        ("rows_before", event.map(|event| event.rows_before)),
        ("rows_after", event.map(|event| event.rows_after)),
    ];
    for (key, expected) in numbers {
        let (Some(text), Some(expected)) = (said(key), expected) else { continue };
        if text.parse() != Ok(expected) {
            out.push(format!("`{key}` is {text}, the run says {expected}"));
        }
    }
    out
}

/// Events whose dump was written and is not there any more.
pub(crate) fn lost<'a>(
    events: &'a [EventRow],
    dumps: &'a BTreeSet<DumpId>,
) -> impl Iterator<Item = (&'a EventRow, &'a str)> {
    let id = |event: &EventRow| DumpId::Compaction {
        sample_id: event.sample_id.clone(),
        ordinal: event.ordinal,
    };
    events
        .iter()
        .filter_map(|event| Some((event, event.dump.as_deref()?)))
        .filter(move |(event, _)| !dumps.contains(&id(event)))
}
