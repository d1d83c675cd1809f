//! The figures of a report, in order of reading.

use super::scene::Scene;
use super::{curves, drift, keepmap, paint, split, timeline};
use crate::error::ReportError;
use crate::model::Report;

/// What a figure shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum FigureKind {
    /// Rows held over positions.
    Timeline,
    /// Margins and differences over positions.
    Curves,
    /// Two sides of a split.
    Split,
    /// Hidden-state drift.
    Drift,
    /// Keep-set map.
    KeepMap,
}

impl FigureKind {
    /// First part of file names.
    #[must_use]
    pub const fn slug(self) -> &'static str {
        match self {
            Self::Timeline => "timeline",
            Self::Curves => "curves",
            Self::Split => "split",
            Self::Drift => "drift",
            Self::KeepMap => "keepmap",
        }
    }
}

/// One figure, drawn and not yet painted.
#[derive(Debug, Clone)]
pub struct Figure {
    /// What it shows.
    pub kind: FigureKind,
    /// Index in the report's list of that kind.
    pub index: usize,
    /// File name without extension: `timeline_1`.
    pub name: String,
    /// The figure in words.
    pub alt: String,
    scene: Scene,
}

impl Figure {
    fn new(kind: FigureKind, index: usize, alt: String, scene: Scene) -> Self {
        Self { kind, index, name: format!("{}_{}", kind.slug(), index + 1), alt, scene }
    }

    /// Width and height of the SVG in pixels; the PNG has twice as many.
    #[must_use]
    pub fn size(&self) -> (u32, u32) {
        (self.scene.width.unsigned_abs(), self.scene.height.unsigned_abs())
    }

    /// A file of its own.
    ///
    /// # Errors
    /// [`ReportError::Draw`] or [`ReportError::Font`].
    pub fn svg(&self) -> Result<String, ReportError> {
        paint::svg(&self.scene, &self.name, &self.alt, false)
    }

    /// An element for a page, without namespace and size.
    ///
    /// # Errors
    /// As [`Figure::svg`].
    pub fn inline_svg(&self) -> Result<String, ReportError> {
        paint::svg(&self.scene, &self.name, &self.alt, true)
    }

    /// PNG bytes, 8-bit RGB.
    ///
    /// # Errors
    /// As [`Figure::svg`].
    pub fn png(&self) -> Result<Vec<u8>, ReportError> {
        paint::png(&self.scene, &self.name)
    }
}

/// Every figure of a report.
#[must_use]
pub fn figures(report: &Report) -> Vec<Figure> {
    let mut out = Vec::new();
    for (index, item) in report.timelines.iter().enumerate() {
        let (alt, scene) = (timeline::alt(item), timeline::scene(item));
        out.push(Figure::new(FigureKind::Timeline, index, alt, scene));
    }
    for (index, item) in report.curves.iter().enumerate() {
        let (alt, scene) = (curves::alt(item), curves::scene(item));
        out.push(Figure::new(FigureKind::Curves, index, alt, scene));
    }
    for (index, item) in report.splits_view.iter().enumerate() {
        let (alt, scene) = (split::alt(item), split::scene(item));
        out.push(Figure::new(FigureKind::Split, index, alt, scene));
    }
    for (index, item) in report.drift.iter().enumerate() {
        let (alt, scene) = (drift::alt(item), drift::scene(item));
        out.push(Figure::new(FigureKind::Drift, index, alt, scene));
    }
    for (index, item) in report.keep_maps.iter().enumerate() {
        let (alt, scene) = (keepmap::alt(item), keepmap::scene(item));
        out.push(Figure::new(FigureKind::KeepMap, index, alt, scene));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::super::font;
    use super::super::scene::{Anchor, Mark};
    use super::*;
    use crate::made_up;

    /// Left, top, right, bottom of each text, with the text; capitals and descenders included.
    fn boxes(scene: &Scene) -> Vec<([i32; 4], String)> {
        scene
            .marks
            .iter()
            .filter_map(|mark| {
                let Mark::Text { x, y, text, size, anchor, upright, .. } = mark else {
                    return None;
                };
                let (wide, half) = (font::width(text, *size), size / 3);
                let left = match anchor {
                    Anchor::Left => *x,
                    Anchor::Middle => x - wide / 2,
                    Anchor::Right => x - wide,
                };
                let place = if *upright {
                    [x - half, y - wide / 2, x + half, y + wide / 2]
                } else {
                    [left, y - half, left + wide, y + half]
                };
                Some((place, text.clone()))
            })
            .collect()
    }

    #[test]
    fn no_two_labels_overlap_and_none_is_clipped() {
        for figure in figures(&made_up::report()) {
            let boxes = boxes(&figure.scene);
            assert!(boxes.len() > 8, "{}", figure.name);
            for (index, (a, text)) in boxes.iter().enumerate() {
                let inside = a[0] >= 0
                    && a[1] >= 0
                    && a[2] <= figure.scene.width
                    && a[3] <= figure.scene.height;
                assert!(inside, "{}: {text:?} at {a:?}", figure.name);
                for (b, other) in &boxes[index + 1..] {
                    let apart = a[2] <= b[0] || b[2] <= a[0] || a[3] <= b[1] || b[3] <= a[1];
                    assert!(apart, "{}: {text:?} {a:?} over {other:?} {b:?}", figure.name);
                }
            }
        }
    }

    #[test]
    fn figures_of_empty_parts_are_drawn_without_a_panic() {
        let mut report = made_up::report();
        for run in &mut report.timelines[0].runs {
            run.points.clear();
            run.compactions.clear();
        }
        let curve = &mut report.curves[0];
        curve.position.clear();
        for list in [&mut curve.margin_left, &mut curve.margin_right, &mut curve.logit_diff] {
            list.clear();
        }
        report.splits_view[0].left = None;
        for candidate in
            report.splits_view[0].right.iter_mut().flat_map(|side| &mut side.candidates)
        {
            candidate.logit = None;
        }
        report.drift[0].rows.clear();
        report.drift[0].values.clear();
        report.keep_maps[0].heads.clear();
        report.keep_maps[1].rows = 0;
        for figure in figures(&report) {
            assert!(figure.svg().unwrap().ends_with("</svg>\n"), "{}", figure.name);
            assert!(!figure.png().unwrap().is_empty());
        }
    }
}
