//! Reading a run, complete or not.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use arrow::array::RecordBatch;

use super::columns::{StepColumns, StepQuery};
use super::convert::{SampleOrder, schema_of};
use super::dumps;
use super::fail::{guard, io, malformed};
use super::format::{Kind, read_manifest};
use super::stream::StreamIndex;
use super::sums::SummedFile;
use super::tensors::DumpFile;
use super::{access::Table, events, pushdown, samples, steps};
use crate::manifest::Status;
use crate::{DumpId, EventRow, Manifest, SampleRow, TraceError};

/// Reads one run directory.
///
/// An incomplete run is read up to the last whole batch that it had when it was opened; what was left out is
/// said in [`RunReader::remarks`].
#[derive(Debug)]
pub struct RunReader {
    dir: PathBuf,
    manifest: Manifest,
    streams: Option<[StreamIndex; 3]>,
    remarks: Vec<String>,
    sample_ids: OnceLock<Vec<String>>,
}

impl RunReader {
    /// Opens a run.
    ///
    /// # Errors
    /// [`TraceError::Version`] for another schema version; [`TraceError::Malformed`] for something that is no run or
    /// is damaged elsewhere than at the end of a running stream; [`TraceError::Json`], [`TraceError::Io`].
    pub fn open(dir: &Path) -> Result<Self, TraceError> {
        let manifest = read_manifest(dir)?;
        let streams = match manifest.status {
            Status::Complete => {
                for kind in Kind::ALL {
                    let path = kind.table(dir);
                    std::fs::metadata(&path).map_err(io(&path))?;
                }
                None
            }
            Status::Incomplete => Some([
                StreamIndex::open(&Kind::Steps.stream(dir))?,
                StreamIndex::open(&Kind::Events.stream(dir))?,
                StreamIndex::open(&Kind::Samples.stream(dir))?,
            ]),
        };
        let remarks = streams.iter().flatten().filter_map(StreamIndex::remark).collect();
        let dir = dir.to_path_buf();
        Ok(Self { dir, manifest, streams, remarks, sample_ids: OnceLock::new() })
    }

    /// The run directory.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The manifest as written.
    #[must_use]
    pub const fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// True where the writer finished.
    #[must_use]
    pub const fn is_complete(&self) -> bool {
        self.streams.is_none()
    }

    /// What was read around, one line each; empty for a complete run.
    #[must_use]
    pub fn remarks(&self) -> &[String] {
        &self.remarks
    }

    /// Samples that ended: in order of their first step rows in a complete run, of their ends in an incomplete one.
    ///
    /// # Errors
    /// [`TraceError`] where the table is damaged.
    pub fn samples(&self) -> Result<Vec<SampleRow>, TraceError> {
        let mut rows = Vec::new();
        self.each_batch(Kind::Samples, |batch, path| samples::decode(batch, path, &mut rows))?;
        Ok(rows)
    }

    /// Ids of all samples in order of their first step rows, unfinished ones included; then samples without steps.
    ///
    /// # Errors
    /// [`TraceError`] where a table is damaged.
    pub fn sample_ids(&self) -> Result<Vec<String>, TraceError> {
        self.names().map(<[String]>::to_vec)
    }

    fn names(&self) -> Result<&[String], TraceError> {
        if let Some(names) = self.sample_ids.get() {
            return Ok(names);
        }
        let mut order = SampleOrder::default();
        let mut add = |batch: &RecordBatch, path: &Path| {
            for name in (Table { batch, path }).texts("sample_id")?.iter().flatten() {
                order.number(name);
            }
            Ok(())
        };
        if self.is_complete() {
            // `finish` writes the samples in order of their first rows, so the small table is enough.
            let (file, path) = self.table(Kind::Samples)?;
            let only = Some(["sample_id"].as_slice());
            guard(&path, || pushdown::table(file, &path, only, |batch| add(batch, &path)))?;
        } else {
            self.each_batch(Kind::Steps, &mut add)?;
            self.each_batch(Kind::Samples, &mut add)?;
        }
        Ok(self.sample_ids.get_or_init(|| order.into_names()))
    }

