//! The candidates of one entry become the list of largest values of one row.

use std::collections::BTreeSet;

use super::super::model::{Candidate, Entry, State};
use super::names::Names;
use super::tally::Tally;
use crate::UNKNOWN_TOKEN;

/// A row's list: value descending, lower id first on equal values.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct List {
    pub(super) ids: Vec<u32>,
    pub(super) values: Vec<f32>,
    /// It holds the chosen token only, which need not be the likeliest one.
    pub(super) own_only: bool,
    /// No NaN stood among the values.
    pub(super) finite: bool,
}

impl List {
    /// Id of the largest value, where the list begins with it.
    pub(super) fn argmax(&self) -> u32 {
        self.ids.first().copied().filter(|_| !self.own_only).unwrap_or(UNKNOWN_TOKEN)
    }

    /// Largest minus second largest value.
    pub(super) fn margin(&self) -> Option<f32> {
        match self.values.as_slice() {
            [first, second, ..] if !self.own_only => Some(first - second),
            _ => None,
        }
    }
}

/// Candidates of each entry of a track, without a chosen token that was added to them: as asked, else the fewest of any.
pub(super) fn asked_length(asked: Option<u64>, entries: &[Entry]) -> Option<usize> {
    let fewest = entries.iter().map(|entry| entry.candidates.len()).filter(|&n| n > 0).min();
    asked.and_then(|asked| usize::try_from(asked).ok()).or(fewest)
}

/// The list of one entry; `own` is the id of its token.
pub(super) fn list(
    entry: &Entry,
    own: u32,
    asked: Option<usize>,
    names: &mut Names<'_>,
    tally: &mut Tally,
) -> List {
    let mut out = List { finite: entry.logprob.state != State::Nan, ..List::default() };
    if entry.candidates.is_empty() {
        out.own_only = true;
        if let Some(value) = entry.logprob.value() {
            tally.value(&entry.logprob);
            tally.own_only += 1;
            out.ids.push(own);
            out.values.push(narrow(value));
        } else {
            tally.unmeasured += u64::from(entry.logprob.state == State::Impossible);
        }
        return out;
    }
    let mut pairs = measured(entry, names, tally, &mut out.finite);
    let in_order = pairs.is_sorted_by(|left, right| left.value >= right.value);
    let as_written: Vec<u32> = pairs.iter().map(|pair| pair.id).collect();
    pairs.sort_by(|a, b| b.value.total_cmp(&a.value).then(a.id.cmp(&b.id)));
    tally.reordered += u64::from(!in_order && as_written.len() > 1);
    take_out_chosen(entry, own, asked, &mut pairs, tally, &mut out);
    let mut seen = BTreeSet::new();
    for pair in pairs {
        let id = if pair.id == UNKNOWN_TOKEN || seen.insert(pair.id) {
            pair.id
        } else {
            tally.twice += 1;
            UNKNOWN_TOKEN
        };
        out.ids.push(id);
        out.values.push(pair.value);
    }
    settle_ties(&mut out);
    out
}

/// A candidate with a value.
struct Pair {
    id: u32,
    value: f32,
    rank: Option<u32>,
}

fn measured(
    entry: &Entry,
    names: &mut Names<'_>,
    tally: &mut Tally,
    finite: &mut bool,
) -> Vec<Pair> {
    let mut pairs = Vec::with_capacity(entry.candidates.len());
    for Candidate { token, logprob, rank } in &entry.candidates {
        match logprob.value() {
            Some(value) => {
                tally.value(logprob);
                pairs.push(Pair { id: names.id(token), value: narrow(value), rank: *rank });
            }
            None => {
                *finite &= logprob.state != State::Nan;
                tally.unmeasured += 1;
            }
        }
    }
    pairs
}

/// Servers add the chosen token to the largest ones where it is none of these. Its value is no part of the list: between
/// it and the last of the list lie tokens that nobody wrote down.
fn take_out_chosen(
    entry: &Entry,
    own: u32,
    asked: Option<usize>,
    pairs: &mut Vec<Pair>,
    tally: &mut Tally,
    out: &mut List,
) {
    let place = pairs.iter().position(|pair| pair.id == own && own != UNKNOWN_TOKEN);
    let Some(place) = place else {
        tally.outside += u64::from(entry.logprob.value().is_some());
        return;
    };
    let listed = &pairs[place];
    if entry.logprob.value().is_some_and(|value| narrow(value).to_bits() != listed.value.to_bits())
    {
        tally.contradicted += 1;
    }
    let alone = pairs.len() == 1;
    let last = place + 1 == pairs.len();
    let beyond = match (listed.rank, asked) {
        (Some(rank), _) => usize::try_from(rank).is_ok_and(|rank| rank > pairs.len()),
        (None, Some(asked)) => pairs.len() == asked.saturating_add(1),
        (None, None) => false,
    };
    if !(last && beyond) {
        return;
    }
    if alone {
        out.own_only = true;
        tally.own_only += 1;
    } else {
        tally.outside += 1;
        pairs.pop();
    }
}

/// Equal values whose ids were taken away stand behind the others.
fn settle_ties(list: &mut List) {
    for place in 1..list.ids.len() {
        let mut at = place;
        while at > 0
            && list.values[at - 1].to_bits() == list.values[at].to_bits()
            && list.ids[at - 1] > list.ids[at]
        {
            list.ids.swap(at - 1, at);
            at -= 1;
        }
    }
}

/// As the store holds it.
#[expect(
    clippy::cast_possible_truncation,
    reason = "the store holds f32; the tally keeps the largest error"
)]
pub(super) fn narrow(value: f64) -> f32 {
    value as f32
}
