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

/// How a token is drawn from the survivors: the draws that every backend makes.
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
}

/// Draws that are made on the host alone; a run on a device refuses them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HostDraw {
    /// The exponential race of PyTorch on CUDA over the kept slice: survivor `i` by rank takes the number of element `i` of a fill of as
    /// many elements as survive.
    TorchCudaSlice,
    /// PyTorch on a CPU: exponential race over the whole vocabulary, MT19937.
    TorchCpu,
    /// The largest `ln p + g` with counter-based noise.
    Gumbel,
}

impl HostDraw {
    /// `torch-cuda-slice`, `torch-cpu`, `gumbel`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::TorchCudaSlice => "torch-cuda-slice",
            Self::TorchCpu => "torch-cpu",
            Self::Gumbel => "gumbel",
        }
    }
}

/// Whose filters.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum FilterRules {
    /// Exactly k ids survive top-k; top-p sums from the most probable on.
    #[default]
    Native,
    /// transformers' logits processors: ties at rank k survive; top-p sums from the least probable on.
    Hf,
}

impl FilterRules {
    /// `native`, `hf`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Native => "native",
            Self::Hf => "hf",
        }
    }

    fn parse(name: &str) -> Result<Self, SampleError> {
        let found = [Self::Native, Self::Hf].into_iter().find(|rules| rules.name() == name);
        found.ok_or_else(|| SampleError::Option {
            name: "filters",
            what: format!("`{name}` is unknown; use native or hf"),
        })
    }
}

/// A draw by its name: the kind, and the host's own draw where it is one.
fn draw_named(name: &str) -> Result<(DrawKind, Option<HostDraw>), SampleError> {
    let every = [DrawKind::Argmax, DrawKind::Xorshift, DrawKind::TorchCuda];
    let hosts = [HostDraw::TorchCudaSlice, HostDraw::TorchCpu, HostDraw::Gumbel];
    let kind = every.into_iter().find(|kind| kind.name() == name).map(|kind| (kind, None));
    let host = hosts.into_iter().find(|host| host.name() == name);
    kind.or_else(|| host.map(|host| (DrawKind::TorchCuda, Some(host)))).ok_or_else(|| {
        let what = format!(
            "`{name}` is unknown; use argmax, xorshift, torch-cuda, torch-cuda-slice, torch-cpu or gumbel"
        );
        SampleError::Option { name: "sampler", what }
    })
}

/// Effective sampling settings.
#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    /// Filters in force; without effect under [`DrawKind::Argmax`].
    pub filters: Filters,
    /// Whose filters.
    pub rules: FilterRules,
    /// Draw in force, unless `host` is set.
    pub kind: DrawKind,
    /// The host's own draw in force.
    pub host: Option<HostDraw>,
    /// Base seed; `None` is unseeded.
    pub base_seed: Option<u64>,
    /// Multiprocessors of the device whose draws are reproduced.
    pub sm_count: u32,
    config: BTreeMap<String, Setting>,
}

impl Settings {
    /// Resolves `spec` for a vocabulary of `vocab` ids. What is not given: temperature 0, or 1 where another option asks for sampling;
    /// no top-k, top-p, min-p; native filters; `torch-cuda` wherever a token is drawn at all; 132 multiprocessors.
    ///
    /// # Errors
    /// [`SampleError::Option`] for a value out of its range.
    pub(super) fn resolve(spec: &SamplingSpec, vocab: usize) -> Result<Self, SampleError> {
        if vocab == 0 || u32::try_from(vocab).is_err() {
            let what = format!("a vocabulary of {vocab} ids cannot be sampled from");
            return Err(SampleError::Option { name: "vocab", what });
        }
        let asked = spec.sampler.as_deref().map(draw_named).transpose()?;
        let rules = spec.filters.as_deref().map(FilterRules::parse).transpose()?;
        let temperature = temperature(spec, asked.map(|(kind, _)| kind))?;
        let (kind, host) = if temperature.0 < GREEDY_TEMPERATURE {
            (DrawKind::Argmax, None)
        } else {
            asked.unwrap_or((DrawKind::TorchCuda, None))
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
        let rules = rules.unwrap_or_default();
        let config = BTreeMap::new();
        let mut settings = Self { filters, rules, kind, host, base_seed, sm_count, config };
        settings.describe(spec, temperature.1, asked);
        Ok(settings)
    }

    /// Every value in force with its source, under `sampling.` keys.
    #[must_use]
    pub const fn config(&self) -> &BTreeMap<String, Setting> {
        &self.config
    }

    /// `argmax`, `xorshift`, `torch-cuda`, `torch-cuda-slice`, `torch-cpu` or `gumbel`.
    #[must_use]
    pub fn draw_name(&self) -> &'static str {
        self.host.map_or(self.kind.name(), HostDraw::name)
    }

    fn describe(
        &mut self,
        spec: &SamplingSpec,
        temperature: &str,
        asked: Option<(DrawKind, Option<HostDraw>)>,
    ) {
        let given = |given: bool| if given { "flag" } else { "default" };
        let kind_source = match asked {
            Some(asked) if asked == (self.kind, self.host) => "flag",
            Some(_) => "temperature below 1e-6",
            None => "default",
        };
        let Filters { temperature: value, top_k, top_p, min_p } = self.filters;
        let seed = self.base_seed.map_or(Value::Null, Value::from);
        self.set("temperature", number(value), temperature);
        self.set("top_k", Value::from(top_k), given(spec.top_k.is_some()));
        self.set("top_p", number(top_p), given(spec.top_p.is_some()));
        self.set("min_p", number(min_p), given(spec.min_p.is_some()));
        self.set("filters", Value::from(self.rules.name()), given(spec.filters.is_some()));
        self.set("sampler", Value::from(self.draw_name()), kind_source);
        self.set("seed", seed, given(spec.seed.is_some()));
        let races = matches!(self.host, None | Some(HostDraw::TorchCudaSlice));
        if self.kind == DrawKind::TorchCuda && races {
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
        assert_eq!(refused(SamplingSpec { filters: Some("vllm".into()), ..base() }), "filters");
    }

    #[test]
    fn the_hosts_draws_and_filters_are_recorded_by_name() {
        for name in ["torch-cuda-slice", "torch-cpu", "gumbel"] {
            let settings = resolve(SamplingSpec {
                sampler: Some(name.to_owned()),
                filters: Some("hf".to_owned()),
                ..SamplingSpec::default()
            });
            assert_eq!(settings.draw_name(), name);
            assert_eq!(settings.config()["sampling.sampler"].value, name);
            assert_eq!(settings.config()["sampling.sampler"].source, "flag");
            assert_eq!(settings.config()["sampling.filters"].value, "hf");
            let races = settings.config().contains_key("sampling.sm_count");
            assert_eq!(races, name == "torch-cuda-slice");
        }
        let cold = SamplingSpec {
            temperature: Some(0.0),
            sampler: Some("torch-cpu".to_owned()),
            ..SamplingSpec::default()
        };
        assert_eq!((resolve(cold.clone()).kind, resolve(cold).host), (DrawKind::Argmax, None));
    }
}
