//! Completions responses of the OpenAI API, one a line: `choices[0].logprobs {tokens, token_logprobs, top_logprobs, text_offset}`.

use std::fmt::Write as _;
use std::io::Write;
use std::path::Path;

use super::Texts;
use super::chat::bytes_of;
use super::frame::{self, Column, Frame, LIST};
use super::rows::{Out, Row, Selection, finish_word, quoted};
use crate::{SampleRow, TraceError};

/// Writes a run as completions responses. A prompt whose rows the run holds is echoed: its tokens come first, the first of
/// them with a null. A token that is a part of a character is spelled as the API spells it, `bytes:\xe2\x80`.
///
/// # Errors
/// As [`super::openai_chat`].
pub fn openai_completions(
    selection: Selection<'_>,
    path: &Path,
    texts: Texts<'_>,
) -> Result<Vec<String>, TraceError> {
    frame::write(selection, path, |frame, row, out| Completions { frame, texts }.sample(row, out))
}

struct Completions<'r, 'a> {
    frame: &'r mut Frame<'a>,
    texts: Texts<'r>,
}

/// Text of a token in this layout.
pub(super) fn spelled(bytes: &[u8]) -> String {
    match std::str::from_utf8(bytes) {
        Ok(text) => text.to_owned(),
        Err(_) => bytes.iter().fold("bytes:".to_owned(), |mut text, byte| {
            // Writing to a String cannot fail.
            let _ = write!(text, "\\x{byte:02x}");
            text
        }),
    }
}

impl Completions<'_, '_> {
    /// The layout holds a sample in four lists side by side, so its rows are read once for each.
    fn sample<W: Write>(
        &mut self,
        sample: &SampleRow,
        out: &mut Out<'_, W>,
    ) -> Result<(), TraceError> {
        let first = self.first_token(sample)?;
        self.frame.open(sample, "text_completion", out)?;
        out.put("\"logprobs\":{\"tokens\":[")?;
        let (mut offsets, mut text, mut tokens) = (String::new(), Vec::new(), 0_u64);
        let (texts, selection) = (self.texts, self.frame.selection);
        let mut push = |token: u32, position: u32, out: &mut Out<'_, W>| {
            let bytes = bytes_of(selection, texts, token, position)?;
            let comma = if tokens == 0 { "" } else { "," };
            let _ = write!(offsets, "{comma}{}", String::from_utf8_lossy(&text).chars().count());
            out.put(&format!("{comma}{}", quoted(&spelled(&bytes))))?;
            text.extend_from_slice(&bytes);
            tokens += 1;
            Ok(())
        };
        if let Some(first) = first {
            push(first, 0, out)?;
        }
        let mut open = 0;
        selection.each(&sample.sample_id, &[], &mut |row| match row.follows() {
            Some(token) => push(token, row.position(), out),
            None => {
                open += 1;
                Ok(())
            }
        })?;
        self.frame.losses.open_rows += open;
        let lead = if first.is_some() { "null" } else { "" };
        out.put(&format!("],\"token_logprobs\":[{lead}"))?;
        let list = Column { columns: &LIST, takes: &|_| true, comma: first.is_some() };
        self.frame.column(sample, &list, out, &mut Frame::own)?;
        out.put(&format!("],\"top_logprobs\":[{lead}"))?;
        let mut map = |frame: &mut Frame<'_>, row: Row<'_>, _: u32, out: &mut String| {
            by_text(frame, texts, row, out)
        };
        self.frame.column(sample, &list, out, &mut map)?;
        out.put(&format!("],\"text_offset\":[{offsets}]}},\"text\":"))?;
        out.put(&quoted(&String::from_utf8_lossy(&text)))?;
        out.put(&format!(",\"finish_reason\":{}}}]", finish_word(sample.finish)))?;
        let prompt = u64::from(sample.prompt_len.unwrap_or(0));
        let generated = if first.is_some() { tokens.saturating_sub(prompt) } else { tokens };
        Frame::close(sample, generated, out)
    }

    /// The first token of a sequence whose rows begin with it.
    fn first_token(&self, sample: &SampleRow) -> Result<Option<u32>, TraceError> {
        let mut first = None;
        let mut seen = false;
        self.frame.selection.each(&sample.sample_id, &[], &mut |row| {
            if !seen {
                seen = true;
                first = row.fed().filter(|_| row.position() == 0);
            }
            Ok(())
        })?;
        Ok(first)
    }
}

/// The list of a row by the texts of its tokens.
fn by_text(
    frame: &mut Frame<'_>,
    texts: Texts<'_>,
    row: Row<'_>,
    out: &mut String,
) -> Result<(), TraceError> {
    let mut names: Vec<String> = Vec::new();
    out.push('{');
    for (id, value) in frame.logprobs.list(row)? {
        let Some(bytes) = texts(id) else {
            frame.losses.nameless += 1;
            continue;
        };
        let name = spelled(&bytes);
        frame.losses.same_text += u64::from(names.contains(&name));
        frame.losses.not_finite += u64::from(!value.finite());
        if !names.is_empty() {
            out.push(',');
        }
        out.push_str(&quoted(&name));
        out.push(':');
        value.push(out);
        names.push(name);
    }
    out.push('}');
    Ok(())
}
