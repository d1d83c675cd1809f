//! Does a file hold together: candidates, counts, text, offsets.

use std::collections::BTreeMap;

use lockstep_traces::logprobs::{Entry, Part, Sequence, State};

use super::candidates::{candidates, half_digit, quoted};
use super::report::LogprobFinding;
use super::text::{Fit, fit};

/// Findings of one name that are listed; the rest is counted in a last one.
const MOST_OF_A_KIND: usize = 20;

/// Looks through every sequence.
pub(super) fn check(sequences: &[Sequence]) -> Vec<LogprobFinding> {
    let mut findings = counts(sequences);
    for (index, sequence) in sequences.iter().enumerate() {
        for (at, entry) in sequence.entries.iter().enumerate() {
            candidates(entry, sequence, (index, Some(at)), &mut findings);
            values(entry, at, sequence, (index, Some(at)), &mut findings);
        }
        text(index, sequence, &mut findings);
        offsets(index, sequence, &mut findings);
        merged(index, sequence, &mut findings);
    }
    findings.sort_by_key(|finding| !finding.grave);
    thinned(findings)
}

fn thinned(findings: Vec<LogprobFinding>) -> Vec<LogprobFinding> {
    let mut seen: BTreeMap<String, usize> = BTreeMap::new();
    let mut kept: Vec<LogprobFinding> = Vec::new();
    for finding in findings {
        let count = seen.entry(finding.name.clone()).or_default();
        *count += 1;
        if *count <= MOST_OF_A_KIND {
            kept.push(finding);
        }
    }
    for (name, count) in seen.iter().filter(|(_, count)| **count > MOST_OF_A_KIND) {
        let grave = kept.iter().any(|finding| finding.name == *name && finding.grave);
        let title = format!("{} more of `{name}` are not listed", count - MOST_OF_A_KIND);
        kept.push(LogprobFinding::new(name, grave, (0, None), title).with("all", *count));
    }
    kept
}

/// Values that are no log-probabilities.
fn values(
    entry: &Entry,
    index: usize,
    sequence: &Sequence,
    at: (usize, Option<usize>),
    findings: &mut Vec<LogprobFinding>,
) {
    let listed = entry.candidates.iter().map(|candidate| (&candidate.token, &candidate.logprob));
    for (token, logprob) in std::iter::once((&entry.token, &entry.logprob)).chain(listed) {
        if let Some(value) =
            logprob.value().filter(|value| *value > half_digit(logprob).min(1e-3) + 1e-6)
        {
            let title = format!("{} has {value}: a log-probability is at most 0", quoted(token));
            findings.push(LogprobFinding::new("above_zero", true, at, title).with("value", value));
        }
        if sequence.part == Part::List {
            continue;
        }
        if let Some(written) = logprob.spelled() {
            let (name, title) = match logprob.state {
                State::Nan => (
                    "not_a_number",
                    format!("{} has {written}: in no sum and no maximum", quoted(token)),
                ),
                _ if logprob.sentinel => (
                    "sentinel",
                    format!(
                        "{} has {written}: a number that stands for \"impossible\", not a measurement",
                        quoted(token)
                    ),
                ),
                _ => {
                    ("impossible", format!("{} is written as {written}: impossible", quoted(token)))
                }
            };
            findings.push(LogprobFinding::new(name, false, at, title).with("written", written));
        }
    }
    if entry.logprob.state == State::Absent
        && (index > 0 || sequence.part == Part::Completion && !echoed(sequence))
    {
        let title = format!("{} has no log-probability of its own", quoted(&entry.token));
        findings.push(LogprobFinding::new("own_absent", false, at, title));
    }
}

/// A completions answer that begins with its prompt: more entries than completion tokens.
fn echoed(sequence: &Sequence) -> bool {
    let entries = sequence.entries.len() as u64;
    sequence.usage_prompt.zip(sequence.usage_tokens).is_some_and(|(p, c)| p > 0 && p + c == entries)
}

