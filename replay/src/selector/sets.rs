//! One keep-set against the reference's.

use std::collections::BTreeSet;

use lockstep_reference::select::{Recipe, RowOrder, TieBreak, best, kth};

use super::detail::{SetDetail, SetStatus};
use super::limits::Limits;

/// One keep-set on both sides.
pub(super) struct SetPair<'a> {
    pub(super) theirs: &'a [usize],
    pub(super) ours: &'a [usize],
    /// The reference's ranked scores from row `first` on.
    pub(super) scores: &'a [f64],
    pub(super) first: usize,
    /// The recorded ranked scores and the row of their first column.
    pub(super) recorded: Option<(&'a [f64], usize)>,
    pub(super) protected: &'a [usize],
}

impl SetPair<'_> {
    pub(super) fn compare(&self, recipe: &Recipe, limits: &Limits) -> SetDetail {
        let set = |rows: &[usize]| -> BTreeSet<usize> { rows.iter().copied().collect() };
        let (theirs, ours) = (set(self.theirs), set(self.ours));
        let narrow = |row: &usize| u32::try_from(*row).unwrap_or(u32::MAX);
        let missing: Vec<usize> = ours.difference(&theirs).copied().collect();
        let extra: Vec<usize> = theirs.difference(&ours).copied().collect();
        let common = ours.intersection(&theirs).count() as f64;
        let either = ours.union(&theirs).count() as f64;
        // More rows kept outright than fit: which of them stay is a matter of ties.
        let fits = self.protected.len() <= self.ours.len();
        let unprotected = self.protected.iter().filter(|row| fits && !theirs.contains(row));
        let repeated = theirs.len() != self.theirs.len();
        let follows = self.follows(&theirs);
        SetDetail {
            layer: None,
            head: None,
            status: self.status(&missing, &extra, repeated, limits.tie),
            jaccard: if either > 0.0 { common / either } else { 1.0 },
            unprotected: unprotected.map(narrow).collect(),
            follows_scores: follows,
            against_tie_rule: limits.ties_are_ruled
                && self.against_rule(&theirs, follows, recipe.ties),
            ordered: self.is_ordered(recipe.order, limits.tie),
            missing: missing.iter().map(narrow).collect(),
            extra: extra.iter().map(narrow).collect(),
        }
    }

    fn status(&self, missing: &[usize], extra: &[usize], repeated: bool, near: f64) -> SetStatus {
        if missing.is_empty() && extra.is_empty() && !repeated {
            return SetStatus::Exact;
        }
        let threshold = kth(self.scores, self.ours.len().saturating_sub(self.first));
        let ties = |row: &usize| {
            let (Some(threshold), Some(score)) = (threshold, self.score(*row)) else {
                return false;
            };
            score.total_cmp(&threshold).is_eq() || (score - threshold).abs() <= near
        };
        let balanced = missing.len() == extra.len() && !repeated;
        let all = missing.iter().chain(extra).all(ties);
        if balanced && all { SetStatus::Tie } else { SetStatus::Differs }
    }

    fn score(&self, row: usize) -> Option<f64> {
        row.checked_sub(self.first).and_then(|column| self.scores.get(column)).copied()
    }

    /// The recorded set is a top-k of the recorded scores, whichever way ties went.
    fn follows(&self, theirs: &BTreeSet<usize>) -> Option<bool> {
        let (scores, offset) = self.recorded?;
        let threshold = kth(scores, self.theirs.len().checked_sub(offset)?)?;
        let right = |(column, score): (usize, &f64)| {
            if theirs.contains(&(column + offset)) {
                *score >= threshold
            } else {
                *score <= threshold
            }
        };
        Some((0..offset).all(|row| theirs.contains(&row)) && scores.iter().enumerate().all(right))
    }

    /// Among rows that equal the threshold exactly others were chosen than the rule's: by the recorded scores where there
    /// are any, by the reference's (which are equal for equal keys only) otherwise.
    fn against_rule(
        &self,
        theirs: &BTreeSet<usize>,
        follows: Option<bool>,
        ties: TieBreak,
    ) -> bool {
        let (scores, offset) = match (self.recorded, follows) {
            (Some(recorded), Some(true)) => recorded,
            (Some(_), _) => return false,
            (None, _) => (self.scores, self.first),
        };
        let Some(k) = self.theirs.len().checked_sub(offset).filter(|k| *k > 0) else {
            return false;
        };
        let Some(threshold) = kth(scores, k) else { return false };
        let chosen: BTreeSet<usize> =
            best(scores, k, ties).into_iter().map(|row| row + offset).collect();
        let differing = |row: &&usize| **row >= offset;
        let equal = |row: &usize| {
            let score = row.checked_sub(offset).and_then(|column| scores.get(column));
            score.is_some_and(|score| score.total_cmp(&threshold).is_eq())
        };
        let mut rows = chosen.symmetric_difference(theirs).filter(differing).peekable();
        rows.peek().is_some() && rows.all(equal)
    }

    fn is_ordered(&self, order: RowOrder, near: f64) -> bool {
        if order == RowOrder::Ascending {
            return self.theirs.is_sorted();
        }
        let (prefix, ranked) = self.theirs.split_at(self.first.min(self.theirs.len()));
        // Recorded scores decide the order exactly; without them near scores may stand either way.
        let (scores, offset, slack) = match self.recorded {
            Some((scores, offset)) => (scores, offset, 0.0),
            None => (self.scores, self.first, near),
        };
        if scores.is_empty() {
            return true;
        }
        let score =
            |row: &usize| row.checked_sub(offset).and_then(|column| scores.get(column)).copied();
        let falls =
            |pair: &[usize]| match (pair.first().and_then(score), pair.get(1).and_then(score)) {
                (Some(a), Some(b)) => a + slack >= b,
                _ => false,
            };
        prefix.iter().copied().eq(0..prefix.len()) && ranked.windows(2).all(falls)
    }
}

