//! Hypotheses about attention: which rows are seen, by which heads, and whether the cache holds what it should.

use lockstep_reference::forward::CacheRows;
use lockstep_reference::forward::stages::{Row, attend, repeated, tiled};
use lockstep_traces::Cause;

use super::compare::distance;
use super::passes::Pass;
use super::{Named, Scene, figure};
use crate::ReplayError;

/// The cache as the row saw it, from the reference's own rows, and what a broken cache would have held instead.
struct View {
    /// Live rows, the row itself last.
    rows: CacheRows,
    /// The same with V left where it stood at every compaction; `None` where none came before.
    values_left: Option<CacheRows>,
    /// K and V as they stood before the last compaction.
    before: Option<CacheRows>,
    /// Rows that the last compaction kept.
    kept: usize,
    /// The next token's row, where there is one.
    next: Option<CacheRows>,
}

/// One way in which the recorded values might have come about.
struct Tried {
    cause: Option<Cause>,
    what: String,
    error: f64,
    head: Option<u32>,
    row: Option<u32>,
}

impl Tried {
    fn new(cause: Cause, what: impl Into<String>, error: f64) -> Self {
        Self { cause: Some(cause), what: what.into(), error, head: None, row: None }
    }
}

/// Names what attention did instead. Queries are the recorded ones, keys and values the reference's: at the first layer
/// that departs they are what the run should have had.
pub(super) fn name(scene: &Scene<'_>) -> Result<Option<Named>, ReplayError> {
    let slot = scene.departure.slot;
    let (Some(layer), Some(row)) = (slot.layer, scene.row()) else { return Ok(None) };
    let (Some(q), Some(recorded)) = (row.get(slot.layer, "q_rope"), row.get(slot.layer, slot.name))
    else {
        return Ok(None);
    };
    let view = view(scene, layer)?;
    let heads = scene.model.hyper().heads;
    let query = Row { q, heads, kv_head: repeated };
    let error = |values: &[f64]| distance(values, recorded);
    let window = scene.model.hyper().window(layer);
    let oldest = window.map_or(0, |window| view.rows.rows.saturating_sub(window));
    let plain = attend(&query, &view.rows, |key| key >= oldest);
    let mut tried = vec![Tried::new(
        Cause::GqaTile,
        "heads tiled over KV heads",
        error(&attend(&Row { kv_head: tiled, ..query }, &view.rows, |key| key >= oldest)),
    )];
    tried.extend(masks(&query, &view, oldest, &error));
    if let Some(left) = &view.values_left {
        let what = "V not moved at any compaction";
        tried.push(Tried::new(
            Cause::ValueNotGathered,
            what,
            error(&attend(&query, left, |_| true)),
        ));
    }
    tried.extend(stale(&query, &view, recorded, &plain));
    let best = tried.iter().min_by(|a, b| a.error.total_cmp(&b.error));
    let expected = error(&plain);
    let Some(best) = best.filter(|best| scene.explains(best.error) && best.error * 4.0 < expected)
    else {
        return Ok(None);
    };
    let mut evidence = vec![figure("error_as_configured", expected)];
    evidence.extend(
        tried.iter().map(|tried| figure(&format!("error_if: {}", tried.what), tried.error)),
    );
    let title = match best.cause {
        Some(cause) => format!("{}: {}", cause.title(), best.what),
        None => best.what.clone(),
    };
    Ok(Some(Named { cause: best.cause, title, evidence, head: best.head, row: best.row }))
}

/// A row too few or too many.
fn masks(query: &Row<'_>, view: &View, oldest: usize, error: &dyn Fn(&[f64]) -> f64) -> Vec<Tried> {
    let last = view.rows.rows - 1;
    let mut tried = vec![
        Tried::new(
            Cause::CausalMask,
            "the row does not see itself",
            error(&attend(query, &view.rows, |key| key >= oldest && key != last)),
        ),
        Tried::new(
            Cause::CausalMask,
            "the first row is not seen",
            error(&attend(query, &view.rows, |key| key > oldest)),
        ),
        Tried::new(
            Cause::CausalMask,
            "one empty row more is seen",
            error(&attend(query, &with_zero_row(&view.rows), |key| key >= oldest)),
        ),
    ];
    if let Some(next) = &view.next {
        let what = "the next row is seen";
        let seen = attend(query, next, |key| key >= oldest);
        tried.push(Tried::new(Cause::CausalMask, what, error(&seen)));
    }
    if let Some(before) = oldest.checked_sub(1) {
        for (what, from) in
            [("the window is not applied", 0), ("the window is a row longer", before)]
        {
            let seen = attend(query, &view.rows, |key| key >= from);
            tried.push(Tried::new(Cause::CausalMask, what, error(&seen)));
        }
    }
    tried
}

