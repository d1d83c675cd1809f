//! Rotary position embedding: inverse frequencies, attention scaling and the cos/sin tables.
//!
//! Frequencies follow `modeling_rope_utils` of Hugging Face transformers: an f32 buffer of `head_dim / 2` values,
//! `theta^(-2i/head_dim)`, then reshaped by the scaling named in the configuration. Pairs are halves: element `i`
//! turns with element `i + head_dim/2`. A table row holds `cos(p * w_i)` and `sin(p * w_i)`, both times the
//! attention scaling.

use std::path::Path;

use lockstep_traces::{ModelConfig, RopeParameters};

use crate::ReferenceError;

/// Scaling of the frequencies.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum RopeKind {
    /// None.
    Default,
    /// Every frequency divided by `factor`.
    Linear {
        /// Divisor.
        factor: f64,
    },
    /// Long wavelengths divided by `factor`, short ones kept, a ramp between.
    Llama3 {
        /// Divisor.
        factor: f64,
        /// Wavelengths above `original / low` are divided.
        low: f64,
        /// Wavelengths below `original / high` are kept.
        high: f64,
        /// Context length of pretraining.
        original: f64,
    },
    /// YaRN (arXiv:2309.00071): a ramp over dimensions between interpolation and extrapolation.
    Yarn {
        /// Divisor of the interpolated part.
        factor: f64,
        /// Rotations above which a dimension is extrapolated.
        beta_fast: f64,
        /// Rotations below which a dimension is interpolated.
        beta_slow: f64,
        /// Context length of pretraining.
        original: f64,
        /// Ends of the ramp are rounded outward to whole dimensions.
        truncate: bool,
    },
    /// Each frequency divided by its own divisor.
    Factors,
}

impl RopeKind {
    /// The name in `config.json`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Default => "default",
            Self::Linear { .. } => "linear",
            Self::Llama3 { .. } => "llama3",
            Self::Yarn { .. } => "yarn",
            Self::Factors => "factors",
        }
    }
}

/// Resolved rotary parameters.
#[derive(Debug, Clone, PartialEq)]
pub struct Rope {
    /// Base.
    pub theta: f64,
    /// Scaling.
    pub kind: RopeKind,
    /// Factor on cos and sin (1 except under YaRN).
    pub attention_scaling: f64,
    /// Head width.
    pub head_dim: usize,
    /// Frequencies to use instead of the computed ones.
    given: Option<Vec<f32>>,
    /// Divisors of [`RopeKind::Factors`].
    divisors: Vec<f32>,
}

