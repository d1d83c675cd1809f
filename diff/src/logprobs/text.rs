//! The text of a choice against the texts of its entries.

use lockstep_traces::logprobs::Entry;

/// How far a text and its entries go together. Offsets count characters (Unicode scalar values).
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Fit {
    /// The entries make up the text.
    Whole,
    /// The text lacks this many entries at the end: end markers, as a rule.
    EntriesBehind(usize),
    /// The text lacks this many blanks at the front.
    BlanksLost(usize),
    /// Text that no entry holds, before the entry of that index (or behind the last one).
    Gap {
        /// Entry before which it stands.
        before: usize,
        /// Where it starts.
        offset: usize,
        /// What it is.
        text: String,
    },
    /// The entry of that index does not stand in the text.
    Foreign {
        /// Entry.
        entry: usize,
        /// Where it was looked for.
        offset: usize,
    },
    /// Entries are parts of characters and carry no bytes.
    Unknown,
}

/// Bytes of an entry; `None` where it holds a replacement character and no bytes.
fn bytes(entry: &Entry) -> Option<Vec<u8>> {
    if let Some(bytes) = &entry.token.bytes {
        return Some(bytes.clone());
    }
    entry
        .token
        .text
        .as_ref()
        .filter(|text| !text.contains('\u{FFFD}'))
        .map(|text| text.clone().into_bytes())
}

/// Text put together from the entries; `None` where an entry has none.
pub(super) fn rebuilt(entries: &[Entry]) -> Option<String> {
    let parts: Vec<Vec<u8>> = entries
        .iter()
        .map(|entry| bytes(entry).or_else(|| entry.token.text.clone().map(String::into_bytes)))
        .collect::<Option<_>>()?;
    Some(String::from_utf8_lossy(&parts.concat()).into_owned())
}

/// Holds a text against its entries.
pub(super) fn fit(text: &str, entries: &[Entry]) -> Fit {
    let Some(parts) = entries.iter().map(bytes).collect::<Option<Vec<_>>>() else {
        return Fit::Unknown;
    };
    let whole = parts.concat();
    let text_bytes = text.as_bytes();
    if whole == text_bytes {
        return Fit::Whole;
    }
    let blanks = whole.iter().take_while(|byte| **byte == b' ').count();
    if let Some(lost) = (1..=blanks).find(|lost| whole.get(*lost..) == Some(text_bytes)) {
        return Fit::BlanksLost(lost);
    }
    let characters = |at: usize| {
        String::from_utf8_lossy(text_bytes.get(..at).unwrap_or_default()).chars().count()
    };
    let mut at = 0;
    for (index, part) in parts.iter().enumerate() {
        let rest = text_bytes.get(at..).unwrap_or_default();
        if rest.starts_with(part) {
            at += part.len();
            continue;
        }
        if rest.is_empty() {
            return Fit::EntriesBehind(parts.len() - index);
        }
        let found = rest.windows(part.len().max(1)).position(|window| window == part.as_slice());
        return match found {
            Some(length) => Fit::Gap {
                before: index,
                offset: characters(at),
                text: String::from_utf8_lossy(rest.get(..length).unwrap_or_default()).into_owned(),
            },
            None => Fit::Foreign { entry: index, offset: characters(at) },
        };
    }
    let rest = text_bytes.get(at..).unwrap_or_default();
    Fit::Gap {
        before: parts.len(),
        offset: characters(at),
        text: String::from_utf8_lossy(rest).into_owned(),
    }
}
