//! Scales, ticks and the places of labels.

use super::font;
use crate::num::short;

/// A linear or logarithmic scale from values to pixels.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Axis {
    pub(crate) low: f64,
    pub(crate) high: f64,
    pub(crate) from: i32,
    pub(crate) to: i32,
    pub(crate) log: bool,
}

impl Axis {
    /// A linear scale; an empty range is widened by one.
    pub(crate) fn linear(low: f64, high: f64, from: i32, to: i32) -> Self {
        let high = if high > low { high } else { low + 1.0 };
        Self { low, high, from, to, log: false }
    }

    /// A logarithmic scale over whole decades around the range; both ends must be above 0.
    pub(crate) fn log(low: f64, high: f64, from: i32, to: i32) -> Self {
        let bottom = low.log10().floor();
        let top = high.log10().ceil().max(bottom + 1.0);
        Self { low: 10_f64.powf(bottom), high: 10_f64.powf(top), from, to, log: true }
    }

    /// Share of the range, 0 to 1, clamped.
    pub(crate) fn share(&self, value: f64) -> f64 {
        let share = if self.log {
            (value.log10() - self.low.log10()) / (self.high.log10() - self.low.log10())
        } else {
            (value - self.low) / (self.high - self.low)
        };
        share.clamp(0.0, 1.0)
    }

    /// Pixel of a value, clamped to the range.
    pub(crate) fn at(&self, value: f64) -> i32 {
        self.from + (self.share(value) * f64::from(self.to - self.from)).round() as i32
    }

    /// Values worth a label, at most about `count`.
    pub(crate) fn ticks(&self, count: usize) -> Vec<(f64, String)> {
        if self.log { self.decades(count) } else { self.round_values(count) }
    }

    fn decades(&self, count: usize) -> Vec<(f64, String)> {
        let (bottom, top) = (self.low.log10().round() as i32, self.high.log10().round() as i32);
        let stride =
            ((top - bottom) as usize).div_ceil(count.max(1)).max(1).try_into().unwrap_or(1);
        let label = |power: i32| match power {
            0 => "1".to_owned(),
            1 => "10".to_owned(),
            _ => format!("1e{power}"),
        };
        (bottom..=top)
            .filter(|power| (power - bottom) % stride == 0)
            .map(|power| (10_f64.powi(power), label(power)))
            .collect()
    }

    fn round_values(&self, count: usize) -> Vec<(f64, String)> {
        let rough = (self.high - self.low) / count.max(1) as f64;
        let unit = 10_f64.powf(rough.log10().floor());
        let step = [1.0, 2.0, 5.0, 10.0]
            .into_iter()
            .map(|factor| factor * unit)
            .find(|step| *step >= rough * 0.999)
            .unwrap_or(unit * 10.0);
        let first = (self.low / step).ceil();
        (0..=count * 2 + 2)
            .map(|index| (first + index as f64) * step)
            .take_while(|value| *value <= self.high + step * 1e-9)
            .map(|value| (value, short(value, 6)))
            .collect()
    }
}

/// A label that wants to stand at `x`, and the place it got.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Placed {
    pub(crate) index: usize,
    pub(crate) left: i32,
    pub(crate) lane: usize,
}

/// Puts centred labels into lanes so that none overlaps another and none leaves `[low, high]`.
pub(crate) fn place(labels: &[(i32, String)], size: i32, low: i32, high: i32) -> Vec<Placed> {
    const GAP: i32 = 10;
    let mut order: Vec<usize> = (0..labels.len()).collect();
    order.sort_by_key(|index| labels[*index].0);
    let mut ends: Vec<i32> = Vec::new();
    let mut placed = Vec::new();
    for index in order {
        let (x, text) = &labels[index];
        let wide = font::width(text, size);
        let left = (x - wide / 2).min(high - wide).max(low);
        let lane = ends.iter().position(|end| *end + GAP <= left).unwrap_or(ends.len());
        if lane == ends.len() {
            ends.push(left + wide);
        } else {
            ends[lane] = left + wide;
        }
        placed.push(Placed { index, left, lane });
    }
    placed
}

/// Those of rising `xs` whose centred labels do not touch, the first always among them.
pub(crate) fn thin(labels: &[(i32, String)], size: i32) -> Vec<usize> {
    let mut end = i32::MIN;
    let mut kept = Vec::new();
    for (index, (x, text)) in labels.iter().enumerate() {
        let half = font::width(text, size) / 2;
        if kept.is_empty() || x - half >= end {
            kept.push(index);
            end = x + half + 8;
        }
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn linear_ticks_are_round_and_inside() {
        let axis = Axis::linear(0.0, 437.0, 0, 1000);
        let texts: Vec<String> = axis.ticks(5).into_iter().map(|tick| tick.1).collect();
        assert_eq!(texts, ["0", "100", "200", "300", "400"]);
        assert_eq!(axis.at(437.0), 1000);
        assert_eq!(axis.at(9e9), 1000);
    }

    #[test]
    fn log_ticks_are_decades() {
        let axis = Axis::log(3e-7, 0.02, 100, 0);
        let texts: Vec<String> = axis.ticks(10).into_iter().map(|tick| tick.1).collect();
        assert_eq!(texts, ["1e-7", "1e-6", "1e-5", "1e-4", "1e-3", "1e-2", "1e-1"]);
        assert_eq!(axis.at(1e-7), 100);
        assert_eq!(axis.at(1e-4), 50);
    }

    #[test]
    fn labels_at_one_place_go_to_lanes_of_their_own() {
        let labels: Vec<(i32, String)> =
            [500, 505, 510, 900, 1].into_iter().map(|x| (x, "a label".to_owned())).collect();
        let placed = place(&labels, 14, 0, 1000);
        let lane = |index: usize| placed.iter().find(|one| one.index == index).unwrap();
        assert_eq!([0, 1, 2, 3, 4].map(|index| lane(index).lane), [0, 1, 2, 0, 0],);
        assert_eq!(lane(4).left, 0);
    }
}