    /// Step rows, ordered by sample and position; only what is asked for is read.
    ///
    /// # Errors
    /// [`TraceError::Malformed`] where the sample does not exist, positions of a sample do not increase, or the table is
    /// damaged.
    pub fn steps(&self, query: &StepQuery) -> Result<StepColumns, TraceError> {
        let names = self.names()?;
        if let Some(wanted) = &query.sample_id
            && !names.contains(wanted)
        {
            return Err(malformed(
                &self.dir,
                format!("no sample `{wanted}` in this run; `inspect` lists its samples"),
            ));
        }
        let mut decoder = steps::Decoder::new(names, query.wanted());
        let path = match &self.streams {
            None => {
                let (file, path) = self.table(Kind::Steps)?;
                guard(&path, || {
                    pushdown::steps(file, &path, query, |batch| decoder.append(batch, &path))
                })?;
                path
            }
            Some(_) => {
                self.each_batch(Kind::Steps, |batch, path| {
                    match pushdown::rows(batch, query, path)? {
                        Some(rows) => decoder.append(&rows, path),
                        None => Ok(()),
                    }
                })?;
                Kind::Steps.stream(&self.dir)
            }
        };
        in_order(decoder.finish(), !self.is_complete(), &path)
    }

    /// Compactions in order of sample and ordinal (in order of arrival in an incomplete run), of one sample or of all.
    ///
    /// # Errors
    /// [`TraceError`] where the table is damaged.
    pub fn events(&self, sample_id: Option<&str>) -> Result<Vec<EventRow>, TraceError> {
        let mut rows = Vec::new();
        self.each_batch(Kind::Events, |batch, path| events::decode(batch, path, &mut rows))?;
        rows.retain(|row: &EventRow| sample_id.is_none_or(|wanted| row.sample_id == wanted));
        Ok(rows)
    }

    /// Dumps present, in order of kind, sample and number.
    ///
    /// # Errors
    /// [`TraceError::Malformed`] where `tensors/` holds something that no dump is called.
    pub fn dumps(&self) -> Result<Vec<DumpId>, TraceError> {
        dumps::list(&self.dir)
    }

    /// Opens a dump; `None` where it was not written.
    ///
    /// # Errors
    /// As [`DumpFile::open`].
    pub fn dump(&self, id: &DumpId) -> Result<Option<DumpFile>, TraceError> {
        let path = self.dir.join(id.relative_path());
        match path.try_exists().map_err(io(&path))? {
            true => DumpFile::open(&path).map(Some),
            false => Ok(None),
        }
    }

    fn table(&self, kind: Kind) -> Result<(SummedFile, PathBuf), TraceError> {
        let path = kind.table(&self.dir);
        let file = SummedFile::open(&path, self.manifest.tables.get(&kind.table_name()))?;
        Ok((file, path))
    }

    fn each_batch(
        &self,
        kind: Kind,
        mut visit: impl FnMut(&RecordBatch, &Path) -> Result<(), TraceError>,
    ) -> Result<(), TraceError> {
        let Some([step_index, event_index, sample_index]) = &self.streams else {
            let (file, path) = self.table(kind)?;
            return guard(&path, || {
                pushdown::table(file, &path, None, |batch| visit(batch, &path))
            });
        };
        let index = match kind {
            Kind::Steps => step_index,
            Kind::Events => event_index,
            Kind::Samples => sample_index,
        };
        let mut reader = index.reader(&schema_of(kind))?;
        for number in 0..index.frames().len() {
            visit(&reader.read(number)?, index.path())?;
        }
        Ok(())
    }
}

/// Rows by sample and position. A table has them so; a stream of a batched run interleaves its samples.
fn in_order(columns: StepColumns, sort: bool, path: &Path) -> Result<StepColumns, TraceError> {
    let keys = || columns.sample.iter().zip(&columns.position);
    if keys().is_sorted_by(|left, right| left < right) {
        return Ok(columns);
    }
    if sort {
        let mut order: Vec<(u32, u32, usize)> =
            keys().enumerate().map(|(row, (&sample, &position))| (sample, position, row)).collect();
        order.sort_unstable();
        let twice = order.windows(2).any(|pair| match pair {
            [left, right] => (left.0, left.1) == (right.0, right.1),
            _ => false,
        });
        if !twice {
            let order: Vec<usize> = order.into_iter().map(|(_, _, row)| row).collect();
            return Ok(columns.gather(&order));
        }
    }
    let fault = keys().zip(keys().skip(1)).find(|(left, right)| left >= right);
    let what = fault
        .map_or_else(String::new, |((_, left), (_, right))| format!(" ({left}, then {right})"));
    Err(malformed(
        path,
        format!("positions of a sample do not increase{what}; record the run again"),
    ))
}
