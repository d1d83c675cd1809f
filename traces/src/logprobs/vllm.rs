//! vLLM's own maps from token id to `{logprob, rank, decoded_token}`: `prompt_logprobs` of its server, and the `RequestOutput` of
//! `LLM.generate`.

use super::model::{Candidate, Entry, Logprob, LogprobFile, Part, Sequence, TokenName};
use super::node::Node;
use super::openai::rank;
use super::read::{Frame, sequence};

/// `prompt_logprobs`: `null` for the first token, then maps. A map begins with the prompt's own token, which is checked against
/// `prompt_token_ids` where these stand there.
pub(super) fn prompt(frame: Frame, list: &Node, body: &Node) -> Result<Sequence, String> {
    let list = list.list().ok_or("`prompt_logprobs` is no list")?;
    let mut found = sequence(frame, Part::Prompt);
    found.entries = maps(list, body.get("prompt_token_ids"))?;
    Ok(found)
}

/// A `RequestOutput` written as JSON: `prompt_token_ids`, `prompt_logprobs`, and `outputs[] {index, text, token_ids, logprobs}`.
pub(super) fn offline(
    record: usize,
    body: &Node,
    asked: Option<u64>,
    file: &mut LogprobFile,
) -> Result<(), String> {
    let outputs = body.get("outputs").and_then(Node::list).ok_or("`outputs` is no list")?;
    let prompt_ids = body.get("prompt_token_ids").and_then(Node::list);
    for (place, output) in outputs.iter().enumerate() {
        let choice = output.get("index").and_then(Node::index).unwrap_or(place as u64);
        let frame = Frame { record, choice, asked };
        if place == 0
            && let Some(list) = body.get("prompt_logprobs").filter(|list| list.list().is_some())
        {
            file.sequences.push(prompt(frame, list, body)?);
        }
        let Some(list) = output.get("logprobs").and_then(Node::list) else { continue };
        let mut found = sequence(frame, Part::Completion);
        found.entries = maps(list, output.get("token_ids"))?;
        found.text = output.get("text").and_then(Node::text).map(str::to_owned);
        found.usage_choices = outputs.len();
        found.usage_prompt = prompt_ids.map(|ids| ids.len() as u64);
        file.sequences.push(found);
    }
    Ok(())
}

/// Entries of maps. The token of each is the one of `ids` where these are as many, else the map's first.
fn maps(list: &[Node], ids: Option<&Node>) -> Result<Vec<Entry>, String> {
    let ids = ids.and_then(Node::list).filter(|ids| ids.len() == list.len());
    let own = |index: usize| u32::try_from(ids?.get(index)?.index()?).ok();
    list.iter().enumerate().map(|(index, entry)| map(entry, own(index))).collect()
}

fn map(entry: &Node, own: Option<u32>) -> Result<Entry, String> {
    let candidate = |(key, value): &(String, Node)| {
        let id = key.parse::<u32>().map_err(|_| format!("`{key}` is no token id"))?;
        let text = value.get("decoded_token").and_then(Node::text).map(str::to_owned);
        Ok(Candidate {
            token: TokenName { id: Some(id), text, bytes: None },
            logprob: Logprob::of_candidate(value.get("logprob")),
            rank: rank(value),
        })
    };
    let candidates = entry.members().unwrap_or_default().iter().map(candidate);
    let candidates = candidates.collect::<Result<Vec<_>, String>>()?;
    let this = match own {
        Some(id) => candidates.iter().find(|candidate| candidate.token.id == Some(id)),
        None => candidates.first(),
    };
    Ok(Entry {
        token: this.map_or_else(
            || TokenName { id: own, ..TokenName::default() },
            |candidate| candidate.token.clone(),
        ),
        logprob: this.map_or(Logprob::ABSENT, |candidate| candidate.logprob),
        candidates,
        text_offset: None,
    })
}