#[cfg(test)]
mod tests {
    use lockstep_reference::select::Rules;
    use lockstep_traces::{PolicySpec, RuleSet};

    use super::*;

    /// Compares under a rule set: reference scores and set, recorded scores and set.
    fn compare(
        rule_set: RuleSet,
        scores: &[f64],
        recorded: Option<&[f64]>,
        (ours, theirs): (&[usize], &[usize]),
    ) -> SetDetail {
        let spec = PolicySpec { rule_set: Some(rule_set), ..PolicySpec::default() };
        let rules = Rules::resolve(&spec).unwrap();
        let recipe = Recipe::of(&rules);
        let limits = Limits::floors(&recipe, rule_set, None);
        let recorded = recorded.map(|scores| (scores, 0));
        SetPair { theirs, ours, scores, first: 0, recorded, protected: &[] }
            .compare(&recipe, &limits)
    }

    #[test]
    fn a_near_score_is_a_tie_and_a_far_one_differs() {
        let near = compare(RuleSet::Trt, &[2.0, 1.0, 1.0 - 1e-6], None, (&[0, 1], &[0, 2]));
        assert_eq!((near.status, near.against_tie_rule), (SetStatus::Tie, false));
        assert!((near.jaccard - 1.0 / 3.0).abs() < 1e-12);
        let far = compare(RuleSet::Trt, &[2.0, 1.0, 0.9], None, (&[0, 1], &[0, 2]));
        assert_eq!(far.status, SetStatus::Differs);
        assert_eq!((far.missing, far.extra), (vec![1], vec![2]));
        let fewer = compare(RuleSet::Trt, &[2.0, 1.0, 1.0], None, (&[0, 1], &[0]));
        assert_eq!(fewer.status, SetStatus::Differs);
        let twice = compare(RuleSet::Trt, &[2.0, 1.0, 1.0], None, (&[0, 1], &[0, 0]));
        assert_eq!(twice.status, SetStatus::Differs);
    }

    #[test]
    fn exact_ties_break_a_rule_only_where_there_is_one() {
        let scores = [2.0, 1.0, 1.0];
        let broken = compare(RuleSet::Trt, &scores, Some(&scores), (&[0, 1], &[0, 2]));
        assert_eq!((broken.status, broken.against_tie_rule), (SetStatus::Tie, true));
        let free = compare(RuleSet::Vllm, &scores, Some(&scores), (&[0, 1], &[0, 2]));
        assert_eq!((free.status, free.against_tie_rule), (SetStatus::Tie, false));
        // f32 scores that tie where the reference's do not: the lower row was rightly taken.
        let rounded =
            compare(RuleSet::Trt, &[2.0, 1.0, 1.0 + 1e-9], Some(&scores), (&[0, 2], &[0, 1]));
        assert_eq!((rounded.status, rounded.against_tie_rule), (SetStatus::Tie, false));
    }

    #[test]
    fn a_set_that_is_no_top_k_of_its_own_scores_is_told() {
        let scores = [2.0, 1.0, 1.0 - 1e-6];
        let odd = compare(RuleSet::Trt, &scores, Some(&scores), (&[0, 1], &[0, 2]));
        assert_eq!((odd.status, odd.follows_scores), (SetStatus::Tie, Some(false)));
    }

    #[test]
    fn hf_rows_stand_in_the_order_of_their_scores() {
        let scores = [1.0, 3.0, 2.0];
        let right = compare(RuleSet::Hf, &scores, Some(&scores), (&[1, 2], &[1, 2]));
        let wrong = compare(RuleSet::Hf, &scores, Some(&scores), (&[1, 2], &[2, 1]));
        assert!(right.ordered && !wrong.ordered);
        assert_eq!(wrong.status, SetStatus::Exact);
    }
}
