//! Numbers as they are written, compared exactly: no rounding to a float on the way.

use std::fmt;

/// An exact number.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Value {
    /// Reduced fraction, denominator above 0. Every number whose parts fit in 128 bits is held like this.
    Ratio(i128, i128),
    /// A longer decimal: sign, digits without zeros at either end, power of ten.
    Long { negative: bool, digits: String, exponent: i64 },
}

/// Whole numbers are written without a denominator.
impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ratio(above, 1) => write!(f, "{above}"),
            Self::Ratio(above, below) => write!(f, "{above}/{below}"),
            Self::Long { negative, digits, exponent } => {
                write!(f, "{}{digits}e{exponent}", if *negative { "-" } else { "" })
            }
        }
    }
}

/// Digits of a whole number without sign: `1234` or `1,234`; commas stand before every third digit or nowhere.
pub(super) fn whole(text: &str) -> Option<String> {
    let groups: Vec<&str> = text.split(',').collect();
    let digits = |part: &&str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    if !groups.iter().all(digits) {
        return None;
    }
    if let [first, rest @ ..] = groups.as_slice()
        && !rest.is_empty()
        && (first.len() > 3 || rest.iter().any(|part| part.len() != 3))
    {
        return None;
    }
    Some(groups.concat())
}

/// A sign and what follows it.
pub(super) fn signed(text: &str) -> (bool, &str) {
    match text.as_bytes().first() {
        Some(b'-') => (true, text.get(1..).unwrap_or_default().trim_start()),
        Some(b'+') => (false, text.get(1..).unwrap_or_default().trim_start()),
        _ => (false, text),
    }
}

/// A whole number as written: sign, digits without leading zeros. No point, no exponent, no fraction.
pub(super) fn integer(text: &str) -> Option<String> {
    let (negative, rest) = signed(text);
    let digits = whole(rest)?;
    let kept = digits.trim_start_matches('0');
    Some(match (negative, kept) {
        (_, "") => "0".to_owned(),
        (true, kept) => format!("-{kept}"),
        (false, kept) => kept.to_owned(),
    })
}

/// A number: `12`, `-1,234.50`, `1e1`, `.5`, `3/4`, `\frac{3}{4}`, `-\frac34`.
pub(super) fn value(text: &str) -> Option<Value> {
    let (negative, rest) = signed(text);
    let (above, below) = match fraction(rest) {
        Some((above, below)) => (ratio_of(above)?, ratio_of(below)?),
        None => return decimal(negative, rest),
    };
    // (a/b) / (c/d) = a d / (b c)
    let ((a, b), (c, d)) = (above, below);
    let sign = if negative { -1 } else { 1 };
    reduce(a.checked_mul(d)?.checked_mul(sign)?, b.checked_mul(c)?)
}

/// Both parts of a written fraction.
fn fraction(text: &str) -> Option<(&str, &str)> {
    if let Some(body) = text.strip_prefix("\\frac") {
        if body.starts_with('{') {
            let close = *super::boxed::braces(body).get(&0)?;
            let rest = body.get(close + 1..)?.trim_start();
            let below =
                rest.strip_prefix('{').and_then(|rest| rest.strip_suffix('}')).unwrap_or(rest);
            return Some((body.get(1..close)?.trim(), below.trim()));
        }
        // \frac34: two single digits.
        let mut chars = body.trim_start().char_indices();
        let (_, (second, _)) = (chars.next()?, chars.next()?);
        return Some((body.trim_start().get(..second)?, body.trim_start().get(second..)?));
    }
    let (above, below) = text.split_once('/')?;
    Some((above.trim(), below.trim()))
}

fn ratio_of(text: &str) -> Option<(i128, i128)> {
    let (negative, rest) = signed(text);
    match decimal(negative, rest)? {
        Value::Ratio(above, below) => Some((above, below)),
        Value::Long { .. } => None,
    }
}

