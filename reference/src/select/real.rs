//! The two precisions in which the rules can be evaluated.
//!
//! f64 is the reference. f32 runs the same formulas in the precision of the programs under test; its distance
//! from f64 is the control below which no difference is called wrong.

use std::fmt::Debug;
use std::iter::Sum;
use std::ops::{Add, AddAssign, Div, Mul, Sub};

/// f32 or f64.
pub trait Real:
    Copy
    + Debug
    + Default
    + PartialOrd
    + Add<Output = Self>
    + AddAssign
    + Sub<Output = Self>
    + Mul<Output = Self>
    + Div<Output = Self>
    + Sum
    + Send
    + Sync
    + 'static
{
    /// Zero.
    const ZERO: Self;
    /// Rounded from f64.
    fn of(value: f64) -> Self;
    /// Widened.
    fn wide(self) -> f64;
    /// Square root.
    fn sqrt(self) -> Self;
    /// sqrt(self² + other²) without overflow.
    fn hypot(self, other: Self) -> Self;
    /// Sine and cosine of an angle held as f32.
    fn sin_cos_of(angle: f32) -> (Self, Self);
    /// The larger; the other one where one is NaN.
    fn larger(self, other: Self) -> Self {
        if other > self { other } else { self }
    }
}

impl Real for f64 {
    const ZERO: Self = 0.0;
    fn of(value: f64) -> Self {
        value
    }
    fn wide(self) -> f64 {
        self
    }
    fn sqrt(self) -> Self {
        Self::sqrt(self)
    }
    fn hypot(self, other: Self) -> Self {
        Self::hypot(self, other)
    }
    fn sin_cos_of(angle: f32) -> (Self, Self) {
        Self::from(angle).sin_cos()
    }
}

impl Real for f32 {
    const ZERO: Self = 0.0;
    fn of(value: f64) -> Self {
        narrow(value)
    }
    fn wide(self) -> f64 {
        f64::from(self)
    }
    fn sqrt(self) -> Self {
        Self::sqrt(self)
    }
    fn hypot(self, other: Self) -> Self {
        Self::hypot(self, other)
    }
    fn sin_cos_of(angle: f32) -> (Self, Self) {
        angle.sin_cos()
    }
}

/// Rounds to the nearest f32.
#[must_use]
pub(crate) fn narrow(value: f64) -> f32 {
    value as f32
}

/// A count as f64; exact for every count that fits in memory.
#[must_use]
pub(crate) fn count(n: usize) -> f64 {
    n as f64
}
