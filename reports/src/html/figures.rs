//! Drawn figures on the page, each with its words below it.

use super::view::View;
use crate::charts::{Figure, FigureKind};
use crate::error::ReportError;

/// Every figure of one kind.
pub(super) fn of_kind(
    view: &mut View<'_>,
    drawn: &[Figure],
    kind: FigureKind,
) -> Result<(), ReportError> {
    for figure in drawn.iter().filter(|figure| figure.kind == kind) {
        view.raw("<figure id=\"");
        view.raw(&figure.name);
        view.raw("\">\n");
        view.raw(&figure.inline_svg()?);
        view.element("figcaption", &figure.alt);
        view.raw("</figure>\n");
    }
    Ok(())
}
