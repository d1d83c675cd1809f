//! What several charts share: the plot's frame with its axes, the lanes of the four firsts, legends.

use super::axis::{Axis, place};
use super::font;
use super::palette::{AXIS, DEPENDENT, GRID, INK, MUTED, Rgb, SHADE};
use super::scene::{Anchor, Scene};
use crate::model::Firsts;

/// Width of every figure.
pub(crate) const WIDTH: i32 = 1200;
/// Left edge of plots.
pub(crate) const LEFT: i32 = 86;
/// Right edge of plots.
pub(crate) const RIGHT: i32 = 1172;
/// Size of tick labels.
pub(crate) const SMALL: i32 = 16;
/// Size of axis titles and legends.
pub(crate) const TEXT: i32 = 17;
const TITLE: i32 = 22;
/// Height of one lane of labels.
const LANE: i32 = 21;

/// Title and the line below it.
pub(crate) fn heading(scene: &mut Scene, title: &str, line: &str) {
    let title = font::fit(title, TITLE, RIGHT - 28);
    let line = font::fit(line, TEXT, RIGHT - 28);
    scene.text((28, 26), &title, (TITLE, INK), Anchor::Left);
    scene.text((28, 52), &line, (TEXT, MUTED), Anchor::Left);
}

/// A plot's rectangle with both scales.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Plot {
    pub(crate) x: Axis,
    pub(crate) y: Axis,
    pub(crate) top: i32,
    pub(crate) bottom: i32,
}

impl Plot {
    /// Horizontal grid lines, tick labels of the vertical scale and its title.
    pub(crate) fn vertical_axis(&self, scene: &mut Scene, title: &str, count: usize) {
        for (value, label) in self.y.ticks(count) {
            let y = self.y.at(value);
            scene.line(vec![(LEFT, y), (RIGHT, y)], GRID, 1);
            scene.text((LEFT - 8, y), &label, (SMALL, MUTED), Anchor::Right);
        }
        scene.upright((20, (self.top + self.bottom) / 2), title, (TEXT, INK));
        scene.line(vec![(LEFT, self.top), (LEFT, self.bottom)], AXIS, 1);
    }

    /// Tick labels of the horizontal scale and its title.
    pub(crate) fn horizontal_axis(&self, scene: &mut Scene, title: &str) {
        for (value, label) in self.x.ticks(10) {
            if value.fract() != 0.0 {
                continue;
            }
            let x = self.x.at(value);
            scene.line(vec![(x, self.bottom), (x, self.bottom + 5)], AXIS, 1);
            scene.text((x, self.bottom + 16), &label, (SMALL, MUTED), Anchor::Middle);
        }
        scene.line(vec![(LEFT, self.bottom), (RIGHT, self.bottom)], AXIS, 1);
        scene.text(((LEFT + RIGHT) / 2, self.bottom + 38), title, (TEXT, INK), Anchor::Middle);
    }

    /// Prompt and dependent rows as shaded areas.
    pub(crate) fn shades(&self, scene: &mut Scene, prompt: Option<u32>, dependent: Option<u32>) {
        if let Some(prompt) = prompt.filter(|length| f64::from(*length) > self.x.low) {
            let end = self.x.at(f64::from(prompt));
            scene.rect(LEFT, self.top, end - LEFT, self.bottom - self.top, SHADE);
        }
        if let Some(from) = dependent.filter(|from| f64::from(*from) < self.x.high) {
            let start = self.x.at(f64::from(from));
            scene.rect(start, self.top, RIGHT - start, self.bottom - self.top, DEPENDENT);
        }
    }
}

/// Labels of vertical lines: the firsts, joined where they fall on one row, and the first dependent row.
pub(crate) struct Flags {
    labels: Vec<(u32, String)>,
}

impl Flags {
    pub(crate) fn new(firsts: &Firsts, dependent: Option<u32>) -> Self {
        let mut labels: Vec<(u32, Vec<&str>)> = Vec::new();
        for (name, position) in firsts.named() {
            let Some(position) = position else { continue };
            match labels.iter_mut().find(|label| label.0 == position) {
                Some(label) => label.1.push(name),
                None => labels.push((position, vec![name])),
            }
        }
        let mut labels: Vec<(u32, String)> = labels
            .into_iter()
            .map(|(position, names)| {
                (position, format!("first {} · {position}", names.join(" + ")))
            })
            .collect();
        if let Some(from) = dependent {
            labels.push((from, format!("dependent from {from}")));
        }
        Self { labels }
    }

