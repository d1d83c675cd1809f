//! Rows of a run's samples, a few thousand at a time, each with the token that follows it.

use std::io::Write;
use std::path::Path;

use crate::store::fail::{io, malformed};
use crate::store::{RunReader, StepColumn, StepColumns, StepQuery};
use crate::{FinishReason, SampleRow, TraceError, UNKNOWN_TOKEN};

/// Rows in memory at a time.
const CHUNK: usize = 4096;

/// What of a run is written.
#[derive(Debug, Clone, Copy)]
pub struct Selection<'a> {
    /// Run.
    pub run: &'a RunReader,
    /// This sample only.
    pub sample: Option<&'a str>,
}

impl Selection<'_> {
    /// The samples in order, with what is known of each beside its rows.
    pub(super) fn samples(&self) -> Result<Vec<SampleRow>, TraceError> {
        let ended = self.run.samples()?;
        let ids = self.run.sample_ids()?;
        if let Some(wanted) = self.sample
            && !ids.iter().any(|id| id == wanted)
        {
            return Err(malformed(
                self.run.dir(),
                format!("no sample `{wanted}` in this run; `inspect` lists its samples"),
            ));
        }
        let chosen = ids.into_iter().filter(|id| self.sample.is_none_or(|wanted| wanted == id));
        let row = |id: String| {
            let known = ended.iter().find(|row| row.sample_id == id).cloned();
            known.unwrap_or_else(|| SampleRow {
                finish: FinishReason::Unknown,
                ..SampleRow::bare(id)
            })
        };
        Ok(chosen.map(row).collect())
    }

    /// Hands each row of a sample to `visit`, with these columns read beside position and tokens.
    pub(super) fn each(
        &self,
        sample: &str,
        columns: &[StepColumn],
        visit: &mut dyn FnMut(Row<'_>) -> Result<(), TraceError>,
    ) -> Result<(), TraceError> {
        let query = |columns: Vec<StepColumn>| StepQuery {
            sample_id: Some(sample.to_owned()),
            columns: Some(columns),
            ..StepQuery::default()
        };
        let positions = self.run.steps(&query(Vec::new()))?.position;
        let mut wanted = vec![StepColumn::TokenId, StepColumn::NextToken];
        wanted.extend_from_slice(columns);
        let mut start = 0;
        while let Some(&first) = positions.get(start) {
            // One row more, for the token that follows the last one.
            let end = (start + CHUNK).min(positions.len());
            let last = positions.get(end).or_else(|| positions.last()).copied().unwrap_or(first);
            let steps = self
                .run
                .steps(&StepQuery { positions: Some(first..=last), ..query(wanted.clone()) })?;
            for index in 0..(end - start).min(steps.len) {
                visit(Row { steps: &steps, index })?;
            }
            start = end;
        }
        Ok(())
    }
}

/// One row.
#[derive(Clone, Copy)]
pub(super) struct Row<'a> {
    pub(super) steps: &'a StepColumns,
    pub(super) index: usize,
}

impl Row<'_> {
    /// Absolute position.
    pub(super) fn position(&self) -> u32 {
        self.steps.position.get(self.index).copied().unwrap_or(0)
    }

    /// Token fed.
    pub(super) fn fed(&self) -> Option<u32> {
        let token = self.steps.token_id.get(self.index).copied();
        token.filter(|&token| token != UNKNOWN_TOKEN)
    }

    /// The token at the next position: chosen here, or part of the prompt.
    pub(super) fn follows(&self) -> Option<u32> {
        let chosen = self.steps.next_token.get(self.index).copied().flatten();
        chosen.filter(|&token| token != UNKNOWN_TOKEN).or_else(|| {
            let next = Row { steps: self.steps, index: self.index + 1 };
            let beside =
                self.steps.position.get(next.index) == Some(&(self.position().checked_add(1)?));
            next.fed().filter(|_| beside)
        })
    }
}

/// Counts of what a format could not take.
#[derive(Debug, Default)]
pub(super) struct Losses {
    /// Rows of the prompt that were left out.
    pub(super) prompt_rows: u64,
    /// Rows after which no token is known.
    pub(super) open_rows: u64,
    /// Chosen tokens outside the recorded list.
    pub(super) outside: u64,
    /// Candidates without an id.
    pub(super) nameless: u64,
    /// Values that are not finite.
    pub(super) not_finite: u64,
    /// Candidates of one row whose texts are equal.
    pub(super) same_text: u64,
}

impl Losses {
    pub(super) fn remarks(&self) -> Vec<String> {
        let all = [
            (self.prompt_rows, "rows of prompts have no place in this layout, and are left out"),
            (self.open_rows, "rows are followed by no known token, and are left out"),
            (
                self.outside,
                "chosen tokens lie outside the recorded list, so their value is not known",
            ),
            (self.nameless, "candidates have no id or text, and are left out"),
            (self.not_finite, "values are not finite, and are written as null"),
            (self.same_text, "candidates read like another one of their row"),
        ];
        all.iter()
            .filter(|(count, _)| *count > 0)
            .map(|(count, text)| format!("{count} {text}"))
            .collect()
    }
}

/// Appends text to a file.
pub(super) struct Out<'a, W: Write> {
    pub(super) file: W,
    pub(super) path: &'a Path,
}

impl<W: Write> Out<'_, W> {
    pub(super) fn put(&mut self, text: &str) -> Result<(), TraceError> {
        self.file.write_all(text.as_bytes()).map_err(io(self.path))
    }

    pub(super) fn end(&mut self) -> Result<(), TraceError> {
        self.file.flush().map_err(io(self.path))
    }
}

/// A text as JSON.
pub(super) fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

/// The model's name as far as a run has one.
pub(super) fn model_name(run: &RunReader) -> String {
    let manifest = run.manifest();
    let told = manifest.get("source.model").and_then(serde_json::Value::as_str).map(str::to_owned);
    told.or_else(|| manifest.model.path.clone()).unwrap_or_else(|| manifest.producer.name.clone())
}

/// `finish_reason` of the OpenAI API.
pub(super) const fn finish_word(finish: FinishReason) -> &'static str {
    match finish {
        FinishReason::Eos | FinishReason::Stop => "\"stop\"",
        FinishReason::Length | FinishReason::CacheFull => "\"length\"",
        FinishReason::Forced | FinishReason::Unknown => "null",
    }
}
