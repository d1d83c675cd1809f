//! Walk over the paired rows whose inputs are equal: the four firsts, ties, figures and curves.

use lockstep_traces::{Phase, UNKNOWN_TOKEN};

use crate::context::Context;
use crate::factor::Factor;
use crate::figures::Figures;
use crate::precision::Scale;
use crate::report::{NonFinite, RowView, SeriesPoint, Split, SplitClass, SplitKind, Splits};
use crate::side::{Row, Track};
use crate::splits::{Beside, Choice, RowMatch, RowState, choose, plain_split, row_view};
use crate::ties::Ledger;

/// What the walk has collected.
#[derive(Debug, Default)]
pub(crate) struct Walk {
    pub(crate) splits: Splits,
    pub(crate) tie_parting: Option<Split>,
    pub(crate) non_finite: NonFinite,
    pub(crate) figures: Figures,
    pub(crate) ledger: Ledger,
    pub(crate) points: Vec<SeriesPoint>,
    pub(crate) differing: u64,
    pub(crate) one_non_finite: u64,
    pub(crate) both_non_finite: u64,
    pub(crate) without_logits: u64,
    pub(crate) contradictions: u64,
    pub(crate) tie_flips: u64,
    pub(crate) prompt_flips: u64,
    pub(crate) first_prompt_flip: Option<u32>,
    pub(crate) factor: Factor,
    /// Pairs of rows whose chosen tokens are known on both sides, and were not fed by a teacher.
    pub(crate) tokens_compared: u64,
    pub(crate) unknown: Unknown,
}

/// Pairs of rows in which a side does not tell a token.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Unknown {
    pub(crate) fed: u64,
    pub(crate) argmax: u64,
    pub(crate) listed: u64,
}

impl Unknown {
    fn count(&mut self, left: &Row<'_>, right: &Row<'_>) {
        let either = |test: fn(&Row<'_>) -> bool| u64::from(test(left) || test(right));
        self.fed += either(|row| row.token_id == UNKNOWN_TOKEN);
        self.argmax += either(|row| row.best().is_none());
        self.listed += either(|row| row.ids.contains(&UNKNOWN_TOKEN));
    }

    /// One line where something is not told.
    pub(crate) fn line(self) -> Option<String> {
        let parts: Vec<String> =
            [("fed token", self.fed), ("argmax", self.argmax), ("listed ids", self.listed)]
                .into_iter()
                .filter(|(_, rows)| *rows > 0)
                .map(|(what, rows)| format!("{what} in {rows} rows"))
                .collect();
        (!parts.is_empty()).then(|| {
            format!(
                "not known on a side, and counted neither as equal nor as different: {}",
                parts.join(", ")
            )
        })
    }
}

/// Do the logits of row `i` choose a token of the stream? Rows of the prompt before its last one do not.
pub(crate) fn drives(track: &Track<'_>, i: usize) -> bool {
    track.row(i).is_some_and(|row| row.phase == Phase::Decode || row.next_token.is_some())
        || track.row(i + 1).is_some_and(|next| next.phase == Phase::Decode)
}

pub(crate) fn point(
    left: &Row<'_>,
    right: &Row<'_>,
    max: Option<f64>,
    dependent: bool,
) -> SeriesPoint {
    SeriesPoint {
        position: left.position,
        left_margin: left.margin().map(|margin| margin.0),
        right_margin: right.margin().map(|margin| margin.0),
        max_diff: max,
        left_rows: left.rows().map(|rows| rows.1),
        right_rows: right.rows().map(|rows| rows.1),
        dependent,
    }
}

impl Walk {
    /// Takes one compared pair of rows.
    pub(crate) fn row(
        &mut self,
        left: &Row<'_>,
        right: &Row<'_>,
        chosen: (Option<u32>, Option<u32>),
        drives: bool,
        ctx: &Context<'_>,
    ) {
        let found = ctx.logit.compare(left, right);
        self.points.push(point(left, right, found.max.map(|max| max.3), false));
        self.count_non_finite(left, right);
        self.contradictions += u64::from(found.contradiction);
        self.unknown.count(left, right);
        self.tokens_compared += u64::from(drives && chosen.0.is_some() && chosen.1.is_some());
        if ctx.unsaid {
            self.factor.push(left, right, ctx.logit);
        }
        let views = || {
            (Some(row_view(left, chosen.0, ctx.step)), Some(row_view(right, chosen.1, ctx.step)))
        };
        if self.splits.structural.is_none()
            && let Some(note) = ctx.rows.difference(left, right)
        {
            let (l, r) = views();
            let mut split =
                plain_split(SplitKind::Structural, SplitClass::Plain, l, r, ctx.step, note);
            split.max_abs_diff = found.max.map(|max| max.3);
            self.splits.structural = Some(expected(split, ctx));
        }
        self.logits(&found, views, ctx);
        let flip = self.choice(left, right, chosen, drives, &found, ctx);
        let same_top = left.best().zip(right.best()).map(|(l, r)| l == r || flip);
        let token = chosen.0.filter(|_| chosen.0 == chosen.1);
        let probabilities = !matches!(ctx.logit.scale, Scale::Ranks | Scale::Nothing);
        self.figures.push(left, right, &found, same_top, token, ctx.step, probabilities);
        self.ledger.push(left, right, ctx.step, flip);
    }

