//! The step table: positions, RoPE indices, rows from step to step, triggers.

use lockstep_traces::store::StepColumns;
use lockstep_traces::{Cause, EventRow, Location, Phase, SampleRow};
use serde_json::Value;

use super::collect::{Collector, Rule};
use super::rules::Rules;

/// Tables of the run.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Table<'a> {
    pub(crate) columns: &'a StepColumns,
    pub(crate) events: &'a [EventRow],
    pub(crate) samples: &'a [SampleRow],
}

#[derive(Debug, Clone, Copy)]
struct Step {
    position: u32,
    phase: Phase,
    rows_before: u32,
    rows_after: u32,
    compaction: Option<u32>,
    rope_index: Option<u32>,
}

/// Walks every sample; returns the rows looked at.
pub(crate) fn check(table: &Table<'_>, rules: &Rules, found: &mut Collector) -> u64 {
    let columns = table.columns;
    let mut start = 0;
    while start < columns.len {
        let sample = columns.sample.get(start);
        let mut end = start + 1;
        while end < columns.len && columns.sample.get(end) == sample {
            end += 1;
        }
        if let Some(id) = columns.sample_id(start) {
            let rows: Vec<Step> = (start..end).filter_map(|at| step(columns, at)).collect();
            let meta = table.samples.iter().find(|row| row.sample_id == id);
            let prompts = rows.iter().filter(|row| row.phase == Phase::Prompt).count();
            let prompt =
                meta.and_then(|row| row.prompt_len).or_else(|| u32::try_from(prompts).ok());
            let events = table.events.iter().filter(|event| event.sample_id == id).collect();
            let walk = Walk { id, rows: &rows, prompt: prompt.unwrap_or(0), events, rules };
            walk.run(found);
        }
        start = end;
    }
    if !rules.rows_exact {
        found.limit("row counts are rounded up to buckets: rows and triggers were not checked");
    } else if rules.kind.is_none() {
        found.limit("the policy is not recorded: triggers were not checked");
    } else if !rules.trigger_known() {
        found.limit("the trigger of this policy is not known from the manifest: not checked");
    }
    columns.len as u64
}

fn step(columns: &StepColumns, at: usize) -> Option<Step> {
    Some(Step {
        position: *columns.position.get(at)?,
        phase: *columns.phase.get(at)?,
        rows_before: *columns.rows_before.get(at)?,
        rows_after: *columns.rows_after.get(at)?,
        compaction: *columns.compaction.get(at)?,
        rope_index: *columns.rope_index.get(at)?,
    })
}

struct Walk<'a> {
    id: &'a str,
    rows: &'a [Step],
    prompt: u32,
    events: Vec<&'a EventRow>,
    rules: &'a Rules,
}

