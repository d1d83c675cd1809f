//! The CUDA backend: a device and its kernels (`gpu`), the operations on it (`ops`), what each promises and the run that shows it
//! (`catalog`), and the model that they make up.

pub mod catalog;
pub mod gpu;
pub mod model;

pub mod ops;
mod slot;
#[cfg_attr(test, expect(clippy::float_cmp, reason = "its tests are of exact values"))]
pub mod testing;

pub use slot::Slot;
