//! Value-by-value comparison of one block.

use lockstep_traces::DType;

pub(crate) use super::lanes::Wanted;
use super::lanes::{self, Compared};
use super::stored::{Brain, Half, Single};
use super::tally::Tally;

/// Figures of one block or of all blocks so far.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Sums {
    pub(crate) different: u64,
    pub(crate) non_finite: u64,
    /// Elements that differ and are finite on both sides.
    pub(crate) finite: u64,
    pub(crate) max_abs: f64,
    pub(crate) max_rel: f64,
    pub(crate) max_ulp: u64,
    pub(crate) square_diff: f64,
    /// Of the differences of finite elements.
    pub(crate) sum_abs: f64,
    /// Of the finite left values.
    pub(crate) square_left: f64,
    /// Of the finite right values.
    pub(crate) square_right: f64,
    pub(crate) first: Option<u64>,
}

impl Sums {
    /// Adds the block that starts at element `start`.
    pub(crate) fn join(&mut self, block: &Self, start: u64) {
        self.different += block.different;
        self.non_finite += block.non_finite;
        self.finite += block.finite;
        self.max_abs = self.max_abs.max(block.max_abs);
        self.max_rel = self.max_rel.max(block.max_rel);
        self.max_ulp = self.max_ulp.max(block.max_ulp);
        self.square_diff += block.square_diff;
        self.sum_abs += block.sum_abs;
        self.square_left += block.square_left;
        self.square_right += block.square_right;
        self.first = self.first.or(block.first.map(|first| start + first));
    }
}

/// An element type: its value, and its rank among the values of its type (adjacent values differ by 1, +0 and -0 are one).
trait Element: Copy {
    fn value(self) -> f64;
    fn rank(self) -> i64;
}

/// Rank of a floating-point pattern of sign and magnitude.
const fn rank(negative: bool, magnitude: i64) -> i64 {
    if negative { -magnitude } else { magnitude }
}

impl Element for f64 {
    fn value(self) -> f64 {
        self
    }
    fn rank(self) -> i64 {
        let magnitude = i64::try_from(self.to_bits() & !(1 << 63)).unwrap_or(i64::MAX);
        rank(self.is_sign_negative(), magnitude)
    }
}

macro_rules! integers {
    ($($kind:ty),*) => {$(
        impl Element for $kind {
            fn value(self) -> f64 {
                f64::from(self)
            }
            fn rank(self) -> i64 {
                i64::from(self)
            }
        }
    )*};
}

integers!(i32, i16, u8);

impl Element for i64 {
    #[expect(clippy::cast_precision_loss, reason = "differences of indices are far below 2^53")]
    fn value(self) -> f64 {
        self as f64
    }
    fn rank(self) -> i64 {
        self
    }
}

/// Compares two blocks of equal length element by element.
pub(crate) fn compare_block(dtype: DType, left: &[u8], right: &[u8]) -> Sums {
    if let Some(wide) = Wide::of(dtype) {
        return wide.compare(left, right, None).sums;
    }
    match dtype {
        DType::F64 => elements(left, right, f64::from_le_bytes),
        DType::I32 => elements(left, right, i32::from_le_bytes),
        DType::I16 => elements(left, right, i16::from_le_bytes),
        DType::I64 => elements(left, right, i64::from_le_bytes),
        DType::U8 => elements(left, right, u8::from_le_bytes),
        DType::F32 | DType::F16 | DType::Bf16 => unreachable!("has a vector form"),
    }
}

/// The types that have a vector form.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wide {
    Single,
    Half,
    Brain,
}

impl Wide {
    pub(crate) const fn of(dtype: DType) -> Option<Self> {
        Some(match dtype {
            DType::F32 => Self::Single,
            DType::F16 => Self::Half,
            DType::Bf16 => Self::Brain,
            _ => return None,
        })
    }

    /// Compares two blocks of equal length; with a tally, what it counts is counted.
    pub(crate) fn compare(self, left: &[u8], right: &[u8], tally: Option<&mut Tally>) -> Compared {
        match self {
            Self::Single => lanes::compare::<Single, 4>(left, right, tally),
            Self::Half => lanes::compare::<Half, 2>(left, right, tally),
            Self::Brain => lanes::compare::<Brain, 2>(left, right, tally),
        }
    }

    /// Of a block that both sides share: the sum of the squares of its finite values, their number, and how many of them are not 0.
    pub(crate) fn shared(self, bytes: &[u8]) -> (f64, u64, u64) {
        match self {
            Self::Single => lanes::shared::<Single, 4>(bytes),
            Self::Half => lanes::shared::<Half, 2>(bytes),
            Self::Brain => lanes::shared::<Brain, 2>(bytes),
        }
    }

    /// Appends the bits of the differences that are looked for.
    pub(crate) fn picked(self, left: &[u8], right: &[u8], wanted: &Wanted, out: &mut Vec<u64>) {
        match self {
            Self::Single => lanes::picked::<Single, 4>(left, right, wanted, out),
            Self::Half => lanes::picked::<Half, 2>(left, right, wanted, out),
            Self::Brain => lanes::picked::<Brain, 2>(left, right, wanted, out),
        }
    }
}

fn elements<T: Element, const N: usize>(
    left: &[u8],
    right: &[u8],
    read: impl Fn([u8; N]) -> T,
) -> Sums {
    let mut sums = Sums::default();
    let (lefts, rights) = (left.as_chunks::<N>().0, right.as_chunks::<N>().0);
    for (at, (l, r)) in lefts.iter().zip(rights).enumerate() {
        let equal = l == r;
        let (l, r) = (read(*l), read(*r));
        let (a, b) = (l.value(), r.value());
        if a.is_finite() {
            sums.square_left += a * a;
        }
        if b.is_finite() {
            sums.square_right += b * b;
        }
        if equal {
            continue;
        }
        sums.different += 1;
        sums.first = sums.first.or(Some(at as u64));
        if !(a.is_finite() && b.is_finite()) {
            sums.non_finite += 1;
            continue;
        }
        sums.finite += 1;
        let abs = (a - b).abs();
        sums.max_abs = sums.max_abs.max(abs);
        sums.square_diff += abs * abs;
        sums.sum_abs += abs;
        // Divides only where the quotient could be the largest.
        if a.abs() > 0.0 && abs > sums.max_rel * a.abs() {
            sums.max_rel = abs / a.abs();
        }
        sums.max_ulp = sums.max_ulp.max(l.rank().abs_diff(r.rank()));
    }
    sums
}

/// Sum of squares of the finite values of a block: that of [`compare_block`], from a block held against itself.
pub(crate) fn square_sum(dtype: DType, bytes: &[u8]) -> f64 {
    compare_block(dtype, bytes, bytes).square_left
}