    fn count_non_finite(&mut self, left: &Row<'_>, right: &Row<'_>) {
        let (l, r) = (left.non_finite(), right.non_finite());
        if !(l || r) {
            return;
        }
        self.non_finite.left += u64::from(l);
        self.non_finite.right += u64::from(r);
        self.non_finite.both += u64::from(l && r);
        self.non_finite.first.get_or_insert(left.position);
        self.non_finite.no_finite_logit +=
            u64::from(left.nothing_finite() || right.nothing_finite());
    }

    fn logits(
        &mut self,
        found: &RowMatch,
        views: impl Fn() -> (Option<RowView>, Option<RowView>),
        ctx: &Context<'_>,
    ) {
        let (class, note) = match found.state {
            RowState::Equal => return,
            RowState::Nothing => {
                self.without_logits += 1;
                return;
            }
            RowState::NonFiniteBoth => {
                self.both_non_finite += 1;
                return;
            }
            RowState::NonFiniteOne => {
                self.one_non_finite += 1;
                (SplitClass::NonFinite, "non-finite on one side only".to_owned())
            }
            RowState::Differs => {
                self.differing += 1;
                let how = if found.by_hash { "by hash" } else { "by stored values" };
                let size = match (found.beside, found.max) {
                    (Some(beside), _) => beside_words(beside),
                    (None, Some((id, l, r, abs))) if abs > 0.0 => {
                        format!("largest stored difference {abs} (id {id}: {l} against {r})")
                    }
                    _ => "outside the values stored on both sides".to_owned(),
                };
                (SplitClass::Plain, format!("logits differ {how}; {size}"))
            }
        };
        if self.splits.logit.is_none() {
            let (l, r) = views();
            let mut split = plain_split(SplitKind::Logit, class, l, r, ctx.step, note);
            split.max_abs_diff =
                found.max.map(|max| max.3).filter(|_| class != SplitClass::NonFinite);
            self.splits.logit = Some(split);
        }
    }

    /// Argmax and token; true where they differ by a tie only.
    fn choice(
        &mut self,
        left: &Row<'_>,
        right: &Row<'_>,
        chosen: (Option<u32>, Option<u32>),
        drives: bool,
        found: &RowMatch,
        ctx: &Context<'_>,
    ) -> bool {
        let max = found.max.map(|max| max.3);
        let finite = !left.non_finite() && !right.non_finite();
        let build = |kind, l_id, r_id| {
            let l = Choice { row: *left, id: l_id, chosen: chosen.0 };
            let r = Choice { row: *right, id: r_id, chosen: chosen.1 };
            let mut split = choose(kind, &l, &r, ctx.step, ctx.draws && kind == SplitKind::Token);
            split.max_abs_diff = max.filter(|_| finite);
            split
        };
        let mut flip = false;
        if let Some((l, r)) = left.best().zip(right.best()).filter(|(l, r)| finite && l != r) {
            let split = build(SplitKind::Argmax, l, r);
            if split.class == SplitClass::Tie {
                flip = true;
            } else if !drives {
                self.prompt_flips += 1;
                self.first_prompt_flip.get_or_insert(left.position);
            } else if self.splits.argmax.is_none() {
                self.splits.argmax = Some(split);
            }
        }
        if let (Some(l), Some(r)) = chosen
            && l != r
        {
            let split = build(SplitKind::Token, l, r);
            if split.class == SplitClass::Tie {
                flip = true;
                self.tie_parting.get_or_insert(split);
            } else if self.splits.token.is_none() {
                self.splits.token = Some(split);
            }
        }
        self.tie_flips += u64::from(flip);
        flip
    }
}

fn beside_words(beside: Beside) -> String {
    match beside {
        Beside::Sum(l, r) => {
            format!("log-sum-exp {l} against {r}: outside the values stored on both sides")
        }
        Beside::Margin(l, r) => format!("margin of the two largest {l} against {r}"),
        Beside::Rank(rank, l, r) => format!("rank {rank} is id {l} against id {r}"),
    }
}

/// Marks a structural split as expected where the policies differ.
pub(crate) fn expected(mut split: Split, ctx: &Context<'_>) -> Split {
    if let Some(policies) = ctx.policies {
        split.class = SplitClass::Policy;
        split.note = format!("expected: policies differ ({policies}): {}", split.note);
    }
    split
}
