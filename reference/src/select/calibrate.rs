//! Calibration statistics from queries, through the bf16 round trip of upstream's script (`TRIATTENTION.md` 2.1).

use half::bf16;

use super::SelectError;
use super::error::same;
use super::phase;
use super::real::{count, narrow};

/// Means of one head over all tokens.
#[derive(Debug, Clone, PartialEq)]
pub struct HeadCalibration {
    /// Mean of the real parts, by frequency.
    pub mean_real: Vec<f64>,
    /// Mean of the imaginary parts.
    pub mean_imag: Vec<f64>,
    /// Mean of the moduli.
    pub modulus: Vec<f64>,
}

/// Statistics of one layer. `queries` are bf16 values widened to f64, `[tokens, heads, 2 * freqs]`, at positions 0, 1, 2, ...
/// They are rotated and rotated back by tables rounded to bf16, every product and sum rounded to bf16, as upstream does.
///
/// # Errors
/// [`SelectError::Shape`] where the values are not whole tokens.
pub fn calibrate(
    queries: &[f64],
    heads: usize,
    omega: &[f32],
) -> Result<Vec<HeadCalibration>, SelectError> {
    let freqs = omega.len();
    let row = heads * 2 * freqs;
    same("values left over after whole tokens", 0, queries.len() % row.max(1))?;
    let tokens = queries.len() / row.max(1);
    let zero = HeadCalibration {
        mean_real: vec![0.0; freqs],
        mean_imag: vec![0.0; freqs],
        modulus: vec![0.0; freqs],
    };
    let mut sums = vec![zero; heads];
    for (token, queries) in (0i64..).zip(queries.chunks_exact(row.max(1))) {
        let table: Vec<(f64, f64)> = omega
            .iter()
            .map(|w| {
                let (sin, cos) = f64::from(phase::product(token, *w)).sin_cos();
                (round(sin), round(cos))
            })
            .collect();
        for (sum, query) in sums.iter_mut().zip(queries.chunks_exact(2 * freqs)) {
            let (x, y) = query.split_at(freqs);
            for f in 0..freqs {
                let (sin, cos) = table[f];
                let (re, im) = rotate(x[f], y[f], sin, cos);
                let (re, im) = rotate(re, im, -sin, cos);
                sum.mean_real[f] += re;
                sum.mean_imag[f] += im;
                sum.modulus[f] += re.hypot(im);
            }
        }
    }
    for sum in &mut sums {
        for values in [&mut sum.mean_real, &mut sum.mean_imag, &mut sum.modulus] {
            for value in values {
                *value /= count(tokens.max(1));
            }
        }
    }
    Ok(sums)
}

/// (x, y) turned by the angle of (sin, cos); products and sums rounded to bf16.
fn rotate(x: f64, y: f64, sin: f64, cos: f64) -> (f64, f64) {
    (round(round(x * cos) + round(-y * sin)), round(round(y * cos) + round(x * sin)))
}

fn round(value: f64) -> f64 {
    bf16::from_f32(narrow(value)).to_f64()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn position_zero_passes_unchanged() {
        let one = calibrate(&[3.0, 4.0], 1, &[1.0]).unwrap();
        assert_eq!((one[0].mean_real[0], one[0].mean_imag[0], one[0].modulus[0]), (3.0, 4.0, 5.0));
    }

    #[test]
    fn the_round_trip_loses_bf16_bits() {
        // Token 1 turned by 1 rad and back in bf16 does not return exactly to (1, 0).
        let one = calibrate(&[0.0, 0.0, 1.0, 0.0], 1, &[1.0]).unwrap();
        let (cos, sin) = (round(1f64.cos()), round(1f64.sin()));
        let back = round(round(cos * cos) + round(sin * sin));
        assert!((one[0].mean_real[0] - back / 2.0).abs() < 1e-15);
        assert!(calibrate(&[0.0; 3], 1, &[1.0]).is_err());
    }
}
