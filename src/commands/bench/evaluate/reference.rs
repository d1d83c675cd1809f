//! The dense run on the reference: teacher-forced, since the reference has no path that generates.

use std::path::Path;

use lockstep_replay::forward::{ForwardOptions, Policy};
use lockstep_traces::store::{RunReader, StepColumn, StepColumns, StepQuery};
use lockstep_traces::{DType, TraceError};
use serde::Serialize;

use crate::commands::replaying;

/// Folder of the run that is replayed.
const DENSE: &str = "dense";
/// Folder of the replay.
const REFERENCE: &str = "reference";

/// Do run and reference rank the same id first, on the rows that chose a token?
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub(super) struct Agreement {
    /// What this is.
    pub(super) kind: &'static str,
    /// Arithmetic of the reference.
    pub(super) dtype: &'static str,
    pub(super) samples: usize,
    /// Samples that agree on every row.
    pub(super) samples_equal: usize,
    /// Rows compared: those from which the run chose a token.
    pub(super) rows: u64,
    pub(super) rows_equal: u64,
    /// Rows that differ while either side's two largest logits are equal: ties, not disagreements.
    pub(super) rows_tied: u64,
    /// `rows_equal / rows`.
    pub(super) share: Option<f64>,
    /// First disagreement of each sample that has one.
    pub(super) first: Vec<Disagreement>,
}

/// A row on which the two rank another id first.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct Disagreement {
    pub(super) sample_id: String,
    pub(super) position: u32,
    pub(super) run: u32,
    pub(super) reference: u32,
    /// Largest minus second largest logit of the run.
    pub(super) run_margin: Option<f32>,
    /// The same of the reference.
    pub(super) reference_margin: Option<f32>,
}

/// Replays `dense` below `out` in the run's dtype. `None`: interrupted.
pub(super) fn replay(out: &Path, model: &Path) -> anyhow::Result<Option<Agreement>> {
    let run = RunReader::open(&out.join(DENSE))?;
    let dir = out.join(REFERENCE);
    if dir.exists() {
        std::fs::remove_dir_all(&dir)?;
    }
    let dtype = run.manifest().dtype.unwrap_or(DType::F32);
    let options = ForwardOptions {
        policy: Policy::Dense,
        precision: replaying::precision(dtype)?,
        ..ForwardOptions::default()
    };
    if replaying::replay(&run, model, &options, &dir, Some(REFERENCE))?.is_none() {
        return Ok(None);
    }
    let replayed = RunReader::open(&dir)?;
    let (left, right) = (columns(&run)?, columns(&replayed)?);
    Ok(Some(Agreement { dtype: dtype.name(), ..agreement(&left, &right)? }))
}

fn columns(run: &RunReader) -> Result<StepColumns, TraceError> {
    use StepColumn as C;
    let columns = Some(vec![C::NextToken, C::Argmax, C::Top2Margin]);
    run.steps(&StepQuery { columns, ..StepQuery::default() })
}

/// Rows of the run that chose a token, against the reference's row of the same sample and position.
fn agreement(run: &StepColumns, reference: &StepColumns) -> anyhow::Result<Agreement> {
    let mut places = std::collections::BTreeMap::new();
    for row in 0..reference.len {
        places.insert((reference.sample_id(row), reference.position.get(row)), row);
    }
    let mut found = Agreement {
        kind: "teacher-forced: the reference is fed the run's tokens (it has no path that generates)",
        samples: run.sample_ids.len(),
        ..Agreement::default()
    };
    for row in (0..run.len).filter(|row| run.next_token.get(*row).is_some_and(Option::is_some)) {
        let (sample, position) = (run.sample_id(row), run.position.get(row));
        let other = places.get(&(sample, position)).copied();
        let both = other
            .and_then(|other| Some((*run.argmax.get(row)?, *reference.argmax.get(other)?, other)));
        let (Some((ours, theirs, other)), Some(sample), Some(position)) = (both, sample, position)
        else {
            anyhow::bail!(
                "sample `{}`, position {:?}: the reference has no such row",
                sample.unwrap_or_default(),
                position
            );
        };
        found.rows += 1;
        if ours == theirs {
            found.rows_equal += 1;
            continue;
        }
        let margins = [run.top2_margin.get(row), reference.top2_margin.get(other)]
            .map(|margin| margin.copied().flatten());
        if margins.contains(&Some(0.0)) {
            found.rows_tied += 1;
        } else if found.first.last().is_none_or(|last| last.sample_id != sample) {
            found.first.push(Disagreement {
                sample_id: sample.to_owned(),
                position: *position,
                run: ours,
                reference: theirs,
                run_margin: margins[0],
                reference_margin: margins[1],
            });
        }
    }
    if found.rows == 0 {
        anyhow::bail!(
            "the dense run chose no token: there is nothing to compare with the reference"
        );
    }
    found.samples_equal = found.samples - found.first.len();
    #[expect(clippy::cast_precision_loss, reason = "row counts are far below 2^53")]
    let share = found.rows_equal as f64 / found.rows as f64;
    found.share = Some(share);
    Ok(found)
}

