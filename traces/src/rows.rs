//! Rows of the three tables of a run.

use serde::{Deserialize, Serialize};

/// Whether a fed token belongs to the prompt or to the completion.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// Part of the prompt.
    Prompt,
    /// Fed back.
    Decode,
}

/// One fed token (`steps.parquet`).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StepRow {
    /// Sample.
    pub sample_id: String,
    /// Absolute position of the fed token; keeps counting after compaction. Prompt token `i` has position `i`.
    pub position: u32,
    /// Prompt or decode.
    pub phase: Phase,
    /// The token fed.
    pub token_id: u32,
    /// The token chosen from this row's logits; `None` at prompt rows before the last, and where unknown.
    pub next_token: Option<u32>,
    /// Live cache rows before this token was appended (dense: equal to `position`).
    pub rows_before: u32,
    /// Live cache rows after append and after any compaction of this step.
    pub rows_after: u32,
    /// `rows_before` as an engine reports it after rounding up to its bucket, where it does.
    pub rows_bucketed: Option<u32>,
    /// Ordinal (1-based) of the compaction that happened in this step.
    pub compaction: Option<u32>,
    /// Index that the rotary embedding really used for this row, where the engine reports it.
    pub rope_index: Option<u32>,
    /// Id with the largest logit, lowest id on ties.
    pub argmax: u32,
    /// Ids of the largest logits: logit descending, lower id first on equal logits.
    pub top_ids: Vec<u32>,
    /// Their raw logits (before temperature and filters).
    pub top_logits: Vec<f32>,
    /// ln(sum(exp(logit))) over the vocabulary.
    pub logsumexp: Option<f64>,
    /// Largest minus second largest logit.
    pub top2_margin: Option<f32>,
    /// No NaN or infinity among the logits.
    pub finite: bool,
    /// Order-free hash of the full logits vector (see `hash`).
    pub logits_hash: Option<[u64; 2]>,
    /// Counter of the random stream before this draw.
    pub rng_offset: Option<u64>,
    /// The uniform number that decided the draw (of the chosen token, where the sampler races exponentials).
    pub uniform: Option<f32>,
}

impl StepRow {
    /// A decode row of a dense cache, of which only the fed token is known: no logits, no choice.
    #[must_use]
    pub fn bare(sample_id: impl Into<String>, position: u32, token_id: u32) -> Self {
        Self {
            sample_id: sample_id.into(),
            position,
            phase: Phase::Decode,
            token_id,
            next_token: None,
            rows_before: position,
            rows_after: position.saturating_add(1),
            rows_bucketed: None,
            compaction: None,
            rope_index: None,
            argmax: crate::foreign::UNKNOWN_TOKEN,
            top_ids: Vec::new(),
            top_logits: Vec::new(),
            logsumexp: None,
            top2_margin: None,
            finite: true,
            logits_hash: None,
            rng_offset: None,
            uniform: None,
        }
    }
}

/// One compaction (`events.parquet`).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct EventRow {
    /// Sample.
    pub sample_id: String,
    /// 1-based ordinal.
    pub ordinal: u32,
    /// N: position of the next token, after the increment of this step.
    pub absolute_position: u32,
    /// R: the round start that the selector really used, where it has one.
    pub round_start: Option<u32>,
    /// Rows before.
    pub rows_before: u32,
    /// Rows after.
    pub rows_after: u32,
    /// Rows kept outright (prefix and window), KV head 0.
    pub protected: u32,
    /// Rows ranked, KV head 0.
    pub candidates: u32,
    /// Scoring.
    pub score_seconds: f64,
    /// Normalising and reducing.
    pub reduce_seconds: f64,
    /// Ranking.
    pub select_seconds: f64,
    /// Moving rows.
    pub gather_seconds: f64,
    /// Dump file below the run directory, if any was written.
    pub dump: Option<String>,
}

/// Why generation of a sample ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FinishReason {
    /// An end-of-sequence id was drawn (it is in `generated_ids` and is never fed).
    Eos,
    /// `max_new_tokens` reached.
    Length,
    /// A stop rule on the text fired.
    Stop,
    /// The cache is full and the policy cannot free rows.
    CacheFull,
    /// Teacher-forced to the end of the recorded tokens.
    Forced,
    /// Unknown (imported).
    Unknown,
}

/// One sample (`samples.parquet`).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SampleRow {
    /// Sample.
    pub sample_id: String,
    /// Prompt token ids.
    pub prompt_ids: Vec<u32>,
    /// sha256 over the prompt ids as little-endian u32, hex.
    pub prompt_ids_sha256: String,
    /// sha256 of the prompt text, where there was text.
    pub prompt_text_sha256: Option<String>,
    /// Prompt length in tokens; `None` where an imported trace does not say.
    pub prompt_len: Option<u32>,
    /// Seed given.
    pub base_seed: Option<u64>,
    /// Row index added to it.
    pub seed_index: Option<u64>,
    /// `base_seed + seed_index`.
    pub effective_seed: Option<u64>,
    /// Generated ids, including a final end-of-sequence id.
    pub generated_ids: Vec<u32>,
    /// Decoded completion (lossy where bytes are no UTF-8).
    pub text: Option<String>,
    /// Expected answer, from the dataset.
    pub gold: Option<String>,
    /// Extracted answer.
    pub answer: Option<String>,
    /// Rule that extracted it.
    pub answer_rule: Option<String>,
    /// Why it ended.
    pub finish: FinishReason,
    /// Seconds of prefill.
    pub prefill_seconds: f64,
    /// Seconds of decode.
    pub decode_seconds: f64,
}

impl SampleRow {
    /// A row of which nothing is known but the id: no prompt, no tokens, no times.
    #[must_use]
    pub fn bare(sample_id: impl Into<String>) -> Self {
        Self {
            sample_id: sample_id.into(),
            prompt_ids: Vec::new(),
            prompt_ids_sha256: crate::hash::ids_sha256(&[]),
            prompt_text_sha256: None,
            prompt_len: None,
            base_seed: None,
            seed_index: None,
            effective_seed: None,
            generated_ids: Vec::new(),
            text: None,
            gold: None,
            answer: None,
            answer_rule: None,
            finish: FinishReason::Unknown,
            prefill_seconds: 0.0,
            decode_seconds: 0.0,
        }
    }
}
