//! Writing a run: rows to streams while it goes on, tables when it ends.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::convert;
use super::dumps::{write_dump, write_dump_with};
use super::fail::{arrow, io, malformed};
use super::format::{Kind, manifest_path, write_manifest};
use super::stream::StreamFile;
use super::{events, samples, steps};
use crate::manifest::Status;
use crate::{
    Dump, EventRow, Manifest, Probe, RecordPlan, SampleRow, StepRow, TensorRef, TraceError,
    TraceSink,
};

/// Rows in a batch of the stream at most; what kill -9 may cost.
const BATCH_ROWS: usize = 64;
/// Work that kill -9 may cost at most.
const BATCH_TIME: Duration = Duration::from_secs(1);
/// Recorded ids in a batch at most: bounds a batch where whole vocabularies are recorded as top-k.
const BATCH_IDS: usize = 1 << 20;

/// Writes one run directory.
///
/// A row is on disk (in the sense of kill -9, not of a power cut) at the latest when 64 rows or one second of
/// work came after the last batch, and always when its sample has ended. [`RunWriter::finish`] makes the run
/// complete; a writer that is dropped leaves it incomplete, which is a state that [`super::RunReader`] opens
/// and [`RunWriter::resume`] goes on with.
#[derive(Debug)]
pub struct RunWriter {
    dir: PathBuf,
    manifest: Manifest,
    manifest_changed: bool,
    plan: RecordPlan,
    streams: Streams,
    pending_steps: Vec<StepRow>,
    pending_ids: usize,
    pending_events: Vec<EventRow>,
    last_flush: Instant,
    /// Next position allowed, by sample that has not ended.
    open: BTreeMap<String, u64>,
    ended: BTreeSet<String>,
}

pub(super) struct Streams {
    pub(super) steps: StreamFile,
    pub(super) events: StreamFile,
    pub(super) samples: StreamFile,
}

impl std::fmt::Debug for Streams {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_tuple("Streams").field(&self.steps.path()).finish()
    }
}

impl Streams {
    /// New streams at these paths, in the order of [`Kind::ALL`]; the first one is locked.
    pub(super) fn create(at: impl Fn(Kind) -> PathBuf) -> Result<Self, TraceError> {
        let steps = StreamFile::create(&at(Kind::Steps), &steps::schema())?;
        steps.lock()?;
        Ok(Self {
            steps,
            events: StreamFile::create(&at(Kind::Events), &events::schema())?,
            samples: StreamFile::create(&at(Kind::Samples), &samples::schema())?,
        })
    }
}

impl RunWriter {
    /// Starts a run in `dir`, which must not exist or be empty.
    ///
    /// # Errors
    /// [`TraceError::Malformed`] where `dir` holds something; [`TraceError::Io`].
    pub fn create(dir: &Path, manifest: Manifest, plan: RecordPlan) -> Result<Self, TraceError> {
        std::fs::create_dir_all(dir).map_err(io(dir))?;
        if std::fs::read_dir(dir).map_err(io(dir))?.next().is_some() {
            return Err(malformed(
                dir,
                "already holds files; choose another directory, or resume the run in it",
            ));
        }
        // The manifest comes last: where it is, the streams are.
        let streams = Streams::create(|kind| kind.stream(dir))?;
        let mut writer = Self::new(dir, manifest, plan, streams, BTreeSet::new());
        writer.write_manifest()?;
        Ok(writer)
    }

    pub(super) fn new(
        dir: &Path,
        mut manifest: Manifest,
        plan: RecordPlan,
        streams: Streams,
        ended: BTreeSet<String>,
    ) -> Self {
        manifest.status = Status::Incomplete;
        Self {
            dir: dir.to_path_buf(),
            manifest,
            manifest_changed: true,
            plan,
            streams,
            pending_steps: Vec::with_capacity(BATCH_ROWS),
            pending_ids: 0,
            pending_events: Vec::new(),
            last_flush: Instant::now(),
            open: BTreeMap::new(),
            ended,
        }
    }

    /// The run directory.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The manifest as it will be written.
    #[must_use]
    pub const fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// The manifest, to be added to; written with the next batch. Its status is the writer's own affair.
    pub const fn manifest_mut(&mut self) -> &mut Manifest {
        self.manifest_changed = true;
        &mut self.manifest
    }

    /// Puts everything received so far on disk.
    ///
    /// # Errors
    /// What the operating system says; what was written before stays readable.
    pub fn flush(&mut self) -> Result<(), TraceError> {
        if self.manifest_changed {
            self.write_manifest()?;
        }
        if !self.pending_events.is_empty() {
            let path = self.streams.events.path();
            let batch = events::encode(&self.pending_events).map_err(arrow(path))?;
            self.streams.events.append(&batch)?;
            self.pending_events.clear();
        }
        if !self.pending_steps.is_empty() {
            let path = self.streams.steps.path();
            let batch = steps::encode(&self.pending_steps).map_err(arrow(path))?;
            self.streams.steps.append(&batch)?;
            self.pending_steps.clear();
            self.pending_ids = 0;
        }
        self.last_flush = Instant::now();
        Ok(())
    }

