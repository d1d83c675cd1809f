//! Sums, means and maxima over rows of scores, in f32 and in a fixed order.

use super::phase::widen;
use super::trig::LANES;

/// Sum in eight lanes.
pub(super) fn sum(values: &[f32], term: impl Fn(f32) -> f32) -> f32 {
    let (chunks, rest) = values.as_chunks::<LANES>();
    let mut lanes = [0.0_f32; LANES];
    for chunk in chunks {
        for lane in 0..LANES {
            lanes[lane] += term(chunk[lane]);
        }
    }
    for (lane, value) in lanes.iter_mut().zip(rest) {
        *lane += term(*value);
    }
    lanes.iter().sum()
}

/// Column maxima; a NaN wins, so that it is seen later on. Empty without rows.
pub(super) fn maximum<'a>(mut rows: impl Iterator<Item = &'a Vec<f32>>) -> Vec<f32> {
    let mut best = rows.next().cloned().unwrap_or_default();
    for row in rows {
        for (best, value) in best.iter_mut().zip(row) {
            if *value > *best || value.is_nan() {
                *best = *value;
            }
        }
    }
    best
}

fn total<'a>(mut rows: impl Iterator<Item = &'a Vec<f32>>) -> (Vec<f32>, usize) {
    let mut sum = rows.next().cloned().unwrap_or_default();
    let mut count = 1;
    for row in rows {
        count += 1;
        for (sum, value) in sum.iter_mut().zip(row) {
            *sum += value;
        }
    }
    (sum, count)
}

/// Column means: f32 sum in order, divided by the count. Empty without rows.
pub(super) fn mean<'a>(rows: impl Iterator<Item = &'a Vec<f32>>) -> Vec<f32> {
    let (mut sum, count) = total(rows);
    let count = widen(count);
    sum.iter_mut().for_each(|value| *value /= count);
    sum
}

/// As [`mean`], multiplied by the rounded reciprocal (`trt`).
pub(super) fn reciprocal_mean(rows: &[&Vec<f32>]) -> Vec<f32> {
    let (mut sum, count) = total(rows.iter().copied());
    let reciprocal = 1.0 / widen(count);
    sum.iter_mut().for_each(|value| *value *= reciprocal);
    sum
}
