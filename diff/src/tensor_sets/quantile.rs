//! Exact quantiles of absolute differences at any size: a radix selection over the bits of the differences, 16 at a time.
//!
//! A non-negative f64 and its bit pattern have one order. Each pass counts one 16-bit digit among the values that share the digits found
//! so far; at most four passes give the value of every rank, and as soon as few values are left in question they are sorted instead.

use rayon::prelude::*;

use super::decode::values;
use super::measure::{Buffers, block_of};
use super::view::View;
use crate::report::Quantiles;

/// Values that are sorted at most.
const SORTED: u64 = 1 << 20;
/// Per mille of the quantiles.
const WANTED: [u64; 5] = [500, 900, 950, 990, 999];

/// Numbers by the digits that lie above them: counts of one digit, or whole values. At most as many as there are quantiles, so that a
/// look through them is the fastest way to one.
struct Slots(Vec<(u64, Vec<u64>)>);

impl Slots {
    /// One for each prefix that is asked for.
    fn new(open: &[(u64, u64)], each: &[u64]) -> Self {
        let mut prefixes: Vec<u64> = open.iter().map(|(prefix, _)| *prefix).collect();
        prefixes.sort_unstable();
        prefixes.dedup();
        Self(prefixes.into_iter().map(|prefix| (prefix, each.to_vec())).collect())
    }

    fn get(&self, prefix: u64) -> Option<&Vec<u64>> {
        self.0.iter().find(|(known, _)| *known == prefix).map(|(_, numbers)| numbers)
    }

    fn get_mut(&mut self, prefix: u64) -> Option<&mut Vec<u64>> {
        self.0.iter_mut().find(|(known, _)| *known == prefix).map(|(_, numbers)| numbers)
    }
}

/// Quantiles of `|left - right|` over elements that are finite on both sides; `None` where there is none.
pub(super) fn absolute(
    left: &View<'_>,
    right: &View<'_>,
    finite: u64,
    mean: f64,
    max: f64,
) -> Option<Quantiles> {
    if finite == 0 {
        return None;
    }
    let ranks: Vec<u64> =
        WANTED.iter().map(|per_mille| (finite * per_mille).div_ceil(1000).max(1)).collect();
    let found = select(left, right, &ranks, SORTED)?;
    let [p50, p90, p95, p99, p999] = found.as_slice() else { return None };
    Some(Quantiles {
        n: finite,
        mean,
        p50: *p50,
        p90: *p90,
        p95: *p95,
        p99: *p99,
        p999: *p999,
        max,
    })
}

/// The values of these ranks (1-based, rising); at most `sorting` values are sorted.
fn select(left: &View<'_>, right: &View<'_>, ranks: &[u64], sorting: u64) -> Option<Vec<f64>> {
    // For each rank: the digits found so far, and the rank among the values that share them.
    let mut open: Vec<(u64, u64)> = ranks.iter().map(|rank| (0, *rank)).collect();
    for level in 0..4_u32 {
        let shift = 48 - 16 * level;
        let counts = count(left, right, &open, shift);
        let mut in_question = 0;
        let mut prefixes: Vec<u64> = Vec::new();
        for (prefix, rank) in &mut open {
            let digits = counts.get(*prefix)?;
            let mut below = 0;
            let digit = digits.iter().position(|n| {
                below += n;
                below >= *rank
            })?;
            let n = digits.get(digit).copied()?;
            *rank -= below - n;
            *prefix = *prefix << 16 | digit as u64;
            if !prefixes.contains(prefix) {
                prefixes.push(*prefix);
                in_question += n;
            }
        }
        if level < 3 && in_question <= sorting {
            return sorted(left, right, &open, shift);
        }
    }
    Some(open.iter().map(|(bits, _)| f64::from_bits(*bits)).collect())
}

/// Calls `each` with the bits of every finite difference of a block.
fn differences(
    left: &View<'_>,
    right: &View<'_>,
    buffers: &mut Buffers,
    at: usize,
    mut each: impl FnMut(u64),
) {
    let elements = left.elements();
    let size = block_of(elements);
    let (start, length) = (at * size, size.min(elements - at * size));
    values(left.element, left.block(start, length, &mut buffers.left), &mut buffers.left_values);
    values(
        right.element,
        right.block(start, length, &mut buffers.right),
        &mut buffers.right_values,
    );
    for (a, b) in buffers.left_values.iter().zip(&buffers.right_values) {
        if a.is_finite() && b.is_finite() {
            each((a - b).abs().to_bits());
        }
    }
}

