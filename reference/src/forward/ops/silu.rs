//! Gated activation.

use candle_core::{CpuStorage, InplaceOp2, Layout, Tensor};

use super::super::Rounding;
use super::super::parallel::for_blocks;
use super::Result;
use super::real::{Real, block_of, plain};

struct SiluMul {
    rounding: Rounding,
}

impl SiluMul {
    fn rows<T: Real>(&self, gate: &mut [T], up: &[T]) {
        let r = self.rounding;
        for_blocks(gate, block_of(1), |start, block| {
            for (gate, up) in block.iter_mut().zip(&up[start..]) {
                let silu = (*gate / (T::ONE + (-*gate).exp())).rounded(r);
                *gate = (silu * *up).rounded(r);
            }
        });
    }
}

impl InplaceOp2 for SiluMul {
    fn name(&self) -> &'static str {
        "reference-silu-mul"
    }
    fn cpu_fwd(
        &self,
        gate: &mut CpuStorage,
        gate_layout: &Layout,
        up: &CpuStorage,
        up_layout: &Layout,
    ) -> Result<()> {
        let Some((start, end)) = gate_layout.contiguous_offsets() else {
            return Err(candle_core::Error::RequiresContiguous { op: self.name() }.bt());
        };
        match (gate, up) {
            (CpuStorage::F32(gate), CpuStorage::F32(up)) => {
                self.rows(&mut gate[start..end], plain(up, up_layout, self.name())?);
            }
            (CpuStorage::F64(gate), CpuStorage::F64(up)) => {
                self.rows(&mut gate[start..end], plain(up, up_layout, self.name())?);
            }
            _ => candle_core::bail!("{} needs f32 or f64 operands of one type", self.name()),
        }
        Ok(())
    }
}

/// `silu(gate) * up`, written over `gate`; rounded after the activation and after the product.
pub(in crate::forward) fn silu_mul(gate: &Tensor, up: &Tensor, rounding: Rounding) -> Result<()> {
    if gate.dims() != up.dims() {
        candle_core::bail!("gate {:?} and up {:?} differ in shape", gate.shape(), up.shape());
    }
    gate.inplace_op2(up, &SiluMul { rounding })
}

#[cfg(test)]
mod tests {
    use super::super::testing::{near, tensor};
    use super::*;

    #[test]
    fn gate_is_silu_times_up() {
        let gate = tensor(&[0.0, 1.0], 2);
        silu_mul(&gate, &tensor(&[5.0, 3.0], 2), Rounding::None).unwrap();
        near(&gate, &[0.0, 3.0 / (1.0 + (-1f64).exp())]);
    }
}
