//! One sample of a run, of a benchmark output or of a dataset.

use lockstep_traces::FinishReason;

/// What is known of one sample.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Sample {
    /// Sample id.
    pub id: String,
    /// Row of the dataset, 0-based.
    pub row_index: Option<u64>,
    /// Which post-processing the row belongs to, where a file has one row per sample and filter.
    pub filter: Option<String>,
    /// Prompt as text.
    pub prompt_text: Option<String>,
    /// sha256 of the prompt text, hex.
    pub prompt_text_sha256: Option<String>,
    /// Prompt token ids.
    pub prompt_ids: Option<Vec<u32>>,
    /// sha256 over the prompt ids as little-endian u32, hex.
    pub prompt_ids_sha256: Option<String>,
    /// Prompt length in tokens.
    pub prompt_tokens: Option<u32>,
    /// Name or hash of the chat template.
    pub template: Option<String>,
    /// Thinking switched on in the template.
    pub thinking: Option<bool>,
    /// Seed given.
    pub base_seed: Option<u64>,
    /// Index added to it.
    pub seed_index: Option<u64>,
    /// Seed in force.
    pub effective_seed: Option<u64>,
    /// Sampler of this row, where it is not the run's: `argmax`, `xorshift`, `torch-cuda`, ...
    pub sampler: Option<String>,
    /// Expected answer.
    pub gold: Option<String>,
    /// Extracted answer.
    pub pred: Option<String>,
    /// Rule that extracted it.
    pub pred_rule: Option<String>,
    /// What stands in the field `answer` of a row that has no prediction.
    pub field_answer: Option<String>,
    /// The file calls the prediction right.
    pub correct: Option<bool>,
    /// Name or hash of the model that the row says answered.
    pub model: Option<String>,
    /// Time stamp of the row, in the writer's unit.
    pub recorded_at: Option<f64>,
    /// Completion as text.
    pub text: Option<String>,
    /// Generated ids, a final end-of-sequence id included.
    pub generated_ids: Option<Vec<u32>>,
    /// Number of generated tokens.
    pub generated_tokens: Option<u64>,
    /// Seconds of prefill.
    pub prefill_seconds: Option<f64>,
    /// Seconds of decode.
    pub decode_seconds: Option<f64>,
    /// Seconds overall.
    pub wall_seconds: Option<f64>,
    /// Why it ended.
    pub finish: Option<FinishReason>,
}

impl Sample {
    /// A sample of which only the id is known.
    #[must_use]
    pub fn new(id: impl Into<String>) -> Self {
        Self { id: id.into(), ..Self::default() }
    }

    /// What tells its prompt from another: the hash of its ids, or else of its text; both are named by what they hash.
    #[must_use]
    pub fn prompt_hash(&self) -> Option<(&'static str, &str)> {
        let ids = self.prompt_ids_sha256.as_deref().map(|hash| ("prompt ids", hash));
        ids.or_else(|| self.prompt_text_sha256.as_deref().map(|hash| ("prompt text", hash)))
    }
}
