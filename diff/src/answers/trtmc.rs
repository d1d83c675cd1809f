//! The four steps of TensorRT-Model-Connect's dataset benchmark. Its C++ program and its Python driver differ:
//!
//! | | C++ | Python |
//! |---|---|---|
//! | a box or `Final answer:` without an integer | the next step is tried | there is no answer |
//! | `Final answer:` | any case | this case |
//! | leading zeros | kept | dropped, but for step 4 |
//! | digits, blanks, lengths | ASCII, bytes | Unicode, characters |
//!
//! Both end a box at its first closing brace, take the first box, and read the last integer of the text where nothing else is
//! found: a text that was cut off nearly always has an "answer".

use std::sync::LazyLock;

use regex::{Regex, bytes};

use super::rule::{Extracted, Found, Rule};

const BOX: &str = r"\\boxed\{([^}]*)\}";
const FINAL: &str = r"Final answer:\s*([^\n\r]+)";
const INTEGER: &str = r"-?\d+";

/// The phrases of step 3, in the order in which they are tried; the last match of the last phrase that matches counts.
fn phrases() -> [String; 3] {
    let so = ["therefore", "thus", "hence", "so"].join("|");
    let quantity = [
        "answer",
        "area",
        "sum",
        "difference",
        "product",
        "remainder",
        "probability",
        "count",
        "number",
        "value",
        "total",
    ]
    .join("|");
    [
        r"(?i)(?:the\s+)?(?:final\s+)?answer\s*(?:is|=|:)\s*(-?\d+)".to_owned(),
        format!(r"(?i)(?:{so}),?\s+(?:the\s+)?(?:{quantity})[^\n\r]{{0,64}}?(?:is|=)\s*(-?\d+)"),
        r"(?i)m\s*\+\s*n\s*=\s*(-?\d+)".to_owned(),
    ]
}

/// As C++ compiles them: bytes, ASCII classes. The patterns are constants of this file, each with a test, so they compile.
struct Cpp {
    boxed: bytes::Regex,
    last: bytes::Regex,
    integer: bytes::Regex,
    phrases: [bytes::Regex; 3],
}

struct Python {
    boxed: Regex,
    last: Regex,
    integer: Regex,
    phrases: [Regex; 3],
}

static CPP: LazyLock<Option<Cpp>> = LazyLock::new(|| {
    let new = |pattern: &str| bytes::Regex::new(&format!("(?-u){pattern}")).ok();
    let [first, second, third] = phrases();
    Some(Cpp {
        boxed: new(BOX)?,
        last: new(&format!("(?i){FINAL}"))?,
        integer: new(INTEGER)?,
        phrases: [new(&first)?, new(&second)?, new(&third)?],
    })
});

static PYTHON: LazyLock<Option<Python>> = LazyLock::new(|| {
    let new = |pattern: &str| Regex::new(pattern).ok();
    let [first, second, third] = phrases();
    Some(Python {
        boxed: new(BOX)?,
        last: new(FINAL)?,
        integer: new(INTEGER)?,
        phrases: [new(&first)?, new(&second)?, new(&third)?],
    })
});

/// The steps of the C++ program.
pub(super) fn cpp(text: &str) -> Extracted {
    let rule = Rule::TrtmcCpp;
    let none = Extracted::nothing(rule, Found::None);
    let Some(steps) = CPP.as_ref() else { return none };
    let bytes = text.as_bytes();
    let ascii = |part: &[u8]| String::from_utf8_lossy(part).into_owned();
    // Commas go, the first integer stays.
    let integer = |part: &[u8]| {
        let kept: Vec<u8> = part.iter().copied().filter(|byte| *byte != b',').collect();
        steps.integer.find(&kept).map(|found| ascii(found.as_bytes()))
    };
    for (step, pattern) in [(1, &steps.boxed), (2, &steps.last)] {
        let found =
            pattern.captures(bytes).and_then(|found| Some((found.get(0)?.start(), found.get(1)?)));
        if let Some((at, answer)) =
            found.and_then(|(at, part)| Some((at, integer(part.as_bytes())?)))
        {
            return Extracted::answer(rule, &answer, step, at);
        }
    }
    let mut phrase = steps.phrases.iter().filter_map(|pattern| {
        let found = pattern.captures_iter(bytes).last()?;
        Some((found.get(0)?.start(), integer(found.get(1)?.as_bytes())?))
    });
    if let Some((at, answer)) = phrase.next_back() {
        return Extracted::answer(rule, &answer, 3, at);
    }
    steps
        .integer
        .find_iter(bytes)
        .last()
        .map_or(none, |found| Extracted::answer(rule, &ascii(found.as_bytes()), 4, found.start()))
}

/// The steps of the Python driver.
pub(super) fn python(text: &str) -> Extracted {
    let rule = Rule::TrtmcPython;
    let none = Extracted::nothing(rule, Found::None);
    let Some(steps) = PYTHON.as_ref() else { return none };
    let integer = |part: &str| {
        let kept = part.replace(',', "");
        steps.integer.find(&kept).map(|found| as_int(found.as_str()))
    };
    for (step, pattern) in [(1, &steps.boxed), (2, &steps.last)] {
        let found =
            pattern.captures(text).and_then(|found| Some((found.get(0)?.start(), found.get(1)?)));
        if let Some((at, part)) = found {
            return integer(part.as_str())
                .map_or(none, |answer| Extracted::answer(rule, &answer, step, at));
        }
    }
    let mut phrase = steps.phrases.iter().filter_map(|pattern| {
        let found = pattern.captures_iter(text).last()?;
        Some((found.get(0)?.start(), integer(found.get(1)?.as_str())?))
    });
    if let Some((at, answer)) = phrase.next_back() {
        return Extracted::answer(rule, &answer, 3, at);
    }
    steps
        .integer
        .find_iter(text)
        .last()
        .map_or(none, |found| Extracted::answer(rule, found.as_str(), 4, found.start()))
}

