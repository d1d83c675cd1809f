//! Lifecycles: the schedule predicted from the settings alone, and each recorded compaction from its cache before.

use std::path::Path;

use lockstep_traces::stats;
use lockstep_traces::store::DumpFile;
use lockstep_traces::{Cause, DType, RuleSet};

use super::case::{Case, Event};
use super::compare::{Limits, Scores, Tally};
use super::error::{CaseError, differs};
use super::selector::Answer;
use super::vectors::{self, KeyBlock};
use crate::RotaryTable;
use crate::policy::{Compaction, Policy, PolicyState, Setup};
use crate::select::{Dims, KeepSet, Selection};

/// Runs a lifecycle case.
pub(super) fn run(dir: &Path, case: &Case, rule_set: RuleSet, plant: Option<Cause>) -> Answer {
    let mut tally = Tally::default();
    let outcome = follow(dir, case, rule_set, plant, &mut tally);
    (tally, outcome)
}

fn follow(
    dir: &Path,
    case: &Case,
    rule_set: RuleSet,
    plant: Option<Cause>,
    tally: &mut Tally,
) -> Result<(), CaseError> {
    let (dims, attention_scaling) = case.dims()?;
    let name = |file: &Option<String>, what: &str| {
        let name =
            file.as_ref().ok_or_else(|| differs(format!("the case names no {what} file")))?;
        Ok::<_, CaseError>(dir.join(name))
    };
    let stats = stats::read(&name(&case.stats, "stats")?)?;
    let file = DumpFile::open(&name(&case.expected, "expected")?)?;
    let inv_freq = stats.inv_freq.clone().unwrap_or_default();
    let rotary = RotaryTable { inv_freq, attention_scaling };
    let setup =
        Setup { dims, rotary: &rotary, stats: Some(&stats), cache_dtype: DType::F32, plant };
    let policy = Policy::resolve(&case.spec(rule_set), &setup)?;
    let (prompt_len, steps) = case.life()?;
    let mut run = Run {
        case,
        file: &file,
        dims,
        state: policy.start(prompt_len, &case.name),
        policy: &policy,
        positions: Vec::new(),
        seen: 0,
        step: 0,
        tally,
    };
    run.append(prompt_len);
    let mut lengths = vec![run.state.rows()];
    for step in 1..=steps {
        run.step = step;
        if let Some(due) = policy.due_before_forward(&run.state)? {
            run.compact(&due)?;
        }
        run.append(1);
        if let Some(due) = policy.due_after_append(&run.state)? {
            run.compact(&due)?;
        }
        lengths.push(run.state.rows());
    }
    if run.seen != case.events.len() {
        return Err(differs(format!("{} compactions, expected {}", run.seen, case.events.len())));
    }
    let schedule = match (&case.cache_len_per_step, &case.rows_per_step) {
        (Some(recorded), _) => recorded == &lengths,
        (None, Some(recorded)) => recorded.as_slice() == &lengths[1..],
        (None, None) => return Err(differs("the case records no row counts")),
    };
    if schedule { Ok(()) } else { Err(differs("row counts by step differ from the recorded ones")) }
}

/// A lifecycle under way.
struct Run<'a> {
    case: &'a Case,
    file: &'a DumpFile,
    dims: Dims,
    policy: &'a Policy,
    state: PolicyState,
    /// By layer and KV head.
    positions: Vec<Vec<u32>>,
    seen: usize,
    step: usize,
    tally: &'a mut Tally,
}

