//! The rotary block of a configuration: base and scaling.

use lockstep_traces::{ModelConfig, RopeParameters};

use super::Fields;
use crate::RuntimeError;
use crate::rope::{RopeScaling, yarn_attention_factor};

/// RoPE base and variant from either spelling of the block.
pub(super) fn resolve(
    config: &ModelConfig,
    fields: &mut Fields<'_>,
) -> Result<(f64, RopeScaling), RuntimeError> {
    let block = match (&config.rope_parameters, &config.rope_scaling) {
        (Some(block), _) | (None, Some(block)) => block.clone(),
        (None, None) => RopeParameters::default(),
    };
    if let (Some(outer), Some(inner)) = (config.rope_theta, block.rope_theta)
        && (outer - inner).abs() > f64::EPSILON
    {
        let what = format!("{outer} at the top level contradicts {inner} in the RoPE block");
        return Err(fields.error("rope_theta", what));
    }
    let theta = fields.take("rope_theta", config.rope_theta.or(block.rope_theta), 10_000.0);
    if !(theta.is_finite() && theta > 1.0) {
        return Err(fields.error("rope_theta", format!("{theta} is no RoPE base")));
    }
    let kind = fields.take("rope_type", block.rope_type.clone(), "default".to_owned());
    let scaling = match kind.as_str() {
        "default" => RopeScaling::Default,
        "linear" => RopeScaling::Linear { factor: fields.positive("factor", block.factor)? },
        "llama3" => {
            let (low, high) = (
                fields.positive("low_freq_factor", block.low_freq_factor)?,
                fields.positive("high_freq_factor", block.high_freq_factor)?,
            );
            if high <= low {
                let what = format!("{high} is not above low_freq_factor = {low}");
                return Err(fields.error("high_freq_factor", what));
            }
            RopeScaling::Llama3 {
                factor: fields.positive("factor", block.factor)?,
                low_freq_factor: low,
                high_freq_factor: high,
                original_max_position: fields.positive(
                    "original_max_position_embeddings",
                    block.original_max_position_embeddings,
                )?,
            }
        }
        "yarn" => yarn(&block, config, fields)?,
        "factors" => factors(&block, fields)?,
        other => {
            let what = format!("`{other}` is not supported; default, linear, llama3 and yarn are");
            return Err(fields.error("rope_type", what));
        }
    };
    Ok((theta, scaling))
}

/// Divisors of single frequencies, as GGUF files store them.
fn factors(block: &RopeParameters, fields: &Fields<'_>) -> Result<RopeScaling, RuntimeError> {
    let divisors = block.freq_factors.clone().unwrap_or_default();
    if divisors.is_empty() || !divisors.iter().all(|value| value.is_finite() && *value > 0.0) {
        return Err(fields.error("freq_factors", "are no positive divisors of the frequencies"));
    }
    Ok(RopeScaling::Factors { divisors })
}

fn yarn(
    block: &RopeParameters,
    config: &ModelConfig,
    fields: &mut Fields<'_>,
) -> Result<RopeScaling, RuntimeError> {
    let factor = fields.positive("factor", block.factor)?;
    let original = block
        .original_max_position_embeddings
        .or(config.max_position_embeddings.map(|length| length as f64));
    let original_max_position = fields.positive("original_max_position_embeddings", original)?;
    let (fast, slow) =
        (block.beta_fast.filter(|b| *b != 0.0), block.beta_slow.filter(|b| *b != 0.0));
    let implied = yarn_attention_factor(factor, block.mscale, block.mscale_all_dim);
    Ok(RopeScaling::Yarn {
        factor,
        original_max_position,
        beta_fast: fields.take("beta_fast", fast, 32.0),
        beta_slow: fields.take("beta_slow", slow, 1.0),
        truncate: fields.take("truncate", block.truncate, true),
        attention_factor: fields.take("attention_factor", block.attention_factor, implied),
    })
}
