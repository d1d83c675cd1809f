//! Which layout of log-probabilities a file has, as far as an import tells them apart.

use std::path::Path;

use super::super::model::Source;
use super::super::read::{HEAD, unpacked};
use super::miles;

/// A layout of log-probabilities that becomes a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogprobKind {
    /// Chat responses of the OpenAI API: `choices[].logprobs.content[]`.
    OpenaiChat,
    /// Completions responses of the OpenAI API: `choices[].logprobs.tokens[]`.
    OpenaiCompletions,
    /// Responses of vLLM with `prompt_logprobs`, such a list alone, or `RequestOutput`s of its `LLM.generate`.
    Vllm,
    /// SGLang's own responses: `meta_info.{input,output}_token_logprobs`.
    Sglang,
    /// llama-server's own responses: `completion_probabilities[]`.
    LlamaServer,
    /// A folder of `rank_*.json` files with `logprob_entries[batch][position]`, or one of them.
    Miles,
}

impl LogprobKind {
    /// Name as on the command line and in the manifest's `producer.name`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::OpenaiChat => "openai-chat",
            Self::OpenaiCompletions => "openai-completions",
            Self::Vllm => "vllm",
            Self::Sglang => "sglang-logprobs",
            Self::LlamaServer => "llama-server",
            Self::Miles => "miles-logprobs",
        }
    }

    /// Is a record of that layout one of this kind? vLLM answers in the layouts of the OpenAI API.
    pub(super) const fn accepts(self, source: Source) -> bool {
        match self {
            Self::OpenaiChat => matches!(source, Source::OpenaiChat),
            Self::OpenaiCompletions => matches!(source, Source::OpenaiCompletions),
            Self::Vllm => matches!(
                source,
                Source::VllmPrompt
                    | Source::VllmOffline
                    | Source::OpenaiChat
                    | Source::OpenaiCompletions
            ),
            Self::Sglang => matches!(source, Source::SglangNative),
            Self::LlamaServer => matches!(source, Source::LlamaServer),
            Self::Miles => false,
        }
    }

    /// The layout of a file by the keys in its first 256 KiB, or of a folder by the files in it.
    #[must_use]
    pub fn of(path: &Path) -> Option<Self> {
        if path.is_dir() {
            let files = miles::files(path).ok()?;
            return files
                .first()
                .filter(|file| Self::of(file) == Some(Self::Miles))
                .map(|_| Self::Miles);
        }
        let (head, _) = unpacked(path, HEAD).ok()?;
        let front = head.trim_ascii_start();
        if ![&b"{"[..], b"[", b"data:"].iter().any(|start| front.starts_with(start)) {
            return None;
        }
        let list = |key: &str| holds(&head, key, b'[');
        let object = |key: &str| holds(&head, key, b'{');
        if list("logprob_entries") {
            Some(Self::Miles)
        } else if list("completion_probabilities") {
            Some(Self::LlamaServer)
        } else if object("meta_info")
            && (list("output_token_logprobs") || list("input_token_logprobs"))
        {
            Some(Self::Sglang)
        } else if list("prompt_logprobs") || (list("outputs") && list("logprobs")) {
            Some(Self::Vllm)
        } else if list("choices") && list("token_logprobs") {
            Some(Self::OpenaiCompletions)
        } else if list("choices") && object("logprobs") {
            Some(Self::OpenaiChat)
        } else {
            None
        }
    }
}

/// Does a value that begins with `open` stand under `key` somewhere?
fn holds(text: &[u8], key: &str, open: u8) -> bool {
    let key = format!("\"{key}\"");
    let key = key.as_bytes();
    let mut rest = text;
    while let Some(at) = rest.windows(key.len()).position(|part| part == key) {
        rest = rest.get(at + key.len()..).unwrap_or_default();
        let value = rest.trim_ascii_start().strip_prefix(b":").map(<[u8]>::trim_ascii_start);
        if value.is_some_and(|value| value.first() == Some(&open)) {
            return true;
        }
    }
    false
}
