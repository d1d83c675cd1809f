//! Names for what went wrong in a gather.

use std::collections::{BTreeMap, BTreeSet};

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

/// The faulty heads of one dump, sorted by what they look like.
#[derive(Default)]
struct Sorted<'a> {
    /// V still stands in place.
    unmoved: Vec<&'a HeadFault>,
    /// Single wrong rows.
    isolated: Vec<&'a HeadFault>,
    /// Many wrong rows, by kind and by where they come from.
    others: BTreeMap<(Kind, &'static str), Vec<&'a HeadFault>>,
}

/// Where a dump's findings are.
struct Place<'a> {
    sample_id: &'a str,
    ordinal: u32,
}

impl Place<'_> {
    fn whole(&self) -> Location {
        Location {
            sample_id: Some(self.sample_id.to_owned()),
            ordinal: Some(self.ordinal),
            ..Location::default()
        }
    }

    fn at(&self, fault: &HeadFault, row: Option<usize>) -> Location {
        Location {
            layer: Some(fault.layer),
            head: u32::try_from(fault.head).ok(),
            row: row.and_then(|row| u32::try_from(row).ok()),
            stage: Some(["gather", fault.kind.letter()].join(".")),
            ..self.whole()
        }
    }
}

fn task_of<'a, 'b>(tasks: &'a [HeadTask<'b>], fault: &HeadFault) -> Option<&'a HeadTask<'b>> {
    tasks.iter().find(|task| fault.of(task))
}

/// Turns the faulty heads of one dump into findings.
pub(crate) fn explain(
    faults: &[HeadFault],
    tasks: &[HeadTask<'_>],
    sample_id: &str,
    ordinal: u32,
    findings: &mut Vec<Finding>,
) {
    let place = Place { sample_id, ordinal };
    for fault in faults {
        if let Some(index) = fault.out_of_range {
            findings.push(Finding {
                cause: None,
                title: format!(
                    "`keep` names row {index}, which does not exist before the compaction"
                ),
                location: place.at(fault, fault.rows.first().copied()),
                evidence: vec![evidence("index", index)],
            });
        }
    }
    let mut sorted = sort(faults, tasks);
    let heads: BTreeSet<usize> = sorted.isolated.iter().map(|fault| fault.head).collect();
    for head in heads {
        let Some(moved) = another_set(&sorted.isolated, tasks, head) else { continue };
        sorted.isolated.retain(|fault| fault.head != head);
        findings.push(misnamed(&moved, head, &place));
    }
    if let Some(first) = sorted.unmoved.first() {
        findings.push(Finding {
            cause: Some(Cause::ValueNotGathered),
            title: format!(
                "V is not gathered in {} head tensors: its rows are still the first rows before, K is exact",
                sorted.unmoved.len()
            ),
            location: place.at(first, None),
            evidence: vec![evidence("heads", sorted.unmoved.len()), evidence("key_heads_exact", true)],
        });
    }
    for ((kind, word), group) in &sorted.others {
        let Some(first) = group.first() else { continue };
        findings.push(Finding {
            cause: None,
            title: format!(
                "{} of {} head tensors {word}",
                kind.letter().to_uppercase(),
                group.len()
            ),
            location: place.at(first, first.rows.first().copied()),
            evidence: vec![
                evidence("heads", group.len()),
                evidence("rows_different", group.iter().map(|fault| fault.bad).sum::<usize>()),
            ],
        });
    }
    for fault in sorted.isolated.iter().take(NAMED_ROWS) {
        let location = place.at(fault, fault.rows.first().copied());
        findings.extend(task_of(tasks, fault).map(|task| stale(fault, task, location)));
    }
    let more = sorted.isolated.len().saturating_sub(NAMED_ROWS);
    if more > 0 {
        findings.push(Finding {
            cause: Some(Cause::StaleRow),
            title: format!("{more} more head tensors hold single wrong rows"),
            location: place.whole(),
            evidence: Vec::new(),
        });
    }
}

/// Row after, row before that `keep` names for it, row before that it holds.
type Moved = (usize, Option<u32>, usize);

/// The rows of `head` that hold other rows before than `keep` names, where K and V of every layer hold the same ones: one
/// set was applied to all and another one recorded. A stale row stands in some layer or in one of K and V only; with one
/// layer the two cannot be told apart.
fn another_set(isolated: &[&HeadFault], tasks: &[HeadTask<'_>], head: usize) -> Option<Vec<Moved>> {
    let of_head: Vec<&HeadTask<'_>> = tasks.iter().filter(|task| task.head == head).collect();
    let layers: BTreeSet<u32> = of_head.iter().map(|task| task.layer).collect();
    if layers.len() < 2 || of_head.len() != 2 * layers.len() {
        return None;
    }
    let mut all: Option<Vec<Moved>> = None;
    for task in of_head {
        let fault = isolated.iter().find(|fault| fault.of(task))?;
        let moved = |row: &usize| Some((*row, task.keep.get(*row).copied(), task.source_of(*row)?));
        let moved: Vec<Moved> = fault.rows.iter().map(moved).collect::<Option<_>>()?;
        if fault.bad != moved.len() || all.as_ref().is_some_and(|all| *all != moved) {
            return None;
        }
        all = Some(moved);
    }
    all.filter(|moved| !moved.is_empty())
}

fn misnamed(moved: &[Moved], head: usize, place: &Place<'_>) -> Finding {
    let first = moved.first();
    let text = first.map_or_else(String::new, |(row, wanted, holds)| {
        format!(
            "row {row} after holds row {holds} before, `keep` names row {}",
            wanted.unwrap_or(0)
        )
    });
    Finding {
        cause: None,
        title: format!(
            "the keep-set is not the one that was applied: in K and V of every layer {text}"
        ),
        location: Location {
            head: u32::try_from(head).ok(),
            row: first.and_then(|(row, ..)| u32::try_from(*row).ok()),
            stage: Some("keep".to_owned()),
            ..place.whole()
        },
        evidence: vec![
            evidence("rows", moved.iter().map(|(row, ..)| *row).collect::<Vec<_>>()),
            evidence("keep", moved.iter().map(|(_, wanted, _)| *wanted).collect::<Vec<_>>()),
            evidence("equals_row", moved.iter().map(|(.., holds)| *holds).collect::<Vec<_>>()),
        ],
    }
}

fn sort<'a>(faults: &'a [HeadFault], tasks: &[HeadTask<'_>]) -> Sorted<'a> {
    let key_exact = |fault: &HeadFault| {
        !faults.iter().any(|other| {
            other.kind == Kind::K && (other.layer, other.head) == (fault.layer, fault.head)
        })
    };
    let mut sorted = Sorted::default();
    for fault in faults.iter().filter(|fault| fault.out_of_range.is_none()) {
        let task = task_of(tasks, fault);
        let length = task.map_or(0, |task| task.keep.len());
        if fault.kind == Kind::V && fault.identity && key_exact(fault) {
            sorted.unmoved.push(fault);
        } else if fault.bad * ISOLATED <= length.max(ISOLATED) {
            sorted.isolated.push(fault);
        } else {
            let word = task.map_or("are not what the keep-set says", |task| source(fault, task));
            sorted.others.entry((fault.kind, word)).or_default().push(fault);
        }
    }
    sorted
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
