//! Slices of an axis that lie elsewhere on the other side: which go where, in runs, and what the pattern is called.

use std::collections::BTreeMap;

use super::decode::value_at;
use super::hints::Sampler;
use super::report::AxisRun;
use super::view::View;

/// Slices of an axis at most.
const SLICES: usize = 1 << 14;
/// Slices at most where nothing is bit-equal and neighbours are looked for one by one.
const NEAR: usize = 512;
/// Places in a slice by which it is recognised.
const PLACES: usize = 32;

/// Where slices moved.
#[derive(Debug)]
pub(super) struct Moves {
    /// `moved[i]` is the target slice that equals baseline slice `i`, where it lies elsewhere.
    pub(super) moved: Vec<Option<usize>>,
    pub(super) runs: Vec<AxisRun>,
}

/// Finds moved slices of `axis`; `None` where fewer than half of the slices out of place are found again.
pub(super) fn find(
    left: &View<'_>,
    right: &View<'_>,
    axis: usize,
    sampler: &mut Sampler,
) -> Option<Moves> {
    let size = left.axes.get(axis)?.size;
    if !(2..=SLICES).contains(&size) {
        return None;
    }
    let rest = left.elements() / size;
    let places: Vec<Vec<usize>> = (0..PLACES.min(rest))
        .map(|at| {
            let flat = if rest <= PLACES { at } else { sampler.below(rest) };
            let mut flat = flat;
            let mut index = vec![0; left.axes.len()];
            for (other, (slot, one)) in index.iter_mut().zip(&left.axes).enumerate().rev() {
                if other != axis {
                    *slot = flat % one.size.max(1);
                    flat /= one.size.max(1);
                }
            }
            index
        })
        .collect();
    let signature = |view: &View<'_>, slice: usize| -> Vec<f64> {
        let mut values = Vec::with_capacity(places.len());
        for place in &places {
            let mut index = place.clone();
            if let Some(slot) = index.get_mut(axis) {
                *slot = slice;
            }
            values.push(value_at(view, &index));
        }
        values
    };
    let lefts: Vec<Vec<f64>> = (0..size).map(|slice| signature(left, slice)).collect();
    let rights: Vec<Vec<f64>> = (0..size).map(|slice| signature(right, slice)).collect();
    let moved = exact(&lefts, &rights).or_else(|| near(&lefts, &rights))?;
    let runs = runs(&moved);
    Some(Moves { moved, runs })
}

fn bits(signature: &[f64]) -> Vec<u64> {
    signature.iter().map(|value| value.to_bits()).collect()
}

/// At least two slices moved, and at least half of those that are out of place.
fn enough(moved: &[Option<usize>], out_of_place: usize) -> bool {
    let found = moved.iter().flatten().count();
    found >= 2 && 2 * found >= out_of_place
}

fn exact(lefts: &[Vec<f64>], rights: &[Vec<f64>]) -> Option<Vec<Option<usize>>> {
    let mut places: BTreeMap<Vec<u64>, Vec<usize>> = BTreeMap::new();
    for (at, right) in rights.iter().enumerate() {
        places.entry(bits(right)).or_default().push(at);
    }
    let mut out_of_place = 0;
    let moved: Vec<Option<usize>> = lefts
        .iter()
        .zip(rights)
        .map(|(left, right)| {
            let key = bits(left);
            if key == bits(right) {
                return None;
            }
            out_of_place += 1;
            // A slice that occurs twice says nothing about where it went.
            places
                .get(&key)
                .filter(|found| found.len() == 1)
                .and_then(|found| found.first().copied())
        })
        .collect();
    enough(&moved, out_of_place).then_some(moved)
}

fn near(lefts: &[Vec<f64>], rights: &[Vec<f64>]) -> Option<Vec<Option<usize>>> {
    if lefts.len() > NEAR {
        return None;
    }
    let distance =
        |a: &[f64], b: &[f64]| -> f64 { a.iter().zip(b).map(|(a, b)| (a - b) * (a - b)).sum() };
    let mut out_of_place = 0;
    let moved: Vec<Option<usize>> = lefts
        .iter()
        .enumerate()
        .map(|(at, left)| {
            let norm: f64 = left.iter().map(|value| value * value).sum();
            let mut ranked: Vec<(f64, usize)> = rights
                .iter()
                .enumerate()
                .map(|(other, right)| (distance(left, right), other))
                .collect();
            ranked.sort_by(|a, b| a.0.total_cmp(&b.0));
            let (first, second) = (ranked.first().copied()?, ranked.get(1).copied()?);
            if first.1 == at {
                return None;
            }
            out_of_place += 1;
            (first.0 < 0.01 * norm && first.0 < 0.1 * second.0).then_some(first.1)
        })
        .collect();
    enough(&moved, out_of_place).then_some(moved)
}

/// Neighbouring slices that moved by one distance.
fn runs(moved: &[Option<usize>]) -> Vec<AxisRun> {
    let mut runs: Vec<AxisRun> = Vec::new();
    for (left, right) in
        moved.iter().enumerate().filter_map(|(left, right)| Some((left as u64, (*right)? as u64)))
    {
        match runs.last_mut() {
            Some(run) if run.left + run.length == left && run.right + run.length == right => {
                run.length += 1;
            }
            _ => runs.push(AxisRun { left, right, length: 1 }),
        }
    }
    runs
}

/// The word for a pattern of runs, and one line.
pub(super) fn describe(axis: usize, size: usize, moves: &Moves) -> (&'static str, String) {
    let found: u64 = moves.runs.iter().map(|run| run.length).sum();
    let span = |at: u64, run: &AxisRun| {
        if run.length == 1 { format!("{at}") } else { format!("{at}..{}", at + run.length) }
    };
    if let [a, b] = moves.runs.as_slice()
        && a.left == b.right
        && b.left == a.right
        && a.length == b.length
    {
        let text = format!(
            "slices {} and {} of axis {axis} are exchanged",
            span(a.left, a),
            span(b.left, b)
        );
        return ("runs_swapped", text);
    }
    let shift = |run: &AxisRun| run.right.cast_signed() - run.left.cast_signed();
    if let Some(first) = moves.runs.first()
        && moves.runs.iter().all(|run| shift(run) == shift(first))
    {
        let by = shift(first);
        let text = format!(
            "{found} of {size} slices of axis {axis} lie {} {} on the target's side",
            by.abs(),
            if by > 0 { "later" } else { "earlier" }
        );
        return ("axis_shifted", text);
    }
    let listed: Vec<String> = moves
        .runs
        .iter()
        .take(6)
        .map(|run| format!("{} at {}", span(run.left, run), span(run.right, run)))
        .collect();
    let more = if moves.runs.len() > 6 { ", .." } else { "" };
    let text = format!(
        "{found} of {size} slices of axis {axis} lie elsewhere on the target's side: {}{more}",
        listed.join(", ")
    );
    ("axis_reordered", text)
}
