//! RMSNorm.

use candle_core::{CpuStorage, CustomOp2, Layout, Shape, Tensor};

use super::super::Rounding;
use super::super::parallel::for_blocks;
use super::Result;
use super::real::{Real, block_of, lanes, on_reals};

struct RmsNorm {
    eps: f64,
    rounding: Rounding,
}

impl RmsNorm {
    fn rows<T: Real>(&self, x: &[T], weight: &[T]) -> Vec<T> {
        let width = weight.len();
        let mut out = x.to_vec();
        for_blocks(&mut out, block_of(width), |_, block| {
            for row in block.chunks_exact_mut(width) {
                let square = lanes(row.iter().map(|v| *v * *v)) / T::of(width as f64);
                let scale = T::ONE / (square + T::of(self.eps)).sqrt();
                for (value, weight) in row.iter_mut().zip(weight) {
                    let normed = (*value * scale).rounded(self.rounding);
                    *value = (*weight * normed).rounded(self.rounding);
                }
            }
        });
        out
    }
}

impl CustomOp2 for RmsNorm {
    fn name(&self) -> &'static str {
        "reference-rms-norm"
    }
    fn cpu_fwd(
        &self,
        x: &CpuStorage,
        x_layout: &Layout,
        w: &CpuStorage,
        w_layout: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let out = on_reals!(self.name(), (x, x_layout => a, w, w_layout => b), self.rows(a, b));
        Ok((out, x_layout.shape().clone()))
    }
}

/// `weight * x / sqrt(mean(x^2) + eps)` over the last axis; rounded after the normalisation and after the weight.
pub(in crate::forward) fn rms_norm(
    x: &Tensor,
    weight: &Tensor,
    eps: f64,
    rounding: Rounding,
) -> Result<Tensor> {
    if x.dim(candle_core::D::Minus1)? != weight.dim(0)? {
        candle_core::bail!("norm weight {:?} does not fit {:?}", weight.shape(), x.shape());
    }
    x.contiguous()?.apply_op2_no_bwd(weight, &RmsNorm { eps, rounding })
}

#[cfg(test)]
mod tests {
    use super::super::testing::{near, tensor};
    use super::*;

    #[test]
    fn norm_divides_by_the_root_mean_square() {
        let x = tensor(&[3.0, 4.0, 0.0, 0.0], (2, 2));
        let out = rms_norm(&x, &tensor(&[1.0, 2.0], 2), 0.5, Rounding::None).unwrap();
        let scale = 1.0 / (12.5f64 + 0.5).sqrt();
        near(&out, &[3.0 * scale, 8.0 * scale, 0.0, 0.0]);
    }
}