impl Rope {
    /// Resolves the rotary block; the flag is true where theta is the family's default of 10000.
    ///
    /// The newer spelling `rope_parameters` wins over `rope_scaling`, and a base nested in the block over a top-level one.
    ///
    /// # Errors
    /// Unknown scaling, a missing or unusable parameter.
    pub fn resolve(
        config: &ModelConfig,
        head_dim: usize,
        path: &Path,
    ) -> Result<(Self, bool), ReferenceError> {
        let empty = RopeParameters::default();
        let block =
            config.rope_parameters.as_ref().or(config.rope_scaling.as_ref()).unwrap_or(&empty);
        let fail = |what: String| ReferenceError::Config { path: path.to_path_buf(), what };
        let given = block.rope_theta.or(config.rope_theta);
        let theta = given.unwrap_or(10_000.0);
        if !(theta.is_finite() && theta > 1.0) {
            return Err(fail(format!("rope_theta = {theta} is no usable base")));
        }
        let need = |name: &str, value: Option<f64>| match value {
            Some(value) if value.is_finite() && value > 0.0 => Ok(value),
            Some(value) => Err(fail(format!("RoPE parameter {name} = {value} must be positive"))),
            None => Err(fail(format!("RoPE parameter {name} is missing"))),
        };
        let context = config.max_position_embeddings.map(|length| length as f64);
        let original = || {
            need(
                "original_max_position_embeddings",
                block.original_max_position_embeddings.or(context),
            )
        };
        let kind = match block.rope_type.as_deref().unwrap_or("default") {
            "default" => RopeKind::Default,
            "linear" => RopeKind::Linear { factor: need("factor", block.factor)? },
            "llama3" => RopeKind::Llama3 {
                factor: need("factor", block.factor)?,
                low: need("low_freq_factor", block.low_freq_factor)?,
                high: need("high_freq_factor", block.high_freq_factor)?,
                original: original()?,
            },
            "yarn" => {
                let original = original()?;
                // An explicit factor wins; without one it is the ratio of the two context lengths.
                let factor = block.factor.or(context.map(|length| length / original));
                RopeKind::Yarn {
                    factor: need("factor", factor)?,
                    // Zero means absent here, as in Python's `or`.
                    beta_fast: block.beta_fast.filter(|beta| *beta > 0.0).unwrap_or(32.0),
                    beta_slow: block.beta_slow.filter(|beta| *beta > 0.0).unwrap_or(1.0),
                    original,
                    truncate: block.truncate.unwrap_or(true),
                }
            }
            "factors" => RopeKind::Factors,
            other => {
                return Err(fail(format!(
                    "rope_type `{other}` is not computed; default, linear, llama3 and yarn are"
                )));
            }
        };
        let divisors = block.freq_factors.clone().unwrap_or_default();
        let usable = |divisor: &f32| divisor.is_finite() && *divisor > 0.0;
        if kind == RopeKind::Factors
            && (divisors.len() != head_dim / 2 || !divisors.iter().all(usable))
        {
            return Err(fail(format!("RoPE needs {} positive divisors", head_dim / 2)));
        }
        let attention_scaling = attention_scaling(kind, block);
        let rope = Self { theta, kind, attention_scaling, head_dim, given: None, divisors };
        Ok((rope, given.is_none()))
    }

    /// The same with another base; for hypotheses about a recording.
    #[must_use]
    pub fn with_theta(&self, theta: f64) -> Self {
        Self { theta, given: None, ..self.clone() }
    }

    /// The same with other frequencies (`head_dim / 2`), for a program whose buffer was cast to a narrow dtype.
    #[must_use]
    pub fn with_inv_freq(&self, freqs: Vec<f32>) -> Self {
        Self { given: Some(freqs), ..self.clone() }
    }

    /// Inverse frequencies, `head_dim / 2` values in f32, each operation rounded to f32 as in the original.
    #[must_use]
    pub fn inv_freq(&self) -> Vec<f32> {
        if let Some(given) = &self.given {
            return given.clone();
        }
        let half = self.head_dim / 2;
        let periods = (0..half).map(|index| {
            let exponent = (2 * index) as f32 / self.head_dim as f32;
            self.theta.powf(f64::from(exponent)) as f32
        });
        match self.kind {
            RopeKind::Default => periods.map(|period| 1.0 / period).collect(),
            RopeKind::Factors => periods
                .zip(&self.divisors)
                .map(|(period, divisor)| 1.0 / period / divisor)
                .collect(),
            RopeKind::Linear { factor } => {
                periods.map(|period| 1.0 / period / factor as f32).collect()
            }
            RopeKind::Llama3 { factor, low, high, original } => periods
                .map(|period| llama3(1.0 / period, [factor, low, high, original].map(|v| v as f32)))
                .collect(),
            RopeKind::Yarn { factor, .. } => {
                let (start, end) = self.yarn_ramp();
                periods
                    .enumerate()
                    .map(|(index, period)| {
                        let ramp = ((index as f32 - start) / (end - start)).clamp(0.0, 1.0);
                        let keep = 1.0 - ramp;
                        1.0 / (factor as f32 * period) * (1.0 - keep) + 1.0 / period * keep
                    })
                    .collect()
            }
        }
    }

