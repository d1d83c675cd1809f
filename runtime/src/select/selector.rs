//! The selector: score, normalise, reduce, choose.

use std::time::Instant;

use lockstep_traces::stats::QueryStats;
use lockstep_traces::{Cause, RuleSet};

use super::choose::{self, Plan};
use super::fault::Faults;
use super::reduce::{Layout, Reducer};
use super::score::{Matrix, Scorer, Span};
use super::stages::Grid;
use super::weights::{self, Head};
use super::{
    CacheView, Dims, KeepSet, NoiseGenerator, Rules, SelectError, Selection, StageSeconds, Stages,
};
use crate::RotaryTable;

/// Positions and R + offset stay exact in f32 below this.
const EXACT: u32 = 1 << 23;

/// One compaction to decide.
#[derive(Debug, Clone, Copy)]
pub struct SelectInput<'a> {
    /// The cache before it.
    pub cache: &'a CacheView<'a>,
    /// R: N, except where the lifecycle of the rule set says otherwise.
    pub round_start: u32,
    /// P: prompt tokens. `trt` compares it with positions, the others take as many leading rows.
    pub prompt_len: usize,
    /// Rows wanted in all (B of `hf` and `sglang`, `budget_total` of `vllm`, `keep` of `trt`); at most T are kept.
    pub keep: usize,
}

/// A rule set bound to a model and its statistics.
#[derive(Debug, Clone)]
pub struct Selector {
    rules: Rules,
    dims: Dims,
    heads: Vec<Head>,
    layout: Layout,
    scorer: Scorer,
    faults: Faults,
    frequencies_from: &'static str,
}

impl Selector {
    /// Binds rules to statistics. Inverse frequencies: those of the statistics file where it holds any, except under `hf`, which
    /// takes the model's.
    ///
    /// # Errors
    /// [`SelectError::Stats`] and [`SelectError::Input`] where shapes contradict each other, [`SelectError::Plant`] where the fault
    /// cannot show.
    pub fn new(
        rules: Rules,
        stats: &QueryStats,
        rotary: &RotaryTable,
        dims: Dims,
        plant: Option<Cause>,
    ) -> Result<Self, SelectError> {
        let faults = Faults::new(plant, &rules)?;
        let heads = weights::heads(&rules, stats, rotary, dims)?;
        let (inv_freq, frequencies_from) = match &stats.inv_freq {
            Some(inv_freq) if rules.rule_set != RuleSet::Hf => (inv_freq, "statistics"),
            _ => (&rotary.inv_freq, "model"),
        };
        if inv_freq.len() != dims.freqs() {
            return Err(SelectError::Stats(format!(
                "inv_freq holds {} values; head width {} needs {}",
                inv_freq.len(),
                dims.head_dim,
                dims.freqs()
            )));
        }
        let scorer = Scorer::new(&rules, dims, inv_freq, rotary.attention_scaling, &heads);
        let layout = Layout::new(&heads, dims);
        Ok(Self { rules, dims, heads, layout, scorer, faults, frequencies_from })
    }

    /// Rules in force.
    #[must_use]
    pub const fn rules(&self) -> &Rules {
        &self.rules
    }

    /// Where the inverse frequencies came from: `statistics` or `model`.
    #[must_use]
    pub const fn frequencies_from(&self) -> &'static str {
        self.frequencies_from
    }

    /// A fresh noise generator, where the rules add noise.
    #[must_use]
    pub fn noise(&self) -> Option<NoiseGenerator> {
        self.rules.noise_seed.map(NoiseGenerator::new)
    }

    /// Decides which rows stay. `None`: the rule set declines (`vllm` with a protected prompt longer than the budget) and the cache
    /// keeps growing. Noise is drawn only where something is scored.
    ///
    /// # Errors
    /// [`SelectError::Input`] where the view does not fit, [`SelectError::NotANumber`] where a score is no number.
    pub fn select(
        &self,
        input: &SelectInput<'_>,
        noise: Option<&mut NoiseGenerator>,
        want_stages: bool,
    ) -> Result<Option<Selection>, SelectError> {
        self.check(input)?;
        match choose::plan(&self.rules, self.dims, input) {
            Plan::Refused => Ok(None),
            Plan::Settled { keep, protected } => Ok(Some(Selection {
                keep,
                protected: count(protected),
                candidates: count(input.cache.rows - protected),
                round_start: None,
                stages: None,
                seconds: StageSeconds::default(),
            })),
            Plan::Rank { first_row, count, guarded } => {
                let job = Job { selector: self, input, first_row, count, guarded };
                job.run(noise, want_stages).map(Some)
            }
        }
    }

    fn check(&self, input: &SelectInput<'_>) -> Result<(), SelectError> {
        input.cache.check(self.dims, true)?;
        let positions = input.cache.positions.iter().copied().flatten();
        let largest = positions.copied().max().unwrap_or(0).max(input.round_start);
        if largest >= EXACT || count(input.cache.rows) >= EXACT {
            return Err(SelectError::Input(format!(
                "position {largest} is too large for exact f32 phases (limit {EXACT})"
            )));
        }
        Ok(())
    }
}

