//! What was met while a file became rows: digits of its values, and everything that was read around.

use super::super::model::Logprob;
use super::lists::narrow;
use crate::SourceLimits;
use crate::manifest::ValueEncoding;

/// Significant digits that give every f32 back, and the most that a shortest f32 takes.
const F32_DIGITS: i32 = 9;

/// Counts over a whole file.
#[derive(Debug, Default)]
pub(super) struct Tally {
    /// Values that stand for an impossible token, or are none.
    pub(super) unmeasured: u64,
    /// Lists that were brought to the order of the store.
    pub(super) reordered: u64,
    /// Candidates of one list with an id or text that another one has.
    pub(super) twice: u64,
    /// Chosen tokens outside their own list.
    pub(super) outside: u64,
    /// Chosen tokens whose value differs from that in their own list.
    pub(super) contradicted: u64,
    /// Values of a sequence's very first token, which no row gave.
    pub(super) no_row: u64,
    /// Rows of which the chosen token's value is all that is known.
    pub(super) own_only: u64,
    /// Records without any log-probability.
    pub(super) bare_records: u64,
    /// Records of a layout that is not known.
    pub(super) unknown_records: u64,
    /// Samples whose prompt length is not known.
    pub(super) no_prompt_length: u64,
    /// Sample ids that stand twice in the file.
    pub(super) repeated_ids: u64,
    /// Samples whose id the file does not give.
    pub(super) invented_ids: u64,
    values: u64,
    digits: i32,
    decimals: u8,
    largest_exponent: Option<i32>,
    error: f64,
    least: f64,
}

impl Tally {
    /// Takes a measured value into account.
    pub(super) fn value(&mut self, logprob: &Logprob) {
        let value = logprob.written;
        self.values += 1;
        self.least = self.least.min(value);
        self.decimals = self.decimals.max(logprob.decimals);
        self.error = self.error.max((value - f64::from(narrow(value))).abs());
        if value != 0.0 {
            let exponent = exponent(value);
            self.largest_exponent = self.largest_exponent.max(Some(exponent));
            self.digits = self.digits.max(i32::from(logprob.decimals) + exponent + 1);
        }
    }

    /// Values that were kept.
    pub(super) const fn values(&self) -> u64 {
        self.values
    }

    /// Writes what the values can prove. `probabilities`: the file prints probabilities, and the values are their logarithms.
    pub(super) fn encoding(&self, probabilities: bool, limits: &mut SourceLimits) -> ValueEncoding {
        if probabilities {
            // Half of the last digit of a probability p is 0.5e-d / p in its logarithm; the smallest p has the largest error.
            let error = 0.5 * 10_f64.powi(-i32::from(self.decimals)) / self.least.exp();
            limits.decimals = (error <= 0.5).then(|| whole(-(2.0 * error).log10()));
            return ValueEncoding::Decimals;
        }
        if self.digits >= F32_DIGITS {
            // A shortest f32 has 9 digits at most: with more, the source's values are f64 and were rounded for the store.
            if self.digits > F32_DIGITS && self.error > 0.0 {
                limits.value_error = Some(self.error);
            }
            return ValueEncoding::Digits9;
        }
        // Printed with a fixed number of digits behind the point, or of significant ones: what the largest value has.
        let behind = self.largest_exponent.map_or(255, |largest| self.digits - 1 - largest);
        let behind = u8::try_from(behind.clamp(0, 255)).unwrap_or(u8::MAX);
        limits.decimals = Some(self.decimals.min(behind));
        ValueEncoding::Decimals
    }

