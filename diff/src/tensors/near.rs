//! Tiles whose differences are all values of f32, and whose values are neither huge nor tiny: the usual case, compared in f32 arithmetic
//! with sixteen lanes where f64 has eight. Sums are still made in f64, and give the bits that f64 arithmetic gives; the quotients are
//! rounded to f32 (a relative error of at most 2^-22 each), while the largest one is exact.

use super::stored::Stored;
use super::tally::TILE;
use super::tile::{LANES, Running, Scratch};

/// Smallest and largest magnitude that the quotients of a near tile are taken of: 2^-50 and 2^50.
const SMALL: u32 = (127 - 50) << 23;
const LARGE: u32 = (127 + 50) << 23;

/// What a first look at a tile found.
#[derive(Clone, Copy)]
pub(crate) struct Seen {
    /// Bits of the largest magnitude of both sides.
    largest: i32,
    /// Bits of the smallest left magnitude besides 0, less one.
    least: u32,
    /// Bits of the largest difference.
    pub(crate) apart: u32,
    /// Bits of the smallest difference besides 0, less one.
    closest: u32,
    /// Bits of all differences.
    any: u32,
    /// Bits of what the roundings of the differences lost, 0 or -0 where all are exact.
    inexact: u32,
}

/// Fills left values, right values and differences in, without their signs, and says what they are like.
#[inline(always)]
pub(crate) fn look<S: Stored<N>, const N: usize>(
    left: &[[u8; N]; TILE],
    right: &[[u8; N]; TILE],
    scratch: &mut Scratch<S::Distance>,
) -> Seen {
    let (mut largest, mut apart, mut any, mut inexact) = (0_i32, 0_i32, 0_u32, 0_u32);
    let (mut least, mut closest) = (u32::MAX, u32::MAX);
    for at in 0..TILE {
        let (a, b) = (S::widen(left[at]), S::widen(right[at]));
        let (x, y) = (f32::from_bits(a), f32::from_bits(b));
        let d = x - y;
        // Of the larger value and the rounded difference, the rest is the smaller value exactly if nothing was lost.
        inexact |= ((x - d) - y).to_bits() | ((y + d) - x).to_bits();
        scratch.left[at] = f32::from_bits(a & 0x7fff_ffff);
        scratch.right[at] = f32::from_bits(b & 0x7fff_ffff);
        scratch.close[at] = f32::from_bits(d.to_bits() & 0x7fff_ffff);
    }
    // Apart from the loop above, which compilers leave scalar with so many results.
    for at in 0..TILE {
        let a = scratch.left[at].to_bits();
        let b = scratch.right[at].to_bits();
        largest = largest.max(a.cast_signed()).max(b.cast_signed());
        least = least.min(a.wrapping_sub(1));
    }
    for d in &scratch.close {
        let d = d.to_bits();
        apart = apart.max(d.cast_signed());
        closest = closest.min(d.wrapping_sub(1));
        any |= d;
    }
    Seen { largest, least, apart: apart.cast_unsigned(), closest, any, inexact }
}

impl Seen {
    /// Exact differences, 0 or normal (the histogram takes no others), of values whose products neither overflow nor underflow: a
    /// difference is then 0 or at least 2^-75.
    pub(crate) fn near(&self) -> bool {
        self.inexact << 1 == 0
            && self.largest <= LARGE.cast_signed()
            && self.least >= SMALL - 1
            && self.closest >= 0x7f_ffff
    }

    /// Are the products of a difference and a left value exact in f32, those of the largest quotient among them?
    pub(crate) fn exact<S: Stored<N>, const N: usize>(&self, most: &Most) -> bool {
        let bits = self.any | most.apart.to_bits() | 1 << 23;
        bits.trailing_zeros() >= S::DIGITS
    }
}

/// The largest quotient as a fraction, the left value at least 1 and below 2; or a fraction below it, where it comes from elsewhere.
#[derive(Clone, Copy)]
pub(crate) struct Most {
    apart: f32,
    left: f32,
}

impl Most {
    /// No quotient yet.
    pub(crate) const NONE: Self = Self { apart: 0.0, left: 1.0 };

    /// `so_far`, or a fraction that is above it but not above `quotient`.
    pub(crate) fn below(quotient: f64, so_far: Self) -> Self {
        if quotient <= f64::from(so_far.apart) / f64::from(so_far.left) {
            return so_far;
        }
        let apart = quotient.min(f64::from(f32::from_bits(LARGE))) as f32;
        Self {
            apart: if f64::from(apart) > quotient { apart.next_down() } else { apart },
            left: 1.0,
        }
    }
}

impl Running {
    /// Sums of squares and of differences.
    #[inline(always)]
    pub(crate) fn sums<D>(&mut self, scratch: &Scratch<D>) {
        let (mut lefts, mut rights) = (self.square_left, self.square_right);
        let (mut squares, mut sums) = (self.square_diff, self.sum_abs);
        for at in 0..TILE / LANES {
            for lane in 0..LANES {
                let place = at * LANES + lane;
                let (a, b) = (f64::from(scratch.left[place]), f64::from(scratch.right[place]));
                let d = f64::from(scratch.close[place]);
                lefts[lane] += a * a;
                rights[lane] += b * b;
                squares[lane] += d * d;
                sums[lane] += d;
            }
        }
        (self.square_left, self.square_right) = (lefts, rights);
        (self.square_diff, self.sum_abs) = (squares, sums);
    }

