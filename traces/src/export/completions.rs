//! Completions responses of the OpenAI API, one a line: `choices[0].logprobs {tokens, token_logprobs, top_logprobs, text_offset}`.

use std::fmt::Write as _;
use std::io::{BufWriter, Write};
use std::path::Path;

use super::Texts;
use super::chat::bytes_of;
use super::rows::{Losses, Out, Row, Selection, finish_word, model_name, quoted};
use super::values::Logprobs;
use crate::store::{StepColumn, replace_file};
use crate::{SampleRow, TraceError};

/// Appends what a row says of a token to the text.
type Cell<'c, W> = dyn FnMut(&mut W, Row<'_>, u32, &mut String) -> Result<(), TraceError> + 'c;

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
    let logprobs = Logprobs::of(selection.run)?;
    let model = quoted(&model_name(selection.run));
    let mut losses = Losses::default();
    replace_file(path, |file| {
        let mut out = Out { file: BufWriter::with_capacity(1 << 18, file), path };
        for sample in selection.samples()? {
            let mut writer =
                Completions { selection, logprobs: &logprobs, texts, losses: &mut losses };
            writer.sample(&sample, &model, &mut out)?;
        }
        out.end()
    })?;
    let mut remarks = logprobs.remarks();
    remarks.extend(losses.remarks());
    Ok(remarks)
}

struct Completions<'a> {
    selection: Selection<'a>,
    logprobs: &'a Logprobs<'a>,
    texts: Texts<'a>,
    losses: &'a mut Losses,
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

impl Completions<'_> {
    /// The layout holds a sample in four lists side by side, so its rows are read once for each.
    fn sample<W: Write>(
        &mut self,
        sample: &SampleRow,
        model: &str,
        out: &mut Out<'_, W>,
    ) -> Result<(), TraceError> {
        let first = self.first_token(sample)?;
        let id = quoted(&sample.sample_id);
        out.put(&format!(
            "{{\"id\":{id},\"object\":\"text_completion\",\"created\":0,\"model\":{model},\"choices\":[{{\"index\":0,\"logprobs\":{{\"tokens\":["
        ))?;
        let (mut offsets, mut text, mut tokens) = (String::new(), Vec::new(), 0_u64);
        let (texts, selection) = (self.texts, self.selection);
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
        self.losses.open_rows += open;
        let lead = if first.is_some() { "null" } else { "" };
        out.put(&format!("],\"token_logprobs\":[{lead}"))?;
        self.column(sample, first.is_some(), out, &mut Self::own)?;
        out.put(&format!("],\"top_logprobs\":[{lead}"))?;
        self.column(sample, first.is_some(), out, &mut Self::map)?;
        out.put(&format!("],\"text_offset\":[{offsets}]}},\"text\":"))?;
        out.put(&quoted(&String::from_utf8_lossy(&text)))?;
        out.put(&format!(",\"finish_reason\":{}}}]", finish_word(sample.finish)))?;
        if let Some(prompt) = sample.prompt_len {
            let generated =
                if first.is_some() { tokens.saturating_sub(u64::from(prompt)) } else { tokens };
            let total = u64::from(prompt) + generated;
            out.put(&format!(
                ",\"usage\":{{\"prompt_tokens\":{prompt},\"completion_tokens\":{generated},\"total_tokens\":{total}}}"
            ))?;
        }
        out.put("}\n")
    }

    /// The first token of a sequence whose rows begin with it.
    fn first_token(&self, sample: &SampleRow) -> Result<Option<u32>, TraceError> {
        let mut first = None;
        let mut seen = false;
        self.selection.each(&sample.sample_id, &[], &mut |row| {
            if !seen {
                seen = true;
                first = row.fed().filter(|_| row.position() == 0);
            }
            Ok(())
        })?;
        Ok(first)
    }

    fn column<W: Write>(
        &mut self,
        sample: &SampleRow,
        mut comma: bool,
        out: &mut Out<'_, W>,
        cell: &mut Cell<'_, Self>,
    ) -> Result<(), TraceError> {
        let columns = [StepColumn::TopIds, StepColumn::TopLogits, StepColumn::Logsumexp];
        let selection = self.selection;
        let mut text = String::new();
        selection.each(&sample.sample_id, &columns, &mut |row| {
            let Some(chosen) = row.follows() else { return Ok(()) };
            text.clear();
            if comma {
                text.push(',');
            }
            comma = true;
            cell(self, row, chosen, &mut text)?;
            out.put(&text)
        })
    }

    fn own(&mut self, row: Row<'_>, chosen: u32, out: &mut String) -> Result<(), TraceError> {
        let list = self.logprobs.list(row)?;
        match list.iter().find(|(id, _)| *id == chosen) {
            Some((_, value)) => value.push(out),
            None => {
                self.losses.outside += u64::from(!list.is_empty());
                out.push_str("null");
            }
        }
        Ok(())
    }

    fn map(&mut self, row: Row<'_>, _chosen: u32, out: &mut String) -> Result<(), TraceError> {
        let mut names: Vec<String> = Vec::new();
        out.push('{');
        for (id, value) in self.logprobs.list(row)? {
            let Some(bytes) = (self.texts)(id) else {
                self.losses.nameless += 1;
                continue;
            };
            let name = spelled(&bytes);
            self.losses.same_text += u64::from(names.contains(&name));
            self.losses.not_finite += u64::from(!value.finite());
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
}
