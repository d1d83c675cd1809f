//! Log-probabilities of tokens, whatever server wrote them.

use serde::ser::SerializeStruct as _;
use serde::{Serialize, Serializer};

use super::json::Oddity;
use super::node::{Node, Number};

/// Which writer's layout a file has. The keys decide, never the name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Source {
    /// `choices[].logprobs.content[]`: the chat layout of the OpenAI API, of vLLM, SGLang, llama-server and others.
    OpenaiChat,
    /// `choices[].logprobs.tokens[]` with maps by text: the completions layout of the same.
    OpenaiCompletions,
    /// Only vLLM's `prompt_logprobs`: maps by token id.
    VllmPrompt,
    /// `RequestOutput` of vLLM's `LLM.generate`: `outputs[].logprobs` as maps by token id.
    VllmOffline,
    /// SGLang's own layout: `meta_info.output_token_logprobs` as `[logprob, id, text]`.
    SglangNative,
    /// llama-server's own layout: `completion_probabilities[]`.
    LlamaServer,
    /// Logits of one row and named lists of log-probabilities over the same ids.
    Lists,
}

/// What stands in the place of a log-probability.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// A number that was measured.
    Measured,
    /// The token cannot come: `-Infinity`, `null`, or a number that stands for it.
    Impossible,
    /// `NaN`: no number.
    Nan,
    /// Nothing is written: the first token of a prompt has no context, or the field is missing.
    Absent,
}

/// A natural logarithm of a probability, or what is written in its place.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Logprob {
    /// What it is.
    pub state: State,
    /// The number as written: finite where measured or a sentinel.
    pub written: f64,
    /// Digits behind its decimal point.
    pub decimals: u8,
    /// A finite number that stands for "impossible" and was not measured.
    pub sentinel: bool,
}

/// Numbers that servers write for a token that cannot come or was not looked at: -9999 (OpenAI and its copies),
/// -1000 and -100 (fill values of sampling kernels), and the lowest f32.
const SENTINELS: [f64; 4] = [-9999.0, -1000.0, -100.0, -3.402_823_466_385_288_6e38];

impl Logprob {
    /// Nothing written.
    pub const ABSENT: Self =
        Self { state: State::Absent, written: f64::NAN, decimals: 0, sentinel: false };

    /// Reads what is written for a candidate: `null` says that it cannot come.
    #[must_use]
    pub fn of_candidate(node: Option<&Node>) -> Self {
        match node {
            Some(Node::Null) => {
                Self { state: State::Impossible, written: f64::NAN, decimals: 0, sentinel: false }
            }
            node => Self::of_token(node),
        }
    }

    /// Reads what is written for the token itself: `null` says that nothing was measured.
    #[must_use]
    pub fn of_token(node: Option<&Node>) -> Self {
        match node {
            Some(Node::Number(number)) => Self::of_number(*number),
            _ => Self::ABSENT,
        }
    }

    /// A number.
    #[must_use]
    pub fn of_number(number: Number) -> Self {
        let Number { value, decimals } = number;
        // Within the last digit of an f32: the lowest f32 is printed in several lengths.
        let sentinel = SENTINELS.iter().any(|fill| (value - fill).abs() <= fill.abs() * 1e-7);
        let state = if value.is_nan() {
            State::Nan
        } else if sentinel || value == f64::NEG_INFINITY {
            State::Impossible
        } else if value == f64::INFINITY {
            State::Nan
        } else {
            State::Measured
        };
        Self { state, written: value, decimals, sentinel }
    }

    /// Logarithm of a printed probability.
    #[must_use]
    pub fn of_probability(number: Number) -> Self {
        Self::of_number(Number { value: number.value.ln(), decimals: number.decimals })
    }

    /// The value, where it was measured.
    #[must_use]
    pub fn value(&self) -> Option<f64> {
        (self.state == State::Measured).then_some(self.written)
    }

    /// The text in its place, where it was not measured.
    #[must_use]
    pub fn spelled(&self) -> Option<String> {
        match self.state {
            State::Measured | State::Absent => None,
            State::Nan => Some(if self.written.is_nan() { "NaN" } else { "Infinity" }.to_owned()),
            State::Impossible if self.sentinel => Some(self.written.to_string()),
            State::Impossible if self.written.is_nan() => Some("null".to_owned()),
            State::Impossible => Some("-Infinity".to_owned()),
        }
    }
}

impl Serialize for Logprob {
    /// `{"state": .., "value": number or null, "written": text or null, "sentinel": bool}`.
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut fields = serializer.serialize_struct("Logprob", 4)?;
        fields.serialize_field("state", &self.state)?;
        fields.serialize_field("value", &self.value())?;
        fields.serialize_field("written", &self.spelled())?;
        fields.serialize_field("sentinel", &self.sentinel)?;
        fields.end()
    }
}