/// Entries of a record against its usage.
fn counts(sequences: &[Sequence]) -> Vec<LogprobFinding> {
    let mut groups: BTreeMap<(usize, bool), Vec<usize>> = BTreeMap::new();
    for (index, sequence) in sequences.iter().enumerate() {
        groups.entry((sequence.record, sequence.part == Part::Prompt)).or_default().push(index);
    }
    let mut findings = Vec::new();
    for places in groups.values() {
        let of = |place: &usize| sequences.get(*place);
        let Some(first) = places.first().and_then(of) else { continue };
        let Some(said) = first.usage_tokens.filter(|_| first.usage_choices == places.len()) else {
            continue;
        };
        let entries: u64 = places.iter().filter_map(of).map(|s| s.entries.len() as u64).sum();
        let echo = first.usage_prompt.map(|prompt| said + prompt * places.len() as u64);
        if entries != said && Some(entries) != echo {
            let title = format!("{entries} entries for {said} tokens that the usage counts");
            findings.push(
                LogprobFinding::new(
                    "count_disagrees",
                    true,
                    (places.first().copied().unwrap_or(0), None),
                    title,
                )
                .with("entries", entries)
                .with("usage", said),
            );
        }
    }
    findings
}

fn text(index: usize, sequence: &Sequence, findings: &mut Vec<LogprobFinding>) {
    let Some(text) = &sequence.text else { return };
    let at = |entry: usize| (index, Some(entry.min(sequence.entries.len().saturating_sub(1))));
    let finding = match fit(text, &sequence.entries) {
        Fit::Whole => return,
        Fit::Unknown => LogprobFinding::new(
            "text_unknown",
            false,
            (index, None),
            "entries are parts of characters and carry no bytes: the text cannot be put together from them".to_owned(),
        ),
        Fit::EntriesBehind(count) => LogprobFinding::new(
            "entries_behind_text",
            false,
            at(sequence.entries.len()),
            format!("the last {count} entries are not in the text: end markers, as a rule"),
        )
        .with("entries", count),
        Fit::BlanksLost(count) => LogprobFinding::new(
            "leading_blanks",
            false,
            at(0),
            format!("the text lacks {count} blanks at the front that the entries have"),
        )
        .with("blanks", count),
        Fit::Gap { before, offset, text } => LogprobFinding::new(
            "text_gap",
            true,
            at(before),
            format!("the text has {text:?} at offset {offset}, which no entry holds"),
        )
        .with("offset", offset)
        .with("text", text)
        .with("before_entry", before),
        Fit::Foreign { entry, offset } => LogprobFinding::new(
            "text_disagrees",
            true,
            at(entry),
            format!("entry {entry} does not stand in the text at offset {offset} or behind it"),
        )
        .with("offset", offset),
    };
    findings.push(finding);
}

/// `text_offset` against the lengths of the tokens, counted from the first entry.
fn offsets(index: usize, sequence: &Sequence, findings: &mut Vec<LogprobFinding>) {
    for (at, pair) in sequence.entries.windows(2).enumerate() {
        let [before, entry] = pair else { continue };
        let (Some(from), Some(to)) = (before.text_offset, entry.text_offset) else { continue };
        let Some(text) = before.token.text.as_ref().filter(|text| !text.contains('\u{FFFD}'))
        else {
            continue;
        };
        let length = text.chars().count() as u64;
        if to != from + length {
            let title = format!(
                "the offset goes from {from} to {to} over a token of {length} characters at entry {at}"
            );
            findings.push(
                LogprobFinding::new("offset_disagrees", true, (index, Some(at + 1)), title)
                    .with("from", from)
                    .with("to", to)
                    .with("characters", length),
            );
        }
    }
}

/// Entries that hold more than one position, and what that does to the numbers of those behind them.
fn merged(index: usize, sequence: &Sequence, findings: &mut Vec<LogprobFinding>) {
    let hint = |names: &[&str], entry: usize| {
        findings.iter().any(|finding| {
            finding.sequence == index
                && finding.entry == Some(entry)
                && names.contains(&finding.name.as_str())
        })
    };
    let full = (0..sequence.entries.len())
        .find(|entry| hint(&["more_candidates", "probabilities_above_one"], *entry));
    let Some(entry) = full else { return };
    let gap = hint(&["text_gap", "offset_disagrees"], entry + 1);
    let missing = sequence
        .usage_tokens
        .filter(|_| sequence.usage_choices == 1)
        .map(|said| said.saturating_sub(sequence.entries.len() as u64));
    if !gap && missing.unwrap_or(0) == 0 {
        return;
    }
    let shift = missing.filter(|missing| *missing > 0).unwrap_or(1);
    let by = if shift == 1 { "one".to_owned() } else { shift.to_string() };
    let title = format!(
        "two positions are merged into entry {entry}: from entry {} on, step numbers are off by {by}",
        entry + 1
    );
    findings.push(
        LogprobFinding::new("merged_entries", true, (index, Some(entry)), title)
            .with("shifted_from", entry + 1)
            .with("shift", shift),
    );
}
