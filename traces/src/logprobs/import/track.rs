//! Sequences of one record become tracks: tokens with their positions, one track a choice.

use super::super::model::{Entry, Part, Said, Sequence, Source, State};
use super::super::node::Node;
use super::super::read;
use crate::FinishReason;

/// Tokens of one choice, in order of position.
#[derive(Debug, Clone)]
pub(super) struct Track {
    /// Id that the file gives the sample.
    pub(super) id: Option<String>,
    pub(super) record: usize,
    pub(super) choice: u64,
    /// Position of the first entry's token. The row before it, whose logits that entry is, has an unknown token.
    pub(super) start: u32,
    pub(super) entries: Vec<Entry>,
    /// Prompt tokens that the record counts.
    pub(super) counted: Option<u32>,
    /// Position of the first token of the completion, where it is known.
    pub(super) prompt_len: Option<u32>,
    /// Text of the completion.
    pub(super) text: Option<String>,
    pub(super) finish: FinishReason,
    /// Candidates that the request asked for.
    pub(super) asked: Option<u64>,
}

/// What one record holds.
#[derive(Debug, Default)]
pub(super) struct Found {
    pub(super) tracks: Vec<Track>,
    pub(super) source: Option<Source>,
    pub(super) after_sampling: bool,
    /// The values are logarithms of printed probabilities.
    pub(super) probabilities: bool,
    pub(super) model: Option<String>,
}

/// What the caller knows.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Known {
    /// Prompt length in tokens.
    pub(super) prompt_len: Option<u32>,
}

/// Reads one record.
///
/// # Errors
/// What is not as its layout says.
pub(super) fn of_record(record: usize, node: &Node, known: Known) -> Result<Found, String> {
    let mut file = read::empty();
    let source = read::one(record, node, &mut file)?;
    let body = read::body(node);
    let probabilities = body
        .pointer("/completion_probabilities/0")
        .is_some_and(|first| first.get("top_probs").or_else(|| first.get("probs")).is_some());
    let mut found = Found {
        source,
        after_sampling: file.said == Said::AfterSampling,
        probabilities,
        model: body.get("model").and_then(Node::text).map(str::to_owned),
        tracks: Vec::new(),
    };
    found.tracks = of_sequences(file.sequences, source, known, body);
    let id = id(node, body);
    let several = found.tracks.len() > 1;
    for track in &mut found.tracks {
        let choice = track.choice;
        track.id = id.clone().map(|id| if several { format!("{id}_choice_{choice}") } else { id });
    }
    Ok(found)
}

/// One track a choice; a prompt that stands once is every choice's.
pub(super) fn of_sequences(
    sequences: Vec<Sequence>,
    source: Option<Source>,
    known: Known,
    body: &Node,
) -> Vec<Track> {
    let (prompts, completions): (Vec<_>, Vec<_>) =
        sequences.into_iter().partition(|sequence| sequence.part == Part::Prompt);
    let completions: Vec<_> =
        completions.into_iter().filter(|sequence| sequence.part == Part::Completion).collect();
    if completions.is_empty() {
        return prompts.into_iter().map(|prompt| prompt_only(prompt, known, body)).collect();
    }
    let prompt_of = |choice: u64| {
        prompts.iter().find(|prompt| prompt.choice == choice).or_else(|| prompts.first())
    };
    completions
        .into_iter()
        .map(|completion| {
            let prompt = prompt_of(completion.choice).cloned();
            joined(prompt, completion, source, known, body)
        })
        .collect()
}

fn prompt_only(prompt: Sequence, known: Known, body: &Node) -> Track {
    let start = front(&prompt);
    let length = start.saturating_add(count(prompt.entries.len()));
    Track {
        id: None,
        record: prompt.record,
        choice: prompt.choice,
        start,
        counted: None,
        prompt_len: Some(known.prompt_len.map_or(length, |given| given.min(length))),
        text: None,
        finish: finish(body, prompt.choice),
        asked: prompt.asked,
        entries: prompt.entries,
    }
}

fn joined(
    prompt: Option<Sequence>,
    completion: Sequence,
    source: Option<Source>,
    known: Known,
    body: &Node,
) -> Track {
    let mut track = Track {
        id: None,
        record: completion.record,
        choice: completion.choice,
        start: 0,
        counted: None,
        prompt_len: None,
        text: completion.text.clone(),
        finish: finish(body, completion.choice),
        asked: completion.asked,
        entries: Vec::new(),
    };
    let usage = prompt_tokens(&completion, source, body);
    track.counted = usage;
    if let Some(prompt) = prompt {
        track.start = front(&prompt);
        track.prompt_len = Some(track.start.saturating_add(count(prompt.entries.len())));
        track.entries = prompt.entries;
        track.entries.extend(completion.entries);
        return track;
    }
    if let Some(length) = echoed(&completion, usage, known) {
        track.prompt_len = length;
        track.text = length.and_then(|length| text_of(&completion.entries, length));
        track.entries = completion.entries;
        return track;
    }
    track.prompt_len = known.prompt_len.or(usage).filter(|length| *length > 0);
    // The row that chose the first token stands before it, so without a length that token is taken to be the second.
    track.start = track.prompt_len.unwrap_or(1);
    track.entries = completion.entries;
    track
}

