//! What was asked for becomes what is in force, with the source of each value.

use std::collections::BTreeMap;

use lockstep_traces::{SamplingSpec, Setting};
use serde_json::Value;

use super::error::SampleError;
use super::filter::Filters;

/// Temperatures below this mean argmax.
pub(super) const GREEDY_TEMPERATURE: f32 = 1e-6;
/// Multiprocessors of an H200.
const DEFAULT_SM_COUNT: u32 = 132;
/// Seed of a request that samples without one.
pub(super) const UNSEEDED: u64 = 42;

/// How a token is drawn from the survivors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DrawKind {
    /// Largest logit, lowest id on ties. No random number.
    Argmax,
    /// The native CPU draw: xorshift64 and the running sum.
    Xorshift,
    /// PyTorch on CUDA: exponential race over the whole vocabulary.
    TorchCuda,
}

impl DrawKind {
    /// `argmax`, `xorshift`, `torch-cuda`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Argmax => "argmax",
            Self::Xorshift => "xorshift",
            Self::TorchCuda => "torch-cuda",
        }
    }

    fn parse(name: &str) -> Result<Self, SampleError> {
        [Self::Argmax, Self::Xorshift, Self::TorchCuda]
            .into_iter()
            .find(|kind| kind.name() == name)
            .ok_or_else(|| SampleError::Option {
                name: "sampler",
                what: format!("`{name}` is unknown; use argmax, xorshift or torch-cuda"),
            })
    }
}

/// Effective sampling settings.
#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    /// Filters in force; without effect under [`DrawKind::Argmax`].
    pub filters: Filters,
    /// Draw in force.
    pub kind: DrawKind,
    /// Base seed; `None` is unseeded.
    pub base_seed: Option<u64>,
    /// Multiprocessors of the device whose draws are reproduced.
    pub sm_count: u32,
    config: BTreeMap<String, Setting>,
}

impl Settings {
    /// Resolves `spec` for a vocabulary of `vocab` ids. What is not given: temperature 0, or 1 where another option asks for sampling;
    /// no top-k, top-p, min-p; `torch-cuda` wherever a token is drawn at all; 132 multiprocessors.
    ///
    /// # Errors
    /// [`SampleError::Option`] for a value out of its range.
    pub(super) fn resolve(spec: &SamplingSpec, vocab: usize) -> Result<Self, SampleError> {
        if vocab == 0 || u32::try_from(vocab).is_err() {
            let what = format!("a vocabulary of {vocab} ids cannot be sampled from");
            return Err(SampleError::Option { name: "vocab", what });
        }
        let asked = spec.sampler.as_deref().map(DrawKind::parse).transpose()?;
        let temperature = temperature(spec, asked)?;
        let kind = if temperature.0 < GREEDY_TEMPERATURE {
            DrawKind::Argmax
        } else {
            asked.unwrap_or(DrawKind::TorchCuda)
        };
        let top_k = match spec.top_k {
            Some(k) if k > 0 => usize::try_from(k).unwrap_or(vocab).min(vocab),
            _ => vocab,
        };
        let top_p = unit_interval("top_p", spec.top_p, 1.0)?;
        let min_p = unit_interval("min_p", spec.min_p, 0.0)?;
        let sm_count = spec.sm_count.unwrap_or(DEFAULT_SM_COUNT);
        if sm_count == 0 {
            let what = "a device has at least one multiprocessor".to_owned();
            return Err(SampleError::Option { name: "sm_count", what });
        }
        let base_seed = spec.seed.and_then(|seed| u64::try_from(seed).ok());
        let filters = Filters { temperature: temperature.0, top_k, top_p, min_p };
        let mut settings = Self { filters, kind, base_seed, sm_count, config: BTreeMap::new() };
        settings.describe(spec, temperature.1, asked);
        Ok(settings)
    }

    /// Every value in force with its source, under `sampling.` keys.
    #[must_use]
    pub const fn config(&self) -> &BTreeMap<String, Setting> {
        &self.config
    }

    fn describe(&mut self, spec: &SamplingSpec, temperature: &str, asked: Option<DrawKind>) {
        let given = |given: bool| if given { "flag" } else { "default" };
        let kind_source = match asked {
            Some(asked) if asked == self.kind => "flag",
            Some(_) => "temperature below 1e-6",
            None => "default",
        };
        let Filters { temperature: value, top_k, top_p, min_p } = self.filters;
        let seed = self.base_seed.map_or(Value::Null, Value::from);
        self.set("temperature", number(value), temperature);
        self.set("top_k", Value::from(top_k), given(spec.top_k.is_some()));
        self.set("top_p", number(top_p), given(spec.top_p.is_some()));
        self.set("min_p", number(min_p), given(spec.min_p.is_some()));
        self.set("sampler", Value::from(self.kind.name()), kind_source);
        self.set("seed", seed, given(spec.seed.is_some()));
        if self.kind == DrawKind::TorchCuda {
            self.set("sm_count", Value::from(self.sm_count), given(spec.sm_count.is_some()));
        }
        if self.kind != DrawKind::Argmax && self.base_seed.is_none() {
            self.set("unseeded_seed", Value::from(UNSEEDED), "default");
        }
    }

