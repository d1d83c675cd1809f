//! The neutral trace: `{"position", "token_id" (chosen), "rows_before" (own row counted), "rows_after", "top": [[id, logit]..]}`
//! a line, the samples one after the other.

use std::fmt::Write as _;
use std::io::BufWriter;
use std::path::Path;

use super::rows::{Out, Row, Selection};
use crate::foreign::print::write_general;
use crate::limits::Values;
use crate::manifest::ValueEncoding;
use crate::store::fail::malformed;
use crate::store::{RunReader, StepColumn, replace_file};
use crate::{TraceError, UNKNOWN_TOKEN};

/// Writes a run as a neutral trace, which [`crate::load`] reads back: positions, chosen tokens, row counts, lists. Values have
/// nine significant digits where the run's are exact, and as many as it proves where they are not.
///
/// # Errors
/// [`TraceError::Malformed`] where a row cannot be written so that it reads back: no list, no token after it, a gap of
/// positions, a second sample that does not start at position 0.
pub fn neutral(selection: Selection<'_>, path: &Path) -> Result<Vec<String>, TraceError> {
    let run = selection.run;
    let samples = selection.samples()?;
    let digits = digits(run);
    replace_file(path, |file| {
        let mut out = Out { file: BufWriter::with_capacity(1 << 18, file), path };
        let mut line = String::new();
        let mut front = None;
        for sample in &samples {
            let mut last: Option<u32> = None;
            let columns = [
                StepColumn::RowsBefore,
                StepColumn::RowsAfter,
                StepColumn::RowsBucketed,
                StepColumn::TopIds,
                StepColumn::TopLogits,
            ];
            selection.each(&sample.sample_id, &columns, &mut |row| {
                let fault = |what: &str| {
                    let place = format!("sample `{}`, position {}", sample.sample_id, row.position());
                    malformed(run.dir(), format!("{place}: {what}"))
                };
                let first = *front.get_or_insert(row.position());
                match last {
                    None if row.position() != 0 && row.position() != first => {
                        return Err(fault("a second sample of a neutral trace starts at 0 or where the first one does; export it alone (--sample)"));
                    }
                    Some(last) if last.checked_add(1) != Some(row.position()) => {
                        return Err(fault("positions of a neutral trace have no gaps"));
                    }
                    _ => {}
                }
                last = Some(row.position());
                line.clear();
                write_row(&mut line, row, digits).map_err(fault)?;
                out.put(&line)
            })?;
        }
        out.end()
    })?;
    Ok(remarks(run, samples.len()))
}

/// Significant digits, so that what is read back proves as much as the run and no more; `None`: the shortest text.
fn digits(run: &RunReader) -> Option<usize> {
    let encoding = run.manifest().encoding;
    match encoding {
        _ if encoding.exact() => Some(9),
        ValueEncoding::Digits6 => Some(6),
        _ => None,
    }
}

fn write_row(line: &mut String, row: Row<'_>, digits: Option<usize>) -> Result<(), &'static str> {
    let (steps, index) = (row.steps, row.index);
    let chosen =
        row.follows().ok_or("no token is known to follow it, and a neutral trace names it")?;
    let (ids, values) = (steps.ids_of(index), steps.logits_of(index));
    if ids.is_empty() {
        return Err("it has no list of largest values, and a neutral trace needs one");
    }
    if ids.contains(&UNKNOWN_TOKEN) {
        return Err("its list holds tokens without an id");
    }
    let before = steps.rows_before.get(index).copied().unwrap_or(0);
    let after = steps.rows_after.get(index).copied().unwrap_or(0);
    // Writing to a String cannot fail.
    let _ = write!(
        line,
        "{{\"position\":{},\"token_id\":{chosen},\"rows_before\":{},\"rows_after\":{after},\"top\":[",
        row.position(),
        before.saturating_add(1)
    );
    for (place, (id, value)) in ids.iter().zip(values).enumerate() {
        let comma = if place == 0 { "" } else { "," };
        let _ = write!(line, "{comma}[{id},");
        match digits {
            _ if value.is_nan() => line.push_str("null"),
            _ if value.is_infinite() => {
                line.push_str(if *value < 0.0 { "-Infinity" } else { "Infinity" });
            }
            Some(digits) => write_general(line, f64::from(*value), digits),
            None => {
                let _ = write!(line, "{value:?}");
            }
        }
        line.push(']');
    }
    line.push_str("]}\n");
    Ok(())
}

fn remarks(run: &RunReader, samples: usize) -> Vec<String> {
    let manifest = run.manifest();
    let mut remarks = vec![
        "a neutral trace has no sample ids, prompt lengths, logsumexp, hashes or random numbers"
            .to_owned(),
    ];
    if samples > 1 {
        remarks.push(format!("{samples} samples stand one after the other"));
    }
    if manifest.limits.values != Values::Logits {
        remarks
            .push("the values are log-probabilities, which a neutral trace cannot say".to_owned());
    }
    if !manifest.limits.rows {
        remarks.push(
            "the source has no row counts: they are written as those of a dense cache".to_owned(),
        );
    }
    if !manifest.rows_exact && manifest.limits.rows {
        remarks.push("row counts are rounded up, which a neutral trace cannot say".to_owned());
    }
    remarks
}
