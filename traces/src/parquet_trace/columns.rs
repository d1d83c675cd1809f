//! Which columns of a table are those of a trace.

use std::path::Path;

use arrow::datatypes::{DataType, Schema};

use crate::TraceError;
use crate::store::fail::malformed;

/// What a column holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Cell {
    Whole,
    Number,
    Text,
    Truth,
    Wholes,
    Numbers,
}

impl Cell {
    const fn words(self) -> &'static str {
        match self {
            Self::Whole => "whole numbers",
            Self::Number => "numbers",
            Self::Text => "texts",
            Self::Truth => "truth values",
            Self::Wholes => "lists of whole numbers",
            Self::Numbers => "lists of numbers",
        }
    }

    fn holds(self, kind: &DataType) -> bool {
        let element = |kind: &DataType| match kind {
            DataType::List(field)
            | DataType::LargeList(field)
            | DataType::FixedSizeList(field, _) => Some(field.data_type().clone()),
            _ => None,
        };
        match self {
            Self::Whole => kind.is_integer(),
            Self::Number => kind.is_floating() || kind.is_integer(),
            Self::Text => matches!(
                kind,
                DataType::Utf8
                    | DataType::LargeUtf8
                    | DataType::Utf8View
                    | DataType::Dictionary(..)
            ),
            Self::Truth => *kind == DataType::Boolean,
            Self::Wholes => element(kind).is_some_and(|kind| Self::Whole.holds(&kind)),
            Self::Numbers => element(kind).is_some_and(|kind| Self::Number.holds(&kind)),
        }
    }
}

/// Names of a column, our own first, and what it holds.
type Known = (&'static [&'static str], Cell);

const KNOWN: [Known; 19] = [
    (&["position", "position_before"], Cell::Whole),
    (&["sample_id"], Cell::Text),
    (&["phase"], Cell::Text),
    (&["token_id"], Cell::Whole),
    (&["next_token"], Cell::Whole),
    (&["rows_before"], Cell::Whole),
    (&["rows_after"], Cell::Whole),
    (&["rows_bucketed"], Cell::Whole),
    (&["compaction"], Cell::Whole),
    (&["rope_index"], Cell::Whole),
    (&["argmax", "argmax_token"], Cell::Whole),
    (&["argmax_logit"], Cell::Number),
    (&["top_ids", "top_id"], Cell::Wholes),
    (&["top_logits", "top_logit"], Cell::Numbers),
    (&["logsumexp"], Cell::Number),
    (&["top2_margin"], Cell::Number),
    (&["finite"], Cell::Truth),
    (&["rng_offset"], Cell::Whole),
    (&["uniform"], Cell::Number),
];
/// Columns of ours that mean nothing without the run's manifest, which holds the seeds of the hash.
const HASHES: [&str; 2] = ["logits_hash_0", "logits_hash_1"];

/// The columns of a trace that a file has.
#[derive(Debug)]
pub(super) struct Found {
    /// Our name, name in the file, index in the file.
    columns: Vec<(&'static str, String, usize)>,
    pub(super) hashes: bool,
    /// Columns that are not known here.
    pub(super) extra: Vec<String>,
}

impl Found {
    /// # Errors
    /// [`TraceError::Malformed`] where the file is no table of step rows or a column has another type.
    pub(super) fn of(path: &Path, schema: &Schema) -> Result<Self, TraceError> {
        let mut out = Self { columns: Vec::new(), hashes: false, extra: Vec::new() };
        for (index, field) in schema.fields().iter().enumerate() {
            let name = field.name().as_str();
            let Some((names, cell)) = KNOWN.iter().find(|(names, _)| names.contains(&name)) else {
                if HASHES.contains(&name) {
                    out.hashes = true;
                } else {
                    out.extra.push(name.to_owned());
                }
                continue;
            };
            let ours = names.first().copied().unwrap_or_default();
            // A writer that met no value at all gives the column no type.
            if *field.data_type() == DataType::Null {
                continue;
            }
            if !cell.holds(field.data_type()) {
                return Err(malformed(
                    path,
                    format!(
                        "column `{name}` has type {}, a trace needs {} there; write the column again with that type",
                        field.data_type(),
                        cell.words()
                    ),
                ));
            }
            if let Some((_, first, _)) = out.columns.iter().find(|(known, ..)| *known == ours) {
                return Err(malformed(
                    path,
                    format!(
                        "columns `{first}` and `{name}` both say {ours}; leave one of them out"
                    ),
                ));
            }
            out.columns.push((ours, name.to_owned(), index));
        }
        out.check(path, schema)?;
        Ok(out)
    }

    fn check(&self, path: &Path, schema: &Schema) -> Result<(), TraceError> {
        let evidence = ["token_id", "top_ids", "argmax"].iter().any(|name| self.has(name));
        if !(self.has("position") && evidence) {
            let names: Vec<&str> =
                schema.fields().iter().map(|field| field.name().as_str()).collect();
            return Err(malformed(
                path,
                format!(
                    "no table of step rows: a trace has `position` and `token_id`, `argmax` or `top_ids`; here are {}",
                    names.join(", ")
                ),
            ));
        }
        if self.has("top_logits") && !self.has("top_ids") {
            return Err(malformed(
                path,
                "column `top_logits` without `top_ids`: values of unknown tokens",
            ));
        }
        Ok(())
    }

    /// Is the column there?
    pub(super) fn has(&self, ours: &str) -> bool {
        self.columns.iter().any(|(name, ..)| *name == ours)
    }

    /// Its name in the file.
    pub(super) fn name(&self, ours: &str) -> Option<&str> {
        self.columns.iter().find(|(name, ..)| *name == ours).map(|(_, name, _)| name.as_str())
    }

    /// Places of the columns to read.
    pub(super) fn indices(&self) -> Vec<usize> {
        self.columns.iter().map(|(.., index)| *index).collect()
    }
}
