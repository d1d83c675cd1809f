//! Layouts of SGLang and llama-server, and lists over a whole vocabulary.

use super::model::{Candidate, Entry, Logprob, LogprobFile, Part, Said, Sequence, TokenName};
use super::node::{Node, Number};
use super::openai;
use super::read::{Frame, sequence};

/// SGLang: `meta_info.{input,output}_token_logprobs` as `[logprob or null, id, text or null]`, with
/// `{input,output}_top_logprobs` beside them.
pub(super) fn sglang(
    record: usize,
    body: &Node,
    asked: Option<u64>,
    file: &mut LogprobFile,
) -> Result<(), String> {
    let info = body.get("meta_info").ok_or("no `meta_info`")?;
    let frame = Frame { record, choice: 0, asked };
    for (part, prefix, count) in [
        (Part::Prompt, "input", "prompt_tokens"),
        (Part::Completion, "output", "completion_tokens"),
    ] {
        let column = |name: &str| info.get(&format!("{prefix}_{name}")).and_then(Node::list);
        let Some(values) = column("token_logprobs") else { continue };
        let tops = column("top_logprobs").unwrap_or_default();
        let mut found = sequence(frame, part);
        found.usage_tokens = info.get(count).and_then(Node::index);
        if part == Part::Completion {
            found.text = body.get("text").and_then(Node::text).map(str::to_owned);
        }
        for (index, value) in values.iter().enumerate() {
            let (token, logprob) = triple(value, false)?;
            let top = tops.get(index).and_then(Node::list).unwrap_or_default();
            let candidates = top
                .iter()
                .map(|value| {
                    let (token, logprob) = triple(value, true)?;
                    Ok(Candidate { token, logprob, rank: None })
                })
                .collect::<Result<_, String>>()?;
            found.entries.push(Entry { token, logprob, candidates, text_offset: None });
        }
        file.sequences.push(found);
    }
    Ok(())
}

fn triple(node: &Node, candidate: bool) -> Result<(TokenName, Logprob), String> {
    let list = node.list().filter(|list| list.len() >= 2);
    let list = list.ok_or("an entry is no `[logprob, id, text]`")?;
    let id = list.get(1).and_then(Node::index).and_then(|id| u32::try_from(id).ok());
    let text = list.get(2).and_then(Node::text).map(str::to_owned);
    let value = list.first();
    let logprob = if candidate { Logprob::of_candidate(value) } else { Logprob::of_token(value) };
    Ok((TokenName { id, text, bytes: None }, logprob))
}

/// llama-server: `completion_probabilities[]` with `top_logprobs`, with `top_probs` where the values stand after the
/// sampler, or in the older form with `probs[] {tok_str, prob}`.
pub(super) fn llama(
    record: usize,
    body: &Node,
    asked: Option<u64>,
    file: &mut LogprobFile,
) -> Result<(), String> {
    let list = body.get("completion_probabilities").and_then(Node::list);
    let list = list.ok_or("`completion_probabilities` is no list")?;
    let settings = body.pointer("/generation_settings/n_probs").and_then(Node::index);
    let mut found =
        sequence(Frame { record, choice: 0, asked: asked.or(settings) }, Part::Completion);
    found.text = body.get("content").and_then(Node::text).map(str::to_owned);
    found.usage_tokens = body.get("tokens_predicted").and_then(Node::index);
    for node in list {
        found.entries.push(llama_entry(node, file)?);
    }
    file.sequences.push(found);
    Ok(())
}

fn llama_entry(node: &Node, file: &mut LogprobFile) -> Result<Entry, String> {
    if node.members().is_none() {
        return Err("an entry of `completion_probabilities` is no object".to_owned());
    }
    let probabilities = node.get("top_probs").or_else(|| node.get("probs")).and_then(Node::list);
    if node.get("top_probs").is_some() {
        file.said = Said::AfterSampling;
    }
    let candidates: Vec<Candidate> = match probabilities {
        Some(list) => list.iter().map(|node| candidate(node, true)).collect(),
        None => node
            .get("top_logprobs")
            .and_then(Node::list)
            .unwrap_or_default()
            .iter()
            .map(|node| candidate(node, false))
            .collect(),
    };
    let mut token = openai::token(node);
    if token.text.is_none() {
        token.text = node.get("content").and_then(Node::text).map(str::to_owned);
    }
    let own = match node.get("prob").and_then(Node::number) {
        Some(number) => Logprob::of_probability(number),
        None => Logprob::of_token(node.get("logprob")),
    };
    Ok(Entry { token, logprob: own, candidates, text_offset: None })
}

fn candidate(node: &Node, probability: bool) -> Candidate {
    let mut token = openai::token(node);
    if token.text.is_none() {
        token.text = node.get("tok_str").and_then(Node::text).map(str::to_owned);
    }
    let logprob = if probability {
        node.get("prob").and_then(Node::number).map_or(Logprob::ABSENT, Logprob::of_probability)
    } else {
        Logprob::of_candidate(node.get("logprob"))
    };
    Candidate { token, logprob, rank: None }
}

/// `{"logits": [..], "temperature": .., "top_p": .., "reported": {name: [..]}}`: one row, ids by place. The lists may also
/// be called `lists` or `logprobs`.
pub(super) fn lists(record: usize, body: &Node, file: &mut LogprobFile) -> Result<(), String> {
    let logits = body.get("logits").and_then(Node::list).ok_or("`logits` is no list of numbers")?;
    file.logits =
        logits.iter().map(|node| node.number().map_or(f64::NAN, |number| number.value)).collect();
    let setting = |key: &str| body.get(key).and_then(Node::number).map(|number| number.value);
    file.settings.temperature = setting("temperature");
    file.settings.top_p = setting("top_p");
    let named = ["reported", "lists", "logprobs"].iter().find_map(|key| body.get(key)?.members());
    for (place, (name, list)) in named.unwrap_or_default().iter().enumerate() {
        let list = list.list().ok_or_else(|| format!("`{name}` is no list"))?;
        if list.len() != file.logits.len() {
            return Err(format!(
                "`{name}` has {} values for {} logits",
                list.len(),
                file.logits.len()
            ));
        }
        file.sequences.push(named_list(
            Frame { record, choice: place as u64, asked: None },
            name,
            list,
        )?);
    }
    Ok(())
}

fn named_list(frame: Frame, name: &str, list: &[Node]) -> Result<Sequence, String> {
    let mut found = sequence(frame, Part::List);
    found.name = Some(name.to_owned());
    let mut candidates = Vec::with_capacity(list.len());
    for (id, value) in list.iter().enumerate() {
        let id = u32::try_from(id).map_err(|_| "a vocabulary of more than 2^32 ids".to_owned())?;
        let token = TokenName { id: Some(id), ..TokenName::default() };
        candidates.push(Candidate {
            token,
            logprob: Logprob::of_candidate(Some(value)),
            rank: None,
        });
    }
    let best = |candidate: &&Candidate| candidate.logprob.value().map(f64::to_bits).is_some();
    let top = candidates
        .iter()
        .filter(best)
        .max_by(|a, b| a.logprob.written.total_cmp(&b.logprob.written));
    let own =
        top.map_or(Logprob::of_number(Number { value: f64::NAN, decimals: 0 }), |top| top.logprob);
    let token = top.map(|top| top.token.clone()).unwrap_or_default();
    found.entries.push(Entry { token, logprob: own, candidates, text_offset: None });
    Ok(found)
}
