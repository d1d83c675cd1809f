//! Phases `t * w`: each is one f32 product (`TRIATTENTION.md` 3.4); tables with angle addition where the rule set
//! has them (3.5).

use half::bf16;

use super::Real;
use super::real::narrow;
use super::recipe::{Phases, Recipe};

/// Offsets 1, 2, 4, ... while they do not exceed `max`.
#[must_use]
pub fn offsets(max: usize) -> Vec<usize> {
    std::iter::successors(Some(1usize), |offset| offset.checked_mul(2))
        .take_while(|offset| *offset <= max)
        .collect()
}

/// Inverse frequencies as the recipe uses them.
#[must_use]
pub(crate) fn omega(recipe: &Recipe, omega: &[f32]) -> Vec<f32> {
    if recipe.omega_bf16 {
        return omega.iter().map(|w| bf16::from_f32(*w).to_f32()).collect();
    }
    omega.to_vec()
}

/// The phase `t * w` as one f32 product.
#[must_use]
pub(crate) fn product(t: i64, w: f32) -> f32 {
    narrow(t as f64) * w
}

/// Cosines and sines of `(round_start + offset) * w`, `[offsets, freqs]`.
#[derive(Debug, Clone, PartialEq)]
pub struct Trig<R> {
    /// Cosines.
    pub cos: Vec<Vec<R>>,
    /// Sines.
    pub sin: Vec<Vec<R>>,
}

/// Cosines and sines of a round start, from tables or on the fly.
#[must_use]
pub fn trig<R: Real>(
    phases: Phases,
    round_start: usize,
    offsets: &[usize],
    omega: &[f32],
) -> Trig<R> {
    match phases {
        Phases::Tables { step, max } if step > 0 => {
            let base = round_start / step * step;
            let last = max / step * step;
            if base < step || base > last {
                return plain(round_start, offsets, omega);
            }
            let table = plain(base, offsets, omega);
            if base == round_start {
                return table;
            }
            add(&table, round_start - base, omega)
        }
        Phases::Plain | Phases::Tables { .. } => plain(round_start, offsets, omega),
    }
}

fn plain<R: Real>(round_start: usize, offsets: &[usize], omega: &[f32]) -> Trig<R> {
    let mut trig = Trig { cos: Vec::new(), sin: Vec::new() };
    for offset in offsets {
        let t = i64::try_from(round_start.saturating_add(*offset)).unwrap_or(i64::MAX);
        let (sin, cos) = omega.iter().map(|w| R::sin_cos_of(product(t, *w))).unzip();
        trig.cos.push(cos);
        trig.sin.push(sin);
    }
    trig
}

/// Angle addition of the residual `r`: table row times the rotation by `r * w`.
fn add<R: Real>(table: &Trig<R>, residual: usize, omega: &[f32]) -> Trig<R> {
    let r = i64::try_from(residual).unwrap_or(i64::MAX);
    let turn: Vec<(R, R)> = omega.iter().map(|w| R::sin_cos_of(product(r, *w))).collect();
    let mut trig = Trig { cos: Vec::new(), sin: Vec::new() };
    for (cos, sin) in table.cos.iter().zip(&table.sin) {
        let pairs = || cos.iter().zip(sin).zip(&turn);
        trig.cos.push(pairs().map(|((c, s), (rs, rc))| *c * *rc - *s * *rs).collect());
        trig.sin.push(pairs().map(|((c, s), (rs, rc))| *s * *rc + *c * *rs).collect());
    }
    trig
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offsets_are_the_powers_of_two_up_to_the_limit() {
        assert_eq!(offsets(65536).len(), 17);
        assert_eq!(offsets(100), vec![1, 2, 4, 8, 16, 32, 64]);
        assert!(offsets(0).is_empty());
    }

    #[test]
    fn a_phase_is_rounded_to_f32_before_the_cosine() {
        // 70001 * f32(0.1) = 7000.1001043... lies between two f32 that are 2^-11 apart.
        let phase = product(70_001, 0.1);
        assert_eq!(phase.to_bits(), 7_000.1f32.to_bits());
        let trig = trig::<f64>(Phases::Plain, 70_000, &[1], &[0.1]);
        assert!((trig.cos[0][0] - 7_000.100_097_656_25f64.cos()).abs() < 1e-15);
    }

    #[test]
    fn a_round_start_between_table_rows_goes_through_angle_addition() {
        let tables = Phases::Tables { step: 16, max: 64 };
        let w = [0.77f32];
        let direct = trig::<f64>(Phases::Plain, 21, &[4], &w);
        let table = trig::<f64>(tables, 21, &[4], &w);
        let by_hand = (f64::from(20.0 * w[0]).cos() * f64::from(5.0 * w[0]).cos())
            - (f64::from(20.0 * w[0]).sin() * f64::from(5.0 * w[0]).sin());
        assert!((table.cos[0][0] - by_hand).abs() < 1e-15);
        assert!((table.cos[0][0] - direct.cos[0][0]).abs() > 1e-12, "the roundings must differ");
    }

    #[test]
    fn outside_the_table_the_phase_is_plain() {
        let tables = Phases::Tables { step: 16, max: 64 };
        for round_start in [7, 80, 99] {
            assert_eq!(
                trig::<f64>(tables, round_start, &[1, 2], &[0.3, 0.7]),
                trig::<f64>(Phases::Plain, round_start, &[1, 2], &[0.3, 0.7])
            );
        }
    }
}
