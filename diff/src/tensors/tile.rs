//! A tile of two blocks, compared in a few plain loops over the first-level cache, each of which every compiler turns into vectors.
//!
//! The arithmetic is the same with AVX-512, AVX2 and without: eight running sums per block, joined in a fixed order, no fused operation.

use super::block::Sums;
use super::count::{count, nonzero};
use super::near;
use super::stored::{EXPONENT, Stored};
use super::tally::{TILE, Tally};

/// Running sums.
pub(crate) const LANES: usize = 8;

/// Values of a tile. One of these serves a whole block, so that nothing is cleared between tiles.
pub(crate) struct Scratch<D> {
    /// Left and right values; without their signs where a tile is [`near`].
    pub(crate) left: [f32; TILE],
    pub(crate) right: [f32; TILE],
    /// Differences of a tile that is near.
    pub(crate) close: [f32; TILE],
    /// Differences of a tile that is not.
    apart: [f64; TILE],
    pub(crate) distances: [D; TILE],
}

impl<D: Copy> Scratch<D> {
    pub(crate) const fn new(none: D) -> Self {
        Self {
            left: [0.0; TILE],
            right: [0.0; TILE],
            close: [0.0; TILE],
            apart: [0.0; TILE],
            distances: [none; TILE],
        }
    }
}

/// Sums so far.
#[derive(Clone, Copy)]
pub(crate) struct Running {
    different: u64,
    non_finite: u64,
    max_ulp: u32,
    pub(crate) max_abs: f64,
    pub(crate) max_rel: f64,
    pub(crate) most: near::Most,
    first: Option<u64>,
    pub(crate) square_diff: [f64; LANES],
    pub(crate) sum_abs: [f64; LANES],
    pub(crate) square_left: [f64; LANES],
    pub(crate) square_right: [f64; LANES],
    pub(crate) relative: [f64; LANES],
    /// No value of either side was infinite or NaN.
    pub(crate) finite: bool,
}

impl Running {
    pub(crate) const fn new() -> Self {
        Self {
            different: 0,
            non_finite: 0,
            max_ulp: 0,
            max_abs: 0.0,
            max_rel: 0.0,
            most: near::Most::NONE,
            first: None,
            square_diff: [0.0; LANES],
            sum_abs: [0.0; LANES],
            square_left: [0.0; LANES],
            square_right: [0.0; LANES],
            relative: [0.0; LANES],
            finite: true,
        }
    }

    /// Compares a tile that starts at element `start`; elements from `real` on only fill it up and are zeros on both sides.
    #[inline(always)]
    pub(crate) fn tile<S: Stored<N>, const N: usize>(
        &mut self,
        (left, right): (&[[u8; N]; TILE], &[[u8; N]; TILE]),
        (start, real): (u64, usize),
        scratch: &mut Scratch<S::Distance>,
        tally: Option<&mut Tally>,
    ) {
        let different = u64::from(S::different(left, right));
        if different == 0 {
            return self.equal::<S, N>((left, right), real, scratch, tally);
        }
        self.different += different;
        if self.first.is_none() {
            let place = left.iter().zip(right).position(|(l, r)| l != r);
            self.first = place.map(|at| start + at as u64);
        }
        let seen = near::look::<S, N>(left, right, scratch);
        if !seen.near() {
            return self.far::<S, N>((left, right), real, scratch, tally);
        }
        self.sums(scratch);
        self.max_abs = self.max_abs.max(f64::from(f32::from_bits(seen.apart)));
        if self.near_ratios(scratch, tally.is_some(), seen.exact::<S, N>(&self.most)) {
            self.new_most(scratch);
        }
        let most = self.distances::<S, N>(left, right, &mut scratch.distances);
        if let Some(tally) = tally {
            let apart = |at: usize| f64::from(scratch.close[at]);
            count::<S, N>(scratch, apart, most, real, tally);
            tally.histogram.near(&scratch.close);
            if real < TILE {
                tally.histogram.unpad((TILE - real) as u64);
            }
        }
    }

    /// A tile of equal bytes.
    #[inline(always)]
    fn equal<S: Stored<N>, const N: usize>(
        &mut self,
        (left, right): (&[[u8; N]; TILE], &[[u8; N]; TILE]),
        real: usize,
        scratch: &mut Scratch<S::Distance>,
        tally: Option<&mut Tally>,
    ) {
        if !widened::<S, N>(left, &mut scratch.left) {
            return self.far::<S, N>((left, right), real, scratch, tally);
        }
        let (mut lefts, mut rights) = (self.square_left, self.square_right);
        for at in 0..TILE / LANES {
            for lane in 0..LANES {
                let a = f64::from(scratch.left[at * LANES + lane]);
                let square = a * a;
                lefts[lane] += square;
                rights[lane] += square;
            }
        }
        (self.square_left, self.square_right) = (lefts, rights);
        if let Some(tally) = tally {
            tally.equal(real as u64, nonzero(&scratch.left));
        }
    }

