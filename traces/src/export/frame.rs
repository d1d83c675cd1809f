//! What the layouts of responses share: a file of one response a line, its head and its end, lists beside one another.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

use super::rows::{Losses, Out, Row, Selection, model_name, quoted};
use super::values::Logprobs;
use crate::store::{StepColumn, replace_file};
use crate::{SampleRow, TraceError};

/// Columns of a row's list.
pub(super) const LIST: [StepColumn; 3] =
    [StepColumn::TopIds, StepColumn::TopLogits, StepColumn::Logsumexp];

/// Appends what a row says of the token that follows it to the text.
pub(super) type Cell<'c, 'a> =
    dyn FnMut(&mut Frame<'a>, Row<'_>, u32, &mut String) -> Result<(), TraceError> + 'c;

/// Which rows make a list: those that satisfy `takes`; a comma before the first where something stands there.
pub(super) struct Column<'c> {
    pub(super) columns: &'c [StepColumn],
    pub(super) takes: &'c dyn Fn(&Row<'_>) -> bool,
    pub(super) comma: bool,
}

/// A run that is written, and what of it found no place.
pub(super) struct Frame<'a> {
    pub(super) selection: Selection<'a>,
    pub(super) logprobs: Logprobs<'a>,
    pub(super) losses: Losses,
    model: String,
}

/// Writes `path`, with `sample` for each sample; the remarks come back.
pub(super) fn write<'a>(
    selection: Selection<'a>,
    path: &Path,
    mut sample: impl FnMut(
        &mut Frame<'a>,
        &SampleRow,
        &mut Out<'_, BufWriter<&mut File>>,
    ) -> Result<(), TraceError>,
) -> Result<Vec<String>, TraceError> {
    let mut frame = Frame {
        selection,
        logprobs: Logprobs::of(selection.run)?,
        losses: Losses::default(),
        model: quoted(&model_name(selection.run)),
    };
    replace_file(path, |file| {
        let mut out = Out { file: BufWriter::with_capacity(1 << 18, file), path };
        for row in selection.samples()? {
            sample(&mut frame, &row, &mut out)?;
        }
        out.end()
    })?;
    let mut remarks = frame.logprobs.remarks();
    remarks.extend(frame.losses.remarks());
    Ok(remarks)
}

impl<'a> Frame<'a> {
    /// The response up to the members of its only choice.
    pub(super) fn open<W: Write>(
        &self,
        sample: &SampleRow,
        object: &str,
        out: &mut Out<'_, W>,
    ) -> Result<(), TraceError> {
        out.put(&format!(
            "{{\"id\":{},\"object\":\"{object}\",\"created\":0,\"model\":{},\"choices\":[{{\"index\":0,",
            quoted(&sample.sample_id),
            self.model
        ))
    }

    /// The rest of a response behind its choices: counts of tokens, where the prompt's length is known.
    pub(super) fn close<W: Write>(
        sample: &SampleRow,
        generated: u64,
        out: &mut Out<'_, W>,
    ) -> Result<(), TraceError> {
        if let Some(prompt) = sample.prompt_len {
            let total = u64::from(prompt) + generated;
            out.put(&format!(
                ",\"usage\":{{\"prompt_tokens\":{prompt},\"completion_tokens\":{generated},\"total_tokens\":{total}}}"
            ))?;
        }
        out.put("}\n")
    }

    /// One list of a sample, an entry for every row that it takes and that a known token follows.
    pub(super) fn column<W: Write>(
        &mut self,
        sample: &SampleRow,
        column: &Column<'_>,
        out: &mut Out<'_, W>,
        cell: &mut Cell<'_, 'a>,
    ) -> Result<(), TraceError> {
        let (selection, mut comma) = (self.selection, column.comma);
        let mut text = String::new();
        selection.each(&sample.sample_id, column.columns, &mut |row| {
            let Some(token) = row.follows().filter(|_| (column.takes)(&row)) else {
                return Ok(());
            };
            text.clear();
            if comma {
                text.push(',');
            }
            comma = true;
            cell(self, row, token, &mut text)?;
            out.put(&text)
        })
    }

    /// The value of the token that follows a row; null where it lies outside the recorded list.
    pub(super) fn own(
        &mut self,
        row: Row<'_>,
        chosen: u32,
        out: &mut String,
    ) -> Result<(), TraceError> {
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
}
