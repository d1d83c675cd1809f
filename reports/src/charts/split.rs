//! The two sides of a split: largest logits of each, what each chose, and by how much.

use super::axis::Axis;
use super::font;
use super::palette::{AXIS, BLUE, DROPPED, GRID, INK, MUTED, Rgb, VERMILION};
use super::plot::{SMALL, TEXT, WIDTH, heading};
use super::scene::{Anchor, Scene};
use super::timeline::finish;
use crate::model::{SplitSide, SplitView};
use crate::num::short;

const ROW: i32 = 30;
const PANEL: i32 = 556;
const NAMES: i32 = 180;
/// Room for the figure and the word behind each bar.
const VALUES: i32 = 150;

/// Words for readers who do not see the figure.
pub(crate) fn alt(view: &SplitView) -> String {
    let side = |side: &Option<SplitSide>| match side {
        None => "no such row".to_owned(),
        Some(side) => {
            let name = side
                .candidates
                .iter()
                .find(|candidate| Some(candidate.token.id) == side.chosen)
                .map_or_else(String::new, |candidate| format!(" \"{}\"", candidate.token.text));
            let chosen = side.chosen.map_or_else(|| "nothing".to_owned(), |id| id.to_string());
            let margin = side.margin.map_or_else(|| "unknown".to_owned(), |m| short(m.0, 4));
            format!("{} chose {chosen}{name}, margin {margin}", side.label)
        }
    };
    format!(
        "Row {} of sample {}: {}; {} ({}).",
        view.row,
        view.sample_id,
        side(&view.left),
        side(&view.right),
        view.note
    )
}

/// Draws both sides beside each other on one scale of logits.
pub(crate) fn scene(view: &SplitView) -> Scene {
    let mut scene = Scene::new(WIDTH, 0);
    heading(
        &mut scene,
        &format!("The split at row {}: what each side could have chosen", view.row),
        &format!(
            "sample {} · first {} · {} · the choice is fed at {}",
            view.sample_id,
            view.kind,
            view.class.replace('_', " "),
            view.fed_at
        ),
    );
    let sides = [&view.left, &view.right];
    let logits = || {
        sides
            .iter()
            .copied()
            .flatten()
            .flat_map(|side| &side.candidates)
            .filter_map(|candidate| candidate.logit)
            .map(|logit| logit.0)
            .filter(|logit| logit.is_finite())
    };
    let low = logits().fold(f64::INFINITY, f64::min);
    let high = logits().fold(f64::NEG_INFINITY, f64::max);
    let (low, high) = if low <= high { (low, high) } else { (0.0, 1.0) };
    let pad = ((high - low) * 0.06).max(1e-3);
    let range = (low - pad, high + pad);
    let rows = sides.iter().copied().flatten().map(|side| side.candidates.len()).max().unwrap_or(0);
    let height = i32::try_from(rows.min(12)).unwrap_or(12) * ROW;
    let others = [
        view.right.as_ref().and_then(|side| side.chosen),
        view.left.as_ref().and_then(|side| side.chosen),
    ];
    for (index, side) in sides.into_iter().enumerate() {
        let left = if index == 0 { 28 } else { WIDTH - 28 - PANEL };
        let color = if index == 0 { BLUE } else { VERMILION };
        match side {
            Some(side) => panel(&mut scene, side, others[index], (left, height), range, color),
            None => {
                scene.text((left, 100), "this side has no such row", (TEXT, MUTED), Anchor::Left);
            }
        }
    }
    scene.height = 138 + height + 58;
    finish(scene)
}

fn panel(
    scene: &mut Scene,
    side: &SplitSide,
    other: Option<u32>,
    (left, height): (i32, i32),
    range: (f64, f64),
    color: Rgb,
) {
    let label = font::fit(&side.label, 19, PANEL);
    scene.text((left, 90), &label, (19, color), Anchor::Left);
    scene.text((left, 114), &font::fit(&facts(side), TEXT, PANEL), (TEXT, MUTED), Anchor::Left);
    let axis = Axis::linear(range.0, range.1, left + NAMES, left + PANEL - VALUES);
    let (top, bottom) = (138, 138 + height);
    for (value, label) in axis.ticks(5) {
        let x = axis.at(value);
        scene.line(vec![(x, top), (x, bottom)], GRID, 1);
        scene.text((x, bottom + 14), &label, (SMALL, MUTED), Anchor::Middle);
    }
    scene.line(vec![(axis.from, bottom), (left + PANEL - VALUES, bottom)], AXIS, 1);
    scene.text(
        ((axis.from + axis.to) / 2, bottom + 36),
        "logit (same scale on both sides)",
        (SMALL, INK),
        Anchor::Middle,
    );
    for (index, candidate) in side.candidates.iter().take(12).enumerate() {
        let y = top + ROW * i32::try_from(index).unwrap_or(0) + ROW / 2;
        let chosen = side.chosen == Some(candidate.token.id);
        let others = other == Some(candidate.token.id);
        let name = format!("{} · {}", quoted(&candidate.token.text), candidate.token.id);
        let ink = if chosen || others { INK } else { MUTED };
        scene.text(
            (left + NAMES - 10, y),
            &font::fit(&name, TEXT, NAMES - 14),
            (TEXT, ink),
            Anchor::Right,
        );
        let fill = if chosen { color } else { DROPPED };
        let end = match candidate.logit {
            Some(logit) if logit.0.is_finite() => {
                let end = axis.at(logit.0);
                scene.rect(axis.from, y - 3, end - axis.from, 6, fill);
                if chosen {
                    scene.disc(end, y, 8, fill);
                } else if others {
                    scene.ring(end, y, 7, INK);
                } else {
                    scene.disc(end, y, 5, fill);
                }
                (end + 14, short(logit.0, 6))
            }
            _ => (axis.from + 6, "not finite".to_owned()),
        };
        let word = match (chosen, others) {
            (true, true) => " ◀ both chose",
            (true, false) => " ◀ chosen",
            (false, true) => " ○ other's",
            (false, false) => "",
        };
        let text = format!("{}{word}", end.1);
        let wide = font::width(&text, SMALL);
        let at = if end.0 + wide > left + PANEL { left + PANEL - wide } else { end.0 };
        scene.rect(at - 2, y - 9, wide + 4, 18, super::palette::PAPER);
        scene.text((at, y), &text, (SMALL, ink), Anchor::Left);
    }
}

/// Margin, gap and draw in a line.
fn facts(side: &SplitSide) -> String {
    let mut facts = Vec::new();
    if let Some(margin) = side.margin {
        facts.push(format!("margin {}", short(margin.0, 4)));
    }
    if let Some(gap) = side.gap {
        let ulps = side.gap_ulps.map_or_else(String::new, |u| format!(" ({} ULP)", short(u.0, 4)));
        facts.push(format!("gap to the other's choice {}{ulps}", short(gap.0, 4)));
    }
    if let Some(uniform) = side.uniform {
        facts.push(format!("draw {}", short(uniform.0, 6)));
    }
    facts.extend(side.rows_before.map(|rows| format!("{rows} rows")));
    facts.join(" · ")
}

fn quoted(text: &str) -> String {
    format!("\u{201c}{}\u{201d}", text.replace(' ', "\u{b7}"))
}