    /// First and last dimension of YaRN's ramp.
    fn yarn_ramp(&self) -> (f32, f32) {
        let RopeKind::Yarn { beta_fast, beta_slow, original, truncate, .. } = self.kind else {
            return (0.0, 1.0);
        };
        let dim = self.head_dim as f64;
        let at = |rotations: f64| {
            dim * (original / (rotations * std::f64::consts::TAU)).ln() / (2.0 * self.theta.ln())
        };
        let (mut start, mut end) = (at(beta_fast), at(beta_slow));
        if truncate {
            (start, end) = (start.floor(), end.ceil());
        }
        let (start, end) = (start.max(0.0), end.min(dim - 1.0));
        // A ramp of no length would divide by zero; the original widens it by the same amount.
        let end = if (end - start).abs() < f64::EPSILON { end + 0.001 } else { end };
        (start as f32, end as f32)
    }

    /// cos and sin, `[positions, head_dim / 2]` each. In f32 the angle is one f32 product, as an engine with an f32
    /// rotary buffer has it; the cosine of that angle is then correctly rounded.
    #[must_use]
    pub fn table_f32(&self, positions: &[u32]) -> (Vec<f32>, Vec<f32>) {
        let scaling = self.attention_scaling as f32;
        let freqs = self.inv_freq();
        let angles = positions
            .iter()
            .flat_map(|position| freqs.iter().map(move |freq| f64::from(*position as f32 * freq)));
        angles.map(|angle| (angle.cos() as f32 * scaling, angle.sin() as f32 * scaling)).unzip()
    }

    /// As [`Rope::table_f32`] in f64. The frequencies are still the f32 buffer: they are parameters of the model,
    /// and a finer value would be another model, off by 1e-3 radian at position 10,000.
    #[must_use]
    pub fn table_f64(&self, positions: &[u32]) -> (Vec<f64>, Vec<f64>) {
        let freqs = self.inv_freq();
        let angles = positions.iter().flat_map(|position| {
            freqs.iter().map(move |freq| f64::from(*position) * f64::from(*freq))
        });
        angles
            .map(|angle| {
                (angle.cos() * self.attention_scaling, angle.sin() * self.attention_scaling)
            })
            .unzip()
    }
}

fn attention_scaling(kind: RopeKind, block: &RopeParameters) -> f64 {
    let RopeKind::Yarn { factor, .. } = kind else { return 1.0 };
    if let Some(given) = block.attention_factor {
        return given;
    }
    let by_scale = |mscale: f64| if factor <= 1.0 { 1.0 } else { 0.1 * mscale * factor.ln() + 1.0 };
    match (block.mscale, block.mscale_all_dim) {
        (Some(one), Some(all)) if one != 0.0 && all != 0.0 => by_scale(one) / by_scale(all),
        _ => by_scale(1.0),
    }
}

