//! What is counted of a pair that differs, free of order: distances by class, differences by their leading bits.

use std::collections::BTreeMap;
use std::ops::Range;

/// Bits of an f64 pattern behind those that make up a difference's class: the exponent and the first seven bits of the fraction are the
/// class (the sign is always 0).
pub(crate) const SHIFT: u32 = 45;
/// Elements that are counted at a time.
pub(crate) const TILE: usize = 256;
/// Tables of one histogram. Neighbours often fall into one class; each counts in a table of its own, so that no addition waits for the
/// one before it.
const TABLES: usize = 4;
/// The same of differences that are values of f32.
const NEAR: usize = 8;
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
    /// The same of differences that are values of f32, by [`slot`].
    near: Vec<[u32; NEAR]>,
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
        let near = vec![[0; NEAR]; 1 << 16];
        Self { range, counts, near, added: 0, settled: BTreeMap::new() }
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

    /// Counts a tile of differences that are 0 or normal values of f32.
    #[inline(always)]
    pub(crate) fn near(&mut self, differences: &[f32; TILE]) {
        self.room();
        let Some(counts) = self.near.first_chunk_mut::<{ 1 << 16 }>() else { return };
        let mut slots = [0_u16; TILE];
        for (slot, difference) in slots.iter_mut().zip(differences) {
            *slot = self::slot(difference.to_bits());
        }
        for eight in slots.as_chunks::<NEAR>().0 {
            for table in 0..NEAR {
                counts[usize::from(eight[table])][table] += 1;
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
        self.settle_near();
        self.added = 0;
    }

    fn settle_near(&mut self) {
        for (slot, counts) in self.near.iter_mut().enumerate() {
            let n: u64 = counts.iter().map(|n| u64::from(*n)).sum();
            if n > 0 {
                *counts = [0; NEAR];
                let (class, longer) = near_class(slot);
                let (all, long) = self.settled.entry(class).or_default();
                *all += n;
                *long += if longer { n } else { 0 };
            }
        }
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

/// Where a difference that is 0 or a normal value of f32 is counted: its class, the last seven bits turned by those of the exponent, and a
/// bit that says whether others follow. Unturned, the powers of two would lie 4096 bytes apart and drive each other out of the cache.
#[inline(always)]
const fn slot(bits: u32) -> u16 {
    let longer = if bits & 0xffff == 0 { 0 } else { 0x8000 };
    ((bits >> 16 ^ bits >> 23 & 0x7f) | longer) as u16
}

/// The class that is counted in a slot, and whether other bits follow.
const fn near_class(slot: usize) -> (usize, bool) {
    let class = (slot ^ slot >> 7 & 0x7f) & 0x7fff;
    // The exponents of an f64 start 896 lower.
    let class = if class == 0 { 0 } else { class + (896 << (52 - SHIFT)) };
    (class, slot > 0x7fff)
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
    fn a_slot_is_that_of_the_class_of_the_f64() {
        let values =
            [0.0, f32::MIN_POSITIVE, 1.0, 1.0 + 2f32.powi(-20), 3.0, 0.1, 2f32.powi(-7), f32::MAX];
        for value in values {
            let bits = f64::from(value).to_bits();
            let class = usize::try_from(bits >> SHIFT).unwrap();
            let found = near_class(usize::from(slot(value.to_bits())));
            assert_eq!(found, (class, bits << (64 - SHIFT) != 0), "{value}");
        }
    }

    #[test]
    fn tiles_of_f32_are_counted_as_the_same_ones_of_f64() {
        let tile: [f32; TILE] = std::array::from_fn(|at| at as f32 * 0.01);
        let (mut near, mut far) = (Histogram::narrow(), Histogram::narrow());
        near.near(&tile);
        far.tile(&tile.map(f64::from));
        assert!((1..=TILE as u64 + 1).all(|rank| near.rank(rank) == far.rank(rank)));
    }

    #[test]
    fn a_rank_is_found_in_its_class_whichever_way_it_was_counted() {
        // 100 of 0, 140 of 2^-149, 16 of 1 + 2^-20, whose last bit lies behind the class.
        let least = f64::from(f32::from_bits(1));
        let value = |at: usize| match at {
            0..100 => 0.0,
            100..240 => least,
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
            assert_eq!(histogram.rank(100), Some((0, 100, 100, false)));
            assert_eq!(histogram.rank(101), Some((class(least), 1, 140, false)));
            assert_eq!(histogram.rank(256), Some((class(1.0), 16, 16, true)));
            assert_eq!(histogram.rank(257), None);
        }
    }
}
