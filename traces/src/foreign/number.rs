//! Numbers as foreign writers print them: exact value, count of significant digits, and the spellings of NaN and
//! infinity that are not JSON.

use super::scan::Fault;

/// A printed number.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Number {
    /// The text rounded once to f32.
    pub(super) value: f32,
    /// The text rounded once to f64.
    pub(super) wide: f64,
    /// Significant digits of the text, without leading and trailing zeros.
    pub(super) digits: u8,
}

impl Number {
    fn not_finite(value: f32) -> Self {
        Self { value, wide: f64::from(value), digits: 0 }
    }
}

const POWERS: [f64; 23] = [
    1e0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11, 1e12, 1e13, 1e14, 1e15, 1e16,
    1e17, 1e18, 1e19, 1e20, 1e21, 1e22,
];

/// Words that stand for values no JSON number can write.
const WORDS: [(&[u8], f32); 6] = [
    (b"null", f32::NAN),
    (b"NaN", f32::NAN),
    (b"nan", f32::NAN),
    (b"Infinity", f32::INFINITY),
    (b"infinity", f32::INFINITY),
    (b"inf", f32::INFINITY),
];

/// Reads the number at the front of `bytes`; returns it and its length.
pub(super) fn parse(bytes: &[u8]) -> Result<(Number, usize), Fault> {
    let negative = bytes.first() == Some(&b'-');
    let start = usize::from(negative);
    match bytes.get(start) {
        None => Err(Fault::Cut),
        Some(b'0'..=b'9') => decimal(bytes, start, negative),
        Some(_) => word(bytes, start, negative),
    }
}

fn word(bytes: &[u8], start: usize, negative: bool) -> Result<(Number, usize), Fault> {
    let rest = &bytes[start..];
    for (spelling, value) in WORDS {
        if rest.starts_with(spelling) {
            let value = if negative { -value } else { value };
            return Ok((Number::not_finite(value), start + spelling.len()));
        }
    }
    let cut = WORDS.iter().any(|(spelling, _)| spelling.starts_with(rest));
    Err(if cut { Fault::Cut } else { Fault::bad("a number was expected") })
}

fn decimal(bytes: &[u8], start: usize, negative: bool) -> Result<(Number, usize), Fault> {
    let mut at = start;
    let mut mantissa = 0_u64;
    let mut exponent = 0_i32;
    // Digits since the first that is not zero, and how many of them close the text as zeros.
    let (mut seen, mut zeros) = (0_u32, 0_u32);
    let mut fraction = false;
    loop {
        match bytes.get(at) {
            Some(digit @ b'0'..=b'9') => {
                let digit = u64::from(digit - b'0');
                if seen < 19 {
                    mantissa = mantissa * 10 + digit;
                    exponent -= i32::from(fraction);
                } else {
                    exponent += i32::from(!fraction);
                }
                seen += u32::from(seen > 0 || digit > 0);
                zeros = if digit == 0 { zeros + 1 } else { 0 };
            }
            Some(b'.') if !fraction => {
                if !bytes.get(at + 1).is_none_or(u8::is_ascii_digit) {
                    return Err(Fault::bad("a number ends in a point"));
                }
                fraction = true;
            }
            _ => break,
        }
        at += 1;
    }
    if bytes.get(start) == Some(&b'0') && bytes.get(start + 1).is_some_and(u8::is_ascii_digit) {
        return Err(Fault::bad("a number starts with a superfluous zero"));
    }
    if matches!(bytes.get(at), Some(b'e' | b'E')) {
        let (power, end) = power_of_ten(bytes, at + 1)?;
        exponent = exponent.saturating_add(power);
        at = end;
    }
    let digits = u8::try_from(seen.saturating_sub(zeros)).unwrap_or(u8::MAX);
    let (value, wide) = match exact(mantissa, exponent, seen) {
        Some(wide) => (narrow(wide).map_or_else(|| slow(&bytes[start..at]), Ok)?, wide),
        None => (slow(&bytes[start..at])?, slow(&bytes[start..at])?),
    };
    let sign = if negative { -1.0 } else { 1.0 };
    Ok((Number { value: value * sign, wide: wide * f64::from(sign), digits }, at))
}

