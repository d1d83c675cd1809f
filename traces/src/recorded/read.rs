//! `trace.jsonl`, a line at a time.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::line::{Header, Line, hex_pair};
use crate::foreign::lines::Lines;
use crate::hash::ids_sha256;
use crate::manifest::ValueEncoding;
use crate::{EventRow, Manifest, SampleRow, StepRow, TraceError};

const SCHEMA_MAJOR: &str = "1";

/// What a line says, in the workbench's own terms.
pub(super) enum Item {
    Setting { key: String, value: serde_json::Value, source: String },
    Step(Box<StepRow>, Option<EventRow>),
    Sample(Box<SampleRow>),
}

/// A recording while it is read.
pub(super) struct Recording {
    path: PathBuf,
    lines: Lines,
    ordinals: BTreeMap<String, u32>,
    steps: u64,
    samples: u64,
    without_logits: u64,
    ended: bool,
    /// The line that is cut, if one is.
    cut: Option<usize>,
}

impl Recording {
    /// Opens `path` and reads its first line: the manifest, and how many ids a row holds.
    ///
    /// # Errors
    /// [`TraceError`] where the file cannot be read, has no header, or is of another schema.
    pub(super) fn open(path: &Path) -> Result<(Self, Manifest, usize), TraceError> {
        let mut lines = Lines::open(path)?;
        let Some((line, text)) = lines.next()? else {
            return Err(TraceError::Malformed {
                path: path.to_owned(),
                what: "the file is empty; a recording has a header line".to_owned(),
            });
        };
        let header: Header = serde_json::from_slice(text).map_err(|source| TraceError::Json {
            path: path.to_owned(),
            line,
            source,
        })?;
        let (manifest, top_k) = manifest(path, header)?;
        let recording = Self {
            path: path.to_owned(),
            lines,
            ordinals: BTreeMap::new(),
            steps: 0,
            samples: 0,
            without_logits: 0,
            ended: false,
            cut: None,
        };
        Ok((recording, manifest, top_k))
    }

    /// The next row or setting; `None` at the end, or where the file is cut.
    ///
    /// # Errors
    /// [`TraceError::Json`] and [`TraceError::Line`] for damage before the end.
    pub(super) fn next(&mut self) -> Result<Option<Item>, TraceError> {
        let Some((number, text)) = self.lines.next()? else { return Ok(None) };
        let fault = |what: String| TraceError::Line { path: self.path.clone(), line: number, what };
        if self.ended {
            return Err(fault("a line after the `end` line".to_owned()));
        }
        if let Some(line) = self.cut {
            let what = "the line is cut and is not the last: the file is damaged here".to_owned();
            return Err(TraceError::Line { path: self.path.clone(), line, what });
        }
        let line = match serde_json::from_slice::<Line>(text) {
            Ok(line) => line,
            Err(error) if error.is_eof() => {
                self.cut = Some(number);
                return self.next();
            }
            Err(source) => {
                return Err(TraceError::Json { path: self.path.clone(), line: number, source });
            }
        };
        Ok(Some(match line {
            Line::Setting { key, value, source } => Item::Setting { key, value, source },
            Line::Step(step) => {
                let ordinals = &mut self.ordinals;
                let count = |sample: &str| {
                    let ordinal = ordinals.entry(sample.to_owned()).or_default();
                    *ordinal += 1;
                    *ordinal
                };
                let row = step.row(count).map_err(fault)?;
                self.steps += 1;
                self.without_logits += u64::from(row.top_ids.is_empty());
                let event = event_of(&row);
                Item::Step(Box::new(row), event)
            }
            Line::Sample(sample) => {
                let row = SampleRow::from(*sample);
                if ids_sha256(&row.prompt_ids) != row.prompt_ids_sha256 {
                    return Err(fault("prompt_ids do not have the hash beside them".to_owned()));
                }
                self.samples += 1;
                Item::Sample(Box::new(row))
            }
            Line::End { steps, samples } => {
                if (steps, samples) != (self.steps, self.samples) {
                    return Err(fault(format!(
                        "the end line counts {steps} steps and {samples} samples, the file holds {} and {}; copy it again",
                        self.steps, self.samples
                    )));
                }
                self.ended = true;
                return self.next();
            }
        }))
    }

    /// The engine was recorded to the end.
    pub(super) const fn is_complete(&self) -> bool {
        self.ended
    }

    /// What was met, one line each.
    pub(super) fn remarks(&self) -> Vec<String> {
        let mut remarks = self.lines.oddities().remarks();
        if let Some(line) = self.cut {
            remarks.push(format!("last line ({line}) incomplete: the recording was stopped"));
        } else if !self.ended {
            remarks.push("no `end` line: the recording was stopped".to_owned());
        }
        if self.without_logits > 0 {
            remarks.push(self.no_logits());
        }
        remarks
    }

    /// What the engine did not compute.
    pub(super) fn cannot(&self) -> Vec<String> {
        if self.without_logits > 0 { vec![self.no_logits()] } else { Vec::new() }
    }

    fn no_logits(&self) -> String {
        format!(
            "{} rows have no logits: the engine computed none for them (prompt_logits=True records those of the prompt)",
            self.without_logits
        )
    }
}

/// What the row counts tell of a compaction; protected and candidate rows and times are not known.
fn event_of(row: &StepRow) -> Option<EventRow> {
    Some(EventRow {
        sample_id: row.sample_id.clone(),
        ordinal: row.compaction?,
        absolute_position: row.position.saturating_add(1),
        round_start: None,
        rows_before: row.rows_before.saturating_add(1),
        rows_after: row.rows_after,
        protected: 0,
        candidates: 0,
        score_seconds: 0.0,
        reduce_seconds: 0.0,
        select_seconds: 0.0,
        gather_seconds: 0.0,
        dump: None,
    })
}

fn manifest(path: &Path, header: Header) -> Result<(Manifest, usize), TraceError> {
    if header.lockstep_trace.split('.').next() != Some(SCHEMA_MAJOR) {
        return Err(TraceError::Version {
            path: path.to_owned(),
            found: header.lockstep_trace,
            supported: format!("{SCHEMA_MAJOR}.x"),
            remedy: "use the lockstep that its recorder belongs to".to_owned(),
        });
    }
    let fault = |what| TraceError::Line { path: path.to_owned(), line: 1, what };
    let mut manifest = Manifest::new(header.producer, header.device);
    manifest.created_at = header.created_at;
    manifest.model = header.model;
    manifest.dtype = header.dtype;
    manifest.cache_dtype = header.cache_dtype;
    manifest.encoding = ValueEncoding::Digits9;
    manifest.logits_hash_seeds =
        header.hash_seeds.as_ref().map(hex_pair).transpose().map_err(fault)?;
    manifest.config = header.settings;
    manifest.remarks = header.remarks;
    manifest.set("trace.top_k", header.top_k, "imported");
    manifest.set("trace.recorder", header.recorder, "imported");
    Ok((manifest, header.top_k))
}
