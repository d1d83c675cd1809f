//! A run's rows as CSV (RFC 4180), one line a row.
//!
//! Columns: `sample_id, position, phase, token_id, next_token, rows_before, rows_after, rows_bucketed, compaction, rope_index,
//! argmax, logsumexp, top2_margin, finite, logits_hash, rng_offset, uniform`, then `top1_id, top1_value, top2_id, ...` up to the
//! longest list. The list has a column for each rank, so that a data frame reads every column as numbers without parsing cells.
//! What is not known is an empty cell; NaN and infinities are `NaN`, `inf`, `-inf`; a hash is 32 hex digits. `topN_value` is a
//! logit, or the log-probability that an imported run has (`value_kind` in the last column says which).

use std::fmt::{Display, Write as _};
use std::io::BufWriter;
use std::path::Path;

use super::rows::{Out, Row, Selection};
use crate::limits::Values;
use crate::store::{StepColumn, replace_file};
use crate::{Phase, TraceError, UNKNOWN_TOKEN};

const COLUMNS: &str = "sample_id,position,phase,token_id,next_token,rows_before,rows_after,rows_bucketed,compaction,rope_index,\
                       argmax,logsumexp,top2_margin,finite,logits_hash,rng_offset,uniform";

/// Writes a run as CSV.
///
/// # Errors
/// What reading and writing report.
pub fn csv(selection: Selection<'_>, path: &Path) -> Result<Vec<String>, TraceError> {
    let samples = selection.samples()?;
    let mut longest = 0;
    for sample in &samples {
        selection.each(&sample.sample_id, &[StepColumn::TopIds], &mut |row| {
            longest = longest.max(row.steps.top_len.get(row.index).copied().unwrap_or(0) as usize);
            Ok(())
        })?;
    }
    let limits = &selection.run.manifest().limits;
    let shape = Shape { longest, rows: limits.rows, kind: kind(limits.values) };
    replace_file(path, |file| {
        let mut out = Out { file: BufWriter::with_capacity(1 << 18, file), path };
        out.put(&shape.header())?;
        let mut line = String::new();
        for sample in &samples {
            let id = field(&sample.sample_id);
            selection.each(&sample.sample_id, &StepColumn::ALL, &mut |row| {
                line.clear();
                shape.line(&mut line, &id, row);
                out.put(&line)
            })?;
        }
        out.end()
    })?;
    Ok(Vec::new())
}

const fn kind(values: Values) -> &'static str {
    match values {
        Values::Logits => "logit",
        Values::Logprobs => "logprob",
        Values::ProcessedLogprobs => "processed_logprob",
        Values::UnsaidLogprobs => "unsaid_logprob",
        Values::Nothing => "nothing",
    }
}

struct Shape {
    longest: usize,
    /// The run has row counts of its own.
    rows: bool,
    kind: &'static str,
}

impl Shape {
    fn header(&self) -> String {
        let mut text = COLUMNS.to_owned();
        for rank in 1..=self.longest {
            let _ = write!(text, ",top{rank}_id,top{rank}_value");
        }
        text.push_str(",value_kind\r\n");
        text
    }

    fn line(&self, out: &mut String, sample: &str, row: Row<'_>) {
        let (steps, i) = (row.steps, row.index);
        out.push_str(sample);
        cell(out, Some(row.position()));
        let phase = steps.phase.get(i).map(|phase| match phase {
            Phase::Prompt => "prompt",
            Phase::Decode => "decode",
        });
        cell(out, phase);
        cell(out, row.fed());
        let known = |id: &u32| *id != UNKNOWN_TOKEN;
        cell(out, steps.next_token.get(i).copied().flatten().filter(known));
        let counts = |column: &[u32]| column.get(i).copied().filter(|_| self.rows);
        cell(out, counts(&steps.rows_before));
        cell(out, counts(&steps.rows_after));
        cell(out, steps.rows_bucketed.get(i).copied().flatten());
        cell(out, steps.compaction.get(i).copied().flatten());
        cell(out, steps.rope_index.get(i).copied().flatten());
        cell(out, steps.argmax.get(i).copied().filter(known));
        // The 0 beside log-probabilities is a convention of the store.
        let sum = steps.logsumexp.get(i).copied().flatten().filter(|_| self.kind == "logit");
        number(out, sum);
        number(out, steps.top2_margin.get(i).copied().flatten());
        cell(out, steps.finite.get(i));
        cell(
            out,
            steps.logits_hash.get(i).copied().flatten().map(|[a, b]| format!("{a:016x}{b:016x}")),
        );
        cell(out, steps.rng_offset.get(i).copied().flatten());
        number(out, steps.uniform.get(i).copied().flatten());
        let (ids, values) = (steps.ids_of(i), steps.logits_of(i));
        for rank in 0..self.longest {
            cell(out, ids.get(rank).filter(|id| known(id)));
            number(out, values.get(rank).copied());
        }
        cell(out, Some(self.kind));
        out.push_str("\r\n");
    }
}

fn cell(out: &mut String, value: Option<impl Display>) {
    out.push(',');
    if let Some(value) = value {
        // Writing to a String cannot fail.
        let _ = write!(out, "{value}");
    }
}

/// The shortest text that reads back as the number.
fn number(out: &mut String, value: Option<impl std::fmt::Debug>) {
    out.push(',');
    if let Some(value) = value {
        let _ = write!(out, "{value:?}");
    }
}

/// A text as a field: in quotes where it holds a comma, a quote or a line end (RFC 4180, 2.6 and 2.7).
fn field(text: &str) -> String {
    if text.contains([',', '"', '\r', '\n']) {
        format!("\"{}\"", text.replace('"', "\"\""))
    } else {
        text.to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_quoted_where_they_must_be() {
        assert_eq!(field("plain id"), "plain id");
        assert_eq!(field("a,\"b\""), "\"a,\"\"b\"\"\"");
        assert_eq!(field("a\nb"), "\"a\nb\"");
    }
}
