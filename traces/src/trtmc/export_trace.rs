//! A run directory becomes a step trace.

use std::fmt::Write as _;
use std::io::{BufWriter, Write as _};
use std::path::Path;

use crate::TraceError;
use crate::foreign::{UNKNOWN_TOKEN, print::write_general};
use crate::store::fail::{io, malformed};
use crate::store::{RunReader, StepColumns, StepQuery, replace_file};

/// How a step trace is written. The default is what the engine does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TraceExport {
    /// Significant digits: 6 as a default C++ stream prints, 9 to keep every f32.
    pub digits: usize,
    /// Round row counts up to a multiple of this, as the dynamic binding reports them; `None` writes live rows.
    pub bucket_rows: Option<u32>,
}

impl Default for TraceExport {
    fn default() -> Self {
        Self { digits: 6, bucket_rows: Some(32) }
    }
}

/// Writes all samples of `run` one after the other into one step trace at `path`, as the engine appends them.
/// `decoder_idx` is 0 on every row: a run does not keep it.
///
/// # Errors
/// [`TraceError::Malformed`] where a row has no logits or no fed token; what reading the run and writing report.
pub fn export_trace(run: &RunReader, path: &Path, options: TraceExport) -> Result<(), TraceError> {
    let exact = run.manifest().rows_exact;
    replace_file(path, |file| {
        let mut out = BufWriter::with_capacity(1 << 18, file);
        let mut line = String::new();
        for sample_id in run.sample_ids()? {
            let query = StepQuery { sample_id: Some(sample_id), ..StepQuery::default() };
            let steps = run.steps(&query)?;
            for row in 0..steps.len {
                line.clear();
                write_row(&mut line, &steps, row, options, exact)
                    .map_err(|what| malformed(run.dir(), what))?;
                out.write_all(line.as_bytes()).map_err(io(path))?;
            }
        }
        out.flush().map_err(io(path))
    })
}

fn write_row(
    line: &mut String,
    steps: &StepColumns,
    row: usize,
    options: TraceExport,
    exact: bool,
) -> Result<(), String> {
    let (ids, logits) = (steps.ids_of(row), steps.logits_of(row));
    let position = steps.position[row];
    let (argmax, token) = (steps.argmax[row], steps.token_id[row]);
    let place = ids.iter().position(|&id| id == argmax).unwrap_or(0);
    let Some(&largest) = logits.get(place) else {
        return Err(format!("position {position} has no logits recorded; a step trace needs them"));
    };
    if token == UNKNOWN_TOKEN {
        return Err(format!(
            "the token fed at position {position} is unknown; a step trace needs it"
        ));
    }
    let bucketed = |rows: u32| match options.bucket_rows {
        Some(bucket) if exact && bucket > 0 => rows.div_ceil(bucket).saturating_mul(bucket).max(1),
        _ => rows,
    };
    let before = bucketed(steps.rows_before[row]);
    let after = bucketed(steps.rows_after[row]);
    // Writing to a String cannot fail.
    let _ = write!(
        line,
        "{{\"position_before\":{position},\"token_id\":{token},\"decoder_idx\":0,\"rows_before\":{before},\
         \"rows_after\":{after},\"argmax_token\":{argmax},\"argmax_logit\":"
    );
    write_general(line, f64::from(largest), options.digits);
    line.push_str(",\"top_ids\":[");
    for (index, id) in ids.iter().enumerate() {
        let comma = if index == 0 { "" } else { "," };
        let _ = write!(line, "{comma}{id}");
    }
    line.push_str("],\"top_logits\":[");
    for (index, &logit) in logits.iter().enumerate() {
        if index > 0 {
            line.push(',');
        }
        write_general(line, f64::from(logit), options.digits);
    }
    line.push_str("]}\n");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::foreign::load;
    use crate::trtmc::import_trace;

    const TRACE: &str = concat!(
        r#"{"position_before":0,"token_id":5,"decoder_idx":0,"rows_before":0,"rows_after":1,"argmax_token":220,"argmax_logit":21.4531,"top_ids":[220,279],"top_logits":[21.4531,20.9062]}"#,
        "\n",
        r#"{"position_before":1,"token_id":220,"decoder_idx":0,"rows_before":1,"rows_after":1,"argmax_token":16,"argmax_logit":24.1094,"top_ids":[16,17],"top_logits":[24.1094,-1.5]}"#,
        "\n",
        r#"{"position_before":2,"token_id":16,"decoder_idx":0,"rows_before":1,"rows_after":2,"argmax_token":21,"argmax_logit":nan,"top_ids":[21,17],"top_logits":[nan,nan]}"#,
        "\n",
    );

    fn run_of(text: &str, dir: &Path) -> RunReader {
        std::fs::write(dir.join("t"), text).unwrap();
        import_trace(&dir.join("t"), None, &dir.join("run")).unwrap();
        RunReader::open(&dir.join("run")).unwrap()
    }

    #[test]
    fn an_exported_trace_is_the_imported_one_byte_for_byte() {
        let dir = tempfile::tempdir().unwrap();
        let run = run_of(TRACE, dir.path());
        let out = dir.path().join("again.jsonl");
        export_trace(&run, &out, TraceExport { digits: 6, bucket_rows: None }).unwrap();
        assert_eq!(std::fs::read_to_string(&out).unwrap(), TRACE);
    }

    #[test]
    fn nine_digits_bring_every_step_back() {
        let dir = tempfile::tempdir().unwrap();
        let f32_values = TRACE.replace("20.9062", "20.9061871");
        let run = run_of(&f32_values, dir.path());
        let out = dir.path().join("again.jsonl");
        export_trace(&run, &out, TraceExport { digits: 9, bucket_rows: None }).unwrap();
        let (first, again) = (load(&dir.path().join("t")).unwrap(), load(&out).unwrap());
        assert_eq!(first.manifest.encoding, again.manifest.encoding);
        assert_eq!(format!("{:?}", first.steps), format!("{:?}", again.steps));
        assert_eq!(first.events, again.events);
    }

    #[test]
    fn rows_are_rounded_up_as_the_dynamic_binding_does() {
        let dir = tempfile::tempdir().unwrap();
        let run = run_of(TRACE, dir.path());
        let out = dir.path().join("again.jsonl");
        export_trace(&run, &out, TraceExport::default()).unwrap();
        let text = std::fs::read_to_string(&out).unwrap();
        let rows: Vec<&str> = text
            .lines()
            .filter_map(|line| line.split("\"rows_before\":").nth(1)?.split(",\"argmax").next())
            .collect();
        assert_eq!(rows, ["1,\"rows_after\":32", "32,\"rows_after\":32", "32,\"rows_after\":32"]);
    }

    #[test]
    fn a_row_that_the_layout_cannot_hold_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let neutral = "{\"position\":4,\"token_id\":5,\"rows_before\":5,\"rows_after\":5,\"top\":[[5,21.375]]}\n";
        let run = run_of(neutral, dir.path());
        let refused = export_trace(&run, &dir.path().join("x"), TraceExport::default());
        assert!(
            matches!(refused, Err(TraceError::Malformed { what, .. }) if what.contains("fed at position 4"))
        );
    }
}
