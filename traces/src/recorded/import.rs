//! A recording becomes a run, or a trace in memory.

use std::path::{Path, PathBuf};

use super::read::{Item, Recording};
use crate::foreign::Loaded;
use crate::foreign::lines::Lines;
use crate::store::{RunReader, RunWriter, StepQuery, dumps};
use crate::{DumpFile, RecordPlan, TraceError, TraceSink as _};

const FILE: &str = "trace.jsonl";

/// True for a recorder's folder, or the `trace.jsonl` in one: its first line names the schema.
#[must_use]
pub fn is_recorded(path: &Path) -> bool {
    let file = file_of(path);
    if !file.is_file() {
        return false;
    }
    let Ok(mut lines) = Lines::open(&file) else { return false };
    let Ok(Some((_, text))) = lines.next() else { return false };
    text.starts_with(b"{\"lockstep_trace\"")
}

fn file_of(path: &Path) -> PathBuf {
    if path.is_dir() { path.join(FILE) } else { path.to_owned() }
}

/// Makes a run directory `out` of the recording in `path`; a recording that was stopped gives an incomplete run.
/// Returns the remarks, which stand in the manifest as well.
///
/// # Errors
/// [`TraceError`] with file and line where the recording is damaged before its end; as [`RunWriter::create`].
pub fn import_recorded(path: &Path, out: &Path) -> Result<Vec<String>, TraceError> {
    let file = file_of(path);
    let (mut recording, manifest, top_k) = Recording::open(&file)?;
    let plan = RecordPlan { top_k, ..RecordPlan::default() };
    let mut writer = RunWriter::create(out, manifest, plan)?;
    while let Some(item) = recording.next()? {
        match item {
            Item::Setting { key, value, source } => {
                writer.manifest_mut().set(&key, value, &source);
            }
            Item::Step(row, event) => {
                writer.step(*row)?;
                event.map(|event| writer.event(event)).transpose()?;
            }
            Item::Sample(row) => writer.sample(*row)?,
        }
    }
    if let Some(folder) = file.parent() {
        copy_dumps(folder, out)?;
    }
    let manifest = writer.manifest_mut();
    manifest.remarks.extend(recording.remarks());
    manifest.limits.cannot = recording.cannot();
    let remarks = manifest.remarks.clone();
    if recording.is_complete() {
        writer.finish()?;
    } else {
        writer.flush()?;
    }
    Ok(remarks)
}

/// Each dump is checked before it is copied.
fn copy_dumps(from: &Path, out: &Path) -> Result<(), TraceError> {
    for id in dumps::list(from)? {
        let name = id.relative_path();
        let (source, target) = (from.join(&name), out.join(&name));
        DumpFile::open(&source)?;
        let io = |path: &Path| {
            let path = path.to_owned();
            move |source| TraceError::Io { path, source }
        };
        if let Some(parent) = target.parent() {
            std::fs::create_dir_all(parent).map_err(io(parent))?;
        }
        std::fs::copy(&source, &target).map_err(io(&source))?;
    }
    Ok(())
}

/// The recording in memory, by way of a run that is thrown away again; dumps stay where they are.
///
/// # Errors
/// As [`import_recorded`].
pub fn load_recorded(path: &Path) -> Result<(Loaded, Vec<crate::SampleRow>), TraceError> {
    let io = |source| TraceError::Io { path: path.to_owned(), source };
    let dir = tempfile::tempdir().map_err(io)?;
    let out = dir.path().join("run");
    let remarks = import_recorded(path, &out)?;
    let run = RunReader::open(&out)?;
    let steps = run.steps(&StepQuery::default())?;
    let loaded = Loaded {
        manifest: run.manifest().clone(),
        samples: steps.sample_ids.clone(),
        steps,
        events: run.events(None)?,
        remarks,
    };
    Ok((loaded, run.samples()?))
}
