//! Projections, sums and rounding.

use candle_core::{CpuStorage, InplaceOp1, Layout, Tensor};

use super::super::Rounding;
use super::super::parallel::for_blocks;
use super::Result;
use super::real::block_of;

struct Round(Rounding);

impl InplaceOp1 for Round {
    fn name(&self) -> &'static str {
        "reference-round"
    }
    fn cpu_fwd(&self, storage: &mut CpuStorage, layout: &Layout) -> Result<()> {
        let Some((start, end)) = layout.contiguous_offsets() else {
            return Err(candle_core::Error::RequiresContiguous { op: self.name() }.bt());
        };
        if let CpuStorage::F32(values) = storage {
            for_blocks(&mut values[start..end], block_of(1), |_, block| {
                for value in block {
                    *value = self.0.f32(*value);
                }
            });
        }
        Ok(())
    }
}

/// `x * weight^T + bias`, weight `[out, in]`; the product accumulates in the element type and is rounded once.
pub(in crate::forward) fn linear(
    x: &Tensor,
    weight: &Tensor,
    bias: Option<&Tensor>,
    rounding: Rounding,
) -> Result<Tensor> {
    let product = x.matmul(&weight.t()?)?;
    match bias {
        Some(bias) => rounded(product.broadcast_add(bias)?, rounding),
        None => rounded(product, rounding),
    }
}

/// Floating-point operations a second of one f32 product `[rows, inner] x [cols, inner]^T`, the best of `tries`: what this
/// machine's matmul gives without anything around it.
///
/// # Errors
/// Memory.
pub fn gemm_flops(
    [rows, inner, cols]: [usize; 3],
    tries: usize,
) -> std::result::Result<f64, crate::ReferenceError> {
    let filled = |rows: usize| {
        let values = (0..rows * inner).map(|index| ((index % 17) as f32 - 8.0) / 8.0).collect();
        Tensor::from_vec::<_, f32>(values, (rows, inner), &candle_core::Device::Cpu)
    };
    let (x, weight) = (filled(rows)?, filled(cols)?);
    let mut best = f64::INFINITY;
    for _ in 0..tries.max(1) {
        let started = std::time::Instant::now();
        linear(&x, &weight, None, Rounding::None)?;
        best = best.min(started.elapsed().as_secs_f64());
    }
    Ok(2.0 * rows as f64 * inner as f64 * cols as f64 / best)
}

/// Sum of two tensors, rounded.
pub(in crate::forward) fn add(left: &Tensor, right: &Tensor, rounding: Rounding) -> Result<Tensor> {
    rounded((left + right)?, rounding)
}

/// Rounds a freshly computed tensor in place.
pub(in crate::forward) fn rounded(x: Tensor, rounding: Rounding) -> Result<Tensor> {
    if rounding != Rounding::None {
        x.inplace_op1(&Round(rounding))?;
    }
    Ok(x)
}

#[cfg(test)]
mod tests {
    use candle_core::Device;

    use super::*;

    #[test]
    fn rounded_results_lie_on_the_grid() {
        let x = Tensor::from_vec(vec![1.0f32, 0.3], (1, 2), &Device::Cpu).unwrap();
        let w = Tensor::from_vec(vec![0.1f32, 0.7], (1, 2), &Device::Cpu).unwrap();
        let out = linear(&x, &w, None, Rounding::Bf16).unwrap().flatten_all().unwrap();
        let got = out.to_vec1::<f32>().unwrap()[0];
        assert_eq!(got.to_bits(), half::bf16::from_f32(0.1 + 0.3 * 0.7).to_f32().to_bits());
    }
}
