//! Inputs and expected tensors of a case.

use half::{bf16, f16};
use lockstep_traces::DType;
use lockstep_traces::store::TensorView;

use super::error::CaseError;
use crate::select::{CacheView, Dims, Keys};

/// Keys in the dtype of the file, `[layers, kv_heads, rows, head_dim]`.
pub(super) struct KeyBlock {
    rows: usize,
    values: KeyValues,
}

enum KeyValues {
    F32(Vec<f32>),
    F16(Vec<f16>),
    Bf16(Vec<bf16>),
}

impl KeyBlock {
    pub(super) fn read(tensor: &TensorView<'_>, dims: Dims) -> Result<Self, CaseError> {
        let rows = match tensor.shape[..] {
            [layers, kv_heads, rows, head_dim]
                if (layers, kv_heads, head_dim) == (dims.layers, dims.kv_heads, dims.head_dim) =>
            {
                rows
            }
            _ => {
                let want = format!(
                    "has shape {:?}; the case has {} layers, {} KV heads, width {}",
                    tensor.shape, dims.layers, dims.kv_heads, dims.head_dim
                );
                return Err(tensor.error(want).into());
            }
        };
        let pairs = tensor.bytes.as_chunks::<2>().0;
        let values = match tensor.dtype {
            DType::F16 => KeyValues::F16(pairs.iter().map(|&b| f16::from_le_bytes(b)).collect()),
            DType::Bf16 => KeyValues::Bf16(pairs.iter().map(|&b| bf16::from_le_bytes(b)).collect()),
            _ => KeyValues::F32(tensor.to_f32()?),
        };
        Ok(Self { rows, values })
    }

    /// A view with the given positions by KV head (or by layer and KV head).
    pub(super) fn view<'a>(&'a self, dims: Dims, positions: &'a [Vec<u32>]) -> CacheView<'a> {
        let size = (self.rows * dims.head_dim).max(1);
        let keys = match &self.values {
            KeyValues::F32(values) => values.chunks(size).map(Keys::F32).collect(),
            KeyValues::F16(values) => values.chunks(size).map(Keys::F16).collect(),
            KeyValues::Bf16(values) => values.chunks(size).map(Keys::Bf16).collect(),
        };
        let positions = positions.iter().map(Vec::as_slice).collect();
        CacheView { rows: self.rows, keys, positions }
    }
}

/// Non-negative integers of a tensor, by its last axis.
pub(super) fn lists(tensor: &TensorView<'_>) -> Result<Vec<Vec<u32>>, CaseError> {
    let values: Result<Vec<u32>, _> = tensor.to_i32()?.into_iter().map(u32::try_from).collect();
    let values = values.map_err(|_| tensor.error("holds a negative index or position"))?;
    let width = tensor.shape.last().copied().unwrap_or(0).max(1);
    Ok(values.chunks(width).map(<[u32]>::to_vec).collect())
}

/// f32 rows of a tensor, by its last axis.
pub(super) fn rows(tensor: &TensorView<'_>) -> Result<Vec<Vec<f32>>, CaseError> {
    let width = tensor.shape.last().copied().unwrap_or(0).max(1);
    Ok(tensor.to_f32()?.chunks(width).map(<[f32]>::to_vec).collect())
}
