//! The candidates of one entry: do they fit the request, each other, and the token that stands there.

use std::collections::BTreeMap;

use lockstep_traces::logprobs::{Candidate, Entry, Logprob, Part, Sequence, TokenName};

use super::report::LogprobFinding;

/// Rounding of f32 softmax sums over some thousand candidates.
const SUM_SLACK: f64 = 1e-5;

/// The name under which a map keeps a candidate: its id, else its text.
pub(super) fn key(token: &TokenName) -> (Option<u32>, Option<&str>) {
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
pub(super) fn half_digit(logprob: &Logprob) -> f64 {
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

pub(super) fn quoted(token: &TokenName) -> String {
    match (&token.text, token.id) {
        (Some(text), _) => format!("{text:?}"),
        (None, Some(id)) => format!("id {id}"),
        (None, None) => "a token".to_owned(),
    }
}

pub(super) fn candidates(
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
                entry.candidates.get(*place).is_some_and(|other| {
                    other.logprob.written.to_bits() == first.logprob.written.to_bits()
                })
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
