//! A file to documents, documents to sequences.

use std::fs::File;
use std::io::{BufReader, Read as _};
use std::path::Path;

use flate2::bufread::MultiGzDecoder;

use super::json::{JsonFault, Oddity, Reader};
use super::model::{ListSettings, LogprobFile, Said, Sequence, Source};
use super::node::Node;
use super::{native, openai, vllm};
use crate::TraceError;

/// Longest text, unpacked.
const MOST_BYTES: u64 = 512 << 20;
/// Bytes in which a file shows what it is.
pub(super) const HEAD: u64 = 256 << 10;

/// Documents of a JSON or JSON Lines file, and what was odd about it.
#[derive(Debug, Clone, PartialEq)]
pub struct Documents {
    /// Documents in order.
    pub nodes: Vec<Node>,
    /// False where the last one was cut, and left out.
    pub complete: bool,
    /// What is no JSON by the letter (the first ones).
    pub oddities: Vec<Oddity>,
    /// How many of these there are.
    pub oddity_count: usize,
    /// What was read around.
    pub remarks: Vec<String>,
}

/// Reads a file of JSON documents: one, or one after the other. Gzip and a byte order mark are read through, server-sent
/// events (`data: {..}`) are taken as lines.
///
/// # Errors
/// [`TraceError::Io`]; [`TraceError::Line`] where it is no JSON, or the only document is cut.
pub fn documents(path: &Path) -> Result<Documents, TraceError> {
    let (bytes, mut remarks) = unpacked(path, MOST_BYTES + 1)?;
    let malformed = |what: String| TraceError::Malformed { path: path.to_owned(), what };
    if bytes.len() as u64 > MOST_BYTES {
        return Err(malformed(format!("more than {MOST_BYTES} bytes: split the file")));
    }
    let bytes = match events(&bytes) {
        Some(lines) => {
            remarks.push("server-sent events, read as lines".to_owned());
            lines
        }
        None => bytes,
    };
    let mut reader = Reader::new(&bytes);
    let (mut nodes, mut complete) = (Vec::new(), true);
    loop {
        match reader.document() {
            Ok(Some(node)) => nodes.push(node),
            Ok(None) => break,
            Err(JsonFault::Cut) if !nodes.is_empty() => {
                remarks.push(format!("record {} is cut, and left out", nodes.len() + 1));
                complete = false;
                break;
            }
            Err(JsonFault::Cut) => {
                let what = format!("the document is cut after {} bytes", bytes.len());
                return Err(TraceError::Line {
                    path: path.to_owned(),
                    line: line_of(&bytes, bytes.len()),
                    what,
                });
            }
            Err(JsonFault::Bad(at, what)) => {
                let what = format!("{what} (byte {at})");
                return Err(TraceError::Line {
                    path: path.to_owned(),
                    line: line_of(&bytes, at),
                    what,
                });
            }
        }
    }
    if nodes.is_empty() {
        return Err(malformed("the file is empty".to_owned()));
    }
    let (oddities, oddity_count) = reader.oddities();
    Ok(Documents { nodes, complete, oddities, oddity_count, remarks })
}

fn line_of(bytes: &[u8], at: usize) -> usize {
    1 + bytes.iter().take(at).filter(|byte| **byte == b'\n').count()
}

pub(super) fn unpacked(path: &Path, most: u64) -> Result<(Vec<u8>, Vec<String>), TraceError> {
    let io = |source| TraceError::Io { path: path.to_owned(), source };
    let mut file = BufReader::new(File::open(path).map_err(io)?);
    let mut remarks = Vec::new();
    let gzip = std::io::BufRead::fill_buf(&mut file).map_err(io)?.starts_with(&[0x1f, 0x8b]);
    let mut bytes = Vec::new();
    if gzip {
        remarks.push("read through gzip".to_owned());
        MultiGzDecoder::new(file).take(most).read_to_end(&mut bytes).map_err(io)?;
    } else {
        file.take(most).read_to_end(&mut bytes).map_err(io)?;
    }
    if bytes.starts_with(b"\xef\xbb\xbf") {
        remarks.push("UTF-8 byte order mark skipped".to_owned());
        bytes.drain(..3);
    }
    Ok((bytes, remarks))
}

/// The payloads of server-sent events, one a line; `None` where the text is none.
fn events(bytes: &[u8]) -> Option<Vec<u8>> {
    if !bytes.trim_ascii_start().starts_with(b"data:") {
        return None;
    }
    let mut out = Vec::with_capacity(bytes.len());
    for line in bytes.split(|byte| *byte == b'\n') {
        if let Some(payload) = line.trim_ascii().strip_prefix(b"data:")
            && payload.trim_ascii() != b"[DONE]"
        {
            out.extend_from_slice(payload.trim_ascii());
            out.push(b'\n');
        }
    }
    Some(out)
}

/// True where the first bytes of a file hold the keys of a layout that [`read`] knows.
#[must_use]
pub fn looks_like(path: &Path) -> bool {
    let Ok((head, _)) = unpacked(path, HEAD) else { return false };
    let starts = head.trim_ascii_start();
    if !(starts.starts_with(b"{") || starts.starts_with(b"[") || starts.starts_with(b"data:")) {
        return false;
    }
    let has = |key: &str| head.windows(key.len()).any(|part| part == key.as_bytes());
    let served =
        ["\"choices\"", "\"meta_info\"", "\"completion_probabilities\"", "\"prompt_logprobs\""];
    served.iter().any(|key| has(key))
        || (has("\"outputs\"") && has("\"logprobs\""))
        || (has("\"logits\"") && !has("\"position"))
}

