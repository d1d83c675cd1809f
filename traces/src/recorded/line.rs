//! Lines of `trace.jsonl` as they are written.

use std::collections::BTreeMap;

use serde::Deserialize;

use crate::manifest::{ModelId, Producer};
use crate::{DType, FinishReason, Phase, SampleRow, Setting, StepRow, UNKNOWN_TOKEN};

/// The first line.
#[derive(Debug, Deserialize)]
pub(super) struct Header {
    pub(super) lockstep_trace: String,
    pub(super) producer: Producer,
    #[serde(default)]
    pub(super) recorder: String,
    #[serde(default)]
    pub(super) created_at: String,
    pub(super) model: ModelId,
    pub(super) dtype: Option<DType>,
    pub(super) cache_dtype: Option<DType>,
    pub(super) device: String,
    pub(super) top_k: usize,
    pub(super) hash_seeds: Option<[String; 2]>,
    #[serde(default)]
    pub(super) settings: BTreeMap<String, Setting>,
    #[serde(default)]
    pub(super) remarks: Vec<String>,
}

/// Any later line.
#[derive(Debug, Deserialize)]
#[serde(tag = "t", rename_all = "snake_case")]
pub(super) enum Line {
    Setting { key: String, value: serde_json::Value, source: String },
    Step(Box<Step>),
    Sample(Box<Sample>),
    End { steps: u64, samples: u64 },
}

#[derive(Debug, Deserialize)]
pub(super) struct Step {
    sample: String,
    position: u32,
    phase: Phase,
    token: u32,
    next: Option<u32>,
    rows: [u32; 2],
    rope: Option<u32>,
    argmax: Option<u32>,
    #[serde(default)]
    top_ids: Vec<u32>,
    #[serde(default)]
    top_logits: Vec<Number>,
    logsumexp: Option<Number>,
    finite: Option<bool>,
    hash: Option<[String; 2]>,
}

#[derive(Debug, Deserialize)]
pub(super) struct Sample {
    sample: String,
    prompt_ids: Vec<u32>,
    prompt_ids_sha256: String,
    generated_ids: Vec<u32>,
    text: Option<String>,
    finish: FinishReason,
    #[serde(default)]
    prefill_seconds: f64,
    #[serde(default)]
    decode_seconds: f64,
}

/// A number, or the word that JSON has no number for.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(untagged)]
enum Number {
    Finite(f64),
    Word(Word),
}

#[derive(Debug, Clone, Copy, Deserialize)]
enum Word {
    #[serde(rename = "NaN")]
    NotANumber,
    Infinity,
    #[serde(rename = "-Infinity")]
    MinusInfinity,
}

impl Number {
    const fn wide(self) -> f64 {
        match self {
            Self::Finite(value) => value,
            Self::Word(Word::NotANumber) => f64::NAN,
            Self::Word(Word::Infinity) => f64::INFINITY,
            Self::Word(Word::MinusInfinity) => f64::NEG_INFINITY,
        }
    }

    /// The f32 whose digits these are.
    fn narrow(self) -> Result<f32, String> {
        let wide = self.wide();
        #[expect(clippy::cast_possible_truncation, reason = "the writer printed an f32")]
        let value = wide as f32;
        if wide.is_finite() && !value.is_finite() {
            return Err(format!("{wide} is no f32 value"));
        }
        Ok(value)
    }
}

impl Step {
    /// As a row, with the ordinal of the compaction that its row counts show. A row without logits has no argmax and
    /// no values.
    pub(super) fn row(self, ordinal: impl FnOnce(&str) -> u32) -> Result<StepRow, String> {
        let [rows_before, rows_after] = self.rows;
        let grown = rows_before.saturating_add(1);
        if rows_after > grown {
            return Err(format!(
                "a step that starts with {rows_before} rows ends with {rows_after}"
            ));
        }
        if let (Some(argmax), Some(first)) = (self.argmax, self.top_ids.first())
            && argmax != *first
        {
            return Err(format!("argmax is {argmax} and the first of top_ids {first}"));
        }
        if self.argmax.is_none() && !self.top_ids.is_empty() {
            return Err("top_ids without an argmax".to_owned());
        }
        let top_logits =
            self.top_logits.into_iter().map(Number::narrow).collect::<Result<Vec<_>, _>>()?;
        let margin = match top_logits.as_slice() {
            [first, second, ..] => Some(first - second).filter(|margin| !margin.is_nan()),
            _ => None,
        };
        Ok(StepRow {
            compaction: (rows_after < grown).then(|| ordinal(&self.sample)),
            phase: self.phase,
            next_token: self.next,
            rows_before,
            rows_after,
            rope_index: self.rope,
            argmax: self.argmax.unwrap_or(UNKNOWN_TOKEN),
            top_ids: self.top_ids,
            top_logits,
            logsumexp: self.logsumexp.map(Number::wide),
            top2_margin: margin,
            finite: self.finite.unwrap_or(true),
            logits_hash: self.hash.as_ref().map(hex_pair).transpose()?,
            ..StepRow::bare(self.sample, self.position, self.token)
        })
    }
}

/// Two words of 16 hex digits.
pub(super) fn hex_pair(words: &[String; 2]) -> Result<[u64; 2], String> {
    let word = |text: &String| {
        let digits = text.len() == 16 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        u64::from_str_radix(text, 16)
            .ok()
            .filter(|_| digits)
            .ok_or_else(|| format!("`{text}` is not 16 hex digits"))
    };
    Ok([word(&words[0])?, word(&words[1])?])
}

impl From<Sample> for SampleRow {
    fn from(sample: Sample) -> Self {
        Self {
            prompt_len: u32::try_from(sample.prompt_ids.len()).ok(),
            prompt_ids: sample.prompt_ids,
            prompt_ids_sha256: sample.prompt_ids_sha256,
            generated_ids: sample.generated_ids,
            text: sample.text,
            finish: sample.finish,
            prefill_seconds: sample.prefill_seconds,
            decode_seconds: sample.decode_seconds,
            ..Self::bare(sample.sample)
        }
    }
}
