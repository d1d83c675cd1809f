//! Rows held over positions, with compactions and the four firsts.

use super::axis::{Axis, thin};
use super::palette::{RUNS, Rgb};
use super::plot::{
    Flags, Key, KeyShape, LEFT, Plot, RIGHT, SMALL, WIDTH, heading, legend, triangle,
};
use super::scene::{Anchor, Scene};
use crate::model::{Timeline, TimelineRun};

const DASHES: [Option<(i32, i32)>; 6] =
    [None, Some((9, 5)), Some((3, 4)), Some((14, 4)), Some((5, 8)), Some((2, 2))];

/// Runs whose lines fall on each other are drawn once and named together.
fn merged(timeline: &Timeline) -> Vec<(String, &TimelineRun)> {
    let mut lines: Vec<(String, &TimelineRun)> = Vec::new();
    for run in &timeline.runs {
        match lines.iter_mut().find(|(_, other)| other.points == run.points) {
            Some((label, _)) => {
                label.push_str(", ");
                label.push_str(&run.label);
            }
            None => lines.push((run.label.clone(), run)),
        }
    }
    lines
}

/// Words for readers who do not see the figure.
pub(crate) fn alt(timeline: &Timeline) -> String {
    let mut parts =
        vec![format!("Cache rows held over positions of sample {}.", timeline.sample_id)];
    parts.extend(timeline.runs.iter().map(|run| {
        let most = run.points.iter().map(|point| point.1).max().unwrap_or(0);
        format!("{}: {} compactions, at most {most} rows.", run.label, run.compactions.len())
    }));
    parts.extend(timeline.firsts.named().map(|(name, position)| match position {
        Some(position) => format!("First {name} difference at {position}."),
        None => format!("No {name} difference."),
    }));
    parts.join(" ")
}

/// Draws a time line.
pub(crate) fn scene(timeline: &Timeline) -> Scene {
    let lines = merged(timeline);
    let points = || timeline.runs.iter().flat_map(|run| &run.points);
    let low = points().map(|point| point.0).min().unwrap_or(0);
    let high = points().map(|point| point.0).max().unwrap_or(1);
    let rows = points().map(|point| point.1).max().unwrap_or(1);
    let x = Axis::linear(f64::from(low), f64::from(high), LEFT, RIGHT);
    let flags = Flags::new(&timeline.firsts, timeline.dependent_from);

    let mut scene = Scene::new(WIDTH, 0);
    let line = if timeline.firsts_of.is_empty() {
        format!("sample {}", timeline.sample_id)
    } else {
        format!("sample {} · firsts: {}", timeline.sample_id, timeline.firsts_of)
    };
    heading(&mut scene, "Cache rows held, compactions, and where the runs part", &line);
    let mut keys: Vec<Key> = lines
        .iter()
        .enumerate()
        .map(|(index, (label, _))| Key {
            text: label.clone(),
            color: style(index).0,
            shape: KeyShape::Line(style(index).1),
        })
        .collect();
    if lines.iter().any(|(_, run)| !run.compactions.is_empty()) {
        let color = lines.iter().position(|(_, run)| !run.compactions.is_empty()).unwrap_or(0);
        keys.push(Key {
            text: "compaction (ordinal)".to_owned(),
            color: style(color).0,
            shape: KeyShape::Triangle,
        });
    }
    let top = legend(&mut scene, &keys, LEFT, 82) + 22 + flags.height(&x);
    let bottom = top + 330;
    let plot = Plot { x, y: Axis::linear(0.0, f64::from(rows) * 1.08, bottom, top), top, bottom };
    plot.shades(&mut scene, timeline.prompt_len, timeline.dependent_from);
    plot.vertical_axis(&mut scene, "rows held", 6);
    plot.horizontal_axis(&mut scene, "absolute position (tokens)");
    if let Some(prompt) = timeline.prompt_len {
        let end = plot.x.at(f64::from(prompt));
        let text = format!("prompt: {prompt}");
        if end - LEFT > super::font::width(&text, SMALL) + 16 {
            scene.text((LEFT + 10, top + 14), &text, (SMALL, super::palette::MUTED), Anchor::Left);
        }
    }
    flags.draw(&mut scene, &plot.x, top, bottom);
    for (index, (_, run)) in lines.iter().enumerate() {
        let (color, dash) = style(index);
        let path =
            run.points.iter().map(|(p, r)| (plot.x.at(f64::from(*p)), plot.y.at(f64::from(*r))));
        scene.dashed(path.collect(), color, 3, dash);
    }
    for (index, (_, run)) in lines.iter().enumerate() {
        compactions(&mut scene, &plot, run, style(index).0);
    }
    scene.height = bottom + 58;
    finish(scene)
}

fn style(index: usize) -> (Rgb, Option<(i32, i32)>) {
    (RUNS[index % RUNS.len()], DASHES[index % DASHES.len()])
}

/// Markers above the upper end of each drop, with ordinals where they have room.
fn compactions(scene: &mut Scene, plot: &Plot, run: &TimelineRun, color: Rgb) {
    let place = |index: usize| {
        let point = &run.compactions[index];
        (plot.x.at(f64::from(point.position)), plot.y.at(f64::from(point.rows_before) + 1.0))
    };
    let labels: Vec<(i32, String)> = (0..run.compactions.len())
        .map(|index| (place(index).0, run.compactions[index].ordinal.to_string()))
        .collect();
    let named = thin(&labels, SMALL);
    for (index, (_, label)) in labels.iter().enumerate() {
        let (x, y) = place(index);
        triangle(scene, x, y - 4, color);
        if named.contains(&index) {
            scene.text((x + 9, y - 11), label, (SMALL, color), Anchor::Left);
        }
    }
}

/// Gives the background the height that the scene ended with.
pub(super) fn finish(mut scene: Scene) -> Scene {
    let mut marks = Scene::new(scene.width, scene.height).marks;
    marks.append(&mut scene.marks);
    scene.marks = marks;
    scene
}
