//! Rotary embedding: inverse frequencies and the table of cosines and sines.
//!
//! Frequencies follow `modeling_rope_utils` of Hugging Face transformers (4.57): every tensor there is f32, every
//! Python scalar f64, and so here. Pairing is *half* (NeoX): dimension `i` turns with dimension `i + head_dim / 2`.

use std::f64::consts::PI;

/// Frequencies of the rotary embedding as the forward pass and the selector use them.
#[derive(Debug, Clone, PartialEq)]
pub struct RotaryTable {
    /// Inverse frequencies, `[head_dim / 2]`, f32.
    pub inv_freq: Vec<f32>,
    /// Factor on cosine and sine (1 except for YaRN).
    pub attention_scaling: f32,
}

/// A resolved RoPE variant.
#[derive(Debug, Clone, PartialEq)]
pub enum RopeScaling {
    /// Plain frequencies.
    Default,
    /// All frequencies divided by a factor.
    Linear {
        /// Divisor.
        factor: f64,
    },
    /// Llama 3: long wavelengths divided, a smooth band between.
    Llama3 {
        /// Divisor of long wavelengths.
        factor: f64,
        /// Wavelengths above `original / low` are divided.
        low_freq_factor: f64,
        /// Wavelengths below `original / high` are kept.
        high_freq_factor: f64,
        /// Context of the first training.
        original_max_position: f64,
    },
    /// YaRN.
    Yarn {
        /// Divisor of interpolated frequencies.
        factor: f64,
        /// Context of the first training.
        original_max_position: f64,
        /// Rotations above which a frequency is kept.
        beta_fast: f64,
        /// Rotations below which a frequency is interpolated.
        beta_slow: f64,
        /// Round the band outwards to whole dimensions.
        truncate: bool,
        /// Factor on cosine and sine.
        attention_factor: f64,
    },
    /// Each frequency divided by its own number.
    Factors {
        /// `[head_dim / 2]`; a frequency without one stays as it is.
        divisors: Vec<f32>,
    },
}

impl RopeScaling {
    /// `rope_type` spelling.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Default => "default",
            Self::Linear { .. } => "linear",
            Self::Llama3 { .. } => "llama3",
            Self::Yarn { .. } => "yarn",
            Self::Factors { .. } => "factors",
        }
    }
}

/// YaRN's attention factor where the config gives none: `0.1 * mscale * ln(factor) + 1`, or a ratio of two such.
#[must_use]
pub fn yarn_attention_factor(factor: f64, mscale: Option<f64>, mscale_all_dim: Option<f64>) -> f64 {
    let scale = |mscale: f64| if factor <= 1.0 { 1.0 } else { 0.1 * mscale * factor.ln() + 1.0 };
    match (mscale, mscale_all_dim) {
        (Some(above), Some(below)) if above != 0.0 && below != 0.0 => scale(above) / scale(below),
        _ => scale(1.0),
    }
}

