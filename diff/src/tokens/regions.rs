//! Two tokenisations of one text, aligned by offset.

use std::ops::Range;

use serde::Serialize;

/// A stretch of the text that the two sides cut into other tokens. Characters are Unicode scalar values.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Region {
    /// First character.
    pub first_char: usize,
    /// Last character, included.
    pub last_char: usize,
    /// Text of the stretch.
    pub text: String,
    /// Tokens on the left, by index.
    pub left: Range<usize>,
    /// Tokens on the right, by index.
    pub right: Range<usize>,
    /// Pieces on the left.
    pub left_pieces: Vec<String>,
    /// Pieces on the right.
    pub right_pieces: Vec<String>,
}

/// Stretches between common token ends in which the cuts or the ids differ. `left` and `right` must have equal bytes.
pub(super) fn regions(
    (left, left_ids): (&[Vec<u8>], Option<&[u32]>),
    (right, right_ids): (&[Vec<u8>], Option<&[u32]>),
) -> Vec<Region> {
    let text = left.concat();
    let mut found = Vec::new();
    let (mut l, mut r) = (0..0, 0..0);
    let (mut from, mut left_end, mut right_end) = (0, 0, 0);
    while l.end < left.len() || r.end < right.len() {
        if left_end <= right_end && l.end < left.len() {
            left_end += left.get(l.end).map_or(0, Vec::len);
            l.end += 1;
        } else if r.end < right.len() {
            right_end += right.get(r.end).map_or(0, Vec::len);
            r.end += 1;
        } else {
            left_end += left.get(l.end).map_or(0, Vec::len);
            l.end += 1;
        }
        let more_left = left.get(l.end).is_some_and(Vec::is_empty);
        let more_right = right.get(r.end).is_some_and(Vec::is_empty);
        if left_end != right_end || r.is_empty() || more_left || more_right {
            continue;
        }
        let part = |ids: Option<&[u32]>, at: &Range<usize>| {
            ids.and_then(|ids| ids.get(at.clone()).map(<[u32]>::to_vec))
        };
        let ids_differ =
            part(left_ids, &l) != part(right_ids, &r) && left_ids.is_some() && right_ids.is_some();
        if left.get(l.clone()) != right.get(r.clone()) || ids_differ {
            found.push(region(&text, from..left_end, (left, l.clone()), (right, r.clone())));
        }
        from = left_end;
        l = l.end..l.end;
        r = r.end..r.end;
    }
    found
}

fn region(
    text: &[u8],
    at: Range<usize>,
    (left, l): (&[Vec<u8>], Range<usize>),
    (right, r): (&[Vec<u8>], Range<usize>),
) -> Region {
    let characters =
        |to: usize| String::from_utf8_lossy(text.get(..to).unwrap_or_default()).chars().count();
    let pieces = |side: &[Vec<u8>], range: &Range<usize>| {
        side.get(range.clone())
            .unwrap_or_default()
            .iter()
            .map(|piece| String::from_utf8_lossy(piece).into_owned())
            .collect()
    };
    let first_char = characters(at.start);
    Region {
        first_char,
        last_char: characters(at.end).saturating_sub(1).max(first_char),
        text: String::from_utf8_lossy(text.get(at).unwrap_or_default()).into_owned(),
        left_pieces: pieces(left, &l),
        right_pieces: pieces(right, &r),
        left: l,
        right: r,
    }
}
