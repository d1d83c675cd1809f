//! Responses of vLLM's completions endpoint with `return_token_ids` and `return_tokens_as_token_ids`, one a line: the prompt as
//! `prompt_logprobs` by id, the completion in lists whose texts are `token_id:N`.

use std::fmt::Write as _;
use std::io::{BufWriter, Write};
use std::path::Path;

use super::rows::{Losses, Out, Row, Selection, finish_word, model_name, quoted};
use super::values::Logprobs;
use crate::limits::TokenIds;
use crate::store::fail::malformed;
use crate::store::{StepColumn, replace_file};
use crate::{FinishReason, SampleRow, TraceError};

/// Appends what a row says of a token to the text.
type Cell<'c, W> = dyn FnMut(&mut W, Row<'_>, u32, &mut String) -> Result<(), TraceError> + 'c;

const LIST: [StepColumn; 3] = [StepColumn::TopIds, StepColumn::TopLogits, StepColumn::Logsumexp];

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
    let logprobs = Logprobs::of(selection.run)?;
    let model = quoted(&model_name(selection.run));
    let mut losses = Losses::default();
    replace_file(path, |file| {
        let mut out = Out { file: BufWriter::with_capacity(1 << 18, file), path };
        for sample in selection.samples()? {
            Vllm { selection, logprobs: &logprobs, losses: &mut losses }
                .sample(&sample, &model, &mut out)?;
        }
        out.end()
    })?;
    let mut remarks = logprobs.remarks();
    remarks.extend(losses.remarks());
    Ok(remarks)
}

struct Vllm<'a> {
    selection: Selection<'a>,
    logprobs: &'a Logprobs<'a>,
    losses: &'a mut Losses,
}

/// Which rows a list is made of.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Side {
    Prompt,
    Completion,
}

impl Vllm<'_> {
    fn sample<W: Write>(
        &mut self,
        sample: &SampleRow,
        model: &str,
        out: &mut Out<'_, W>,
    ) -> Result<(), TraceError> {
        self.count_open(sample)?;
        let (prompt, whole) = self.prompt_ids(sample)?;
        let id = quoted(&sample.sample_id);
        out.put(&format!(
            "{{\"id\":{id},\"object\":\"text_completion\",\"created\":0,\"model\":{model},\"choices\":[{{\"index\":0,\"text\":{},\"logprobs\":{{\"tokens\":[",
            quoted(sample.text.as_deref().unwrap_or_default())
        ))?;
        let mut tokens = 0_u64;
        self.column(sample, Side::Completion, &[], out, &mut |_, _, token, text| {
            tokens += 1;
            let _ = write!(text, "\"token_id:{token}\"");
            Ok(())
        })?;
        out.put("],\"token_logprobs\":[")?;
        self.column(sample, Side::Completion, &LIST, out, &mut Self::own)?;
        out.put("],\"top_logprobs\":[")?;
        self.column(sample, Side::Completion, &LIST, out, &mut Self::named)?;
        out.put("]},\"token_ids\":[")?;
        self.column(sample, Side::Completion, &[], out, &mut |_, _, token, text| {
            let _ = write!(text, "{token}");
            Ok(())
        })?;
        out.put("]")?;
        if whole {
            out.put(",\"prompt_logprobs\":[null")?;
            self.column(sample, Side::Prompt, &LIST, out, &mut Self::by_id)?;
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
        if let Some(length) = sample.prompt_len {
            let total = u64::from(length) + tokens;
            out.put(&format!(
                ",\"usage\":{{\"prompt_tokens\":{length},\"completion_tokens\":{tokens},\"total_tokens\":{total}}}"
            ))?;
        }
        out.put("}\n")
    }

    fn count_open(&mut self, sample: &SampleRow) -> Result<(), TraceError> {
        let selection = self.selection;
        selection.each(&sample.sample_id, &[], &mut |row| {
            self.losses.open_rows += u64::from(row.follows().is_none());
            Ok(())
        })
    }

    /// The prompt's ids, as far as they are known, and whether the run holds the rows of all of them.
    fn prompt_ids(&self, sample: &SampleRow) -> Result<(Vec<u32>, bool), TraceError> {
        let Some(length) = sample.prompt_len else { return Ok((Vec::new(), false)) };
        let mut fed = Vec::new();
        self.selection.each(&sample.sample_id, &[], &mut |row| {
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
        cell: &mut Cell<'_, Self>,
    ) -> Result<(), TraceError> {
        let length = sample.prompt_len.unwrap_or(0);
        // The list of prompt log-probabilities begins with a null.
        let mut comma = side == Side::Prompt;
        let selection = self.selection;
        let mut text = String::new();
        selection.each(&sample.sample_id, columns, &mut |row| {
            let prompt = row.position().saturating_add(1) < length;
            if prompt != (side == Side::Prompt) {
                return Ok(());
            }
            let Some(token) = row.follows() else { return Ok(()) };
            text.clear();
            if comma {
                text.push(',');
            }
            comma = true;
            cell(self, row, token, &mut text)?;
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

    fn named(&mut self, row: Row<'_>, _chosen: u32, out: &mut String) -> Result<(), TraceError> {
        self.map(row, None, out, |id, _| format!("\"token_id:{id}\":"), "")
    }

    /// The prompt's own token comes first, as vLLM has it.
    fn by_id(&mut self, row: Row<'_>, chosen: u32, out: &mut String) -> Result<(), TraceError> {
        let head = |id: u32, rank: usize| {
            format!("\"{id}\":{{\"rank\":{rank},\"decoded_token\":null,\"logprob\":")
        };
        self.map(row, Some(chosen), out, head, "}")
    }

    fn map(
        &mut self,
        row: Row<'_>,
        front: Option<u32>,
        out: &mut String,
        head: impl Fn(u32, usize) -> String,
        tail: &str,
    ) -> Result<(), TraceError> {
        let mut list: Vec<_> = self
            .logprobs
            .list(row)?
            .into_iter()
            .enumerate()
            .map(|(place, (id, value))| (place + 1, id, value))
            .collect();
        match front.and_then(|token| list.iter().position(|(_, id, _)| *id == token)) {
            Some(place) => list[..=place].rotate_right(1),
            None => self.losses.outside += u64::from(front.is_some() && !list.is_empty()),
        }
        out.push('{');
        let mut first = true;
        for (rank, id, value) in list {
            if id == crate::UNKNOWN_TOKEN {
                self.losses.nameless += 1;
                continue;
            }
            if !first {
                out.push(',');
            }
            first = false;
            self.losses.not_finite += u64::from(!value.finite());
            out.push_str(&head(id, rank));
            value.push(out);
            out.push_str(tail);
        }
        out.push('}');
        Ok(())
    }
}
