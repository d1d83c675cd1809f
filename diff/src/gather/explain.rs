//! Names for what went wrong in a gather.

use std::collections::BTreeMap;

use lockstep_traces::{Cause, Evidence, Finding, Location};

use super::Kind;
use super::head::{HeadFault, HeadTask};

/// Rows of a head at most wrong for them to be called isolated: one in this many.
const ISOLATED: usize = 8;
/// Findings about single rows given one by one.
const NAMED_ROWS: usize = 8;

/// Order of findings: whole tensors first, then other keep-sets, then single rows.
pub(crate) fn gravity(finding: &Finding) -> u8 {
    match finding.cause {
        Some(Cause::ValueNotGathered) => 0,
        None => 1,
        _ => 2,
    }
}

/// Turns the faulty heads of one dump into findings.
pub(crate) fn explain(
    faults: &[HeadFault],
    tasks: &[HeadTask<'_>],
    sample_id: &str,
    ordinal: u32,
    findings: &mut Vec<Finding>,
) {
    let at = |fault: &HeadFault, row: Option<usize>| Location {
        sample_id: Some(sample_id.to_owned()),
        ordinal: Some(ordinal),
        layer: Some(fault.layer),
        head: u32::try_from(fault.head).ok(),
        row: row.and_then(|row| u32::try_from(row).ok()),
        stage: Some(["gather", fault.kind.letter()].join(".")),
        ..Location::default()
    };
    let task_of = |fault: &HeadFault| {
        tasks.iter().find(|task| {
            (task.layer, task.kind, task.head) == (fault.layer, fault.kind, fault.head)
        })
    };
    let key_exact = |fault: &HeadFault| {
        !faults.iter().any(|other| {
            other.kind == Kind::K && (other.layer, other.head) == (fault.layer, fault.head)
        })
    };
    let mut unmoved: Vec<&HeadFault> = Vec::new();
    let mut others: BTreeMap<(Kind, &str), Vec<&HeadFault>> = BTreeMap::new();
    let mut named = 0;
    for fault in faults {
        let length = task_of(fault).map_or(0, |task| task.keep.len());
        if let Some(index) = fault.out_of_range {
            findings.push(Finding {
                cause: None,
                title: format!(
                    "`keep` names row {index}, which does not exist before the compaction"
                ),
                location: at(fault, fault.rows.first().copied()),
                evidence: vec![evidence("index", index)],
            });
        } else if fault.kind == Kind::V && fault.identity && key_exact(fault) {
            unmoved.push(fault);
        } else if fault.bad * ISOLATED <= length.max(ISOLATED) {
            named += 1;
            if named <= NAMED_ROWS {
                findings.extend(
                    task_of(fault)
                        .map(|task| stale(fault, task, at(fault, fault.rows.first().copied()))),
                );
            }
        } else {
            let word = task_of(fault).map_or("unknown", |task| source(fault, task));
            others.entry((fault.kind, word)).or_default().push(fault);
        }
    }
    if let Some(first) = unmoved.first() {
        findings.push(Finding {
            cause: Some(Cause::ValueNotGathered),
            title: format!(
                "V is not gathered in {} head tensors: its rows are still the first rows before, K is exact",
                unmoved.len()
            ),
            location: at(first, None),
            evidence: vec![evidence("heads", unmoved.len()), evidence("key_heads_exact", true)],
        });
    }
    for ((kind, word), group) in others {
        let Some(first) = group.first() else { continue };
        findings.push(Finding {
            cause: None,
            title: format!(
                "{} of {} head tensors {word}",
                kind.letter().to_uppercase(),
                group.len()
            ),
            location: at(first, first.rows.first().copied()),
            evidence: vec![
                evidence("heads", group.len()),
                evidence("rows_different", group.iter().map(|fault| fault.bad).sum::<usize>()),
            ],
        });
    }
    if named > NAMED_ROWS {
        findings.push(Finding {
            cause: Some(Cause::StaleRow),
            title: format!("{} more head tensors hold single wrong rows", named - NAMED_ROWS),
            location: Location {
                sample_id: Some(sample_id.to_owned()),
                ordinal: Some(ordinal),
                ..Location::default()
            },
            evidence: Vec::new(),
        });
    }
}

fn evidence(name: &str, value: impl Into<serde_json::Value>) -> Evidence {
    Evidence { name: name.to_owned(), value: value.into() }
}

/// Single wrong rows: whose bytes they hold.
fn stale(fault: &HeadFault, task: &HeadTask<'_>, location: Location) -> Finding {
    let row = fault.rows.first().copied().unwrap_or(0);
    let wanted = task.keep.get(row).copied();
    let holds = task.source_of(row);
    let title = match holds {
        Some(source) => format!(
            "row {row} after holds row {source} before, not row {} ({} wrong of {})",
            wanted.unwrap_or(0),
            fault.bad,
            task.keep.len()
        ),
        None => format!(
            "row {row} after holds bytes of no row before ({} wrong of {})",
            fault.bad,
            task.keep.len()
        ),
    };
    Finding {
        cause: holds.is_some().then_some(Cause::StaleRow),
        title,
        location,
        evidence: vec![
            evidence("row", row),
            evidence("keep", wanted),
            evidence("equals_row", holds),
            evidence("rows_different", fault.bad),
            evidence("rows", fault.rows.clone()),
        ],
    }
}

/// Where the wrong rows of a head come from.
fn source(fault: &HeadFault, task: &HeadTask<'_>) -> &'static str {
    let found = fault.rows.iter().filter(|row| task.source_of(**row).is_some()).count();
    if fault.identity {
        "are not gathered: the rows after are the first rows before"
    } else if found == fault.rows.len() {
        "are gathered by another keep-set: every row after stands before, in another place"
    } else if found == 0 {
        "hold rows that do not stand before at all: bins from another compaction"
    } else {
        "hold rows of which some stand before and some do not: parts of another compaction"
    }
}