    /// A tile with differences that are not near.
    #[inline(always)]
    fn far<S: Stored<N>, const N: usize>(
        &mut self,
        (left, right): (&[[u8; N]; TILE], &[[u8; N]; TILE]),
        real: usize,
        scratch: &mut Scratch<S::Distance>,
        tally: Option<&mut Tally>,
    ) {
        let finite =
            widened::<S, N>(left, &mut scratch.left) & widened::<S, N>(right, &mut scratch.right);
        if !finite {
            self.finite = false;
            return self.odd::<S, N>((left, right), real, scratch, tally);
        }
        self.squares(&scratch.left, &scratch.right);
        self.apart(&scratch.left, &scratch.right, &mut scratch.apart);
        let most = self.distances::<S, N>(left, right, &mut scratch.distances);
        match tally {
            None if self.exceeds(&scratch.left, &scratch.apart) => {
                self.max_rel = largest_ratio(self.max_rel, &scratch.left, &scratch.apart);
            }
            None => {}
            Some(tally) => {
                self.ratios(&scratch.left, &scratch.apart);
                count::<S, N>(scratch, |at| scratch.apart[at], most, real, tally);
                tally.histogram.tile(&scratch.apart);
                if real < TILE {
                    tally.histogram.unpad((TILE - real) as u64);
                }
            }
        }
        self.most = near::Most::below(self.max_rel, self.most);
    }

    /// Differences, their sum, the sum of their squares, the largest.
    #[inline(always)]
    fn apart(&mut self, left: &[f32; TILE], right: &[f32; TILE], out: &mut [f64; TILE]) {
        let (mut largest, mut squares, mut sums) =
            ([self.max_abs; LANES], self.square_diff, self.sum_abs);
        for at in 0..TILE / LANES {
            for lane in 0..LANES {
                let place = at * LANES + lane;
                let apart = (f64::from(left[place]) - f64::from(right[place])).abs();
                out[place] = apart;
                squares[lane] += apart * apart;
                sums[lane] += apart;
                largest[lane] = if apart > largest[lane] { apart } else { largest[lane] };
            }
        }
        (self.square_diff, self.sum_abs) = (squares, sums);
        self.max_abs = largest.iter().copied().fold(self.max_abs, f64::max);
    }

    #[inline(always)]
    fn squares(&mut self, left: &[f32; TILE], right: &[f32; TILE]) {
        let (mut lefts, mut rights) = (self.square_left, self.square_right);
        for at in 0..TILE / LANES {
            for lane in 0..LANES {
                let place = at * LANES + lane;
                let (a, b) = (f64::from(left[place]), f64::from(right[place]));
                lefts[lane] += a * a;
                rights[lane] += b * b;
            }
        }
        (self.square_left, self.square_right) = (lefts, rights);
    }

    /// Distances in representable values; the largest comes back.
    #[inline(always)]
    fn distances<S: Stored<N>, const N: usize>(
        &mut self,
        left: &[[u8; N]; TILE],
        right: &[[u8; N]; TILE],
        distances: &mut [S::Distance; TILE],
    ) -> u32 {
        let mut most = S::NONE;
        for at in 0..TILE {
            let distance = S::distance(left[at], right[at]);
            distances[at] = distance;
            most = if distance > most { distance } else { most };
        }
        self.max_ulp = self.max_ulp.max(S::plain(most));
        S::plain(most)
    }

    /// Could a quotient be the largest so far? Only then are any computed.
    #[inline(always)]
    fn exceeds(&self, left: &[f32; TILE], apart: &[f64; TILE]) -> bool {
        let most = self.max_rel;
        let mut above = [0.0_f64; LANES];
        for at in 0..TILE / LANES {
            for (lane, above) in above.iter_mut().enumerate() {
                let place = at * LANES + lane;
                let over = apart[place] - most * f64::from(left[place]).abs();
                *above = if over > *above { over } else { *above };
            }
        }
        above.iter().any(|over| *over > 0.0)
    }

    /// Quotients of difference and left value, their sum and the largest.
    #[inline(always)]
    fn ratios(&mut self, left: &[f32; TILE], apart: &[f64; TILE]) {
        let (mut sums, mut largest) = (self.relative, [self.max_rel; LANES]);
        for at in 0..TILE / LANES {
            for lane in 0..LANES {
                let place = at * LANES + lane;
                let base = f64::from(left[place]).abs();
                let ratio = apart[place] / base;
                let ratio = if base > 0.0 { ratio } else { 0.0 };
                sums[lane] += ratio;
                largest[lane] = if ratio > largest[lane] { ratio } else { largest[lane] };
            }
        }
        self.relative = sums;
        self.max_rel = largest.iter().copied().fold(self.max_rel, f64::max);
    }

