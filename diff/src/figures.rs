//! Figures over the compared rows of one sample.

use crate::report::{Kl, LogitStats, MaxDiff, Perplexity};
use crate::side::Row;
use crate::splits::{RowMatch, RowState};
use crate::stats::{KlRow, TopLogits, perplexity, quantiles, topk_kl_both};
use crate::ulp::Step;

/// Collects row by row.
#[derive(Debug, Default)]
pub(crate) struct Figures {
    stats: LogitStats,
    same_top: u64,
    top_rows: u64,
    row_max: Vec<f64>,
    sum_sq_diff: f64,
    sum_sq_left: f64,
    forward: Vec<KlRow>,
    reverse: Vec<KlRow>,
    log_probs: Vec<(f64, f64)>,
}

impl Figures {
    /// `token` is the token that both sides chose here, where they did; `probabilities`: both sides tell those of the model.
    #[expect(clippy::too_many_arguments, reason = "one row, as the walk knows it")]
    pub(crate) fn push(
        &mut self,
        left: &Row<'_>,
        right: &Row<'_>,
        found: &RowMatch,
        same_top: Option<bool>,
        token: Option<u32>,
        step: Step,
        probabilities: bool,
    ) {
        let finite = !left.non_finite() && !right.non_finite();
        self.stats.rows_equal += u64::from(found.state == RowState::Equal);
        if found.state != RowState::Nothing || found.by_hash {
            self.stats.rows_by_hash += u64::from(found.by_hash);
            self.stats.rows_by_values += u64::from(!found.by_hash);
        }
        if !finite {
            return;
        }
        self.top_rows += u64::from(same_top.is_some());
        self.same_top += u64::from(same_top == Some(true));
        self.sum_sq_diff += found.sum_sq_diff;
        self.sum_sq_left += found.sum_sq_left;
        if let Some((id, l, r, abs)) = found.max {
            self.row_max.push(abs);
            if self.stats.max_diff.as_ref().is_none_or(|max| abs > max.abs) {
                let larger = l.abs().max(r.abs());
                let ulps = step.count(abs, larger);
                self.stats.max_diff =
                    Some(MaxDiff { position: left.position, id, left: l, right: r, abs, ulps });
            }
        }
        if probabilities {
            self.probabilities(left, right, token);
        }
    }

    fn probabilities(&mut self, left: &Row<'_>, right: &Row<'_>, token: Option<u32>) {
        let Some((l_sum, r_sum)) = left.logsumexp.zip(right.logsumexp) else { return };
        // An impossible token has no logarithm to take a difference of.
        if left.logits.iter().chain(right.logits).any(|value| !value.is_finite()) {
            return;
        }
        let p = TopLogits { ids: left.ids, logits: left.logits, logsumexp: l_sum };
        let q = TopLogits { ids: right.ids, logits: right.logits, logsumexp: r_sum };
        if let Some((forward, reverse)) = topk_kl_both(&p, &q) {
            self.forward.push(forward);
            self.reverse.push(reverse);
        }
        if let Some(token) = token
            && let Some((l, r)) = left.logit(token).zip(right.logit(token))
        {
            self.log_probs.push((l - l_sum, r - r_sum));
        }
    }

    #[expect(clippy::cast_precision_loss, reason = "row counts are far below 2^53")]
    pub(crate) fn finish(mut self) -> LogitStats {
        if self.top_rows > 0 {
            self.stats.same_top = Some(self.same_top as f64 / self.top_rows as f64);
        }
        self.stats.row_max_diff = quantiles(&self.row_max);
        if self.sum_sq_left > 0.0 {
            self.stats.relative_l2 = Some((self.sum_sq_diff / self.sum_sq_left).sqrt());
        }
        (self.stats.kl, self.stats.kl_reverse) =
            rayon::join(|| kl(&self.forward, "left||right"), || kl(&self.reverse, "right||left"));
        let differences: Vec<f64> = self.log_probs.iter().map(|(l, r)| (l - r).abs()).collect();
        self.stats.logprob_diff = quantiles(&differences);
        self.stats.perplexity = perplexity(&self.log_probs).map(|found| Perplexity {
            tokens: self.log_probs.len() as u64,
            left: found.left,
            right: found.right,
            ratio: found.ratio,
            ln_ratio_se: found.ln_ratio_se,
        });
        self.stats
    }
}

#[expect(clippy::cast_precision_loss, reason = "row counts are far below 2^53")]
fn kl(rows: &[KlRow], direction: &str) -> Option<Kl> {
    let lower: Vec<f64> = rows.iter().map(|row| row.lower).collect();
    let upper: Option<Vec<f64>> = rows.iter().map(|row| row.upper).collect();
    let mean = |pick: fn(&KlRow) -> f64| rows.iter().map(pick).sum::<f64>() / rows.len() as f64;
    let reversed = direction.starts_with("right");
    let (own, other) = (mean(|row| row.tail_left), mean(|row| row.tail_right));
    Some(Kl {
        direction: direction.to_owned(),
        lower: quantiles(&lower)?,
        upper: upper.and_then(|upper| quantiles(&upper)),
        tail_left: if reversed { other } else { own },
        tail_right: if reversed { own } else { other },
    })
}
