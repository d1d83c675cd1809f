//! The recorded policy, heads and frequencies.

use lockstep_reference::rope::Rope;
use lockstep_reference::select::{HeadArrays, HeadStats, Rules};
use lockstep_traces::stats::QueryStats;
use lockstep_traces::{Manifest, ModelConfig, PolicyKind, PolicySpec, RopeParameters, RuleSet};
use serde::Deserialize;
use serde_json::{Map, Value};

use super::{SelectorError, SelectorOptions};

/// The policy that the manifest records, as asked for: unknown `policy.*` keys are passed over.
pub(super) fn policy(manifest: &Manifest) -> Result<PolicySpec, SelectorError> {
    let known = serde_json::to_value(PolicySpec::default()).unwrap_or_default();
    let mut fields = Map::new();
    for (key, setting) in &manifest.config {
        let Some(name) = key.strip_prefix("policy.") else { continue };
        if known.get(name).is_some() {
            fields.insert(name.to_owned(), setting.value.clone());
        }
    }
    PolicySpec::deserialize(Value::Object(fields)).map_err(|error| SelectorError::Manifest {
        what: format!("a `policy.*` setting cannot be read: {error}"),
    })
}

/// Layers of the model, where the run records their number.
pub(super) fn layers(manifest: &Manifest) -> Option<u32> {
    u32::try_from(manifest.get("model.num_hidden_layers")?.as_u64()?).ok()
}

/// The statistics file that the run names, where it is still there.
pub(super) fn stats_path(manifest: &Manifest) -> Option<std::path::PathBuf> {
    let path = std::path::PathBuf::from(manifest.get("policy.stats")?.as_str()?);
    path.is_file().then_some(path)
}

/// Why the recorded policy has no selector to recompute, if it has none.
pub(super) fn without_selector(spec: &PolicySpec) -> Option<&'static str> {
    match spec.kind {
        Some(PolicyKind::Dense) => Some("policy `dense` never compacts"),
        Some(PolicyKind::Recent) => Some("policy `recent` ranks nothing"),
        Some(PolicyKind::Random) => Some("policy `random` draws its rows and ranks nothing"),
        Some(PolicyKind::Triattention) | None => None,
    }
}

/// What the selection depends on and the run does not record, as a remark.
pub(super) fn unrecorded(spec: &PolicySpec, rules: &Rules) -> Option<String> {
    let tables = matches!(rules.rule_set, RuleSet::Vllm | RuleSet::Sglang);
    let windowed = matches!(rules.rule_set, RuleSet::Trt | RuleSet::Vllm);
    let protects = spec.protect_prefill.is_none() && spec.allow_prefill_compression.is_none();
    let wanted = [
        ("rule_set", spec.rule_set.is_none()),
        ("kv_budget (the rows kept are taken)", spec.kv_budget.is_none()),
        ("recent_window", windowed && spec.recent_window.is_none()),
        ("protect_prefill", protects),
        ("divide_length", tables && spec.divide_length.is_none()),
    ];
    let missing: Vec<&str> =
        wanted.iter().filter(|(_, gone)| *gone).map(|(name, _)| *name).collect();
    (!missing.is_empty()).then(|| {
        format!("not recorded, so that the rule set's default is judged by: {}", missing.join(", "))
    })
}

/// Resolved rules under the recorded rule set or another one. Settings that the other set lacks are left out.
pub(super) fn rules(
    spec: &PolicySpec,
    rule_set: Option<RuleSet>,
) -> Result<Rules, lockstep_reference::select::SelectError> {
    let Some(other) = rule_set.filter(|other| Some(*other) != spec.rule_set) else {
        return Rules::resolve(spec);
    };
    // What one set calls its default is no choice for another: only the sizes and switches that every set has go over.
    Rules::resolve(&PolicySpec {
        kind: spec.kind,
        rule_set: Some(other),
        kv_budget: spec.kv_budget,
        divide_length: spec.divide_length,
        recent_window: spec.recent_window,
        protect_prefill: spec.protect_prefill,
        count_prompt_tokens: spec.count_prompt_tokens,
        offset_max_length: spec.offset_max_length,
        score_aggregation: spec.score_aggregation,
        max_rows: spec.max_rows,
        ..PolicySpec::default()
    })
}

/// What the scores are computed with.
#[derive(Debug, Clone)]
pub(super) struct Model {
    pub(super) stats: HeadStats,
    pub(super) q_heads: usize,
    /// Frequencies that follow from the model's configuration, where they are known and not those in use.
    pub(super) other_omega: Option<Vec<f32>>,
    /// Remarks for the report.
    pub(super) notes: Vec<String>,
}