impl Run<'_> {
    fn append(&mut self, count: usize) {
        let first = u32::try_from(self.state.absolute_position()).unwrap_or(u32::MAX);
        self.policy.appended(&mut self.state, count);
        let last = u32::try_from(self.state.absolute_position()).unwrap_or(u32::MAX);
        self.positions.resize(self.dims.layers * self.dims.kv_heads, Vec::new());
        self.positions.iter_mut().for_each(|list| list.extend(first..last));
    }

    fn tensor(&self, name: &str) -> String {
        format!("c{}.{name}", self.seen)
    }

    fn compact(&mut self, due: &Compaction) -> Result<(), CaseError> {
        let event = self.case.events.get(self.seen).ok_or_else(|| {
            differs(format!("a compaction at N = {} that is not recorded", due.absolute_position))
        })?;
        let number = self.seen + 1;
        schedule(due, event, self.step)
            .map_err(|what| differs(format!("compaction {number}: {what}")))?;
        let keys = self.file.get(&self.tensor("k_before"))?;
        let block = KeyBlock::read(&keys, self.dims)?;
        let view = block.view(self.dims, &self.positions);
        let ours = self.policy.choose(&mut self.state, due, &view, true)?;
        let keep = self.file.get(&self.tensor("keep"))?;
        if keep.shape != ours.keep.shape() {
            return Err(differs(format!(
                "compaction {number}: keep-sets of shape {:?}, expected {:?}",
                ours.keep.shape(),
                keep.shape
            )));
        }
        let expected = vectors::lists(&keep)?;
        self.compare(&ours, &expected)
            .map_err(|error| differs(format!("compaction {number}: {error}")))?;
        // What follows was recorded after upstream's choice, so that is the one to go on from.
        self.move_positions(&ours.keep, &expected)?;
        self.check_gather(&ours.keep, &expected)?;
        self.seen += 1;
        Ok(())
    }

    fn compare(&mut self, ours: &Selection, expected: &[Vec<u32>]) -> Result<(), CaseError> {
        let limits =
            Limits { raw: 1e-6, far: 1e-4, near: if layers_differ(ours) { 5e-5 } else { 2e-5 } };
        let stages = ours.stages.as_ref();
        let width = stages.and_then(|stages| stages.last.shape.last()).copied().unwrap_or(0).max(1);
        let own: Vec<Vec<f32>> = stages
            .map(|stages| stages.last.values.chunks(width).map(<[f32]>::to_vec).collect())
            .unwrap_or_default();
        let first_row = stages.map_or(0, |stages| stages.row_offset);
        let count = ours.keep.len().saturating_sub(first_row);
        let name = self.tensor("agg_scores");
        let stored = if self.file.names().any(|known| known == name) {
            let stored = vectors::rows(&self.file.get(&name)?)?;
            if stored.len() != own.len() {
                return Err(differs("ranked scores of another shape are stored"));
            }
            for (ours, expected) in own.iter().zip(&stored) {
                self.tally.ranked(ours, expected, count, limits)?;
            }
            stored
        } else {
            // No scores are stored: ties are judged by recomputed ones.
            own
        };
        for (index, (ours, expected)) in ours.keep.lists().zip(expected).enumerate() {
            let scores = stored.get(index).map(|values| Scores {
                values,
                first_row,
                count,
                near: limits.near,
            });
            self.tally.kept(ours, expected, scores)?;
        }
        Ok(())
    }

    fn move_positions(&mut self, shape: &KeepSet, expected: &[Vec<u32>]) -> Result<(), CaseError> {
        for (index, positions) in self.positions.iter_mut().enumerate() {
            let list = list_of(shape, self.dims, index);
            let rows = expected.get(list).map(Vec::as_slice).unwrap_or_default();
            let moved: Option<Vec<u32>> =
                rows.iter().map(|&row| positions.get(row as usize).copied()).collect();
            *positions = moved.ok_or_else(|| differs("a recorded row lies outside the cache"))?;
        }
        let name = self.tensor("positions_after");
        if !self.file.names().any(|known| known == name) {
            return Ok(());
        }
        let recorded = vectors::lists(&self.file.get(&name)?)?;
        for (index, positions) in self.positions.iter().enumerate() {
            if recorded.get(list_of(shape, self.dims, index)) != Some(positions) {
                return Err(differs(
                    "positions after the compaction differ from the recorded ones",
                ));
            }
        }
        Ok(())
    }

    /// The recorded cache after (or the head of the next one before) holds the kept rows, bit for bit.
    fn check_gather(&self, shape: &KeepSet, expected: &[Vec<u32>]) -> Result<(), CaseError> {
        let before = self.file.get(&self.tensor("k_before"))?;
        let own = self.tensor("k_after");
        let next = format!("c{}.k_before", self.seen + 1);
        let has = |name: &String| self.file.names().any(|known| known == name.as_str());
        let Some(after) = [own, next].into_iter().find(has) else { return Ok(()) };
        let after = self.file.get(&after)?;
        let (before_rows, after_rows) = match (&before.shape[..], &after.shape[..]) {
            ([_, _, before, _], [_, _, after, _]) => (*before, *after),
            _ => return Err(differs("recorded keys are not four-dimensional")),
        };
        let row_bytes = self.dims.head_dim * before.dtype.size();
        let row = |bytes: &[u8], head: usize, rows: usize, row: usize| {
            let start = (head * rows + row) * row_bytes;
            bytes.get(start..start + row_bytes).map(<[u8]>::to_vec)
        };
        for head in 0..self.dims.layers * self.dims.kv_heads {
            let list = list_of(shape, self.dims, head);
            let kept = expected.get(list).map(Vec::as_slice).unwrap_or_default();
            for (to, &from) in kept.iter().enumerate() {
                let source = row(before.bytes, head, before_rows, from as usize);
                if source.is_none() || source != row(after.bytes, head, after_rows, to) {
                    return Err(differs(format!(
                        "row {to} after the gather is not row {from} before it"
                    )));
                }
            }
        }
        Ok(())
    }
}

fn layers_differ(ours: &Selection) -> bool {
    ours.keep.layers_differ()
}

/// Which list of a keep-set serves layer-major head `index`.
fn list_of(shape: &KeepSet, dims: Dims, index: usize) -> usize {
    match shape {
        KeepSet::Shared(_) => 0,
        KeepSet::PerHead(_) => index % dims.kv_heads,
        KeepSet::PerLayer(_) => index / dims.kv_heads,
        KeepSet::PerLayerPerHead(_) => index,
    }
}

fn schedule(due: &Compaction, event: &Event, step: usize) -> Result<(), String> {
    let position = event.absolute_position.or(event.round_start);
    let after = event.rows_after.or(event.cache_len_after);
    let checks = [
        ("N", Some(due.absolute_position as usize), position),
        ("R", Some(due.round_start as usize), position),
        ("rows before", Some(due.rows), Some(event.rows_before)),
        ("rows after", Some(due.keep), after),
        ("step", Some(step), event.step.or(Some(step))),
    ];
    for (what, ours, recorded) in checks {
        if ours != recorded {
            return Err(format!("{what} is {ours:?}, recorded {recorded:?}"));
        }
    }
    Ok(())
}
