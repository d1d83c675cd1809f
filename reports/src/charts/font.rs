//! The embedded font: DejaVu Sans, reduced (licence in `fonts/`). No system font is ever asked for.

use std::sync::OnceLock;

use plotters::style::{FontFamily, FontStyle, register_font};

use crate::error::ReportError;

static BYTES: &[u8] = include_bytes!("../../fonts/DejaVuSans-subset.ttf");

/// Family as written into SVG. Bitmaps and measurements use the embedded file under this name; a viewer of the SVG takes
/// the first it has, all of about the same width.
const FAMILY: &str = "DejaVu Sans, Verdana, sans-serif";

/// Registers the font once.
pub(crate) fn family() -> Result<FontFamily<'static>, ReportError> {
    static DONE: OnceLock<bool> = OnceLock::new();
    if *DONE.get_or_init(|| register_font(FAMILY, FontStyle::Normal, BYTES).is_ok()) {
        Ok(FontFamily::Name(FAMILY))
    } else {
        Err(ReportError::Font)
    }
}

/// Width in pixels of `text` at `size`, as the bitmap backend sets it.
pub(crate) fn width(text: &str, size: i32) -> i32 {
    use plotters::style::{FontDesc, IntoFont};
    let Ok(family) = family() else { return estimate(text, size) };
    let font: FontDesc<'_> = (family, size).into_font();
    font.box_size(text)
        .map_or_else(|_| estimate(text, size), |(w, _)| i32::try_from(w).unwrap_or(i32::MAX))
}

/// A generous width for a font that cannot be read; painting then fails with its own error.
fn estimate(text: &str, size: i32) -> i32 {
    i32::try_from(text.chars().count()).unwrap_or(i32::MAX).saturating_mul(size)
}

/// `text`, cut in the middle with an ellipsis where it is wider than `max` pixels.
pub(crate) fn fit(text: &str, size: i32, max: i32) -> String {
    if width(text, size) <= max {
        return text.to_owned();
    }
    let characters: Vec<char> = text.chars().take(400).collect();
    let mut keep = characters.len().saturating_sub(1);
    while keep > 1 {
        let head: String = characters[..keep.div_ceil(2)].iter().collect();
        let tail: String = characters[characters.len() - keep / 2..].iter().collect();
        let cut = format!("{head}…{tail}");
        if width(&cut, size) <= max {
            return cut;
        }
        keep -= 1;
    }
    "…".to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_embedded_font_measures_text() {
        assert!(family().is_ok());
        let (narrow, wide) = (width("iii", 20), width("WWW", 20));
        assert!(narrow > 5 && wide > 2 * narrow, "{narrow} {wide}");
    }

    #[test]
    fn long_text_is_cut_in_the_middle_to_the_width_asked() {
        let cut = fit("a_very_long_sample_identifier_0123456789", 14, 120);
        assert!(cut.starts_with("a_v") && cut.ends_with("789") && cut.contains('…'), "{cut}");
        assert!(width(&cut, 14) <= 120);
        assert_eq!(fit("short", 14, 120), "short");
    }
}
