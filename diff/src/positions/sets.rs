//! Dumped keep-sets: valid indices, positions gathered by them, window and prefix kept.

use std::collections::{BTreeMap, BTreeSet};

use lockstep_traces::store::{DumpFile, RunReader};
use lockstep_traces::{Cause, DumpId, EventRow, Location, SampleRow, TraceError};
use serde_json::Value;

use super::collect::{Collector, Rule};
use super::rules::Rules;
use crate::identity;
use crate::keep::{KeepSets, Positions};

/// Position of each row after the last compaction looked at, by (layer, head).
type After = BTreeMap<(usize, usize), Vec<u32>>;

/// One head of one compaction.
struct Set<'a> {
    sample: &'a str,
    ordinal: u32,
    layer: usize,
    head: usize,
    keep: &'a [u32],
    before: &'a [u32],
    after: Option<&'a [u32]>,
    next: Option<u32>,
    prompt: u32,
}

/// Checks every dumped compaction; returns the head keep-sets looked at.
pub(crate) fn check(
    run: &RunReader,
    events: &[EventRow],
    samples: &[SampleRow],
    rules: &Rules,
    found: &mut Collector,
) -> Result<u64, TraceError> {
    let mut heads = 0;
    let dumps: BTreeSet<DumpId> = run.dumps()?.into_iter().collect();
    for (event, file) in identity::lost(events, &dumps) {
        let place = format!("`{}` compaction {}", event.sample_id, event.ordinal);
        found.skip(format!("{place}: its dump `{file}` is missing"));
    }
    let mut last: Option<(String, u32, After)> = None;
    for id in &dumps {
        let DumpId::Compaction { sample_id, ordinal } = id else { continue };
        let Some(dump) = run.dump(id)? else { continue };
        told(&dump, sample_id, *ordinal, events, found);
        let prior =
            last.take().filter(|(sample, before, _)| sample == sample_id && before + 1 == *ordinal);
        let from_table =
            samples.iter().find(|row| row.sample_id == *sample_id).and_then(|row| row.prompt_len);
        let prompt = number(&dump, "prompt_len").or(from_table);
        let one = Event { sample_id, ordinal: *ordinal, prompt, rules };
        if let Some((count, after)) = one.check(&dump, prior.map(|prior| prior.2), found)? {
            heads += count;
            last = Some((sample_id.clone(), *ordinal, after));
        }
    }
    if heads == 0 {
        found.limit("no keep-set is dumped: positions by head, window and prefix were not checked");
    }
    Ok(heads)
}

/// The dump says that it is the compaction that its name and the event table make it.
fn told(
    dump: &DumpFile,
    sample_id: &str,
    ordinal: u32,
    events: &[EventRow],
    found: &mut Collector,
) {
    let event =
        events.iter().find(|event| event.sample_id == sample_id && event.ordinal == ordinal);
    let wrong = identity::contradictions(dump, sample_id, ordinal, event);
    let Some(first) = wrong.first() else { return };
    let title = format!("{}: {first}", identity::ANOTHER);
    let location = Location {
        sample_id: Some(sample_id.to_owned()),
        ordinal: Some(ordinal),
        stage: Some("metadata".to_owned()),
        ..Location::default()
    };
    found.add(Rule::DumpIdentity, None, location, title, vec![("metadata", wrong.into())]);
}

fn number(dump: &DumpFile, key: &str) -> Option<u32> {
    dump.metadata().get(key)?.parse().ok()
}

struct Event<'a> {
    sample_id: &'a str,
    ordinal: u32,
    prompt: Option<u32>,
    rules: &'a Rules,
}

