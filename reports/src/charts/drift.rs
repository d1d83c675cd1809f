//! Hidden-state drift: stage by position on a logarithmic colour scale.

use super::axis::{Axis, thin};
use super::font;
use super::palette::{AXIS, INK, MISSING, MUTED, Rgb, SCALE_STEPS, VERMILION, ZERO, scale};
use super::plot::{RIGHT, SMALL, TEXT, WIDTH, heading};
use super::scene::{Anchor, Scene};
use super::timeline::finish;
use crate::model::DriftMap;
use crate::num::{Num, short};

const NAMES: i32 = 190;
const TOP: i32 = 84;
const BAR: i32 = 130;
/// More rows than this are drawn as one row per layer.
const MOST_ROWS: usize = 80;
/// More columns than this are drawn as the largest value of each stretch.
const MOST_COLUMNS: usize = 240;

type Row = (String, Vec<Option<Num>>);

/// Words for readers who do not see the figure.
pub(crate) fn alt(map: &DriftMap) -> String {
    let values = || {
        map.rows.iter().zip(&map.values).flat_map(|(name, row)| {
            row.iter().zip(&map.columns).filter_map(move |(value, column)| {
                value.map(|value| (name.as_str(), *column, value.0))
            })
        })
    };
    let mut parts = vec![format!(
        "Relative L2 of hidden states, {} against {}, sample {}, {} stages by {} positions.",
        map.right_label,
        map.left_label,
        map.sample_id,
        map.rows.len(),
        map.columns.len()
    )];
    if let Some((name, column, value)) = values().max_by(|a, b| a.2.total_cmp(&b.2)) {
        parts.push(format!("Largest {} in {name} at position {column}.", short(value, 4)));
    }
    if let Some((name, position)) = &map.first_beyond {
        parts.push(format!("First beyond the control: {name} at position {position}."));
    }
    parts.join(" ")
}

/// The larger of two figures; a figure beats none, NaN beats all.
fn worse(a: Option<Num>, b: Option<Num>) -> Option<Num> {
    match (a, b) {
        (Some(a), Some(b)) if a.0.is_nan() || b.0 < a.0 => Some(a),
        (Some(_), Some(b)) => Some(b),
        (one, other) => one.or(other),
    }
}

fn layer_of(name: &str) -> Option<&str> {
    name.starts_with("layer").then(|| name.split('.').next()).flatten()
}

/// Rows as drawn: all, or with too many of them the largest value of each layer.
fn drawn_rows(map: &DriftMap) -> Vec<Row> {
    let rows = map.rows.iter().cloned().zip(map.values.iter().cloned());
    if map.rows.len() <= MOST_ROWS {
        return rows.collect();
    }
    let mut out: Vec<Row> = Vec::new();
    for (name, values) in rows {
        let group =
            layer_of(&name).map_or_else(|| name.clone(), |layer| format!("{layer} (largest)"));
        match out.last_mut().filter(|row| row.0 == group) {
            Some(row) => {
                for (old, new) in row.1.iter_mut().zip(values) {
                    *old = worse(*old, new);
                }
            }
            None => out.push((group, values)),
        }
    }
    out
}

/// Columns as drawn: first position of each, and how many were merged.
fn drawn_columns(columns: &[u32], rows: &mut [Row]) -> (Vec<u32>, usize) {
    let merge = columns.len().div_ceil(MOST_COLUMNS).max(1);
    if merge > 1 {
        for (_, values) in rows.iter_mut() {
            *values =
                values.chunks(merge).map(|chunk| chunk.iter().copied().fold(None, worse)).collect();
        }
    }
    (columns.iter().copied().step_by(merge).collect(), merge)
}

/// Draws the map.
pub(crate) fn scene(map: &DriftMap) -> Scene {
    let mut rows = drawn_rows(map);
    let (columns, merge) = drawn_columns(&map.columns, &mut rows);
    let mut scene = Scene::new(WIDTH, 0);
    let merged = u64::from(map.merged) * merge as u64;
    let note = if merged > 1 {
        format!(" · {merged} positions a column, largest")
    } else {
        String::new()
    };
    heading(
        &mut scene,
        "Hidden-state drift: relative L2 by stage and position",
        &format!("sample {} · {} against {}{note}", map.sample_id, map.right_label, map.left_label),
    );
    let high = (560 / i32::try_from(rows.len().max(1)).unwrap_or(560)).clamp(13, 26);
    let (left, right) = (28 + NAMES, RIGHT - BAR);
    let bottom = TOP + high * i32::try_from(rows.len()).unwrap_or(0);
    let axis = scale_axis(&rows, bottom.max(TOP + 240));
    let count = i32::try_from(columns.len().max(1)).unwrap_or(i32::MAX);
    let edge = |column: usize| left + (right - left) * i32::try_from(column).unwrap_or(0) / count;
    for (index, (name, values)) in rows.iter().enumerate() {
        let y = TOP + high * i32::try_from(index).unwrap_or(0);
        cells(&mut scene, values, &axis, (y, high), &edge);
        let text = font::fit(name, SMALL.min(high), NAMES - 12);
        scene.text((left - 8, y + high / 2), &text, (SMALL.min(high), INK), Anchor::Right);
        let new_layer = index > 0 && layer_of(name) != layer_of(&rows[index - 1].0);
        if new_layer && rows.len() > 12 {
            scene.line(vec![(left, y), (right, y)], INK, 1);
        }
    }
    scene.frame(left, TOP, right - left, bottom - TOP, AXIS);
    let labels: Vec<(i32, String)> = columns
        .iter()
        .enumerate()
        .map(|(index, position)| ((edge(index) + edge(index + 1)) / 2, position.to_string()))
        .collect();
    for index in thin(&labels, SMALL) {
        scene.text(
            (labels[index].0, bottom + 14),
            &labels[index].1,
            (SMALL, MUTED),
            Anchor::Middle,
        );
    }
    scene.text(
        ((left + right) / 2, bottom + 36),
        "absolute position of the row (only rows that both runs dumped)",
        (TEXT, INK),
        Anchor::Middle,
    );
    first_beyond(&mut scene, map, &rows, &columns, (high, &edge));
    color_bar(&mut scene, &axis, map.control, right + 34);
    scene.height = (bottom + 58).max(TOP + 340);
    finish(scene)
}