/// Shares the blocks among as many accumulators as there are threads; counts commute, so the result depends on no schedule.
fn shared<T: Send>(
    left: &View<'_>,
    new: impl Fn() -> T + Sync,
    each: impl Fn(&mut T, &mut Buffers, usize) + Sync,
) -> Vec<T> {
    let elements = left.elements();
    let blocks = elements.div_ceil(block_of(elements));
    let threads = rayon::current_num_threads().max(1);
    (0..threads)
        .into_par_iter()
        .map(|thread| {
            let (mut own, mut buffers) = (new(), Buffers::default());
            for at in (thread..blocks).step_by(threads) {
                each(&mut own, &mut buffers, at);
            }
            own
        })
        .collect()
}

fn count(left: &View<'_>, right: &View<'_>, open: &[(u64, u64)], shift: u32) -> Slots {
    let zeros = vec![0; 1 << 16];
    let new = || Slots::new(open, &zeros);
    let above = |bits: u64| if shift == 48 { 0 } else { bits >> (shift + 16) };
    let each = |own: &mut Slots, buffers: &mut Buffers, at: usize| {
        differences(left, right, buffers, at, |bits| {
            let digits = own.get_mut(above(bits));
            let digit = usize::try_from(bits >> shift & 0xffff).unwrap_or(0);
            if let Some(slot) = digits.and_then(|digits| digits.get_mut(digit)) {
                *slot += 1;
            }
        });
    };
    let mut total = new();
    for own in shared(left, new, each) {
        for (prefix, digits) in own.0 {
            let Some(sum) = total.get_mut(prefix) else { continue };
            for (sum, n) in sum.iter_mut().zip(digits) {
                *sum += n;
            }
        }
    }
    total
}

/// The values in question, sorted: the last step where few are left.
fn sorted(left: &View<'_>, right: &View<'_>, open: &[(u64, u64)], shift: u32) -> Option<Vec<f64>> {
    let new = || Slots::new(open, &[]);
    let each = |own: &mut Slots, buffers: &mut Buffers, at: usize| {
        differences(left, right, buffers, at, |bits| {
            if let Some(list) = own.get_mut(bits >> shift) {
                list.push(bits);
            }
        });
    };
    let mut total = new();
    for own in shared(left, new, each) {
        for (prefix, list) in own.0 {
            if let Some(all) = total.get_mut(prefix) {
                all.extend(list);
            }
        }
    }
    total.0.iter_mut().for_each(|(_, list)| list.sort_unstable());
    let value = |(prefix, rank): &(u64, u64)| {
        let at = usize::try_from(rank.checked_sub(1)?).ok()?;
        total.get(*prefix)?.get(at).map(|bits| f64::from_bits(*bits))
    };
    open.iter().map(value).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use lockstep_traces::Tensor;
    use lockstep_traces::store::write_safetensors;
    use lockstep_traces::tensor_files::{ReadOptions, read};

    use super::*;

    #[test]
    fn selection_by_digits_and_by_sorting_give_the_values_of_a_full_sort() {
        let home = tempfile::tempdir().unwrap();
        let mut state = 1_u32;
        let mut next = |scale: f32| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            ((state >> 8) as f32 / 16_777_216.0 - 0.5) * scale
        };
        let n = 100_003;
        let left: Vec<f32> = (0..n).map(|_| next(8.0)).collect();
        // A third of the places is equal; the rest differs by amounts of many sizes.
        let right: Vec<f32> = left
            .iter()
            .enumerate()
            .map(|(at, v)| if at % 3 == 0 { *v } else { v + next(1e-3) * (at % 7) as f32 })
            .collect();
        let mut sorted: Vec<f64> =
            left.iter().zip(&right).map(|(a, b)| (f64::from(*a) - f64::from(*b)).abs()).collect();
        sorted.sort_by(f64::total_cmp);
        let path = home.path().join("x.safetensors");
        let tensors =
            [Tensor::from_f32("a", vec![n], &left), Tensor::from_f32("b", vec![n], &right)];
        write_safetensors(&path, &BTreeMap::new(), &tensors).unwrap();
        let set = read(&path, &ReadOptions::default()).unwrap();
        let (a, b) = (View::of(&set.tensors[0]), View::of(&set.tensors[1]));
        let ranks = [1, 30_000, 50_002, 90_003, 99_999, 100_003];
        let expected: Vec<f64> = ranks.iter().map(|rank| sorted[*rank as usize - 1]).collect();
        for sorting in [0, 100, 1 << 20] {
            assert_eq!(select(&a, &b, &ranks, sorting).unwrap(), expected, "{sorting}");
        }
    }
}
