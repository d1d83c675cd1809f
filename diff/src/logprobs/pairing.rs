//! Entries and candidates of two files that may be held against each other.

use std::collections::BTreeMap;

use lockstep_traces::logprobs::{Entry, Logprob, Part, Sequence, State, TokenName};

use super::relate::PairView;
use super::text::rebuilt;

/// One candidate of both sides.
pub(super) struct Both<'a> {
    pub(super) token: &'a TokenName,
    pub(super) left: Logprob,
    pub(super) right: Logprob,
}

/// Compared entries with their common candidates.
pub(super) struct Row<'a> {
    pub(super) sequence: usize,
    pub(super) entry: usize,
    pub(super) both: Vec<Both<'a>>,
}

#[derive(Default)]
pub(super) struct Tally {
    pub(super) dependent: usize,
    pub(super) both_impossible: usize,
    pub(super) one_impossible: usize,
    pub(super) one_sided: usize,
    pub(super) ambiguous: usize,
}

pub(super) fn paired<'a>(
    left: &'a [Sequence],
    right: &'a [Sequence],
) -> Vec<(&'a Sequence, &'a Sequence)> {
    let lists = |side: &[Sequence]| side.len() == 1 && side.iter().all(|s| s.part == Part::List);
    if let ([l], [r]) = (left, right)
        && lists(left)
        && lists(right)
    {
        return vec![(l, r)];
    }
    left.iter()
        .filter_map(|l| {
            let same = |r: &&Sequence| {
                (r.record, r.choice, r.part) == (l.record, l.choice, l.part) && r.name == l.name
            };
            right.iter().find(same).map(|r| (l, r))
        })
        .collect()
}

/// Equal by id where both have one, else by bytes or text.
fn same_token(left: &TokenName, right: &TokenName) -> bool {
    match (left.id, right.id) {
        (Some(l), Some(r)) => l == r,
        _ => left.text.is_some() && left.text == right.text,
    }
}

pub(super) fn pair<'a>(
    index: usize,
    left: &'a Sequence,
    right: &'a Sequence,
    rows: &mut Vec<Row<'a>>,
    tally: &mut Tally,
) -> PairView {
    let list = left.part == Part::List;
    let head = left
        .entries
        .iter()
        .zip(&right.entries)
        .take_while(|(l, r)| {
            // The first token of a prompt may be named by neither side, or by one: nothing says that it differs.
            list || same_token(&l.token, &r.token) || l.token.is_nothing() || r.token.is_nothing()
        })
        .count();
    let longest = left.entries.len().max(right.entries.len());
    let differs = head < longest;
    // The entry at which the tokens part still has the same context: its candidates are comparable, its token is not.
    for at in 0..(head + 1).min(left.entries.len().min(right.entries.len())) {
        if let (Some(l), Some(r)) = (left.entries.get(at), right.entries.get(at)) {
            let both = common(l, r, at < head && !list, tally);
            rows.push(Row { sequence: index, entry: at, both });
        }
    }
    tally.dependent += longest.saturating_sub(head + 1);
    let texts = (rebuilt(&left.entries), rebuilt(&right.entries));
    let text_equal = texts.0.as_ref().zip(texts.1.as_ref()).map(|(l, r)| l == r);
    let total =
        |side: &Sequence| -> f64 { side.entries.iter().filter_map(|e| e.logprob.value()).sum() };
    let full = |side: &Sequence| {
        side.entries
            .iter()
            .skip(usize::from(side.part == Part::Prompt))
            .all(|e| e.logprob.value().is_some())
    };
    PairView {
        record: left.record,
        choice: left.choice,
        part: left.part,
        names: (left.name.clone(), right.name.clone()),
        entries: (left.entries.len(), right.entries.len()),
        first_token: differs.then_some(head),
        text_equal,
        other_tokens: differs && text_equal == Some(true),
        totals: (total(left), total(right)),
        totals_comparable: text_equal == Some(true) && full(left) && full(right) && !list,
    }
}

/// Candidates of both sides, the token itself among them; those that cannot be paired are counted.
fn common<'a>(left: &'a Entry, right: &'a Entry, own: bool, tally: &mut Tally) -> Vec<Both<'a>> {
    let ids = |entry: &Entry| entry.candidates.iter().all(|candidate| candidate.token.id.is_some());
    let by_id = ids(left) && ids(right);
    let (l, r) = (index(left, by_id), index(right, by_id));
    let mut both = Vec::new();
    let take = |token: &'a TokenName, left: Logprob, right: Logprob, tally: &mut Tally| {
        match (left.state, right.state) {
            (State::Measured, State::Measured) => {}
            (State::Impossible, State::Impossible) => tally.both_impossible += 1,
            (State::Measured, State::Impossible) | (State::Impossible, State::Measured) => {
                tally.one_impossible += 1;
            }
            _ => {}
        }
        Both { token, left, right }
    };
    for (key, places) in &l {
        match (places.as_slice(), r.get(key).map(Vec::as_slice)) {
            ([l], Some([r])) => {
                if let (Some(l), Some(r)) = (left.candidates.get(*l), right.candidates.get(*r)) {
                    both.push(take(&l.token, l.logprob, r.logprob, tally));
                }
            }
            (_, None) => tally.one_sided += places.len(),
            (many, Some(others)) => tally.ambiguous += many.len().max(others.len()),
        }
    }
    tally.one_sided += r
        .iter()
        .filter(|(key, _)| !l.contains_key(*key))
        .map(|(_, places)| places.len())
        .sum::<usize>();
    let listed = both.iter().any(|both| same_token(both.token, &left.token));
    if own && !listed {
        both.push(take(&left.token, left.logprob, right.logprob, tally));
    }
    both
}

type Key<'a> = (Option<u32>, Option<&'a str>);

fn index(entry: &Entry, by_id: bool) -> BTreeMap<Key<'_>, Vec<usize>> {
    let mut map: BTreeMap<Key<'_>, Vec<usize>> = BTreeMap::new();
    for (place, candidate) in entry.candidates.iter().enumerate() {
        let key = if by_id {
            (candidate.token.id, None)
        } else {
            (None, candidate.token.text.as_deref())
        };
        map.entry(key).or_default().push(place);
    }
    if by_id {
        // The same id given twice is one candidate.
        map.values_mut().for_each(|places| places.truncate(1));
    }
    map
}

pub(super) fn measured(both: &Both<'_>) -> Option<(f64, f64)> {
    both.left.value().zip(both.right.value())
}
