//! Chat responses of the OpenAI API, one a line: `choices[0].logprobs.content[]`.

use std::io::Write;
use std::path::Path;

use super::Texts;
use super::frame::{self, Frame, LIST};
use super::rows::{Out, Row, Selection, finish_word, quoted};
use super::values::Printed;
use crate::{SampleRow, TraceError};

/// What the API writes for a token outside its list.
const OUTSIDE: &str = "-9999.0";

/// Writes the completions of a run as chat responses. The layout has no place for a prompt's rows. Where the chosen token
/// lies outside the recorded list its value is the API's own -9999.0.
///
/// # Errors
/// [`TraceError::Malformed`] where a token has no text or the run holds no log-probabilities; what reading and writing report.
pub fn openai_chat(
    selection: Selection<'_>,
    path: &Path,
    texts: Texts<'_>,
) -> Result<Vec<String>, TraceError> {
    frame::write(selection, path, |frame, row, out| Chat { frame, texts }.sample(row, out))
}

struct Chat<'r, 'a> {
    frame: &'r mut Frame<'a>,
    texts: Texts<'r>,
}

impl Chat<'_, '_> {
    fn sample<W: Write>(
        &mut self,
        sample: &SampleRow,
        out: &mut Out<'_, W>,
    ) -> Result<(), TraceError> {
        self.frame.open(sample, "chat.completion", out)?;
        out.put("\"logprobs\":{\"content\":[")?;
        let prompt_len = sample.prompt_len.unwrap_or(0);
        let (mut tokens, mut text) = (0_u64, Vec::new());
        let selection = self.frame.selection;
        selection.each(&sample.sample_id, &LIST, &mut |row| {
            if row.position().saturating_add(1) < prompt_len {
                self.frame.losses.prompt_rows += 1;
                return Ok(());
            }
            let Some(chosen) = row.follows() else {
                self.frame.losses.open_rows += 1;
                return Ok(());
            };
            let entry = self.entry(row, chosen, &mut text)?;
            out.put(if tokens == 0 { "" } else { "," })?;
            tokens += 1;
            out.put(&entry)
        })?;
        let content =
            sample.text.clone().unwrap_or_else(|| String::from_utf8_lossy(&text).into_owned());
        out.put(&format!(
            "]}},\"message\":{{\"role\":\"assistant\",\"content\":{}}},\"finish_reason\":{}}}]",
            quoted(&content),
            finish_word(sample.finish)
        ))?;
        Frame::close(sample, tokens, out)
    }

    fn entry(
        &mut self,
        row: Row<'_>,
        chosen: u32,
        text: &mut Vec<u8>,
    ) -> Result<String, TraceError> {
        let list = self.frame.logprobs.list(row)?;
        let bytes = bytes_of(self.frame.selection, self.texts, chosen, row.position())?;
        text.extend_from_slice(&bytes);
        let own = list.iter().find(|(id, _)| *id == chosen).map(|(_, value)| *value);
        self.frame.losses.outside += u64::from(own.is_none() && !list.is_empty());
        let mut entry = String::with_capacity(128 * (list.len() + 1));
        self.token(&mut entry, &bytes, own);
        entry.push_str(",\"top_logprobs\":[");
        let mut first = true;
        for (id, value) in list {
            let Some(bytes) = (self.texts)(id) else {
                self.frame.losses.nameless += 1;
                continue;
            };
            if !first {
                entry.push(',');
            }
            first = false;
            self.token(&mut entry, &bytes, Some(value));
            entry.push('}');
        }
        entry.push_str("]}");
        Ok(entry)
    }

    /// `{"token":..,"bytes":..,"logprob":..`, left open.
    fn token(&mut self, out: &mut String, bytes: &[u8], value: Option<Printed>) {
        out.push_str("{\"token\":");
        out.push_str(&quoted(&String::from_utf8_lossy(bytes)));
        out.push_str(",\"bytes\":[");
        for (place, byte) in bytes.iter().enumerate() {
            if place > 0 {
                out.push(',');
            }
            out.push_str(&byte.to_string());
        }
        out.push_str("],\"logprob\":");
        match value {
            Some(value) => {
                self.frame.losses.not_finite += u64::from(!value.finite());
                value.push(out);
            }
            None => out.push_str(OUTSIDE),
        }
    }
}

/// Bytes of a token that must have a text.
pub(super) fn bytes_of(
    selection: Selection<'_>,
    texts: Texts<'_>,
    id: u32,
    position: u32,
) -> Result<Vec<u8>, TraceError> {
    texts(id).ok_or_else(|| {
        crate::store::fail::malformed(
            selection.run.dir(),
            format!("token {id} after position {position} has no text; give --model with the run's tokenizer"),
        )
    })
}
