//! Two scores side by side: the one form in which every report and every verb prints them.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::normal::Share;
use super::paired::{Bootstrap, Cluster, bootstrap_clusters, mcnemar_exact, smallest_effect};

/// p at or under which a difference counts as shown.
pub const SHOWN: f64 = 0.05;

/// One case on both sides.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Case<'a> {
    /// Prompt; cases of one prompt are resampled together.
    pub prompt: &'a str,
    /// Counts on the left (baseline).
    pub left: bool,
    /// Counts on the right (target).
    pub right: bool,
}

/// What is scored, and the names of the two sides.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Names<'a> {
    /// `answers`, `exact completions`, ...
    pub what: &'a str,
    /// Left: the baseline.
    pub left: &'a str,
    /// Right: the target.
    pub right: &'a str,
}

/// Two scores over the same cases, with what the number of cases can show.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct PairedScores {
    /// What is paired: `answers` (against gold), `exact completions`, ...
    pub what: String,
    /// Name of the left side: the baseline.
    pub left: String,
    /// Name of the right side: the target.
    pub right: String,
    /// Pairs.
    pub n: u64,
    /// Right on both sides.
    pub both: u64,
    /// Right on the left only.
    pub left_only: u64,
    /// Right on the right only.
    pub right_only: u64,
    /// Wrong on both sides.
    pub neither: u64,
    /// Score of the left side over the pairs.
    pub left_score: Share,
    /// Score of the right side over the pairs.
    pub right_score: Share,
    /// Cases that only the left side has: in no figure here.
    pub left_unpaired: u64,
    /// Cases that only the right side has.
    pub right_unpaired: u64,
    /// Distinct prompts among the pairs.
    pub prompts: u64,
    /// Exact two-sided McNemar p.
    pub p_value: f64,
    /// Difference of the two shares, right minus left; `null` without pairs.
    pub difference: Option<f64>,
    /// 95 % interval of that difference, bootstrap by prompt.
    pub interval: Option<(f64, f64)>,
    /// How it was resampled.
    pub bootstrap: Bootstrap,
    /// Smallest difference of the shares that n pairs, all discordant ones one way, can show at p < 0.05; `null` where none can.
    pub smallest_effect: Option<f64>,
}

/// What a pair of scores shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shown {
    /// The left side is better.
    Left,
    /// The right side is better.
    Right,
    /// Every pair is equal, and there are enough of them that a difference could have been shown.
    Equal,
    /// Nothing: no pair, too few of them, or p above 0.05.
    Nothing,
}

impl PairedScores {
    /// Pairs up `cases` and resamples them by prompt.
    #[must_use]
    pub fn of(names: Names<'_>, cases: &[Case<'_>], how: Bootstrap) -> Self {
        let mut clusters: BTreeMap<&str, Cluster> = BTreeMap::new();
        let mut scores = Self {
            what: names.what.to_owned(),
            left: names.left.to_owned(),
            right: names.right.to_owned(),
            n: cases.len() as u64,
            bootstrap: how,
            ..Self::default()
        };
        for case in cases {
            let (cell, change) = match (case.left, case.right) {
                (true, true) => (&mut scores.both, 0.0),
                (true, false) => (&mut scores.left_only, -1.0),
                (false, true) => (&mut scores.right_only, 1.0),
                (false, false) => (&mut scores.neither, 0.0),
            };
            *cell += 1;
            let cluster = clusters.entry(case.prompt).or_default();
            cluster.sum += change;
            cluster.count += 1.0;
        }
        let n = scores.n;
        scores.left_score = Share::of(scores.both + scores.left_only, n);
        scores.right_score = Share::of(scores.both + scores.right_only, n);
        scores.difference =
            scores.right_score.value().zip(scores.left_score.value()).map(|(r, l)| r - l);
        scores.prompts = clusters.len() as u64;
        scores.p_value = mcnemar_exact(scores.left_only, scores.right_only);
        let clusters: Vec<Cluster> = clusters.into_values().collect();
        scores.interval = bootstrap_clusters(&clusters, how);
        scores.smallest_effect = smallest_effect(n);
        scores
    }

    /// The same with the cases that only one side has.
    #[must_use]
    pub fn unpaired(mut self, left: u64, right: u64) -> Self {
        (self.left_unpaired, self.right_unpaired) = (left, right);
        self
    }

    /// What the pairs show at p <= 0.05.
    #[must_use]
    pub fn shown(&self) -> Shown {
        let discordant = self.left_only + self.right_only;
        match () {
            () if self.n == 0 => Shown::Nothing,
            () if discordant > 0 && self.p_value <= SHOWN && self.left_only > self.right_only => {
                Shown::Left
            }
            () if discordant > 0 && self.p_value <= SHOWN => Shown::Right,
            () if discordant == 0 && self.smallest_effect.is_some() => Shown::Equal,
            () => Shown::Nothing,
        }
    }
}

