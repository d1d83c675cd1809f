//! Figures: drawn from the report, as SVG and PNG from the same marks.

mod axis;
mod curves;
mod drift;
mod figure;
mod font;
mod keepmap;
mod paint;
pub(crate) mod palette;
mod plot;
mod scene;
mod split;
mod timeline;

pub use figure::{Figure, FigureKind, figures};
