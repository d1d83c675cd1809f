//! Step rows out of full logits, and ids out of tensors of integers.

use half::{bf16, f16};

use crate::foreign::UNKNOWN_TOKEN;
use crate::summary::summarise;
use crate::tensor_files::{Element, PlainTensor};
use crate::{Phase, StepRow};

/// Entries of a row of logits at most.
const VOCAB_LIMIT: u64 = 1 << 24;
/// Ids of one tensor at most.
const ID_LIMIT: u64 = 1 << 26;

/// Little-endian bytes in row-major order.
fn bytes(tensor: &PlainTensor) -> Result<Vec<u8>, String> {
    let mut out = Vec::new();
    tensor.write_to(&mut out).map_err(|error| error.to_string())?;
    Ok(out)
}

/// Ids of a tensor of integers.
pub(super) fn ids(tensor: &PlainTensor) -> Result<Vec<u32>, String> {
    if tensor.elements() > ID_LIMIT {
        return Err(format!("{} ids; up to {ID_LIMIT} are read", tensor.elements()));
    }
    let bytes = bytes(tensor)?;
    let whole: Vec<i64> = match tensor.element {
        Element::I64 | Element::U64 => {
            bytes.as_chunks().0.iter().map(|b| i64::from_le_bytes(*b)).collect()
        }
        Element::I32 => bytes.as_chunks().0.iter().map(|b| i32::from_le_bytes(*b).into()).collect(),
        Element::U32 => bytes.as_chunks().0.iter().map(|b| u32::from_le_bytes(*b).into()).collect(),
        other => return Err(format!("is {}; ids are integers of 32 or 64 bits", other.name())),
    };
    let id = |value: i64| u32::try_from(value).ok().filter(|id| *id != UNKNOWN_TOKEN);
    whole.iter().map(|value| id(*value).ok_or_else(|| format!("{value} is no token id"))).collect()
}

/// Can this tensor be a row of logits? It is asked before anything is written.
pub(super) fn fits(tensor: &PlainTensor) -> Result<(), String> {
    if tensor.elements() > VOCAB_LIMIT {
        return Err(format!(
            "{} logits in one row; up to {VOCAB_LIMIT} are read",
            tensor.elements()
        ));
    }
    match tensor.element {
        Element::F32 | Element::F16 | Element::Bf16 => Ok(()),
        other => Err(format!("is {}; logits are f32, f16 or bf16", other.name())),
    }
}

/// Logits as f32, exactly.
pub(super) fn logits(tensor: &PlainTensor) -> Result<Vec<f32>, String> {
    fits(tensor)?;
    let bytes = bytes(tensor)?;
    Ok(match tensor.element {
        Element::F32 => bytes.as_chunks().0.iter().map(|b| f32::from_le_bytes(*b)).collect(),
        Element::F16 => {
            bytes.as_chunks().0.iter().map(|b| f16::from_le_bytes(*b).to_f32()).collect()
        }
        Element::Bf16 => {
            bytes.as_chunks().0.iter().map(|b| bf16::from_le_bytes(*b).to_f32()).collect()
        }
        _ => Vec::new(),
    })
}

/// What is known of a row.
#[derive(Debug, Clone, Copy)]
pub(super) struct Known {
    pub(super) position: u32,
    pub(super) token: Option<u32>,
    pub(super) next: Option<u32>,
    pub(super) prompt_len: Option<u32>,
}

/// A row whose cache counts are placeholders.
pub(super) fn row(sample_id: &str, known: Known, logits: Option<&[f32]>, top_k: usize) -> StepRow {
    let prompt = known.prompt_len.is_some_and(|length| known.position < length);
    let mut row = StepRow {
        phase: if prompt { Phase::Prompt } else { Phase::Decode },
        // A prompt row before the last chose nothing.
        next_token: known.next.filter(|_| {
            known.prompt_len.is_none_or(|length| known.position.saturating_add(1) >= length)
        }),
        ..StepRow::bare(sample_id, known.position, known.token.unwrap_or(UNKNOWN_TOKEN))
    };
    let Some(logits) = logits else { return row };
    summarise(&mut row, logits, top_k);
    row
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_before_the_last_of_the_prompt_chose_nothing() {
        let known = Known { position: 4, token: Some(9), next: Some(1), prompt_len: Some(6) };
        let row = row("s", known, Some(&[1.0, 3.0]), 4);
        assert_eq!((row.phase, row.token_id, row.next_token), (Phase::Prompt, 9, None));
        assert_eq!((row.argmax, row.top_ids.as_slice()), (1, &[1, 0][..]));
        let last = Known { position: 5, ..known };
        let row = super::row("s", last, None, 4);
        assert_eq!((row.next_token, row.argmax), (Some(1), UNKNOWN_TOKEN));
    }
}
