//! Figures in `report.json`: a finite value is a JSON number that reads back to the same bits, a non-finite one a string.

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A figure. `NaN`, `inf` and `-inf` are written as strings of these names, since JSON has no numbers for them.
#[derive(Debug, Clone, Copy, PartialEq, PartialOrd)]
pub struct Num(pub f64);

impl From<f64> for Num {
    fn from(value: f64) -> Self {
        Self(value)
    }
}

impl From<f32> for Num {
    fn from(value: f32) -> Self {
        Self(f64::from(value))
    }
}

impl Serialize for Num {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if self.0.is_finite() {
            serializer.serialize_f64(self.0)
        } else if self.0.is_nan() {
            serializer.serialize_str("NaN")
        } else if self.0 > 0.0 {
            serializer.serialize_str("inf")
        } else {
            serializer.serialize_str("-inf")
        }
    }
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Written {
    Number(f64),
    Word(String),
}

impl<'de> Deserialize<'de> for Num {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match Written::deserialize(deserializer)? {
            Written::Number(value) => Ok(Self(value)),
            Written::Word(word) => match word.as_str() {
                "NaN" => Ok(Self(f64::NAN)),
                "inf" => Ok(Self(f64::INFINITY)),
                "-inf" => Ok(Self(f64::NEG_INFINITY)),
                _ => Err(D::Error::custom(format!(
                    "`{word}` is no figure; expected a number, NaN, inf or -inf"
                ))),
            },
        }
    }
}

/// A finite value in at most `digits` significant digits, for people: `1234567`, `0.00123`, `3.2e-9`.
/// Integers of magnitude below 2^53 keep all their digits. Rounding is to nearest, by decimal formatting.
#[must_use]
pub fn short(value: f64, digits: usize) -> String {
    if !value.is_finite() {
        return if value.is_nan() {
            "NaN".to_owned()
        } else if value > 0.0 {
            "inf".to_owned()
        } else {
            "-inf".to_owned()
        };
    }
    if value == 0.0 {
        return "0".to_owned();
    }
    let digits = digits.max(1);
    if value.fract() == 0.0 && value.abs() < 1e9 {
        return format!("{value:.0}");
    }
    let scientific = format!("{value:.*e}", digits - 1);
    let Some((mantissa, exponent)) = scientific.split_once('e') else { return scientific };
    let Ok(exponent) = exponent.parse::<i32>() else { return scientific };
    if (-4..9).contains(&exponent) {
        let decimals = (i32::try_from(digits).unwrap_or(i32::MAX) - 1 - exponent).max(0);
        return trim_zeros(&format!("{value:.*}", usize::try_from(decimals).unwrap_or(0)));
    }
    format!("{}e{exponent}", trim_zeros(mantissa))
}

fn trim_zeros(text: &str) -> String {
    if text.contains('.') {
        text.trim_end_matches('0').trim_end_matches('.').to_owned()
    } else {
        text.to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finite_figures_read_back_to_the_same_bits() {
        for value in [0.1, -0.0, 1e-310, f64::MAX, f64::from(1.1_f32), 3.0] {
            let text = serde_json::to_string(&Num(value)).unwrap();
            assert_eq!(text.parse::<f64>().unwrap().to_bits(), value.to_bits(), "{text}");
        }
    }

    #[test]
    fn non_finite_figures_are_named_and_read_back() {
        assert_eq!(
            serde_json::to_string(&[Num(f64::NAN), Num(f64::INFINITY), Num(f64::NEG_INFINITY)])
                .unwrap(),
            r#"["NaN","inf","-inf"]"#
        );
        let back: Vec<Num> = serde_json::from_str(r#"["NaN","-inf",2.5,7]"#).unwrap();
        assert!(back[0].0.is_nan());
        assert_eq!(back[1..], [Num(f64::NEG_INFINITY), Num(2.5), Num(7.0)]);
        assert!(serde_json::from_str::<Num>(r#""much""#).is_err());
    }

    #[test]
    fn short_figures_keep_the_asked_digits() {
        assert_eq!(short(0.0012345, 3), "0.00123");
        assert_eq!(short(-12.3456, 4), "-12.35");
        assert_eq!(short(3.25e-9, 3), "3.25e-9");
        assert_eq!(short(1_234_567.0, 3), "1234567");
        assert_eq!(short(0.1 + 0.2, 4), "0.3");
        assert_eq!(short(123_456.7, 3), "123457");
        assert_eq!(short(9.9996, 4), "10");
        assert_eq!(short(f64::NAN, 4), "NaN");
    }
}