/// What Python's `str(int(...))` gives: ASCII digits without leading zeros, and no sign before 0.
fn as_int(found: &str) -> String {
    let (sign, digits) = found.strip_prefix('-').map_or(("", found), |digits| ("-", digits));
    let ascii: String = digits.chars().map(|char| decimal_digit(char).unwrap_or(char)).collect();
    match ascii.trim_start_matches('0') {
        "" => "0".to_owned(),
        kept => format!("{sign}{kept}"),
    }
}

/// A decimal digit of any script as an ASCII one: Unicode encodes the ten of a script in one run that starts at a multiple of
/// ten from its zero, so counting back to the first digit of the run gives its value.
fn decimal_digit(char: char) -> Option<char> {
    if char.is_ascii_digit() {
        return Some(char);
    }
    let python = PYTHON.as_ref()?;
    let is_digit = |code: u32| {
        char::from_u32(code)
            .is_some_and(|char| python.integer.is_match(char.encode_utf8(&mut [0; 4])))
    };
    let code = u32::from(char);
    let below = (0..50).take_while(|step| code.checked_sub(*step).is_some_and(is_digit)).count();
    char::from_digit(u32::try_from(below.checked_sub(1)? % 10).ok()?, 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Answer and step of both.
    fn both(text: &str) -> [Option<(String, u8)>; 2] {
        [cpp(text), python(text)].map(|found| found.answer.zip(found.step))
    }

    fn same(text: &str, answer: &str, step: u8) {
        let wanted = Some((answer.to_owned(), step));
        assert_eq!(both(text), [wanted.clone(), wanted], "{text}");
    }

    #[test]
    fn the_patterns_compile() {
        assert!(CPP.is_some() && PYTHON.is_some());
    }

    #[test]
    fn the_first_box_counts_and_ends_at_its_first_closing_brace() {
        same(r"\boxed{3} and \boxed{5}", "3", 1);
        same(r"\boxed{\frac{1}{2}}", "1", 1);
        same(r"\boxed{1,234}", "1234", 1);
        same(r"\boxed{x = -7, 8}", "-7", 1);
        same(r"\boxed {4} or 9", "9", 4);
    }

    #[test]
    fn a_box_without_an_integer_ends_python_and_not_cpp() {
        let text = "\\boxed{x} Final answer: 12";
        assert_eq!(both(text), [Some(("12".to_owned(), 2)), None]);
        let text = "Final answer: none, so the answer is 3";
        assert_eq!(both(text), [Some(("3".to_owned(), 2)), Some(("3".to_owned(), 2))]);
        let text = "the answer is 3\nFinal answer: none";
        assert_eq!(both(text), [Some(("3".to_owned(), 3)), None]);
    }

    #[test]
    fn leading_zeros_and_case_are_where_the_two_differ() {
        assert_eq!(both(r"\boxed{062}"), [Some(("062".to_owned(), 1)), Some(("62".to_owned(), 1))]);
        assert_eq!(both(r"\boxed{-00}"), [Some(("-00".to_owned(), 1)), Some(("0".to_owned(), 1))]);
        let text = "FINAL ANSWER: 17, not 4";
        assert_eq!(both(text), [Some(("17".to_owned(), 2)), Some(("17".to_owned(), 3))]);
        let text = "FINAL ANSWER: about 17, not 4";
        assert_eq!(both(text), [Some(("17".to_owned(), 2)), Some(("4".to_owned(), 4))]);
        assert_eq!(both("so 007"), [Some(("007".to_owned(), 4)), Some(("007".to_owned(), 4))]);
    }

    #[test]
    fn phrases_come_before_the_last_integer_and_later_ones_win() {
        same("The answer is 4. But the answer = 6, see page 9", "6", 3);
        same("Thus the area of this is 21. The answer is 5.", "21", 3);
        same("m + n = 33, therefore the sum is 40, the answer: 2", "33", 3);
        same("so the total\nis 8", "8", 4);
        same(&format!("hence the value {}is 8 and 9", "x".repeat(63)), "8", 3);
        same(&format!("hence the value {}is 8 and 9", "x".repeat(65)), "9", 4);
    }

    #[test]
    fn the_last_integer_stands_in_for_a_missing_answer_and_is_a_fallback() {
        let found = cpp("it was 1848 - then we stopped at -3 so");
        assert_eq!(
            (found.answer.as_deref(), found.step, found.fallback),
            (Some("-3"), Some(4), true)
        );
        assert!(!cpp(r"\boxed{1}").fallback && !cpp("Final answer: 1").fallback);
        assert_eq!(both("no number"), [None, None]);
        assert_eq!(cpp("").found, Found::None);
    }

    #[test]
    fn digits_of_other_scripts_are_digits_for_python_alone() {
        assert_eq!(both("\\boxed{\u{ff16}\u{ff12}}"), [None, Some(("62".to_owned(), 1))]);
        assert_eq!(
            both("\\boxed{\u{0665}} 4"),
            [Some(("4".to_owned(), 4)), Some(("5".to_owned(), 1))]
        );
        // Mathematical digits: five runs of ten one behind the other.
        assert_eq!(both("\\boxed{\u{1d7e3}}")[1], Some(("1".to_owned(), 1)));
    }

    #[test]
    fn the_distance_in_a_phrase_is_bytes_for_cpp_and_characters_for_python() {
        let text = format!("hence the value {}is 8 and 9", "é".repeat(40));
        assert_eq!(both(&text), [Some(("9".to_owned(), 4)), Some(("8".to_owned(), 3))]);
    }
}
