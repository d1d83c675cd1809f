//! Hypotheses about RoPE: another base, another index.

use lockstep_reference::forward::stages;
use lockstep_reference::rope::Rope;
use lockstep_traces::Cause;

use super::compare::distance;
use super::observed::Observed;
use super::{Named, Scene, figure};
use crate::ReplayError;

/// Bases searched, as natural logarithms: 10 to 1e9.
const BASES: (f64, f64) = (std::f64::consts::LN_10, 9.0 * std::f64::consts::LN_10);

/// What is asked about a rotation.
#[derive(Debug, Clone, Copy)]
struct Question<'a> {
    rope: &'a Rope,
    /// Where the row stands, and so what it should have been turned by.
    position: u32,
    /// Live rows when it was appended.
    physical: i64,
    /// Has a compaction come before?
    dropped: bool,
    tolerance: f64,
}

impl<'a> Question<'a> {
    fn new(scene: &'a Scene<'_>, position: u32) -> Self {
        let events = &scene.recording.events;
        Self {
            rope: &scene.model.hyper().rope,
            position,
            physical: scene.recording.expected_rows(position),
            dropped: events.iter().any(|event| event.absolute_position <= position),
            tolerance: scene.departure.tolerance,
        }
    }
}

/// Names what turned one key of the cache: `exact` is the reference's row, `recorded` the run's, both rotated.
pub(super) fn of_key(
    scene: &Scene<'_>,
    position: u32,
    exact: &[f64],
    recorded: &[f64],
) -> Option<Named> {
    let question = Question::new(scene, position);
    let rope = question.rope;
    let back = 1.0 / (rope.attention_scaling * rope.attention_scaling);
    let before = stages::rotate(
        exact,
        &rope.inv_freq(),
        -f64::from(position),
        rope.attention_scaling * back,
    );
    let turn = Turn::new(&before, recorded, exact.len() / 2);
    let configured = turn.error(rope, f64::from(position));
    index(&question, &turn, configured).or_else(|| base(&question, &turn, configured))
}

/// Before and after the rotation, by head and frequency: all that a search needs of a row.
#[derive(Debug)]
struct Turn<'a> {
    before: &'a [f64],
    after: &'a [f64],
    /// `sum over heads of after * conj(before)` by frequency: its argument is the angle turned.
    products: Vec<(f64, f64)>,
}

impl<'a> Turn<'a> {
    fn new(before: &'a [f64], after: &'a [f64], half: usize) -> Self {
        let mut products = vec![(0.0, 0.0); half];
        for (b, a) in before.chunks_exact(2 * half).zip(after.chunks_exact(2 * half)) {
            for (i, product) in products.iter_mut().enumerate() {
                product.0 += a[i] * b[i] + a[half + i] * b[half + i];
                product.1 += a[half + i] * b[i] - a[i] * b[half + i];
            }
        }
        Self { before, after, products }
    }

    /// Agreement with a rotation by `index`; largest where the angles fit.
    fn agreement(&self, freqs: &[f32], index: f64) -> f64 {
        let terms = self.products.iter().zip(freqs);
        terms
            .map(|((re, im), freq)| {
                let (sin, cos) = (index * f64::from(*freq)).sin_cos();
                re * cos + im * sin
            })
            .sum()
    }

    fn error(&self, rope: &Rope, index: f64) -> f64 {
        let turned = stages::rotate(self.before, &rope.inv_freq(), index, rope.attention_scaling);
        distance(&turned, self.after)
    }
}

/// Recorded values before the rotation: after the norm, or the projection where there is none.
fn before<'a>(
    row: &'a Observed,
    layer: Option<usize>,
    name: &str,
    normed: bool,
) -> Option<&'a [f64]> {
    match (name, normed) {
        ("q_rope", true) => row.get(layer, "q_norm"),
        ("q_rope", false) => row.get(layer, "q_proj"),
        (_, true) => row.get(layer, "k_norm"),
        (_, false) => row.get(layer, "k_proj"),
    }
}

