//! RoPE.

use candle_core::{CpuStorage, CustomOp3, Layout, Shape, Tensor};

use super::super::Rounding;
use super::super::parallel::for_blocks;
use super::Result;
use super::real::{Real, on_reals};

struct Rotate {
    heads: usize,
    head_dim: usize,
    rounding: Rounding,
}

impl Rotate {
    /// `x` is `[rows, heads, head_dim]`, the tables `[rows, head_dim / 2]`; the result is `[heads, rows, head_dim]`.
    fn rows<T: Real>(&self, x: &[T], cos: &[T], sin: &[T]) -> Vec<T> {
        let half = self.head_dim / 2;
        let rows = cos.len() / half;
        let r = self.rounding;
        let mut out = vec![T::default(); x.len()];
        for_blocks(&mut out, rows * self.head_dim, |start, block| {
            let head = start / (rows * self.head_dim);
            for (row, out) in block.chunks_exact_mut(self.head_dim).enumerate() {
                let from = (row * self.heads + head) * self.head_dim;
                let (low, high) = x[from..from + self.head_dim].split_at(half);
                let (out_low, out_high) = out.split_at_mut(half);
                for index in 0..half {
                    let cos = cos[row * half + index].rounded(r);
                    let sin = sin[row * half + index].rounded(r);
                    let turn =
                        |a: T, b: T| ((a * cos).rounded(r) + (b * sin).rounded(r)).rounded(r);
                    out_low[index] = turn(low[index], -high[index]);
                    out_high[index] = turn(high[index], low[index]);
                }
            }
        });
        out
    }
}

impl CustomOp3 for Rotate {
    fn name(&self) -> &'static str {
        "reference-rotate"
    }
    fn cpu_fwd(
        &self,
        x: &CpuStorage,
        x_layout: &Layout,
        cos: &CpuStorage,
        cos_layout: &Layout,
        sin: &CpuStorage,
        sin_layout: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let rows = x_layout.dims().first().copied().unwrap_or(0);
        let out = on_reals!(
            self.name(),
            (x, x_layout => a, cos, cos_layout => b, sin, sin_layout => c),
            self.rows(a, b, c)
        );
        Ok((out, Shape::from((self.heads, rows, self.head_dim))))
    }
}

/// RoPE over halves. `x` `[rows, heads, head_dim]`, `cos` and `sin` `[rows, head_dim / 2]`; returns `[heads, rows, head_dim]`.
/// Tables, both products and their sum are rounded.
pub(in crate::forward) fn rotate(
    x: &Tensor,
    cos: &Tensor,
    sin: &Tensor,
    rounding: Rounding,
) -> Result<Tensor> {
    let (rows, heads, head_dim) = x.dims3()?;
    if cos.dims2()? != (rows, head_dim / 2) || sin.dims2()? != (rows, head_dim / 2) {
        candle_core::bail!("rotary table {:?} does not fit {:?}", cos.shape(), x.shape());
    }
    x.contiguous()?.apply_op3_no_bwd(cos, sin, &Rotate { heads, head_dim, rounding })
}

#[cfg(test)]
mod tests {
    use super::super::testing::{near, tensor};
    use super::*;

    #[test]
    fn rotation_pairs_halves_and_moves_heads_outward() {
        // Two rows, two heads of width 2: one frequency; row 1 turns by a quarter.
        let x = tensor(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0], (2, 2, 2));
        let (cos, sin) = (tensor(&[1.0, 0.0], (2, 1)), tensor(&[0.0, 1.0], (2, 1)));
        let out = rotate(&x, &cos, &sin, Rounding::None).unwrap();
        assert_eq!(out.dims(), [2, 2, 2]);
        near(&out, &[1.0, 2.0, -6.0, 5.0, 3.0, 4.0, -8.0, 7.0]);
    }
}