    pub(super) fn write_manifest(&mut self) -> Result<(), TraceError> {
        self.manifest.status = Status::Incomplete;
        self.manifest.tables.clear();
        write_manifest(&self.dir, &self.manifest)?;
        self.manifest_changed = false;
        Ok(())
    }

    fn flush_when_due(&mut self) -> Result<(), TraceError> {
        let rows = self.pending_steps.len().max(self.pending_events.len());
        if rows >= BATCH_ROWS
            || self.pending_ids >= BATCH_IDS
            || self.last_flush.elapsed() >= BATCH_TIME
        {
            self.flush()?;
        }
        Ok(())
    }

    /// Turns the streams into tables and declares the run complete. On an error the run stays incomplete and
    /// nothing is lost.
    ///
    /// # Errors
    /// [`TraceError::Malformed`] where a sample has rows and never ended; [`TraceError::Io`].
    pub fn finish(mut self) -> Result<(), TraceError> {
        self.flush()?;
        if let Some(sample) = self.open.keys().next() {
            return Err(malformed(
                &self.dir,
                format!(
                    "sample `{sample}` has steps but never ended, so the run is not complete; write its sample row first"
                ),
            ));
        }
        self.manifest.tables = convert::tables(&self.dir)?;
        self.manifest.status = Status::Complete;
        write_manifest(&self.dir, &self.manifest)?;
        for kind in Kind::ALL {
            let path = kind.stream(&self.dir);
            std::fs::remove_file(&path).map_err(io(&path))?;
        }
        Ok(())
    }

    fn check_step(&mut self, row: &StepRow) -> Result<(), TraceError> {
        let name = &row.sample_id;
        let fault = |what: String| {
            malformed(
                self.streams.steps.path(),
                format!("sample `{name}`, position {}: {what}", row.position),
            )
        };
        if row.top_ids.len() != row.top_logits.len() {
            return Err(fault(format!(
                "{} ids but {} logits",
                row.top_ids.len(),
                row.top_logits.len()
            )));
        }
        if self.ended.contains(name) {
            return Err(fault(
                "a row after the sample has ended; sample ids must be unique".to_owned(),
            ));
        }
        match self.open.get_mut(name) {
            Some(next) if u64::from(row.position) < *next => {
                let last = *next - 1;
                return Err(fault(format!("comes after position {last}; positions must increase")));
            }
            Some(next) => *next = u64::from(row.position) + 1,
            None => {
                self.open.insert(name.clone(), u64::from(row.position) + 1);
            }
        }
        Ok(())
    }
}

impl TraceSink for RunWriter {
    fn wants(&self, probe: Probe<'_>) -> bool {
        self.plan.wants(probe)
    }

    fn top_k(&self) -> usize {
        self.plan.top_k.max(1)
    }

    fn step(&mut self, row: StepRow) -> Result<(), TraceError> {
        self.check_step(&row)?;
        self.pending_ids += row.top_ids.len();
        self.pending_steps.push(row);
        self.flush_when_due()
    }

    fn event(&mut self, row: EventRow) -> Result<(), TraceError> {
        self.pending_events.push(row);
        self.flush_when_due()
    }

    fn dump(&mut self, dump: Dump) -> Result<(), TraceError> {
        write_dump(&self.dir, &dump).map(|_| ())
    }

    fn dump_with(&mut self, dump: Dump, rows: &[TensorRef<'_>]) -> Result<(), TraceError> {
        write_dump_with(&self.dir, &dump, rows).map(|_| ())
    }

    fn sample(&mut self, row: SampleRow) -> Result<(), TraceError> {
        let path = self.streams.samples.path();
        if self.ended.contains(&row.sample_id) {
            return Err(malformed(
                path,
                format!("sample `{}` ended twice; sample ids must be unique", row.sample_id),
            ));
        }
        let batch = samples::encode(std::slice::from_ref(&row)).map_err(arrow(path))?;
        // The row says that the sample is whole, so its steps and events go first.
        self.flush()?;
        self.streams.samples.append(&batch)?;
        self.open.remove(&row.sample_id);
        self.ended.insert(row.sample_id);
        Ok(())
    }
}

#[cfg(test)]
impl RunWriter {
    /// From now on the step stream goes to this file.
    pub(super) fn write_steps_to(&mut self, file: std::fs::File) {
        self.streams.steps.write_to(file);
    }
}

/// True where `dir` looks like a run (it has a manifest).
#[must_use]
pub fn is_run(dir: &Path) -> bool {
    manifest_path(dir).is_file()
}
