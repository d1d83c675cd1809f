//! Exact quantiles of absolute differences at any size: a radix selection over the bits of the differences.
//!
//! A non-negative f64 and its bit pattern have one order. The first 18 digits of every difference were counted as the pair was compared;
//! that decides a quantile where no difference of its class has further bits, as with most differences of half-precision values. Else a
//! further pass counts the next 16 bits among the differences of these classes alone, and as soon as few are left they are sorted.

use super::blocks::{Blocks, Buffers, shared};
use super::decode::values;
use super::view::View;
use crate::report::Quantiles;
use crate::tensors::block::{Wanted, Wide};
use crate::tensors::tally::{Histogram, SHIFT};

/// Values that are sorted at most.
const SORTED: u64 = 1 << 18;
/// Bits that one pass counts.
const DIGIT: u32 = 16;
/// Per mille of the quantiles.
const WANTED: [u64; 5] = [500, 900, 950, 990, 999];

/// Quantiles of `|left - right|` over the `finite` elements that are finite on both sides; `None` where there is none.
pub(super) fn absolute(
    sides: (&View<'_>, &View<'_>),
    blocks: Blocks,
    histogram: &mut Histogram,
    finite: u64,
    (mean, max): (f64, f64),
) -> Option<Quantiles> {
    if finite == 0 {
        return None;
    }
    let ranks = WANTED.map(|per_mille| (finite * per_mille).div_ceil(1000).max(1));
    let [p50, p90, p95, p99, p999] = select(sides, blocks, histogram, ranks, SORTED)?;
    Some(Quantiles { n: finite, mean, p50, p90, p95, p99, p999, max })
}

/// What is known of the value of one rank.
#[derive(Debug, Clone, Copy, Default)]
struct Open {
    /// Its leading bits.
    prefix: u64,
    /// Its rank (1-based) among the differences that share them.
    rank: u64,
    /// How many those are.
    of: u64,
    /// Its bits, where all of them are known.
    value: Option<u64>,
}

/// The values of these ranks (1-based); at most `sorting` values are sorted.
fn select(
    sides: (&View<'_>, &View<'_>),
    blocks: Blocks,
    histogram: &mut Histogram,
    ranks: [u64; 5],
    sorting: u64,
) -> Option<[f64; 5]> {
    let mut open = [Open::default(); 5];
    for (one, rank) in open.iter_mut().zip(ranks) {
        let (prefix, rank, of, longer) = histogram.rank(rank)?;
        *one = Open { prefix, rank, of, value: (!longer).then_some(prefix << SHIFT) };
    }
    let mut shift = SHIFT;
    while open.iter().any(|one| one.value.is_none()) {
        let wanted = wanted(&open, shift);
        let in_question: u64 = wanted
            .prefixes
            .iter()
            .filter_map(|prefix| unknown(&open).find(|one| one.prefix == *prefix))
            .map(|one| one.of)
            .sum();
        if in_question <= sorting {
            sorted(sides, blocks, &wanted, &mut open)?;
            break;
        }
        let width = DIGIT.min(shift);
        let counts = count(sides, blocks, &wanted, width);
        shift -= width;
        for one in open.iter_mut().filter(|one| one.value.is_none()) {
            let slot = wanted.prefixes.iter().position(|prefix| *prefix == one.prefix)?;
            let mut below = 0;
            let (digit, (n, longer)) =
                counts.get(slot)?.iter().enumerate().find(|(_, (n, _))| {
                    below += n;
                    below >= one.rank
                })?;
            one.rank -= below - n;
            one.of = *n;
            one.prefix = one.prefix << width | digit as u64;
            one.value = (*longer == 0).then_some(one.prefix << shift);
        }
    }
    let mut out = [0.0; 5];
    for (to, one) in out.iter_mut().zip(open) {
        *to = f64::from_bits(one.value?);
    }
    Some(out)
}

fn unknown(open: &[Open; 5]) -> impl Iterator<Item = &Open> {
    open.iter().filter(|one| one.value.is_none())
}

/// The distinct prefixes that are in question.
fn wanted(open: &[Open; 5], shift: u32) -> Wanted {
    // No finite difference has every bit set.
    let mut prefixes = [u64::MAX; 5];
    let mut listed: Vec<u64> = unknown(open).map(|one| one.prefix).collect();
    listed.dedup();
    for (slot, prefix) in prefixes.iter_mut().zip(listed) {
        *slot = prefix;
    }
    Wanted { shift, prefixes }
}

