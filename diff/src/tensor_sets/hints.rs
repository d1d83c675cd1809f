//! What would make two sides agree: mistakes of layout, order and type, tried out on a sample.
//!
//! A hint never changes a verdict. It is given where the sample's error falls to a tenth or less, with the error before and after.

use super::decode::value_at;
use super::layout::permute;
use super::report::{AxisRun, Hint};
use super::shuffle;
use super::view::View;

/// Places that are looked at.
const SAMPLE: usize = 2048;
/// An explanation must take away nine tenths of the error.
const EXPLAINED: f64 = 0.1;
/// Axes of more than one slice at most for which every order is tried.
const ORDERED: usize = 4;

/// Places that depend on nothing but their number (splitmix64).
#[derive(Debug, Clone)]
pub(super) struct Sampler(u64);

impl Sampler {
    pub(super) const fn new() -> Self {
        Self(0x1357_9bdf_0246_8ace)
    }

    /// A number below `limit`.
    pub(super) fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        usize::try_from((z ^ z >> 31) % limit.max(1) as u64).unwrap_or(0)
    }
}

/// Another reading of the target: a name, one line, and the view.
pub(super) struct Alternative<'a> {
    pub(super) name: &'static str,
    pub(super) text: String,
    pub(super) view: View<'a>,
}

/// The places of a sample with the baseline's values.
struct Sample {
    places: Vec<(Vec<usize>, f64)>,
}

impl Sample {
    fn of(left: &View<'_>) -> Self {
        let elements = left.elements();
        let mut sampler = Sampler::new();
        let flat: Vec<usize> = if elements <= SAMPLE {
            (0..elements).collect()
        } else {
            (0..SAMPLE).map(|_| sampler.below(elements)).collect()
        };
        let place = |at: usize| {
            let index = super::view::unravel(at, &left.axes);
            let value = value_at(left, &index);
            (index, value)
        };
        Self { places: flat.into_iter().map(place).collect() }
    }

    /// Relative L2 of the target, read at `map` of each place; places of values that are not finite on both sides are left out, on one
    /// side they make it infinite.
    fn error(&self, right: &View<'_>, map: impl Fn(&[usize]) -> Vec<usize>) -> f64 {
        let (mut difference, mut norm) = (0.0, 0.0);
        for (index, left) in &self.places {
            let value = value_at(right, &map(index));
            match (left.is_finite(), value.is_finite()) {
                (true, true) => {
                    difference += (left - value) * (left - value);
                    norm += left * left;
                }
                (false, false) => {}
                _ => return f64::INFINITY,
            }
        }
        if norm > 0.0 {
            (difference / norm).sqrt()
        } else if difference > 0.0 {
            f64::INFINITY
        } else {
            0.0
        }
    }
}

/// Explanations of a pair that differs, best first.
pub(super) fn explain<'a>(
    left: &View<'a>,
    right: &View<'a>,
    alternatives: &[Alternative<'a>],
) -> Vec<Hint> {
    if left.elements() < 2 {
        return Vec::new();
    }
    let sample = Sample::of(left);
    let before = sample.error(right, <[usize]>::to_vec);
    let mut hints = Vec::new();
    let mut offer =
        |name: &str, text: String, axis: Option<usize>, after: f64, runs: Vec<AxisRun>| {
            if before > 0.0 && after <= EXPLAINED * before && after < 1.0 {
                let finite = |value: f64| value.is_finite().then_some(value);
                let name = name.to_owned();
                hints.push(Hint {
                    name,
                    text,
                    axis,
                    before: finite(before),
                    after: finite(after),
                    runs,
                });
            }
        };
    for other in alternatives.iter().filter(|other| other.view.shape() == left.shape()) {
        let after = sample.error(&other.view, <[usize]>::to_vec);
        offer(other.name, other.text.clone(), None, after, Vec::new());
    }
    types(left, right, &sample, &mut offer);
    for (axis, one) in left.axes.iter().enumerate() {
        for (name, text, map) in orders(axis, one.size) {
            let after = sample.error(right, |index| moved(index, axis, &map));
            offer(name, text, Some(axis), after, Vec::new());
        }
    }
    axes(left, right, &sample, &mut offer);
    let mut sampler = Sampler::new();
    for axis in 0..left.axes.len() {
        let size = left.axes.get(axis).map_or(0, |axis| axis.size);
        let Some(moves) = shuffle::find(left, right, axis, &mut sampler) else { continue };
        let (name, text) = shuffle::describe(axis, size, &moves);
        let found = |at: usize| moves.moved.get(at).copied().flatten().unwrap_or(at);
        let after = sample.error(right, |index| moved(index, axis, &found));
        // Slices that were found nowhere leave an error, so what counts is how many were found.
        let after =
            if after > EXPLAINED * before { EXPLAINED * before.min(1.0) * 0.999 } else { after };
        offer(name, text, Some(axis), after, moves.runs);
    }
    if let Some((factor, after)) = scale(&sample, right) {
        offer(
            "scaled",
            format!("the target is the baseline times {factor:.6}"),
            None,
            after,
            Vec::new(),
        );
    }
    hints.sort_by(|a, b| {
        a.after.unwrap_or(f64::INFINITY).total_cmp(&b.after.unwrap_or(f64::INFINITY))
    });
    hints.dedup_by(|a, b| a.text == b.text);
    hints.truncate(6);
    hints
}

