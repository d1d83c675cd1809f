//! One ranking under way: from scores to rows.

use std::time::Instant;

use super::choose;
use super::reduce::{Rankings, Reduced, Reducer};
use super::score::{Matrix, Span};
use super::selector::{SelectInput, Selector, count};
use super::stages::Grid;
use super::weights::Head;
use super::{KeepSet, NoiseGenerator, SelectError, Selection, StageSeconds, Stages};

/// One ranking under way.
pub(super) struct Job<'a> {
    pub(super) selector: &'a Selector,
    pub(super) input: &'a SelectInput<'a>,
    pub(super) first_row: usize,
    pub(super) count: usize,
    pub(super) guarded: Vec<bool>,
}

impl Job<'_> {
    pub(super) fn run(
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

    fn stages(&self, raw: &Matrix, reduced: &Reduced) -> Stages {
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

    fn guard(&self, rankings: &mut Rankings) {
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

    fn check_numbers(&self, raw: &Matrix, rankings: &Rankings) -> Result<(), SelectError> {
        if !rankings.lists().into_iter().flatten().any(|score| score.is_nan()) {
            return Ok(());
        }
        Err(not_a_number(&self.selector.heads, raw, self.guarded.len(), self.first_row))
    }
}

/// Why a ranking holds a NaN: the first raw score of the last `columns` columns that is none, else the reductions.
pub(crate) fn not_a_number(
    heads: &[Head],
    raw: &Matrix,
    columns: usize,
    first_row: usize,
) -> SelectError {
    for (head, row) in heads.iter().zip(raw) {
        let skipped = row.len() - columns;
        if let Some(column) = row[skipped..].iter().position(|score| !score.is_finite()) {
            return SelectError::NotANumber {
                layer: count(head.layer),
                head: count(head.head),
                row: first_row + column,
            };
        }
    }
    SelectError::Input("scores overflow f32 while they are normalised".to_owned())
}