/// Gives every difference that is looked for to the accumulator of a thread: the slot of its prefix, and its bits.
fn pass<T: Send>(
    (left, right): (&View<'_>, &View<'_>),
    blocks: Blocks,
    wanted: &Wanted,
    new: impl Fn() -> T + Sync,
    each: impl Fn(&mut T, usize, u64) + Sync,
) -> Vec<T> {
    let same = left.element == right.element;
    let wide = left.element.dtype().filter(|_| same).and_then(Wide::of);
    let state = || (new(), Buffers::default(), Vec::new(), Vec::new(), Vec::new());
    let workers = shared(blocks.count(), state, |(own, buffers, hits, lefts, rights), at| {
        let (l, r) = blocks.bytes(at, (left, right), buffers);
        hits.clear();
        if let Some(wide) = wide {
            wide.picked(l, r, wanted, hits);
        } else {
            values(left.element, l, lefts);
            values(right.element, r, rights);
            for (a, b) in lefts.iter_mut().zip(rights) {
                *a = (*a - *b).abs();
            }
            wanted.take(lefts, hits);
        }
        for bits in &*hits {
            let prefix = bits >> wanted.shift;
            if let Some(slot) = wanted.prefixes.iter().position(|known| *known == prefix) {
                each(own, slot, *bits);
            }
        }
    });
    workers.into_iter().map(|(own, ..)| own).collect()
}

/// By slot and digit: how many, and how many of them with a bit set behind the digit.
fn count(
    sides: (&View<'_>, &View<'_>),
    blocks: Blocks,
    wanted: &Wanted,
    width: u32,
) -> Vec<Vec<(u64, u64)>> {
    let shift = wanted.shift - width;
    let new = || vec![Vec::new(); wanted.prefixes.len()];
    let each = |own: &mut Vec<Vec<(u64, u64)>>, slot: usize, bits: u64| {
        let Some(digits) = own.get_mut(slot) else { return };
        if digits.is_empty() {
            digits.resize(1 << width, (0, 0));
        }
        let digit = usize::try_from(bits >> shift & ((1 << width) - 1)).unwrap_or(0);
        if let Some((n, longer)) = digits.get_mut(digit) {
            *n += 1;
            *longer += u64::from(bits & ((1 << shift) - 1) != 0);
        }
    };
    let mut total = new();
    for own in pass(sides, blocks, wanted, new, each) {
        for (sum, digits) in total.iter_mut().zip(own) {
            if sum.is_empty() {
                *sum = digits;
                continue;
            }
            for ((n, longer), (more, bits)) in sum.iter_mut().zip(digits) {
                *n += more;
                *longer += bits;
            }
        }
    }
    total
}

/// The values in question, sorted: the last step where few are left.
fn sorted(
    sides: (&View<'_>, &View<'_>),
    blocks: Blocks,
    wanted: &Wanted,
    open: &mut [Open; 5],
) -> Option<()> {
    let new = || vec![Vec::new(); wanted.prefixes.len()];
    let each = |own: &mut Vec<Vec<u64>>, slot: usize, bits: u64| {
        if let Some(list) = own.get_mut(slot) {
            list.push(bits);
        }
    };
    let mut total = new();
    for own in pass(sides, blocks, wanted, new, each) {
        for (all, list) in total.iter_mut().zip(own) {
            all.extend(list);
        }
    }
    total.iter_mut().for_each(|list| list.sort_unstable());
    for one in open.iter_mut().filter(|one| one.value.is_none()) {
        let slot = wanted.prefixes.iter().position(|prefix| *prefix == one.prefix)?;
        let at = usize::try_from(one.rank.checked_sub(1)?).ok()?;
        one.value = Some(*total.get(slot)?.get(at)?);
    }
    Some(())
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
        let ranks = [1, 50_002, 90_003, 99_999, 100_003];
        let expected = ranks.map(|rank| sorted[rank as usize - 1]);
        let mut histogram = Histogram::narrow();
        sorted.iter().for_each(|value| histogram.one(*value));
        histogram.join(Histogram::narrow());
        let blocks = Blocks::of(n);
        for sorting in [0, 100, 1 << 20] {
            let found = select((&a, &b), blocks, &mut histogram, ranks, sorting).unwrap();
            assert_eq!(found.map(f64::to_bits), expected.map(f64::to_bits), "{sorting}");
        }
    }
}
