//! What is counted of a pair that differs, free of order: distances by class, differences by their leading bits.

use std::collections::BTreeMap;
use std::ops::Range;

/// Bits of an f64 pattern behind those that make up a difference's class: the exponent and the first seven bits of the fraction are the
/// class (the sign is always 0).
pub(crate) const SHIFT: u32 = 45;
/// Elements that are counted at a time.
pub(crate) const TILE: usize = 512;
/// Tables of one histogram. Neighbours often fall into one class; each counts in a table of its own, so that no addition waits for the
/// one before it.
const TABLES: usize = 4;
/// Classes of an f64. Most are never touched, and then no memory lies behind them.
const KINDS: usize = 1 << (63 - SHIFT);
/// Classes of the differences between values of f32, but for 0: from 2^-149 up to below 2^129.
const NARROW: Range<usize> = (1023 - 149) << (52 - SHIFT)..(1023 + 129) << (52 - SHIFT);
/// Differences after which the counts are moved out, before one of them could overflow.
const SETTLE: u64 = 1 << 30;

/// How many differences have which leading bits, and whether other bits follow.
#[derive(Debug)]
pub(crate) struct Histogram {
    /// Classes besides 0 that may have been counted.
    range: Range<usize>,
    /// By class: differences without a bit behind the class, then those with one.
    counts: Vec<[u32; TABLES]>,
    added: u64,
    /// Classes that were counted: differences, and how many of them have a bit behind the class.
    settled: BTreeMap<usize, (u64, u64)>,
}

impl Histogram {
    /// For differences of values of f32, f16 and bf16.
    pub(crate) fn narrow() -> Self {
        Self::new(NARROW)
    }

    /// For differences of any f64, counted one by one.
    pub(crate) fn wide() -> Self {
        // No class yet: the ends move apart with the first one.
        Self::new(Range { start: KINDS, end: 0 })
    }

    fn new(range: Range<usize>) -> Self {
        let counts = vec![[0; TABLES]; 2 * KINDS];
        Self { range, counts, added: 0, settled: BTreeMap::new() }
    }

    /// Counts a tile of finite differences.
    #[inline(always)]
    pub(crate) fn tile(&mut self, differences: &[f64; TILE]) {
        self.room();
        let Some(counts) = self.counts.first_chunk_mut::<{ 2 * KINDS }>() else { return };
        let mut behind = 0;
        for difference in differences {
            behind |= difference.to_bits();
        }
        let mut slots = [0_u64; TILE];
        if behind << (64 - SHIFT) == 0 {
            for (slot, difference) in slots.iter_mut().zip(differences) {
                *slot = difference.to_bits() >> SHIFT;
            }
        } else {
            for (slot, difference) in slots.iter_mut().zip(differences) {
                let bits = difference.to_bits();
                let longer = if bits << (64 - SHIFT) == 0 { 0 } else { KINDS as u64 };
                *slot = bits >> SHIFT | longer;
            }
        }
        for four in slots.as_chunks::<TABLES>().0 {
            for table in 0..TABLES {
                counts[four[table] as usize % (2 * KINDS)][table] += 1;
            }
        }
        self.added += TILE as u64;
    }

    /// Counts one finite difference.
    pub(crate) fn one(&mut self, difference: f64) {
        self.room();
        let bits = difference.to_bits();
        let longer = if bits << (64 - SHIFT) == 0 { 0 } else { KINDS };
        let class = usize::try_from(bits >> SHIFT).unwrap_or(0);
        if let Some([first, ..]) = self.counts.get_mut(class | longer) {
            *first += 1;
        }
        if class > 0 {
            self.range = self.range.start.min(class)..self.range.end.max(class + 1);
        }
        self.added += 1;
    }

    /// Counts `n` differences of 0.
    pub(crate) fn zeros(&mut self, n: u64) {
        if n > 0 {
            self.settled.entry(0).or_default().0 += n;
        }
    }

    /// Takes back `n` differences of 0 that filled a tile up.
    pub(crate) fn unpad(&mut self, n: u64) {
        self.settle();
        self.settled.entry(0).or_default().0 -= n;
    }

    #[inline(always)]
    fn room(&mut self) {
        if self.added >= SETTLE {
            self.settle();
        }
    }

    #[cold]
    fn settle(&mut self) {
        if self.added == 0 {
            return;
        }
        let (short, long) = self.counts.split_at_mut(KINDS);
        for class in std::iter::once(0).chain(self.range.clone()) {
            let taken = |counts: &mut [[u32; TABLES]]| {
                let counts = counts.get_mut(class).map(std::mem::take);
                counts.iter().flatten().map(|n| u64::from(*n)).sum::<u64>()
            };
            let (short, long) = (taken(short), taken(long));
            if short + long > 0 {
                let (all, longer) = self.settled.entry(class).or_default();
                *all += short + long;
                *longer += long;
            }
        }
        self.added = 0;
    }

