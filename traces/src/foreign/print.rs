//! Printing as C's `%.*g` and a default C++ stream do.

use std::fmt::Write as _;

/// Appends `value` with at most `digits` significant digits, trailing zeros dropped, exponent form below 1e-4 and from
/// `10^digits` on. Halfway cases round to even, as glibc does. NaN and infinity as `nan`, `inf`.
pub(crate) fn write_general(out: &mut String, value: f64, digits: usize) {
    if value.is_nan() {
        out.push_str("nan");
        return;
    }
    if value.is_infinite() {
        out.push_str(if value < 0.0 { "-inf" } else { "inf" });
        return;
    }
    let digits = digits.max(1);
    let scientific = format!("{value:.*e}", digits - 1);
    let (mantissa, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    let limit = i32::try_from(digits).unwrap_or(i32::MAX);
    if exponent < -4 || exponent >= limit {
        out.push_str(trim(mantissa));
        let sign = if exponent < 0 { '-' } else { '+' };
        // Writing to a String cannot fail.
        let _ = write!(out, "e{sign}{:02}", exponent.unsigned_abs());
        return;
    }
    let decimals = usize::try_from(limit - 1 - exponent).unwrap_or(0);
    let fixed = format!("{value:.decimals$}");
    out.push_str(trim(&fixed));
}

fn trim(text: &str) -> &str {
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.') } else { text }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(in crate::foreign) fn general(value: f64, digits: usize) -> String {
        let mut text = String::new();
        write_general(&mut text, value, digits);
        text
    }

    #[test]
    fn text_is_that_of_printf() {
        for (value, digits, text) in [
            (27.53125, 6, "27.5312"),
            (27.59375, 6, "27.5938"),
            (10.5, 6, "10.5"),
            (0.0, 6, "0"),
            (-0.0, 6, "-0"),
            (100_000.0, 6, "100000"),
            (1_000_000.0, 6, "1e+06"),
            (999_999.5, 6, "1e+06"),
            (0.0001, 6, "0.0001"),
            (0.000_012_345_678, 6, "1.23457e-05"),
            (21.453_125, 6, "21.4531"),
            (-3.5e-45, 6, "-3.5e-45"),
            (f64::from(9.725_658_f32), 9, "9.72565842"),
            (f64::from(0.1_f32), 9, "0.100000001"),
            (1e300, 6, "1e+300"),
            (f64::NEG_INFINITY, 6, "-inf"),
            (f64::NAN, 6, "nan"),
        ] {
            assert_eq!(general(value, digits), text);
        }
    }
}
