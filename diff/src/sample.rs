//! Comparison of one sample, row by row up to the first fed token that differs.

use lockstep_traces::{Phase, Verdict};

use crate::align::{self, Paired};
use crate::context::Context;
use crate::factor;
use crate::precision::Scale;
use crate::report::{Alignment, SampleDiff};
use crate::series;
use crate::side::{Row, Track};
use crate::splits::{Offsets, offsets};
use crate::verdict::{Facts, judge};
use crate::walk::{Walk, drives, point};

/// One sample, with what only the comparison as a whole turns into findings.
#[derive(Debug)]
pub(crate) struct Compared {
    pub(crate) diff: SampleDiff,
    pub(crate) offsets: Option<Offsets>,
    pub(crate) token_lag: Option<i64>,
    pub(crate) contradictions: u64,
    /// Rows whose chosen token is not what was fed next, on either side: `left` or `right`, first position, how many.
    pub(crate) unfed: Vec<(&'static str, u32, u64)>,
    /// Values differ by this factor in every row.
    pub(crate) factor: Option<factor::Found>,
}

/// Compares one sample.
pub(crate) fn compare(left: &Track<'_>, right: &Track<'_>, ctx: &Context<'_>) -> Compared {
    let paired = align::pair(left, right, ctx.options.align);
    let independent = paired
        .pairs
        .iter()
        .position(|(l, r)| left.fed_differs(*l, right, *r))
        .unwrap_or(paired.pairs.len());
    let mut walk = Walk::default();
    for (n, (l, r)) in paired.pairs.iter().enumerate() {
        let (Some(a), Some(b)) = (left.row(*l), right.row(*r)) else { continue };
        if n < independent {
            let chosen = decided((left, *l, &a), (right, *r, &b), ctx);
            walk.row(&a, &b, chosen, drives(left, *l) || drives(right, *r), ctx);
        } else {
            walk.points.push(point(&a, &b, None, true));
        }
    }
    let rows = || {
        let pairs = paired.pairs.iter().take(independent);
        pairs.filter_map(|(l, r)| left.row(*l).zip(right.row(*r)))
    };
    let shift = if ctx.rows.exact() { offsets(rows()) } else { None };
    let token_lag = align::token_lag(left, right, &paired.pairs);
    let mut remarks = Vec::new();
    let unfinished = walk.presence(left, right, &paired, independent, ctx, &mut remarks);
    walk.events(left, right, &paired, independent, ctx);
    walk.notes(ctx, &mut remarks);
    let contradictions = walk.contradictions;
    if let Some(line) = walk.unknown.line() {
        remarks.push(line);
    }
    let factor = if walk.differing > 0 { walk.factor.find() } else { None };
    let mut diff =
        assemble(walk, left, right, &paired, independent, ctx, shift, unfinished, remarks);
    let unfed = match token_lag {
        // A lag says all of it.
        Some(_) => Vec::new(),
        None => unfed(left, right),
    };
    if let Some((side, position, _)) = unfed.first().filter(|_| diff.verdict.exit_code() == 0) {
        let why = format!(
            "the {side} trace contradicts itself: position {position} chose a token that was not fed next"
        );
        diff.summary.clone_from(&why);
        diff.verdict = Verdict::Incomparable { why };
    }
    Compared { diff, offsets: shift, token_lag, contradictions, unfed, factor }
}

fn unfed(left: &Track<'_>, right: &Track<'_>) -> Vec<(&'static str, u32, u64)> {
    [("left", left), ("right", right)]
        .into_iter()
        .filter_map(|(side, track)| {
            track.contradictions().map(|(position, count)| (side, position, count))
        })
        .collect()
}

/// Tokens that a pair of rows decided: those fed next, and where these do not part the ones that the rows record, if they do.
/// A teacher's sample is not held against a random draw: its own choices are no draws of that stream.
fn decided(
    left: (&Track<'_>, usize, &Row<'_>),
    right: (&Track<'_>, usize, &Row<'_>),
    ctx: &Context<'_>,
) -> (Option<u32>, Option<u32>) {
    let fed = (left.0.chosen(left.1), right.0.chosen(right.1));
    let parted = fed.0.zip(fed.1).is_some_and(|(l, r)| l != r);
    let recorded = (left.2.next_token, right.2.next_token);
    let differ = recorded.0.zip(recorded.1).is_some_and(|(l, r)| l != r);
    let drawn = ctx.draws && (left.0.taught || right.0.taught);
    if differ && !parted && !drawn { recorded } else { fed }
}

#[expect(clippy::too_many_arguments, reason = "parts of one result, assembled in one place")]
fn assemble(
    walk: Walk,
    left: &Track<'_>,
    right: &Track<'_>,
    paired: &Paired,
    independent: usize,
    ctx: &Context<'_>,
    shift: Option<Offsets>,
    unfinished: Option<String>,
    remarks: Vec<String>,
) -> SampleDiff {
    let dependent = paired.pairs.get(independent);
    let dependent_from = dependent.and_then(|(l, _)| left.position(*l));
    let in_prompt = dependent.is_some_and(|(l, r)| {
        let prompt = |row: Option<Row<'_>>| row.is_some_and(|row| row.phase == Phase::Prompt);
        prompt(left.row(*l)) && prompt(right.row(*r))
    });
    let prompt_differs_at = dependent_from.filter(|_| independent == 0 || in_prompt);
    let rows_offset = match shift {
        Some(Offsets::Constant(offset)) => Some(offset),
        _ => None,
    };
    let alignment = Alignment { by: paired.by, offset: paired.offset, rows_offset };
    let stats = walk.figures.finish();
    let firsts =
        [&walk.splits.structural, &walk.splits.logit, &walk.splits.argmax, &walk.splits.token];
    let mut keep: Vec<u32> = firsts.into_iter().flatten().map(|split| split.position).collect();
    keep.extend(dependent_from);
    let mut series = series::thin(walk.points, &keep);
    series.left_compactions = series::marks(ctx.left.events_of(left.id).into_values());
    series.right_compactions = series::marks(ctx.right.events_of(right.id).into_values());
    let (verdict, summary) = judge(&Facts {
        splits: &walk.splits,
        tie_parting: walk.tie_parting.as_ref(),
        alignment,
        prompt_differs_at,
        compared: independent as u64,
        without_logits: walk.without_logits,
        differing: walk.differing,
        one_non_finite: walk.one_non_finite,
        both_non_finite: walk.both_non_finite,
        tie_flips: walk.tie_flips,
        relative_l2: stats.relative_l2,
        max_abs: stats.max_diff.as_ref().map(|max| max.abs),
        exact: ctx.logit.exact,
        digits_only: ctx.logit.digits_only(),
        scale: ctx.logit.scale,
        noun: noun(ctx),
        rows_known: ctx.rows.known,
        lacking: ctx.available.lacking(),
        prompt_flips: walk.first_prompt_flip.map(|first| (walk.prompt_flips, first)),
        tokens_compared: if left.taught || right.taught { 0 } else { walk.tokens_compared },
        unfinished,
        noise: ctx.noise,
        tolerance: ctx.options.tolerance,
    });
    let texts = left.meta.zip(right.meta);
    let texts = texts.filter(|(l, r)| !(l.generated_ids.is_empty() && r.generated_ids.is_empty()));
    SampleDiff {
        sample_id: left.id.to_owned(),
        prompt_len: left.prompt_len().or(right.prompt_len()),
        alignment,
        splits: walk.splits,
        tie_parting: walk.tie_parting,
        dependent_from,
        prompt_differs_at,
        rows_compared: independent as u64,
        rows_dependent: (paired.pairs.len() - independent) as u64,
        rows_left_only: paired.left_only.count(),
        rows_right_only: paired.right_only.count(),
        non_finite: walk.non_finite,
        ties: walk.ledger.finish(),
        stats,
        series,
        text: texts.map(|(l, r)| {
            crate::text::diff(&l.generated_ids, &r.generated_ids, ctx.options.decode)
        }),
        remarks,
        verdict,
        summary,
    }
}

/// What the values are.
fn noun(ctx: &Context<'_>) -> &'static str {
    match ctx.logit.scale {
        Scale::Ranks => "ranks",
        Scale::Normalised { .. } => "log-probabilities",
        _ if ctx.left.logprobs() => "log-probabilities",
        _ => "logits",
    }
}