/// A token as far as the file names it.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct TokenName {
    /// Id in the vocabulary.
    pub id: Option<u32>,
    /// Text; may be U+FFFD where the token is a part of a character.
    pub text: Option<String>,
    /// Its bytes.
    pub bytes: Option<Vec<u8>>,
}

impl TokenName {
    /// Does the file not name the token at all? So it is with the first token of a prompt whose ids are not beside it.
    #[must_use]
    pub const fn is_nothing(&self) -> bool {
        self.id.is_none() && self.text.is_none() && self.bytes.is_none()
    }
}

/// A token that could have stood here.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Candidate {
    /// Token.
    pub token: TokenName,
    /// Its log-probability.
    pub logprob: Logprob,
    /// Rank counted from 1, where the file has it.
    pub rank: Option<u32>,
}

/// One entry: the token that stands there and those that could have.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Entry {
    /// Token.
    pub token: TokenName,
    /// Its log-probability.
    pub logprob: Logprob,
    /// Candidates in the order of the file, those of equal keys too.
    pub candidates: Vec<Candidate>,
    /// Character (Unicode scalar value) at which the token starts, as the file says.
    pub text_offset: Option<u64>,
}

/// Prompt or completion.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Part {
    /// Tokens that were fed.
    Prompt,
    /// Tokens that were chosen.
    Completion,
    /// A named list over the whole vocabulary, of one row.
    List,
}

/// Entries of one choice of one record.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Sequence {
    /// Record (document or line of the file), from 0.
    pub record: usize,
    /// Choice as the file numbers it.
    pub choice: u64,
    /// Prompt or completion.
    pub part: Part,
    /// Name of a list.
    pub name: Option<String>,
    /// Text of the whole choice, where the file has it.
    pub text: Option<String>,
    /// Tokens that the record's usage counts for this part, over all of its choices.
    pub usage_tokens: Option<u64>,
    /// Choices that share that count.
    pub usage_choices: usize,
    /// Prompt tokens that the usage counts: an echoed prompt stands among the entries.
    pub usage_prompt: Option<u64>,
    /// Candidates that the request asked for.
    pub asked: Option<u64>,
    /// Entries in order.
    pub entries: Vec<Entry>,
}

/// What the values went through before they were written, as far as the layout says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Said {
    /// It does not say.
    Unknown,
    /// After the sampler's filters (llama-server's `top_probs`).
    AfterSampling,
}

/// A file of log-probabilities.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct LogprobFile {
    /// Layout.
    pub source: Source,
    /// Raw or processed.
    pub said: Said,
    /// Sequences in order of the file.
    pub sequences: Vec<Sequence>,
    /// Logits of the row, where the file has them (`Source::Lists`): `[vocab]`, `NaN` where null.
    pub logits: Vec<f64>,
    /// Sampler settings that stand beside the logits.
    pub settings: ListSettings,
    /// The last record is whole.
    pub complete: bool,
    /// What is no JSON by the letter (the first ones).
    pub oddities: Vec<Oddity>,
    /// How many of these there are.
    pub oddity_count: usize,
    /// What was read around, one line each.
    pub remarks: Vec<String>,
}

/// Settings in a file of lists.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct ListSettings {
    /// Temperature.
    pub temperature: Option<f64>,
    /// Top-p.
    pub top_p: Option<f64>,
}

impl LogprobFile {
    /// Entries over all sequences.
    #[must_use]
    pub fn entries(&self) -> usize {
        self.sequences.iter().map(|sequence| sequence.entries.len()).sum()
    }

    /// What the file cannot tell, one line each.
    #[must_use]
    pub fn cannot(&self) -> Vec<String> {
        let all = || self.sequences.iter().flat_map(|sequence| &sequence.entries);
        let mut lines = Vec::new();
        if self.source != Source::Lists {
            if all().any(|entry| entry.token.is_nothing()) {
                lines.push("a token is not named at all: it is held against nothing".to_owned());
            }
            if all().any(|entry| entry.token.id.is_none() && !entry.token.is_nothing()) {
                lines.push(
                    "token ids are missing: two ids of equal text cannot be told apart".to_owned(),
                );
            }
            if self.said == Said::Unknown {
                lines.push("it does not say whether the values stand before or after temperature and filters".to_owned());
            }
            match all().map(|entry| entry.candidates.len()).max() {
                None | Some(0) => lines.push("no candidates: only the tokens that stand there are covered".to_owned()),
                Some(most) => lines.push(format!(
                    "at most {most} candidates an entry: whatever lies outside them is known as a bound only"
                )),
            }
        }
        let most = |entry: &Entry| {
            let candidates = entry.candidates.iter().map(|candidate| candidate.logprob);
            candidates
                .chain([entry.logprob])
                .filter(|lp| lp.value().is_some())
                .map(|lp| lp.decimals)
                .max()
        };
        if let Some(digits) = all().filter_map(most).max().filter(|digits| *digits < 7) {
            lines.push(format!(
                "at most {digits} digits behind the point: equal text is not equal bits"
            ));
        }
        lines
    }
}
