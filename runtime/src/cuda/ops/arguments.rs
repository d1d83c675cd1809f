//! What the host sides of several kernel files check and pass alike.

use bytemuck::Pod;
use lockstep_traces::DType;

use crate::cuda::gpu::{Arg, GpuError, View};

/// `None` as a null pointer: the kernel leaves that input or output out.
pub(super) fn optional<T: Pod>(view: Option<View<T>>, len: usize) -> Result<Arg, GpuError> {
    view.map_or_else(|| Ok(Arg::none()), |view| view.arg(len))
}

/// Elements on the host side must be as wide as the kernels'.
pub(super) fn check_width<E>(dtype: DType) -> Result<(), GpuError> {
    if size_of::<E>() == dtype.size() {
        return Ok(());
    }
    let (given, taken) = (size_of::<E>(), dtype.name());
    Err(GpuError::unsupported(format!("elements of {given} bytes for kernels of {taken}")))
}
