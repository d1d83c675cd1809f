//! Two scored files or runs side by side.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::score::{Entry, ScoreReport};
use super::{Outcome, normalise};
use crate::stats::{Bootstrap, Case, Names, PairedScores};

/// One filter on both sides.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct FilterPair {
    /// Filter on the left.
    pub left_filter: String,
    /// Filter on the right.
    pub right_filter: String,
    /// The paired scores.
    pub scores: PairedScores,
    /// Pairs wrong on both sides with the same answer: no parity of the runs, only a common answer.
    pub same_wrong: u64,
    /// Questions that are not paired because their gold answers differ.
    pub other_gold: Vec<String>,
    /// Questions that are not paired because their prompts or documents have other hashes.
    pub other_prompt: Vec<String>,
}

/// A baseline and a target.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Versus {
    /// Baseline.
    pub left: String,
    /// Target.
    pub right: String,
    /// Filters that both sides have.
    pub pairs: Vec<FilterPair>,
    /// Filters of the baseline alone.
    pub left_filters: Vec<String>,
    /// Filters of the target alone.
    pub right_filters: Vec<String>,
    /// What the comparison does not cover, one line each.
    pub limits: Vec<String>,
}

/// Pairs the rows of two reports by filter, question and repeat. Where each side has one filter these are paired whatever their names.
#[must_use]
pub fn versus(left: &ScoreReport, right: &ScoreReport, how: Bootstrap) -> Versus {
    let names = |report: &ScoreReport| -> Vec<String> {
        report.filters.iter().map(|one| one.filter.clone()).collect()
    };
    let (mut left_filters, mut right_filters) = (names(left), names(right));
    let mut common: Vec<(String, String)> = Vec::new();
    if let ([l], [r]) = (left_filters.as_slice(), right_filters.as_slice()) {
        common.push((l.clone(), r.clone()));
    } else {
        common.extend(
            left_filters
                .iter()
                .filter(|name| right_filters.contains(name))
                .map(|name| (name.clone(), name.clone())),
        );
    }
    left_filters.retain(|name| !common.iter().any(|(l, _)| l == name));
    right_filters.retain(|name| !common.iter().any(|(_, r)| r == name));
    let pairs = common.iter().map(|filters| pair(left, right, filters, how)).collect();
    let mut limits = Vec::new();
    if left.rule != right.rule {
        limits.push(format!(
            "the baseline's answers are read by {}, the target's by {}",
            left.rule, right.rule
        ));
    }
    for report in [left, right] {
        if !report.complete {
            limits.push(format!(
                "{} is a prefix: only what both sides have is compared",
                report.label
            ));
        }
        if let Some(passes) = report.passes {
            limits.push(format!("{}: {passes} passes of unknown filters", report.label));
        }
    }
    Versus {
        left: left.label.clone(),
        right: right.label.clone(),
        pairs,
        left_filters,
        right_filters,
        limits,
    }
}

type Key<'a> = (&'a str, Option<u64>);

fn pair(
    left: &ScoreReport,
    right: &ScoreReport,
    (l, r): &(String, String),
    how: Bootstrap,
) -> FilterPair {
    let of = |report: &'_ ScoreReport, filter: &str| -> Vec<usize> {
        let scored = |one: &Entry| one.filter == filter && one.outcome != Outcome::Unscored;
        report.entries.iter().enumerate().filter(|(_, one)| scored(one)).map(|(at, _)| at).collect()
    };
    let rights: BTreeMap<Key<'_>, &Entry> = of(right, r)
        .into_iter()
        .filter_map(|at| right.entries.get(at))
        .map(|one| ((one.id.as_str(), one.repeat), one))
        .collect();
    let (mut cases, mut met, mut same_wrong) = (Vec::new(), 0_u64, 0_u64);
    let (mut other_gold, mut other_prompt) = (Vec::new(), Vec::new());
    let lefts = of(left, l);
    for one in lefts.iter().filter_map(|at| left.entries.get(*at)) {
        let Some(other) = rights.get(&(one.id.as_str(), one.repeat)) else { continue };
        met += 1;
        let key =
            |entry: &Entry| entry.gold.as_ref().map(|gold| normalise(gold, left.normalise).key);
        if key(one) != key(other) {
            other_gold.push(one.id.clone());
            continue;
        }
        if one
            .hashes
            .iter()
            .any(|(name, hash)| other.hashes.get(name).is_some_and(|theirs| theirs != hash))
        {
            other_prompt.push(one.id.clone());
            continue;
        }
        let answer = |entry: &Entry| {
            entry.answer.as_ref().map(|answer| normalise(answer, left.normalise).key)
        };
        same_wrong += u64::from(
            one.outcome == Outcome::Wrong
                && other.outcome == Outcome::Wrong
                && answer(one) == answer(other),
        );
        cases.push(Case {
            prompt: &one.id,
            left: one.outcome == Outcome::Correct,
            right: other.outcome == Outcome::Correct,
        });
    }
    let what = if l == r { format!("answers ({l})") } else { format!("answers ({l} against {r})") };
    let names = Names { what: &what, left: &left.label, right: &right.label };
    let scores = PairedScores::of(names, &cases, how)
        .unpaired(lefts.len() as u64 - met, rights.len() as u64 - met);
    FilterPair {
        left_filter: l.clone(),
        right_filter: r.clone(),
        scores,
        same_wrong,
        other_gold,
        other_prompt,
    }
}
