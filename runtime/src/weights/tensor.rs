//! A tensor that stays where it was mapped, or a converted copy of it.

use std::ops::Range;
use std::sync::Arc;

use half::{bf16, f16};
use lockstep_traces::DType;
use memmap2::Mmap;

/// Elements of a tensor, row-major.
#[derive(Debug, Clone, Copy)]
pub enum Elements<'a> {
    /// binary32.
    F32(&'a [f32]),
    /// binary16.
    F16(&'a [f16]),
    /// bfloat16.
    Bf16(&'a [bf16]),
}

impl Elements<'_> {
    /// One element, widened (exact).
    #[must_use]
    pub fn get(&self, index: usize) -> Option<f32> {
        match self {
            Self::F32(values) => values.get(index).copied(),
            Self::F16(values) => values.get(index).map(|value| value.to_f32()),
            Self::Bf16(values) => values.get(index).map(|value| value.to_f32()),
        }
    }

    /// Elements `range`, widened (exact) into `out` of the same length.
    pub(crate) fn widen(&self, range: Range<usize>, out: &mut [f32]) {
        match self {
            Self::F32(values) => out.copy_from_slice(&values[range]),
            Self::F16(values) => {
                for (out, value) in out.iter_mut().zip(&values[range]) {
                    *out = value.to_f32();
                }
            }
            Self::Bf16(values) => {
                for (out, value) in out.iter_mut().zip(&values[range]) {
                    *out = value.to_f32();
                }
            }
        }
    }

    /// Bytes as held, little-endian.
    #[must_use]
    pub(crate) fn bytes(&self) -> &[u8] {
        match self {
            Self::F32(values) => bytemuck::cast_slice(values),
            Self::F16(values) => bytemuck::cast_slice(values),
            Self::Bf16(values) => bytemuck::cast_slice(values),
        }
    }

    /// Number of elements.
    #[must_use]
    pub fn len(&self) -> usize {
        match self {
            Self::F32(values) => values.len(),
            Self::F16(values) => values.len(),
            Self::Bf16(values) => values.len(),
        }
    }

    /// No elements?
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

#[derive(Debug, Clone)]
enum Store {
    /// Aligned and whole elements, as checked by [`Tensor::mapped`].
    Mapped(Arc<Mmap>, Range<usize>, DType),
    F32(Vec<f32>),
    F16(Vec<f16>),
    Bf16(Vec<bf16>),
}

/// A weight tensor.
#[derive(Debug, Clone)]
pub struct Tensor {
    shape: Vec<usize>,
    store: Store,
}

impl Tensor {
    /// The bytes `range` of a mapping as a tensor of `dtype`; `None` where the range is outside, does not hold
    /// `shape`, or the dtype is none of f32, f16, bf16. Data that lies unaligned is copied.
    pub(super) fn mapped(
        map: &Arc<Mmap>,
        range: Range<usize>,
        dtype: DType,
        shape: Vec<usize>,
    ) -> Option<Self> {
        let bytes = map.get(range.clone())?;
        let elements =
            shape.iter().try_fold(1_usize, |product, size| product.checked_mul(*size))?;
        if bytes.len() != elements.checked_mul(dtype.size())? {
            return None;
        }
        let aligned = bytes.as_ptr().addr().is_multiple_of(dtype.size());
        let store = match dtype {
            DType::F32 | DType::F16 | DType::Bf16 if aligned => {
                Store::Mapped(Arc::clone(map), range, dtype)
            }
            DType::F32 => Store::F32(collect(bytes)),
            DType::F16 => Store::F16(collect(bytes)),
            DType::Bf16 => Store::Bf16(collect(bytes)),
            _ => return None,
        };
        Some(Self { shape, store })
    }

    /// Bytes in memory as a tensor of `dtype`; `None` as [`Tensor::mapped`].
    pub(super) fn copied(bytes: &[u8], dtype: DType, shape: Vec<usize>) -> Option<Self> {
        let elements =
            shape.iter().try_fold(1_usize, |product, size| product.checked_mul(*size))?;
        if bytes.len() != elements.checked_mul(dtype.size())? {
            return None;
        }
        let store = match dtype {
            DType::F32 => Store::F32(collect(bytes)),
            DType::F16 => Store::F16(collect(bytes)),
            DType::Bf16 => Store::Bf16(collect(bytes)),
            _ => return None,
        };
        Some(Self { shape, store })
    }

    /// A tensor in memory; `values` holds `shape`.
    #[must_use]
    pub fn from_f32(shape: Vec<usize>, values: Vec<f32>) -> Self {
        debug_assert_eq!(shape.iter().product::<usize>(), values.len());
        Self { shape, store: Store::F32(values) }
    }

    /// Shape.
    #[must_use]
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// Element type as held.
    #[must_use]
    pub const fn dtype(&self) -> DType {
        match &self.store {
            Store::Mapped(_, _, dtype) => *dtype,
            Store::F32(_) => DType::F32,
            Store::F16(_) => DType::F16,
            Store::Bf16(_) => DType::Bf16,
        }
    }

    /// Elements, row-major.
    #[must_use]
    pub fn elements(&self) -> Elements<'_> {
        match &self.store {
            Store::Mapped(map, range, dtype) => {
                let bytes = &map[range.clone()];
                match dtype {
                    DType::F16 => Elements::F16(bytemuck::cast_slice(bytes)),
                    DType::Bf16 => Elements::Bf16(bytemuck::cast_slice(bytes)),
                    _ => Elements::F32(bytemuck::cast_slice(bytes)),
                }
            }
            Store::F32(values) => Elements::F32(values),
            Store::F16(values) => Elements::F16(values),
            Store::Bf16(values) => Elements::Bf16(values),
        }
    }

    /// Bytes that one pass over the tensor reads.
    #[must_use]
    pub fn byte_len(&self) -> usize {
        self.elements().len() * self.dtype().size()
    }

    /// The tensor as weights of an arithmetic in `dtype`. Widening happens in the kernels and is exact, so f32 keeps
    /// the stored elements; a narrower or another 16-bit type is a converted copy (round to nearest even).
    #[must_use]
    pub(super) fn cast(self, dtype: DType) -> Self {
        if dtype == DType::F32 || dtype == self.dtype() {
            return self;
        }
        let elements = self.elements();
        let mut wide = vec![0.0; elements.len()];
        elements.widen(0..wide.len(), &mut wide);
        let store = match dtype {
            DType::F16 => Store::F16(wide.iter().map(|value| f16::from_f32(*value)).collect()),
            _ => Store::Bf16(wide.iter().map(|value| bf16::from_f32(*value)).collect()),
        };
        Self { shape: self.shape, store }
    }
}

/// Whole elements copied out of unaligned bytes.
fn collect<T: bytemuck::Pod>(bytes: &[u8]) -> Vec<T> {
    let mut values = vec![T::zeroed(); bytes.len() / size_of::<T>()];
    bytemuck::cast_slice_mut(&mut values).copy_from_slice(bytes);
    values
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cast_rounds_to_nearest_even_and_f32_keeps_what_is_stored() {
        let step = 1.0 + 2_f32.powi(-8);
        let tensor = Tensor::from_f32(vec![3], vec![1.0, step, -65_536.0]);
        let narrow = tensor.clone().cast(DType::Bf16);
        // 1 + 2^-8 lies halfway between two bf16 numbers; the even one is 1.
        assert_eq!(narrow.elements().get(1), Some(1.0));
        let half = tensor.clone().cast(DType::F16);
        assert_eq!(half.elements().get(1), Some(step));
        assert_eq!(half.elements().get(2), Some(f32::NEG_INFINITY));
        assert_eq!(half.clone().cast(DType::F32).dtype(), DType::F16);
        assert_eq!(half.byte_len(), 6);
    }
}
