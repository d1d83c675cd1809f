//! Degenerate text: few distinct tokens in a long stretch, or one stretch over and over.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Tokens in the sliding window, and the shortest stretch that counts as a loop.
pub const WINDOW: usize = 512;

/// Share of distinct tokens in a window below which the text counts as degenerate.
pub const DISTINCT_SHARE: f64 = 0.05;

/// Longest period that is looked for: a window then holds it three times.
const LONGEST_PERIOD: usize = WINDOW / 3;

/// What was counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Unit {
    /// Token ids.
    Token,
    /// Words between blanks, where there are no ids.
    Word,
}

/// What was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum State {
    /// Neither test fires.
    Clean,
    /// At least one fires.
    Degenerate,
    /// Shorter than a window: not judged, and not clean.
    TooShort,
}

/// A stretch that repeats.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Loop {
    /// First unit of the stretch (0-based).
    pub start: u64,
    /// Unit behind its last one.
    pub end: u64,
    /// Units after which it repeats: the smallest.
    pub period: u64,
}

/// Answer of the test.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Degeneracy {
    /// Outcome.
    pub state: State,
    /// What was counted.
    pub unit: Unit,
    /// Units in the text.
    pub units: u64,
    /// Least share of distinct units in any window; `null` where there is no whole window.
    pub least_distinct: Option<f64>,
    /// First window (its first unit, 0-based) whose share is below [`DISTINCT_SHARE`].
    pub first_window: Option<u64>,
    /// Earliest stretch of at least [`WINDOW`] units that repeats with a period of at most a third of that.
    pub repeats: Option<Loop>,
    /// Unit (0-based) from which the text is degenerate: the start of the loop, or else of the first such window.
    pub start: Option<u64>,
}

