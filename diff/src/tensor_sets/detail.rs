//! Details of a pair that differs: where the largest difference lies, how far apart values are in representable steps, exact
//! quantiles, and what lies beyond an elementwise tolerance.

use super::blocks::{Blocks, Buffers};
use super::decode::{value_at, values};
use super::measure::Block;
use super::quantile;
use super::report::{Figures, UlpBin, Worst};
use super::view::{View, unravel};
use crate::tensors::tally::{CLASSES, Tally};

/// What the pass over a pair left for its details.
#[derive(Debug)]
pub(super) struct Details {
    tally: Tally,
    /// Sum of `|left - right| / |left|`.
    relative: f64,
    /// The first block of those with the largest difference.
    top: Option<usize>,
    /// Blocks with elements that differ and are not finite.
    odd: Vec<usize>,
    blocks: Blocks,
}

impl Details {
    pub(super) fn new(tally: Tally, found: &[Block], blocks: Blocks) -> Self {
        let (mut top, mut most, mut odd, mut relative) = (None, 0.0, Vec::new(), 0.0);
        for (at, block) in found.iter().enumerate() {
            relative += block.relative;
            let Some(sums) = block.sums else { continue };
            if sums.max_abs > most {
                (top, most) = (Some(at), sums.max_abs);
            }
            if sums.non_finite > 0 {
                odd.push(at);
            }
        }
        Self { tally, relative, top, odd, blocks }
    }

    /// Fills the details in. What is not decided by the counts is looked for in the blocks again.
    pub(super) fn fill(mut self, figures: &mut Figures, left: &View<'_>, right: &View<'_>) {
        let same = left.element == right.element;
        let count = self.tally.relative;
        figures.mean_rel =
            (count > 0).then(|| self.relative / wide(count)).filter(|mean| mean.is_finite());
        figures.beyond = self.tally.bound.map(|_| self.tally.beyond);
        figures.ulp_histogram = if same { bins(&self.tally.classes) } else { Vec::new() };
        let place = self.worst(left, right);
        figures.worst = place.map(|at| worst_at(left, right, at));
        if let (Some(mean), Some(max)) = (figures.mean_abs, figures.max_abs) {
            let finite = self.tally.elements();
            let histogram = &mut self.tally.histogram;
            figures.abs_quantiles =
                quantile::absolute((left, right), self.blocks, histogram, finite, (mean, max));
        }
    }

    /// The first place where a side alone is not finite, else that of the largest difference.
    fn worst(&self, left: &View<'_>, right: &View<'_>) -> Option<usize> {
        let not_finite = |a: f64, b: f64| {
            !(a.is_finite() && b.is_finite())
                && a.to_bits() != b.to_bits()
                && !(a.is_nan() && b.is_nan())
        };
        let odd = self.odd.iter().find_map(|at| {
            let found = self.scan(*at, left, right, |(a, b), _| not_finite(a, b).then_some(0.0));
            found.map(|(place, _)| place)
        });
        let largest = || {
            let larger = |(a, b): (f64, f64), most: f64| {
                let apart = (a - b).abs();
                (a.is_finite() && b.is_finite() && apart > most).then_some(apart)
            };
            self.scan(self.top?, left, right, larger).map(|(place, _)| place)
        };
        odd.or_else(largest)
    }

    /// The first place of a block that no later one exceeds; `larger` gives the value of one that does.
    fn scan(
        &self,
        block: usize,
        left: &View<'_>,
        right: &View<'_>,
        larger: impl Fn((f64, f64), f64) -> Option<f64>,
    ) -> Option<(usize, f64)> {
        let mut buffers = Buffers::default();
        let (mut lefts, mut rights) = (Vec::new(), Vec::new());
        let (l, r) = self.blocks.bytes(block, (left, right), &mut buffers);
        values(left.element, l, &mut lefts);
        values(right.element, r, &mut rights);
        let mut best: Option<(usize, f64)> = None;
        for (at, (a, b)) in lefts.iter().zip(&rights).enumerate() {
            let most = best.map_or(0.0, |(_, most)| most);
            if let Some(value) = larger((*a, *b), most) {
                best = Some((self.blocks.start(block) + at, value));
                // Places that are not finite have no order: the first is meant.
                if value <= 0.0 {
                    break;
                }
            }
        }
        best
    }
}

/// Counts a decoded block; the sum of `|left - right| / |left|` comes back.
pub(super) fn tallied(
    left: &[f64],
    right: &[f64],
    ranked: Option<(&[i64], &[i64])>,
    tally: &mut Tally,
) -> f64 {
    let mut relative = 0.0;
    for (at, (&a, &b)) in left.iter().zip(right).enumerate() {
        if !(a.is_finite() && b.is_finite()) {
            let equal = a.to_bits() == b.to_bits() || (a.is_nan() && b.is_nan());
            tally.beyond += u64::from(!equal);
            continue;
        }
        let apart = (a - b).abs();
        if a.abs() > 0.0 {
            relative += apart / a.abs();
        }
        let rank = ranked.and_then(|(l, r)| Some((*l.get(at)?, *r.get(at)?)));
        tally.one(a, apart, rank.map_or(0, |(l, r)| l.abs_diff(r)));
    }
    relative
}

fn bins(classes: &[u64; CLASSES]) -> Vec<UlpBin> {
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
    classes.iter().enumerate().filter(|(_, elements)| **elements > 0).map(bin).collect()
}

fn worst_at(left: &View<'_>, right: &View<'_>, at: usize) -> Worst {
    let index = unravel(at, &left.axes);
    let (a, b) = (value_at(left, &index), value_at(right, &index));
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
    fn bins_say_which_distances_they_hold() {
        let mut classes = [0; CLASSES];
        (classes[0], classes[3]) = (7, 2);
        let found = bins(&classes);
        assert_eq!((found[1].from, found[1].to, found[1].elements), (3, 4, 2));
    }
}