fn llama3(freq: f32, [factor, low, high, original]: [f32; 4]) -> f32 {
    let wavelength = std::f32::consts::TAU / freq;
    if wavelength > original / low {
        freq / factor
    } else if wavelength < original / high {
        freq
    } else {
        let smooth = (original / wavelength - low) / (high - low);
        (1.0 - smooth) * freq / factor + smooth * freq
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rope(block: RopeParameters, context: usize, head_dim: usize) -> Rope {
        let config = ModelConfig {
            rope_parameters: Some(block),
            max_position_embeddings: Some(context),
            ..ModelConfig::default()
        };
        Rope::resolve(&config, head_dim, Path::new("config.json")).unwrap().0
    }

    fn block(kind: &str) -> RopeParameters {
        RopeParameters {
            rope_type: Some(kind.to_owned()),
            rope_theta: Some(10_000.0),
            ..RopeParameters::default()
        }
    }

    fn close(left: f32, right: f64) {
        assert!((f64::from(left) / right - 1.0).abs() < 3e-7, "{left} against {right}");
    }

    #[test]
    fn plain_frequencies_are_powers_of_the_base() {
        let freqs = rope(block("default"), 64, 8).inv_freq();
        for (freq, expected) in freqs.iter().zip([1.0, 0.1, 0.01, 0.001]) {
            close(*freq, expected);
        }
    }

    #[test]
    fn linear_divides_every_frequency() {
        let freqs = rope(RopeParameters { factor: Some(4.0), ..block("linear") }, 64, 4).inv_freq();
        close(freqs[0], 0.25);
        close(freqs[1], 0.0025);
    }

    #[test]
    fn llama3_keeps_short_and_divides_long_wavelengths() {
        // Wavelengths 6.28, 62.8, 628, 6283 against bounds 8192/4 = 2048 and 8192/1 = 8192: three kept, one on the ramp.
        let freqs = rope(
            RopeParameters {
                factor: Some(8.0),
                low_freq_factor: Some(1.0),
                high_freq_factor: Some(4.0),
                original_max_position_embeddings: Some(8192.0),
                ..block("llama3")
            },
            131_072,
            8,
        )
        .inv_freq();
        close(freqs[2], 0.01);
        let smooth = (8192.0 * 0.001 / std::f64::consts::TAU - 1.0) / 3.0;
        close(freqs[3], 0.001 * ((1.0 - smooth) / 8.0 + smooth));
    }

    #[test]
    fn yarn_ramps_between_extrapolation_and_interpolation() {
        let yarn = rope(
            RopeParameters {
                factor: Some(4.0),
                original_max_position_embeddings: Some(32_768.0),
                ..block("yarn")
            },
            131_072,
            8,
        );
        assert!((yarn.attention_scaling - (0.1 * 4f64.ln() + 1.0)).abs() < 1e-12);
        // Correction dims: 8 ln(32768/(2 pi b)) / (2 ln 10000) = 2.21 for b = 32 and 3.72 for b = 1, so the ramp runs from 2 to 4.
        let freqs = yarn.inv_freq();
        close(freqs[1], 0.1);
        close(freqs[2], 0.01);
        close(freqs[3], 0.001 * (0.5 + 0.5 / 4.0));
        let untruncated = rope(
            RopeParameters {
                factor: Some(4.0),
                original_max_position_embeddings: Some(32_768.0),
                truncate: Some(false),
                ..block("yarn")
            },
            131_072,
            8,
        );
        assert!((untruncated.yarn_ramp().0 - 2.21).abs() < 0.02, "{:?}", untruncated.yarn_ramp());
    }

    #[test]
    fn yarn_takes_the_factor_from_the_context_lengths_when_it_is_left_out() {
        let parameters =
            RopeParameters { original_max_position_embeddings: Some(64.0), ..block("yarn") };
        let kind = rope(parameters, 256, 8).kind;
        assert!(matches!(kind, RopeKind::Yarn { factor, .. } if (factor - 4.0).abs() < 1e-12));
    }

    #[test]
    fn a_table_row_is_cos_and_sin_of_position_times_frequency() {
        let (cos, sin) = rope(block("default"), 64, 4).table_f64(&[0, 3]);
        assert_eq!((cos[0].to_bits(), sin[1].to_bits()), (1f64.to_bits(), 0f64.to_bits()));
        assert!((cos[2] - 3f64.cos()).abs() < 1e-15 && (sin[3] - 0.03f64.sin()).abs() < 1e-8);
    }

    #[test]
    fn missing_and_unknown_parameters_are_named() {
        let fails = |parameters: RopeParameters| {
            let config =
                ModelConfig { rope_parameters: Some(parameters), ..ModelConfig::default() };
            Rope::resolve(&config, 8, Path::new("config.json")).unwrap_err().to_string()
        };
        assert!(fails(block("linear")).contains("factor is missing"));
        assert!(fails(block("longrope")).contains("longrope"));
        assert!(
            fails(RopeParameters { rope_theta: Some(-1.0), ..block("default") })
                .contains("rope_theta")
        );
    }
}