/// Names what the rotation did instead.
pub(super) fn name(scene: &Scene<'_>) -> Result<Option<Named>, ReplayError> {
    let hyper = scene.model.hyper();
    let (slot, position) = (scene.departure.slot, scene.departure.position);
    let Some(row) = scene.row() else { return Ok(None) };
    let Some(after) = row.get(slot.layer, slot.name) else { return Ok(None) };
    let half = hyper.head_dim / 2;
    // Where the norm left no record of itself, the projection may have been rotated as it was.
    let skipped = hyper.qk_norm() && before(row, slot.layer, slot.name, true).is_none();
    let Some(input) = before(row, slot.layer, slot.name, hyper.qk_norm() && !skipped) else {
        return Ok(None);
    };
    let turn = Turn::new(input, after, half);
    let configured = turn.error(&hyper.rope, f64::from(position));
    if skipped && scene.explains(configured) {
        return Ok(Some(Named {
            cause: Some(Cause::QkNormSkipped),
            title: format!("{}: the projection itself was rotated", Cause::QkNormSkipped.title()),
            evidence: vec![figure("error_if_skipped", configured)],
            head: None,
            row: None,
        }));
    }
    let question = Question::new(scene, position);
    Ok(index(&question, &turn, configured).or_else(|| base(&question, &turn, configured)))
}

/// Was the row turned by another whole index?
fn index(question: &Question<'_>, turn: &Turn<'_>, configured: f64) -> Option<Named> {
    let Question { rope, position, physical, dropped, tolerance } = *question;
    let freqs = rope.inv_freq();
    let last = i64::from(position).max(physical) + 64;
    let best = (0..=last).max_by(|a, b| {
        turn.agreement(&freqs, *a as f64).total_cmp(&turn.agreement(&freqs, *b as f64))
    })?;
    let error = turn.error(rope, best as f64);
    if best == i64::from(position) || error > tolerance {
        return None;
    }
    let named = best == physical && dropped;
    let title = if named {
        format!("{}: index {best} at position {position}", Cause::PhysicalPositions.title())
    } else {
        format!("the row is rotated by index {best} instead of its position {position}")
    };
    Some(Named {
        cause: named.then_some(Cause::PhysicalPositions),
        title,
        evidence: vec![
            figure("index_estimated", best),
            figure("position", position),
            figure("rows_before", physical),
            figure("error_with_estimate", error),
            figure("error_with_position", configured),
        ],
        head: None,
        row: None,
    })
}

/// Was it turned with another base?
fn base(question: &Question<'_>, turn: &Turn<'_>, configured: f64) -> Option<Named> {
    let rope = question.rope;
    let position = f64::from(question.position);
    let agreement = |log: f64| turn.agreement(&rope.with_theta(log.exp()).inv_freq(), position);
    // The fastest angle moves by at most position / e per unit of ln(theta): steps of a third of a radian.
    let cells = ((BASES.1 - BASES.0) * position * 1.2).clamp(2000.0, 400_000.0);
    let step = (BASES.1 - BASES.0) / cells;
    let at = |cell: usize| BASES.0 + step * cell as f64;
    let best = (0..=cells as usize)
        .map(|cell| (cell, agreement(at(cell))))
        .max_by(|a, b| a.1.total_cmp(&b.1))?
        .0;
    let theta = peak(&agreement, at(best) - step, at(best) + step).exp();
    let error = turn.error(&rope.with_theta(theta), position);
    if error > question.tolerance {
        return None;
    }
    Some(Named {
        cause: Some(Cause::RotaryBase),
        title: format!(
            "{}: about {theta:.6} where the model has {}",
            Cause::RotaryBase.title(),
            rope.theta
        ),
        evidence: vec![
            figure("theta_estimated", theta),
            figure("theta_configured", rope.theta),
            figure("error_with_estimate", error),
            figure("error_with_configured", configured),
        ],
        head: None,
        row: None,
    })
}

/// The maximum of a function with one peak in an interval, by golden section.
fn peak(value: &dyn Fn(f64) -> f64, mut low: f64, mut high: f64) -> f64 {
    let golden = (5f64.sqrt() - 1.0) / 2.0;
    for _ in 0..60 {
        let (left, right) = (high - golden * (high - low), low + golden * (high - low));
        if value(left) > value(right) { high = right } else { low = left }
    }
    f64::midpoint(low, high)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_turned_angle_is_read_off_before_and_after() {
        let before = [1.0, 0.5, -0.25, 2.0];
        let after = stages::rotate(&before, &[0.3, 0.01], 5.0, 1.0);
        let turn = Turn::new(&before, &after, 2);
        for (product, angle) in turn.products.iter().zip([1.5, 0.05]) {
            assert!((product.1.atan2(product.0) - angle).abs() < 1e-6);
        }
        let best = (0..20).max_by(|a, b| {
            let at = |i: i32| turn.agreement(&[0.3, 0.01], f64::from(i));
            at(*a).total_cmp(&at(*b))
        });
        assert_eq!(best, Some(5));
    }

    #[test]
    fn a_peak_is_found_inside_its_interval() {
        let found = peak(&|x: f64| -(x - 0.3).powi(2), 0.0, 1.0);
        assert!((found - 0.3).abs() < 1e-6);
    }
}