    /// A tile with a value that is not finite, element by element.
    #[cold]
    #[inline(never)]
    fn odd<S: Stored<N>, const N: usize>(
        &mut self,
        (left, right): (&[[u8; N]; TILE], &[[u8; N]; TILE]),
        real: usize,
        scratch: &Scratch<S::Distance>,
        mut tally: Option<&mut Tally>,
    ) {
        for at in 0..real.min(TILE) {
            let (a, b) = (f64::from(scratch.left[at]), f64::from(scratch.right[at]));
            let lane = at % LANES;
            self.square_left[lane] += if a.is_finite() { a * a } else { 0.0 };
            self.square_right[lane] += if b.is_finite() { b * b } else { 0.0 };
            if !(a.is_finite() && b.is_finite()) {
                self.non_finite += u64::from(left[at] != right[at]);
                if let Some(tally) = &mut tally {
                    let equal = a.to_bits() == b.to_bits() || (a.is_nan() && b.is_nan());
                    tally.beyond += u64::from(!equal);
                }
                continue;
            }
            let apart = (a - b).abs();
            self.max_abs = self.max_abs.max(apart);
            self.square_diff[lane] += apart * apart;
            self.sum_abs[lane] += apart;
            let distance = S::plain(S::distance(left[at], right[at]));
            self.max_ulp = self.max_ulp.max(distance);
            if a.abs() > 0.0 {
                self.relative[lane] += apart / a.abs();
                self.max_rel = self.max_rel.max(apart / a.abs());
            }
            if let Some(tally) = &mut tally {
                tally.one(a, apart, u64::from(distance));
            }
        }
        self.most = near::Most::below(self.max_rel, self.most);
    }

    /// The figures, and the sum of the quotients (where they were counted).
    pub(crate) fn finish(&self) -> (Sums, f64) {
        let sums = Sums {
            different: self.different,
            non_finite: self.non_finite,
            finite: self.different - self.non_finite,
            max_abs: self.max_abs,
            max_rel: self.max_rel,
            max_ulp: u64::from(self.max_ulp),
            square_diff: self.square_diff.iter().sum(),
            sum_abs: self.sum_abs.iter().sum(),
            square_left: self.square_left.iter().sum(),
            square_right: self.square_right.iter().sum(),
            first: self.first,
        };
        (sums, self.relative.iter().sum())
    }
}

/// Widens a tile; true where every value is finite.
#[inline(always)]
fn widened<S: Stored<N>, const N: usize>(from: &[[u8; N]; TILE], to: &mut [f32; TILE]) -> bool {
    let mut largest = 0_i32;
    for at in 0..TILE {
        let bits = S::widen(from[at]);
        to[at] = f32::from_bits(bits);
        let magnitude = (bits & 0x7fff_ffff).cast_signed();
        largest = if magnitude > largest { magnitude } else { largest };
    }
    largest < EXPONENT.cast_signed()
}

/// The largest quotient, computed apart so that the running sums stay in registers elsewhere.
#[cold]
#[inline(never)]
fn largest_ratio(so_far: f64, left: &[f32; TILE], apart: &[f64; TILE]) -> f64 {
    let known = left.iter().zip(apart).filter(|(left, _)| left.abs() > 0.0);
    known.fold(so_far, |most, (left, apart)| most.max(apart / f64::from(*left).abs()))
}

/// Of values that both sides share: the sum of the squares of the finite ones, how many these are, and how many of them are not 0.
#[inline(always)]
pub(crate) fn alone<S: Stored<N>, const N: usize>(values: &[[u8; N]]) -> (f64, u64, u64) {
    let (mut squares, mut finite, mut nonzero) = ([0.0_f64; LANES], 0_u64, 0_u64);
    let (whole, rest) = values.as_chunks::<LANES>();
    let mut add = |lane: usize, bytes: [u8; N]| {
        let bits = S::widen(bytes);
        let known = bits & EXPONENT != EXPONENT;
        let value = if known { f64::from(f32::from_bits(bits)) } else { 0.0 };
        squares[lane] += value * value;
        finite += u64::from(known);
        nonzero += u64::from(known && bits & 0x7fff_ffff != 0);
    };
    for eight in whole {
        for (lane, bytes) in eight.iter().enumerate() {
            add(lane, *bytes);
        }
    }
    for (lane, bytes) in rest.iter().enumerate() {
        add(lane, *bytes);
    }
    (squares.iter().sum(), finite, nonzero)
}

/// Differences of a list of up to a tile; where a value is not finite, so is its difference.
#[inline(always)]
pub(crate) fn differences<S: Stored<N>, const N: usize>(
    left: &[[u8; N]],
    right: &[[u8; N]],
    out: &mut [f64],
) {
    for ((l, r), to) in left.iter().zip(right).zip(out) {
        let value = |bytes: [u8; N]| f64::from(f32::from_bits(S::widen(bytes)));
        *to = (value(*l) - value(*r)).abs();
    }
}
