//! Benchmark datasets: JSON lines in the public forms, read strictly.
//!
//! The first row decides the [`Form`] of a file; every other line must have that form. Nothing is skipped or repaired:
//! a line that is no row, a missing key, an id that comes twice, or a row without an answer among rows with one is an
//! error with its line. A row keeps its 0-based index in the file whatever is selected afterwards, since seeds are
//! derived from it.

mod form;
mod select;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

pub use form::Form;
pub use select::{SelectError, Selection, Shard, Taken};

use crate::TraceError;
use crate::foreign::lines::Lines;
use crate::hash::sha256_file;

/// One turn of a conversation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Message {
    /// `system`, `user`, `assistant`, ...
    pub role: String,
    /// Text.
    pub content: String,
}

/// What a row asks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Prompt {
    /// Text, ready to be encoded or to be put into a chat template as one user message.
    Text(String),
    /// A question without the instruction that a benchmark puts behind it.
    Question(String),
    /// Token ids, taken as they are, with their text where the row has it.
    Ids {
        /// Token ids, at least one.
        ids: Vec<u32>,
        /// Their text.
        text: Option<String>,
    },
    /// A conversation that ends before the answer.
    Messages(Vec<Message>),
}

/// One row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DatasetRow {
    /// 0-based index among the rows of the file; blank lines do not count.
    pub index: u64,
    /// 1-based line.
    pub line: usize,
    /// Name, unique in the file; `row_<index>` where the row has none.
    pub sample_id: String,
    /// What is asked.
    pub prompt: Prompt,
    /// Expected answer.
    pub gold: Option<String>,
    /// `seed_index` as given in the row.
    pub seed_index: Option<u64>,
}

impl DatasetRow {
    /// What is added to the base seed: the row's `seed_index`, else its index in the file. Never an index in a
    /// selection or a shard.
    #[must_use]
    pub fn effective_index(&self) -> u64 {
        self.seed_index.unwrap_or(self.index)
    }
}

/// A dataset file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Dataset {
    /// File.
    pub path: PathBuf,
    /// sha256 of the file as it lies on disk, hex.
    pub sha256: String,
    /// Form of every row.
    pub form: Form,
    /// Rows in file order.
    pub rows: Vec<DatasetRow>,
    /// What was read around, one line each.
    pub remarks: Vec<String>,
}

impl Dataset {
    /// Reads a file: plain or gzip, with or without byte order mark, LF or CR LF.
    ///
    /// # Errors
    /// [`TraceError::Line`] with the 1-based line for anything that is no row of the file's form;
    /// [`TraceError::Malformed`] for a file without rows or one that is cut; [`TraceError::Io`].
    pub fn read(path: &Path) -> Result<Self, TraceError> {
        let mut lines = Lines::open(path)?;
        let mut rows: Vec<DatasetRow> = Vec::new();
        let mut form = None;
        let mut remarks = Vec::new();
        while let Some((line, bytes)) = lines.next()? {
            let fault = |what: String| TraceError::Line { path: path.to_owned(), line, what };
            let object = object(bytes).map_err(fault)?;
            let form = match form {
                Some(form) => form,
                None => *form.insert(Form::of(&object).map_err(fault)?),
            };
            let index = rows.len() as u64;
            rows.push(form.row(&object, index, line).map_err(fault)?);
            if index == 0 {
                remarks.extend(form.ignored(&object));
            }
        }
        let malformed =
            |what: &str| TraceError::Malformed { path: path.to_owned(), what: what.to_owned() };
        if lines.oddities().cut() {
            return Err(malformed(
                "the file is cut; fetch it again, a part of a dataset is not the dataset",
            ));
        }
        let Some(form) = form else {
            return Err(malformed("no rows; give JSON lines, one object for each row"));
        };
        let lone =
            |line: usize, what: String| TraceError::Line { path: path.to_owned(), line, what };
        unique(&rows).map_err(|(line, what)| lone(line, what))?;
        golds(&rows).map_err(|(line, what)| lone(line, what))?;
        remarks.extend(lines.oddities().remarks());
        Ok(Self { path: path.to_owned(), sha256: sha256_file(path)?, form, rows, remarks })
    }
}

/// A line as an object; what else it is, in words.
fn object(bytes: &[u8]) -> Result<Map<String, Value>, String> {
    let remedy = "each line must be one JSON object; remove what is no row";
    match serde_json::from_slice::<Value>(bytes) {
        Ok(Value::Object(object)) => Ok(object),
        Ok(_) => Err(format!("JSON, but no object; {remedy}")),
        Err(error) => {
            let text = String::from_utf8_lossy(bytes);
            let start: String =
                text.trim().chars().filter(|char| !char.is_control()).take(40).collect();
            Err(format!("no JSON (`{start}`: {error}); {remedy}"))
        }
    }
}

fn unique(rows: &[DatasetRow]) -> Result<(), (usize, String)> {
    let mut seen: BTreeMap<&str, usize> = BTreeMap::new();
    for row in rows {
        if let Some(first) = seen.insert(&row.sample_id, row.line) {
            let id = &row.sample_id;
            return Err((
                row.line,
                format!("sample id `{id}` is that of line {first}; ids must be unique"),
            ));
        }
    }
    Ok(())
}

/// Either every row has an answer or none has.
fn golds(rows: &[DatasetRow]) -> Result<(), (usize, String)> {
    let with = rows.iter().find(|row| row.gold.is_some());
    let without = rows.iter().find(|row| row.gold.is_none());
    match (with, without) {
        (Some(with), Some(without)) => {
            let what = format!(
                "no answer, but line {} has one; a row without an answer cannot be scored",
                with.line
            );
            Err((without.line, what))
        }
        _ => Ok(()),
    }
}