fn decimal(negative: bool, text: &str) -> Option<Value> {
    let (mantissa, exponent) = match text.split_once(['e', 'E']) {
        Some((mantissa, exponent)) => {
            let (minus, digits) = signed(exponent);
            if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
                return None;
            }
            // An exponent beyond i64 is no number that anyone wrote on purpose.
            let size = digits.parse::<i64>().ok()?;
            (mantissa, if minus { -size } else { size })
        }
        None => (text, 0),
    };
    let (before, after) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    if (before.is_empty() && after.is_empty()) || !after.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let before = if before.is_empty() { String::new() } else { whole(before)? };
    let joined = before + after;
    let exponent = exponent.checked_sub(i64::try_from(after.len()).ok()?)?;
    let digits = joined.trim_end_matches('0');
    let exponent = exponent.checked_add(i64::try_from(joined.len() - digits.len()).ok()?)?;
    let digits = digits.trim_start_matches('0');
    if digits.is_empty() {
        return Some(Value::Ratio(0, 1));
    }
    Some(short(negative, digits, exponent).unwrap_or_else(|| Value::Long {
        negative,
        digits: digits.to_owned(),
        exponent,
    }))
}

fn short(negative: bool, digits: &str, exponent: i64) -> Option<Value> {
    let size = digits.parse::<i128>().ok()?;
    let above = if negative { -size } else { size };
    let power = 10_i128.checked_pow(u32::try_from(exponent.unsigned_abs()).ok()?)?;
    if exponent < 0 {
        reduce(above, power)
    } else {
        Some(Value::Ratio(above.checked_mul(power)?, 1))
    }
}

fn reduce(above: i128, below: i128) -> Option<Value> {
    let (mut a, mut b) = (above.checked_abs()?, below.checked_abs()?);
    if b == 0 {
        return None;
    }
    let size = (a, b);
    while b != 0 {
        (a, b) = (b, a % b);
    }
    let negative = (above < 0) != (below < 0);
    let above = size.0 / a;
    Some(Value::Ratio(if negative { -above } else { above }, size.1 / a))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(text: &str) -> Option<String> {
        value(text).map(|value| value.to_string())
    }

    #[test]
    fn equal_numbers_have_one_form() {
        for (form, texts) in [
            (
                "5",
                &["5", "5.0", "005", "+5", "5e0", "50e-1", "0.5e1", "10/2", r"\frac{10}{2}", "5."]
                    [..],
            ),
            ("10", &["10", "1e1", "1E+1", "100e-1"]),
            ("-7", &["-7", "-07", "- 7", "-7.000", r"-\frac{14}{2}", r"\frac{-7}{1}"]),
            ("1/2", &["0.5", ".5", "1/2", r"\frac{1}{2}", r"\frac12", "5e-1", "-1/-2"]),
            ("1234", &["1,234", "1234", "1,234.0"]),
            ("0", &["0", "000", "-0", "0.00", "0e99", "0/3"]),
            ("1/3", &["1/3", r"\frac{2}{6}", r"\frac{1}{3}"]),
        ] {
            for text in texts {
                assert_eq!(shown(text).as_deref(), Some(form), "{text}");
            }
        }
    }

    #[test]
    fn what_is_no_number_has_no_form() {
        for text in [
            "",
            "-",
            ".",
            "e5",
            "1e",
            "1e+",
            "1,23",
            "12,34,567",
            "1234,567",
            "0x10",
            "1 2",
            "1/0",
            "x",
            "1.2.3",
            "{1,2}",
            "1e99999999999999999999",
            r"\frac{1}{0}",
            r"\frac",
            r"\frac{1}",
            "½",
        ] {
            assert_eq!(shown(text), None, "{text}");
        }
    }

    #[test]
    fn long_numbers_keep_every_digit_and_huge_exponents_take_no_room() {
        let (one, other) = ("1".repeat(60), format!("{}2", "1".repeat(59)));
        assert!(value(&one).is_some() && value(&one) != value(&other));
        assert_eq!(value(&format!("{one}.000")), value(&one));
        assert_eq!(shown("1e999999999").as_deref(), Some("1e999999999"));
        assert_eq!(value("10e999999998"), value("1e999999999"));
        assert!(value(&"9".repeat(100_000)).is_some());
    }

    #[test]
    fn integers_are_written_without_point_or_exponent() {
        for (text, form) in [
            ("062", "62"),
            ("000", "0"),
            ("-07", "-7"),
            ("+016", "16"),
            ("1,000", "1000"),
            ("-0", "0"),
        ] {
            assert_eq!(integer(text).as_deref(), Some(form), "{text}");
        }
        for text in ["5.0", "1e1", "", "-", "6 2", "10/2", "1,00", "62x"] {
            assert_eq!(integer(text), None, "{text}");
        }
    }
}
