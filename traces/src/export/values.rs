//! Log-probabilities of a row's list.

use std::fmt::Write as _;

use super::rows::Row;
use crate::TraceError;
use crate::limits::Values;
use crate::store::RunReader;
use crate::store::fail::malformed;

/// A value and its shortest text.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Printed {
    /// Logit less logsumexp, in f64.
    F64(f64),
    /// As the source of an imported run had it.
    F32(f32),
}

impl Printed {
    pub(super) fn finite(self) -> bool {
        match self {
            Self::F64(value) => value.is_finite(),
            Self::F32(value) => value.is_finite(),
        }
    }

    /// The shortest text that reads back as the value; `null` where it is not finite.
    pub(super) fn push(self, out: &mut String) {
        // Writing to a String cannot fail.
        let _ = match self {
            _ if !self.finite() => write!(out, "null"),
            Self::F64(value) => write!(out, "{value:?}"),
            Self::F32(value) => write!(out, "{value:?}"),
        };
    }
}

/// Makes log-probabilities of what a run recorded.
pub(super) struct Logprobs<'a> {
    run: &'a RunReader,
    logits: bool,
}

impl<'a> Logprobs<'a> {
    /// # Errors
    /// [`TraceError::Malformed`] where the run holds no values.
    pub(super) fn of(run: &'a RunReader) -> Result<Self, TraceError> {
        match run.manifest().limits.values {
            Values::Nothing => Err(malformed(
                run.dir(),
                "the run holds no values, only tokens: no log-probabilities can be written",
            )),
            Values::Logits => Ok(Self { run, logits: true }),
            Values::Logprobs | Values::ProcessedLogprobs | Values::UnsaidLogprobs => {
                Ok(Self { run, logits: false })
            }
        }
    }

    /// What the layout cannot say of the values.
    pub(super) fn remarks(&self) -> Vec<String> {
        let limits = &self.run.manifest().limits;
        let mut remarks = Vec::new();
        if limits.values == Values::ProcessedLogprobs {
            remarks.push(
                "the values stand after temperature or filters, which the file does not say"
                    .to_owned(),
            );
        }
        remarks
    }

    /// The list of a row: ids with their log-probabilities.
    ///
    /// # Errors
    /// [`TraceError::Malformed`] where logits stand without their logsumexp.
    pub(super) fn list(&self, row: Row<'_>) -> Result<Vec<(u32, Printed)>, TraceError> {
        let (ids, values) = (row.steps.ids_of(row.index), row.steps.logits_of(row.index));
        let pairs = ids.iter().copied().zip(values.iter().copied());
        if !self.logits {
            return Ok(pairs.map(|(id, value)| (id, Printed::F32(value))).collect());
        }
        let sum = row.steps.logsumexp.get(row.index).copied().flatten();
        match sum {
            Some(sum) => {
                Ok(pairs.map(|(id, logit)| (id, Printed::F64(f64::from(logit) - sum))).collect())
            }
            None if ids.is_empty() => Ok(Vec::new()),
            None => Err(malformed(
                self.run.dir(),
                format!(
                    "position {} has logits without their logsumexp: no log-probabilities can be made of them (`export neutral-jsonl` or `csv` write the logits)",
                    row.position()
                ),
            )),
        }
    }
}