    /// Adds the quotients where they are wanted; may one be the largest so far? Where products round, ties count as well.
    #[inline(always)]
    pub(crate) fn near_ratios<D>(
        &mut self,
        scratch: &Scratch<D>,
        wanted: bool,
        exact: bool,
    ) -> bool {
        let above = self.above(scratch);
        if wanted {
            let mut quotients = [0.0_f32; HALF];
            paired(scratch, &mut quotients);
            let mut sums = self.relative;
            for eight in quotients.as_chunks::<LANES>().0 {
                for lane in 0..LANES {
                    sums[lane] += f64::from(eight[lane]);
                }
            }
            self.relative = sums;
        }
        if exact { above > 0 } else { above >= 0 }
    }

    /// The largest `difference * most.left - most.apart * left` in the order of its bits: its sign is what counts.
    #[inline(always)]
    fn above<D>(&self, scratch: &Scratch<D>) -> i32 {
        let (apart, left) = (self.most.apart, self.most.left);
        let mut above = -1_i32;
        for at in 0..TILE {
            let (a, d) = known(scratch, at);
            above = above.max((d * left - apart * a).to_bits().cast_signed());
        }
        above
    }

    /// Looks for the largest quotient, as seldom as one may be larger than those before.
    #[cold]
    #[inline(never)]
    pub(crate) fn new_most<D>(&mut self, scratch: &Scratch<D>) {
        for (a, d) in scratch.left.iter().zip(&scratch.close) {
            let quotient = f64::from(*d) / f64::from(*a);
            if *a > 0.0 && quotient > self.max_rel {
                self.max_rel = quotient;
                // A power of two: both products are exact.
                let scale = f32::from_bits((254 << 23) - (a.to_bits() & 0x7f80_0000));
                self.most = if quotient < 1e15 && quotient > 1e-15 {
                    Most { apart: d * scale, left: a * scale }
                } else {
                    Most::below(quotient, self.most)
                };
            }
        }
    }
}

/// Quotients of two elements are added in one division.
const HALF: usize = TILE / 2;

/// A left value and a difference; those of a left value of 0 have no quotient and are replaced by some whose quotient is 0.
#[inline(always)]
fn known<D>(scratch: &Scratch<D>, place: usize) -> (f32, f32) {
    let (a, d) = (scratch.left[place], scratch.close[place]);
    if a > 0.0 { (a, d) } else { (1.0, 0.0) }
}

/// `d / a + e / b` for each element and the one half a tile on.
#[inline(always)]
fn paired<D>(scratch: &Scratch<D>, quotients: &mut [f32; HALF]) {
    for (at, quotient) in quotients.iter_mut().enumerate() {
        let ((a, d), (b, e)) = (known(scratch, at), known(scratch, at + HALF));
        *quotient = (d * b + e * a) / (a * b);
    }
}

#[cfg(test)]
mod tests {
    use super::super::stored::{Brain, Single};
    use super::*;

    fn seen(pairs: &[(f32, f32)]) -> (Seen, Scratch<i32>) {
        let (mut left, mut right) = ([[0; 4]; TILE], [[0; 4]; TILE]);
        for (at, (l, r)) in pairs.iter().enumerate() {
            (left[at], right[at]) = (l.to_le_bytes(), r.to_le_bytes());
        }
        let mut scratch = Scratch::new(<Single as Stored<4>>::NONE);
        (look::<Single, 4>(&left, &right, &mut scratch), scratch)
    }

    #[test]
    fn a_tile_is_near_where_every_difference_is_a_normal_value_of_f32() {
        let near = |l: f32, r: f32| seen(&[(3.0, -2.5), (l, r)]).0.near();
        assert!(near(0.0, -0.0) && near(1.5, -0.25) && near(-1e15, 1e15) && near(0.0, 1e-30));
        // 1 + 2^-24 has a digit too many, whichever side is larger.
        assert!(!near(1.0, -2f32.powi(-24)) && !near(2f32.powi(-24), -1.0));
        // Too large, too small, a subnormal difference, not finite.
        assert!(!near(2e15, 2e15) && !near(1e-16, 1.0) && !near(0.0, 1e-40));
        assert!(!near(f32::NAN, 1.0) && !near(1.0, f32::INFINITY));
    }

    #[test]
    fn quotients_are_added_and_the_largest_is_exact() {
        // 1/8, 1/3, none of 0, 1/2; the rest is 0 on both sides.
        let (seen, scratch) = seen(&[(4.0, 3.5), (-3.0, -2.0), (0.0, 7.0), (0.5, 0.75)]);
        let mut running = Running::new();
        assert!(seen.near() && running.near_ratios(&scratch, true, false));
        running.new_most(&scratch);
        let sum: f64 = running.relative.iter().sum();
        assert!((sum - 23.0 / 24.0).abs() < 1e-7);
        assert_eq!((running.max_rel, running.most.apart, running.most.left), (0.5, 0.5, 1.0));
        // Nothing is larger: a tie counts only where products may round.
        assert!(!running.near_ratios(&scratch, false, true));
        assert!(running.near_ratios(&scratch, false, false));
        assert!(!seen.exact::<Single, 4>(&running.most) && seen.exact::<Brain, 2>(&running.most));
    }

    #[test]
    fn a_fraction_from_elsewhere_is_not_above_the_quotient() {
        let third = Most::below(1.0 / 3.0, Most::NONE);
        assert!(
            f64::from(third.apart) <= 1.0 / 3.0 && f64::from(third.apart.next_up()) > 1.0 / 3.0
        );
        assert_eq!(Most::below(0.25, third).apart.to_bits(), third.apart.to_bits());
        assert_eq!(Most::below(1e300, third).apart.to_bits(), 2f32.powi(50).to_bits());
    }
}
