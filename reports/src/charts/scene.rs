//! A figure as a list of marks in pixels. Charts build scenes; [`super::paint`] turns one scene into SVG and PNG, so
//! both show the same marks, and tests look at marks instead of pictures.

use super::palette::{PAPER, Rgb};

/// Where a text hangs on its point, horizontally; vertically it is always centred.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Anchor {
    Left,
    Middle,
    Right,
}

/// One mark. Coordinates are pixels from the upper left.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Mark {
    Rect { x: i32, y: i32, w: i32, h: i32, fill: Rgb },
    Frame { x: i32, y: i32, w: i32, h: i32, stroke: Rgb },
    Line { points: Vec<(i32, i32)>, stroke: Rgb, width: u32, dash: Option<(i32, i32)> },
    Polygon { points: Vec<(i32, i32)>, fill: Rgb },
    Disc { x: i32, y: i32, radius: i32, fill: Rgb },
    Ring { x: i32, y: i32, radius: i32, stroke: Rgb },
    Text { x: i32, y: i32, text: String, size: i32, fill: Rgb, anchor: Anchor, upright: bool },
}

/// A figure before it is painted.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Scene {
    pub(crate) width: i32,
    pub(crate) height: i32,
    pub(crate) marks: Vec<Mark>,
}

impl Scene {
    pub(crate) fn new(width: i32, height: i32) -> Self {
        let mut scene = Self { width, height, marks: Vec::new() };
        scene.rect(0, 0, width, height, PAPER);
        scene
    }

    pub(crate) fn rect(&mut self, x: i32, y: i32, w: i32, h: i32, fill: Rgb) {
        if w > 0 && h > 0 {
            self.marks.push(Mark::Rect { x, y, w, h, fill });
        }
    }

    pub(crate) fn frame(&mut self, x: i32, y: i32, w: i32, h: i32, stroke: Rgb) {
        self.marks.push(Mark::Frame { x, y, w, h, stroke });
    }

    pub(crate) fn line(&mut self, points: Vec<(i32, i32)>, stroke: Rgb, width: u32) {
        if points.len() > 1 {
            self.marks.push(Mark::Line { points, stroke, width, dash: None });
        }
    }

    pub(crate) fn dashed(
        &mut self,
        points: Vec<(i32, i32)>,
        stroke: Rgb,
        width: u32,
        dash: Option<(i32, i32)>,
    ) {
        if points.len() > 1 {
            self.marks.push(Mark::Line { points, stroke, width, dash });
        }
    }

    pub(crate) fn polygon(&mut self, points: Vec<(i32, i32)>, fill: Rgb) {
        self.marks.push(Mark::Polygon { points, fill });
    }

    pub(crate) fn disc(&mut self, x: i32, y: i32, radius: i32, fill: Rgb) {
        self.marks.push(Mark::Disc { x, y, radius, fill });
    }

    pub(crate) fn ring(&mut self, x: i32, y: i32, radius: i32, stroke: Rgb) {
        self.marks.push(Mark::Ring { x, y, radius, stroke });
    }

    pub(crate) fn text(&mut self, at: (i32, i32), text: &str, style: (i32, Rgb), anchor: Anchor) {
        self.marks.push(Mark::Text {
            x: at.0,
            y: at.1,
            text: text.to_owned(),
            size: style.0,
            fill: style.1,
            anchor,
            upright: false,
        });
    }

    /// Text that reads from below to above, centred on its point.
    pub(crate) fn upright(&mut self, at: (i32, i32), text: &str, style: (i32, Rgb)) {
        self.marks.push(Mark::Text {
            x: at.0,
            y: at.1,
            text: text.to_owned(),
            size: style.0,
            fill: style.1,
            anchor: Anchor::Middle,
            upright: true,
        });
    }
}

/// Straight pieces of a dashed line: `on` pixels drawn, `off` left out, carried over corners.
pub(crate) fn dashes(points: &[(i32, i32)], on: i32, off: i32) -> Vec<Vec<(i32, i32)>> {
    let (on, off) = (f64::from(on.max(1)), f64::from(off.max(1)));
    let mut pieces = Vec::new();
    let mut piece: Vec<(i32, i32)> = Vec::new();
    let mut drawing = true;
    let mut left = on;
    for pair in points.windows(2) {
        let [(x0, y0), (x1, y1)] = [pair[0], pair[1]].map(|(x, y)| (f64::from(x), f64::from(y)));
        let length = (x1 - x0).hypot(y1 - y0);
        let at = |done: f64| {
            let share = if length > 0.0 { done / length } else { 0.0 };
            ((x0 + (x1 - x0) * share).round() as i32, (y0 + (y1 - y0) * share).round() as i32)
        };
        let mut done = 0.0;
        if drawing && piece.is_empty() {
            piece.push(pair[0]);
        }
        while length > 0.0 && length - done >= left {
            done += left;
            if drawing {
                piece.push(at(done));
                pieces.push(std::mem::take(&mut piece));
            } else {
                piece.push(at(done));
            }
            drawing = !drawing;
            left = if drawing { on } else { off };
        }
        left -= length - done;
        if drawing {
            piece.push(pair[1]);
        }
    }
    if piece.len() > 1 {
        pieces.push(piece);
    }
    pieces
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dashed_line_keeps_its_rhythm_over_a_corner() {
        let pieces = dashes(&[(0, 0), (10, 0), (10, 10)], 4, 2);
        assert_eq!(
            pieces,
            vec![
                vec![(0, 0), (4, 0)],
                vec![(6, 0), (10, 0)],
                vec![(10, 2), (10, 6)],
                vec![(10, 8), (10, 10)],
            ]
        );
    }
}
