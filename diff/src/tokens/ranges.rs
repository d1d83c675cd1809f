//! Token ids of a trace against the tokenizer and the width of the logits.

use std::collections::BTreeMap;

use lockstep_traces::store::StepColumns;
use lockstep_traces::{UNKNOWN_TOKEN, Verdict};
use serde::Serialize;

/// What ids are held against.
pub struct Sizes<'a> {
    /// True for ids that the tokenizer knows.
    pub known: &'a dyn Fn(u32) -> bool,
    /// Ids that the tokenizer knows, as a number to show.
    pub tokenizer: Option<u64>,
    /// Columns of the logits; no id may reach it.
    pub logits: Option<u32>,
}

/// An id outside the tokenizer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct OutsideId {
    /// Id.
    pub id: u32,
    /// Sample in which it stands first.
    pub sample_id: String,
    /// Row in which it stands first.
    pub position: u32,
    /// Rows in which it stands.
    pub rows: u64,
}

/// Answer of the check.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct IdCheck {
    /// Tokens that the tokenizer knows.
    pub tokenizer: Option<u64>,
    /// Columns of the logits.
    pub logits: Option<u32>,
    /// Rows looked at.
    pub rows: u64,
    /// Chosen tokens looked at.
    pub chosen: u64,
    /// Chosen ids that the logits have and the tokenizer does not: a padded row was drawn.
    pub chosen_outside: Vec<OutsideId>,
    /// The same for fed ids.
    pub fed_outside: Vec<OutsideId>,
    /// Ids among the largest logits that the tokenizer does not know: harmless there, ids without a text.
    pub listed_outside: Vec<OutsideId>,
    /// Ids that the logits cannot have: the file is wrong, or another model's.
    pub beyond_logits: Vec<OutsideId>,
    /// `diverged` where a padded row was drawn or an id lies beyond the logits, `incomparable` where no token was looked at.
    pub verdict: Verdict,
    /// One line for people.
    pub summary: String,
}

/// Looks at every id of a trace.
#[must_use]
pub fn check_ids(steps: &StepColumns, sizes: &Sizes<'_>) -> IdCheck {
    let mut groups = [const { BTreeMap::new() }; 4];
    let [chosen, fed, listed, beyond] = &mut groups;
    let mut count = 0;
    for row in 0..steps.len {
        let mut take = |id: u32, list: &mut BTreeMap<u32, OutsideId>| {
            let outside = sizes.logits.is_some_and(|width| id >= width);
            if outside {
                note(beyond, id, row, steps);
            } else if !(sizes.known)(id) {
                note(list, id, row, steps);
            }
        };
        if let Some(id) =
            steps.next_token.get(row).copied().flatten().filter(|id| *id != UNKNOWN_TOKEN)
        {
            count += 1;
            take(id, chosen);
        }
        if let Some(id) = steps.token_id.get(row).copied().filter(|id| *id != UNKNOWN_TOKEN) {
            take(id, fed);
        }
        steps.ids_of(row).iter().for_each(|id| take(*id, listed));
    }
    let [chosen_outside, fed_outside, listed_outside, beyond_logits] =
        groups.map(|group| group.into_values().collect::<Vec<_>>());
    let (verdict, summary) = judge(&chosen_outside, &fed_outside, &beyond_logits, count, sizes);
    IdCheck {
        tokenizer: sizes.tokenizer,
        logits: sizes.logits,
        rows: steps.len as u64,
        chosen: count,
        chosen_outside,
        fed_outside,
        listed_outside,
        beyond_logits,
        verdict,
        summary,
    }
}

fn note(list: &mut BTreeMap<u32, OutsideId>, id: u32, row: usize, steps: &StepColumns) {
    let entry = list.entry(id).or_insert_with(|| OutsideId {
        id,
        sample_id: steps.sample_id(row).unwrap_or_default().to_owned(),
        position: steps.position.get(row).copied().unwrap_or(0),
        rows: 0,
    });
    entry.rows += 1;
}

fn judge(
    chosen: &[OutsideId],
    fed: &[OutsideId],
    beyond: &[OutsideId],
    count: u64,
    sizes: &Sizes<'_>,
) -> (Verdict, String) {
    let number = |n: Option<u64>| n.map_or_else(|| "?".to_owned(), |n| n.to_string());
    let (logits, tokenizer) = (number(sizes.logits.map(u64::from)), number(sizes.tokenizer));
    if let Some(first) = beyond.first() {
        let what = format!(
            "id {} at position {} lies beyond the {logits} logits: another model's file",
            first.id, first.position
        );
        return (Verdict::Diverged, what);
    }
    if let Some(first) = chosen.iter().min_by_key(|outside| outside.position) {
        let what = format!(
            "position {}: the chosen id {} is inside the logits ({logits}) and outside the tokenizer ({tokenizer}): a padded row was drawn",
            first.position, first.id
        );
        return (Verdict::Diverged, what);
    }
    if let Some(first) = fed.first() {
        let what = format!(
            "position {}: the fed id {} is outside the tokenizer ({tokenizer})",
            first.position, first.id
        );
        return (Verdict::Diverged, what);
    }
    if count == 0 {
        let why = "no chosen token is in the trace: nothing was checked".to_owned();
        return (Verdict::Incomparable { why: why.clone() }, why);
    }
    (Verdict::Identical, format!("{count} chosen tokens, all known to the tokenizer"))
}