impl RotaryTable {
    /// Frequencies for `head_dim` (even) and base `theta`.
    #[must_use]
    pub fn new(head_dim: usize, theta: f64, scaling: &RopeScaling) -> Self {
        // theta^(2i/d): exponent rounded to f32, power correctly rounded to f32.
        let powers: Vec<f32> = (0..head_dim / 2)
            .map(|index| (2 * index) as f32 / head_dim as f32)
            .map(|exponent| f64::from(theta as f32).powf(f64::from(exponent)) as f32)
            .collect();
        let plain = || powers.iter().map(|power| 1.0 / power);
        match *scaling {
            RopeScaling::Factors { ref divisors } => {
                let divided = plain().zip(divisors.iter().chain(std::iter::repeat(&1.0)));
                let inv_freq = divided.map(|(freq, divisor)| freq / divisor).collect();
                Self { inv_freq, attention_scaling: 1.0 }
            }
            RopeScaling::Default => Self { inv_freq: plain().collect(), attention_scaling: 1.0 },
            RopeScaling::Linear { factor } => Self {
                inv_freq: plain().map(|freq| freq / factor as f32).collect(),
                attention_scaling: 1.0,
            },
            RopeScaling::Llama3 {
                factor,
                low_freq_factor,
                high_freq_factor,
                original_max_position,
            } => {
                let bend = |freq: f32| {
                    let wavelength = (2.0 * PI) as f32 / freq;
                    let long = f64::from(wavelength) > original_max_position / low_freq_factor;
                    let short = f64::from(wavelength) < original_max_position / high_freq_factor;
                    let factor = factor as f32;
                    if long {
                        return freq / factor;
                    }
                    if short {
                        return freq;
                    }
                    let span = (high_freq_factor - low_freq_factor) as f32;
                    let smooth =
                        (original_max_position as f32 / wavelength - low_freq_factor as f32) / span;
                    (1.0 - smooth) * freq / factor + smooth * freq
                };
                Self { inv_freq: plain().map(bend).collect(), attention_scaling: 1.0 }
            }
            RopeScaling::Yarn {
                factor,
                original_max_position,
                beta_fast,
                beta_slow,
                truncate,
                attention_factor,
            } => {
                let bound = |rotations: f64| {
                    head_dim as f64 * (original_max_position / (rotations * 2.0 * PI)).ln()
                        / (2.0 * theta.ln())
                };
                let (mut low, mut high) = (bound(beta_fast), bound(beta_slow));
                if truncate {
                    (low, high) = (low.floor(), high.ceil());
                }
                let low = low.max(0.0);
                let mut high = high.min(head_dim as f64 - 1.0);
                if (high - low).abs() < f64::EPSILON {
                    high += 0.001;
                }
                let blend = |(index, power): (usize, &f32)| {
                    let ramp = (index as f32 - low as f32) / (high - low) as f32;
                    let keep = 1.0 - ramp.clamp(0.0, 1.0);
                    let interpolated = 1.0 / (factor as f32 * power);
                    interpolated * (1.0 - keep) + (1.0 / power) * keep
                };
                Self {
                    inv_freq: powers.iter().enumerate().map(blend).collect(),
                    attention_scaling: attention_factor as f32,
                }
            }
        }
    }

