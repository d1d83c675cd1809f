//! What stands beside the compared rows: rows that one side lacks, the event tables, relations between the firsts.

use crate::align::Paired;
use crate::context::Context;
use crate::report::{SplitClass, SplitKind};
use crate::side::{Row, Track};
use crate::splits::{event_difference, plain_split, row_view};
use crate::walk::{Walk, expected};

impl Walk {
    /// Rows that one side lacks. Returns why the comparison is unfinished, where a side is incomplete.
    pub(crate) fn presence(
        &mut self,
        left: &Track<'_>,
        right: &Track<'_>,
        paired: &Paired,
        independent: usize,
        ctx: &Context<'_>,
        remarks: &mut Vec<String>,
    ) -> Option<String> {
        let parted = independent < paired.pairs.len()
            || self.splits.token.is_some()
            || self.tie_parting.is_some();
        let limit = paired.pairs.get(independent).and_then(|(l, _)| left.position(*l));
        let mut unfinished = None;
        let sides = [
            (left, &paired.left_only, "left", "right", &ctx.right),
            (right, &paired.right_only, "right", "left", &ctx.left),
        ];
        for (track, lone, here, there, other) in sides {
            if let (Some(first), Some(last)) = (lone.leading.first(), lone.leading.last()) {
                let ends = (track.position(*first), track.position(*last));
                if let (Some(a), Some(b)) = ends {
                    remarks.push(format!(
                        "positions {a} to {b} are on the {here} only, before the first common row; compared from there on"
                    ));
                    // A trace may leave the prompt out, or all of it but the row that chose the first token; rows of another number are
                    // missing.
                    let prompt = left.prompt_len().or(right.prompt_len());
                    if prompt.is_some_and(|prompt| b + 1 != prompt && b + 2 != prompt) {
                        unfinished = Some(format!(
                            "the {there} has no row at positions {a} to {b}, which are not the prompt; the {} common rows agree",
                            paired.pairs.len()
                        ));
                    }
                }
            }
            let inside = lone.inside.first().and_then(|at| track.row(*at));
            if let Some(row) = inside.filter(|row| limit.is_none_or(|limit| row.position < limit)) {
                self.missing(
                    &row,
                    here,
                    format!("the {there} has no row at position {}", row.position),
                    ctx,
                );
            }
            let Some(row) = lone.trailing.first().and_then(|at| track.row(*at)).filter(|_| !parted)
            else {
                continue;
            };
            if paired.pairs.is_empty() {
                continue;
            }
            let count = lone.trailing.len();
            if Context::incomplete(other) {
                unfinished = Some(format!(
                    "the {there} is incomplete: {count} rows of the {here} from position {} on have no counterpart",
                    row.position
                ));
            } else if count == 1 && self.same_end(left, right, paired) {
                remarks.push(format!(
                    "the {here} also fed its last token (position {})",
                    row.position
                ));
            } else {
                self.missing(
                    &row,
                    here,
                    format!("the {there} ends here, the {here} goes on for {count} rows"),
                    ctx,
                );
            }
        }
        unfinished
    }

    /// Both sides chose the same token at the last common row.
    fn same_end(&self, left: &Track<'_>, right: &Track<'_>, paired: &Paired) -> bool {
        paired.pairs.last().is_some_and(|(l, r)| {
            let (a, b) = (left.chosen(*l), right.chosen(*r));
            a.is_some() && a == b
        })
    }

    fn missing(&mut self, row: &Row<'_>, here: &str, note: String, ctx: &Context<'_>) {
        let known = self.splits.structural.as_ref().map(|split| split.position);
        if known.is_some_and(|known| known <= row.position) {
            return;
        }
        let view = Some(row_view(row, row.next_token, ctx.step));
        let (l, r) = if here == "left" { (view, None) } else { (None, view) };
        self.splits.structural =
            Some(plain_split(SplitKind::Structural, SplitClass::Plain, l, r, ctx.step, note));
    }

    pub(crate) fn events(
        &mut self,
        left: &Track<'_>,
        right: &Track<'_>,
        paired: &Paired,
        independent: usize,
        ctx: &Context<'_>,
    ) {
        if !ctx.rows.exact() {
            return;
        }
        let (l, r) = (ctx.left.events_of(left.id), ctx.right.events_of(right.id));
        if l.is_empty() || r.is_empty() {
            return;
        }
        let Some((position, note)) = event_difference(&l, &r, paired.offset) else { return };
        let known = self.splits.structural.as_ref().map(|split| split.position);
        if known.is_some_and(|known| known <= position) {
            return;
        }
        let at = paired.pairs.get(..independent).unwrap_or_default();
        let hit = at.iter().find(|(l, _)| left.position(*l) == Some(position));
        let Some((a, b)) = hit.and_then(|(l, r)| left.row(*l).zip(right.row(*r))) else { return };
        let (l, r) = (row_view(&a, None, ctx.step), row_view(&b, None, ctx.step));
        let split =
            plain_split(SplitKind::Structural, SplitClass::Plain, Some(l), Some(r), ctx.step, note);
        self.splits.structural = Some(expected(split, ctx));
    }

    /// Relations between the firsts, in words.
    pub(crate) fn notes(&mut self, ctx: &Context<'_>, remarks: &mut Vec<String>) {
        if self.non_finite.no_finite_logit > 0 {
            self.non_finite.hint = Some(
                "typical of a bf16 model run in f16, where values above 65504 overflow".to_owned(),
            );
        }
        if let Some(first) = self.first_prompt_flip {
            remarks.push(format!(
                "argmax differs at {} prompt rows, first at position {first}; these rows choose no token",
                self.prompt_flips
            ));
        }
        let (Some(structural), Some(logit)) = (&self.splits.structural, &mut self.splits.logit)
        else {
            return;
        };
        let views = structural.left.as_ref().zip(structural.right.as_ref());
        let Some((l, r)) =
            views.filter(|(l, r)| l.rows_before != r.rows_before || l.rows_after != r.rows_after)
        else {
            return;
        };
        let before = ctx.rows.exact() && l.rows_before != r.rows_before;
        if logit.position == structural.position && before {
            logit.note.push_str(
                "; at the very row whose rows before are cut: its query saw the other cache",
            );
        } else if logit.position == structural.fed_at {
            logit.note.push_str("; one row after the rows changed: what lossy eviction looks like");
        } else if logit.position < structural.position {
            logit.note.push_str("; before any difference of rows: not caused by eviction");
        }
    }
}
