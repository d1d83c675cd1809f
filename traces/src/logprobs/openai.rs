//! The OpenAI layouts, chat and completions, and what vLLM adds to them.

use super::model::{Candidate, Entry, Logprob, LogprobFile, Part, Sequence, Source, TokenName};
use super::node::Node;
use super::read::{Frame, sequence};
use super::vllm;

/// Reads `choices[]` of one response.
pub(super) fn read(
    record: usize,
    body: &Node,
    asked: Option<u64>,
    file: &mut LogprobFile,
) -> Result<Source, String> {
    let choices = body.get("choices").and_then(Node::list).ok_or("`choices` is no list")?;
    let usage = |key: &str| body.pointer(&format!("/usage/{key}")).and_then(Node::index);
    let mut source = Source::OpenaiChat;
    for (place, choice) in choices.iter().enumerate() {
        let index = choice.get("index").and_then(Node::index).unwrap_or(place as u64);
        let frame = Frame { record, choice: index, asked };
        if let Some(prompt) = choice.get("prompt_logprobs").or_else(|| body.get("prompt_logprobs"))
            && prompt.list().is_some()
            && (place == 0 || choice.get("prompt_logprobs").is_some())
        {
            let ids = if choice.get("prompt_token_ids").is_some() { choice } else { body };
            let mut found = vllm::prompt(frame, prompt, ids)?;
            found.usage_tokens = usage("prompt_tokens");
            file.sequences.push(found);
        }
        let mut found = sequence(frame, Part::Completion);
        found.text = text(choice);
        found.usage_tokens = usage("completion_tokens");
        found.usage_choices = choices.len();
        found.usage_prompt = usage("prompt_tokens");
        match choice.get("logprobs") {
            None | Some(Node::Null) => continue,
            Some(list) => {
                if let Some(content) = list.get("content").and_then(Node::list) {
                    found.entries = content.iter().map(chat_entry).collect::<Result<_, _>>()?;
                } else if list.get("tokens").is_some() || list.get("token_logprobs").is_some() {
                    source = Source::OpenaiCompletions;
                    found.entries = completions(list)?;
                } else {
                    continue;
                }
            }
        }
        take_ids(&mut found, choice.get("token_ids"));
        file.sequences.push(found);
    }
    Ok(source)
}

fn text(choice: &Node) -> Option<String> {
    let places = ["/text", "/message/content", "/delta/content"];
    places.iter().find_map(|pointer| choice.pointer(pointer)?.text()).map(str::to_owned)
}

/// Ids that stand in a list of their own, where there is one for each entry.
fn take_ids(found: &mut Sequence, ids: Option<&Node>) {
    let Some(ids) = ids.and_then(Node::list).filter(|ids| ids.len() == found.entries.len()) else {
        return;
    };
    for (entry, id) in found.entries.iter_mut().zip(ids) {
        if entry.token.id.is_none() {
            entry.token.id = id.index().and_then(|id| u32::try_from(id).ok());
        }
    }
}

/// Token of a chat entry or candidate. vLLM writes `token_id:123` as text where it is asked to.
pub(super) fn token(node: &Node) -> TokenName {
    let text = node.get("token").and_then(Node::text);
    let written =
        text.and_then(|text| text.strip_prefix("token_id:")).and_then(|id| id.parse().ok());
    let id = node.get("id").and_then(Node::index).and_then(|id| u32::try_from(id).ok());
    let bytes = node.get("bytes").and_then(Node::list).map(|list| {
        list.iter()
            .filter_map(|byte| byte.index().and_then(|byte| u8::try_from(byte).ok()))
            .collect()
    });
    TokenName {
        id: id.or(written),
        text: text.filter(|_| written.is_none()).map(str::to_owned),
        bytes,
    }
}

fn chat_entry(node: &Node) -> Result<Entry, String> {
    if node.members().is_none() {
        return Err("an entry of `content` is no object".to_owned());
    }
    let candidates = node.get("top_logprobs").and_then(Node::list).unwrap_or_default();
    Ok(Entry {
        token: token(node),
        logprob: Logprob::of_token(node.get("logprob")),
        candidates: candidates
            .iter()
            .map(|candidate| Candidate {
                token: token(candidate),
                logprob: Logprob::of_candidate(candidate.get("logprob")),
                rank: rank(candidate),
            })
            .collect(),
        text_offset: None,
    })
}

pub(super) fn rank(node: &Node) -> Option<u32> {
    node.get("rank").and_then(Node::index).and_then(|rank| u32::try_from(rank).ok())
}

/// Parallel lists; the maps of `top_logprobs` are read pair by pair.
fn completions(list: &Node) -> Result<Vec<Entry>, String> {
    let column = |key: &str| list.get(key).and_then(Node::list).unwrap_or_default();
    let (tokens, values) = (column("tokens"), column("token_logprobs"));
    let (tops, offsets) = (column("top_logprobs"), column("text_offset"));
    if tokens.len() != values.len() {
        return Err(format!(
            "{} tokens stand beside {} log-probabilities",
            tokens.len(),
            values.len()
        ));
    }
    for (name, other) in [("top_logprobs", tops.len()), ("text_offset", offsets.len())] {
        if other != 0 && other != tokens.len() {
            return Err(format!("{} tokens stand beside {other} of `{name}`", tokens.len()));
        }
    }
    let entry = |(index, (name, value)): (usize, (&Node, &Node))| Entry {
        token: named(name.text().unwrap_or_default()),
        logprob: Logprob::of_token(Some(value)),
        candidates: tops
            .get(index)
            .and_then(Node::members)
            .unwrap_or_default()
            .iter()
            .map(|(text, value)| Candidate {
                token: named(text),
                logprob: Logprob::of_candidate(Some(value)),
                rank: None,
            })
            .collect(),
        text_offset: offsets.get(index).and_then(Node::index),
    };
    Ok(tokens.iter().zip(values).enumerate().map(entry).collect())
}

fn named(text: &str) -> TokenName {
    match text.strip_prefix("token_id:").and_then(|id| id.parse().ok()) {
        Some(id) => TokenName { id: Some(id), ..TokenName::default() },
        None => TokenName { text: Some(text.to_owned()), ..TokenName::default() },
    }
}

/// Joins the sequences of a stream's chunks: records of one response, each with a few entries.
pub(super) fn join_chunks(file: &mut LogprobFile) {
    if !file.remarks.iter().any(|remark| remark.starts_with("server-sent events")) {
        return;
    }
    let mut joined: Vec<Sequence> = Vec::new();
    for chunk in file.sequences.drain(..) {
        let same = |known: &&mut Sequence| known.choice == chunk.choice && known.part == chunk.part;
        match joined.iter_mut().find(same) {
            Some(known) => {
                known.entries.extend(chunk.entries);
                known.usage_tokens = chunk.usage_tokens.or(known.usage_tokens);
                known.usage_prompt = chunk.usage_prompt.or(known.usage_prompt);
                if let Some(more) = chunk.text {
                    known.text.get_or_insert_default().push_str(&more);
                }
            }
            None => joined.push(chunk),
        }
    }
    file.sequences = joined;
}
