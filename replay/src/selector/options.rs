//! What a selector check is asked to do.

use std::path::PathBuf;

use lockstep_traces::{Choice, ModelConfig, RuleSet};

/// Options of a selector check.
#[derive(Debug, Clone, Default)]
pub struct SelectorOptions {
    /// Judge by these rules instead of the recorded ones.
    pub rule_set: Option<RuleSet>,
    /// Calibration statistics (`.pt` or safetensors) that the run selected with; `None`: the file that the run names.
    pub stats: Option<PathBuf>,
    /// Configuration of the model: heads, and inverse frequencies where the statistics hold none.
    pub model: Option<ModelConfig>,
    /// Inverse frequencies to use whatever the statistics or the model say.
    pub inv_freq: Option<Vec<f32>>,
    /// Only this sample.
    pub sample_id: Option<String>,
    /// Only these compactions; `None`: every dumped one.
    pub ordinals: Option<Choice>,
    /// Limit of raw scores, relative to the largest; `None`: derived from the f32 control.
    pub tolerance: Option<f64>,
    /// Run the hypothesis matrix also where nothing differs.
    pub always_hypotheses: bool,
}