/// One row of one KV head that holds another row's bytes: what stood there before the gather, or a neighbour.
fn stale(query: &Row<'_>, view: &View, recorded: &[f64], plain: &[f64]) -> Option<Tried> {
    let before = view.before.as_ref()?;
    let rows = &view.rows;
    let mut best: Option<Tried> = None;
    for head in 0..rows.heads {
        let sums = Sums::new(query, rows, head, plain);
        for place in 0..view.kept {
            let own = (rows.k_row(head, place), rows.v_row(head, place));
            let mut sources = vec![(before.k_row(head, place), before.v_row(head, place))];
            for neighbour in [place.checked_sub(1), Some(place + 1).filter(|n| *n < view.kept)] {
                sources.extend(neighbour.map(|n| (rows.k_row(head, n), rows.v_row(head, n))));
            }
            for (k, v) in sources {
                for other in [(k, v), (k, own.1), (own.0, v)] {
                    let error = distance(&sums.replaced(own, other), recorded);
                    if best.as_ref().is_none_or(|best| error < best.error) {
                        let what = format!("row {place} of KV head {head} holds another row");
                        best = Some(Tried {
                            head: u32::try_from(head).ok(),
                            row: u32::try_from(place).ok(),
                            ..Tried::new(Cause::StaleRow, what, error)
                        });
                    }
                }
            }
        }
    }
    best
}

/// Attention of one KV head's group taken apart, so that one row can be exchanged without summing over all others again.
struct Sums<'a> {
    /// Queries of the group, already scaled.
    q: Vec<Vec<f64>>,
    /// Largest score and the sum of exponentials, by query.
    totals: Vec<(f64, f64)>,
    /// Where the group's results stand in the whole row.
    start: usize,
    plain: &'a [f64],
}

impl<'a> Sums<'a> {
    fn new(query: &Row<'_>, rows: &CacheRows, head: usize, plain: &'a [f64]) -> Self {
        let (group, width) = (query.heads / rows.heads, rows.head_dim);
        let start = head * group * width;
        let scale = 1.0 / (width as f64).sqrt();
        let q: Vec<Vec<f64>> = query.q[start..start + group * width]
            .chunks_exact(width)
            .map(|q| q.iter().map(|v| v * scale).collect())
            .collect();
        let totals = q
            .iter()
            .map(|q| {
                let scores: Vec<f64> =
                    (0..rows.rows).map(|key| dot(q, rows.k_row(head, key))).collect();
                let highest = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                (highest, scores.iter().map(|score| (score - highest).exp()).sum())
            })
            .collect();
        Self { q, totals, start, plain }
    }

    /// The whole row with `own` taken out of this head's sums and `other` put in. K and V of a row each.
    fn replaced(&self, own: (&[f64], &[f64]), other: (&[f64], &[f64])) -> Vec<f64> {
        let width = own.0.len();
        let mut out = self.plain.to_vec();
        for (index, (q, (highest, total))) in self.q.iter().zip(&self.totals).enumerate() {
            let share = |k: &[f64]| (dot(q, k) - highest).exp();
            let (gone, come) = (share(own.0), share(other.0));
            let sum = total - gone + come;
            let at = self.start + index * width;
            for (i, value) in out[at..at + width].iter_mut().enumerate() {
                *value = (*value * total - gone * own.1[i] + come * other.1[i]) / sum;
            }
        }
        out
    }
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

fn with_zero_row(rows: &CacheRows) -> CacheRows {
    let width = rows.head_dim;
    let grown = |values: &[f64]| -> Vec<f64> {
        values
            .chunks_exact(rows.rows * width)
            .flat_map(|head| head.iter().copied().chain(std::iter::repeat_n(0.0, width)))
            .collect()
    };
    CacheRows { rows: rows.rows + 1, k: grown(&rows.k), v: grown(&rows.v), ..rows.clone() }
}

/// Keeps the first `kept` rows of each head.
fn truncated(values: &[f64], rows: usize, kept: usize, width: usize) -> Vec<f64> {
    let heads = values.chunks_exact((rows * width).max(1));
    heads.flat_map(|head| head[..kept.min(rows) * width].to_vec()).collect()
}

/// Appends to each head of `left` (`rows` rows) the rows of `all` beyond the first `from`.
fn appended(
    left: &[f64],
    rows: usize,
    all: &[f64],
    total: usize,
    from: usize,
    width: usize,
) -> Vec<f64> {
    let left = left.chunks_exact((rows * width).max(1));
    let all = all.chunks_exact((total * width).max(1));
    left.zip(all).flat_map(|(left, all)| [left, &all[from * width..]].concat()).collect()
}

/// Runs the reference up to the row and gathers what the hypotheses need of one layer.
fn view(scene: &Scene<'_>, layer: usize) -> Result<View, ReplayError> {
    let position = scene.departure.position as usize;
    let mut pass = Pass::new(scene.run, scene.recording, scene.model)?;
    let mut left: Option<(Vec<f64>, usize)> = None;
    let mut before = None;
    pass.advance(position, scene.chunk, &[], &mut |cache, kept| {
        let rows = cache.layer(layer)?;
        let (width, total) = (rows.head_dim, rows.rows);
        let stood = match &left {
            Some((values, since)) => appended(values, *since, &rows.v, total, *since, width),
            None => rows.v.clone(),
        };
        left = Some((truncated(&stood, total, kept, width), kept));
        before = Some(rows);
        Ok(())
    })?;
    pass.peek()?;
    let rows = pass.layer(layer)?;
    let values_left = left.as_ref().map(|(values, kept)| CacheRows {
        v: appended(values, *kept, &rows.v, rows.rows, *kept, rows.head_dim),
        ..rows.clone()
    });
    let seen = pass.rows();
    pass.peek()?;
    let next = if pass.rows() > seen { Some(pass.layer(layer)?) } else { None };
    let kept = left.map_or(0, |(_, kept)| kept);
    Ok(View { rows, values_left, before, kept, next })
}
