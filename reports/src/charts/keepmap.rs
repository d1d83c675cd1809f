//! Rows kept and dropped by one compaction, one lane per head.

use super::axis::Axis;
use super::font;
use super::palette::{AXIS, BLUE, DROPPED, GREEN, INK, MUTED, ORANGE, PURPLE, Rgb};
use super::plot::{Key, KeyShape, RIGHT, SMALL, TEXT, WIDTH, heading, legend};
use super::scene::{Anchor, Scene};
use super::timeline::finish;
use crate::model::{KeepHead, KeepMap, RowClass};

const LEFT: i32 = 150;
const COUNTS: i32 = 200;
const MOST_LANES: usize = 48;

/// Words for readers who do not see the figure.
pub(crate) fn alt(map: &KeepMap) -> String {
    let counts = map.counts;
    let text = format!(
        "Compaction {} of sample {}: over {} heads, {} rows protected, {} kept, {} dropped",
        map.ordinal,
        map.sample_id,
        map.heads.len(),
        counts.protected,
        counts.kept,
        counts.dropped
    );
    match &map.right_label {
        None => format!("{text}."),
        Some(right) => format!(
            "{text}, {} kept by {} only, {} by {right} only.",
            counts.left_only, map.left_label, counts.right_only
        ),
    }
}

/// Colour and height (of 14) of each class: shapes differ as well as colours.
fn look(class: RowClass) -> (Rgb, i32) {
    match class {
        RowClass::Protected => (GREEN, 9),
        RowClass::Kept => (BLUE, 14),
        RowClass::Dropped => (DROPPED, 4),
        RowClass::LeftOnly => (ORANGE, 14),
        RowClass::RightOnly => (PURPLE, 14),
    }
}

fn disagreeing(head: &KeepHead) -> u64 {
    head.counts.left_only + head.counts.right_only
}

/// Heads as drawn: all, or with too many of them those that disagree most.
fn drawn_heads(map: &KeepMap) -> Vec<&KeepHead> {
    if map.heads.len() <= MOST_LANES {
        return map.heads.iter().collect();
    }
    let mut order: Vec<usize> = (0..map.heads.len()).collect();
    order.sort_by_key(|index| (std::cmp::Reverse(disagreeing(&map.heads[*index])), *index));
    order.truncate(MOST_LANES);
    order.sort_unstable();
    order.into_iter().map(|index| &map.heads[index]).collect()
}

fn lane_name(head: &KeepHead) -> String {
    match (head.layer, head.head) {
        (Some(layer), Some(head)) => format!("layer {layer} head {head}"),
        (Some(layer), None) => format!("layer {layer}"),
        (None, Some(head)) => format!("KV head {head}"),
        (None, None) => "all heads".to_owned(),
    }
}

/// Draws the map.
pub(crate) fn scene(map: &KeepMap) -> Scene {
    let heads = drawn_heads(map);
    let (left, right) = (LEFT, RIGHT - COUNTS);
    let per_pixel = (map.rows.max(1)).div_ceil((right - left).unsigned_abs()).max(1);
    let mut scene = Scene::new(WIDTH, 0);
    let mut line = vec![format!("sample {} · {} rows before", map.sample_id, map.rows)];
    line.push(match &map.right_label {
        Some(other) => format!("{} against {other}", map.left_label),
        None => map.left_label.clone(),
    });
    if heads.len() < map.heads.len() {
        let (drawn, all) = (heads.len(), map.heads.len());
        line.push(format!("{drawn} of {all} heads drawn, those that disagree most"));
    }
    if per_pixel > 1 {
        line.push(format!("{per_pixel} rows a column, height is the share kept"));
    }
    let line = line.join(" · ");
    heading(&mut scene, &format!("Compaction {}: rows kept by head", map.ordinal), &line);
    let top = legend(&mut scene, &keys(map), 28, 82) + 40;
    let lane = (400 / i32::try_from(heads.len().max(1)).unwrap_or(400)).clamp(17, 34);
    let x = Axis::linear(0.0, f64::from(map.rows.max(1)), left, right);
    for (index, head) in heads.iter().enumerate() {
        let base = top + lane * (i32::try_from(index).unwrap_or(0) + 1) - 3;
        row(&mut scene, head, &x, (base, lane - 5), per_pixel);
        scene.line(vec![(left, base), (right, base)], AXIS, 1);
        let name = font::fit(&lane_name(head), SMALL, LEFT - 34);
        scene.text((left - 8, base - lane / 2 + 2), &name, (SMALL, INK), Anchor::Right);
        let counts = head.counts;
        let kept = counts.protected + counts.kept;
        let text = if map.right_label.is_some() {
            format!("{} kept · {} differ", kept + counts.left_only, disagreeing(head))
        } else {
            format!("{kept} kept · {} dropped", counts.dropped)
        };
        scene.text((right + 12, base - lane / 2 + 2), &text, (SMALL, MUTED), Anchor::Left);
    }
    let bottom = top + lane * i32::try_from(heads.len()).unwrap_or(0) + 4;
    bottom_axis(&mut scene, map, &x, (top, bottom));
    scene.height = bottom + 58;
    finish(scene)
}

