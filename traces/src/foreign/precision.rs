//! What printed values can prove: the grid that all of them lie on, or the digits they carry.

use half::{bf16, f16};

use super::number::Number;
use crate::manifest::ValueEncoding;

/// Digits of a default C++ stream.
const STREAM_DIGITS: u8 = 6;
/// Digits that give every f32 back.
const F32_DIGITS: u8 = 9;
/// Distinct values on the bf16 grid that it takes to believe in it where they all lie on the (finer) fp16 grid
/// as well: a value of the fp16 grid lies on the bf16 grid once in eight.
const BF16_WITNESSES: usize = 8;

/// Gathers evidence over all values of a file.
#[derive(Debug, Clone)]
pub(super) struct Precision {
    most_digits: u8,
    all_f16: bool,
    all_bf16: bool,
    witnesses: Vec<u32>,
    finite: usize,
}

impl Default for Precision {
    fn default() -> Self {
        Self { most_digits: 0, all_f16: true, all_bf16: true, witnesses: Vec::new(), finite: 0 }
    }
}

impl Precision {
    /// Takes one value into account; values that are not finite prove nothing.
    pub(super) fn observe(&mut self, number: &Number) {
        if !number.value.is_finite() {
            return;
        }
        self.finite += 1;
        self.most_digits = self.most_digits.max(number.digits);
        self.all_f16 &= self.all_f16 && prints_as(to_f16(number.value), number);
        if self.all_bf16 {
            self.all_bf16 = prints_as(to_bf16(number.value), number);
            let bits = number.value.to_bits();
            if self.witnesses.len() < BF16_WITNESSES && !self.witnesses.contains(&bits) {
                self.witnesses.push(bits);
            }
        }
    }

    /// The strongest claim that every value supports.
    pub(super) fn encoding(&self) -> ValueEncoding {
        if self.finite == 0 {
            return ValueEncoding::Digits6;
        }
        if self.all_bf16 && (!self.all_f16 || self.witnesses.len() >= BF16_WITNESSES) {
            ValueEncoding::SnappedBf16
        } else if self.all_f16 {
            ValueEncoding::SnappedF16
        } else if self.most_digits >= F32_DIGITS {
            ValueEncoding::Digits9
        } else {
            ValueEncoding::Digits6
        }
    }

    /// One line on what the encoding rests on.
    pub(super) fn remark(&self) -> String {
        let values = self.finite;
        match self.encoding() {
            ValueEncoding::SnappedBf16 => {
                format!("all {values} values lie on the bf16 grid and were set to it")
            }
            ValueEncoding::SnappedF16 => {
                format!("all {values} values lie on the fp16 grid and were set to it")
            }
            encoding if !encoding.exact() && self.most_digits > STREAM_DIGITS => format!(
                "values carry {} digits, too few to give f32 bits back; equal text is not equal bits",
                self.most_digits
            ),
            ValueEncoding::Digits6 | ValueEncoding::Decimals | ValueEncoding::Codes16 => {
                "values carry six digits and lie on no 16-bit grid; equal text is not equal bits"
                    .to_owned()
            }
            ValueEncoding::Digits9 | ValueEncoding::F32 => {
                format!("values carry {} digits: f32 bits are recovered", self.most_digits)
            }
        }
    }
}

/// The exact value behind a printed one under `encoding`.
pub(super) fn restore(value: f32, encoding: ValueEncoding) -> f32 {
    match encoding {
        ValueEncoding::SnappedF16 if value.is_finite() => to_f16(value),
        ValueEncoding::SnappedBf16 if value.is_finite() => to_bf16(value),
        _ => value,
    }
}

/// The nearest fp16 value. Of two equally near ones either will do: what lies halfway lies on no grid.
fn to_f16(value: f32) -> f32 {
    const NORMAL: std::ops::RangeInclusive<f32> = 6.2e-5..=65504.0;
    if NORMAL.contains(&value.abs()) {
        return f32::from_bits((value.to_bits() + 0x1000) & !0x1fff);
    }
    f16::from_f32(value).to_f32()
}

