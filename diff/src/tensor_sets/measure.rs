//! One pass over a pair: what is equal, what is not finite, the figures that verdicts rest on, and with them what the details are made
//! of. Blocks of equal bytes are never converted; only where another block differs are their norms taken, in a pass of their own.

use lockstep_traces::tensor_files::Element;

use super::blocks::{Blocks, Buffers, Decoded, shared};
use super::decode::{non_finite, ranks, same_whole, values};
use super::detail::{Details, tallied};
use super::report::Figures;
use super::view::View;
use crate::tensors::block::{Sums, Wide, compare_block};
use crate::tensors::tally::Tally;

/// What is wanted besides the figures of verdicts.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Wish {
    /// The details are counted.
    pub(super) detail: bool,
    /// `(rtol, atol)` of a tolerance by element.
    pub(super) bound: Option<(f64, f64)>,
}

/// What one block gave.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Block {
    /// None where both sides have the same bytes in one element type.
    pub(super) sums: Option<Sums>,
    /// Sum of `|left - right| / |left|`.
    pub(super) relative: f64,
    left: (u64, u64),
    right: (u64, u64),
}

/// A thread at work.
#[derive(Debug, Default)]
struct Worker {
    buffers: Buffers,
    decoded: Decoded,
    tally: Option<Tally>,
    found: Vec<(usize, Block)>,
}

/// Two views of one shape.
#[derive(Debug, Clone, Copy)]
struct Sides<'s, 'a> {
    left: &'s View<'a>,
    right: &'s View<'a>,
    /// In one element type.
    same: bool,
    /// Where there is a vector form for both.
    wide: Option<Wide>,
    blocks: Blocks,
    wish: Wish,
}

/// Measures two views of one shape; with details where they are wished for and something differs.
pub(super) fn measure(left: &View<'_>, right: &View<'_>, wish: Wish) -> (Figures, Option<Details>) {
    let same = left.element == right.element;
    let wide = left.element.dtype().filter(|_| same).and_then(Wide::of);
    let blocks = Blocks::of(left.elements());
    let sides = Sides { left, right, same, wide, blocks, wish };
    let (mut found, mut tally) = sides.look();
    let differ = found.iter().filter_map(|block| block.sums).any(|sums| sums.different > 0);
    if differ {
        let (finite, nonzero) = sides.equal_blocks(&mut found);
        if let Some(tally) = &mut tally {
            tally.equal(finite, nonzero);
        }
    }
    let (mut total, mut figures) =
        (Sums::default(), Figures { elements: left.elements() as u64, ..Figures::default() });
    for (at, block) in found.iter().enumerate() {
        figures.nan_left += block.left.0;
        figures.inf_left += block.left.1;
        figures.nan_right += block.right.0;
        figures.inf_right += block.right.1;
        total.join(&block.sums.unwrap_or_default(), blocks.start(at) as u64);
    }
    finish(&mut figures, &total, same, left);
    let details = tally.filter(|_| differ).map(|tally| Details::new(tally, &found, blocks));
    (figures, details)
}

impl Sides<'_, '_> {
    /// Every block, in order, and what was counted of those that differ.
    fn look(&self) -> (Vec<Block>, Option<Tally>) {
        let workers = shared(self.blocks.count(), Worker::default, |worker, at| {
            let block = self.block(worker, at);
            worker.found.push((at, block));
        });
        let mut found = vec![Block::default(); self.blocks.count()];
        let mut tally: Option<Tally> = None;
        for worker in workers {
            for (at, block) in worker.found {
                if let Some(slot) = found.get_mut(at) {
                    *slot = block;
                }
            }
            match (&mut tally, worker.tally) {
                (Some(all), Some(own)) => all.join(own),
                (None, own) => tally = own,
                (Some(_), None) => {}
            }
        }
        (found, tally)
    }

    fn block(&self, worker: &mut Worker, at: usize) -> Block {
        let (l, r) = self.blocks.bytes(at, (self.left, self.right), &mut worker.buffers);
        if self.same && l == r {
            let found = non_finite(self.left.element, l);
            return Block { left: found, right: found, ..Block::default() };
        }
        let new = || Tally::new(self.wish.bound, self.wide.is_some());
        let tally = self.wish.detail.then(|| worker.tally.get_or_insert_with(new));
        let Some(wide) = self.wide else {
            return self.decoded(&mut worker.decoded, (l, r), tally);
        };
        let found = wide.compare(l, r, tally);
        let count =
            |bytes| if found.finite { (0, 0) } else { non_finite(self.left.element, bytes) };
        let (left, right) = (count(l), count(r));
        Block { sums: Some(found.sums), relative: found.relative, left, right }
    }

    /// A block in types without a vector form, or in two.
    fn decoded(
        &self,
        decoded: &mut Decoded,
        (l, r): (&[u8], &[u8]),
        tally: Option<&mut Tally>,
    ) -> Block {
        let dtype = self.left.element.dtype().filter(|_| self.same);
        values(self.left.element, l, &mut decoded.left);
        values(self.right.element, r, &mut decoded.right);
        let ranked = self.same.then(|| {
            ranks(self.left.element, l, &mut decoded.left_ranks);
            ranks(self.right.element, r, &mut decoded.right_ranks);
            (decoded.left_ranks.as_slice(), decoded.right_ranks.as_slice())
        });
        let sums = match dtype {
            Some(dtype) => compare_block(dtype, l, r),
            None => {
                let (left, right) = (self.left.element, self.right.element);
                let long = |element| matches!(element, Element::I64 | Element::U64);
                let rounded = !self.same && (long(left) || long(right));
                let same = |at, value| !rounded || same_whole((left, l), (right, r), at, value);
                plain(&decoded.left, &decoded.right, ranked, same)
            }
        };
        let relative =
            tally.map_or(0.0, |tally| tallied(&decoded.left, &decoded.right, ranked, tally));
        Block {
            sums: Some(sums),
            relative,
            left: non_finite(self.left.element, l),
            right: non_finite(self.right.element, r),
        }
    }