impl Event<'_> {
    fn check(
        &self,
        dump: &DumpFile,
        prior: Option<After>,
        found: &mut Collector,
    ) -> Result<Option<(u64, After)>, TraceError> {
        let before = Positions::read(dump, "positions.pre")?;
        let keep = KeepSets::read(dump, before.as_ref().map(|before| before.heads))?;
        let (Some(before), Some(keep)) = (before, keep) else {
            found.skip(format!(
                "`{}` compaction {}: `keep` or `positions.pre` is not dumped",
                self.sample_id, self.ordinal
            ));
            return Ok(None);
        };
        let after = Positions::read(dump, "positions.post")?;
        if after.is_none() {
            found.skip(format!(
                "`{}` compaction {}: `positions.post` is not dumped",
                self.sample_id, self.ordinal
            ));
        }
        if self.prompt.is_none() {
            found.limit(format!(
                "`{}`: the prompt length is not recorded, prefix not checked",
                self.sample_id
            ));
        }
        let layers = keep.units().0.max(before.layers());
        let (mut count, mut next) = (0, After::new());
        for layer in 0..layers {
            for head in 0..before.heads {
                let (Some(rows), Some(positions)) = (keep.of(layer, head), before.of(layer, head))
                else {
                    found.skip(format!(
                        "`{}` compaction {}: `keep` does not cover layer {layer}, head {head}",
                        self.sample_id, self.ordinal
                    ));
                    continue;
                };
                let set = Set {
                    sample: self.sample_id,
                    ordinal: self.ordinal,
                    layer,
                    head,
                    keep: rows,
                    before: positions,
                    after: after.as_ref().and_then(|after| after.of(layer, head)),
                    next: number(dump, "absolute_position"),
                    prompt: self.prompt.unwrap_or(0),
                };
                count += 1;
                if set.indices(self.rules, found) {
                    set.gathered(found);
                    set.protected(self.rules, found);
                }
                let known = prior.as_ref().and_then(|prior| prior.get(&(layer, head)));
                set.rows_before(known.map(Vec::as_slice), found);
                next.insert(
                    (layer, head),
                    rows.iter().filter_map(|row| positions.get(*row as usize).copied()).collect(),
                );
            }
        }
        Ok(Some((count, next)))
    }
}