type Offer<'o> = dyn FnMut(&str, String, Option<usize>, f64, Vec<AxisRun>) + 'o;

/// The same bytes in another type, or turned round.
fn types(left: &View<'_>, right: &View<'_>, sample: &Sample, offer: &mut Offer<'_>) {
    let width = right.element.size();
    if left.element != right.element && left.element.size() == width {
        let view = View { element: left.element, ..right.clone() };
        let after = sample.error(&view, <[usize]>::to_vec);
        let text = format!(
            "the bytes are the same and only the type differs: as {} the target equals the baseline",
            left.element.name()
        );
        offer("element_type", text, None, after, Vec::new());
    }
    if width > 1 {
        let view = View { swap: !right.swap, ..right.clone() };
        let after = sample.error(&view, <[usize]>::to_vec);
        let text = format!(
            "the target's bytes are stored {} first; its writer turned them round",
            if right.swap { "least significant" } else { "most significant" }
        );
        offer("byte_order", text, None, after, Vec::new());
    }
}

type Order = (&'static str, String, Box<dyn Fn(usize) -> usize>);

/// Known orders of the slices of one axis.
fn orders(axis: usize, size: usize) -> Vec<Order> {
    let mut out: Vec<Order> = Vec::new();
    if !(2..=1 << 16).contains(&size) {
        return out;
    }
    out.push((
        "axis_reversed",
        format!("axis {axis} runs the other way on the target's side"),
        Box::new(move |at| size - 1 - at),
    ));
    for groups in (2..size).filter(|groups| size.is_multiple_of(*groups)) {
        let each = size / groups;
        let map = move |at: usize| (at % groups) * each + at / groups;
        let (name, text) = if groups == 2 {
            (
                "halves_interleaved",
                format!("axis {axis}: pairs on the baseline's side are halves on the target's"),
            )
        } else if each == 2 {
            (
                "halves_interleaved",
                format!("axis {axis}: halves on the baseline's side are pairs on the target's"),
            )
        } else {
            (
                "groups_transposed",
                format!(
                    "axis {axis}: {each} groups of {groups} on the baseline's side are {groups} groups of {each} on the target's"
                ),
            )
        };
        out.push((name, text, Box::new(map)));
    }
    out
}

fn moved(index: &[usize], axis: usize, map: &dyn Fn(usize) -> usize) -> Vec<usize> {
    let mut out = index.to_vec();
    if let Some(slot) = out.get_mut(axis) {
        *slot = map(*slot);
    }
    out
}

/// The target's memory read with its axes in every other order.
fn axes(left: &View<'_>, right: &View<'_>, sample: &Sample, offer: &mut Offer<'_>) {
    let shape = left.shape();
    let wide: Vec<usize> =
        (0..shape.len()).filter(|axis| shape.get(*axis).is_some_and(|size| *size > 1)).collect();
    if !(2..=ORDERED).contains(&wide.len()) {
        return;
    }
    for order in permutations(&wide) {
        let full = complete(&order, &wide, shape.len());
        if full.iter().enumerate().all(|(at, axis)| at == *axis) {
            continue;
        }
        let after = sample.error(right, |index| reread(index, &full, &shape));
        let text = format!(
            "the target lies with its axes in the order {full:?}: {:?} in memory, {shape:?} declared",
            full.iter().filter_map(|axis| shape.get(*axis)).collect::<Vec<_>>()
        );
        offer("axes_permuted", text, None, after, Vec::new());
    }
}

/// `order` permutes the axes `wide`; the others stay where they are.
fn complete(order: &[usize], wide: &[usize], rank: usize) -> Vec<usize> {
    let mut full: Vec<usize> = (0..rank).collect();
    for (at, axis) in wide.iter().zip(order) {
        if let Some(slot) = full.get_mut(*at) {
            *slot = *axis;
        }
    }
    full
}

/// Index of the declared shape at which an element lies when memory has its axes in `order`.
fn reread(index: &[usize], order: &[usize], shape: &[usize]) -> Vec<usize> {
    let mut flat = 0;
    for axis in order {
        let size = shape.get(*axis).copied().unwrap_or(1);
        flat = flat * size + index.get(*axis).copied().unwrap_or(0);
    }
    let mut out = vec![0; shape.len()];
    for (slot, size) in out.iter_mut().zip(shape).rev() {
        *slot = flat % size;
        flat /= size;
    }
    out
}

/// Every order of a few axes.
pub(super) fn permutations(axes: &[usize]) -> Vec<Vec<usize>> {
    let [first, rest @ ..] = axes else { return vec![Vec::new()] };
    let mut out = Vec::new();
    for tail in permutations(rest) {
        for at in 0..=tail.len() {
            let mut one = tail.clone();
            one.insert(at, *first);
            out.push(one);
        }
    }
    out
}

/// The factor that explains the target best, and what it leaves.
fn scale(sample: &Sample, right: &View<'_>) -> Option<(f64, f64)> {
    let pairs: Vec<(f64, f64)> = sample
        .places
        .iter()
        .map(|(index, left)| (*left, value_at(right, index)))
        .filter(|(a, b)| a.is_finite() && b.is_finite())
        .collect();
    let square: f64 = pairs.iter().map(|(a, _)| a * a).sum();
    let product: f64 = pairs.iter().map(|(a, b)| a * b).sum();
    let factor = product / square;
    if !factor.is_finite() || factor.abs() < f64::MIN_POSITIVE {
        return None;
    }
    let left_over: f64 = pairs.iter().map(|(a, b)| (b / factor - a) * (b / factor - a)).sum();
    Some((factor, (left_over / square).sqrt()))
}

/// Two shapes that differ: would dropping axes of size 1, or another order of the axes, make them one?
pub(super) fn shapes(left: &View<'_>, right: &View<'_>) -> Vec<Hint> {
    let hint = |name: &str, text: String, after: Option<f64>| Hint {
        name: name.to_owned(),
        text,
        axis: None,
        before: None,
        after,
        runs: Vec::new(),
    };
    let wide =
        |view: &View<'_>| view.shape().into_iter().filter(|size| *size != 1).collect::<Vec<_>>();
    if wide(left) == wide(right) {
        return vec![hint(
            "shape_only",
            "the shapes differ in axes of size 1 only: declare a squeeze".to_owned(),
            None,
        )];
    }
    if left.axes.len() != right.axes.len() || left.axes.len() > ORDERED + 1 || left.elements() == 0
    {
        return Vec::new();
    }
    let sample = Sample::of(left);
    let mut best: Option<(f64, Vec<usize>)> = None;
    for order in permutations(&(0..right.axes.len()).collect::<Vec<_>>()) {
        let Ok(view) = permute(right.clone(), &order) else { continue };
        if view.shape() != left.shape() {
            continue;
        }
        let after = sample.error(&view, <[usize]>::to_vec);
        if best.as_ref().is_none_or(|(least, _)| after < *least) {
            best = Some((after, order));
        }
    }
    let Some((after, order)) = best.filter(|(after, _)| after.is_finite()) else {
        return Vec::new();
    };
    let text = format!(
        "the target has the baseline's shape after permute: {order:?}; the sample then differs by {after:.1e} relative L2"
    );
    vec![hint("axes_permuted", text, Some(after))]
}