fn keys(map: &KeepMap) -> Vec<Key> {
    let key = |class: RowClass, text: String| Key {
        text,
        color: look(class).0,
        shape: KeyShape::Box(look(class).1),
    };
    let mut keys = vec![
        key(RowClass::Protected, "protected".to_owned()),
        key(RowClass::Kept, "kept".to_owned()),
        key(RowClass::Dropped, "dropped".to_owned()),
    ];
    if let Some(right) = &map.right_label {
        keys.push(key(RowClass::LeftOnly, format!("disagreeing: {} only", map.left_label)));
        keys.push(key(RowClass::RightOnly, format!("disagreeing: {right} only")));
        keys.push(Key { text: "disagrees here".to_owned(), color: INK, shape: KeyShape::Triangle });
    }
    keys
}

fn bottom_axis(scene: &mut Scene, map: &KeepMap, x: &Axis, (top, bottom): (i32, i32)) {
    if let Some(prompt) = map.prompt_len.filter(|prompt| *prompt < map.rows) {
        let at = x.at(f64::from(prompt));
        scene.dashed(vec![(at, top - 8), (at, bottom)], INK, 1, Some((3, 3)));
        let text = format!("prompt ends: {prompt}");
        let wide = font::width(&text, SMALL);
        scene.text(((at - wide / 2).max(x.from), top - 12), &text, (SMALL, INK), Anchor::Left);
    }
    for (value, label) in x.ticks(10) {
        if value.fract() == 0.0 {
            let at = x.at(value);
            scene.line(vec![(at, bottom), (at, bottom + 5)], AXIS, 1);
            scene.text((at, bottom + 16), &label, (SMALL, MUTED), Anchor::Middle);
        }
    }
    scene.text(
        ((x.from + x.to) / 2, bottom + 38),
        "cache row before the compaction",
        (TEXT, INK),
        Anchor::Middle,
    );
}

/// What a column of rows shows: its class, and its height as a share of 14.
type Column = (RowClass, i32);

/// A disagreement is never hidden by its neighbours; protected rows only where all are; else the share that is kept.
fn column(rows: &[RowClass]) -> Option<Column> {
    let differs =
        rows.iter().find(|class| matches!(class, RowClass::LeftOnly | RowClass::RightOnly));
    if let Some(class) = differs {
        return Some((*class, look(*class).1));
    }
    let first = *rows.first()?;
    if rows.iter().all(|class| *class == first) {
        return Some((first, look(first).1));
    }
    let (low, high) = (look(RowClass::Dropped).1, look(RowClass::Kept).1);
    let kept = rows.iter().filter(|class| **class != RowClass::Dropped).count();
    let share = kept as f64 / rows.len() as f64;
    let tall = f64::from(low) + f64::from(high - low) * share;
    Some((RowClass::Kept, tall.round() as i32))
}

fn row(scene: &mut Scene, head: &KeepHead, x: &Axis, (base, high): (i32, i32), per_pixel: u32) {
    let classes: Vec<RowClass> = head.rows.chars().filter_map(RowClass::from_letter).collect();
    let columns: Vec<Column> =
        classes.chunks(usize::try_from(per_pixel).unwrap_or(1)).filter_map(column).collect();
    let edge = |column: usize| {
        let row = (column as u64 * u64::from(per_pixel)).min(classes.len() as u64);
        x.at(row as f64)
    };
    let tall = |column: &Column| (high * column.1 / 14).max(2);
    let mut start = 0;
    let mut last_marker = i32::MIN / 2;
    while start < columns.len() {
        let class = columns[start].0;
        let end = start + columns[start..].iter().take_while(|one| one.0 == class).count();
        let stretch = &columns[start..end];
        if stretch.iter().all(|one| one.1 == stretch[0].1) {
            let wide = (edge(end) - edge(start)).max(1);
            scene.rect(
                edge(start),
                base - tall(&stretch[0]),
                wide,
                tall(&stretch[0]),
                look(class).0,
            );
        } else {
            let steps = stretch.iter().enumerate().flat_map(|(at, one)| {
                let top = base - tall(one);
                [(edge(start + at), top), (edge(start + at + 1), top)]
            });
            let mut outline = vec![(edge(start), base)];
            outline.extend(steps);
            outline.push((edge(end), base));
            scene.polygon(outline, look(class).0);
        }
        let middle = i32::midpoint(edge(start), edge(end));
        let differs = matches!(class, RowClass::LeftOnly | RowClass::RightOnly);
        if differs && middle - last_marker >= 9 {
            let (tip, top) = (base - high + 2, base - high - 4);
            scene.polygon(vec![(middle, tip), (middle - 4, top), (middle + 4, top)], INK);
            last_marker = middle;
        }
        start = end;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disagreement_is_never_hidden_by_its_neighbours() {
        use RowClass::{Dropped, Kept, LeftOnly, Protected};
        assert_eq!(column(&[Kept, Kept, LeftOnly, Kept]), Some((LeftOnly, 14)));
        assert_eq!(column(&[Kept, Dropped]), Some((Kept, 9)));
        assert_eq!(column(&[Dropped, Dropped]), Some((Dropped, 4)));
        assert_eq!(column(&[Protected]), Some((Protected, 9)));
        assert_eq!(column(&[]), None);
    }
}