fn count(rows: usize) -> u32 {
    u32::try_from(rows).unwrap_or(u32::MAX)
}

/// One ranking under way.
struct Job<'a> {
    selector: &'a Selector,
    input: &'a SelectInput<'a>,
    first_row: usize,
    count: usize,
    guarded: Vec<bool>,
}

impl Job<'_> {
    fn run(
        &self,
        noise: Option<&mut NoiseGenerator>,
        want_stages: bool,
    ) -> Result<Selection, SelectError> {
        let selector = self.selector;
        let cache = self.input.cache;
        let started = Instant::now();
        let round_start = if selector.faults.round_start_is_rows() {
            count(cache.rows)
        } else {
            self.input.round_start
        };
        // The planted row set of `hf` takes in the prefix, which is otherwise not scored.
        let outside = if self.selector.faults.zscore_rows() { self.first_row } else { 0 };
        let span = Span { first_row: self.first_row - outside, round_start: round_start as usize };
        let mut raw = selector.scorer.score(&selector.heads, cache, span);
        let scored = Instant::now();
        let reducer = Reducer {
            rules: &selector.rules,
            dims: selector.dims,
            layout: &selector.layout,
            faults: selector.faults,
            counted: self.counted(cache.rows - span.first_row),
            dropped: outside,
        };
        let mut reduced = reducer.reduce(&raw, noise);
        if want_stages {
            raw.iter_mut().for_each(|row| drop(row.drain(..outside)));
        }
        self.check_numbers(&raw, &reduced.rankings)?;
        self.guard(&mut reduced.rankings);
        let reduced_at = Instant::now();
        let keep = choose::keep(
            &selector.rules,
            &reduced.rankings,
            self.first_row,
            self.count,
            selector.faults.higher_row_wins(),
        );
        let seconds = StageSeconds {
            score: (scored - started).as_secs_f64(),
            reduce: (reduced_at - scored).as_secs_f64(),
            select: reduced_at.elapsed().as_secs_f64(),
        };
        let guards = self.guarded.iter().filter(|&&guarded| guarded).count();
        let stages = want_stages.then(|| self.stages(&raw, &reduced));
        Ok(self.answer(keep, guards, round_start, stages, seconds))
    }

    fn answer(
        &self,
        keep: KeepSet,
        guards: usize,
        round_start: u32,
        stages: Option<Stages>,
        seconds: StageSeconds,
    ) -> Selection {
        let protected = self.first_row + guards;
        Selection {
            keep,
            protected: count(protected),
            candidates: count(self.input.cache.rows - protected),
            round_start: Some(round_start),
            stages,
            seconds,
        }
    }

    fn stages(&self, raw: &Matrix, reduced: &super::reduce::Reduced) -> Stages {
        let selector = self.selector;
        let grid = Grid {
            rules: &selector.rules,
            dims: selector.dims,
            heads: &selector.heads,
            layout: &selector.layout,
        };
        grid.stages(raw, reduced, self.first_row)
    }

    /// Columns that count towards mean and deviation: all, or under the planted fault the unprotected ones (and for `hf`, which
    /// has no guarded column, the prefix besides).
    fn counted(&self, columns: usize) -> Vec<bool> {
        if self.selector.faults.zscore_rows() && self.guarded.len() == columns {
            self.guarded.iter().map(|guarded| !guarded).collect()
        } else {
            vec![true; columns]
        }
    }

    fn guard(&self, rankings: &mut super::reduce::Rankings) {
        let newest_lost = self.selector.faults.newest_row_lost();
        for scores in rankings.lists_mut() {
            for (score, &guarded) in scores.iter_mut().zip(&self.guarded) {
                if guarded {
                    *score = f32::INFINITY;
                }
            }
            if newest_lost && let Some(newest) = scores.last_mut() {
                *newest = f32::NEG_INFINITY;
            }
        }
    }

    fn check_numbers(
        &self,
        raw: &Matrix,
        rankings: &super::reduce::Rankings,
    ) -> Result<(), SelectError> {
        if !rankings.lists().into_iter().flatten().any(|score| score.is_nan()) {
            return Ok(());
        }
        let columns = self.guarded.len();
        for (head, row) in self.selector.heads.iter().zip(raw) {
            let skipped = row.len() - columns;
            if let Some(column) = row[skipped..].iter().position(|score| !score.is_finite()) {
                return Err(SelectError::NotANumber {
                    layer: count(head.layer),
                    head: count(head.head),
                    row: self.first_row + column,
                });
            }
        }
        Err(SelectError::Input("scores overflow f32 while they are normalised".to_owned()))
    }
}
