//! Responses of vLLM's completions endpoint with `return_token_ids` and `return_tokens_as_token_ids`, one a line: the prompt as
//! `prompt_logprobs` by id, the completion in lists whose texts are `token_id:N`.

use std::fmt::Write as _;
use std::io::Write;
use std::path::Path;

use super::frame::{self, Cell, Column, Frame, LIST};
use super::rows::{Out, Row, Selection, finish_word, quoted};
use crate::limits::TokenIds;
use crate::store::StepColumn;
use crate::store::fail::malformed;
use crate::{FinishReason, SampleRow, TraceError};

/// Writes a run as responses of vLLM. No texts are needed: tokens are named by their ids.
///
/// # Errors
/// [`TraceError::Malformed`] where the run's ids are no vocabulary's, or it holds no log-probabilities; what reading and
/// writing report.
pub fn vllm(selection: Selection<'_>, path: &Path) -> Result<Vec<String>, TraceError> {
    let origin = selection.run.manifest().limits.token_ids;
    if matches!(origin, TokenIds::Invented | TokenIds::Nothing) {
        return Err(malformed(
            selection.run.dir(),
            "the ids of this run are those of no vocabulary, and this layout names tokens by id (`export openai-chat` writes texts)",
        ));
    }
    frame::write(selection, path, |frame, row, out| Vllm { frame }.sample(row, out))
}

struct Vllm<'r, 'a> {
    frame: &'r mut Frame<'a>,
}

/// Which rows a list is made of.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Side {
    Prompt,
    Completion,
}

impl<'a> Vllm<'_, 'a> {
    fn sample<W: Write>(
        &mut self,
        sample: &SampleRow,
        out: &mut Out<'_, W>,
    ) -> Result<(), TraceError> {
        self.count_open(sample)?;
        let (prompt, whole) = self.prompt_ids(sample)?;
        self.frame.open(sample, "text_completion", out)?;
        let text = quoted(sample.text.as_deref().unwrap_or_default());
        out.put(&format!("\"text\":{text},\"logprobs\":{{\"tokens\":["))?;
        let mut tokens = 0_u64;
        self.column(sample, Side::Completion, &[], out, &mut |_, _, token, text| {
            tokens += 1;
            let _ = write!(text, "\"token_id:{token}\"");
            Ok(())
        })?;
        out.put("],\"token_logprobs\":[")?;
        self.column(sample, Side::Completion, &LIST, out, &mut Frame::own)?;
        out.put("],\"top_logprobs\":[")?;
        self.column(sample, Side::Completion, &LIST, out, &mut named)?;
        out.put("]},\"token_ids\":[")?;
        self.column(sample, Side::Completion, &[], out, &mut |_, _, token, text| {
            let _ = write!(text, "{token}");
            Ok(())
        })?;
        out.put("]")?;
        if whole {
            out.put(",\"prompt_logprobs\":[null")?;
            self.column(sample, Side::Prompt, &LIST, out, &mut by_id)?;
            out.put("]")?;
        } else {
            out.put(",\"prompt_logprobs\":null")?;
        }
        if !prompt.is_empty() {
            out.put(&format!(",\"prompt_token_ids\":{prompt:?}"))?;
        }
        let stopped = match sample.finish {
            FinishReason::Eos => ",\"stop_reason\":null",
            FinishReason::Stop => ",\"stop_reason\":\"\"",
            _ => "",
        };
        out.put(&format!(",\"finish_reason\":{}{stopped}}}]", finish_word(sample.finish)))?;
        Frame::close(sample, tokens, out)
    }

    fn count_open(&mut self, sample: &SampleRow) -> Result<(), TraceError> {
        let Frame { selection, losses, .. } = &mut *self.frame;
        selection.each(&sample.sample_id, &[], &mut |row| {
            losses.open_rows += u64::from(row.follows().is_none());
            Ok(())
        })
    }

    /// The prompt's ids, as far as they are known, and whether the run holds the rows of all of them.
    fn prompt_ids(&self, sample: &SampleRow) -> Result<(Vec<u32>, bool), TraceError> {
        let Some(length) = sample.prompt_len else { return Ok((Vec::new(), false)) };
        let mut fed = Vec::new();
        self.frame.selection.each(&sample.sample_id, &[], &mut |row| {
            if row.position() < length && row.position() as usize == fed.len() {
                fed.extend(row.fed());
            }
            Ok(())
        })?;
        let whole = fed.len() == length as usize && length > 0;
        Ok(if whole { (fed, true) } else { (sample.prompt_ids.clone(), false) })
    }

    fn column<W: Write>(
        &mut self,
        sample: &SampleRow,
        side: Side,
        columns: &[StepColumn],
        out: &mut Out<'_, W>,
        cell: &mut Cell<'_, 'a>,
    ) -> Result<(), TraceError> {
        let length = sample.prompt_len.unwrap_or(0);
        let prompt = side == Side::Prompt;
        let takes = |row: &Row<'_>| (row.position().saturating_add(1) < length) == prompt;
        // The list of prompt log-probabilities begins with a null.
        self.frame.column(sample, &Column { columns, takes: &takes, comma: prompt }, out, cell)
    }
}

fn named(
    frame: &mut Frame<'_>,
    row: Row<'_>,
    _chosen: u32,
    out: &mut String,
) -> Result<(), TraceError> {
    map(frame, row, None, out, |id, _| format!("\"token_id:{id}\":"), "")
}

/// The prompt's own token comes first, as vLLM has it.
fn by_id(
    frame: &mut Frame<'_>,
    row: Row<'_>,
    chosen: u32,
    out: &mut String,
) -> Result<(), TraceError> {
    let head = |id: u32, rank: usize| {
        format!("\"{id}\":{{\"rank\":{rank},\"decoded_token\":null,\"logprob\":")
    };
    map(frame, row, Some(chosen), out, head, "}")
}

fn map(
    frame: &mut Frame<'_>,
    row: Row<'_>,
    front: Option<u32>,
    out: &mut String,
    head: impl Fn(u32, usize) -> String,
    tail: &str,
) -> Result<(), TraceError> {
    let list = frame.logprobs.list(row)?.into_iter().enumerate();
    let mut list: Vec<_> = list.map(|(place, (id, value))| (place + 1, id, value)).collect();
    match front.and_then(|token| list.iter().position(|(_, id, _)| *id == token)) {
        Some(place) => list[..=place].rotate_right(1),
        None => frame.losses.outside += u64::from(front.is_some() && !list.is_empty()),
    }
    out.push('{');
    let mut first = true;
    for (rank, id, value) in list {
        if id == crate::UNKNOWN_TOKEN {
            frame.losses.nameless += 1;
            continue;
        }
        if !first {
            out.push(',');
        }
        first = false;
        frame.losses.not_finite += u64::from(!value.finite());
        out.push_str(&head(id, rank));
        value.push(out);
        out.push_str(tail);
    }
    out.push('}');
    Ok(())
}
