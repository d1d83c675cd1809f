//! Does a file hold together: candidates, counts, text, offsets.

use std::collections::BTreeMap;

use lockstep_traces::logprobs::{Candidate, Entry, Logprob, Part, Sequence, State, TokenName};

use super::report::LogprobFinding;
use super::text::{Fit, fit};

/// Findings of one name that are listed; the rest is counted in a last one.
const MOST_OF_A_KIND: usize = 20;
/// Rounding of f32 softmax sums over some thousand candidates.
const SUM_SLACK: f64 = 1e-5;

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

/// The name under which a map keeps a candidate: its id, else its text.
fn key(token: &TokenName) -> (Option<u32>, Option<&str>) {
    match token.id {
        Some(id) => (Some(id), None),
        None => (None, token.text.as_deref()),
    }
}

/// Candidates that an ordinary map keeps.
pub(super) fn distinct(entry: &Entry) -> usize {
    let keys: std::collections::BTreeSet<_> =
        entry.candidates.iter().map(|candidate| key(&candidate.token)).collect();
    keys.len()
}

/// Half a unit of the last printed digit.
fn half_digit(logprob: &Logprob) -> f64 {
    0.5 * 10_f64.powi(-i32::from(logprob.decimals))
}

/// Sum of the candidates' probabilities (a token given twice by id counts once; the entry's own where it is not among
/// them), and by how much printed digits can move it.
pub(super) fn probability_sum(entry: &Entry) -> (f64, f64) {
    let mut ids = std::collections::BTreeSet::new();
    let (mut sum, mut slack) = (0.0, SUM_SLACK);
    let mut add = |logprob: &Logprob| {
        if let Some(value) = logprob.value() {
            sum += value.exp();
            slack += value.exp() * half_digit(logprob).exp_m1();
        }
    };
    for candidate in &entry.candidates {
        if candidate.token.id.is_none_or(|id| ids.insert(id)) {
            add(&candidate.logprob);
        }
    }
    if !entry.candidates.iter().any(|candidate| names_own(entry, candidate)) {
        add(&entry.logprob);
    }
    (sum, slack)
}

fn names_own(entry: &Entry, candidate: &Candidate) -> bool {
    key(&entry.token) == key(&candidate.token)
}

fn quoted(token: &TokenName) -> String {
    match (&token.text, token.id) {
        (Some(text), _) => format!("{text:?}"),
        (None, Some(id)) => format!("id {id}"),
        (None, None) => "a token".to_owned(),
    }
}

fn candidates(
    entry: &Entry,
    sequence: &Sequence,
    at: (usize, Option<usize>),
    findings: &mut Vec<LogprobFinding>,
) {
    if sequence.part == Part::List {
        return;
    }
    duplicates(entry, at, findings);
    let listed = entry.candidates.len() as u64;
    if let Some(asked) = sequence.asked.filter(|asked| *asked > 0 && listed > 0) {
        if listed < asked {
            let title = format!(
                "{listed} candidates for a request of {asked}: tokens of equal text were collapsed, or the list was cut"
            );
            findings.push(
                LogprobFinding::new("fewer_candidates", true, at, title)
                    .with("listed", listed)
                    .with("asked", asked),
            );
        } else if listed > asked + 1 {
            let title = format!(
                "{listed} candidates for a request of {asked}: more than one position is in this entry"
            );
            findings.push(
                LogprobFinding::new("more_candidates", true, at, title)
                    .with("listed", listed)
                    .with("asked", asked),
            );
        }
    }
    let (sum, slack) = probability_sum(entry);
    if sum > 1.0 + slack {
        let title =
            format!("the probabilities sum to {sum:.4}, which is impossible for one position");
        findings
            .push(LogprobFinding::new("probabilities_above_one", true, at, title).with("sum", sum));
    }
    own_among(entry, at, findings);
}