    /// Norms of the equal blocks, which are wanted where another block differs; and how many of their values are finite, and not 0.
    fn equal_blocks(&self, found: &mut [Block]) -> (u64, u64) {
        let equal: Vec<usize> = (0..found.len())
            .filter(|at| found.get(*at).is_some_and(|b| b.sums.is_none()))
            .collect();
        let workers = shared(
            equal.len(),
            || (Buffers::default(), Vec::new(), Vec::new()),
            |(buffers, decoded, out), index| {
                let Some(at) = equal.get(index) else { return };
                let (start, length) = (self.blocks.start(*at), self.blocks.length(*at));
                let bytes = self.left.block(start, length, &mut buffers.left);
                out.push((*at, of_one(self.left.element, bytes, decoded)));
            },
        );
        let (mut finite, mut nonzero) = (0, 0);
        for (at, (square, known, not_zero)) in workers.into_iter().flat_map(|(.., out)| out) {
            finite += known;
            nonzero += not_zero;
            if let Some(block) = found.get_mut(at) {
                let both = Sums { square_left: square, square_right: square, ..Sums::default() };
                block.sums = Some(both);
            }
        }
        (finite, nonzero)
    }
}

/// Sum of the squares of the finite values of a block, how many these are, and how many of them are not 0.
fn of_one(element: Element, bytes: &[u8], buffer: &mut Vec<f64>) -> (f64, u64, u64) {
    if let Some(wide) = element.dtype().and_then(Wide::of) {
        return wide.shared(bytes);
    }
    values(element, bytes, buffer);
    let known = || buffer.iter().filter(|value| value.is_finite());
    let square = known().map(|value| value * value).sum();
    (square, known().count() as u64, known().filter(|value| value.abs() > 0.0).count() as u64)
}

/// Figures of decoded blocks; ranks where both sides have one element type. `same` says whether elements of one f64 value are equal.
fn plain(
    left: &[f64],
    right: &[f64],
    ranked: Option<(&[i64], &[i64])>,
    same: impl Fn(usize, f64) -> bool,
) -> Sums {
    let mut sums = Sums::default();
    for (at, (&a, &b)) in left.iter().zip(right).enumerate() {
        if a.is_finite() {
            sums.square_left += a * a;
        }
        if b.is_finite() {
            sums.square_right += b * b;
        }
        let rank = ranked.and_then(|(l, r)| Some((*l.get(at)?, *r.get(at)?)));
        let equal = (a.to_bits() == b.to_bits() && (rank.is_some() || same(at, a)))
            || (a.is_nan() && b.is_nan())
            || (rank.is_none() && a - b == 0.0 && same(at, a));
        if equal && rank.is_none_or(|(l, r)| l == r) {
            continue;
        }
        sums.different += 1;
        sums.first = sums.first.or(Some(at as u64));
        if !(a.is_finite() && b.is_finite()) {
            sums.non_finite += 1;
            continue;
        }
        sums.finite += 1;
        let abs = (a - b).abs();
        sums.max_abs = sums.max_abs.max(abs);
        sums.sum_abs += abs;
        sums.square_diff += abs * abs;
        if a.abs() > 0.0 {
            sums.max_rel = sums.max_rel.max(abs / a.abs());
        }
        sums.max_ulp = sums.max_ulp.max(rank.map_or(0, |(l, r)| l.abs_diff(r)));
    }
    sums
}

#[expect(clippy::cast_precision_loss, reason = "counts are far below 2^53")]
fn finish(figures: &mut Figures, sums: &Sums, same: bool, left: &View<'_>) {
    figures.equal = figures.elements - sums.different;
    figures.non_finite = sums.non_finite;
    let infinite = |value: f64| value.is_infinite();
    if sums.different > 0 {
        let at = sums.first.and_then(|first| usize::try_from(first).ok()).unwrap_or(0);
        figures.first =
            Some(super::view::unravel(at, &left.axes).into_iter().map(|at| at as u64).collect());
    }
    if figures.elements == 0 || (sums.different > 0 && sums.finite == 0) {
        return;
    }
    let finite_pairs = (figures.elements - sums.non_finite) as f64;
    figures.max_abs = Some(sums.max_abs);
    figures.mean_abs = Some(sums.sum_abs / finite_pairs);
    figures.rmse = Some((sums.square_diff / finite_pairs).sqrt());
    figures.max_rel = Some(sums.max_rel).filter(|max| max.is_finite());
    figures.max_ulp = same.then_some(sums.max_ulp);
    let (l, r, d) = (sums.square_left, sums.square_right, sums.square_diff);
    if sums.different == 0 {
        (figures.relative_l2, figures.deepgemm) = (Some(0.0), Some(0.0));
        return;
    }
    if sums.non_finite > 0 || infinite(l) || infinite(r) || infinite(d) {
        return;
    }
    figures.relative_l2 = (l > 0.0).then(|| (d / l).sqrt());
    figures.deepgemm = (l + r > 0.0).then(|| d / (l + r));
    figures.cosine = (l > 0.0 && r > 0.0).then(|| (l + r - d) / (2.0 * l.sqrt() * r.sqrt()));
}
