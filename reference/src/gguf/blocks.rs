//! Elements of a GGUF file: which are stored in blocks, and blocks as numbers.

use candle_core::quantized::GgmlDType;
use candle_core::quantized::ggml_file::qtensor_from_ggml;
use candle_core::{Device, Tensor};
use safetensors::Dtype;

use crate::ReferenceError;
use crate::forward::Precision;
use crate::forward::parallel::for_blocks;

/// Elements handed to a thread at a time.
const BLOCK: usize = 1 << 16;

/// How elements are stored.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Stored {
    /// One by one.
    Plain(Dtype),
    /// In ggml's blocks, which candle turns into f32.
    Blocks(GgmlDType),
    /// In a type that is not widened.
    Other(GgmlDType),
}

impl Stored {
    pub(crate) const fn of(dtype: GgmlDType) -> Self {
        match dtype {
            GgmlDType::F32 => Self::Plain(Dtype::F32),
            GgmlDType::F16 => Self::Plain(Dtype::F16),
            GgmlDType::BF16 => Self::Plain(Dtype::BF16),
            GgmlDType::Q4_0
            | GgmlDType::Q4_1
            | GgmlDType::Q8_0
            | GgmlDType::Q4K
            | GgmlDType::Q5K
            | GgmlDType::Q6K => Self::Blocks(dtype),
            other => Self::Other(other),
        }
    }
}

/// Blocks as candle dequantises them, to f32, then rounded as weights are.
pub(crate) fn rounded_blocks(
    data: &[u8],
    dtype: GgmlDType,
    shape: &[usize],
    precision: Precision,
) -> Result<Tensor, ReferenceError> {
    let blocks = qtensor_from_ggml(dtype, data, shape.to_vec(), &Device::Cpu)?;
    let wide = blocks.dequantize(&Device::Cpu)?;
    match precision {
        Precision::F32 => Ok(wide),
        Precision::F64 => Ok(wide.to_dtype(candle_core::DType::F64)?),
        Precision::Bf16 | Precision::F16 => {
            let mut values = wide.flatten_all()?.to_vec1::<f32>()?;
            let rounding = precision.rounding();
            for_blocks(&mut values, BLOCK, |_, block| {
                for value in block {
                    *value = rounding.f32(*value);
                }
            });
            Ok(Tensor::from_vec(values, shape, &Device::Cpu)?)
        }
    }
}

/// Rows that stand pair by pair, `[heads, head_dim / 2, 2, ...]`, half by half: `[heads, 2, head_dim / 2, ...]`.
pub(crate) fn halves_apart(tensor: &Tensor, heads: usize) -> Result<Tensor, ReferenceError> {
    let shape = tensor.dims().to_vec();
    let rows = shape.first().copied().unwrap_or(0);
    let inner = tensor.elem_count().checked_div(rows).unwrap_or(0);
    if heads == 0 || !rows.is_multiple_of(2 * heads) {
        return Err(ReferenceError::input(format!("{rows} rows are no pairs of {heads} heads")));
    }
    let split = tensor.reshape((heads, rows / heads / 2, 2, inner))?;
    Ok(split.transpose(1, 2)?.contiguous()?.reshape(shape)?)
}
