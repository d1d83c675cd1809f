//! A row of logits as a record: the arithmetic of llama-perplexity's `log_softmax`, width by width, so that codes agree to the bit.

use super::record::RECORD_HEADER;

/// Nats below the highest logit at which a row is cut.
const RANGE: f32 = 16.0;
/// Added to a number below 2^22, it leaves its nearest integer in the low 23 bits (ties to even).
const SHIFT: f32 = 12_582_912.0;

/// What a row's coding came to.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct EncodedRow {
    /// ln of the sum of exp(logit - highest logit): f32 terms, f64 sum.
    pub log_sum_exp: f64,
    /// The highest logit.
    pub highest: f32,
}

/// Appends the record of `logits` to `out`: scale, lowest log-probability, codes, and a code of 0 where their number is odd. `None`,
/// and nothing appended, for an empty row and for one that no code can hold (a NaN, +inf, nothing but
/// -inf, or values so large that 16 nats are lost in their rounding).
pub fn encode_row(logits: &[f32], out: &mut Vec<u8>) -> Option<EncodedRow> {
    let (mut highest, mut lowest) = (f32::NEG_INFINITY, f32::INFINITY);
    for &logit in logits {
        if logit.is_nan() {
            return None;
        }
        highest = highest.max(logit);
        lowest = lowest.min(logit);
    }
    if !highest.is_finite() {
        return None;
    }
    let spread = lowest < highest;
    let lowest = lowest.max(highest - RANGE);
    let sum: f64 = logits.iter().fold(0.0, |sum, logit| sum + f64::from((logit - highest).exp()));
    let log_sum_exp = sum.ln();
    let min_log_prob = lowest - highest - narrow(log_sum_exp);
    // So far from 0 that 16 nats are less than half a unit in the last place: every logit would have the same code.
    if spread && lowest >= highest {
        return None;
    }
    let scale = (highest - lowest) / 65535.0;
    out.reserve(RECORD_HEADER + 4 * logits.len().div_ceil(2));
    out.extend(scale.to_le_bytes());
    out.extend(min_log_prob.to_le_bytes());
    let inverse = 1.0 / scale;
    for &logit in logits {
        let code =
            if scale != 0.0 && logit > lowest { nearest(inverse * (logit - lowest)) } else { 0 };
        out.extend(code.to_le_bytes());
    }
    if logits.len() % 2 == 1 {
        out.extend([0, 0]);
    }
    Some(EncodedRow { log_sum_exp, highest })
}

/// The nearest integer of a number from 0 to 65535, kept in 16 bits.
fn nearest(value: f32) -> u16 {
    let low = ((value + SHIFT).to_bits() & 0x007f_ffff).wrapping_sub(0x0040_0000);
    let [first, second, ..] = low.to_le_bytes();
    u16::from_le_bytes([first, second])
}

#[expect(clippy::cast_possible_truncation, reason = "the format keeps this value as f32")]
fn narrow(value: f64) -> f32 {
    value as f32
}
