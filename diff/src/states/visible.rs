//! Keys that each query sees: engines against a window and against each other.

use std::collections::BTreeSet;

use lockstep_traces::Verdict;
use lockstep_traces::forms::{EngineKeys, VisibleKeys};
use serde::Serialize;

use super::{StateFinding, ranges};

/// The first query whose keys are not those of the window.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct QueryFault {
    /// Its position.
    pub query: u64,
    /// Keys by the window.
    pub expected: Vec<u64>,
    /// Keys of the window that it does not see.
    pub missing: Vec<u64>,
    /// Keys that it sees beyond the window.
    pub surplus: Vec<u64>,
}

/// One engine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct EngineWindow {
    /// Name.
    pub name: String,
    /// Queries.
    pub queries: usize,
    /// Every query sees the keys of the configured window; `null` where none is configured.
    pub agrees: Option<bool>,
    /// The first that does not.
    pub first_fault: Option<QueryFault>,
    /// Number of keys, the current one among them, at which every later query stays, where keys are cut; `null` where none is.
    pub saturates_at: Option<u64>,
    /// What gives the keys of every query: `window` (the last `size` keys), `chunk` (the keys since the last multiple of `size`), `causal`
    /// (all keys so far); `null` where none of these does.
    pub shape: Option<String>,
    /// Keys of that shape.
    pub size: Option<u64>,
    /// Queries that see a key behind themselves.
    pub sees_future: Vec<u64>,
    /// Queries that do not see their own key.
    pub lacks_own: Vec<u64>,
}

/// The first query at which two engines part.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct FirstDifference {
    /// Its position.
    pub query: u64,
    /// Keys that only the left sees.
    pub only_left: Vec<u64>,
    /// Keys that only the right sees.
    pub only_right: Vec<u64>,
}

/// Two engines.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct VisiblePair {
    /// Left.
    pub left: String,
    /// Right.
    pub right: String,
    /// Queries that both have.
    pub compared: usize,
    /// Queries that see the same keys, before the first difference.
    pub equal_before: usize,
    /// Where they part.
    pub first_difference: Option<FirstDifference>,
    /// Keys of the right less keys of the left at the first difference.
    pub count_difference: Option<i64>,
    /// The difference in number is the same at every later query.
    pub constant: Option<bool>,
}

/// Answer.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct VisibleReport {
    /// The configured window.
    pub window: Option<u64>,
    /// The convention by which it was read.
    pub convention: String,
    /// Argument of a kernel that counts the keys to the left of the current one.
    pub keys_to_the_left: Option<u64>,
    /// Engines.
    pub engines: Vec<EngineWindow>,
    /// Engines that agree with the window.
    pub agrees: Vec<String>,
    /// Every two engines.
    pub pairs: Vec<VisiblePair>,
    /// What was found.
    pub findings: Vec<StateFinding>,
    /// What the evidence does not cover.
    pub limits: Vec<String>,
    /// Outcome.
    pub verdict: Verdict,
    /// One line.
    pub summary: String,
}

/// Checks visible keys against the window and the engines against each other.
#[must_use]
pub fn check(form: &VisibleKeys) -> VisibleReport {
    let keys = form.window.map(|window| window + u64::from(!form.counts_current));
    let engines: Vec<EngineWindow> =
        form.engines.iter().map(|engine| engine_window(form, engine, keys)).collect();
    let mut pairs = Vec::new();
    for (at, left) in form.engines.iter().enumerate() {
        for right in &form.engines[at + 1..] {
            pairs.push(pair(form.first_query, left, right));
        }
    }
    let agrees =
        engines.iter().filter(|one| one.agrees == Some(true)).map(|one| one.name.clone()).collect();
    let mut report = VisibleReport {
        window: form.window,
        convention: convention(form),
        keys_to_the_left: keys.map(|keys| keys - 1),
        engines,
        agrees,
        pairs,
        findings: Vec::new(),
        limits: Vec::new(),
        verdict: Verdict::Identical,
        summary: String::new(),
    };
    report.findings = findings(&report, keys);
    conclude(form, keys, &mut report);
    report
}

fn convention(form: &VisibleKeys) -> String {
    match (form.window, form.counts_current) {
        (None, _) => "no window is configured: engines are held against each other only".to_owned(),
        (Some(window), true) => {
            format!("sliding_window = {window} is the current key and {} before it", window - 1)
        }
        (Some(window), false) => {
            format!(
                "sliding_window = {window} is {window} keys before the current one, which is seen too"
            )
        }
    }
}