    fn placed(&self, x: &Axis) -> (Vec<(i32, String)>, Vec<super::axis::Placed>) {
        let at: Vec<(i32, String)> = self
            .labels
            .iter()
            .map(|(position, text)| (x.at(f64::from(*position)), text.clone()))
            .collect();
        let placed = place(&at, SMALL, LEFT, RIGHT);
        (at, placed)
    }

    /// Pixels that the labels need above the plot.
    pub(crate) fn height(&self, x: &Axis) -> i32 {
        let lanes = self.placed(x).1.iter().map(|one| one.lane + 1).max().unwrap_or(0);
        i32::try_from(lanes).unwrap_or(0) * LANE
    }

    /// Draws labels above `top` and lines down to `bottom`.
    pub(crate) fn draw(&self, scene: &mut Scene, x: &Axis, top: i32, bottom: i32) {
        let (at, placed) = self.placed(x);
        for (index, (pixel, _)) in at.iter().enumerate() {
            let dash = (index + 1 == at.len() && at.len() > 1).then_some((3, 4));
            let lane = placed.iter().find(|one| one.index == index).map_or(0, |one| one.lane);
            let start = top - LANE * i32::try_from(lane).unwrap_or(0) - 2;
            scene.dashed(vec![(*pixel, start), (*pixel, bottom)], INK, 1, dash);
        }
        for one in &placed {
            let text = &at[one.index].1;
            let y = top - LANE * i32::try_from(one.lane).unwrap_or(0) - LANE / 2 - 1;
            let wide = font::width(text, SMALL);
            scene.rect(one.left - 3, y - 10, wide + 6, LANE, super::palette::PAPER);
            scene.text((one.left, y), text, (SMALL, INK), Anchor::Left);
        }
    }
}

/// One entry of a legend.
pub(crate) struct Key {
    pub(crate) text: String,
    pub(crate) color: Rgb,
    pub(crate) shape: KeyShape,
}

/// How an entry's sample is drawn.
pub(crate) enum KeyShape {
    /// A line with this dash.
    Line(Option<(i32, i32)>),
    /// A line of this width.
    Stroke(u32),
    /// A cross.
    Cross,
    /// A box of this height in pixels of 14.
    Box(i32),
    /// A triangle that points down.
    Triangle,
}

/// Draws a legend from `left` at height `y`, over as many lines as it takes; gives the height of the last line.
pub(crate) fn legend(scene: &mut Scene, keys: &[Key], left: i32, mut y: i32) -> i32 {
    let mut x = left;
    for key in keys {
        let text = font::fit(&key.text, TEXT, RIGHT - left - 44);
        let wide = 40 + font::width(&text, TEXT) + 24;
        if x > left && x + wide - 24 > RIGHT {
            x = left;
            y += 23;
        }
        match key.shape {
            KeyShape::Line(dash) => {
                scene.dashed(vec![(x, y), (x + 32, y)], key.color, 3, dash);
            }
            KeyShape::Stroke(width) => scene.line(vec![(x, y), (x + 32, y)], key.color, width),
            KeyShape::Cross => cross(scene, x + 20, y, key.color),
            KeyShape::Box(high) => scene.rect(x + 12, y + 7 - high, 14, high, key.color),
            KeyShape::Triangle => triangle(scene, x + 18, y + 6, key.color),
        }
        scene.text((x + 40, y), &text, (TEXT, INK), Anchor::Left);
        x += wide;
    }
    y
}

/// A small cross around the point.
pub(crate) fn cross(scene: &mut Scene, x: i32, y: i32, color: Rgb) {
    scene.line(vec![(x - 5, y - 5), (x + 5, y + 5)], color, 2);
    scene.line(vec![(x - 5, y + 5), (x + 5, y - 5)], color, 2);
}

/// A small triangle whose tip is at the point.
pub(crate) fn triangle(scene: &mut Scene, x: i32, y: i32, color: Rgb) {
    scene.polygon(vec![(x, y), (x - 6, y - 11), (x + 6, y - 11)], color);
}