fn scale_axis(rows: &[Row], bottom: i32) -> Axis {
    let positive = || {
        rows.iter()
            .flat_map(|row| row.1.iter().flatten())
            .map(|value| value.0)
            .filter(|value| value.is_finite() && *value > 0.0)
    };
    let low = positive().fold(f64::INFINITY, f64::min);
    let high = positive().fold(0.0, f64::max);
    let end = bottom.min(TOP + 420) - 60;
    if low <= high {
        Axis::log(low, high, end, TOP + 24)
    } else {
        Axis::log(1e-8, 1.0, end, TOP + 24)
    }
}

fn cell_color(value: Option<Num>, axis: &Axis) -> Rgb {
    match value {
        None => MISSING,
        Some(Num(0.0)) => ZERO,
        Some(Num(value)) if value.is_finite() => scale(axis.share(value)),
        Some(_) => VERMILION,
    }
}

/// One row; neighbours of one colour are one rectangle.
fn cells(
    scene: &mut Scene,
    values: &[Option<Num>],
    axis: &Axis,
    (y, high): (i32, i32),
    edge: &dyn Fn(usize) -> i32,
) {
    let mut start = 0;
    while start < values.len() {
        let color = cell_color(values[start], axis);
        let same = values[start..].iter().take_while(|value| cell_color(**value, axis) == color);
        let end = start + same.count();
        scene.rect(edge(start), y, edge(end) - edge(start), high, color);
        start = end;
    }
}

/// A frame around the first cell beyond the control.
fn first_beyond(
    scene: &mut Scene,
    map: &DriftMap,
    rows: &[Row],
    columns: &[u32],
    (high, edge): (i32, &dyn Fn(usize) -> i32),
) {
    let Some((name, position)) = &map.first_beyond else { return };
    let row = rows.iter().position(|row| {
        row.0 == *name || layer_of(name).is_some_and(|layer| row.0 == format!("{layer} (largest)"))
    });
    let column = columns.iter().rposition(|column| column <= position);
    let (Some(row), Some(column)) = (row, column) else { return };
    let y = TOP + high * i32::try_from(row).unwrap_or(0);
    let (x, wide) = (edge(column), edge(column + 1) - edge(column));
    for grow in 0..3 {
        scene.frame(x - grow, y - grow, wide + 2 * grow, high + 2 * grow, VERMILION);
    }
    let text = format!("□ first beyond the control: {name} at {position}");
    scene.text((RIGHT, 52), &text, (TEXT, VERMILION), Anchor::Right);
}

/// The legend: decades, exact zero, no figure, and the control's level.
fn color_bar(scene: &mut Scene, axis: &Axis, control: Option<Num>, x: i32) {
    scene.text((x - 8, TOP + 6), "relative L2", (SMALL, INK), Anchor::Left);
    let (top, bottom) = (axis.to, axis.from);
    let steps = i32::try_from(SCALE_STEPS).unwrap_or(1);
    for step in 0..steps {
        let share = (f64::from(step) + 0.5) / f64::from(steps);
        let (from, to) =
            (bottom - (bottom - top) * step / steps, bottom - (bottom - top) * (step + 1) / steps);
        scene.rect(x, to, 20, from - to, scale(share));
    }
    scene.frame(x, top, 20, bottom - top, AXIS);
    for (value, label) in axis.ticks(8) {
        let y = axis.at(value);
        scene.line(vec![(x + 20, y), (x + 25, y)], AXIS, 1);
        scene.text((x + 29, y), &label, (SMALL, MUTED), Anchor::Left);
    }
    if let Some(Num(control)) = control.filter(|control| control.0 > 0.0) {
        let y = axis.at(control);
        scene.polygon(vec![(x, y), (x - 10, y - 6), (x - 10, y + 6)], INK);
        scene.upright((x - 19, y), "control", (SMALL, INK));
    }
    for (index, (color, text)) in
        [(ZERO, "exactly 0"), (MISSING, "none"), (VERMILION, "not finite")].into_iter().enumerate()
    {
        let y = bottom + 20 + 20 * i32::try_from(index).unwrap_or(0);
        scene.rect(x, y - 7, 14, 14, color);
        scene.frame(x, y - 7, 14, 14, AXIS);
        scene.text((x + 20, y), text, (SMALL, MUTED), Anchor::Left);
    }
}
