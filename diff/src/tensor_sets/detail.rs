//! Second pass over a pair that differs: where the largest difference lies, how far apart values are in representable steps, exact
//! quantiles, and what lies beyond an elementwise tolerance.

use rayon::prelude::*;

use super::decode::{ranks, values};
use super::measure::{Buffers, block_of};
use super::quantile;
use super::report::{Figures, UlpBin, Worst};
use super::view::{View, unravel};

/// What one block gave.
#[derive(Debug, Clone)]
struct Found {
    relative: (f64, u64),
    beyond: u64,
    /// Distances of 0, 1, 2, 3-4, 5-8, ... representable values.
    ulps: [u64; 66],
    worst: Option<(f64, usize)>,
    odd: Option<usize>,
}

/// Class of a distance: 0, 1, 2, 3-4, 5-8, ..., by the power of two that it does not exceed.
const fn class(distance: u64) -> usize {
    if distance == 0 { 0 } else { 65 - (distance - 1).leading_zeros() as usize }
}

/// Fills in the figures that need the second pass; `elementwise` is `(rtol, atol)`.
pub(super) fn fill(
    figures: &mut Figures,
    left: &View<'_>,
    right: &View<'_>,
    elementwise: Option<(f64, f64)>,
) {
    let elements = left.elements();
    let size = block_of(elements);
    let same = left.element == right.element;
    let found: Vec<Found> = (0..elements.div_ceil(size))
        .into_par_iter()
        .map_init(Buffers::default, |buffers, at| {
            let (start, length) = (at * size, size.min(elements - at * size));
            block(left, right, buffers, (start, length), same, elementwise)
        })
        .collect();
    let (mut sum, mut count, mut beyond, mut ulps) = (0.0, 0, 0, [0_u64; 66]);
    let (mut worst, mut odd): (Option<(f64, usize)>, Option<usize>) = (None, None);
    for one in &found {
        sum += one.relative.0;
        count += one.relative.1;
        beyond += one.beyond;
        for (total, n) in ulps.iter_mut().zip(one.ulps) {
            *total += n;
        }
        if let Some((abs, at)) = one.worst
            && worst.is_none_or(|(most, _)| abs > most)
        {
            worst = Some((abs, at));
        }
        odd = odd.or(one.odd);
    }
    figures.mean_rel = (count > 0).then(|| sum / wide(count)).filter(|mean| mean.is_finite());
    figures.beyond = elementwise.map(|_| beyond);
    figures.ulp_histogram = if same { bins(&ulps) } else { Vec::new() };
    figures.worst = odd.or(worst.map(|(_, at)| at)).map(|at| place(left, right, at));
    if let (Some(mean), Some(max)) = (figures.mean_abs, figures.max_abs) {
        figures.abs_quantiles = quantile::absolute(left, right, pairs(&found), mean, max);
    }
}

/// Elements that are finite on both sides.
fn pairs(found: &[Found]) -> u64 {
    found.iter().map(|one| one.ulps.iter().sum::<u64>()).sum()
}

fn block(
    left: &View<'_>,
    right: &View<'_>,
    buffers: &mut Buffers,
    (start, length): (usize, usize),
    same: bool,
    elementwise: Option<(f64, f64)>,
) -> Found {
    let (l, r) = (
        left.block(start, length, &mut buffers.left),
        right.block(start, length, &mut buffers.right),
    );
    values(left.element, l, &mut buffers.left_values);
    values(right.element, r, &mut buffers.right_values);
    if same {
        ranks(left.element, l, &mut buffers.left_ranks);
        ranks(right.element, r, &mut buffers.right_ranks);
    }
    let mut found = Found { relative: (0.0, 0), beyond: 0, ulps: [0; 66], worst: None, odd: None };
    for (at, (&a, &b)) in buffers.left_values.iter().zip(&buffers.right_values).enumerate() {
        if !(a.is_finite() && b.is_finite()) {
            let equal = a.to_bits() == b.to_bits() || (a.is_nan() && b.is_nan());
            if !equal {
                found.odd = found.odd.or(Some(start + at));
                found.beyond += 1;
            }
            continue;
        }
        let abs = (a - b).abs();
        if a.abs() > 0.0 {
            found.relative.0 += abs / a.abs();
            found.relative.1 += 1;
        }
        if let Some((rtol, atol)) = elementwise {
            found.beyond += u64::from(abs > atol + rtol * a.abs());
        }
        let distance = match (buffers.left_ranks.get(at), buffers.right_ranks.get(at)) {
            (Some(l), Some(r)) if same => class(l.abs_diff(*r)),
            _ => 0,
        };
        if let Some(slot) = found.ulps.get_mut(distance) {
            *slot += 1;
        }
        if abs > found.worst.map_or(0.0, |(most, _)| most) {
            found.worst = Some((abs, start + at));
        }
    }
    found
}

fn bins(ulps: &[u64; 66]) -> Vec<UlpBin> {
    let bin = |(class, elements): (usize, &u64)| {
        let top = |class: usize| {
            1_u64.checked_shl(u32::try_from(class).unwrap_or(64)).unwrap_or(u64::MAX)
        };
        let (from, to) = match class {
            0 => (0, 0),
            1 => (1, 1),
            class => (top(class - 2) + 1, top(class - 1)),
        };
        UlpBin { from, to, elements: *elements }
    };
    ulps.iter().enumerate().filter(|(_, elements)| **elements > 0).map(bin).collect()
}

fn place(left: &View<'_>, right: &View<'_>, at: usize) -> Worst {
    let index = unravel(at, &left.axes);
    let (a, b) = (super::decode::value_at(left, &index), super::decode::value_at(right, &index));
    let finite = |value: f64| value.is_finite().then_some(value);
    Worst {
        index: index.into_iter().map(|at| at as u64).collect(),
        left: finite(a),
        right: finite(b),
        abs: finite((a - b).abs()),
    }
}

#[expect(clippy::cast_precision_loss, reason = "counts are far below 2^53")]
const fn wide(value: u64) -> f64 {
    value as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances_fall_into_classes_of_powers_of_two() {
        assert_eq!([0, 1, 2, 3, 4, 5, 8, 9].map(class), [0, 1, 2, 3, 3, 4, 4, 5]);
        assert_eq!(class(u64::MAX), 65.min(class(u64::MAX)));
        let mut ulps = [0; 66];
        (ulps[0], ulps[3]) = (7, 2);
        let found = bins(&ulps);
        assert_eq!((found[1].from, found[1].to, found[1].elements), (3, 4, 2));
    }
}
