//! Makes strict JSON of a line that an engine wrote by hand.
//!
//! Such writers print control bytes inside strings as they are, cut UTF-8 in the middle of a character, and print
//! numbers that are not finite as bare words. None of that is JSON, and none of it makes the rest of the row wrong.

use std::fmt::Write as _;

/// A line as strict JSON, and what was changed to make it so.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Tidy {
    /// Strict JSON wherever the line was JSON but for the three habits above.
    pub(super) text: String,
    /// Bytes that are no UTF-8 were replaced by U+FFFD.
    pub(super) lossy: bool,
    /// Control characters inside strings, now escaped.
    pub(super) controls: usize,
    /// Bare words for NaN and infinity, now `null`.
    pub(super) non_finite: usize,
}

/// Longest bare word that can stand for a number: `-Infinity`.
const MAX_WORD: usize = 9;

/// Tidies one line.
pub(super) fn tidy(line: &[u8]) -> Tidy {
    let source = String::from_utf8_lossy(line);
    let lossy = matches!(source, std::borrow::Cow::Owned(_));
    let mut tidy =
        Tidy { text: String::with_capacity(line.len()), lossy, controls: 0, non_finite: 0 };
    let mut chars = source.char_indices().peekable();
    let (mut in_string, mut escaped) = (false, false);
    while let Some((at, c)) = chars.next() {
        if in_string {
            if c < ' ' {
                let _ = write!(tidy.text, "\\u{:04x}", u32::from(c));
                tidy.controls += 1;
            } else {
                tidy.text.push(c);
            }
            in_string = escaped || c != '"';
            escaped = !escaped && c == '\\';
            continue;
        }
        let word = if c == '-' || c.is_ascii_alphabetic() {
            word(source.get(at..).unwrap_or_default())
        } else {
            ""
        };
        if is_non_finite(word) {
            tidy.text.push_str("null");
            tidy.non_finite += 1;
            for _ in 1..word.len() {
                chars.next();
            }
        } else if word.len() > 1 {
            tidy.text.push_str(word);
            for _ in 1..word.len() {
                chars.next();
            }
        } else {
            tidy.text.push(c);
            in_string = c == '"';
        }
    }
    tidy
}

/// The letters at the front of `text`, with a sign before them.
fn word(text: &str) -> &str {
    let sign = usize::from(text.starts_with('-'));
    let letters = text.bytes().skip(sign).take_while(u8::is_ascii_alphabetic).count();
    text.get(..sign + letters).unwrap_or_default()
}

fn is_non_finite(word: &str) -> bool {
    let bare = word.strip_prefix('-').unwrap_or(word);
    word.len() <= MAX_WORD
        && ["nan", "inf", "infinity"].iter().any(|known| bare.eq_ignore_ascii_case(known))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn raw_control_bytes_inside_strings_become_escapes_and_nothing_else_changes() {
        let tidied = tidy(b"{\"t\":\"a\x07b\\\"\x01\", \"n\":1}");
        assert_eq!(tidied.text, "{\"t\":\"a\\u0007b\\\"\\u0001\", \"n\":1}");
        assert_eq!((tidied.controls, tidied.lossy, tidied.non_finite), (2, false, 0));
        let value: serde_json::Value = serde_json::from_str(&tidied.text).unwrap();
        assert_eq!(value["t"], "a\u{7}b\"\u{1}");
    }

    #[test]
    fn words_for_numbers_that_are_not_finite_become_null_outside_strings_only() {
        let tidied = tidy(
            b"{\"a\":nan,\"b\":-inf,\"c\":[Infinity,NaN],\"nan\":\"inf\",\"d\":null,\"e\":true}",
        );
        assert_eq!(
            tidied.text,
            "{\"a\":null,\"b\":null,\"c\":[null,null],\"nan\":\"inf\",\"d\":null,\"e\":true}"
        );
        assert_eq!(tidied.non_finite, 4);
    }

    #[test]
    fn cut_utf8_is_replaced_and_said() {
        let tidied = tidy(b"{\"t\":\"\xe2\x82\"}");
        assert!(tidied.lossy);
        assert_eq!(tidied.text, "{\"t\":\"\u{fffd}\"}");
    }

    #[test]
    fn text_that_is_no_json_stays_what_it_is() {
        assert_eq!(
            tidy(b" 50%|####    | 3/6 [00:01<00:01]").text,
            " 50%|####    | 3/6 [00:01<00:01]"
        );
        assert_eq!(tidy(b"{1e-5:-3}").text, "{1e-5:-3}");
    }
}
