//! Rows of one question: filters, passes, copies, and rows that contradict each other.

use std::collections::BTreeMap;

use super::score::{Entry, Repeated};

/// A judged row with what tells it from another of the same question.
#[derive(Debug)]
pub(super) struct Held {
    pub(super) entry: Entry,
    /// Filter as the row names it.
    pub(super) filter: Option<String>,
    /// Hash of the whole row.
    pub(super) content: String,
}

/// Rows that count, and what became of the others.
#[derive(Debug, Default)]
pub(super) struct Sorted {
    pub(super) entries: Vec<Entry>,
    pub(super) duplicates: Vec<Repeated>,
    pub(super) conflicts: Vec<Repeated>,
    pub(super) passes: Option<u64>,
    pub(super) remarks: Vec<String>,
}

/// Question, repeat, filter.
type Key = (String, Option<u64>, Option<String>);

/// Where rows name their filter, or have none: one row for each (question, repeat, filter). Another one with the same content is a
/// duplicate, one with other content a conflict; the first counts.
pub(super) fn by_key(rows: Vec<Held>) -> Sorted {
    let mut sorted = Sorted::default();
    let mut first: BTreeMap<Key, (u64, String)> = BTreeMap::new();
    for row in rows {
        let key = (row.entry.id.clone(), row.entry.repeat, row.filter.clone());
        let Some((line, content)) = first.get(&key) else {
            first.insert(key, (row.entry.line, row.content));
            sorted.entries.push(row.entry);
            continue;
        };
        let list =
            if *content == row.content { &mut sorted.duplicates } else { &mut sorted.conflicts };
        match list.iter_mut().find(|one| {
            one.id == row.entry.id && one.filter == row.filter && one.lines.first() == Some(line)
        }) {
            Some(known) => known.lines.push(row.entry.line),
            None => list.push(Repeated {
                id: row.entry.id,
                filter: row.filter,
                lines: vec![*line, row.entry.line],
            }),
        }
    }
    sorted
}

/// Where rows do not name their filter, a question's rows are those of the filters, one after another: the n-th row of each question
/// is of pass n. How many passes there are is what most questions say; equal rows beyond that are duplicates.
pub(super) fn by_pass(rows: Vec<Held>) -> Sorted {
    let mut order: Vec<String> = Vec::new();
    let mut groups: BTreeMap<String, Vec<Held>> = BTreeMap::new();
    for row in rows {
        let id = row.entry.id.clone();
        if !groups.contains_key(&id) {
            order.push(id.clone());
        }
        groups.entry(id).or_default().push(row);
    }
    let copies = groups.values().all(|group| {
        group.iter().all(|row| Some(&row.content) == group.first().map(|one| &one.content))
    });
    let passes = if copies { 1 } else { usual(groups.values().map(Vec::len)) };
    let mut sorted = Sorted::default();
    let (mut told_apart, mut short) = (None, 0_usize);
    let documents = groups.len();
    let mut by_pass: Vec<Vec<Entry>> = Vec::new();
    for id in order {
        let Some(group) = groups.remove(&id) else { continue };
        let kept = without_copies(group, passes, &id, &mut sorted);
        short += usize::from(kept.len() < passes);
        if told_apart.is_none()
            && kept
                .windows(2)
                .any(|pair| matches!(pair, [one, other] if one.content != other.content))
        {
            told_apart = Some(id);
        }
        for (at, mut row) in kept.into_iter().enumerate() {
            if passes > 1 {
                row.entry.filter = format!("pass {}", at + 1);
            }
            if by_pass.len() <= at {
                by_pass.push(Vec::new());
            }
            if let Some(list) = by_pass.get_mut(at) {
                list.push(row.entry);
            }
        }
    }
    sorted.entries = by_pass.into_iter().flatten().collect();
    if passes > 1 {
        sorted.passes = Some(passes as u64);
        sorted.remarks.push(format!(
            "{passes} rows per document, filter unknown: scored by pass, in the order of the file"
        ));
        if let Some(id) = told_apart {
            sorted.remarks.push(format!("document {id} shows that the passes are not copies"));
        }
        if short > 0 {
            sorted
                .remarks
                .push(format!("{short} of {documents} documents have fewer than {passes} rows"));
        }
    } else if !sorted.duplicates.is_empty() {
        let what = "rows name no filter and are equal for each document: copies, or filters that agree everywhere; counted once";
        sorted.remarks.push(what.to_owned());
    }
    sorted
}

/// The most frequent count; of equally frequent ones the largest.
fn usual(counts: impl Iterator<Item = usize>) -> usize {
    let mut times: BTreeMap<usize, usize> = BTreeMap::new();
    for count in counts {
        *times.entry(count).or_default() += 1;
    }
    times.into_iter().max_by_key(|(count, times)| (*times, *count)).map_or(1, |(count, _)| count)
}

/// Takes equal rows away, the later ones first, until no more than `passes` are left; more that differ are a conflict.
fn without_copies(mut group: Vec<Held>, passes: usize, id: &str, sorted: &mut Sorted) -> Vec<Held> {
    let mut dropped: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
    let mut at = group.len();
    while group.len() > passes && at > 1 {
        at -= 1;
        let Some(row) = group.get(at) else { break };
        let first = group
            .iter()
            .take(at)
            .find(|other| other.content == row.content)
            .map(|other| other.entry.line);
        if let Some(first) = first {
            dropped.entry(first).or_default().push(row.entry.line);
            group.remove(at);
        }
    }
    for (line, mut others) in dropped {
        others.sort_unstable();
        others.insert(0, line);
        sorted.duplicates.push(Repeated { id: id.to_owned(), filter: None, lines: others });
    }
    if group.len() > passes {
        let lines = group.iter().map(|row| row.entry.line).collect();
        sorted.conflicts.push(Repeated { id: id.to_owned(), filter: None, lines });
        group.truncate(passes);
    }
    group
}