/// Reads a file of log-probabilities.
///
/// # Errors
/// As [`documents`]; [`TraceError::Malformed`] where no log-probability is in it or a field is not what its layout says.
pub fn read(path: &Path) -> Result<LogprobFile, TraceError> {
    let documents = documents(path)?;
    let malformed = |what: String| TraceError::Malformed { path: path.to_owned(), what };
    let mut file = LogprobFile {
        complete: documents.complete,
        oddities: documents.oddities,
        oddity_count: documents.oddity_count,
        remarks: documents.remarks,
        ..empty()
    };
    let mut source = None;
    let records =
        documents.nodes.iter().flat_map(|node| node.list().unwrap_or(std::slice::from_ref(node)));
    for (record, node) in records.enumerate() {
        let found = one(record, node, &mut file)
            .map_err(|what| malformed(format!("record {}: {what}", record + 1)))?;
        if let Some(found) = found {
            if source.is_some_and(|known| known != found) {
                file.remarks
                    .push(format!("record {} has another layout than those before it", record + 1));
            }
            source.get_or_insert(found);
        }
    }
    file.source = source.unwrap_or(file.source);
    openai::join_chunks(&mut file);
    if file.entries() == 0 {
        return Err(malformed(
            "no log-probability is in it; ask the server for them (`logprobs`, `top_logprobs`, `n_probs`, ...)".to_owned(),
        ));
    }
    Ok(file)
}

/// A file of which nothing is read yet.
pub(super) const fn empty() -> LogprobFile {
    LogprobFile {
        source: Source::OpenaiChat,
        said: Said::Unknown,
        sequences: Vec::new(),
        logits: Vec::new(),
        settings: ListSettings { temperature: None, top_p: None },
        complete: true,
        oddities: Vec::new(),
        oddity_count: 0,
        remarks: Vec::new(),
    }
}

/// The response of a record, in whatever envelope it lies.
pub(super) fn body(node: &Node) -> &Node {
    ["/response/body", "/response", "/body"]
        .iter()
        .find_map(|pointer| node.pointer(pointer).filter(|inner| inner.members().is_some()))
        .unwrap_or(node)
}

/// Reads one record.
pub(super) fn one(
    record: usize,
    node: &Node,
    file: &mut LogprobFile,
) -> Result<Option<Source>, String> {
    let body = body(node);
    let wanted = asked(node).or_else(|| asked(body));
    if body.get("choices").is_some() {
        openai::read(record, body, wanted, file).map(Some)
    } else if body.get("meta_info").is_some() {
        native::sglang(record, body, wanted, file).map(|()| Some(Source::SglangNative))
    } else if body.get("completion_probabilities").is_some() {
        native::llama(record, body, wanted, file).map(|()| Some(Source::LlamaServer))
    } else if body.get("outputs").and_then(Node::list).is_some() {
        vllm::offline(record, body, wanted, file).map(|()| Some(Source::VllmOffline))
    } else if let Some(prompt) = body.get("prompt_logprobs") {
        let frame = Frame { record, choice: 0, asked: wanted };
        file.sequences.push(vllm::prompt(frame, prompt, body)?);
        Ok(Some(Source::VllmPrompt))
    } else if body.get("logits").is_some() {
        native::lists(record, body, file).map(|()| Some(Source::Lists))
    } else {
        file.remarks
            .push(format!("record {} has no known layout, and was passed over", record + 1));
        Ok(None)
    }
}

/// Where a sequence stands in its file.
#[derive(Debug, Clone, Copy)]
pub(super) struct Frame {
    pub(super) record: usize,
    pub(super) choice: u64,
    pub(super) asked: Option<u64>,
}

/// Candidates that a request asks for, looked for in the request itself or in a record that holds it (`request`,
/// `_request`): a number under `logprobs` (completions), `top_logprobs` (chat), `n_probs` or `top_logprobs_num`.
#[must_use]
pub fn asked(node: &Node) -> Option<u64> {
    let keys = ["top_logprobs", "logprobs", "n_probs", "top_logprobs_num", "prompt_logprobs"];
    let number = |node: &Node| keys.iter().find_map(|key| node.get(key)?.index());
    let inside = ["_request", "request", "/request/body"];
    let held = inside.iter().find_map(|key| {
        let inner = if key.starts_with('/') { node.pointer(key) } else { node.get(key) };
        inner.and_then(number)
    });
    held.or_else(|| if node.get("choices").is_none() { number(node) } else { None })
}

/// An empty sequence of that place.
pub(super) fn sequence(frame: Frame, part: super::model::Part) -> Sequence {
    Sequence {
        record: frame.record,
        choice: frame.choice,
        part,
        name: None,
        text: None,
        usage_tokens: None,
        usage_choices: 1,
        usage_prompt: None,
        asked: frame.asked,
        entries: Vec::new(),
    }
}
