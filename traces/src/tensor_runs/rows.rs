//! Step rows out of full logits, and ids out of tensors of integers.

use half::{bf16, f16};

use crate::foreign::UNKNOWN_TOKEN;
use crate::hash::{DEFAULT_SEEDS, logits_hash};
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
        sample_id: sample_id.to_owned(),
        position: known.position,
        phase: if prompt { Phase::Prompt } else { Phase::Decode },
        token_id: known.token.unwrap_or(UNKNOWN_TOKEN),
        // A prompt row before the last chose nothing.
        next_token: known.next.filter(|_| {
            known.prompt_len.is_none_or(|length| known.position.saturating_add(1) >= length)
        }),
        rows_before: known.position,
        rows_after: known.position.saturating_add(1),
        rows_bucketed: None,
        compaction: None,
        rope_index: None,
        argmax: UNKNOWN_TOKEN,
        top_ids: Vec::new(),
        top_logits: Vec::new(),
        logsumexp: None,
        top2_margin: None,
        finite: true,
        logits_hash: None,
        rng_offset: None,
        uniform: None,
    };
    let Some(logits) = logits else { return row };
    let mut order: Vec<(u32, f32)> =
        (0..).zip(logits.iter().copied()).filter(|(_, v)| !v.is_nan()).collect();
    let before = |a: &(u32, f32), b: &(u32, f32)| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0));
    // Both zeros are one value: the lower id stands first.
    order.iter_mut().for_each(|(_, value)| *value += 0.0);
    let kept = top_k.max(2).min(order.len());
    if kept > 0 && kept < order.len() {
        order.select_nth_unstable_by(kept - 1, before);
        order.truncate(kept);
    }
    order.sort_by(before);
    row.argmax = order.first().map_or(UNKNOWN_TOKEN, |(id, _)| *id);
    row.top2_margin = match order.as_slice() {
        [first, second, ..] => Some(first.1 - second.1),
        _ => None,
    };
    order.truncate(top_k);
    row.top_ids = order.iter().map(|(id, _)| *id).collect();
    row.top_logits = row
        .top_ids
        .iter()
        .filter_map(|id| logits.get(usize::try_from(*id).ok()?).copied())
        .collect();
    row.finite = logits.iter().all(|value| value.is_finite());
    row.logsumexp = Some(log_sum_exp(logits));
    row.logits_hash = Some(logits_hash(logits, DEFAULT_SEEDS));
    row
}

/// ln(sum(exp(x))), shifted by the largest, in f64.
fn log_sum_exp(logits: &[f32]) -> f64 {
    let most = logits.iter().copied().map(f64::from).fold(f64::NEG_INFINITY, f64::max);
    if logits.iter().any(|value| value.is_nan()) {
        return f64::NAN;
    }
    if most.is_infinite() {
        return most;
    }
    most + logits.iter().map(|value| (f64::from(*value) - most).exp()).sum::<f64>().ln()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_says_what_its_logits_say() {
        let known = Known { position: 4, token: Some(9), next: Some(1), prompt_len: Some(6) };
        let row = row("s", known, Some(&[1.0, 3.0, -0.0, 3.0, 0.0]), 4);
        assert_eq!((row.phase, row.token_id, row.next_token), (Phase::Prompt, 9, None));
        assert_eq!((row.argmax, row.top_ids.as_slice()), (1, &[1, 3, 0, 2][..]));
        assert_eq!(
            (row.top_logits[3].to_bits(), row.top2_margin),
            ((-0.0_f32).to_bits(), Some(0.0))
        );
        // e^1 + 2 e^3 + 2 = 44.889...
        let expected = (1f64.exp() + 2.0 * 3f64.exp() + 2.0).ln();
        assert!((row.logsumexp.unwrap() - expected).abs() < 1e-14);
        let nan = super::row("s", known, Some(&[f32::NAN, 1.0]), 8);
        assert_eq!((nan.argmax, nan.finite, nan.top_ids.len()), (1, false, 1));
        assert!(nan.logsumexp.unwrap().is_nan());
    }
}