/// Keys of `query` under a window of `keys` keys.
fn window_of(query: u64, keys: u64) -> std::ops::RangeInclusive<u64> {
    (query + 1).saturating_sub(keys)..=query
}

fn same(keys: &[u64], wanted: std::ops::RangeInclusive<u64>) -> bool {
    // Keys are rising and distinct: ends and number decide.
    let count = (wanted.end() + 1).saturating_sub(*wanted.start());
    keys.len() as u64 == count
        && keys.first() == Some(wanted.start())
        && keys.last() == Some(wanted.end())
}

fn engine_window(form: &VisibleKeys, engine: &EngineKeys, window: Option<u64>) -> EngineWindow {
    let queries = || (form.first_query..).zip(&engine.keys);
    let first_fault = window.and_then(|window| {
        queries().find(|(query, keys)| !same(keys, window_of(*query, window))).map(
            |(query, keys)| {
                let wanted = window_of(query, window);
                let surplus = keys.iter().filter(|key| !wanted.contains(key)).copied().collect();
                let seen: BTreeSet<u64> = keys.iter().copied().collect();
                let expected: Vec<u64> = wanted.collect();
                let missing = expected.iter().filter(|key| !seen.contains(key)).copied().collect();
                QueryFault { query, expected, missing, surplus }
            },
        )
    });
    let (shape, size) = shape(form.first_query, &engine.keys);
    EngineWindow {
        name: engine.name.clone(),
        queries: engine.keys.len(),
        agrees: window.map(|_| first_fault.is_none() && !engine.keys.is_empty()),
        first_fault,
        saturates_at: saturation(form.first_query, &engine.keys),
        shape,
        size,
        sees_future: queries()
            .filter(|(query, keys)| keys.last().is_some_and(|last| last > query))
            .map(|(query, _)| query)
            .collect(),
        lacks_own: queries()
            .filter(|(query, keys)| keys.binary_search(query).is_err())
            .map(|(query, _)| query)
            .collect(),
    }
}

/// The number of keys at which all queries stay from the first on that could see more.
fn saturation(first: u64, keys: &[Vec<u64>]) -> Option<u64> {
    let most = keys.last()?.len() as u64;
    let cut = (first..).zip(keys).any(|(query, _)| query + 1 > most);
    let stays = (first..).zip(keys).all(|(query, keys)| keys.len() as u64 == most.min(query + 1));
    (cut && stays).then_some(most)
}

fn shape(first: u64, keys: &[Vec<u64>]) -> (Option<String>, Option<u64>) {
    let Some(most) = keys.iter().map(|keys| keys.len() as u64).max().filter(|most| *most > 0)
    else {
        return (None, None);
    };
    let all = |wanted: &dyn Fn(u64) -> std::ops::RangeInclusive<u64>| {
        (first..).zip(keys).all(|(query, keys)| same(keys, wanted(query)))
    };
    if all(&|query| 0..=query) {
        return (Some("causal".to_owned()), None);
    }
    let found = [
        ("window", all(&|query| window_of(query, most))),
        ("chunk", all(&|query| query - query % most..=query)),
    ];
    match found.iter().find(|(_, fits)| *fits) {
        Some((name, _)) => (Some((*name).to_owned()), Some(most)),
        None => (None, None),
    }
}

fn pair(first: u64, left: &EngineKeys, right: &EngineKeys) -> VisiblePair {
    let compared = left.keys.len().min(right.keys.len());
    let equal_before =
        left.keys.iter().zip(&right.keys).take_while(|(left, right)| left == right).count();
    let mut out = VisiblePair {
        left: left.name.clone(),
        right: right.name.clone(),
        compared,
        equal_before,
        first_difference: None,
        count_difference: None,
        constant: None,
    };
    let (Some(l), Some(r)) = (left.keys.get(equal_before), right.keys.get(equal_before)) else {
        return out;
    };
    let (seen_l, seen_r): (BTreeSet<u64>, BTreeSet<u64>) =
        (l.iter().copied().collect(), r.iter().copied().collect());
    out.first_difference = Some(FirstDifference {
        query: first + equal_before as u64,
        only_left: seen_l.difference(&seen_r).copied().collect(),
        only_right: seen_r.difference(&seen_l).copied().collect(),
    });
    let difference = |l: &Vec<u64>, r: &Vec<u64>| r.len() as i64 - l.len() as i64;
    let here = difference(l, r);
    out.count_difference = Some(here);
    let later = left.keys.iter().zip(&right.keys).skip(equal_before);
    out.constant = Some(later.into_iter().all(|(l, r)| difference(l, r) == here));
    out
}