    fn set(&mut self, key: &str, value: Value, source: &str) {
        self.config.insert(format!("sampling.{key}"), Setting { value, source: source.to_owned() });
    }
}

/// The shortest decimal that gives the f32 back, so that 0.6 reads 0.6.
fn number(value: f32) -> Value {
    value.to_string().parse::<f64>().map_or(Value::Null, Value::from)
}

fn temperature(
    spec: &SamplingSpec,
    asked: Option<DrawKind>,
) -> Result<(f32, &'static str), SampleError> {
    if let Some(value) = spec.temperature {
        if !value.is_finite() || value < 0.0 {
            let what = format!("{value} is no temperature; use 0 for argmax or a positive number");
            return Err(SampleError::Option { name: "temperature", what });
        }
        return Ok((value, "flag"));
    }
    let samples = asked.is_some_and(|kind| kind != DrawKind::Argmax)
        || spec.top_k.is_some_and(|k| k > 1)
        || spec.top_p.is_some_and(|p| p < 1.0)
        || spec.min_p.is_some_and(|p| p > 0.0)
        || spec.seed.is_some_and(|seed| seed >= 0);
    Ok(if samples {
        (1.0, "default, since another option asks for sampling")
    } else {
        (0.0, "default")
    })
}

fn unit_interval(name: &'static str, value: Option<f32>, default: f32) -> Result<f32, SampleError> {
    let value = value.unwrap_or(default);
    if (0.0..=1.0).contains(&value) {
        return Ok(value);
    }
    Err(SampleError::Option { name, what: format!("{value} lies outside 0 to 1") })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resolve(spec: SamplingSpec) -> Settings {
        Settings::resolve(&spec, 1000).unwrap()
    }

    #[test]
    fn nothing_asked_for_is_argmax() {
        let settings = resolve(SamplingSpec::default());
        assert_eq!(settings.kind, DrawKind::Argmax);
        assert_eq!(settings.config()["sampling.sampler"].value, "argmax");
        assert!(!settings.config().contains_key("sampling.unseeded_seed"));
    }

    #[test]
    fn values_are_recorded_with_their_source() {
        let settings = resolve(SamplingSpec {
            temperature: Some(0.6),
            top_p: Some(0.95),
            top_k: Some(-1),
            ..SamplingSpec::default()
        });
        let config = settings.config();
        assert_eq!(config["sampling.temperature"].value, 0.6);
        assert_eq!(config["sampling.temperature"].source, "flag");
        assert_eq!(config["sampling.top_k"].value, 1000);
        assert_eq!(config["sampling.min_p"].source, "default");
        assert_eq!(config["sampling.sampler"].value, "torch-cuda");
        assert_eq!(config["sampling.sm_count"].value, 132);
        assert_eq!(config["sampling.unseeded_seed"].value, 42);
    }

    #[test]
    fn a_cold_temperature_overrides_the_sampler() {
        let cold = SamplingSpec {
            temperature: Some(9e-7),
            sampler: Some("xorshift".to_owned()),
            ..SamplingSpec::default()
        };
        let settings = resolve(cold);
        assert_eq!(settings.kind, DrawKind::Argmax);
        assert_eq!(settings.config()["sampling.sampler"].source, "temperature below 1e-6");
    }

    #[test]
    fn a_seed_alone_asks_for_sampling_and_a_negative_one_does_not() {
        let seeded = |seed| resolve(SamplingSpec { seed: Some(seed), ..SamplingSpec::default() });
        assert_eq!((seeded(7).kind, seeded(7).base_seed), (DrawKind::TorchCuda, Some(7)));
        assert_eq!((seeded(-1).kind, seeded(-1).base_seed), (DrawKind::Argmax, None));
    }

    #[test]
    fn values_out_of_range_are_refused() {
        let refused = |spec: SamplingSpec| match Settings::resolve(&spec, 1000) {
            Err(SampleError::Option { name, .. }) => name,
            other => panic!("{other:?}"),
        };
        let base = SamplingSpec::default;
        assert_eq!(refused(SamplingSpec { temperature: Some(-1.0), ..base() }), "temperature");
        assert_eq!(refused(SamplingSpec { temperature: Some(f32::NAN), ..base() }), "temperature");
        assert_eq!(refused(SamplingSpec { top_p: Some(1.5), ..base() }), "top_p");
        assert_eq!(refused(SamplingSpec { min_p: Some(f32::NAN), ..base() }), "min_p");
        assert_eq!(refused(SamplingSpec { sm_count: Some(0), ..base() }), "sm_count");
        assert_eq!(refused(SamplingSpec { sampler: Some("mt19937".into()), ..base() }), "sampler");
    }
}
