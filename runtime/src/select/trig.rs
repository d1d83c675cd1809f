//! Sine, cosine and arc tangent over short blocks, written so that the compiler turns them into vector code.
//!
//! Rule set `hf` takes one cosine per row, head, frequency and offset: four thousand million of them in one compaction of an 8B
//! model. Sines and cosines lie within 1.2e-7 of the
//! true value for arguments up to 2^24; angles are the f32 next to the true one.

/// Values in a block.
pub(super) const LANES: usize = 8;

/// One block.
pub(super) type Block = [f32; LANES];

/// 1.5 * 2^52: adding it leaves the nearest integer in the low bits of an f64.
const ROUND: f64 = 6_755_399_441_055_744.0;

/// Splits each angle into the nearest quarter turn (modulo 2^32) and a remainder in [-pi/4, pi/4].
#[inline]
#[expect(
    clippy::cast_possible_truncation,
    reason = "the remainder is meant to be f32, the turn modulo 4"
)]
fn reduce(angles: &Block) -> ([u32; LANES], Block) {
    let mut turns = [0_u32; LANES];
    let mut rest = [0.0_f32; LANES];
    for lane in 0..LANES {
        let angle = f64::from(angles[lane]);
        let shifted = angle * std::f64::consts::FRAC_2_PI + ROUND;
        turns[lane] = shifted.to_bits() as u32;
        rest[lane] = (angle - (shifted - ROUND) * std::f64::consts::FRAC_PI_2) as f32;
    }
    (turns, rest)
}

/// Sine and cosine on [-pi/4, pi/4] (minimax polynomials of Cephes `sinf`, `cosf`).
#[inline]
fn kernels(rest: &Block) -> (Block, Block) {
    let mut sin = [0.0_f32; LANES];
    let mut cos = [0.0_f32; LANES];
    for lane in 0..LANES {
        let x = rest[lane];
        let square = x * x;
        let odd = (-1.951_529_6e-4 * square + 8.332_161e-3) * square - 1.666_665_5e-1;
        sin[lane] = odd * square * x + x;
        let even = (2.443_315_7e-5 * square - 1.388_731_6e-3) * square + 4.166_664_6e-2;
        cos[lane] = even * square * square - 0.5 * square + 1.0;
    }
    (sin, cos)
}

/// Cosine of each angle.
#[inline]
pub(super) fn cos(angles: &Block) -> Block {
    let (turns, rest) = reduce(angles);
    let (sine, cosine) = kernels(&rest);
    let mut out = [0.0_f32; LANES];
    for lane in 0..LANES {
        let turn = turns[lane];
        let odd = (turn & 1).wrapping_neg();
        let bits = (sine[lane].to_bits() & odd) | (cosine[lane].to_bits() & !odd);
        let sign = (turn.wrapping_add(1) & 2) << 30;
        out[lane] = f32::from_bits(bits ^ sign);
    }
    out
}

/// Sine and cosine of each angle.
#[inline]
pub(super) fn sin_cos(angles: &Block) -> (Block, Block) {
    let (turns, rest) = reduce(angles);
    let (sine, cosine) = kernels(&rest);
    let mut out = ([0.0_f32; LANES], [0.0_f32; LANES]);
    for lane in 0..LANES {
        let turn = turns[lane];
        let odd = (turn & 1).wrapping_neg();
        let (s, c) = (sine[lane].to_bits(), cosine[lane].to_bits());
        let sin_sign = (turn & 2) << 30;
        let cos_sign = (turn.wrapping_add(1) & 2) << 30;
        out.0[lane] = f32::from_bits(((c & odd) | (s & !odd)) ^ sin_sign);
        out.1[lane] = f32::from_bits(((s & odd) | (c & !odd)) ^ cos_sign);
    }
    out
}

