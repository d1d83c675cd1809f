//! Tables that known mistakes give.

use half::{bf16, f16};
use lockstep_reference::rope::{Rope, RopeKind};
use lockstep_traces::{ModelConfig, RopeParameters};

use super::RopeConfig;

/// The base that frameworks take where a configuration says none.
const FALLBACK: f64 = 10_000.0;

/// A table under one mistake.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Variant {
    pub(super) name: &'static str,
    pub(super) words: String,
    pub(super) values: Vec<f64>,
}

/// Every mistake that changes the table of this configuration.
pub(super) fn variants(config: &RopeConfig, engine: &[f64]) -> Vec<Variant> {
    let rope = &config.rope;
    let own = rope.inv_freq_f64();
    let mut out: Vec<Variant> = Vec::new();
    let mut add = |name, words: String, values: Vec<f64>| {
        // What changes nothing here is no mistake.
        if values != own && !values.is_empty() {
            out.push(Variant { name, words, values });
        }
    };
    let theta = rope.theta;
    let scaling = rope.kind.name();
    add(
        "base_10000",
        format!("the base fell back to 10000, it is {theta}"),
        table(rope.with_theta(FALLBACK)),
    );
    if rope.kind != RopeKind::Default {
        let plain = |theta| {
            resolved(
                config,
                RopeParameters { rope_theta: Some(theta), ..RopeParameters::default() },
            )
        };
        add("scaling_ignored", format!("the {scaling} scaling is ignored"), plain(theta));
        if theta.total_cmp(&FALLBACK).is_ne() {
            add(
                "base_10000_scaling_ignored",
                format!("the base fell back to 10000, and the {scaling} scaling is ignored"),
                plain(FALLBACK),
            );
        }
    }
    blocks(config, &mut add);
    if let Some(outer) = config.written.rope_theta {
        add(
            "base_of_the_top_level",
            format!("the base is the top-level rope_theta, {outer}"),
            table(rope.with_theta(outer)),
        );
    }
    add(
        "rounded_to_bf16",
        "the frequencies were rounded to bf16".to_owned(),
        own.iter().map(|freq| bf16::from_f64(*freq).to_f64()).collect(),
    );
    add(
        "rounded_to_f16",
        "the frequencies were rounded to f16".to_owned(),
        own.iter().map(|freq| f16::from_f64(*freq).to_f64()).collect(),
    );
    add(
        "periods",
        "the table holds reciprocals of the frequencies".to_owned(),
        own.iter().map(|freq| freq.recip()).collect(),
    );
    if let Some((base, values)) = fitted(rope.head_dim, engine) {
        let width = rope.head_dim as f64 * theta.ln() / base.ln();
        add(
            "other_base",
            format!(
                "plain frequencies of base {base:.6} over {} dimensions, as base {theta} over {width:.3} would give",
                rope.head_dim
            ),
            values,
        );
    }
    out
}

fn table(rope: Rope) -> Vec<f64> {
    rope.inv_freq_f64()
}

/// The table of another rotary block; empty where it cannot be resolved.
fn resolved(config: &RopeConfig, block: RopeParameters) -> Vec<f64> {
    let block =
        RopeParameters { rope_theta: block.rope_theta.or(Some(config.rope.theta)), ..block };
    let config_of =
        ModelConfig { rope_parameters: Some(block), rope_scaling: None, ..config.written.clone() };
    let path = std::path::Path::new(&config.name);
    Rope::resolve(&config_of, config.rope.head_dim, path)
        .map_or_else(|_| Vec::new(), |(rope, _)| table(rope))
}

/// The scaling read as another one, or with another of its parameters.
fn blocks(config: &RopeConfig, add: &mut impl FnMut(&'static str, String, Vec<f64>)) {
    let written = config.written.rope_parameters.as_ref().or(config.written.rope_scaling.as_ref());
    let Some(written) = written else { return };
    let with = |change: &dyn Fn(&mut RopeParameters)| {
        let mut block = written.clone();
        change(&mut block);
        resolved(config, block)
    };
    let scaling = config.rope.kind.name();
    let context = config.written.max_position_embeddings.map(|length| length as f64);
    match config.rope.kind {
        RopeKind::Llama3 { factor, low, high, .. } => {
            add(
                "read_as_linear",
                format!("the {scaling} scaling is read as linear"),
                with(&|block| {
                    block.rope_type = Some("linear".to_owned());
                    block.factor = Some(factor);
                }),
            );
            add(
                "low_and_high_swapped",
                "low_freq_factor and high_freq_factor are swapped".to_owned(),
                with(&|block| {
                    (block.low_freq_factor, block.high_freq_factor) = (Some(high), Some(low));
                }),
            );
        }
        RopeKind::Yarn { factor, truncate, .. } => {
            add(
                "read_as_linear",
                format!("the {scaling} scaling is read as linear"),
                with(&|block| {
                    block.rope_type = Some("linear".to_owned());
                    block.factor = Some(factor);
                }),
            );
            add("ramp_ends_rounded_otherwise", "the ends of the ramp are rounded to whole dimensions, or are not, against the file".to_owned(), with(&|block| {
                block.truncate = Some(!truncate);
            }));
        }
        RopeKind::Linear { factor } => {
            add(
                "multiplied",
                "the frequencies are multiplied by the factor".to_owned(),
                with(&|block| {
                    block.factor = Some(factor.recip());
                }),
            );
        }
        RopeKind::Default | RopeKind::Factors => {}
    }
    if matches!(config.rope.kind, RopeKind::Llama3 { .. } | RopeKind::Yarn { .. })
        && context.is_some()
    {
        add(
            "original_context_from_max_position",
            "max_position_embeddings is taken for the original context".to_owned(),
            with(&|block| {
                block.original_max_position_embeddings = context;
            }),
        );
    }
}

/// The base whose plain frequencies the engine's table would be, by its second band. Two bands fit some base always.
fn fitted(head_dim: usize, engine: &[f64]) -> Option<(f64, Vec<f64>)> {
    let second = *engine.get(1)?;
    if engine.len() < 3 || !(second > 0.0 && second < 1.0) {
        return None;
    }
    let base = second.powf(-(head_dim as f64) / 2.0);
    let values: Vec<f64> =
        (0..engine.len()).map(|band| base.powf(-2.0 * band as f64 / head_dim as f64)).collect();
    (base.is_finite() && base > 1.0).then_some((base, values))
}
