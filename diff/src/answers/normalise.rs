//! One form for answers that say the same, by a declared rule.

use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::decimal::{self, Value};
use super::plain::plain;

/// What makes two answers equal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Normalise {
    /// Whole numbers, written without point or exponent, within `range` (both ends included) where one is declared. Leading
    /// zeros, a plus sign, thousands commas and a unit do not count; `5.0` and `1e1` are no integer answers.
    Integer {
        /// Smallest and largest answer.
        range: Option<(i64, i64)>,
    },
    /// Numbers by their exact value (`5.0` = `5` = `10/2`); what is no number as text.
    Number,
    /// The text without its TeX setting.
    Text,
}

/// `integer`, `integer:0..999`, `number` or `text`.
impl std::fmt::Display for Normalise {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Integer { range: None } => f.write_str("integer"),
            Self::Integer { range: Some((low, high)) } => write!(f, "integer:{low}..{high}"),
            Self::Number => f.write_str("number"),
            Self::Text => f.write_str("text"),
        }
    }
}

impl FromStr for Normalise {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "integer" => return Ok(Self::Integer { range: None }),
            "number" => return Ok(Self::Number),
            "text" => return Ok(Self::Text),
            _ => {}
        }
        let range = text.strip_prefix("integer:").and_then(|range| range.split_once(".."));
        let ends = range.and_then(|(low, high)| Some((low.parse().ok()?, high.parse().ok()?)));
        match ends {
            Some((low, high)) if low <= high => Ok(Self::Integer { range: Some((low, high)) }),
            _ => Err(format!("`{text}` is none of integer, integer:LOW..HIGH, number, text")),
        }
    }
}

impl Serialize for Normalise {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Normalise {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

/// An answer in the form in which it is compared.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Normal {
    /// The rule.
    pub how: Normalise,
    /// Without TeX setting.
    pub text: String,
    /// What is compared; `None` where the answer is not what the rule asks for.
    pub key: Option<String>,
    /// Unit that was taken off a number, `$` and `%` included.
    pub unit: Option<String>,
    /// Exact value, whatever the rule.
    value: Option<Value>,
    /// Why there is no key, where it is a number that the rule does not take.
    outside: Option<String>,
}

/// Brings an answer into the form of `how`.
#[must_use]
pub fn normalise(raw: &str, how: Normalise) -> Normal {
    let text = plain(raw);
    let bare = without_group(&text);
    let (number, unit) = split_unit(raw, bare);
    let number = if is_list(raw) { String::new() } else { number };
    let value = decimal::value(&number);
    let unit = if value.is_some() { unit } else { None };
    let mut normal = Normal { how, text, key: None, unit, value, outside: None };
    match how {
        Normalise::Text => normal.key = Some(normal.text.clone()),
        Normalise::Number => {
            let shown = normal.value.as_ref().map(Value::to_string);
            normal.key = Some(shown.unwrap_or_else(|| normal.text.clone()));
        }
        Normalise::Integer { range } => match decimal::integer(&number) {
            Some(found) => match range {
                Some((low, high)) if !within(&found, low, high) => {
                    normal.outside = Some(format!("{found} is outside of {low}..{high}"));
                }
                _ => normal.key = Some(found),
            },
            None => {
                normal.outside = normal
                    .value
                    .is_some()
                    .then(|| "a number that is not written as an integer".to_owned());
            }
        },
    }
    normal
}

/// A comma with a blank behind it stands between answers, not between thousands.
fn is_list(raw: &str) -> bool {
    raw.match_indices(',').any(|(at, _)| {
        let rest = raw.get(at + 1..).unwrap_or_default();
        rest.starts_with([' ', '\n', '~'])
            || ["\\ ", "\\;", "\\:", "\\q"].iter().any(|blank| rest.starts_with(blank))
    })
}

/// Digits beyond i64 are outside of every range.
fn within(integer: &str, low: i64, high: i64) -> bool {
    integer.parse::<i64>().is_ok_and(|value| (low..=high).contains(&value))
}

/// `{62}` is 62; a group with a comma is a set and stays.
fn without_group(text: &str) -> &str {
    let mut bare = text;
    while let Some(inside) = bare.strip_prefix('{').and_then(|rest| rest.strip_suffix('}')) {
        if inside.contains([',', '{', '}']) && !(inside.starts_with('{') && inside.ends_with('}')) {
            break;
        }
        bare = inside.trim();
    }
    bare
}

/// Units that count as such wherever they stand behind a number.
const UNITS: [&str; 44] = [
    "degrees", "degree", "percent", "dollars", "dollar", "cents", "cent", "points", "units",
    "unit", "inches", "inch", "feet", "foot", "ft", "yards", "miles", "mile", "mm", "cm", "km",
    "meters", "meter", "metres", "kg", "grams", "gram", "liters", "litres", "seconds", "second",
    "sec", "minutes", "minute", "min", "hours", "hour", "days", "day", "weeks", "months", "years",
    "mph", "m",
];

/// A number and the unit behind or before it. Any word counts as a unit that was set as text (`5\text{ apples}`); others only
/// where they are known, since `5x` is no number with a unit.
fn split_unit(raw: &str, text: &str) -> (String, Option<String>) {
    let money = |text: &str, sign: &str| {
        let (negative, rest) = decimal::signed(text);
        rest.strip_prefix(sign)
            .map(|rest| format!("{}{}", if negative { "-" } else { "" }, rest.trim_start()))
    };
    for sign in ["$", "€", "£"] {
        if let Some(number) = money(text, sign) {
            return (number, Some(sign.to_owned()));
        }
    }
    for (written, name) in [
        ("^{\\circ}", "degrees"),
        ("^\\circ", "degrees"),
        ("\\degree", "degrees"),
        ("°", "degrees"),
        ("%", "percent"),
    ] {
        if let Some(number) = text.strip_suffix(written) {
            return (number.trim_end().to_owned(), Some(name.to_owned()));
        }
    }
    let power = text.find('^').map_or(text, |at| text.get(..at).unwrap_or(text));
    let words = power.trim_end_matches(|char: char| char.is_alphabetic() || char == ' ');
    let unit = text.get(words.len()..).unwrap_or_default().trim();
    let name = unit.split('^').next().unwrap_or_default().trim().to_lowercase();
    let as_text = raw.contains("\\text") || raw.contains("\\mathrm") || raw.contains("\\mbox");
    let known =
        name.split(' ').all(|word| UNITS.contains(&word) || matches!(word, "square" | "cubic"));
    let letters = !name.is_empty() && name.chars().all(|char| char.is_alphabetic() || char == ' ');
    let is_unit =
        letters && words.ends_with(|char: char| char.is_ascii_digit()) && (as_text || known);
    if is_unit { (words.to_owned(), Some(unit.to_lowercase())) } else { (text.to_owned(), None) }
}

/// Two answers side by side.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Comparison {
    /// Equal by the declared rule; `null` where the gold answer is not what the rule asks for.
    pub equal: Option<bool>,
    /// Equal as text, byte for byte (outer blanks aside).
    pub same_text: bool,
    /// Gold as compared.
    pub gold: Option<String>,
    /// Answer as compared.
    pub answer: Option<String>,
    /// What the rule decided that plain reading would not: one line.
    pub note: Option<String>,
}