fn to_bf16(value: f32) -> f32 {
    bf16::from_f32(value).to_f32()
}

/// Would a stream of six digits (or of as many as the text has) print `grid` as this text? Half a unit of the last
/// digit counts as yes on both sides.
fn prints_as(grid: f32, number: &Number) -> bool {
    if grid.to_bits() == number.value.to_bits() {
        return true;
    }
    let gap = (f64::from(grid) - number.wide).abs();
    // A value of more digits was not cut to six.
    if number.digits > STREAM_DIGITS || !grid.is_finite() {
        return false;
    }
    let size = number.wide.abs();
    if gap <= 4.9e-7 * size || gap > 5.1e-6 * size {
        return gap <= 4.9e-7 * size;
    }
    let unit = 10_f64.powf(size.log10().floor() - f64::from(STREAM_DIGITS - 1));
    gap <= 0.5 * unit * (1.0 + 1e-9)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::foreign::number::parse;
    use crate::foreign::print::tests::general;

    fn judge(texts: impl IntoIterator<Item = String>) -> Precision {
        let mut precision = Precision::default();
        for text in texts {
            precision.observe(&parse(text.as_bytes()).unwrap().0);
        }
        precision
    }

    #[test]
    fn every_finite_fp16_value_printed_with_six_digits_comes_back() {
        for bits in 0..0x7c00_u16 {
            let value = f16::from_bits(bits).to_f32();
            let number = parse(general(f64::from(value), 6).as_bytes()).unwrap().0;
            assert!(prints_as(to_f16(number.value), &number), "{value}");
            assert_eq!(restore(number.value, ValueEncoding::SnappedF16).to_bits(), value.to_bits());
        }
    }

    #[test]
    fn every_finite_bf16_value_printed_with_six_digits_comes_back() {
        for bits in 0..0x7f80_u16 {
            let value = bf16::from_bits(bits).to_f32();
            let number = parse(general(f64::from(value), 6).as_bytes()).unwrap().0;
            assert!(prints_as(to_bf16(number.value), &number), "{value}");
            assert_eq!(
                restore(number.value, ValueEncoding::SnappedBf16).to_bits(),
                value.to_bits()
            );
        }
    }

    #[test]
    fn one_value_off_the_grid_takes_the_claim_away() {
        let on_grid = || (0..100).map(|step| general(16.0 + f64::from(step) / 64.0, 6));
        assert_eq!(judge(on_grid()).encoding(), ValueEncoding::SnappedF16);
        let planted = on_grid().chain(["20.0001".to_owned()]);
        assert_eq!(judge(planted).encoding(), ValueEncoding::Digits6);
    }

    #[test]
    fn the_coarser_grid_is_named_only_with_enough_witnesses() {
        let eighths = |count: u32| (0..count).map(|step| general(16.0 + f64::from(step) / 8.0, 6));
        assert_eq!(judge(eighths(7)).encoding(), ValueEncoding::SnappedF16);
        assert_eq!(judge(eighths(40)).encoding(), ValueEncoding::SnappedBf16);
        assert_eq!(judge(["1e20".to_owned()]).encoding(), ValueEncoding::Digits6);
        let large = [general(f64::from(bf16::from_f32(1e20).to_f32()), 6)];
        assert_eq!(judge(large).encoding(), ValueEncoding::SnappedBf16);
    }

    #[test]
    fn digits_decide_where_no_grid_does() {
        let nine = ["10.5004158".to_owned(), "9.72565842".to_owned()];
        assert_eq!(judge(nine).encoding(), ValueEncoding::Digits9);
        let seven = judge(["10.50041".to_owned()]);
        assert_eq!(seven.encoding(), ValueEncoding::Digits6);
        assert!(seven.remark().contains("7 digits"));
        assert_eq!(judge(["NaN".to_owned()]).encoding(), ValueEncoding::Digits6);
    }
}
