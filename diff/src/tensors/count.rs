//! What a tile adds to a tally besides its histogram.

use super::stored::{Brain, Stored};
use super::tally::{CLASSES, TILE, Tally};
use super::tile::Scratch;

/// How many values of a tile are not 0.
#[inline(always)]
pub(crate) fn nonzero(values: &[f32; TILE]) -> u64 {
    let mut count = 0;
    for value in values {
        count += u32::from(value.to_bits() & 0x7fff_ffff != 0);
    }
    u64::from(count)
}

/// Counts a tile of finite values of these differences, the largest distance being `most`.
#[inline(always)]
pub(crate) fn count<S: Stored<N>, const N: usize>(
    scratch: &Scratch<S::Distance>,
    apart: impl Fn(usize) -> f64,
    most: u32,
    real: usize,
    tally: &mut Tally,
) {
    tally.relative += nonzero(&scratch.left);
    classes::<S, N>(&scratch.distances, most, real, &mut tally.classes);
    if let Some((rtol, atol)) = tally.bound {
        let mut beyond = 0_u64;
        for at in 0..TILE {
            let allowed = atol + rtol * f64::from(scratch.left[at]).abs();
            beyond += u64::from(apart(at) > allowed);
        }
        tally.beyond += beyond;
    }
}

/// Counts distances by class, the largest being `most`: of each class, those above the one before it without those above itself.
#[inline(always)]
fn classes<S: Stored<N>, const N: usize>(
    distances: &[S::Distance; TILE],
    most: u32,
    real: usize,
    classes: &mut [u64; CLASSES],
) {
    // Twice as many fit into a vector; what is cut off lies above every limit that is asked for.
    let mut short = [0_i16; TILE];
    if N > 2 {
        for (to, distance) in short.iter_mut().zip(distances) {
            let cut = S::plain(*distance).min(u32::from(u16::MAX));
            *to = (cut as u16 ^ 0x8000).cast_signed();
        }
    }
    let (mut above, mut limit) = (real as u64, 0_u32);
    for slot in classes {
        let further = match limit {
            _ if limit >= most => 0,
            0..0x8000 if N > 2 => <Brain as Stored<2>>::above(&short, limit),
            _ => S::above(distances, limit),
        };
        let further = u64::from(further);
        *slot += above - further;
        if further == 0 {
            break;
        }
        above = further;
        limit = if limit == 0 { 1 } else { limit.saturating_mul(2) };
    }
}