/// A text as units.
#[derive(Debug, Clone, Copy)]
pub enum Stream<'a> {
    /// Token ids.
    Tokens(&'a [u32]),
    /// Text, by words.
    Words(&'a str),
}

/// Looks for degenerate text by token ids where there are any, else by words.
#[must_use]
pub fn degenerate_text(tokens: Option<&[u32]>, text: Option<&str>) -> Option<Degeneracy> {
    match (tokens.filter(|ids| !ids.is_empty()), text) {
        (Some(ids), _) => Some(degenerate(Stream::Tokens(ids))),
        (None, Some(text)) => Some(degenerate(Stream::Words(text))),
        (None, None) => None,
    }
}

/// Share of distinct units over a sliding window, and loops.
#[must_use]
pub fn degenerate(stream: Stream<'_>) -> Degeneracy {
    let owned;
    let (units, unit) = match stream {
        Stream::Tokens(ids) => (ids, Unit::Token),
        Stream::Words(text) => {
            owned = word_ids(text);
            (owned.as_slice(), Unit::Word)
        }
    };
    let mut found = Degeneracy {
        state: State::TooShort,
        unit,
        units: units.len() as u64,
        least_distinct: None,
        first_window: None,
        repeats: None,
        start: None,
    };
    if units.len() < WINDOW {
        return found;
    }
    (found.least_distinct, found.first_window) = windows(units);
    found.repeats = loops(units);
    // The first such window begins up to 25 units before its loop does, so the loop says better where it starts.
    let window = found
        .first_window
        .filter(|at| found.repeats.is_none_or(|stretch| at + WINDOW as u64 <= stretch.start));
    found.start = window.or(found.repeats.map(|stretch| stretch.start));
    found.state = if found.start.is_some() { State::Degenerate } else { State::Clean };
    found
}

/// Each word as the number of its first occurrence.
fn word_ids(text: &str) -> Vec<u32> {
    let mut known: BTreeMap<&str, u32> = BTreeMap::new();
    text.split_whitespace()
        .map(|word| {
            let next = u32::try_from(known.len()).unwrap_or(u32::MAX);
            *known.entry(word).or_insert(next)
        })
        .collect()
}

/// Least share of distinct units, and the first window below the bound.
fn windows(units: &[u32]) -> (Option<f64>, Option<u64>) {
    let mut counts: BTreeMap<u32, usize> = BTreeMap::new();
    let (mut least, mut first) = (WINDOW, None);
    for (at, unit) in units.iter().enumerate() {
        *counts.entry(*unit).or_default() += 1;
        if let Some(leaving) = at.checked_sub(WINDOW).and_then(|old| units.get(old))
            && let Some(count) = counts.get_mut(leaving)
        {
            *count -= 1;
            if *count == 0 {
                counts.remove(leaving);
            }
        }
        let Some(start) = (at + 1).checked_sub(WINDOW) else { continue };
        least = least.min(counts.len());
        if first.is_none() && share(counts.len()) < DISTINCT_SHARE {
            first = Some(start as u64);
        }
    }
    (Some(share(least)), first)
}

fn share(distinct: usize) -> f64 {
    crate::stats::count(distinct) / crate::stats::count(WINDOW)
}

/// Earliest stretch in which every unit equals the one a period before it, for at least a window. Of periods that hold over the
/// same stretch the smallest is taken.
fn loops(units: &[u32]) -> Option<Loop> {
    let mut best: Option<Loop> = None;
    for period in 1..=LONGEST_PERIOD {
        let (mut run, mut found) = (0_usize, None);
        for (at, (old, new)) in units.iter().zip(units.get(period..)?).enumerate() {
            if old == new {
                run += 1;
                continue;
            }
            if run + period >= WINDOW {
                found = Some((at - run, at + period));
                break;
            }
            run = 0;
        }
        if found.is_none() && run + period >= WINDOW {
            found = Some((units.len() - period - run, units.len()));
        }
        let Some((start, end)) = found else { continue };
        // A longer period is news only before the stretch that a shorter one explains.
        if best.is_none_or(|known| end as u64 <= known.start) {
            best = Some(Loop { start: start as u64, end: end as u64, period: period as u64 });
        }
    }
    best
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Numbers that do not repeat.
    fn fresh(count: u32, from: u32) -> Vec<u32> {
        (from..from + count).collect()
    }

    #[test]
    fn a_planted_loop_is_found_where_it_starts() {
        let mut ids = fresh(1000, 100);
        for _ in 0..300 {
            ids.extend([1, 2]);
        }
        let found = degenerate(Stream::Tokens(&ids));
        assert_eq!(
            (found.state, found.start, found.unit),
            (State::Degenerate, Some(1000), Unit::Token)
        );
        assert_eq!(found.repeats, Some(Loop { start: 1000, end: 1600, period: 2 }));
        // 25 of 512 are below 0.05 and 26 are not: 23 fresh tokens beside the two.
        assert_eq!(found.first_window, Some(1000 - 23));
        assert_eq!(found.least_distinct, Some(2.0 / 512.0));
    }

    #[test]
    fn a_loop_longer_than_the_distinct_bound_is_found_by_its_period() {
        let mut ids = fresh(700, 1000);
        for _ in 0..6 {
            ids.extend(fresh(100, 0));
        }
        ids.extend(fresh(50, 5000));
        let found = degenerate(Stream::Tokens(&ids));
        assert_eq!(found.first_window, None);
        assert_eq!(found.repeats, Some(Loop { start: 700, end: 1300, period: 100 }));
        assert_eq!((found.state, found.start), (State::Degenerate, Some(700)));
    }

    #[test]
    fn few_distinct_tokens_without_a_period_are_found_too() {
        // 20 tokens in an order that does not repeat.
        let mut state = 9_u64;
        let mut noise = |count: usize, kinds: u64| -> Vec<u32> {
            (0..count)
                .map(|_| {
                    state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    ((state >> 33) % kinds) as u32
                })
                .collect()
        };
        let mut ids = noise(600, 5000);
        ids.extend(noise(600, 20));
        let found = degenerate(Stream::Tokens(&ids));
        assert_eq!((found.state, found.repeats), (State::Degenerate, None));
        assert!(found.start.is_some_and(|start| (594..=600).contains(&start)), "{found:?}");
        ids.truncate(1100);
        assert_eq!(degenerate(Stream::Tokens(&ids)).state, State::Clean);
    }

    #[test]
    fn ordinary_text_is_clean_and_short_text_is_not_judged() {
        assert_eq!(degenerate(Stream::Tokens(&fresh(4000, 0))).state, State::Clean);
        // Twenty-six kinds in turn: exactly above the bound, but a loop.
        let turn: Vec<u32> = (0..2000).map(|at| at % 26).collect();
        let found = degenerate(Stream::Tokens(&turn));
        assert_eq!((found.first_window, found.state), (None, State::Degenerate));
        let short = degenerate(Stream::Tokens(&[7; 511]));
        assert_eq!((short.state, short.start, short.least_distinct), (State::TooShort, None, None));
        assert_eq!(degenerate(Stream::Words("")).units, 0);
        assert!(degenerate_text(None, None).is_none());
    }

    #[test]
    fn words_stand_in_where_there_are_no_ids() {
        let mut text: String = (0..600).map(|word| format!("w{word} ")).collect();
        text.push_str(&"Let me.\n".repeat(300));
        let found = degenerate_text(Some(&[]), Some(&text)).unwrap();
        assert_eq!(
            (found.unit, found.state, found.start),
            (Unit::Word, State::Degenerate, Some(600))
        );
        assert_eq!(found.repeats.map(|stretch| stretch.period), Some(2));
    }

    /// The ledger problems' own completions: long, of few kinds of lines, and not degenerate.
    #[test]
    fn gold_completions_are_clean() {
        let path = lockstep_testkit::data().join("golden/traces/tasks.jsonl");
        let text = std::fs::read_to_string(path).unwrap();
        let mut judged = 0;
        for line in text.lines() {
            let row: serde_json::Value = serde_json::from_str(line).unwrap();
            let ids: Vec<u32> = row["gold_completion_ids"]
                .as_array()
                .unwrap()
                .iter()
                .map(|id| id.as_u64().unwrap() as u32)
                .collect();
            let found = degenerate(Stream::Tokens(&ids));
            assert_ne!(found.state, State::Degenerate, "{}: {found:?}", row["sample_id"]);
            judged += u32::from(found.state == State::Clean);
        }
        assert!(judged >= 20, "{judged}");
    }
}