impl Set<'_> {
    fn at(&self, row: Option<usize>, stage: &str) -> Location {
        Location {
            sample_id: Some(self.sample.to_owned()),
            ordinal: Some(self.ordinal),
            layer: u32::try_from(self.layer).ok(),
            head: u32::try_from(self.head).ok(),
            row: row.and_then(|row| u32::try_from(row).ok()),
            stage: Some(stage.to_owned()),
            position: None,
        }
    }

    fn kept(&self) -> Vec<bool> {
        let mut kept = vec![false; self.before.len()];
        for row in self.keep {
            if let Some(slot) = kept.get_mut(*row as usize) {
                *slot = true;
            }
        }
        kept
    }

    /// In range, unique, ascending where the rule set says so, and as many as the budget.
    fn indices(&self, rules: &Rules, found: &mut Collector) -> bool {
        let rows = self.before.len();
        let mut broken = |row: Option<usize>, title: String| {
            found.add(Rule::KeepIndex, None, self.at(row, "keep"), title, Vec::new());
        };
        if let Some(at) = self.keep.iter().position(|row| *row as usize >= rows) {
            let index = self.keep.get(at).copied().unwrap_or(0);
            broken(Some(at), format!("`keep` names row {index}, only {rows} rows are there"));
            return false;
        }
        let distinct = self.kept().iter().filter(|kept| **kept).count();
        if distinct != self.keep.len() {
            broken(
                None,
                format!("`keep` names {} rows, only {distinct} of them distinct", self.keep.len()),
            );
            return false;
        }
        let falls = |two: &[u32]| matches!(two, [a, b] if a >= b);
        if rules.ascending == Some(true)
            && let Some(at) = self.keep.windows(2).position(falls)
        {
            broken(Some(at + 1), "`keep` is not ascending, as this rule set's is".to_owned());
        }
        let expected = rules.kept(self.prompt.into());
        if let Some(expected) = expected.filter(|expected| *expected != self.keep.len() as u64) {
            let title = format!("{} rows are kept, the budget says {expected}", self.keep.len());
            found.add(Rule::KeepCount, None, self.at(None, "keep"), title, Vec::new());
        }
        true
    }

    fn gathered(&self, found: &mut Collector) {
        let Some(after) = self.after else { return };
        let expected = |at: usize| self.keep.get(at).and_then(|row| self.before.get(*row as usize));
        let length = after.len().max(self.keep.len());
        let Some(at) = (0..length).find(|at| after.get(*at) != expected(*at)) else { return };
        let physical =
            after.iter().enumerate().all(|(row, position)| u32::try_from(row) == Ok(*position));
        let cause = physical.then_some(Cause::PhysicalPositions);
        let show = |position: Option<&u32>| position.map_or("none".to_owned(), u32::to_string);
        let title = format!(
            "row {at} after has position {}, `keep` gives it {}{}",
            show(after.get(at)),
            show(expected(at)),
            if physical { ": positions after are physical rows" } else { "" }
        );
        found.add(
            Rule::PositionsGathered,
            cause,
            self.at(Some(at), "positions"),
            title,
            Vec::new(),
        );
    }

    /// The newest rows of the window and the prompt's rows are kept, as far as the budget has room for both.
    fn protected(&self, rules: &Rules, found: &mut Collector) {
        let (rows, k) = (self.before.len(), self.keep.len());
        let kept = self.kept();
        let prefix =
            |row: usize| self.before.get(row).is_some_and(|position| *position < self.prompt);
        let protects = rules.protects.unwrap_or(false);
        let prefix_rows = if protects { (0..rows).filter(|row| prefix(*row)).count() } else { 0 };
        let mut window = rules.window.and_then(|window| usize::try_from(window).ok()).unwrap_or(0);
        if rules.kind.as_deref() == Some("recent") {
            window = k.saturating_sub(prefix_rows);
        }
        let window = window.min(rows).min(k);
        let reserved =
            (0..rows).filter(|row| (protects && prefix(*row)) || row + window >= rows).count();
        if reserved > k {
            found.limit(format!(
                "`{}` compaction {}: {reserved} protected rows exceed the {k} kept, protection not judged",
                self.sample, self.ordinal
            ));
            return;
        }
        let lost: Vec<usize> =
            (rows - window..rows).filter(|row| kept.get(*row) == Some(&false)).collect();
        if let Some(newest) = lost.last() {
            let position = self.before.get(*newest).copied();
            let title = format!(
                "{} of the {window} newest rows are not kept, the last of them row {newest} (position {})",
                lost.len(),
                position.unwrap_or(0)
            );
            let mut location = self.at(Some(*newest), "window");
            location.position = position;
            let evidence = vec![
                ("window", Value::from(window)),
                ("rows_lost", Value::from(lost.len())),
                ("rows_from_the_end", Value::from(rows - newest)),
            ];
            found.add(Rule::Window, Some(Cause::WindowRowLost), location, title, evidence);
        }
        if !protects {
            return;
        }
        let dropped = |row: &usize| prefix(*row) && kept.get(*row) == Some(&false);
        if let Some(row) = (0..rows).find(dropped) {
            let title = format!("prompt row {row} is not kept though the prompt is protected");
            found.add(Rule::Prefix, None, self.at(Some(row), "prefix"), title, Vec::new());
        }
    }

    /// Rows before: those the last compaction left, then every position since, up to N - 1.
    fn rows_before(&self, prior: Option<&[u32]>, found: &mut Collector) {
        let first = self.ordinal == 1;
        let known = if first { Some(&[][..]) } else { prior };
        if let (Some(known), Some(next)) = (known, self.next) {
            let fresh = self.before.len().saturating_sub(known.len());
            let start = i64::from(next) - i64::try_from(fresh).unwrap_or(i64::MAX);
            let expected = |row: usize| match known.get(row) {
                Some(position) => i64::from(*position),
                None => start + i64::try_from(row - known.len()).unwrap_or(i64::MAX),
            };
            let wrong = self
                .before
                .iter()
                .enumerate()
                .find(|(row, position)| i64::from(**position) != expected(*row));
            if let Some((row, position)) = wrong {
                let title = format!(
                    "row {row} before has position {position}, the rows since the last compaction make it {}",
                    expected(row)
                );
                found.add(
                    Rule::RowsBeforeEvent,
                    None,
                    self.at(Some(row), "positions"),
                    title,
                    Vec::new(),
                );
            }
        } else if let Some(next) = self.next
            && self.before.iter().max().is_some_and(|newest| newest.checked_add(1) != Some(next))
        {
            let title = format!("the newest row before is not N - 1 = {}", next.saturating_sub(1));
            found.add(Rule::RowsBeforeEvent, None, self.at(None, "positions"), title, Vec::new());
        }
    }
}
