//! One record: the log-probabilities of a row as 16-bit codes between its lowest and its highest.

use std::cmp::Reverse;

use crate::summary::largest;

/// Bytes before the codes: scale and lowest log-probability, f32 each.
pub(super) const RECORD_HEADER: usize = 8;
/// The code of the highest logit, by the way in which codes are made.
const HIGHEST: u16 = u16::MAX;
/// Widths in nats at and above which a row may have been cut off below: llama.cpp cuts 16 nats under the highest logit and
/// ik_llama.cpp 24. The quotient and the product that give the width back are each off by less than 2^-23 of it.
const CUT: f32 = 15.999;
/// Roundings to f32 between a logit and its decoded log-probability, each at most 2^-24 of the largest number of the row: the
/// difference from the lowest logit, the inverse of the scale, the product with it; ln of the sum and two differences for the lowest
/// log-probability; the product and the sum that decode.
const ROUNDINGS: f64 = 8.0;
/// Half a unit in the last place of an f32 next to 1.
const HALF_ULP: f64 = 1.0 / 16_777_216.0;

/// A record of a KLD base file: `log-probability = scale * code + min_log_prob`, in f32 as llama-perplexity computes it.
#[derive(Debug, Clone, Copy)]
pub struct KldRecord<'a> {
    /// Nats from one code to the next.
    pub scale: f32,
    /// Log-probability of code 0.
    pub min_log_prob: f32,
    codes: &'a [[u8; 2]],
    padding: Option<u16>,
}

impl<'a> KldRecord<'a> {
    /// A record of `n_vocab` codes; `None` where `bytes` are not as many as it takes.
    #[must_use]
    pub fn of(bytes: &'a [u8], n_vocab: usize) -> Option<Self> {
        let (header, rest) = bytes.split_at_checked(RECORD_HEADER)?;
        let (scale, lowest) = header.split_at_checked(4)?;
        let (pairs, odd) = rest.as_chunks::<2>();
        let (codes, padding) = pairs.split_at_checked(n_vocab)?;
        let fits = odd.is_empty() && padding.len() == n_vocab % 2;
        fits.then_some(())?;
        Some(Self {
            scale: f32::from_le_bytes(scale.try_into().ok()?),
            min_log_prob: f32::from_le_bytes(lowest.try_into().ok()?),
            codes,
            padding: padding.first().map(|pair| u16::from_le_bytes(*pair)),
        })
    }

    /// Entries.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.codes.len()
    }

    /// True for a record of no vocabulary.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.codes.is_empty()
    }

    /// The code of an id.
    #[must_use]
    pub fn code(&self, id: usize) -> Option<u16> {
        self.codes.get(id).map(|pair| u16::from_le_bytes(*pair))
    }

    /// Codes by id.
    pub fn codes(self) -> impl Iterator<Item = u16> + use<'a> {
        self.codes.iter().map(|pair| u16::from_le_bytes(*pair))
    }

    /// Log-probability of a code, rounded to f32 after the product and after the sum.
    #[must_use]
    pub fn value(&self, code: u16) -> f32 {
        self.scale * f32::from(code) + self.min_log_prob
    }

    /// Log-probabilities by id.
    pub fn values(self) -> impl Iterator<Item = f32> + use<'a> {
        self.codes().map(move |code| self.value(code))
    }

    /// Nats between the lowest and the highest code.
    #[must_use]
    pub fn range(&self) -> f32 {
        self.scale * 65535.0
    }

    /// May entries of code 0 lie anywhere below their value? True where the row is as wide as its writer lets a row be.
    #[must_use]
    pub fn cut_below(&self) -> bool {
        self.range() >= CUT
    }

    /// Largest absolute error of a decoded log-probability against the exact one, in nats: half a step, and the f32 roundings on
    /// the way. It does not hold for code 0 where [`KldRecord::cut_below`].
    #[must_use]
    pub fn error(&self) -> f64 {
        let largest = f64::from(self.range()) + f64::from(self.min_log_prob.abs());
        f64::from(self.scale) / 2.0 + ROUNDINGS * HALF_ULP * largest
    }

    /// Ids with the `k` highest codes: code falling, lower id first on equal codes.
    #[must_use]
    pub fn top(&self, k: usize) -> Vec<u32> {
        let keys = (0..).zip(self.codes()).map(|(id, code)| (code, Reverse(id)));
        largest(k, keys).into_iter().map(|(_, Reverse(id))| id).collect()
    }

    /// What no record that the programs write can be, in words; `None` where nothing is wrong. The highest logit always has the
    /// highest code (0 where the scale has no finite inverse: all logits are equal, or nearly so), and padding is 0.
    #[must_use]
    pub fn fault(&self) -> Option<String> {
        let (scale, lowest) = (self.scale, self.min_log_prob);
        if !(scale.is_finite() && scale >= 0.0 && lowest.is_finite() && self.range().is_finite()) {
            return Some(format!("scale {scale} and lowest log-probability {lowest}"));
        }
        if let Some(padding) = self.padding.filter(|padding| *padding != 0) {
            return Some(format!("code {padding} in the padding, which is 0 as written"));
        }
        let highest = self.codes().max().unwrap_or(0);
        let expected = if scale.recip().is_finite() { HIGHEST } else { 0 };
        (highest != expected)
            .then(|| format!("the highest code is {highest}; as written it is {expected}"))
    }

    /// As [`KldRecord::fault`], and the probabilities must sum to 1 within the error of the codes; entries of code 0 may add less
    /// than their value.
    #[must_use]
    pub fn fault_of_sum(&self) -> Option<String> {
        if let Some(fault) = self.fault() {
            return Some(fault);
        }
        let (mut sum, mut cut) = (0.0_f64, 0.0_f64);
        for code in self.codes() {
            let p = f64::from(self.value(code)).exp();
            sum += p;
            cut += if code == 0 && self.cut_below() { p } else { 0.0 };
        }
        let slack = self.error().exp();
        let holds = sum - cut <= slack && sum * slack >= 1.0;
        (!holds).then(|| format!("the probabilities sum to {sum:.6}"))
    }
}
