//! Hand-written files of each server, and the rows that follow from them by hand.

mod hazards;
mod servers;

use std::path::Path;

use super::{LogprobImport, LogprobKind, import};
use crate::store::RunReader;
use crate::{Manifest, SampleRow, StepQuery, StepRow, TraceError};

/// What an import made.
struct Made {
    rows: Vec<StepRow>,
    samples: Vec<SampleRow>,
    manifest: Manifest,
    remarks: Vec<String>,
    _dir: tempfile::TempDir,
    texts: Option<crate::TokenTexts>,
}

/// Position, fed, chosen, ids and values.
type Listed = (u32, u32, Option<u32>, Vec<(u32, f32)>);

impl Made {
    /// Position, fed, chosen, ids and values of each row.
    fn lists(&self) -> Vec<Listed> {
        let pairs = |row: &StepRow| {
            row.top_ids.iter().copied().zip(row.top_logits.iter().copied()).collect::<Vec<_>>()
        };
        self.rows
            .iter()
            .map(|row| (row.position, row.token_id, row.next_token, pairs(row)))
            .collect()
    }

    #[track_caller]
    fn says(&self, what: &str) {
        assert!(
            self.remarks.iter().any(|remark| remark.contains(what)),
            "{what}: {:?}",
            self.remarks
        );
        assert_eq!(self.remarks, self.manifest.remarks);
    }
}

fn made(kind: LogprobKind, text: &str) -> Made {
    made_with(kind, text, &LogprobImport::default())
}

#[track_caller]
fn made_with(kind: LogprobKind, text: &str, options: &LogprobImport<'_>) -> Made {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("file");
    std::fs::write(&path, text).unwrap();
    assert_eq!(LogprobKind::of(&path), Some(kind), "the kind is seen in the content");
    of_path(kind, &path, options, dir).unwrap()
}

fn of_path(
    kind: LogprobKind,
    path: &Path,
    options: &LogprobImport<'_>,
    dir: tempfile::TempDir,
) -> Result<Made, TraceError> {
    let out = dir.path().join("run");
    let remarks = import(path, kind, options, &out)?;
    let run = RunReader::open(&out)?;
    let steps = run.steps(&StepQuery::default())?;
    Ok(Made {
        rows: (0..steps.len).filter_map(|row| steps.row(row)).collect(),
        samples: run.samples()?,
        manifest: run.manifest().clone(),
        remarks,
        texts: crate::TokenTexts::read(&out)?,
        _dir: dir,
    })
}

fn refused(kind: LogprobKind, text: &str, options: &LogprobImport<'_>) -> String {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("file");
    std::fs::write(&path, text).unwrap();
    let out = dir.path().join("run");
    let error = import(&path, kind, options, &out).unwrap_err().to_string();
    assert!(!out.exists(), "half a run is taken away");
    error
}
