//! One sample while it runs.

use std::time::Duration;

use lockstep_traces::hash::{ids_sha256, sha256_hex};
use lockstep_traces::{FinishReason, SampleRow};

use super::answer::{RULE, boxed_answer};
use super::backend::Cache;
use super::{Engine, Request};
use crate::RuntimeError;
use crate::policy::PolicyState;
use crate::sample::SamplerState;

pub(super) struct Sequence<'a> {
    pub(super) request: &'a Request,
    pub(super) state: PolicyState,
    /// Place in the batch.
    pub(super) slot: usize,
    pub(super) cache: Cache,
    pub(super) sampler: SamplerState,
    pub(super) base_seed: Option<u64>,
    pub(super) effective_seed: Option<u64>,
    /// Completion to feed whatever is drawn.
    pub(super) teacher: Option<&'a [u32]>,
    pub(super) generated: Vec<u32>,
    pub(super) finish: Option<FinishReason>,
    pub(super) prefill: Duration,
    pub(super) decode: Duration,
}

impl Sequence<'_> {
    /// Position of the next token.
    pub(super) fn position(&self) -> u32 {
        // The policy refuses positions beyond 32 bits before they get here.
        u32::try_from(self.state.absolute_position()).unwrap_or(u32::MAX)
    }

    /// Live rows as row columns hold them.
    pub(super) fn rows(&self) -> u32 {
        u32::try_from(self.state.rows()).unwrap_or(u32::MAX)
    }

    /// Must a token be chosen at all? Not where nothing may be generated or the teacher has nothing to say.
    pub(super) fn chooses(&self, max_new_tokens: usize) -> bool {
        self.generated.len() < self.teacher.map_or(max_new_tokens, <[u32]>::len)
    }

    /// Takes the token drawn from the last row; the teacher's goes before it. Sets `finish` where it was the last.
    pub(super) fn choose(&mut self, drawn: u32, stop_ids: &[u32], max_new_tokens: usize) {
        let Some(teacher) = self.teacher else {
            self.generated.push(drawn);
            if stop_ids.contains(&drawn) {
                self.finish = Some(FinishReason::Eos);
            } else if self.generated.len() >= max_new_tokens {
                self.finish = Some(FinishReason::Length);
            }
            return;
        };
        if let Some(token) = teacher.get(self.generated.len()) {
            self.generated.push(*token);
        }
        if self.generated.len() >= teacher.len() {
            self.finish = Some(FinishReason::Forced);
        }
    }

    pub(super) fn sample_row(&self, engine: &Engine) -> Result<SampleRow, RuntimeError> {
        let request = self.request;
        let text = engine.tokenizer().map(|tokenizer| tokenizer.decode(&self.generated));
        let text = text.transpose()?;
        let answer = text.as_deref().and_then(boxed_answer);
        let prompt_text = request.prompt_text.as_ref();
        Ok(SampleRow {
            sample_id: request.sample_id.clone(),
            prompt_ids: request.prompt_ids.clone(),
            prompt_ids_sha256: ids_sha256(&request.prompt_ids),
            prompt_text_sha256: prompt_text.map(|text| sha256_hex(text.as_bytes())),
            prompt_len: u32::try_from(request.prompt_ids.len()).ok(),
            base_seed: self.base_seed,
            seed_index: request.seed_index,
            effective_seed: self.effective_seed,
            generated_ids: self.generated.clone(),
            text,
            gold: request.gold.clone(),
            answer_rule: answer.is_some().then(|| RULE.to_owned()),
            answer,
            finish: self.finish.unwrap_or(FinishReason::Unknown),
            prefill_seconds: self.prefill.as_secs_f64(),
            decode_seconds: self.decode.as_secs_f64(),
        })
    }
}
