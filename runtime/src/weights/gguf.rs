//! A GGUF file's tensors under their Hugging Face names.
//!
//! llama.cpp's converter stores the q and k projections of Llama models (and their biases) with the two rows of every RoPE pair side by
//! side, `[heads, head_dim / 2, 2]`, because its kernel turns neighbours; Hugging Face has the halves apart, `[heads, 2, head_dim / 2]`.
//! The rows are put back here. Qwen files are stored as they are.

use std::collections::BTreeMap;
use std::path::Path;

use lockstep_traces::gguf::{GgufError, GgufHeader};
use lockstep_traces::{DType, TraceError};
use memmap2::Mmap;
use rayon::prelude::*;

use super::files::map_file;
use super::quant::Quant;
use super::{Entry, RowOrder, Tensor};
use crate::RuntimeError;

/// Hugging Face name and GGUF name of what stands outside the layers.
const ENDS: [(&str, &str); 3] =
    [("model.embed_tokens", "token_embd"), ("model.norm", "output_norm"), ("lm_head", "output")];

/// The same inside a layer.
const PARTS: [(&str, &str); 11] = [
    ("input_layernorm", "attn_norm"),
    ("self_attn.q_proj", "attn_q"),
    ("self_attn.k_proj", "attn_k"),
    ("self_attn.v_proj", "attn_v"),
    ("self_attn.o_proj", "attn_output"),
    ("self_attn.q_norm", "attn_q_norm"),
    ("self_attn.k_norm", "attn_k_norm"),
    ("post_attention_layernorm", "ffn_norm"),
    ("mlp.gate_proj", "ffn_gate"),
    ("mlp.up_proj", "ffn_up"),
    ("mlp.down_proj", "ffn_down"),
];

/// Divisors of the rotary frequencies: a parameter of RoPE and no weight of a layer.
pub(crate) const ROPE_FACTORS: &str = "rope_freqs.weight";

/// Maps a GGUF file and checks its header.
///
/// # Errors
/// A file that cannot be mapped, and every contradiction of its header.
pub fn open_gguf(path: &Path) -> Result<(Mmap, GgufHeader), RuntimeError> {
    if !std::fs::metadata(path).is_ok_and(|data| data.len() > 0) {
        let source = GgufError::Magic(String::new());
        return Err(TraceError::Gguf { path: path.to_owned(), source }.into());
    }
    let map = map_file(path)?;
    let header = GgufHeader::parse(&map)
        .map_err(|source| TraceError::Gguf { path: path.to_owned(), source })?;
    let parts = header.get("split.count").and_then(lockstep_traces::gguf::GgufValue::as_u64);
    if let Some(parts) = parts.filter(|parts| *parts > 1) {
        let what = format!("is one of {parts} parts; join them with `llama-gguf-split --merge`");
        return Err(RuntimeError::Weights { path: path.to_owned(), what });
    }
    Ok((map, header))
}

/// Hugging Face name of a stored tensor; `None` where it is none of a layer's or of the ends'.
fn model_name(stored: &str) -> Option<String> {
    let (stem, suffix) = stored.rsplit_once('.')?;
    if let Some((name, _)) = ENDS.iter().find(|(_, ours)| *ours == stem) {
        return Some(format!("{name}.{suffix}"));
    }
    let (layer, part) = stem.strip_prefix("blk.")?.split_once('.')?;
    let (name, _) = PARTS.iter().find(|(_, ours)| *ours == part)?;
    Some(format!("model.layers.{layer}.{name}.{suffix}"))
}

/// Stored name of a tensor with this Hugging Face name.
pub(super) fn stored_name(name: &str) -> Option<String> {
    let (stem, suffix) = name.rsplit_once('.')?;
    if let Some((_, stored)) = ENDS.iter().find(|(theirs, _)| *theirs == stem) {
        return Some(format!("{stored}.{suffix}"));
    }
    let (layer, part) = stem.strip_prefix("model.layers.")?.split_once('.')?;
    let (_, stored) = PARTS.iter().find(|(theirs, _)| *theirs == part)?;
    Some(format!("blk.{layer}.{stored}.{suffix}"))
}

/// The tensors of a file by Hugging Face name; what has none keeps its own and is refused later as belonging nowhere.
pub(super) fn entries(
    header: &GgufHeader,
    path: &Path,
) -> Result<BTreeMap<String, Entry>, RuntimeError> {
    let mut entries = BTreeMap::new();
    for (stored, tensor) in header.tensors.iter().filter(|(name, _)| *name != ROPE_FACTORS) {
        let name = model_name(stored).unwrap_or_else(|| stored.clone());
        let entry = Entry {
            dtype: tensor.element.name().to_owned(),
            shape: tensor.shape(),
            range: tensor.range.clone(),
            order: order(header, stored, tensor.shape().first().copied().unwrap_or(0), path)?,
        };
        entries.insert(name, entry);
    }
    Ok(entries)
}

