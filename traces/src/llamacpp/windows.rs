//! Windows of a run's samples with full logits: what a chunk is to llama-perplexity.

use std::path::Path;

use crate::store::fail::malformed;
use crate::store::{RunReader, StepColumn, StepQuery};
use crate::{DType, DumpId, TraceError};

/// `n_ctx` fed tokens of a sample.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Window {
    /// Sample.
    pub sample_id: String,
    /// Position of the first token.
    pub start: u32,
    /// The tokens.
    pub tokens: Vec<u32>,
}

/// A run's windows; rows of logits are read from its dumps when they are asked for.
#[derive(Debug)]
pub struct RunWindows {
    run: RunReader,
    n_ctx: usize,
    windows: Vec<Window>,
    remarks: Vec<String>,
}

impl RunWindows {
    /// Cuts the samples of a run into windows of `n_ctx` tokens, in the order of the run; without `n_ctx` each sample is one window,
    /// and all must be of one length. Tokens behind a sample's last whole window are left out and said.
    ///
    /// # Errors
    /// [`TraceError::Malformed`] where samples differ in length, do not start at position 0 or leave positions out, and where there is
    /// no window; as [`RunReader::open`].
    pub fn open(dir: &Path, n_ctx: Option<usize>) -> Result<Self, TraceError> {
        let run = RunReader::open(dir)?;
        let fault = |what: String| malformed(dir, what);
        let mut samples = Vec::new();
        for sample_id in run.sample_ids()? {
            samples.push((sample_id.clone(), tokens(&run, &sample_id)?));
        }
        let n_ctx = match (n_ctx, samples.first()) {
            (Some(n_ctx), _) => n_ctx,
            (None, None) => return Err(fault("the run has no samples".to_owned())),
            (None, Some((first, tokens))) => {
                let other = samples.iter().find(|(_, other)| other.len() != tokens.len());
                if let Some((id, other)) = other {
                    return Err(fault(format!(
                        "sample `{first}` has {} tokens and `{id}` has {}, and a KLD base file has one length for all; give \
                         --chunk-tokens N for windows of N tokens",
                        tokens.len(),
                        other.len()
                    )));
                }
                tokens.len()
            }
        };
        if n_ctx < 3 {
            return Err(fault(format!(
                "windows of {n_ctx} tokens have no scored position; 3 tokens are the least"
            )));
        }
        let (mut windows, mut remarks, mut left) = (Vec::new(), Vec::new(), 0);
        for (sample_id, tokens) in samples {
            let whole = tokens.chunks_exact(n_ctx);
            left += whole.remainder().len();
            for (number, tokens) in whole.enumerate() {
                let start = u32::try_from(number * n_ctx).unwrap_or(u32::MAX);
                windows.push(Window {
                    sample_id: sample_id.clone(),
                    start,
                    tokens: tokens.to_vec(),
                });
            }
        }
        if windows.is_empty() {
            return Err(fault(format!(
                "no sample has {n_ctx} tokens; choose a smaller --chunk-tokens"
            )));
        }
        if left > 0 {
            remarks.push(format!(
                "{left} tokens behind the last whole window of their sample are left out"
            ));
        }
        if windows.iter().any(|window| window.start > 0) {
            remarks.push(
                "windows after the first of a sample were computed with the tokens before them in the cache; llama-perplexity starts each \
                 chunk with an empty one"
                    .to_owned(),
            );
        }
        Ok(Self { run, n_ctx, windows, remarks })
    }

    /// The run.
    #[must_use]
    pub const fn run(&self) -> &RunReader {
        &self.run
    }

    /// Tokens of a window.
    #[must_use]
    pub const fn n_ctx(&self) -> usize {
        self.n_ctx
    }

    /// Windows, in the order of the run.
    #[must_use]
    pub fn windows(&self) -> &[Window] {
        &self.windows
    }

    /// What was left out, one line each.
    #[must_use]
    pub fn remarks(&self) -> &[String] {
        &self.remarks
    }

    /// The row of logits at a position of a window (both from 0).
    ///
    /// # Errors
    /// [`TraceError::Malformed`] where the run has no dump of it; [`TraceError::Tensor`] where `logits` is not one row of f32.
    pub fn row(&self, window: usize, position: usize) -> Result<Vec<f32>, TraceError> {
        let dir = self.run.dir();
        let Some(window) = self.windows.get(window).filter(|_| position < self.n_ctx) else {
            return Err(malformed(dir, format!("no window {window} with position {position}")));
        };
        let at = window.start.saturating_add(u32::try_from(position).unwrap_or(u32::MAX));
        let id = DumpId::Step { sample_id: window.sample_id.clone(), position: at };
        let missing = || {
            malformed(
                dir,
                format!(
                    "sample `{}`, position {at}: no logits of the whole vocabulary in this run; record it with --record-logits all",
                    window.sample_id
                ),
            )
        };
        let dump = self.run.dump(&id)?.filter(|dump| dump.has("logits")).ok_or_else(missing)?;
        let logits = dump.get("logits")?;
        logits.expect(DType::F32, &[logits.len()])?;
        logits.to_f32()
    }
}

/// Fed tokens of a sample, from position 0 without a gap.
fn tokens(run: &RunReader, sample_id: &str) -> Result<Vec<u32>, TraceError> {
    let query = StepQuery {
        sample_id: Some(sample_id.to_owned()),
        columns: Some(vec![StepColumn::TokenId]),
        ..StepQuery::default()
    };
    let steps = run.steps(&query)?;
    if let Some((row, position)) = steps.position.iter().zip(0_u32..).find(|(row, at)| **row != *at)
    {
        return Err(malformed(
            run.dir(),
            format!(
                "sample `{sample_id}` has position {row} where {position} is expected: its prompt rows are not all in the run"
            ),
        ));
    }
    Ok(steps.token_id)
}