fn findings(report: &VisibleReport, window: Option<u64>) -> Vec<StateFinding> {
    let mut out = Vec::new();
    for engine in &report.engines {
        let of = engine.name.as_str();
        if !engine.sees_future.is_empty() {
            let title =
                format!("queries {} see keys behind themselves", ranges(&engine.sees_future));
            out.push(StateFinding::new("sees_future", of, title));
        }
        if !engine.lacks_own.is_empty() {
            let title = format!("queries {} do not see their own key", ranges(&engine.lacks_own));
            out.push(StateFinding::new("lacks_own_key", of, title));
        }
        let (Some(window), Some(fault)) = (window, &engine.first_fault) else { continue };
        let named = match (engine.shape.as_deref(), engine.size) {
            (Some("window"), Some(size)) if size == window + 1 => Some((
                "one_key_more",
                format!(
                    "sees {size} keys where the window has {window}: a kernel that counts the keys to the left needs {}",
                    window - 1
                ),
            )),
            (Some("window"), Some(size)) if size + 1 == window => {
                Some(("one_key_less", format!("sees {size} keys where the window has {window}")))
            }
            (Some("window"), Some(size)) => Some((
                "other_window",
                format!("sees the last {size} keys where the window has {window}"),
            )),
            (Some("chunk"), Some(size)) => Some((
                "chunked",
                format!(
                    "sees the keys since the last multiple of {size}, not a window that slides"
                ),
            )),
            (Some(_), _) => {
                Some(("no_window", "sees all keys so far: no window is applied".to_owned()))
            }
            (None, _) => None,
        };
        let (name, title) = named.unwrap_or_else(|| {
            ("other_keys", "sees keys that no window, chunk or causal mask gives".to_owned())
        });
        let place = format!(
            "{title}; first at query {} (surplus {}, missing {})",
            fault.query,
            listed(&fault.surplus),
            listed(&fault.missing)
        );
        out.push(StateFinding::new(name, of, place));
    }
    out
}

fn listed(keys: &[u64]) -> String {
    if keys.is_empty() { "none".to_owned() } else { ranges(keys) }
}

fn conclude(form: &VisibleKeys, keys: Option<u64>, report: &mut VisibleReport) {
    let lengths: BTreeSet<usize> = form.engines.iter().map(|engine| engine.keys.len()).collect();
    if lengths.len() > 1 {
        report.limits.push(
            "engines have different numbers of queries: only common ones were compared".to_owned(),
        );
    }
    let past =
        |engine: &EngineKeys| form.first_query + engine.keys.len() as u64 > keys.unwrap_or(0);
    let parted = report.pairs.iter().any(|pair| pair.first_difference.is_some());
    let wrong = report.engines.iter().any(|engine| engine.first_fault.is_some());
    let empty = form.engines.iter().any(|engine| engine.keys.is_empty());
    let why = match keys {
        _ if empty => Some("an engine has no query".to_owned()),
        None if form.engines.len() < 2 => {
            Some("one engine and no window: there is nothing to hold it against".to_owned())
        }
        Some(keys) if !form.engines.iter().all(past) => {
            Some(format!("no query lies behind the first {keys} keys, so that no window cuts"))
        }
        _ if lengths.len() > 1 => Some("queries of one engine have no partner".to_owned()),
        _ => None,
    };
    report.verdict = match (wrong || parted, why) {
        (true, _) => Verdict::Diverged,
        (false, Some(why)) => Verdict::Incomparable { why },
        (false, None) => Verdict::Identical,
    };
    report.summary = summary(report);
}

fn summary(report: &VisibleReport) -> String {
    let mut parts = vec![report.convention.clone()];
    for engine in &report.engines {
        let stays = engine.saturates_at.map(|keys| format!("{} stays at {keys} keys", engine.name));
        parts.extend(stays);
    }
    for pair in &report.pairs {
        if let Some(first) = &pair.first_difference {
            parts.push(format!("{} and {} part at query {}", pair.left, pair.right, first.query));
        }
    }
    if report.window.is_some() {
        let names =
            if report.agrees.is_empty() { "none".to_owned() } else { report.agrees.join(", ") };
        parts.push(format!("agrees with the window: {names}"));
    }
    if let Verdict::Incomparable { why } = &report.verdict {
        parts.push(why.clone());
    }
    parts.join("; ")
}
