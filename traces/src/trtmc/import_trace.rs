//! A trace file becomes a run directory.

use std::path::Path;

use crate::foreign::{ForeignOptions, Loaded, UNKNOWN_TOKEN, load_with};
use crate::hash::ids_sha256;
use crate::store::{RunWriter, StepColumns};
use crate::{RecordPlan, SampleRow, Status, TraceError, TraceSink as _};

/// Makes a run directory `out` from any trace file that [`crate::load`] knows. A file that is cut gives an
/// incomplete run whose last sample has not ended. Returns the remarks, which stand in the manifest as well.
///
/// Prompt ids and generated ids of a sample are filled in where the prompt length is given; the hash of unknown
/// prompt ids is empty.
///
/// # Errors
/// As [`crate::load`] and [`RunWriter::create`].
pub fn import_trace(
    path: &Path,
    prompt_len: Option<u32>,
    out: &Path,
) -> Result<Vec<String>, TraceError> {
    let Loaded { manifest, steps, events, remarks, .. } =
        load_with(path, &ForeignOptions { prompt_len })?;
    let cut = manifest.status == Status::Incomplete;
    let plan = RecordPlan { top_k: steps.top_k, ..RecordPlan::default() };
    let mut writer = RunWriter::create(out, manifest, plan)?;
    let mut events = events.into_iter().peekable();
    let mut start = 0;
    for (index, sample_id) in steps.sample_ids.iter().enumerate() {
        let end = (start..steps.len)
            .find(|&row| steps.sample_id(row) != Some(sample_id))
            .unwrap_or(steps.len);
        for row in (start..end).filter_map(|row| steps.row(row)) {
            writer.step(row)?;
        }
        while let Some(event) = events.next_if(|event| event.sample_id == *sample_id) {
            writer.event(event)?;
        }
        if !cut || index + 1 < steps.sample_ids.len() {
            writer.sample(sample_of(&steps, start..end, sample_id, prompt_len))?;
        }
        start = end;
    }
    if cut {
        writer.flush()?;
    } else {
        writer.finish()?;
    }
    Ok(remarks)
}

fn sample_of(
    steps: &StepColumns,
    rows: std::ops::Range<usize>,
    sample_id: &str,
    prompt_len: Option<u32>,
) -> SampleRow {
    let Some(length) = prompt_len else {
        return sample(sample_id, None, Vec::new(), Vec::new());
    };
    let fed = |decode: bool| {
        rows.clone()
            .filter(move |&row| (steps.position[row] >= length) == decode)
            .map(|row| steps.token_id[row])
            .filter(|&token| token != UNKNOWN_TOKEN)
            .collect::<Vec<u32>>()
    };
    let mut prompt_ids = fed(false);
    // A window that starts within the prompt does not hold the whole of it.
    if prompt_ids.len() != length as usize {
        prompt_ids.clear();
    }
    let mut generated = fed(true);
    generated.extend(rows.clone().next_back().and_then(|last| steps.next_token[last]));
    sample(sample_id, prompt_len, prompt_ids, generated)
}

/// A sample of which only these are known.
pub(super) fn sample(
    sample_id: &str,
    prompt_len: Option<u32>,
    prompt_ids: Vec<u32>,
    generated_ids: Vec<u32>,
) -> SampleRow {
    let known = !prompt_ids.is_empty();
    SampleRow {
        prompt_ids_sha256: if known { ids_sha256(&prompt_ids) } else { String::new() },
        prompt_ids,
        prompt_len,
        generated_ids,
        ..SampleRow::bare(sample_id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::RunReader;

    fn says(remarks: &[String], what: &str) -> bool {
        remarks.iter().any(|remark| remark.contains(what))
    }

    fn trace(rows: std::ops::Range<u32>) -> String {
        rows.map(|p| {
            format!(
                "{{\"position_before\":{p},\"token_id\":{},\"decoder_idx\":0,\"rows_before\":{p},\"rows_after\":{},\
                 \"argmax_token\":7,\"argmax_logit\":2.5,\"top_ids\":[7,3],\"top_logits\":[2.5,1]}}\n",
                100 + p,
                p + 1
            )
        })
        .collect()
    }

    #[test]
    fn a_trace_becomes_a_run_with_prompt_and_generated_ids() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("t");
        std::fs::write(&path, trace(0..6) + &trace(0..5)).unwrap();
        let out = dir.path().join("run");
        import_trace(&path, Some(4), &out).unwrap();
        let run = RunReader::open(&out).unwrap();
        assert!(run.is_complete());
        let samples = run.samples().unwrap();
        assert_eq!(samples[0].prompt_ids, [100, 101, 102, 103]);
        assert_eq!(
            (&samples[0].generated_ids[..], &samples[1].generated_ids[..]),
            (&[104, 105][..], &[104][..])
        );
        assert_eq!(run.steps(&crate::StepQuery::default()).unwrap(), {
            load_with(&path, &ForeignOptions { prompt_len: Some(4) }).unwrap().steps
        });
    }

    #[test]
    fn a_cut_trace_becomes_an_incomplete_run() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("t");
        let text = trace(0..6) + &trace(0..5);
        std::fs::write(&path, &text[..text.len() - 20]).unwrap();
        let out = dir.path().join("run");
        let remarks = import_trace(&path, None, &out).unwrap();
        assert!(says(&remarks, "last line incomplete"));
        let run = RunReader::open(&out).unwrap();
        assert!(!run.is_complete());
        assert_eq!(run.samples().unwrap().len(), 1);
        assert_eq!(run.steps(&crate::StepQuery::default()).unwrap().len, 10);
        assert!(
            run.manifest().remarks.iter().any(|remark| remark.contains("last line incomplete"))
        );
    }
}