/// Angle of each point (`y`, `x`), computed in f64 and rounded once; 0 at the origin. One step of the last place here moves a phase of
/// 7e4 to its neighbour on the f32 grid, 8e-3 rad away, and so costs more than the sum over frequencies does.
#[inline]
#[expect(clippy::cast_possible_truncation, reason = "the angle is meant to be rounded to f32")]
pub(super) fn atan2(ys: &Block, xs: &Block) -> Block {
    let mut out = [0.0_f32; LANES];
    for lane in 0..LANES {
        let (y, x) = (f64::from(ys[lane]), f64::from(xs[lane]));
        let (tall, wide) = (y.abs(), x.abs());
        let (small, large) = if tall > wide { (wide, tall) } else { (tall, wide) };
        // tan(pi/8) splits [0, 1]; above it the argument turns back by pi/4.
        let turned = small > large * TAN_22_5;
        let top = if turned { small - large } else { small };
        let bottom = if turned { small + large } else { large };
        let ratio = top / if bottom > 0.0 { bottom } else { 1.0 };
        let square = ratio * ratio;
        let mut series = 0.0;
        for term in ATAN_SERIES {
            series = series * square + term;
        }
        let base = if turned { std::f64::consts::FRAC_PI_4 } else { 0.0 };
        let octant = base + ratio * series;
        let quadrant = if tall > wide { std::f64::consts::FRAC_PI_2 - octant } else { octant };
        let half = if x < 0.0 { std::f64::consts::PI - quadrant } else { quadrant };
        out[lane] = (half as f32).copysign(ys[lane]);
    }
    out
}

const TAN_22_5: f64 = std::f64::consts::SQRT_2 - 1.0;

/// Taylor coefficients of atan(x) / x in x^2, highest first; the first term left out is below 3e-11 at tan(pi/8).
const ATAN_SERIES: [f64; 12] = {
    let mut terms = [0.0; 12];
    let mut index = 0;
    let mut divisor = 23.0;
    while index < 12 {
        terms[index] = if index % 2 == 0 { -1.0 / divisor } else { 1.0 / divisor };
        divisor -= 2.0;
        index += 1;
    }
    terms
};

#[cfg(test)]
#[expect(
    clippy::cast_possible_truncation,
    reason = "test angles are made as f64 and stored as f32"
)]
mod tests {
    use super::*;

    fn blocks(count: u32, scale: f64) -> impl Iterator<Item = Block> {
        (0..count).map(move |block| {
            std::array::from_fn(|lane| {
                let index = f64::from(block) * 8.0 + lane as f64;
                ((index * 0.618_033_988_749_894_9).fract() * 2.0 - 1.0) as f32 * scale as f32
            })
        })
    }

    #[test]
    fn sines_and_cosines_are_right_up_to_the_largest_phase() {
        for scale in [1e-6, 0.7, 3.0, 40.0, 1000.0, 70_000.0, 140_000.0, 16_777_216.0] {
            for block in blocks(400, scale) {
                let (sine, cosine) = sin_cos(&block);
                assert_eq!(cosine.map(f32::to_bits), cos(&block).map(f32::to_bits));
                for lane in 0..LANES {
                    let angle = f64::from(block[lane]);
                    assert!((f64::from(sine[lane]) - angle.sin()).abs() < 1.2e-7, "{angle}");
                    assert!((f64::from(cosine[lane]) - angle.cos()).abs() < 1.2e-7, "{angle}");
                }
            }
        }
    }

    #[test]
    fn angles_of_points_are_right_in_every_octant() {
        for (ys, xs) in blocks(4000, 3.0).zip(blocks(4001, 2.0).skip(1)) {
            let angles = atan2(&ys, &xs);
            for lane in 0..LANES {
                let truth = f64::from(ys[lane]).atan2(f64::from(xs[lane]));
                let half_step = f64::from(angles[lane].abs().next_up() - angles[lane].abs()) / 2.0;
                assert!((f64::from(angles[lane]) - truth).abs() <= half_step * 1.01 + 1e-10);
            }
        }
        let axes = atan2(
            &[0.0, 1.0, 0.0, -1.0, 0.0, 1.0, -1.0, 1.0],
            &[1.0, 0.0, -1.0, 0.0, 0.0, 1.0, -1.0, -1.0],
        );
        let quarter = std::f32::consts::FRAC_PI_4;
        let wanted = [0.0, 2.0, 4.0, -2.0, 0.0, 1.0, -3.0, 3.0].map(|steps| steps * quarter);
        for (angle, wanted) in axes.iter().zip(wanted) {
            assert!((angle - wanted).abs() < 3e-7);
        }
    }

    #[test]
    fn a_nan_stays_a_nan() {
        assert!(cos(&[f32::NAN; LANES]).iter().all(|value| value.is_nan()));
        assert!(atan2(&[f32::NAN; LANES], &[1.0; LANES]).iter().all(|value| value.is_nan()));
    }
}
