//! One numbering for the tokens of two sides, where a side's ids only number the texts of its run.

use std::collections::{BTreeMap, BTreeSet};

use lockstep_traces::foreign::UNKNOWN_TOKEN;
use lockstep_traces::hash::ids_sha256;
use lockstep_traces::{SampleRow, StepColumns, TokenTexts};

/// Ids by the bytes of their tokens.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Numbering {
    ids: BTreeMap<Vec<u8>, u32>,
    /// Ids of one text that count as the first of them.
    same: BTreeMap<u32, u32>,
}

/// What a side's ids became.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Renumbered {
    /// Ids that stand for a token that the other side's numbering does not have, or for no certain token.
    pub unknown: u64,
    /// Ids whose text stands for several ids of the vocabulary.
    pub ambiguous: u64,
}

impl Numbering {
    /// A numbering that begins with the texts of one run.
    #[must_use]
    pub fn of_texts(texts: &TokenTexts) -> Self {
        let keys = texts.iter().filter_map(|text| Some((text.key()?.to_vec(), text.id)));
        Self { ids: keys.collect(), same: BTreeMap::new() }
    }

    /// The numbering of a vocabulary: `bytes` of each id below `size`. Ids of equal bytes count as the lowest of them.
    #[must_use]
    pub fn of_vocabulary(size: u32, bytes: &dyn Fn(u32) -> Option<Vec<u8>>) -> Self {
        let mut out = Self::default();
        for id in 0..size {
            let Some(key) = bytes(id) else { continue };
            let first = *out.ids.entry(key).or_insert(id);
            if first != id {
                out.same.insert(id, first);
            }
        }
        out
    }

    /// Adds the texts of another run that are not there yet, with the next free numbers.
    pub fn extend(&mut self, texts: &TokenTexts) {
        let mut next = self.ids.values().max().map_or(0, |id| id.saturating_add(1));
        for key in texts.iter().filter_map(|text| text.key()) {
            if !self.ids.contains_key(key) {
                self.ids.insert(key.to_vec(), next);
                next = next.saturating_add(1).min(UNKNOWN_TOKEN - 1);
            }
        }
    }

    /// Bytes by id.
    #[must_use]
    pub fn names(&self) -> BTreeMap<u32, Vec<u8>> {
        self.ids.iter().map(|(bytes, id)| (*id, bytes.clone())).collect()
    }

    /// Texts that stand for several ids.
    #[must_use]
    pub fn ambiguous_texts(&self) -> usize {
        self.same.values().collect::<BTreeSet<_>>().len()
    }

    /// Brings a run whose ids number `texts` to this numbering; a text that is not in it becomes [`UNKNOWN_TOKEN`].
    pub fn texts(
        &self,
        texts: &TokenTexts,
        steps: &mut StepColumns,
        samples: &mut [SampleRow],
    ) -> Renumbered {
        let several: BTreeSet<u32> = self.same.values().copied().collect();
        let map = |id: u32| {
            let key = texts.get(id).and_then(|text| text.key());
            key.and_then(|key| self.ids.get(key)).copied().unwrap_or(UNKNOWN_TOKEN)
        };
        renumber(steps, samples, &map, &|id| several.contains(&id))
    }

    /// Brings a run with ids of the vocabulary to this numbering: ids of equal text become one.
    pub fn ids(&self, steps: &mut StepColumns, samples: &mut [SampleRow]) -> Renumbered {
        let several: BTreeSet<u32> = self.same.values().copied().collect();
        let map = |id: u32| self.same.get(&id).copied().unwrap_or(id);
        renumber(steps, samples, &map, &|id| several.contains(&id))
    }
}

fn renumber(
    steps: &mut StepColumns,
    samples: &mut [SampleRow],
    map: &dyn Fn(u32) -> u32,
    ambiguous: &dyn Fn(u32) -> bool,
) -> Renumbered {
    let mut seen: BTreeMap<u32, u32> = BTreeMap::new();
    let mut new = |id: u32| match id {
        UNKNOWN_TOKEN => UNKNOWN_TOKEN,
        id => *seen.entry(id).or_insert_with(|| map(id)),
    };
    for id in steps.token_id.iter_mut().chain(&mut steps.argmax) {
        *id = new(*id);
    }
    for id in steps.next_token.iter_mut().flatten() {
        *id = new(*id);
    }
    for row in 0..steps.len {
        let count = steps.ids_of(row).len();
        let start = row * steps.top_k;
        let Some(list) = steps.top_ids.get_mut(start..start + count) else { continue };
        for at in 0..list.len() {
            let id = list.get(at).map_or(UNKNOWN_TOKEN, |id| new(*id));
            // Two ids of one text in one list cannot be told apart: the first is the likelier one.
            let again = list.get(..at).is_some_and(|before| before.contains(&id));
            if let Some(slot) = list.get_mut(at) {
                *slot = if again { UNKNOWN_TOKEN } else { id };
            }
        }
    }
    for sample in samples {
        for id in sample.prompt_ids.iter_mut().chain(&mut sample.generated_ids) {
            *id = new(*id);
        }
        let whole = !sample.prompt_ids.is_empty() && !sample.prompt_ids.contains(&UNKNOWN_TOKEN);
        sample.prompt_ids_sha256 =
            if whole { ids_sha256(&sample.prompt_ids) } else { String::new() };
    }
    Renumbered {
        unknown: seen.values().filter(|id| **id == UNKNOWN_TOKEN).count() as u64,
        ambiguous: seen.values().filter(|id| ambiguous(**id)).collect::<BTreeSet<_>>().len() as u64,
    }
}