/// Row order of a stored tensor with `rows` rows.
fn order(
    header: &GgufHeader,
    stored: &str,
    rows: usize,
    path: &Path,
) -> Result<RowOrder, RuntimeError> {
    let text = |key: &str| header.get(key).and_then(lockstep_traces::gguf::GgufValue::as_text);
    let size = |key: &str| {
        let value = header.get(key).and_then(lockstep_traces::gguf::GgufValue::as_u64);
        value.and_then(|value| usize::try_from(value).ok())
    };
    if text("general.architecture") != Some("llama") {
        return Ok(RowOrder::Halves);
    }
    let heads = size("llama.attention.head_count");
    let heads = match stored.rsplit_once('.').map(|(stem, _)| stem) {
        Some(stem) if stem.ends_with(".attn_q") => heads,
        Some(stem) if stem.ends_with(".attn_k") => size("llama.attention.head_count_kv").or(heads),
        _ => return Ok(RowOrder::Halves),
    };
    match heads {
        Some(heads) if heads > 0 && rows.is_multiple_of(2 * heads) => Ok(RowOrder::Pairs { heads }),
        Some(heads) => {
            let what = format!("{rows} rows cannot be the pairs of {heads} heads");
            Err(RuntimeError::tensor(path, stored, what))
        }
        None => {
            let what = "its heads are not known: the key `llama.attention.head_count` is missing";
            Err(RuntimeError::tensor(path, stored, what))
        }
    }
}

/// Place in the file of row `row` of `rows` of the Hugging Face layout.
fn stored_row(order: RowOrder, row: usize, rows: usize) -> usize {
    match order {
        RowOrder::Halves => row,
        RowOrder::Pairs { heads } => {
            let dim = rows / heads;
            let (head, within) = (row / dim, row % dim);
            let (half, pair) = (within / (dim / 2), within % (dim / 2));
            head * dim + 2 * pair + half
        }
    }
}

/// A tensor with its rows put in order and its blocks, where it has any, turned into f32. `None` where the bytes do not hold the shape.
pub(super) fn decoded(entry: &Entry, quant: Option<Quant>, bytes: &[u8]) -> Option<Tensor> {
    let rows = *entry.shape.first()?;
    let stride = bytes.len().checked_div(rows)?;
    if stride == 0 || stride * rows != bytes.len() {
        return None;
    }
    let row = |row: usize| {
        let start = stored_row(entry.order, row, rows) * stride;
        &bytes[start..start + stride]
    };
    let Some(quant) = quant else {
        let dtype = match entry.dtype.as_str() {
            "F32" => DType::F32,
            "F16" => DType::F16,
            "BF16" => DType::Bf16,
            _ => return None,
        };
        let ordered: Vec<u8> = (0..rows).flat_map(row).copied().collect();
        return Tensor::copied(&ordered, dtype, entry.shape.clone());
    };
    let elements = entry.shape.iter().try_fold(1_usize, |n, size| n.checked_mul(*size))?;
    let width = elements / rows;
    if quant.bytes_of(width)? != stride {
        return None;
    }
    let mut values = vec![0.0; elements];
    values
        .par_chunks_mut(width)
        .enumerate()
        .for_each(|(number, out)| quant.dequantise(row(number), out));
    Some(Tensor::from_f32(entry.shape.clone(), values))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_translated_both_ways() {
        for (stored, name) in [
            ("token_embd.weight", "model.embed_tokens.weight"),
            ("output.weight", "lm_head.weight"),
            ("output_norm.weight", "model.norm.weight"),
            ("blk.12.attn_q.bias", "model.layers.12.self_attn.q_proj.bias"),
            ("blk.0.attn_q_norm.weight", "model.layers.0.self_attn.q_norm.weight"),
            ("blk.3.ffn_norm.weight", "model.layers.3.post_attention_layernorm.weight"),
            ("blk.3.attn_output.weight", "model.layers.3.self_attn.o_proj.weight"),
        ] {
            assert_eq!(model_name(stored).as_deref(), Some(name));
            assert_eq!(stored_name(name).as_deref(), Some(stored));
        }
        assert_eq!(model_name("blk.0.ffn_gate_inp.weight"), None);
    }

    #[test]
    fn pairs_are_taken_apart_head_by_head() {
        // Two heads of four rows: the file has first and second half alternating.
        let rows: Vec<usize> =
            (0..8).map(|row| stored_row(RowOrder::Pairs { heads: 2 }, row, 8)).collect();
        assert_eq!(rows, [0, 2, 1, 3, 4, 6, 5, 7]);
        let entry = Entry {
            dtype: "F32".to_owned(),
            shape: vec![4],
            range: 0..16,
            order: RowOrder::Pairs { heads: 1 },
        };
        let bytes: Vec<u8> =
            [1.0_f32, 3.0, 2.0, 4.0].iter().flat_map(|v| v.to_le_bytes()).collect();
        let tensor = decoded(&entry, None, &bytes).unwrap();
        let values: Vec<f32> = (0..4).filter_map(|i| tensor.elements().get(i)).collect();
        assert_eq!(values, [1.0, 2.0, 3.0, 4.0]);
    }
}