/// Names that stand more than once: kept as candidates of unknown id, where an ordinary map keeps the last.
fn duplicates(entry: &Entry, at: (usize, Option<usize>), findings: &mut Vec<LogprobFinding>) {
    let mut by_name: BTreeMap<(Option<u32>, Option<&str>), Vec<usize>> = BTreeMap::new();
    for (index, candidate) in entry.candidates.iter().enumerate() {
        by_name.entry(key(&candidate.token)).or_default().push(index);
    }
    let twice: Vec<(String, &Vec<usize>)> = by_name
        .values()
        .filter(|places| places.len() > 1)
        .filter_map(|places| {
            let first = entry.candidates.get(*places.first()?)?;
            // A token given twice with its id and the same value is only said twice.
            let same = places.iter().all(|place| {
                entry
                    .candidates
                    .get(*place)
                    .is_some_and(|other| other.logprob.written == first.logprob.written)
            });
            (!(first.token.id.is_some() && same)).then(|| (quoted(&first.token), places))
        })
        .collect();
    if twice.is_empty() {
        return;
    }
    let list: Vec<String> =
        twice.iter().map(|(name, places)| format!("{name} {} times", places.len())).collect();
    let title = format!(
        "keys stand more than once: {}; the file has {} pairs, an ordinary map keeps {}",
        list.join(", "),
        entry.candidates.len(),
        distinct(entry)
    );
    let keys: Vec<serde_json::Value> = twice
        .iter()
        .map(|(_, places)| {
            let found: Vec<&Candidate> =
                places.iter().filter_map(|place| entry.candidates.get(*place)).collect();
            serde_json::json!({
                "key": found.first().and_then(|candidate| candidate.token.text.clone()),
                "times": places.len(),
                "logprobs": found.iter().map(|candidate| candidate.logprob.value()).collect::<Vec<_>>(),
                "map_keeps": found.last().and_then(|candidate| candidate.logprob.value()),
            })
        })
        .collect();
    findings.push(
        LogprobFinding::new("duplicate_keys", true, at, title)
            .with("pairs", entry.candidates.len())
            .with("distinct", distinct(entry))
            .with("keys", keys),
    );
    sampled_pair(entry, at, findings);
}

/// Which of several pairs of the token's own name is the token.
fn sampled_pair(entry: &Entry, at: (usize, Option<usize>), findings: &mut Vec<LogprobFinding>) {
    let named: Vec<usize> = (0..entry.candidates.len())
        .filter(|place| {
            entry.candidates.get(*place).is_some_and(|candidate| names_own(entry, candidate))
        })
        .collect();
    let agrees = |place: &&usize| {
        entry
            .candidates
            .get(**place)
            .is_some_and(|candidate| same(&candidate.logprob, &entry.logprob))
    };
    let fits: Vec<&usize> = named.iter().filter(agrees).collect();
    if let ([place], true) = (fits.as_slice(), named.len() > 1) {
        let title = format!(
            "the token {} has its own log-probability at pair {}: that pair is the one that stands here",
            quoted(&entry.token),
            **place + 1
        );
        findings.push(
            LogprobFinding::new("own_pair", false, at, title)
                .with("pair", **place)
                .with("of", named.len()),
        );
    }
}

/// Equal up to their printed digits.
fn same(left: &Logprob, right: &Logprob) -> bool {
    match (left.value(), right.value()) {
        (Some(l), Some(r)) => (l - r).abs() <= half_digit(left) + half_digit(right) + 1e-6,
        _ => left.state == right.state,
    }
}

/// The token's own value against the candidate of its name.
fn own_among(entry: &Entry, at: (usize, Option<usize>), findings: &mut Vec<LogprobFinding>) {
    let Some(own) = entry.logprob.value() else { return };
    if entry.candidates.is_empty() || (entry.token.id.is_none() && entry.token.text.is_none()) {
        return;
    }
    let named: Vec<&Candidate> =
        entry.candidates.iter().filter(|candidate| names_own(entry, candidate)).collect();
    if !named.is_empty() {
        if !named.iter().any(|candidate| same(&candidate.logprob, &entry.logprob)) {
            let listed: Vec<f64> =
                named.iter().filter_map(|candidate| candidate.logprob.value()).collect();
            let title = format!(
                "the token {} has {own}, its candidate has {listed:?}: other values, or another token of equal text",
                quoted(&entry.token)
            );
            findings.push(
                LogprobFinding::new("own_differs", true, at, title)
                    .with("own", own)
                    .with("listed", listed),
            );
        }
        return;
    }
    let least =
        entry.candidates.iter().filter_map(|candidate| candidate.logprob.value()).reduce(f64::min);
    if let Some(least) = least.filter(|least| own > least + half_digit(&entry.logprob) + 1e-6) {
        let title = format!(
            "the token {} has {own} and is not among the candidates, of which one has {least}",
            quoted(&entry.token)
        );
        findings.push(
            LogprobFinding::new("own_not_listed", true, at, title)
                .with("own", own)
                .with("least", least),
        );
    }
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
