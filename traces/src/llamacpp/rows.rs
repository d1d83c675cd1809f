//! Rows of logits out of any of the places where they lie: a run's dumps, a tensor file `[rows, vocab]`, a bare row.

use std::path::Path;

use half::{bf16, f16};

use super::debug::DebugRow;
use super::windows::RunWindows;
use crate::TraceError;
use crate::store::fail::malformed;
use crate::store::is_run;
use crate::tensor_files::{self, Element, PlainTensor, ReadOptions};

/// Rows of logits.
#[derive(Debug)]
pub enum LogitRows {
    /// A run's windows; every position of a window has a row.
    Run(Box<RunWindows>),
    /// A tensor `[rows, vocab]` of f32, f16 or bf16, or `[vocab]` for one row. Nothing says which tokens they belong to.
    Tensor(PlainTensor),
    /// One row without a header.
    Bare(DebugRow),
}

impl LogitRows {
    /// Opens a run directory (cut into windows of `n_ctx` tokens), a tensor file with one tensor or one called `logits`, or, where
    /// `n_vocab` is known, bare f32 values of one row.
    ///
    /// # Errors
    /// [`TraceError::Tensor`] for another shape or type; as the readers of these.
    pub fn open(
        path: &Path,
        n_ctx: Option<usize>,
        n_vocab: Option<usize>,
    ) -> Result<Self, TraceError> {
        if is_run(path) {
            return RunWindows::open(path, n_ctx).map(|run| Self::Run(Box::new(run)));
        }
        if !path.is_dir() && !tensor_files::recognised(path) {
            return DebugRow::open(path, n_vocab).map(Self::Bare);
        }
        let set = tensor_files::read(path, &ReadOptions::default())?;
        let lone = set.tensors.len() == 1;
        let found = set.tensors.into_iter().find(|tensor| lone || tensor.name == "logits");
        let tensor = found.ok_or_else(|| {
            malformed(path, "several tensors and none called `logits`; give a file with that one")
        })?;
        let fault = |what: String| TraceError::Tensor {
            path: tensor.path.clone(),
            tensor: tensor.name.clone(),
            what,
        };
        if !matches!(tensor.element, Element::F32 | Element::F16 | Element::Bf16) {
            let name = tensor.element.name();
            return Err(fault(format!("is {name}; logits of f32, f16 or bf16 are read")));
        }
        if !matches!(tensor.shape.len(), 1 | 2) || tensor.elements() == 0 {
            return Err(fault(format!("has shape {:?}; [rows, vocab] is read", tensor.shape)));
        }
        tensor.verify()?;
        Ok(Self::Tensor(tensor))
    }

    /// Rows, and the entries of each where that is known before one is read.
    #[must_use]
    pub fn size(&self) -> (usize, Option<usize>) {
        match self {
            Self::Run(run) => (run.windows().len() * run.n_ctx(), None),
            Self::Bare(row) => (1, Some(row.len())),
            Self::Tensor(tensor) => match tensor.shape.as_slice() {
                [rows, vocab] => (*rows, Some(*vocab)),
                [vocab] => (1, Some(*vocab)),
                _ => (0, None),
            },
        }
    }

    /// Row `number`: of a run, position `number % n_ctx` of window `number / n_ctx`.
    ///
    /// # Errors
    /// [`TraceError`] where there is no such row.
    pub fn row(&self, number: usize) -> Result<Vec<f32>, TraceError> {
        match self {
            Self::Run(run) => run.row(number / run.n_ctx(), number % run.n_ctx()),
            Self::Bare(row) if number == 0 => Ok(row.logits()),
            Self::Bare(row) => {
                Err(malformed(row.path(), format!("one row; row {number} is not there")))
            }
            Self::Tensor(tensor) => row_of(tensor, number)
                .ok_or_else(|| malformed(&tensor.path, format!("row {number} is not there"))),
        }
    }

    /// The token that is fed at a row, where it is known.
    #[must_use]
    pub fn token(&self, number: usize) -> Option<u32> {
        let Self::Run(run) = self else { return None };
        let window = run.windows().get(number / run.n_ctx())?;
        window.tokens.get(number % run.n_ctx()).copied()
    }
}

fn row_of(tensor: &PlainTensor, row: usize) -> Option<Vec<f32>> {
    let (rows, size) = match (tensor.shape.as_slice(), tensor.strides.as_slice()) {
        ([rows, size], [outer, inner]) => ((*rows, *outer), (*size, *inner)),
        ([size], [inner]) => ((1, 0), (*size, *inner)),
        _ => return None,
    };
    if row >= rows.0 {
        return None;
    }
    let start = tensor.offset + row * rows.1;
    let width = tensor.element.size();
    let bytes = tensor.bytes();
    let value = |index: usize| {
        let at = (start + index * size.1) * width;
        let stored = bytes.get(at..at + width)?;
        let mut raw = [0; 4];
        let little = raw.get_mut(..width)?;
        little.copy_from_slice(stored);
        if tensor.big_endian {
            little.reverse();
        }
        let [low, high, ..] = raw;
        Some(match tensor.element {
            Element::F16 => f16::from_le_bytes([low, high]).to_f32(),
            Element::Bf16 => bf16::from_le_bytes([low, high]).to_f32(),
            _ => f32::from_le_bytes(raw),
        })
    };
    (0..size.0).map(value).collect()
}
