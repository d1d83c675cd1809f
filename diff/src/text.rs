//! Difference of token streams, by ids; the text is only shown.

use similar::{Algorithm, DiffOp, capture_diff_slices};

use crate::report::{TextDiff, TokenOp, TokenOpKind};

/// Turns ids into text; `None` where they cannot be decoded.
pub type Decode<'a> = dyn Fn(&[u32]) -> Option<String> + Sync + 'a;

/// Longest stretch (tokens of both sides together, after the common head and tail) that is aligned token by token; the
/// alignment takes time quadratic in it.
const LONGEST: usize = 6000;

/// Tokens shown around the first difference.
const AROUND: usize = 24;

/// Compares generated ids; `decode` is asked for the text where the caller has a tokenizer.
#[must_use]
pub fn diff(left: &[u32], right: &[u32], decode: Option<&Decode<'_>>) -> TextDiff {
    let head = left.iter().zip(right).take_while(|(l, r)| l == r).count();
    let ids_equal = left == right;
    let first_token = (!ids_equal).then_some(head);
    let (ops, ops_cut) = operations(left, right, head);
    let texts = decode.and_then(|decode| Some((decode(left)?, decode(right)?)));
    let first_char = texts.as_ref().and_then(|(l, r)| first_character(l, r));
    let around = |ids: &[u32]| {
        let from = head.saturating_sub(AROUND).min(ids.len());
        let to = (head + AROUND).min(ids.len());
        decode.zip(ids.get(from..to)).and_then(|(decode, part)| decode(part))
    };
    TextDiff {
        left_tokens: left.len(),
        right_tokens: right.len(),
        ids_equal,
        text_equal: texts.as_ref().map(|(l, r)| l == r),
        first_token,
        first_char,
        first_char_token: first_char
            .zip(decode)
            .and_then(|(at, decode)| token_of_character(left, at, decode)),
        ops,
        ops_cut,
        left_excerpt: if ids_equal { None } else { around(left) },
        right_excerpt: if ids_equal { None } else { around(right) },
    }
}

fn operations(left: &[u32], right: &[u32], head: usize) -> (Vec<TokenOp>, bool) {
    let (rest_l, rest_r) =
        (left.get(head..).unwrap_or_default(), right.get(head..).unwrap_or_default());
    let tail = rest_l.iter().rev().zip(rest_r.iter().rev()).take_while(|(l, r)| l == r).count();
    let middle_l = rest_l.get(..rest_l.len() - tail).unwrap_or_default();
    let middle_r = rest_r.get(..rest_r.len() - tail).unwrap_or_default();
    let mut ops = Vec::new();
    let mut push = |kind, left: std::ops::Range<usize>, right: std::ops::Range<usize>| {
        if !(left.is_empty() && right.is_empty()) {
            ops.push(TokenOp { kind, left, right });
        }
    };
    push(TokenOpKind::Equal, 0..head, 0..head);
    let (end_l, end_r) = (head + middle_l.len(), head + middle_r.len());
    let cut = middle_l.len() + middle_r.len() > LONGEST;
    if cut || middle_l.is_empty() || middle_r.is_empty() {
        push(kind_of(middle_l.len(), middle_r.len()), head..end_l, head..end_r);
    } else {
        for op in capture_diff_slices(Algorithm::Myers, middle_l, middle_r) {
            let kind = match op {
                DiffOp::Equal { .. } => TokenOpKind::Equal,
                DiffOp::Delete { .. } => TokenOpKind::Delete,
                DiffOp::Insert { .. } => TokenOpKind::Insert,
                DiffOp::Replace { .. } => TokenOpKind::Replace,
            };
            let (l, r) = (op.old_range(), op.new_range());
            push(kind, l.start + head..l.end + head, r.start + head..r.end + head);
        }
    }
    push(TokenOpKind::Equal, end_l..left.len(), end_r..right.len());
    (ops, cut)
}

const fn kind_of(left: usize, right: usize) -> TokenOpKind {
    match (left, right) {
        (0, _) => TokenOpKind::Insert,
        (_, 0) => TokenOpKind::Delete,
        _ => TokenOpKind::Replace,
    }
}

/// Index of the first character (Unicode scalar value) that differs; `None` where the texts are equal.
fn first_character(left: &str, right: &str) -> Option<usize> {
    if left == right {
        return None;
    }
    Some(left.chars().zip(right.chars()).take_while(|(l, r)| l == r).count())
}

/// First token whose prefix decodes to more than `at` characters. Prefixes are decoded whole, since a token's text may
/// depend on what stands before it; the length of decoded prefixes is taken as rising.
fn token_of_character(ids: &[u32], at: usize, decode: &Decode<'_>) -> Option<usize> {
    let (mut low, mut high) = (0, ids.len());
    while low < high {
        let middle = low + (high - low) / 2;
        let characters = decode(ids.get(..=middle)?)?.chars().count();
        if characters > at { high = middle } else { low = middle + 1 }
    }
    (low < ids.len()).then_some(low)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spell(ids: &[u32]) -> Option<String> {
        ids.iter()
            .map(|id| match id {
                1 => Some("ab"),
                2 => Some("é"),
                3 => Some("cd"),
                4 => Some("cx"),
                5 => Some("c"),
                6 => Some("d"),
                _ => None,
            })
            .collect()
    }

    #[test]
    fn the_first_character_that_differs_is_mapped_to_its_token() {
        let found = diff(&[1, 2, 3, 1], &[1, 2, 4, 1], Some(&spell));
        assert_eq!(
            (found.first_token, found.first_char, found.first_char_token),
            (Some(2), Some(4), Some(2))
        );
        let kinds: Vec<TokenOpKind> = found.ops.iter().map(|op| op.kind).collect();
        assert_eq!(kinds, [TokenOpKind::Equal, TokenOpKind::Replace, TokenOpKind::Equal]);
        assert_eq!(found.left_excerpt.as_deref(), Some("abécdab"));
    }

    #[test]
    fn equal_text_from_other_ids_is_not_equality() {
        let found = diff(&[1, 3], &[1, 5, 6], Some(&spell));
        assert_eq!((found.ids_equal, found.text_equal), (false, Some(true)));
        assert_eq!((found.first_token, found.first_char), (Some(1), None));
    }

    #[test]
    fn insertions_and_deletions_are_aligned_on_ids() {
        let found = diff(&[7, 8, 9, 10, 11], &[7, 9, 10, 12, 11], None);
        let shape: Vec<(TokenOpKind, usize, usize)> =
            found.ops.iter().map(|op| (op.kind, op.left.len(), op.right.len())).collect();
        assert_eq!(
            shape,
            [
                (TokenOpKind::Equal, 1, 1),
                (TokenOpKind::Delete, 1, 0),
                (TokenOpKind::Equal, 2, 2),
                (TokenOpKind::Insert, 0, 1),
                (TokenOpKind::Equal, 1, 1),
            ]
        );
        assert!(found.text_equal.is_none());
    }

    #[test]
    fn streams_too_long_to_align_are_one_replacement_and_say_so() {
        let left: Vec<u32> = (0..5000).collect();
        let right: Vec<u32> = (10_000..15_000).collect();
        let found = diff(&left, &right, None);
        assert!(found.ops_cut);
        assert_eq!(found.ops.len(), 1);
    }

    #[test]
    fn equal_streams_have_one_equal_stretch() {
        let found = diff(&[1, 2], &[1, 2], Some(&spell));
        assert!(found.ids_equal && found.first_token.is_none() && found.left_excerpt.is_none());
        assert_eq!(found.ops.len(), 1);
    }
}
