//! The two element types, and access to tensors of either.

use std::ops::{Add, Div, Mul, Neg, Sub};

use candle_core::Layout;

use super::super::Rounding;
use super::Result;

/// The two element types of the reference.
pub(super) trait Real:
    Copy
    + Default
    + Send
    + Sync
    + PartialOrd
    + Add<Output = Self>
    + Sub<Output = Self>
    + Mul<Output = Self>
    + Div<Output = Self>
    + Neg<Output = Self>
{
    const ONE: Self;
    const LOWEST: Self;
    fn of(value: f64) -> Self;
    fn exp(self) -> Self;
    fn sqrt(self) -> Self;
    fn rounded(self, rounding: Rounding) -> Self;
}

impl Real for f32 {
    const ONE: Self = 1.0;
    const LOWEST: Self = Self::NEG_INFINITY;
    fn of(value: f64) -> Self {
        value as Self
    }
    fn exp(self) -> Self {
        self.exp()
    }
    fn sqrt(self) -> Self {
        self.sqrt()
    }
    #[inline]
    fn rounded(self, rounding: Rounding) -> Self {
        rounding.f32(self)
    }
}

impl Real for f64 {
    const ONE: Self = 1.0;
    const LOWEST: Self = Self::NEG_INFINITY;
    fn of(value: f64) -> Self {
        value
    }
    fn exp(self) -> Self {
        self.exp()
    }
    fn sqrt(self) -> Self {
        self.sqrt()
    }
    fn rounded(self, _: Rounding) -> Self {
        self
    }
}

/// Elements of a block handed to a thread, rounded up to whole rows.
pub(super) fn block_of(width: usize) -> usize {
    (1usize << 15).div_ceil(width.max(1)) * width.max(1)
}

pub(super) fn lanes<T: Real>(values: impl Iterator<Item = T>) -> T {
    let mut sums = [T::default(); 8];
    for (index, value) in values.enumerate() {
        sums[index % 8] = sums[index % 8] + value;
    }
    let [a, b, c, d, e, f, g, h] = sums;
    ((a + b) + (c + d)) + ((e + f) + (g + h))
}

pub(super) fn plain<'a, T>(values: &'a [T], layout: &Layout, op: &'static str) -> Result<&'a [T]> {
    let (start, end) = layout
        .contiguous_offsets()
        .ok_or_else(|| candle_core::Error::RequiresContiguous { op }.bt())?;
    Ok(&values[start..end])
}

/// Runs a generic body on whichever of the two element types all storages share.
macro_rules! on_reals {
    ($op:expr, ($($storage:expr, $layout:expr => $name:ident),+), $body:expr) => {
        match ($($storage),+) {
            ($(candle_core::CpuStorage::F32($name)),+) => {
                $(let $name = $crate::forward::ops::real::plain($name, $layout, $op)?;)+
                candle_core::CpuStorage::F32($body)
            }
            ($(candle_core::CpuStorage::F64($name)),+) => {
                $(let $name = $crate::forward::ops::real::plain($name, $layout, $op)?;)+
                candle_core::CpuStorage::F64($body)
            }
            _ => candle_core::bail!("{} needs f32 or f64 operands of one type", $op),
        }
    };
}

pub(super) use on_reals;
