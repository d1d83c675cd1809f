//! The operations between the matmuls, each over whole rows and on all threads.
//!
//! Arithmetic is in the element type of the tensor (f32 or f64); where a [`Rounding`] is given, values are rounded at
//! the points at which a model cast to that dtype rounds them. Sums run in eight lanes in a fixed order, so that a
//! result does not depend on the number of threads.

mod linear;
mod norm;
mod real;
mod rotate;
mod silu;
mod softmax;

pub use linear::gemm_flops;
pub(super) use linear::{add, linear, rounded};
pub(super) use norm::rms_norm;
pub(super) use rotate::rotate;
pub(super) use silu::silu_mul;
pub(super) use softmax::{Span, causal_softmax};

type Result<T> = candle_core::Result<T>;

#[cfg(test)]
mod testing {
    use candle_core::{Device, Shape, Tensor};

    pub(super) fn tensor(values: &[f64], shape: impl Into<Shape>) -> Tensor {
        Tensor::from_vec(values.to_vec(), shape, &Device::Cpu).unwrap()
    }

    pub(super) fn near(tensor: &Tensor, right: &[f64]) {
        let left: Vec<f64> = tensor.flatten_all().unwrap().to_vec1().unwrap();
        assert_eq!(left.len(), right.len());
        for (a, b) in left.iter().zip(right) {
            assert!((a - b).abs() < 1e-12, "{left:?} against {right:?}");
        }
    }
}
