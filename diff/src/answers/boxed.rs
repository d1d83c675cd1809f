//! The strict rule: the last box, with its braces balanced.

use std::collections::BTreeMap;

use super::plain;
use super::rule::{Extracted, Found, Rule};

pub(super) const BOXED: &str = "\\boxed";
pub(super) const FBOX: &str = "\\fbox";

/// A box as it stands in a text.
struct Open<'a> {
    /// Offset of the macro.
    at: usize,
    /// Content up to the closing brace; `None` where the text ends first.
    content: Option<&'a str>,
}

/// Last box of one of `macros`.
///
/// A macro is followed by blanks or none and a brace; `\{` and `\}` are characters, not braces. A box that the text leaves open
/// is `cut off` whatever stands in it, and an empty one is `empty`; in neither case an earlier box steps in.
pub(super) fn last(text: &str, rule: Rule, macros: &[&str]) -> Extracted {
    let boxes = boxes(text, macros);
    let Some(last) = boxes.last() else { return Extracted::nothing(rule, Found::None) };
    let answer = last.content.map(str::trim);
    match answer {
        Some(answer) if !plain::is_empty(answer) => Extracted::answer(rule, answer, 1, last.at),
        other => {
            let found = if other.is_some() { Found::Empty } else { Found::CutOff };
            let earlier = boxes
                .iter()
                .rev()
                .filter_map(|one| one.content)
                .find(|content| !plain::is_empty(content));
            Extracted {
                at: Some(last.at),
                earlier: earlier.map(|content| content.trim().to_owned()),
                ..Extracted::nothing(rule, found)
            }
        }
    }
}

/// Boxes in order of their macros; one inside another is found after it.
fn boxes<'a>(text: &'a str, macros: &[&str]) -> Vec<Open<'a>> {
    let pairs = braces(text);
    let mut found = Vec::new();
    for (at, _) in text.match_indices('\\') {
        let rest = text.get(at..).unwrap_or_default();
        let Some(name) = macros.iter().find(|name| rest.starts_with(**name)) else {
            // A text that ends inside the macro's name (`\box`) ends inside a box.
            if rest.len() >= "\\box".len() && macros.iter().any(|name| name.starts_with(rest)) {
                found.push(Open { at, content: None });
            }
            continue;
        };
        let after = rest.get(name.len()..).unwrap_or_default();
        let body = after.trim_start();
        if body.is_empty() {
            found.push(Open { at, content: None });
        } else if body.starts_with('{') {
            let open = text.len() - body.len();
            let content = pairs.get(&open).and_then(|close| text.get(open + 1..*close));
            found.push(Open { at, content });
        }
    }
    found
}

/// Offset of each brace that is closed, with the offset of the one that closes it. A brace after a backslash is a character.
pub(super) fn braces(text: &str) -> BTreeMap<usize, usize> {
    let (mut pairs, mut open) = (BTreeMap::new(), Vec::new());
    let mut escaped = false;
    for (at, byte) in text.bytes().enumerate() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = true,
            b'{' => open.push(at),
            b'}' => {
                if let Some(start) = open.pop() {
                    pairs.insert(start, at);
                }
            }
            _ => {}
        }
    }
    pairs
}

#[cfg(test)]
mod tests {
    use super::super::{Found, Rule, extract};

    fn strict(text: &str) -> (Found, Option<String>) {
        let found = extract(text, Rule::StrictBoxed);
        assert!(!found.fallback);
        (found.found, found.answer)
    }

    fn answer(text: &str) -> (Found, Option<String>) {
        (Found::Answer, Some(text.to_owned()))
    }

    #[test]
    fn braces_are_balanced_and_the_last_box_counts() {
        assert_eq!(strict(r"Thus \boxed{\frac{1}{2}}."), answer(r"\frac{1}{2}"));
        assert_eq!(strict(r"First \boxed{3}, but finally \boxed{5}"), answer("5"));
        assert_eq!(strict(r"\boxed{ \{1,2\} }"), answer(r"\{1,2\}"));
        assert_eq!(strict(r"\boxed{ 1 \\} { }"), answer(r"1 \\"));
        assert_eq!(strict(r"\boxed{a \boxed{b}}"), answer("b"));
        assert_eq!(strict("\\boxed\n {4}"), answer("4"));
        assert_eq!(strict(r"ü\boxed{ü}"), answer("ü"));
        assert_eq!(strict(r"a line break \\boxed{6}"), answer("6"));
    }

    #[test]
    fn an_open_box_is_cut_off_and_an_empty_one_is_empty_and_neither_is_an_answer() {
        for open in
            [r"\boxed{7", r"\boxed{7 \text{cm}", r"\boxed", r"\boxed  ", r"\boxe", r"\boxed{7\}"]
        {
            let found = extract(&format!(r"\boxed{{3}} {open}"), Rule::StrictBoxed);
            assert_eq!(
                (found.found, found.answer.as_deref(), found.step),
                (Found::CutOff, None, None),
                "{open}"
            );
            assert_eq!((found.earlier.as_deref(), found.at), (Some("3"), Some(10)), "{open}");
        }
        for empty in [r"\boxed{}", r"\boxed{ }", r"\boxed{\text{ }}", r"\boxed{{}}", r"\boxed{\,}"]
        {
            let found = extract(&format!(r"\boxed {{4}} and {empty}"), Rule::StrictBoxed);
            assert_eq!((found.found, found.answer.as_deref()), (Found::Empty, None), "{empty}");
            assert_eq!(found.earlier.as_deref(), Some("4"), "{empty}");
        }
        assert_eq!(extract(r"\boxed{", Rule::StrictBoxed).earlier, None);
    }

    #[test]
    fn without_a_box_there_is_no_answer() {
        for text in [
            "no box, the answer is 8",
            "5",
            "",
            r"\boxedness{5}",
            r"\frac{1}{2}",
            "boxed{5}",
            r"\box",
        ] {
            let wanted = if text == r"\box" { Found::CutOff } else { Found::None };
            assert_eq!(strict(text), (wanted, None), "{text}");
        }
    }

    #[test]
    fn fbox_counts_only_where_it_is_declared() {
        assert_eq!(strict(r"\fbox{9}"), (Found::None, None));
        let found = extract(r"\boxed{8} \fbox{9}", Rule::StrictBoxedFbox);
        assert_eq!((found.answer.as_deref(), found.rule), (Some("9"), Rule::StrictBoxedFbox));
    }

    #[test]
    fn many_open_boxes_take_no_time_to_speak_of() {
        let text = r"\boxed{".repeat(20_000);
        assert_eq!(extract(&text, Rule::StrictBoxed).found, Found::CutOff);
    }
}