/// Compares an answer with the gold answer by `how`.
#[must_use]
pub fn compare(gold: &str, answer: &str, how: Normalise) -> Comparison {
    let (left, right) = (normalise(gold, how), normalise(answer, how));
    let units = match (&left.unit, &right.unit) {
        (Some(left), Some(right)) => left == right,
        _ => true,
    };
    let equal = left.key.as_ref().map(|key| right.key.as_ref() == Some(key) && units);
    let note = match equal {
        None => Some(format!(
            "gold `{gold}` is no {how} answer{}",
            left.outside.as_ref().map_or_else(String::new, |why| format!(": {why}"))
        )),
        Some(false) if left.value.is_some() && left.value == right.value => Some(if units {
            format!(
                "equal as numbers, not by `{how}`: {}",
                right.outside.as_deref().unwrap_or("written otherwise")
            )
        } else {
            "the same number with another unit".to_owned()
        }),
        Some(false) => right.outside.clone(),
        Some(true) => right
            .unit
            .as_ref()
            .filter(|_| left.unit.is_none())
            .map(|unit| format!("unit `{unit}` not counted")),
    };
    Comparison {
        equal,
        same_text: gold.trim() == answer.trim(),
        gold: left.key,
        answer: right.key,
        note,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const AIME: Normalise = Normalise::Integer { range: Some((0, 999)) };

    fn equal(gold: &str, answer: &str, how: Normalise) -> Option<bool> {
        compare(gold, answer, how).equal
    }

    #[test]
    fn rules_are_written_as_they_are_read() {
        for text in ["integer", "integer:0..999", "integer:-5..-1", "number", "text"] {
            assert_eq!(text.parse::<Normalise>().unwrap().to_string(), text);
        }
        for text in ["", "int", "integer:", "integer:9..0", "integer:0..x", "Number"] {
            assert!(text.parse::<Normalise>().unwrap_err().contains("integer:LOW..HIGH"), "{text}");
        }
        let json = serde_json::to_string(&AIME).unwrap();
        assert_eq!(
            (json.as_str(), serde_json::from_str(&json).ok()),
            ("\"integer:0..999\"", Some(AIME))
        );
    }

    #[test]
    fn leading_zeros_signs_commas_and_units_do_not_count_for_integers() {
        for (gold, answer) in [
            ("62", "062"),
            ("016", "16"),
            ("0", "000"),
            ("62", r"\text{062}"),
            ("62", "{{62}}"),
            ("62", "$62$"),
            ("62", "62."),
            ("62", r"62^\circ"),
            ("62", r"62^{\circ}"),
            ("62", "62 degrees"),
            ("62", r"62 \text{ cm}"),
            ("62", r"\$62"),
            ("62", r"62\%"),
            ("62", "+62"),
            ("62", r"62\text{ apples}"),
            ("62", r"62\text{ cm}^2"),
            ("62", "62 square units"),
        ] {
            assert_eq!(equal(gold, answer, AIME), Some(true), "{answer}");
        }
        for (gold, answer) in [
            ("62", "620"),
            ("7", "-07"),
            ("62", "62x"),
            ("62", "6 2"),
            ("62", ""),
            ("62", "62, 63"),
            ("1", "1, 000"),
            ("6", r"6\pi"),
        ] {
            assert_eq!(equal(gold, answer, AIME), Some(false), "{answer}");
        }
        let any = Normalise::Integer { range: None };
        assert_eq!(
            (equal("1234", "1,234", any), equal("1234", r"1,\!234", any)),
            (Some(true), Some(true))
        );
        assert_eq!(
            (equal("1234", "1, 234", any), equal("2", r"\text{2^{10}}", any)),
            (Some(false), Some(false))
        );
    }

    #[test]
    fn numbers_that_are_no_integer_answers_are_told_apart_and_shown() {
        let found = compare("005", "5.0", AIME);
        assert_eq!(
            (found.equal, found.gold.as_deref(), found.answer.as_deref()),
            (Some(false), Some("5"), None)
        );
        assert_eq!(
            found.note.as_deref(),
            Some(
                "equal as numbers, not by `integer:0..999`: a number that is not written as an integer"
            )
        );
        assert!(compare("10", "1e1", AIME).note.unwrap().starts_with("equal as numbers"));
        assert_eq!(compare("7", "-07", AIME).note.as_deref(), Some("-7 is outside of 0..999"));
        assert_eq!(compare("1", "1000", AIME).note.as_deref(), Some("1000 is outside of 0..999"));
        for (gold, answer) in
            [("005", "5.0"), ("10", "1e1"), ("0.5", r"\frac{1}{2}"), ("1234", "1,234.0")]
        {
            assert_eq!(equal(gold, answer, Normalise::Number), Some(true), "{answer}");
        }
    }

    #[test]
    fn a_gold_answer_that_the_rule_does_not_take_leaves_the_row_open() {
        let found = compare(r"\frac{1}{2}", "1/2", AIME);
        assert_eq!(found.equal, None);
        assert_eq!(
            found.note.as_deref(),
            Some(
                r"gold `\frac{1}{2}` is no integer:0..999 answer: a number that is not written as an integer"
            )
        );
        assert_eq!(equal("1000", "1000", AIME), None);
    }

    #[test]
    fn units_must_agree_where_both_are_given() {
        let found = compare("5 cm", "5 km", Normalise::Number);
        assert_eq!(
            (found.equal, found.note.as_deref()),
            (Some(false), Some("the same number with another unit"))
        );
        let found = compare("5", "5 cm", Normalise::Number);
        assert_eq!(
            (found.equal, found.note.as_deref()),
            (Some(true), Some("unit `cm` not counted"))
        );
        assert_eq!(equal("5 cm", r"5\text{ cm}", Normalise::Number), Some(true));
    }

    #[test]
    fn text_is_compared_without_its_setting() {
        assert_eq!(equal("{1,2}", r"\{1,2\}", Normalise::Text), Some(true));
        assert_eq!(equal("{1,2}", r"\{ 1, 2 \}", Normalise::Number), Some(true));
        assert_eq!(equal("62", "062", Normalise::Text), Some(false));
        assert_eq!(equal(r"\frac{1}{2}", r"\dfrac{1}{2}", Normalise::Text), Some(true));
        let found = compare(" 62", "62 ", Normalise::Text);
        assert!(found.same_text && found.equal == Some(true));
        assert!(!compare("62", "062", AIME).same_text);
    }
}
