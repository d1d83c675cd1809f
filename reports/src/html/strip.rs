//! The token strip: what was fed around a split, position by position.

use super::view::View;
use crate::error::ReportError;
use crate::model::{Report, Token, TokenCell, TokenStrip};

/// One strip.
pub(super) fn strip(view: &mut View<'_>, report: &Report, index: usize) -> Result<(), ReportError> {
    let Some(strip) = report.strips.get(index) else { return Ok(()) };
    view.raw("<h3>Tokens around the split, sample ");
    view.text(&strip.sample_id);
    view.raw("</h3>\n<p class=\"legend\"><strong>A</strong> ");
    view.text(&strip.left_label);
    view.raw(", <strong>B</strong> ");
    view.text(&strip.right_label);
    view.raw(
        ". Each box is a position and the token fed there; one token where both sides agree. ",
    );
    view.raw("⏎ line feed, ⇥ tab, \\xNN a byte that is no text.</p>\n<ol class=\"strip\">\n");
    for (place, cell) in strip.cells.iter().enumerate() {
        cell_box(view, strip, cell, &format!("/strips/{index}/cells/{place}"))?;
    }
    view.raw("</ol>\n");
    Ok(())
}

fn cell_box(
    view: &mut View<'_>,
    strip: &TokenStrip,
    cell: &TokenCell,
    pointer: &str,
) -> Result<(), ReportError> {
    let decides = strip.row == Some(cell.position);
    let fed = strip.fed_at == Some(cell.position);
    let mut class = String::new();
    for (on, name) in [(decides, "decides "), (!cell.same, "differs "), (cell.prompt, "prompt ")] {
        if on {
            class.push_str(name);
        }
    }
    view.raw("<li class=\"");
    view.raw(class.trim_end());
    view.raw("\"><span class=\"at\">");
    view.figure(&format!("{pointer}/position"))?;
    if cell.prompt {
        view.raw(" prompt");
    }
    view.raw("</span>");
    if cell.same {
        if let Some(token) = &cell.left {
            token_line(view, None, token, &format!("{pointer}/left/id"))?;
        }
    } else {
        side(view, "A", cell.left.as_ref(), &format!("{pointer}/left/id"))?;
        side(view, "B", cell.right.as_ref(), &format!("{pointer}/right/id"))?;
    }
    if decides {
        view.raw("<span class=\"mark\">▸ decides</span>");
    }
    if fed {
        view.raw("<span class=\"mark\">≠ fed here</span>");
    }
    if cell.compaction.is_some() {
        view.raw("<span class=\"mark\">▼ compaction ");
        view.figure(&format!("{pointer}/compaction"))?;
        view.raw("</span>");
    }
    view.raw("</li>\n");
    Ok(())
}

fn side(
    view: &mut View<'_>,
    name: &str,
    token: Option<&Token>,
    pointer: &str,
) -> Result<(), ReportError> {
    match token {
        Some(token) => token_line(view, Some(name), token, pointer),
        None => {
            view.raw("<span class=\"tok\"><span class=\"side\">");
            view.raw(name);
            view.raw("</span>ended</span>");
            Ok(())
        }
    }
}

fn token_line(
    view: &mut View<'_>,
    name: Option<&str>,
    token: &Token,
    pointer: &str,
) -> Result<(), ReportError> {
    match &token.hex {
        Some(hex) => {
            view.raw("<span class=\"tok\" title=\"bytes ");
            view.text(hex);
            view.raw("\">");
        }
        None => view.raw("<span class=\"tok\">"),
    }
    if let Some(name) = name {
        view.raw("<span class=\"side\">");
        view.raw(name);
        view.raw("</span>");
    }
    // Isolated, so that text of any direction cannot move its neighbours.
    view.raw("<bdi>");
    view.text(&token.text.replace(' ', "\u{b7}"));
    view.raw("</bdi><span class=\"id\">");
    view.figure(pointer)?;
    view.raw("</span></span>");
    Ok(())
}