    pub(super) fn remarks(
        &self,
        encoding: ValueEncoding,
        limits: &SourceLimits,
        remarks: &mut Vec<String>,
    ) {
        let mut say = |count: u64, text: &str| {
            if count > 0 {
                remarks.push(format!("{count} {text}"));
            }
        };
        say(self.unknown_records, "records have no known layout, and were passed over");
        say(self.bare_records, "records hold no log-probability, and are no samples");
        say(
            self.repeated_ids,
            "samples bear an id that stands twice; the record's number was added",
        );
        say(
            self.no_prompt_length,
            "samples do not say how long their prompt is: their first row is called 0 (give --prompt-len)",
        );
        say(
            self.outside,
            "chosen tokens stand outside the list of their own row; their values are not kept",
        );
        say(
            self.contradicted,
            "chosen tokens have another value than in the list of their own row, which was kept",
        );
        say(self.own_only, "rows know the chosen token's value only, so their largest is unknown");
        say(self.no_row, "first tokens of a text have a value, which no row gave; it is not kept");
        say(
            self.unmeasured,
            "values stand for an impossible token or are no number, and were left out of their lists",
        );
        say(
            self.twice,
            "candidates cannot be told from another one of the same list; the smaller of the two has no id",
        );
        say(
            self.reordered,
            "lists were brought to the order log-probability descending, lower id first",
        );
        match (encoding, limits.value_error, limits.decimals) {
            (ValueEncoding::Digits9, Some(error), _) => remarks.push(format!(
                "values carry up to {} digits and were rounded to f32, by {error:e} at most",
                self.digits
            )),
            (ValueEncoding::Decimals, _, Some(decimals)) if self.values > 0 => remarks.push(format!(
                "values carry {} digits at most, {decimals} behind the point: equal text is not equal bits",
                self.digits.max(1)
            )),
            _ => {}
        }
    }
}

/// Digits behind the point, rounded down.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "clamped before")]
fn whole(digits: f64) -> u8 {
    digits.floor().clamp(0.0, 255.0) as u8
}

/// Decimal exponent of a value that is not 0: 0 for 1 to 9.99, -1 for 0.1 to 0.999.
#[expect(clippy::cast_possible_truncation, reason = "between -324 and 308")]
fn exponent(value: f64) -> i32 {
    let guess = value.abs().log10().floor() as i32;
    // The logarithm of a power of ten may fall on either side of it.
    if value.abs() >= 10_f64.powi(guess + 1) {
        guess + 1
    } else if value.abs() < 10_f64.powi(guess) {
        guess - 1
    } else {
        guess
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::node::Number;
    use super::*;

    fn tally(values: &[(f64, u8)]) -> (ValueEncoding, SourceLimits) {
        let mut tally = Tally::default();
        for &(value, decimals) in values {
            tally.value(&Logprob::of_number(Number { value, decimals }));
        }
        let mut limits = SourceLimits::default();
        (tally.encoding(false, &mut limits), limits)
    }

    #[test]
    fn digits_of_the_file_decide_what_a_value_proves() {
        // Four digits behind the point, and a value that ends in zeros.
        let (encoding, limits) = tally(&[(-0.1234, 4), (-12.5, 1), (-11.0001, 4)]);
        assert_eq!((encoding, limits.decimals), (ValueEncoding::Decimals, Some(4)));
        // Six significant digits: -12.3457 has four behind the point, -0.000123457 nine.
        let (encoding, limits) = tally(&[(-12.3457, 4), (-0.000_123_457, 9)]);
        assert_eq!((encoding, limits.decimals), (ValueEncoding::Decimals, Some(4)));
        // An f32 printed as f64 is exact; an f64 of no f32 is rounded by less than half a unit in the last place.
        let f32_value = f64::from(-0.1_f32);
        let (encoding, limits) = tally(&[(f32_value, 17)]);
        assert_eq!((encoding, limits.value_error), (ValueEncoding::Digits9, None));
        let (encoding, limits) = tally(&[(-0.1, 17)]);
        assert_eq!(encoding, ValueEncoding::Digits9);
        // 0.1 as f32 is 0.100000001490116...
        assert!((limits.value_error.unwrap() - 1.490_116_1e-9).abs() < 1e-15);
    }

    #[test]
    fn exponents_of_powers_of_ten_are_theirs() {
        for (value, wanted) in
            [(1.0, 0), (0.1, -1), (0.001, -3), (1000.0, 3), (-9.99, 0), (0.099, -2)]
        {
            assert_eq!(exponent(value), wanted, "{value}");
        }
    }
}