    /// Cosines and sines of one position, each `[head_dim / 2]`, with the attention scaling in them.
    ///
    /// The angle is one f32 product; cosine and sine of that f32 are correctly rounded.
    pub fn cos_sin(&self, position: u32, cos: &mut [f32], sin: &mut [f32]) {
        for ((freq, cos), sin) in self.inv_freq.iter().zip(cos).zip(sin) {
            let angle = f64::from(position as f32 * freq);
            let (s, c) = angle.sin_cos();
            *cos = c as f32 * self.attention_scaling;
            *sin = s as f32 * self.attention_scaling;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn close(found: &[f32], wanted: &[f64]) {
        assert_eq!(found.len(), wanted.len());
        for (found, wanted) in found.iter().zip(wanted) {
            let error = (f64::from(*found) - wanted).abs() / wanted.abs();
            assert!(error < 3e-7, "{found} is not {wanted}");
        }
    }

    #[test]
    fn plain_frequencies_are_powers_of_the_base() {
        let table = RotaryTable::new(8, 10_000.0, &RopeScaling::Default);
        close(&table.inv_freq, &[1.0, 0.1, 0.01, 0.001]);
        let table = RotaryTable::new(4, 1_000_000.0, &RopeScaling::Default);
        close(&table.inv_freq, &[1.0, 0.001]);
    }

    #[test]
    fn linear_divides_every_frequency() {
        let table = RotaryTable::new(8, 10_000.0, &RopeScaling::Linear { factor: 4.0 });
        close(&table.inv_freq, &[0.25, 0.025, 0.0025, 0.00025]);
    }

    #[test]
    fn llama3_keeps_short_divides_long_and_blends_between() {
        // Wavelengths 6.28, 62.8, 628, 6283; with 1000 / 4 = 250 and 1000 / 1 = 1000 the third lies in the band:
        // smooth = (1000 / 628.3185 - 1) / 3 = 0.1971833.
        let scaling = RopeScaling::Llama3 {
            factor: 8.0,
            low_freq_factor: 1.0,
            high_freq_factor: 4.0,
            original_max_position: 1000.0,
        };
        let table = RotaryTable::new(8, 10_000.0, &scaling);
        let smooth = (1000.0 / (200.0 * PI) - 1.0) / 3.0;
        let third = (1.0 - smooth) * 0.01 / 8.0 + smooth * 0.01;
        close(&table.inv_freq, &[1.0, 0.1, third, 0.001 / 8.0]);
    }

    #[test]
    fn yarn_blends_between_the_two_bounds() {
        // head_dim 8, theta 10000, context 4096: bound(r) = 8 ln(4096 / (2 pi r)) / (2 ln 10000):
        // r = 32 gives 1.308, r = 1 gives 2.814; truncated 1 and 3.
        let scaling = RopeScaling::Yarn {
            factor: 4.0,
            original_max_position: 4096.0,
            beta_fast: 32.0,
            beta_slow: 1.0,
            truncate: true,
            attention_factor: 1.25,
        };
        let table = RotaryTable::new(8, 10_000.0, &scaling);
        close(&table.inv_freq, &[1.0, 0.1, 0.01 * 0.625, 0.001 / 4.0]);
        assert_eq!(table.attention_scaling.to_bits(), 1.25_f32.to_bits());
        let mut cos = [0.0; 4];
        let mut sin = [0.0; 4];
        table.cos_sin(0, &mut cos, &mut sin);
        assert_eq!(cos.map(f32::to_bits), [1.25_f32.to_bits(); 4]);
        assert_eq!(sin.map(f32::to_bits), [0; 4]);
    }

    #[test]
    fn yarn_without_truncation_uses_fractional_bounds() {
        let scaling = RopeScaling::Yarn {
            factor: 4.0,
            original_max_position: 4096.0,
            beta_fast: 32.0,
            beta_slow: 1.0,
            truncate: false,
            attention_factor: 1.0,
        };
        let table = RotaryTable::new(8, 10_000.0, &scaling);
        let bound = |r: f64| 8.0 * (4096.0 / (2.0 * PI * r)).ln() / (2.0 * 10_000_f64.ln());
        let ramp = (2.0 - bound(32.0)) / (bound(1.0) - bound(32.0));
        let third = 0.01 / 4.0 * ramp + 0.01 * (1.0 - ramp);
        close(&table.inv_freq, &[1.0, 0.1, third, 0.001 / 4.0]);
    }

    #[test]
    fn yarn_attention_factor_follows_mscale() {
        let plain = 0.1 * 32_f64.ln() + 1.0;
        assert!((yarn_attention_factor(32.0, None, None) - plain).abs() < 1e-12);
        assert!((yarn_attention_factor(0.5, None, None) - 1.0).abs() < 1e-12);
        let ratio = (0.1 * 2.0 * 32_f64.ln() + 1.0) / plain;
        assert!((yarn_attention_factor(32.0, Some(2.0), Some(1.0)) - ratio).abs() < 1e-12);
        assert!((yarn_attention_factor(32.0, Some(2.0), Some(0.0)) - plain).abs() < 1e-12);
    }

    #[test]
    fn factors_divide_each_frequency_by_its_own() {
        let scaling = RopeScaling::Factors { divisors: vec![1.0, 2.0, 8.0] };
        let table = RotaryTable::new(8, 10_000.0, &scaling);
        close(&table.inv_freq, &[1.0, 0.05, 0.00125, 0.001]);
    }

    #[test]
    fn angles_are_f32_products() {
        let table = RotaryTable { inv_freq: vec![0.1], attention_scaling: 1.0 };
        let (mut cos, mut sin) = ([0.0], [0.0]);
        table.cos_sin(123_457, &mut cos, &mut sin);
        let rounded = f64::from(123_457.0_f32 * 0.1_f32);
        assert_eq!(cos[0].to_bits(), (rounded.cos() as f32).to_bits());
        assert_eq!(sin[0].to_bits(), (rounded.sin() as f32).to_bits());
    }
}