/// Position of the first entry of a prompt: a server may leave out the front (SGLang's `logprob_start_len`).
fn front(prompt: &Sequence) -> u32 {
    let usage = prompt.usage_tokens.and_then(|tokens| u32::try_from(tokens).ok()).unwrap_or(0);
    usage.saturating_sub(count(prompt.entries.len()))
}

fn count(length: usize) -> u32 {
    u32::try_from(length).unwrap_or(u32::MAX)
}

/// Prompt tokens that the record counts. A completions request may hold several prompts, whose sum is no length.
fn prompt_tokens(completion: &Sequence, source: Option<Source>, body: &Node) -> Option<u32> {
    let tokens = match source {
        Some(Source::SglangNative) => {
            body.pointer("/meta_info/prompt_tokens").and_then(Node::index)
        }
        Some(Source::LlamaServer) => body.get("tokens_evaluated").and_then(Node::index),
        Some(Source::OpenaiCompletions) if completion.usage_choices > 1 => None,
        _ => completion.usage_prompt,
    };
    tokens.and_then(|tokens| u32::try_from(tokens).ok())
}

/// `Some` where the prompt is echoed among the entries, with its length where that is known: the first token of a text
/// has no log-probability, or the entries are as many as prompt and completion together.
fn echoed(completion: &Sequence, usage: Option<u32>, known: Known) -> Option<Option<u32>> {
    let entries = count(completion.entries.len());
    let first = completion.entries.first()?;
    let blank = first.logprob.state == State::Absent && first.candidates.is_empty();
    let length = known.prompt_len.or(usage).filter(|length| *length <= entries);
    let sum = usage.zip(completion.usage_tokens).filter(|_| completion.usage_choices == 1);
    let both = sum.is_some_and(|(prompt, tokens)| {
        prompt > 0 && u64::from(prompt) + tokens == u64::from(entries)
    });
    if blank && length.is_none() {
        // With nothing counted, a blank first token alone is no echo: it is a token of unknown value.
        return (entries > 1).then_some(None);
    }
    (blank || both).then_some(length)
}

/// Text of the entries from `from` on, where each has one.
fn text_of(entries: &[Entry], from: u32) -> Option<String> {
    let rest = entries.get(usize::try_from(from).ok()?..)?;
    rest.iter().map(|entry| entry.token.text.as_deref()).collect()
}

/// The id that a sample has in its file. Ids that servers make up for each answer are none: they name no sample.
fn id(node: &Node, body: &Node) -> Option<String> {
    let given = ["sample_id", "custom_id", "doc_id"].iter().find_map(|key| {
        let value = node.get(key)?;
        value.text().map(str::to_owned).or_else(|| Some(value.index()?.to_string()))
    });
    given.or_else(|| {
        let id = [node, body].iter().find_map(|node| node.get("id")?.text())?;
        (!made_up(id)).then(|| id.to_owned())
    })
}

fn made_up(id: &str) -> bool {
    let prefixed = ["chatcmpl", "cmpl-", "gen-", "batch_req", "resp_"];
    let hex = id.bytes().filter(u8::is_ascii_hexdigit).count();
    let random = id.bytes().all(|byte| byte.is_ascii_hexdigit() || byte == b'-') && hex >= 16;
    id.is_empty() || random || prefixed.iter().any(|start| id.starts_with(start))
}

/// Why a choice ended, where the record tells an end-of-sequence token from a stop rule.
fn finish(body: &Node, choice: u64) -> FinishReason {
    let choices = body.get("choices").or_else(|| body.get("outputs"));
    let choices = choices.and_then(Node::list).unwrap_or_default();
    let place = |(place, node): &(usize, &Node)| {
        node.get("index").and_then(Node::index).unwrap_or(*place as u64) == choice
    };
    if let Some((_, node)) = choices.iter().enumerate().find(place) {
        let stopped = node.get("stop_reason");
        return match node.get("finish_reason").and_then(Node::text) {
            Some("length") => FinishReason::Length,
            // vLLM: `stop_reason` is null at the end-of-sequence token, else the rule that fired.
            Some("stop") if stopped == Some(&Node::Null) => FinishReason::Eos,
            Some("stop") if stopped.is_some() => FinishReason::Stop,
            _ => FinishReason::Unknown,
        };
    }
    let native = body.pointer("/meta_info/finish_reason");
    let word = native.and_then(|reason| reason.get("type").unwrap_or(reason).text());
    let matched = native.and_then(|reason| reason.get("matched"));
    match (word, body.get("stop_type").and_then(Node::text)) {
        (Some("length"), _) | (_, Some("limit")) => FinishReason::Length,
        (Some("stop"), _) if matched.is_some_and(|matched| matched.number().is_some()) => {
            FinishReason::Eos
        }
        (Some("stop"), _) if matched.is_some_and(|matched| matched.text().is_some()) => {
            FinishReason::Stop
        }
        (_, Some("eos")) => FinishReason::Eos,
        (_, Some("word")) => FinishReason::Stop,
        _ => FinishReason::Unknown,
    }
}
