//! Rotary position embedding: inverse frequencies, attention scaling and the cos/sin tables.
//!
//! Frequencies follow `modeling_rope_utils` of Hugging Face transformers: an f32 buffer of `head_dim / 2` values,
//! `theta^(-2i/head_dim)`, then reshaped by the scaling named in the configuration. Pairs are halves: element `i`
//! turns with element `i + head_dim/2`. A table row holds `cos(p * w_i)` and `sin(p * w_i)`, both times the
//! attention scaling.

use std::path::Path;

use lockstep_traces::{ModelConfig, RopeParameters};

use crate::ReferenceError;
use crate::select::Real;

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
        self.frequencies()
    }

    /// The same in f64: what the configuration asks for, before any rounding. Divisors of the configuration keep their f32 values.
    #[must_use]
    pub fn inv_freq_f64(&self) -> Vec<f64> {
        self.frequencies()
    }

    fn frequencies<R: Real>(&self) -> Vec<R> {
        if let Some(given) = &self.given {
            return given.iter().map(|freq| R::of(f64::from(*freq))).collect();
        }
        let half = self.head_dim / 2;
        let one = R::of(1.0);
        let periods = (0..half).map(|index| {
            let exponent = R::of((2 * index) as f64) / R::of(self.head_dim as f64);
            R::of(self.theta.powf(exponent.wide()))
        });
        match self.kind {
            RopeKind::Default => periods.map(|period| one / period).collect(),
            RopeKind::Factors => periods
                .zip(&self.divisors)
                .map(|(period, divisor)| one / period / R::of(f64::from(*divisor)))
                .collect(),
            RopeKind::Linear { factor } => {
                periods.map(|period| one / period / R::of(factor)).collect()
            }
            RopeKind::Llama3 { factor, low, high, original } => periods
                .map(|period| llama3(one / period, [factor, low, high, original].map(R::of)))
                .collect(),
            RopeKind::Yarn { factor, .. } => {
                let (start, end) = self.yarn_ramp();
                let (start, end) = (R::of(start), R::of(end));
                periods
                    .enumerate()
                    .map(|(index, period)| {
                        let ramp = clamp((R::of(index as f64) - start) / (end - start));
                        let keep = one - ramp;
                        one / (R::of(factor) * period) * (one - keep) + one / period * keep
                    })
                    .collect()
            }
        }
    }

    /// First and last dimension of YaRN's ramp.
    fn yarn_ramp(&self) -> (f64, f64) {
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
        (start, end)
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

fn llama3<R: Real>(freq: R, [factor, low, high, original]: [R; 4]) -> R {
    let one = R::of(1.0);
    let wavelength = R::of(std::f64::consts::TAU) / freq;
    if wavelength > original / low {
        freq / factor
    } else if wavelength < original / high {
        freq
    } else {
        let smooth = (original / wavelength - low) / (high - low);
        (one - smooth) * freq / factor + smooth * freq
    }
}

/// Into 0 ..= 1.
fn clamp<R: Real>(value: R) -> R {
    if value < R::ZERO {
        R::ZERO
    } else if value > R::of(1.0) {
        R::of(1.0)
    } else {
        value
    }
}

#[cfg(test)]
mod tests;
