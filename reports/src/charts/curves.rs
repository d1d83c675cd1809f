//! Top-2 margin and logit difference over positions, one above the other.

use super::axis::Axis;
use super::palette::{AXIS, GREEN, GRID, INK, MUTED, Rgb, SKY, VERMILION};
use super::plot::{Flags, Key, KeyShape, LEFT, Plot, RIGHT, SMALL, WIDTH, cross, heading, legend};
use super::scene::{Anchor, Scene};
use super::timeline::finish;
use crate::model::Curve;
use crate::num::{Num, short};

/// The baseline is a broad line, the target a fine one upon it, so that both are seen where they coincide.
const BROAD: u32 = 4;
const FINE: u32 = 1;

/// Words for readers who do not see the figure.
pub(crate) fn alt(curve: &Curve) -> String {
    let smallest = |values: &[Option<Num>]| finite(values).fold(f64::INFINITY, f64::min);
    let largest = finite(&curve.logit_diff).fold(0.0, f64::max);
    format!(
        "Sample {}: smallest top-2 margin {} ({}) and {} ({}); largest logit difference {} over the {} compared rows drawn.",
        curve.sample_id,
        short(smallest(&curve.margin_left), 4),
        curve.left_label,
        short(smallest(&curve.margin_right), 4),
        curve.right_label,
        short(largest, 4),
        curve.logit_diff.iter().flatten().count(),
    )
}

fn finite(values: &[Option<Num>]) -> impl Iterator<Item = f64> {
    values.iter().flatten().map(|value| value.0).filter(|value| value.is_finite())
}

/// Draws both panels.
pub(crate) fn scene(curve: &Curve) -> Scene {
    let low = curve.position.first().copied().unwrap_or(0);
    let high = curve.position.last().copied().unwrap_or(1);
    let x = Axis::linear(f64::from(low), f64::from(high), LEFT, RIGHT);
    let flags = Flags::new(&curve.firsts, curve.dependent_from);
    let mut scene = Scene::new(WIDTH, 0);
    let shown = curve.position.len() as u64;
    let thinned = if shown < curve.rows {
        format!(" · {shown} of {} rows drawn, extremes among them", curve.rows)
    } else {
        String::new()
    };
    heading(
        &mut scene,
        "How sure each side is, and how far their logits lie apart",
        &format!("sample {}{thinned}", curve.sample_id),
    );
    let mut keys: Vec<Key> = [
        (format!("margin, {}", curve.left_label), SKY, BROAD),
        (format!("margin, {}", curve.right_label), VERMILION, FINE),
        ("largest |logit difference|".to_owned(), GREEN, 2),
    ]
    .into_iter()
    .map(|(text, color, width)| Key { text, color, shape: KeyShape::Stroke(width) })
    .collect();
    let lists = [&curve.margin_left, &curve.margin_right, &curve.logit_diff];
    if lists.iter().any(|list| list.iter().flatten().any(|value| !value.0.is_finite())) {
        keys.push(Key { text: "not finite".to_owned(), color: INK, shape: KeyShape::Cross });
    }
    let top = legend(&mut scene, &keys, LEFT, 82) + 22 + flags.height(&x);
    let middle = top + 190;
    let margin_top =
        finite(&curve.margin_left).chain(finite(&curve.margin_right)).fold(0.0, f64::max);
    let upper = Plot {
        x,
        y: Axis::linear(0.0, if margin_top > 0.0 { margin_top * 1.05 } else { 1.0 }, middle, top),
        top,
        bottom: middle,
    };
    upper.shades(&mut scene, curve.prompt_len, curve.dependent_from);
    let lower = difference_panel(&mut scene, curve, x, middle + 30);
    upper.vertical_axis(&mut scene, "top-2 margin (logit)", 5);
    scene.line(vec![(LEFT, middle), (RIGHT, middle)], AXIS, 1);
    flags.draw(&mut scene, &x, top, lower);
    let linear = |value: f64| if value.is_finite() { upper.y.at(value) } else { top + 6 };
    series(&mut scene, curve, &curve.margin_left, (SKY, BROAD), &x, &linear);
    series(&mut scene, curve, &curve.margin_right, (VERMILION, FINE), &x, &linear);
    scene.height = lower + 58;
    finish(scene)
}

/// The lower panel: decades above, exact zeros in a lane of their own below, non-finite values on the upper edge.
fn difference_panel(scene: &mut Scene, curve: &Curve, x: Axis, top: i32) -> i32 {
    const ZERO_LANE: i32 = 44;
    let (decades_end, bottom) = (top + 200, top + 200 + ZERO_LANE);
    let positive: Vec<f64> = finite(&curve.logit_diff).filter(|value| *value > 0.0).collect();
    let y = if positive.is_empty() {
        Axis::log(1e-8, 1.0, decades_end, top)
    } else {
        let low = positive.iter().copied().fold(f64::INFINITY, f64::min);
        let high = positive.iter().copied().fold(0.0, f64::max);
        Axis::log(low, high, decades_end, top)
    };
    let plot = Plot { x, y, top, bottom };
    plot.shades(scene, curve.prompt_len, curve.dependent_from);
    plot.vertical_axis(scene, "|logit difference|", 8);
    let zero = decades_end + ZERO_LANE / 2;
    scene.text((LEFT - 8, zero + 6), "0", (SMALL, MUTED), Anchor::Right);
    scene.dashed(vec![(LEFT, decades_end), (RIGHT, decades_end)], GRID, 1, None);
    plot.horizontal_axis(scene, "absolute position (tokens)");
    let place = |value: f64| {
        if value == 0.0 {
            zero + 6
        } else if value.is_finite() {
            y.at(value)
        } else {
            top + 6
        }
    };
    series(scene, curve, &curve.logit_diff, (GREEN, 2), &x, &place);
    if positive.is_empty() && curve.logit_diff.iter().any(Option::is_some) {
        scene.text(
            ((LEFT + RIGHT) / 2, (top + decades_end) / 2),
            "every compared row is exactly equal",
            (super::plot::TEXT, MUTED),
            Anchor::Middle,
        );
    }
    bottom
}

/// A line through neighbouring rows that have a value; a row between two without one is a dot, a non-finite one a cross.
fn series(
    scene: &mut Scene,
    curve: &Curve,
    values: &[Option<Num>],
    style: (Rgb, u32),
    x: &Axis,
    y: &dyn Fn(f64) -> i32,
) {
    let mut path: Vec<(i32, i32)> = Vec::new();
    let flush = |scene: &mut Scene, path: &mut Vec<(i32, i32)>| {
        match path.as_slice() {
            [] => {}
            [(x, y)] => scene.disc(*x, *y, 2, style.0),
            _ => scene.line(path.clone(), style.0, style.1),
        }
        path.clear();
    };
    for (position, value) in curve.position.iter().zip(values) {
        let Some(Num(value)) = value else {
            flush(scene, &mut path);
            continue;
        };
        let point = (x.at(f64::from(*position)), y(*value));
        if value.is_finite() {
            path.push(point);
        } else {
            flush(scene, &mut path);
            cross(scene, point.0, point.1, INK);
        }
    }
    flush(scene, &mut path);
}