    /// Adds what another one of its kind counted.
    pub(crate) fn join(&mut self, mut other: Self) {
        self.settle();
        other.settle();
        for (class, (more, bits)) in other.settled {
            let (all, longer) = self.settled.entry(class).or_default();
            *all += more;
            *longer += bits;
        }
    }

    /// For the difference of this rank (1-based): its class, its rank among those of the class, how many those are, and whether any
    /// has bits behind the class.
    pub(crate) fn rank(&mut self, rank: u64) -> Option<(u64, u64, u64, bool)> {
        self.settle();
        let mut below = 0;
        for (class, (count, longer)) in &self.settled {
            if below + count >= rank {
                return Some((*class as u64, rank - below, *count, *longer > 0));
            }
            below += count;
        }
        None
    }
}

/// Class of a distance in representable values: 0, 1, 2, 3-4, 5-8, ..., by the power of two that it does not exceed.
pub(crate) const fn class(distance: u64) -> usize {
    if distance == 0 { 0 } else { 65 - (distance - 1).leading_zeros() as usize }
}

/// Classes of distances.
pub(crate) const CLASSES: usize = 66;

/// Counts of elements that are finite on both sides.
#[derive(Debug)]
pub(crate) struct Tally {
    /// Distances by [`class`].
    pub(crate) classes: [u64; CLASSES],
    /// Elements whose left value is not 0.
    pub(crate) relative: u64,
    /// Elements beyond `atol + rtol |left|`, those that differ and are not finite among them.
    pub(crate) beyond: u64,
    /// `(rtol, atol)`.
    pub(crate) bound: Option<(f64, f64)>,
    /// Absolute differences.
    pub(crate) histogram: Histogram,
}

impl Tally {
    pub(crate) fn new(bound: Option<(f64, f64)>, narrow: bool) -> Self {
        let histogram = if narrow { Histogram::narrow() } else { Histogram::wide() };
        Self { classes: [0; CLASSES], relative: 0, beyond: 0, bound, histogram }
    }

    /// Counts one element: its left value, its absolute difference (both finite), its distance.
    pub(crate) fn one(&mut self, left: f64, difference: f64, distance: u64) {
        self.relative += u64::from(left.abs() > 0.0);
        if let Some(slot) = self.classes.get_mut(class(distance)) {
            *slot += 1;
        }
        if let Some((rtol, atol)) = self.bound {
            self.beyond += u64::from(difference > atol + rtol * left.abs());
        }
        self.histogram.one(difference);
    }

    /// Counts `n` equal elements, of which `relative` are not 0.
    pub(crate) fn equal(&mut self, n: u64, relative: u64) {
        let [zero, ..] = &mut self.classes;
        *zero += n;
        self.relative += relative;
        self.histogram.zeros(n);
    }

    /// Adds what another one counted.
    pub(crate) fn join(&mut self, other: Self) {
        for (sum, n) in self.classes.iter_mut().zip(other.classes) {
            *sum += n;
        }
        self.relative += other.relative;
        self.beyond += other.beyond;
        self.histogram.join(other.histogram);
    }

    /// Elements that were counted.
    pub(crate) fn elements(&self) -> u64 {
        self.classes.iter().sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances_fall_into_classes_of_powers_of_two() {
        assert_eq!([0, 1, 2, 3, 4, 5, 8, 9].map(class), [0, 1, 2, 3, 3, 4, 4, 5]);
        assert_eq!(class(u64::MAX), CLASSES - 1);
    }

    #[test]
    fn a_rank_is_found_in_its_class_whichever_way_it_was_counted() {
        // 300 of 0, 200 of 2^-149, 12 of 1 + 2^-20, whose last bit lies behind the class.
        let least = f64::from(f32::from_bits(1));
        let value = |at: usize| match at {
            0..300 => 0.0,
            300..500 => least,
            _ => 1.0 + 2f64.powi(-20),
        };
        let tile: [f64; TILE] = std::array::from_fn(value);
        let (mut tiles, mut ones, mut wide) =
            (Histogram::narrow(), Histogram::narrow(), Histogram::wide());
        tiles.tile(&tile);
        tile.iter().for_each(|value| {
            ones.one(*value);
            wide.one(*value);
        });
        tiles.unpad(4);
        tiles.zeros(4);
        for mut histogram in [tiles, ones, wide] {
            histogram.join(Histogram::wide());
            let class = |value: f64| value.to_bits() >> SHIFT;
            assert_eq!(histogram.rank(300), Some((0, 300, 300, false)));
            assert_eq!(histogram.rank(301), Some((class(least), 1, 200, false)));
            assert_eq!(histogram.rank(512), Some((class(1.0), 12, 12, true)));
            assert_eq!(histogram.rank(513), None);
        }
    }
}