/// Heads and frequencies: hf takes its frequencies from the model's configuration, the others from the statistics file
/// where it holds them (`TRIATTENTION.md` section 1).
pub(super) fn model(
    manifest: &Manifest,
    stats: &QueryStats,
    options: &SelectorOptions,
    rule_set: RuleSet,
) -> Result<Model, SelectorError> {
    let config = options.model.clone().unwrap_or_else(|| recorded_config(manifest));
    let highest = stats.heads.iter().max().map_or(0, |head| *head as usize + 1);
    let q_heads = config.num_attention_heads.unwrap_or(highest);
    let rope = rope(&config, stats.freqs)?;
    let from_model = rope.as_ref().map(Rope::inv_freq).filter(|omega| omega.len() == stats.freqs);
    let (first, second) = match rule_set {
        RuleSet::Hf => (from_model.clone(), stats.inv_freq.clone()),
        _ => (stats.inv_freq.clone(), from_model.clone()),
    };
    let mut notes = Vec::new();
    let omega = options.inv_freq.clone().or(first).or(second).ok_or_else(|| {
        SelectorError::Manifest {
            what: "no inverse frequencies: the statistics hold none and the run records no rope_theta; give the model's config.json".to_owned(),
        }
    })?;
    let differs =
        |other: &Vec<f32>| other.iter().zip(&omega).any(|(a, b)| a.to_bits() != b.to_bits());
    let other_omega = [from_model, stats.inv_freq.clone()].into_iter().flatten().find(differs);
    if other_omega.is_some() {
        notes.push(
            "inverse frequencies of the statistics and of the model differ in their bits"
                .to_owned(),
        );
    }
    let scaling = rope.map_or(1.0, |rope| rope.attention_scaling);
    let ones = vec![(scaling * scaling) as f32; stats.freqs];
    let stats = HeadStats::new(HeadArrays {
        layers: &stats.layers,
        heads: &stats.heads,
        mean_real: &stats.q_mean_real,
        mean_imag: &stats.q_mean_imag,
        modulus: &stats.q_abs_mean,
        omega: &omega,
        scale: Some(stats.freq_scale_sq.as_deref().unwrap_or(&ones)),
        sampled: Some(&stats.sampled),
    })?;
    Ok(Model { stats, q_heads, other_omega, notes })
}

/// The rotary block, where a base is known.
fn rope(config: &ModelConfig, freqs: usize) -> Result<Option<Rope>, SelectorError> {
    let block = config.rope_parameters.as_ref().or(config.rope_scaling.as_ref());
    let known =
        config.rope_theta.is_some() || block.is_some_and(|block| block.rope_theta.is_some());
    // A configuration that was given may leave the base at its family's default; a manifest that says nothing may not.
    if !known && config.model_type.is_none() && config.architectures.is_none() {
        return Ok(None);
    }
    let head_dim = config.head_dim.unwrap_or(freqs * 2);
    let (rope, _) = Rope::resolve(config, head_dim, std::path::Path::new("config.json"))?;
    Ok(Some(rope))
}

/// What the manifest tells of the configuration. Parameters of a scaling are not recorded, so that only the plain base
/// can be resolved from here.
fn recorded_config(manifest: &Manifest) -> ModelConfig {
    let number = |key: &str| manifest.get(key).and_then(Value::as_f64);
    let size = |key: &str| {
        manifest.get(key).and_then(Value::as_u64).and_then(|value| usize::try_from(value).ok())
    };
    let kind = manifest.get("model.rope_type").and_then(Value::as_str).unwrap_or("default");
    let mut config = ModelConfig {
        num_attention_heads: size("model.num_attention_heads"),
        num_key_value_heads: size("model.num_key_value_heads"),
        head_dim: size("model.head_dim"),
        ..ModelConfig::default()
    };
    if kind == "default" {
        let rope_theta = number("model.rope_theta");
        config.rope_theta = rope_theta;
        config.rope_parameters = rope_theta
            .map(|theta| RopeParameters { rope_theta: Some(theta), ..RopeParameters::default() });
    }
    config
}

/// Inverse frequencies of the silent fallback: base 10000, no scaling.
pub(super) fn fallback_omega(freqs: usize) -> Vec<f32> {
    let config = ModelConfig { rope_theta: Some(10_000.0), ..ModelConfig::default() };
    Rope::resolve(&config, freqs * 2, std::path::Path::new("config.json"))
        .map_or_else(|_| Vec::new(), |(rope, _)| rope.inv_freq())
}

#[cfg(test)]
mod tests {
    use lockstep_traces::manifest::Producer;
    use lockstep_traces::{Aggregation, SelectionMode};

    use super::*;

    fn manifest() -> Manifest {
        let mut manifest = Manifest::new(Producer::default(), "cpu");
        manifest.set("policy.kind", "triattention", "flag");
        manifest.set("policy.rule_set", "vllm", "flag");
        manifest.set("policy.kv_budget", 24, "flag");
        manifest.set("policy.layer_aggregation", "max", "flag");
        manifest.set("policy.mode", "per_layer", "rule set");
        manifest.set("policy.something_new", 1, "flag");
        manifest
    }

    #[test]
    fn the_recorded_policy_is_read_back() {
        let spec = policy(&manifest()).unwrap();
        assert_eq!(spec.rule_set, Some(RuleSet::Vllm));
        assert_eq!(spec.kv_budget, Some(24));
        assert_eq!(spec.layer_aggregation, Some(Aggregation::Max));
        assert_eq!(spec.mode, Some(SelectionMode::PerLayer));
        assert_eq!(rules(&spec, Some(RuleSet::Trt)).unwrap().mode, SelectionMode::PerHead);
        assert_eq!(rules(&spec, Some(RuleSet::Trt)).unwrap().kv_budget, 24);
    }

    #[test]
    fn a_setting_of_another_kind_is_an_error() {
        let mut manifest = manifest();
        manifest.set("policy.kv_budget", "many", "flag");
        assert!(matches!(policy(&manifest), Err(SelectorError::Manifest { .. })));
    }

    #[test]
    fn the_fallback_is_base_ten_thousand() {
        let omega = fallback_omega(2);
        assert_eq!(omega.len(), 2);
        assert!((omega[1] - 0.01).abs() < 1e-8);
    }
}
