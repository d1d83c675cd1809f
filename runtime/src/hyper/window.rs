//! Which layers see the last rows only.

use lockstep_traces::ModelConfig;
use serde_json::Value;

use super::{Architecture, Fields};
use crate::RuntimeError;

/// Windows by layer. `layer_types` decides where it is given; else Mistral slides in every layer and Qwen in those from
/// `max_window_layers` on, where `use_sliding_window` asks for it. Defaults are those of the configuration classes: a window of 4096, 28
/// layers. An explicit `null` switches a window off.
pub(super) fn resolve(
    config: &ModelConfig,
    architecture: Architecture,
    layers: usize,
    fields: &mut Fields<'_>,
) -> Result<Vec<Option<usize>>, RuntimeError> {
    let slides = sliding_layers(config, architecture, layers, fields)?;
    let mut windows = vec![None; layers];
    if slides.contains(&true) {
        let (rows, source) = match config.sliding_window {
            Some(rows) => (rows, fields.source("sliding_window")),
            None => (Some(4096), "default".to_owned()),
        };
        match rows {
            Some(0) => return Err(fields.error("sliding_window", "0 is no window")),
            None if config.layer_types.is_some() => {
                let what = "is null, but layer_types has sliding_attention";
                return Err(fields.error("sliding_window", what));
            }
            None => {}
            Some(rows) => {
                for (window, slides) in windows.iter_mut().zip(&slides) {
                    *window = slides.then_some(rows);
                }
                let list: Vec<Value> = windows.iter().map(|window| (*window).into()).collect();
                fields.note("sliding_windows", list, &source);
                return Ok(windows);
            }
        }
    }
    let none: Vec<Value> = Vec::new();
    fields.note("sliding_windows", none, "architecture");
    Ok(windows)
}

fn sliding_layers(
    config: &ModelConfig,
    architecture: Architecture,
    layers: usize,
    fields: &Fields<'_>,
) -> Result<Vec<bool>, RuntimeError> {
    if let Some(types) = &config.layer_types {
        if types.len() != layers {
            let what = format!("names {} layers, num_hidden_layers is {layers}", types.len());
            return Err(fields.error("layer_types", what));
        }
        return types
            .iter()
            .enumerate()
            .map(|(layer, kind)| match kind.as_str() {
                "full_attention" => Ok(false),
                "sliding_attention" => Ok(true),
                other => {
                    let known = "full_attention and sliding_attention are supported";
                    Err(fields.error("layer_types", format!("layer {layer} is `{other}`; {known}")))
                }
            })
            .collect();
    }
    Ok(match architecture {
        Architecture::Mistral => vec![true; layers],
        Architecture::Qwen2 | Architecture::Qwen3 if config.use_sliding_window == Some(true) => {
            let full = config.max_window_layers.unwrap_or(28);
            (0..layers).map(|layer| layer >= full).collect()
        }
        _ => vec![false; layers],
    })
}
