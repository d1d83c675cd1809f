//! Whole tensors as f64: what is checked here is small.

use lockstep_traces::TraceError;
use lockstep_traces::tensor_files::{PlainTensor, TensorSet};

use crate::tensor_sets::decoded;

/// Elements at most.
const LIMIT: u64 = 1 << 27;

/// The tensor of this name, or the only one.
pub(super) fn named<'s>(set: &'s TensorSet, name: &str) -> Result<&'s PlainTensor, TraceError> {
    let found = set.tensors.iter().find(|tensor| tensor.name == name);
    let lone = match set.tensors.as_slice() {
        [one] => Some(one),
        _ => None,
    };
    found.or(lone).ok_or_else(|| TraceError::Tensor {
        path: set.path.clone(),
        tensor: name.to_owned(),
        what: "is not in this file; name the tensor that is meant".to_owned(),
    })
}

/// Its values in row-major order.
pub(super) fn values(tensor: &PlainTensor) -> Result<Vec<f64>, TraceError> {
    if tensor.elements() > LIMIT {
        return Err(fault(
            tensor,
            format!("has {} elements; up to {LIMIT} are checked here", tensor.elements()),
        ));
    }
    tensor.verify()?;
    Ok(decoded(tensor))
}

/// The values of a small tensor as f64, in row-major order.
///
/// # Errors
/// [`TraceError::Tensor`] where there are too many, or the file is damaged.
pub fn numbers(tensor: &PlainTensor) -> Result<Vec<f64>, TraceError> {
    values(tensor)
}

/// An error about a tensor.
pub(super) fn fault(tensor: &PlainTensor, what: String) -> TraceError {
    TraceError::Tensor { path: tensor.path.clone(), tensor: tensor.name.clone(), what }
}
