//! Log-likelihood of prompt tokens out of context logits that may lack their first rows.
//!
//! The token at position p is scored by row p - 1. An engine that takes the first blocks of a prompt from its prefix cache returns no
//! rows for them, and rows counted from the front then score the wrong tokens without a sign of it.

use lockstep_traces::tensor_files::TensorSet;
use lockstep_traces::{TraceError, Verdict};
use serde::{Deserialize, Serialize};

use super::values::{fault, named, values};
use crate::stats::softmax_logsumexp;

/// What is asked.
#[derive(Debug, Clone)]
pub struct LogitsSpec {
    /// Name of the tensor, `[row][vocabulary]`.
    pub name: String,
    /// The prompt.
    pub prompt_ids: Vec<u32>,
    /// Tokens to score, at its end.
    pub last: usize,
    /// Rows of a block of the prefix cache.
    pub block: Option<usize>,
    /// Prompt position of row 0, where it is known.
    pub first_position: Option<usize>,
}

/// One scored token.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ScoredToken {
    /// Prompt position.
    pub position: usize,
    /// Token.
    pub token_id: u32,
    /// Row that scores it.
    pub row: usize,
    /// Natural logarithm of its probability.
    pub logprob: f64,
}

/// Answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ContextLogits {
    /// Rows of the file.
    pub rows: usize,
    /// Tokens of the prompt.
    pub prompt_len: usize,
    /// Rows that are missing at the front.
    pub missing: usize,
    /// Prompt position of row 0; `null` where it is not known.
    pub first_position: Option<usize>,
    /// Tokens.
    pub tokens: Vec<ScoredToken>,
    /// Sum over the tokens.
    pub log_likelihood: Option<f64>,
    /// What rows counted from the front of the file would give for the same tokens: the silent mistake.
    pub from_the_front: Option<f64>,
    /// Outcome.
    pub verdict: Verdict,
    /// One line.
    pub summary: String,
}

/// Scores the last tokens of a prompt. Where rows are missing and neither the block size nor the first position explains how many, no
/// score is given.
///
/// # Errors
/// [`TraceError::Tensor`] where the tensor is no `[row][vocabulary]`, has more rows than the prompt, lacks an id, or is not finite.
pub fn context_logits(set: &TensorSet, spec: &LogitsSpec) -> Result<ContextLogits, TraceError> {
    let tensor = named(set, &spec.name)?;
    let &[rows, vocabulary] = tensor.shape.as_slice() else {
        return Err(fault(tensor, format!("is {:?}; [row][vocabulary] is expected", tensor.shape)));
    };
    let length = spec.prompt_ids.len();
    let Some(missing) = length.checked_sub(rows) else {
        return Err(fault(tensor, format!("has {rows} rows for a prompt of {length} tokens")));
    };
    if spec.last == 0 || spec.last >= length {
        return Err(fault(
            tensor,
            format!("{} tokens of a prompt of {length} cannot be scored", spec.last),
        ));
    }
    let by_block =
        spec.block.filter(|block| *block > 0 && missing.is_multiple_of(*block)).map(|_| missing);
    let first = spec.first_position.or(if missing == 0 { Some(0) } else { by_block });
    let mut out = ContextLogits {
        rows,
        prompt_len: length,
        missing,
        first_position: first,
        tokens: Vec::new(),
        log_likelihood: None,
        from_the_front: None,
        verdict: Verdict::Identical,
        summary: String::new(),
    };
    let Some(first) = first else {
        let why = format!(
            "{rows} rows for {length} prompt tokens: {missing} are missing, and nothing says which; give the block size of the prefix \
             cache or the position of row 0"
        );
        out.verdict = Verdict::Incomparable { why: why.clone() };
        out.summary = why;
        return Ok(out);
    };
    let numbers = values(tensor)?;
    #[expect(
        clippy::cast_possible_truncation,
        reason = "logits of f32 and less; f64 is rounded to the nearest f32"
    )]
    let logits: Vec<f32> = numbers.iter().map(|value| *value as f32).collect();
    let score = |position: usize, row: usize| -> Result<ScoredToken, TraceError> {
        let token_id = spec.prompt_ids.get(position).copied().unwrap_or(0);
        let of_row = logits.get(row * vocabulary..(row + 1) * vocabulary);
        let of_row = of_row.ok_or_else(|| {
            fault(tensor, format!("has no row {row} for the token at position {position}"))
        })?;
        let logit = usize::try_from(token_id).ok().and_then(|id| of_row.get(id));
        let logit = logit.ok_or_else(|| {
            fault(tensor, format!("token {token_id} is beyond the {vocabulary} columns"))
        })?;
        let norm = softmax_logsumexp(of_row)
            .ok_or_else(|| fault(tensor, format!("row {row} is not finite")))?;
        Ok(ScoredToken { position, token_id, row, logprob: f64::from(*logit) - norm })
    };
    for position in length - spec.last..length {
        let row = (position - 1).checked_sub(first);
        let row = row.ok_or_else(|| {
            fault(tensor, format!("the row of position {} is among the missing", position - 1))
        })?;
        out.tokens.push(score(position, row)?);
    }
    out.log_likelihood = Some(out.tokens.iter().map(|token| token.logprob).sum());
    if first > 0 && spec.last <= rows {
        let front =
            (length - spec.last..length).enumerate().map(|(row, position)| score(position, row));
        out.from_the_front =
            Some(front.collect::<Result<Vec<_>, _>>()?.iter().map(|token| token.logprob).sum());
    }
    out.summary = summary(&out, first, spec);
    Ok(out)
}

fn summary(out: &ContextLogits, first: usize, spec: &LogitsSpec) -> String {
    let missing = out.missing;
    let blocks =
        spec.block.filter(|block| *block > 0 && missing > 0 && missing.is_multiple_of(*block));
    let blocks = blocks.map_or_else(String::new, |block| {
        format!(" ({} blocks of {block}, prefix reuse)", missing / block)
    });
    let place =
        if missing > 0 { format!("{missing} rows are missing{blocks}; ") } else { String::new() };
    format!(
        "{place}row 0 belongs to position {first}; log-likelihood of the last {} tokens {:.6}",
        spec.last,
        out.log_likelihood.unwrap_or(f64::NAN)
    )
}
