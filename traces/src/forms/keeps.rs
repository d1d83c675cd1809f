//! A trigonometric score of positions, and what was kept under it.

use std::collections::BTreeSet;
use std::path::Path;

use super::fields::{Field, root};
use crate::TraceError;

/// A score that depends on positions alone. The JSON:
///
/// `{"amp": [..], "omega": [..], "phase": [..], "budget": B, "time": "absolute_position", "trigger_rows": N}`
///
/// A row at position p scores the sum over f of `amp[f] * cos(omega[f] * (t - p) + phase[f])` at time t; the `budget` largest stay, ties go
/// to the smaller position. `time` says what t is claimed to be (`absolute_position` without it), `trigger_rows` the number of rows at
/// which a compaction is made, `score` the formula in words.
#[derive(Debug, Clone, PartialEq)]
pub struct KeepSpec {
    /// Amplitude by frequency.
    pub amp: Vec<f64>,
    /// Radian per position.
    pub omega: Vec<f64>,
    /// Radian.
    pub phase: Vec<f64>,
    /// Rows kept.
    pub budget: usize,
    /// What t is claimed to be.
    pub time: Option<String>,
    /// Rows at which a compaction is made.
    pub trigger_rows: Option<usize>,
    /// The formula as the file has it in words, which nobody reads here.
    pub score: Option<String>,
}

/// One compaction. The JSON: a list of
/// `{"compaction": 1, "absolute_position": N, "rows": [position, ..], "kept": [position, ..]}`, `rows` in the order of the cache.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeptRows {
    /// Ordinal, from 1.
    pub compaction: u64,
    /// Position of the next token.
    pub absolute_position: u64,
    /// Positions of the rows before.
    pub rows: Vec<u64>,
    /// Positions of the rows kept, rising.
    pub kept: Vec<u64>,
}

impl KeepSpec {
    /// Reads a file.
    ///
    /// # Errors
    /// [`TraceError`] where a key is unknown, or the lists differ in length.
    pub fn read(path: &Path) -> Result<Self, TraceError> {
        let node = root(path)?;
        let form = Field::root(path, &node);
        form.only(&["amp", "omega", "phase", "budget", "time", "trigger_rows", "score", "note"])?;
        let count = |field: Field<'_>| {
            usize::try_from(field.index()?).map_err(|_| field.fault("is too large"))
        };
        let text = |key| form.get(&[key]).map(|field| field.text().map(str::to_owned)).transpose();
        let spec = Self {
            amp: form.need(&["amp"])?.numbers()?,
            omega: form.need(&["omega"])?.numbers()?,
            phase: form.need(&["phase"])?.numbers()?,
            budget: count(form.need(&["budget"])?)?,
            time: text("time")?,
            trigger_rows: form.get(&["trigger_rows"]).map(count).transpose()?,
            score: text("score")?,
        };
        let lengths = [spec.amp.len(), spec.omega.len(), spec.phase.len()];
        if lengths[0] == 0 || lengths.iter().any(|length| *length != lengths[0]) {
            let what = format!("amp, omega and phase have {lengths:?} values: as many of each");
            return Err(form.fault(what));
        }
        if spec.budget == 0 {
            return Err(form.fault("a budget of 0 keeps nothing"));
        }
        Ok(spec)
    }
}

impl KeptRows {
    /// Reads a file of compactions, a list or one a line.
    ///
    /// # Errors
    /// [`TraceError`] where a row stands twice, a row lies behind the absolute position, or ordinals do not rise.
    pub fn read(path: &Path) -> Result<Vec<Self>, TraceError> {
        let node = root(path)?;
        let form = Field::root(path, &node);
        let records = if node.list().is_some() { form.list()? } else { vec![form.clone()] };
        let mut out: Vec<Self> = Vec::with_capacity(records.len());
        for record in &records {
            record.only(&["compaction", "absolute_position", "rows", "kept", "note"])?;
            let before = out.last().map_or(0, |last| last.compaction);
            let compaction = match record.get(&["compaction"]) {
                Some(field) => field.index()?,
                None => before + 1,
            };
            if compaction <= before {
                return Err(record.fault(format!("compaction {compaction} after {before}")));
            }
            let absolute_position = record.need(&["absolute_position"])?.index()?;
            let rows = distinct(&record.need(&["rows"])?)?;
            if let Some(row) = rows.iter().find(|row| **row >= absolute_position) {
                let what =
                    format!("row {row} lies behind the absolute position {absolute_position}");
                return Err(record.fault(what));
            }
            let mut kept = distinct(&record.need(&["kept"])?)?;
            kept.sort_unstable();
            out.push(Self { compaction, absolute_position, rows, kept });
        }
        Ok(out)
    }
}

fn distinct(field: &Field<'_>) -> Result<Vec<u64>, TraceError> {
    let rows = field.indices()?;
    let mut seen = BTreeSet::new();
    match rows.iter().find(|row| !seen.insert(**row)) {
        Some(row) => Err(field.fault(format!("row {row} stands twice"))),
        None => Ok(rows),
    }
}