impl Agreement {
    /// One line.
    pub(super) fn line(&self) -> String {
        let tied =
            if self.rows_tied > 0 { format!(", {} tied", self.rows_tied) } else { String::new() };
        let first = self.first.first().map_or_else(String::new, |first| {
            format!(
                "; first disagreement {} position {}: run {}, reference {}",
                first.sample_id, first.position, first.run, first.reference
            )
        });
        format!(
            "reference ({}), {}: same argmax on {} of {} rows{tied}; {} of {} samples throughout{first}",
            self.dtype, self.kind, self.rows_equal, self.rows, self.samples_equal, self.samples
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lockstep_traces::{Phase, StepRow};

    fn row(sample: &str, position: u32, chosen: bool, argmax: u32, margin: f32) -> StepRow {
        StepRow {
            sample_id: sample.to_owned(),
            position,
            phase: Phase::Decode,
            token_id: 0,
            next_token: chosen.then_some(argmax),
            rows_before: 0,
            rows_after: 0,
            rows_bucketed: None,
            compaction: None,
            rope_index: None,
            argmax,
            top_ids: Vec::new(),
            top_logits: Vec::new(),
            logsumexp: None,
            top2_margin: Some(margin),
            finite: true,
            logits_hash: None,
            rng_offset: None,
            uniform: None,
        }
    }

    #[test]
    fn disagreements_ties_and_rows_that_chose_nothing_are_told_apart() {
        let run = StepColumns::from_rows(&[
            row("a", 0, false, 9, 1.0),
            row("a", 1, true, 5, 1.0),
            row("a", 2, true, 6, 0.0),
            row("b", 1, true, 7, 0.5),
            row("b", 2, true, 8, 0.5),
        ]);
        let reference = StepColumns::from_rows(&[
            row("a", 0, false, 1, 1.0),
            row("a", 1, false, 5, 1.0),
            row("a", 2, false, 2, 1.0),
            row("b", 1, false, 3, 0.25),
            row("b", 2, false, 4, 0.25),
        ]);
        let found = agreement(&run, &reference).unwrap();
        assert_eq!((found.rows, found.rows_equal, found.rows_tied), (4, 1, 1));
        assert_eq!((found.samples, found.samples_equal, found.share), (2, 1, Some(0.25)));
        assert_eq!(found.first.len(), 1, "the first of each sample");
        let first = &found.first[0];
        assert_eq!(
            (first.sample_id.as_str(), first.position, first.run, first.reference),
            ("b", 1, 7, 3)
        );
        assert!(found.line().contains("1 of 4 rows, 1 tied; 1 of 2 samples"), "{}", found.line());
        let same = agreement(&run, &run).unwrap();
        assert_eq!((same.rows_equal, same.samples_equal, same.first.len()), (4, 2, 0));
    }

    #[test]
    fn a_missing_row_and_nothing_to_compare_are_errors() {
        let run = StepColumns::from_rows(&[row("a", 1, true, 5, 1.0)]);
        let other = StepColumns::from_rows(&[row("a", 2, true, 5, 1.0)]);
        assert!(agreement(&run, &other).unwrap_err().to_string().contains("`a`"));
        let silent = StepColumns::from_rows(&[row("a", 1, false, 5, 1.0)]);
        assert!(agreement(&silent, &run).unwrap_err().to_string().contains("nothing to compare"));
    }
}