impl Walk<'_> {
    fn at(&self, position: u32, stage: &str) -> Location {
        Location {
            sample_id: Some(self.id.to_owned()),
            position: Some(position),
            stage: Some(stage.to_owned()),
            ..Location::default()
        }
    }

    fn run(&self, found: &mut Collector) {
        if let Some(first) =
            self.rows.first().filter(|row| row.position != 0 && row.position != self.prompt)
        {
            found.limit(format!(
                "`{}` starts at position {}, neither 0 nor the prompt's end",
                self.id, first.position
            ));
        }
        let mut last_ordinal = None;
        for (at, row) in self.rows.iter().enumerate() {
            let before = at.checked_sub(1).and_then(|at| self.rows.get(at));
            self.rope(row, last_ordinal, found);
            if let Some(before) = before {
                self.gap(before, row, found);
            }
            if self.rules.rows_exact {
                self.arithmetic(before, row, found);
                self.trigger(row, found);
            }
            if let Some(ordinal) = row.compaction {
                self.event(row, ordinal, last_ordinal, found);
                last_ordinal = Some(ordinal);
            }
        }
        if self.rules.rows_exact {
            self.offset(found);
        }
        if self.rows.iter().all(|row| row.rope_index.is_none()) {
            found.limit("the index that the rotary embedding used is not recorded");
        }
        let seen = self.rows.iter().filter(|row| row.compaction.is_some()).count();
        if let Some(event) = self.events.iter().find(|event| {
            !self.rows.iter().any(|row| row.compaction == Some(event.ordinal))
                && self.rows.last().is_some_and(|last| last.position >= event.absolute_position)
        }) {
            let title = format!(
                "event {} is in the event table but no step row carries it ({} of {} do)",
                event.ordinal,
                seen,
                self.events.len()
            );
            found.add(
                Rule::EventTable,
                None,
                self.at(event.absolute_position, "events"),
                title,
                Vec::new(),
            );
        }
    }

    fn rope(&self, row: &Step, last_ordinal: Option<u32>, found: &mut Collector) {
        let Some(index) = row.rope_index.filter(|index| *index != row.position) else { return };
        let physical = index == row.rows_before || index.checked_add(1) == Some(row.rows_after);
        let (cause, title) = match last_ordinal {
            Some(ordinal) if physical => (
                Some(Cause::PhysicalPositions),
                format!(
                    "row {} was rotated by {index}, its physical row, and not by its position; first seen after compaction {ordinal}",
                    row.position
                ),
            ),
            _ => (
                None,
                format!(
                    "row {} was rotated by {index}: offset {}",
                    row.position,
                    i64::from(index) - i64::from(row.position)
                ),
            ),
        };
        let mut location = self.at(row.position, "rope_index");
        location.ordinal = last_ordinal;
        let evidence = vec![("rope_index", index.into()), ("rows_before", row.rows_before.into())];
        found.add(Rule::Rope, cause, location, title, evidence);
    }

    fn gap(&self, before: &Step, row: &Step, found: &mut Collector) {
        if before.position.checked_add(1) == Some(row.position) {
            return;
        }
        let (cause, words) = if row.position == before.position && row.position + 1 == self.prompt {
            (Some(Cause::LastPromptRowFedAgain), "the last prompt row is fed again")
        } else if row.position == 0 && before.position + 1 == self.prompt {
            (Some(Cause::PromptFedTwice), "the prompt is fed a second time")
        } else if before.compaction.is_some() && row.position == row.rows_before {
            (Some(Cause::PhysicalPositions), "after the compaction positions count physical rows")
        } else {
            (None, "positions must rise by one, also across a compaction")
        };
        let title = format!("position {} follows {}: {words}", row.position, before.position);
        found.add(Rule::Gap, cause, self.at(row.position, "position"), title, Vec::new());
    }

    fn arithmetic(&self, before: Option<&Step>, row: &Step, found: &mut Collector) {
        if let Some(before) = before.filter(|before| before.rows_after != row.rows_before) {
            let title = format!(
                "row {} starts with {} rows, the row before ended with {}",
                row.position, row.rows_before, before.rows_after
            );
            found.add(
                Rule::RowArithmetic,
                None,
                self.at(row.position, "rows_before"),
                title,
                Vec::new(),
            );
        }
        let grown = row.rows_before.checked_add(1) == Some(row.rows_after);
        if row.compaction.is_none() && !grown {
            let title = format!(
                "row {} went from {} to {} rows and no compaction is recorded there",
                row.position, row.rows_before, row.rows_after
            );
            found.add(
                Rule::RowArithmetic,
                None,
                self.at(row.position, "rows_after"),
                title,
                Vec::new(),
            );
        }
    }

    fn trigger(&self, row: &Step, found: &mut Collector) {
        let position = row.position;
        if row.phase == Phase::Prompt {
            if row.compaction.is_some() && self.rules.max_rows.is_none() {
                let title = format!(
                    "compaction at position {position} while the prompt of {} is filled",
                    self.prompt
                );
                found.add(
                    Rule::PromptCompaction,
                    None,
                    self.at(position, "trigger"),
                    title,
                    Vec::new(),
                );
            }
            return;
        }
        let due = self.rules.due(row.rows_before.into(), position.into(), self.prompt.into());
        let Some(due) = due.filter(|due| *due != row.compaction.is_some()) else { return };
        let words = if due {
            "a compaction was due and none happened"
        } else {
            "a compaction happened that was not due"
        };
        let title = format!("{words} at position {position} with {} rows before", row.rows_before);
        let evidence =
            vec![("rows_before", Value::from(row.rows_before)), ("prompt_len", self.prompt.into())];
        found.add(Rule::Trigger, None, self.at(position, "trigger"), title, evidence);
    }

    fn event(&self, row: &Step, ordinal: u32, last: Option<u32>, found: &mut Collector) {
        let mut location = self.at(row.position, "events");
        location.ordinal = Some(ordinal);
        if last.is_some_and(|last| last.checked_add(1) != Some(ordinal))
            || (last.is_none()
                && ordinal != 1
                && self.rows.first().is_some_and(|row| row.position == 0))
        {
            let title = format!("compaction {ordinal} follows {}", last.unwrap_or(0));
            found.add(Rule::EventTable, None, location.clone(), title, Vec::new());
        }
        let Some(event) = self.events.iter().find(|event| event.ordinal == ordinal) else {
            let title = format!("compaction {ordinal} is not in the event table");
            found.add(Rule::EventTable, None, location, title, Vec::new());
            return;
        };
        let early = u32::from(!self.rules.compacts_before());
        // N is the next position after the row was appended; where the compaction comes first, the row's own.
        let n = row.position + early;
        if event.absolute_position != n {
            let title = format!(
                "compaction {ordinal} counted N = {} where the step makes it {n}",
                event.absolute_position
            );
            found.add(Rule::EventTable, None, location.clone(), title, Vec::new());
        }
        let counts = (row.rows_before + early, row.rows_after.saturating_sub(1 - early));
        if self.rules.rows_exact
            && (event.rows_before, event.rows_after) != counts
            && !self.twice(row, event)
        {
            let title = format!(
                "compaction {ordinal} says {} to {} rows, its step {} to {}",
                event.rows_before, event.rows_after, counts.0, counts.1
            );
            found.add(Rule::EventTable, None, location, title, Vec::new());
        }
    }

    /// A full cache made room for its row before the step's own compaction.
    fn twice(&self, row: &Step, event: &EventRow) -> bool {
        self.rules.max_rows.is_some_and(|full| u64::from(row.rows_before) >= full)
            && event.rows_after <= row.rows_after
    }

    /// Until the first compaction the rows held are the positions fed.
    fn offset(&self, found: &mut Collector) {
        let before_any = self.rows.iter().take_while(|row| row.compaction.is_none());
        let shifts: Vec<(u32, i64)> = before_any
            .map(|row| (row.position, i64::from(row.rows_before) - i64::from(row.position)))
            .collect();
        let Some((position, shift)) = shifts.iter().copied().find(|(_, shift)| *shift != 0) else {
            return;
        };
        let from_start = shifts.first().is_some_and(|(first, _)| *first == position);
        let constant =
            shifts.iter().filter(|(at, _)| *at >= position).all(|(_, other)| *other == shift);
        let prompt = i64::from(self.prompt);
        let (cause, words) = if constant && shift == prompt && prompt > 0 {
            (
                Some(Cause::PromptFedTwice),
                "a constant shift equal to the prompt length: prompt fed twice".to_owned(),
            )
        } else if constant && shift == 1 && !from_start && i64::from(position) == prompt {
            (
                Some(Cause::LastPromptRowFedAgain),
                "one row more from the end of the prompt on: its last row was fed again".to_owned(),
            )
        } else if constant {
            (None, format!("offset {shift}"))
        } else {
            (None, "the shift is not constant".to_owned())
        };
        let title = format!(
            "row {position} holds {} rows before any compaction: {words}",
            i64::from(position) + shift
        );
        let evidence = vec![("offset", shift.into()), ("prompt_len", self.prompt.into())];
        found.add(Rule::Offset, cause, self.at(position, "rows_before"), title, evidence);
    }
}