fn power_of_ten(bytes: &[u8], start: usize) -> Result<(i32, usize), Fault> {
    let negative = bytes.get(start) == Some(&b'-');
    let mut at = start + usize::from(matches!(bytes.get(start), Some(b'-' | b'+')));
    let first = at;
    let mut power = 0_i32;
    while let Some(digit @ b'0'..=b'9') = bytes.get(at) {
        power = power.saturating_mul(10).saturating_add(i32::from(digit - b'0'));
        at += 1;
    }
    match bytes.get(at) {
        None if at == first => Err(Fault::Cut),
        Some(_) if at == first => Err(Fault::bad("an exponent has no digits")),
        _ => Ok((if negative { -power } else { power }, at)),
    }
}

/// Both factors are exact in f64, so the one operation rounds once.
fn exact(mantissa: u64, exponent: i32, digits: u32) -> Option<f64> {
    if digits > 19 || mantissa >= 1 << 53 {
        return None;
    }
    let power = *POWERS.get(usize::try_from(exponent.unsigned_abs()).ok()?)?;
    #[expect(clippy::cast_precision_loss, reason = "below 2^53")]
    let mantissa = mantissa as f64;
    Some(if exponent < 0 { mantissa / power } else { mantissa * power })
}

/// f32 of a correctly rounded f64; `None` where it lies on the midpoint of two f32 values (or below the normal
/// range) and the second rounding could go the wrong way.
fn narrow(wide: f64) -> Option<f32> {
    const BELOW: u64 = (1 << 29) - 1;
    let midpoint = wide.to_bits() & BELOW == 1 << 28;
    let subnormal = wide != 0.0 && wide < f64::from(f32::MIN_POSITIVE);
    #[expect(clippy::cast_possible_truncation, reason = "rounding to f32 is the purpose")]
    (!midpoint && !subnormal).then_some(wide as f32)
}

fn slow<T: std::str::FromStr>(text: &[u8]) -> Result<T, Fault> {
    std::str::from_utf8(text)
        .ok()
        .and_then(|text| text.parse().ok())
        .ok_or_else(|| Fault::bad("a number cannot be read"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn number(text: &str) -> Number {
        let (number, length) = parse(text.as_bytes()).expect(text);
        assert_eq!(length, text.len(), "{text}");
        number
    }

    #[test]
    fn values_round_as_the_standard_library_rounds_them() {
        for text in [
            "0",
            "-0",
            "10.5",
            "27.5312",
            "9.72565842",
            "1e-3",
            "1.5E+3",
            "16777217",
            "33554433.0000000001",
            "123456789012345678901234567890",
            "1.17549435e-38",
            "1e-45",
            "7e-46",
            "3.4028236e38",
            "1e60",
            "0.1",
            "8388609.5",
            "8388608.50000000001",
            "5.960464477539063e-8",
        ] {
            let got = number(text);
            assert_eq!(got.value.to_bits(), text.parse::<f32>().unwrap().to_bits(), "{text}");
            assert_eq!(got.wide.to_bits(), text.parse::<f64>().unwrap().to_bits(), "{text}");
        }
    }

    #[test]
    fn significant_digits_leave_out_zeros_at_both_ends() {
        for (text, digits) in [
            ("0", 0),
            ("0.0", 0),
            ("10.500", 3),
            ("0.00123", 3),
            ("27.5312", 6),
            ("9.72565842", 9),
            ("1000", 1),
        ] {
            assert_eq!(number(text).digits, digits, "{text}");
        }
    }

    #[test]
    fn words_outside_json_are_not_finite_values() {
        assert!(number("NaN").value.is_nan() && number("nan").value.is_nan());
        assert!(number("-nan").value.is_nan() && number("null").value.is_nan());
        assert_eq!(number("-Infinity").value.to_bits(), f32::NEG_INFINITY.to_bits());
        assert_eq!(number("inf").value.to_bits(), f32::INFINITY.to_bits());
    }

    #[test]
    fn a_cut_number_is_cut_and_a_wrong_one_is_bad() {
        for cut in ["", "-", "Na", "-Inf", "1e", "1e-"] {
            assert!(matches!(parse(cut.as_bytes()), Err(Fault::Cut)), "{cut}");
        }
        for bad in ["x", "01", "1.,", "1e,", "\"1\"", "+1"] {
            assert!(matches!(parse(bad.as_bytes()), Err(Fault::Bad(_))), "{bad}");
        }
    }
}
