//! Streaming rows of answers out of a file or a run.

use std::path::Path;

use super::fields;
use super::lenient::{self, Problem, Repairs};
use super::row::{AnswerRow, AnswerSource, Fields, Schema};
use crate::foreign::lines::{GZIP, Lines};
use crate::hash::sha256_hex;
use crate::store::{RunReader, is_run};
use crate::{FinishReason, SampleRow, Status, TraceError, imported};

/// Hands each row of `path` to `each`: a file of JSON rows (one a line, perhaps gzip) one line at a time, or the samples of a run.
/// A run that was made of a file of rows gives these rows, which it keeps: filters, repeats and metrics have no column in a run.
/// The schema is told by the keys of the first row, and every row must have it.
///
/// # Errors
/// [`TraceError`] with path and line for a row that is none before the end of the file, a field that is missing, a row of another
/// schema, and a file without rows.
pub fn read_answers(
    path: &Path,
    fields: &Fields,
    each: impl FnMut(AnswerRow),
) -> Result<AnswerSource, TraceError> {
    if is_run(path) {
        let manifest = RunReader::open(path)?.manifest().clone();
        let rows = [crate::lm_eval::KIND, crate::trtmc::ROWS];
        if imported::kind(&manifest).is_some_and(|kind| rows.contains(&kind))
            && let Some(kept) = imported::kept(path, &manifest)?
        {
            let mut source = file(&kept, fields, each)?;
            // It is the run that packs them.
            source.remarks.retain(|line| line != GZIP);
            return Ok(source);
        }
        return run(path, each);
    }
    file(path, fields, each)
}

fn file(
    path: &Path,
    fields: &Fields,
    mut each: impl FnMut(AnswerRow),
) -> Result<AnswerSource, TraceError> {
    let error = |line: usize, what: String| TraceError::Line { path: path.to_owned(), line, what };
    let mut lines = Lines::open(path)?;
    let (mut repairs, mut rows, mut schema) = (Repairs::default(), 0_u64, None);
    let mut cut: Option<usize> = None;
    while let Some((line, text)) = lines.next()? {
        if let Some(line) = cut {
            let what = "no whole JSON object stands on this line, and it is not the last: the file is damaged here, or has \
                        not one row a line";
            return Err(error(line, what.to_owned()));
        }
        let object = match lenient::object(text, &mut repairs) {
            Ok(object) => object,
            Err(Problem::Cut) => {
                cut = Some(line);
                continue;
            }
            Err(Problem::Other(what)) => return Err(error(line, what)),
        };
        let found = fields::schema(&object);
        let schema = *schema.get_or_insert(found);
        if found != schema {
            let what = format!("a row of {} among rows of {}", found.slug(), schema.slug());
            return Err(error(line, what));
        }
        each(fields::row(&object, schema, fields, line).map_err(|what| error(line, what))?);
        rows += 1;
    }
    let mut remarks = lines.oddities().remarks();
    remarks.extend(repairs.remarks());
    if let Some(line) = cut {
        remarks.push(format!(
            "the file ends inside the row of line {line}; the rows before it are a prefix"
        ));
    }
    let Some(schema) = schema else {
        let what = "no row of answers; one JSON object a line is expected".to_owned();
        return Err(TraceError::Malformed { path: path.to_owned(), what });
    };
    Ok(AnswerSource { schema, rows, cut: cut.is_some() || lines.oddities().cut(), remarks })
}

fn run(path: &Path, mut each: impl FnMut(AnswerRow)) -> Result<AnswerSource, TraceError> {
    let run = RunReader::open(path)?;
    let samples = run.samples()?;
    let rows = samples.len() as u64;
    for (at, sample) in samples.into_iter().enumerate() {
        each(of_sample(sample, at + 1));
    }
    let cut = run.manifest().status == Status::Incomplete;
    let mut remarks = run.remarks().to_vec();
    if cut {
        remarks.push("the run is incomplete: samples that had not ended are missing".to_owned());
    }
    Ok(AnswerSource { schema: Schema::Run, rows, cut, remarks })
}

fn of_sample(sample: SampleRow, place: usize) -> AnswerRow {
    let ids: Vec<u8> = sample.generated_ids.iter().flat_map(|id| id.to_le_bytes()).collect();
    AnswerRow {
        schema: Schema::Run,
        line: place,
        id: sample.sample_id,
        gold: sample.gold,
        text: sample.text,
        answer: sample.answer,
        answer_rule: sample.answer_rule,
        stopped: matches!(sample.finish, FinishReason::Length | FinishReason::CacheFull),
        content: sha256_hex(&ids),
        tokens: Some(sample.generated_ids),
        ..AnswerRow::default()
    }
}
