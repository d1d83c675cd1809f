//! One scene, two formats: SVG text and PNG bytes, both by plotters.

use plotters::backend::{BitMapBackend, DrawingBackend, SVGBackend};
use plotters::coord::Shift;
use plotters::drawing::{DrawingArea, IntoDrawingArea};
use plotters::element::{Circle, PathElement, Polygon, Rectangle, Text};
use plotters::style::text_anchor::{HPos, Pos, VPos};
use plotters::style::{
    Color, FontFamily, FontTransform, IntoFont, IntoTextStyle, RGBColor, ShapeStyle,
};

use super::font;
use super::palette::Rgb;
use super::scene::{Anchor, Mark, Scene, dashes};
use crate::error::ReportError;
use crate::escape::escape;

/// Pixels of the PNG per pixel of the scene.
pub(crate) const PNG_SCALE: i32 = 2;

/// By how much of its size a text is moved down so that its capitals are centred on its point. The bitmap backend puts the
/// baseline 0.097 of the size below the point, the SVG one 0.22; half a capital is 0.31 and 0.29 of the size.
const PNG_NUDGE: f64 = 0.2;
const SVG_NUDGE: f64 = 0.06;

fn draw_error(name: &str, what: &dyn std::fmt::Display) -> ReportError {
    ReportError::Draw { name: name.to_owned(), what: what.to_string() }
}

/// A stand-alone SVG file, or with `inline` an element for a page (no namespace, size set by the page).
pub(crate) fn svg(
    scene: &Scene,
    name: &str,
    alt: &str,
    inline: bool,
) -> Result<String, ReportError> {
    let mut drawn = String::new();
    {
        let size = (scene.width.unsigned_abs(), scene.height.unsigned_abs());
        let area = SVGBackend::with_string(&mut drawn, size).into_drawing_area();
        paint(&area, scene, 1, SVG_NUDGE).map_err(|error| draw_error(name, &error))?;
        area.present().map_err(|error| draw_error(name, &error))?;
    }
    let body = drawn.split_once('\n').map_or("", |(_, body)| body);
    let (w, h) = (scene.width, scene.height);
    let label = escape(alt);
    let head = if inline {
        format!("<svg class=\"chart\" viewBox=\"0 0 {w} {h}\" role=\"img\" aria-label=\"{label}\">")
    } else {
        format!(
            "<svg width=\"{w}\" height=\"{h}\" viewBox=\"0 0 {w} {h}\" role=\"img\" aria-label=\"{label}\" \
             xmlns=\"http://www.w3.org/2000/svg\">"
        )
    };
    Ok(format!("{head}\n{body}"))
}

/// PNG bytes, 8-bit RGB, [`PNG_SCALE`] times the scene's size, no text chunks and no time.
pub(crate) fn png(scene: &Scene, name: &str) -> Result<Vec<u8>, ReportError> {
    let (w, h) =
        ((scene.width * PNG_SCALE).unsigned_abs(), (scene.height * PNG_SCALE).unsigned_abs());
    let mut pixels = vec![0_u8; w as usize * h as usize * 3];
    {
        let area = BitMapBackend::with_buffer(&mut pixels, (w, h)).into_drawing_area();
        paint(&area, scene, PNG_SCALE, PNG_NUDGE).map_err(|error| draw_error(name, &error))?;
        area.present().map_err(|error| draw_error(name, &error))?;
    }
    let mut out = Vec::new();
    let mut encoder = png::Encoder::new(&mut out, w, h);
    encoder.set_color(png::ColorType::Rgb);
    encoder.set_depth(png::BitDepth::Eight);
    encoder.set_adaptive_filter(png::AdaptiveFilterType::Adaptive);
    let mut writer = encoder.write_header().map_err(|error| draw_error(name, &error))?;
    writer.write_image_data(&pixels).map_err(|error| draw_error(name, &error))?;
    writer.finish().map_err(|error| draw_error(name, &error))?;
    Ok(out)
}

fn color(rgb: Rgb) -> RGBColor {
    RGBColor(rgb.0, rgb.1, rgb.2)
}

/// Draws every mark; `scale` multiplies all lengths.
fn paint<DB: DrawingBackend>(
    area: &DrawingArea<DB, Shift>,
    scene: &Scene,
    scale: i32,
    nudge: f64,
) -> Result<(), Box<dyn std::error::Error + Send + Sync>>
where
    DB::ErrorType: 'static,
{
    let family = font::family()?;
    let at = |(x, y): (i32, i32)| (x * scale, y * scale);
    let all = |points: &[(i32, i32)]| points.iter().copied().map(at).collect::<Vec<_>>();
    let stroke = |rgb: Rgb, width: u32| {
        ShapeStyle::from(color(rgb)).stroke_width(width * scale.unsigned_abs())
    };
    for mark in &scene.marks {
        match mark {
            Mark::Rect { x, y, w, h, fill } => {
                let corners = [at((*x, *y)), at((x + w, y + h))];
                area.draw(&Rectangle::new(corners, color(*fill).filled()))?;
            }
            Mark::Frame { x, y, w, h, stroke: rgb } => {
                let path = all(&[(*x, *y), (x + w, *y), (x + w, y + h), (*x, y + h), (*x, *y)]);
                area.draw(&PathElement::new(path, stroke(*rgb, 1)))?;
            }
            Mark::Line { points, stroke: rgb, width, dash } => {
                let pieces = match dash {
                    None => vec![points.clone()],
                    Some((on, off)) => dashes(points, *on, *off),
                };
                for piece in pieces {
                    area.draw(&PathElement::new(all(&piece), stroke(*rgb, *width)))?;
                }
            }
            Mark::Polygon { points, fill } => {
                area.draw(&Polygon::new(all(points), color(*fill)))?;
            }
            Mark::Disc { x, y, radius, fill } => {
                area.draw(&Circle::new(at((*x, *y)), radius * scale, color(*fill).filled()))?;
            }
            Mark::Ring { x, y, radius, stroke: rgb } => {
                area.draw(&Circle::new(at((*x, *y)), radius * scale, stroke(*rgb, 2)))?;
            }
            Mark::Text { .. } => text(area, mark, family, (scale, nudge))?,
        }
    }
    Ok(())
}

fn text<DB: DrawingBackend>(
    area: &DrawingArea<DB, Shift>,
    mark: &Mark,
    family: FontFamily<'static>,
    (scale, nudge): (i32, f64),
) -> Result<(), Box<dyn std::error::Error + Send + Sync>>
where
    DB::ErrorType: 'static,
{
    let Mark::Text { x, y, text, size, fill, anchor, upright } = mark else { return Ok(()) };
    let h_pos = match anchor {
        Anchor::Left => HPos::Left,
        Anchor::Middle => HPos::Center,
        Anchor::Right => HPos::Right,
    };
    let turn = if *upright { FontTransform::Rotate270 } else { FontTransform::None };
    let style = (family, size * scale)
        .into_font()
        .transform(turn)
        .color(&color(*fill))
        .pos(Pos::new(h_pos, VPos::Center));
    let down = (f64::from(size * scale) * nudge).round() as i32;
    let (x, y) =
        if *upright { (x * scale + down, y * scale) } else { (x * scale, y * scale + down) };
    area.draw(&Text::new(text.clone(), (x, y), style.into_text_style(area)))?;
    Ok(())
}