/// One line: both scores with Wilson intervals, the paired table, exact McNemar, the difference with its bootstrap interval,
/// the smallest effect, and what that shows.
impl std::fmt::Display for PairedScores {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { what, left, right, n, both, left_only, right_only, neither, .. } = self;
        if *n == 0 {
            write!(f, "{what}: {left} and {right} have no case in common: nothing is compared")?;
            return self.write_unpaired(f);
        }
        write!(
            f,
            "{what}: {left} {}, {right} {}; both {both}, {left} only {left_only}, {right} only {right_only}, neither {neither}; exact \
             McNemar p = {}",
            self.left_score,
            self.right_score,
            small(self.p_value)
        )?;
        if let Some(difference) = self.difference {
            write!(f, "; difference {:+.1} points", 100.0 * difference)?;
        }
        if let Some((low, high)) = self.interval {
            let Bootstrap { resamples, seed } = self.bootstrap;
            write!(
                f,
                " [{:+.1}, {:+.1}] (95 %, {} prompts resampled {resamples} times, seed {seed})",
                100.0 * low,
                100.0 * high,
                self.prompts
            )?;
        }
        match self.smallest_effect {
            Some(effect) => {
                write!(f, "; {n} pairs show no difference under {:.1} points", 100.0 * effect)?;
            }
            None => write!(f, "; {n} pairs can show no difference at all")?,
        }
        match self.shown() {
            Shown::Left => write!(f, "; {left} is better")?,
            Shown::Right => write!(f, "; {right} is better")?,
            Shown::Equal => write!(f, "; equal on every pair")?,
            Shown::Nothing => write!(f, "; no ranking")?,
        }
        if self.prompts < *n {
            write!(f, "; pairs of one prompt are not independent, so p is too small")?;
        }
        self.write_unpaired(f)
    }
}

impl PairedScores {
    fn write_unpaired(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.left_unpaired + self.right_unpaired == 0 {
            return Ok(());
        }
        write!(
            f,
            "; not paired: {} of {} only, {} of {} only",
            self.left_unpaired, self.left, self.right_unpaired, self.right
        )
    }
}

/// Four decimals, or three digits in powers of ten where those would be zeros.
fn small(p: f64) -> String {
    if p >= 1e-3 { format!("{p:.4}") } else { format!("{p:.2e}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAMES: Names<'_> = Names { what: "answers", left: "dense", right: "trt" };

    /// Cases by the four cells, each with a prompt of its own.
    fn scores(both: usize, left: usize, right: usize, neither: usize) -> PairedScores {
        let cells = [
            (both, true, true),
            (left, true, false),
            (right, false, true),
            (neither, false, false),
        ];
        let ids: Vec<String> =
            (0..both + left + right + neither).map(|at| format!("p{at}")).collect();
        let outcomes = cells.iter().flat_map(|(count, l, r)| std::iter::repeat_n((*l, *r), *count));
        let cases: Vec<Case<'_>> = ids
            .iter()
            .zip(outcomes)
            .map(|(prompt, (left, right))| Case { prompt, left, right })
            .collect();
        PairedScores::of(NAMES, &cases, Bootstrap::default())
    }

    /// Fagerland, Lydersen and Laake (BMC Med. Res. Methodol. 13:91, 2013): 1, 1, 7, 12 gives exact p = 0.0703, and
    /// 59, 6, 16, 80 gives 0.0525.
    #[test]
    fn exact_p_values_are_the_published_ones() {
        assert!((scores(1, 1, 7, 12).p_value - 0.0703).abs() < 5e-5);
        assert!((scores(59, 6, 16, 80).p_value - 0.0525).abs() < 5e-5);
        assert_eq!(scores(59, 6, 16, 80).shown(), Shown::Nothing);
    }

    #[test]
    fn one_row_of_thirty_is_no_ranking_and_the_line_says_so() {
        let found = scores(18, 2, 3, 7);
        assert_eq!((found.left_score.hits, found.right_score.hits, found.n), (20, 21, 30));
        assert_eq!(found.shown(), Shown::Nothing);
        let text = found.to_string();
        for part in [
            "answers: dense 20/30 = 66.7 % [48.8, 80.8], trt 21/30 = 70.0 % [52.1, 83.3]",
            "both 18, dense only 2, trt only 3, neither 7; exact McNemar p = 1.0000",
            "difference +3.3 points [",
            "30 prompts resampled 2000 times, seed ",
            "30 pairs show no difference under 20.0 points; no ranking",
        ] {
            assert!(text.contains(part), "`{part}` is not in: {text}");
        }
        assert!(!text.contains("not paired"));
    }

    #[test]
    fn six_one_way_rank_the_sides_and_five_do_not() {
        assert_eq!(scores(10, 6, 0, 4).shown(), Shown::Left);
        assert_eq!(scores(10, 0, 6, 4).shown(), Shown::Right);
        assert_eq!(scores(10, 5, 0, 4).shown(), Shown::Nothing);
        assert!(scores(10, 0, 6, 4).to_string().contains("; trt is better"));
    }

    #[test]
    fn equality_needs_pairs_that_could_have_differed() {
        assert_eq!(scores(3, 0, 0, 3).shown(), Shown::Equal);
        assert_eq!(scores(3, 0, 0, 2).shown(), Shown::Nothing);
        let nothing = scores(0, 0, 0, 0);
        assert_eq!((nothing.shown(), nothing.difference), (Shown::Nothing, None));
        assert!(
            nothing
                .unpaired(2, 1)
                .to_string()
                .contains("nothing is compared; not paired: 2 of dense only, 1 of trt only")
        );
    }

    /// Two prompts of three cases each that move as one: a resample draws prompts, so the mean change is 0, 1/2 or 1.
    #[test]
    fn cases_of_one_prompt_are_resampled_together() {
        let cases: Vec<Case<'_>> = (0..6)
            .map(|at| Case { prompt: if at < 3 { "a" } else { "b" }, left: false, right: at < 3 })
            .collect();
        let found = PairedScores::of(NAMES, &cases, Bootstrap::default());
        assert_eq!((found.prompts, found.interval), (2, Some((0.0, 1.0))));
        assert!(found.to_string().contains("pairs of one prompt are not independent"));
    }

    #[test]
    fn the_answer_of_an_older_build_reads_back() {
        let text = r#"{"what":"answers","n":1,"both":0,"left_only":1,"right_only":0,"neither":0,"p_value":1.0,"interval":null,"smallest_effect":null}"#;
        let back: PairedScores = serde_json::from_str(text).unwrap();
        assert_eq!((back.n, back.left_only, back.smallest_effect), (1, 1, None));
    }
}
