//! Rows by sample and position: samples, phases, choices and compactions that the rows show.

use std::collections::BTreeMap;

use super::columns::Found;
use super::rows::Table;
use crate::foreign::{ForeignOptions, UNKNOWN_TOKEN};
use crate::store::fail::malformed;
use crate::{EventRow, Phase, StepRow, TraceError};

impl Table<'_> {
    /// A fall of position to 0, to the first position or to the prompt's length starts the next sample.
    pub(super) fn name_samples(&mut self, options: &ForeignOptions) -> Result<(), TraceError> {
        let first = self.rows.first().map_or(0, |row| row.position);
        let (mut number, mut last) = (0_usize, None);
        for (at, row) in self.rows.iter_mut().enumerate() {
            if let Some(last) = last.filter(|last| row.position <= *last) {
                let starts = row.position < last
                    && (row.position == 0
                        || row.position == first
                        || Some(row.position) == options.prompt_len);
                if !starts {
                    return Err(malformed(
                        self.path,
                        format!(
                            "row {}: position {} follows {last}, and no column `sample_id` says that another sample begins",
                            at + 1,
                            row.position
                        ),
                    ));
                }
                number += 1;
            }
            last = Some(row.position);
            row.sample_id = format!("sample_{number}");
        }
        Ok(())
    }

    /// Rows of one sample together; their positions must increase.
    pub(super) fn group(&mut self) -> Result<(), TraceError> {
        let mut order: BTreeMap<&str, usize> = BTreeMap::new();
        for row in &self.rows {
            let next = order.len();
            order.entry(&row.sample_id).or_insert(next);
        }
        let ranks: Vec<usize> = self
            .rows
            .iter()
            .map(|row| order.get(row.sample_id.as_str()).copied().unwrap_or(0))
            .collect();
        let mut places: Vec<usize> = (0..self.rows.len()).collect();
        places.sort_by_key(|place| ranks.get(*place).copied());
        let rows: Vec<StepRow> =
            places.iter().filter_map(|at| self.rows.get(*at).cloned()).collect();
        let phases = places.iter().filter_map(|at| self.phases.get(*at).copied()).collect();
        (self.rows, self.phases) = (rows, phases);
        let fall = self.rows.windows(2).find_map(|pair| match pair {
            [a, b] if a.sample_id == b.sample_id && b.position <= a.position => Some((a, b)),
            _ => None,
        });
        match fall {
            Some((a, b)) => Err(malformed(
                self.path,
                format!(
                    "sample `{}`: position {} follows {}; positions of a sample must increase",
                    a.sample_id, b.position, a.position
                ),
            )),
            None => Ok(()),
        }
    }

    pub(super) fn check_rows(&self) -> Result<(), TraceError> {
        let odd = self.rows.iter().find(|row| row.rows_after > row.rows_before.saturating_add(1));
        match odd {
            Some(row) => Err(malformed(
                self.path,
                format!(
                    "sample `{}`, position {}: a step that starts with {} rows cannot end with {}",
                    row.sample_id, row.position, row.rows_before, row.rows_after
                ),
            )),
            None => Ok(()),
        }
    }

    pub(super) fn phases_and_choices(&mut self, found: &Found, options: &ForeignOptions) {
        let prompt = options.prompt_len.unwrap_or(0);
        for (row, phase) in self.rows.iter_mut().zip(&self.phases) {
            let by_length = if row.position < prompt { Phase::Prompt } else { Phase::Decode };
            row.phase = phase.unwrap_or(by_length);
        }
        if found.has("next_token") {
            return;
        }
        let chosen: Vec<Option<u32>> = (0..self.rows.len())
            .map(|at| {
                let (row, next) = self.rows.get(at).zip(self.rows.get(at + 1))?;
                let follows = row.sample_id == next.sample_id
                    && Some(next.position) == row.position.checked_add(1);
                let fed = follows && next.phase == Phase::Decode && next.token_id != UNKNOWN_TOKEN;
                fed.then_some(next.token_id)
            })
            .collect();
        for (row, chosen) in self.rows.iter_mut().zip(chosen) {
            row.next_token = chosen;
        }
    }

    /// Compactions as the rows show them. Protected and candidate rows and times are not in such a file: they are 0.
    pub(super) fn compactions(&mut self, found: &Found) -> Vec<EventRow> {
        let exact = self.rows.iter().all(|row| row.rows_bucketed.is_none());
        let counted = !found.has("compaction") && exact;
        let (mut ordinal, mut sample) = (0, String::new());
        let mut events = Vec::new();
        for row in &mut self.rows {
            if sample != row.sample_id {
                sample.clone_from(&row.sample_id);
                ordinal = 0;
            }
            if counted && row.rows_after <= row.rows_before && row.rows_before > 0 {
                ordinal += 1;
                row.compaction = Some(ordinal);
            }
            let Some(ordinal) = row.compaction else { continue };
            events.push(EventRow {
                sample_id: row.sample_id.clone(),
                ordinal,
                absolute_position: row.position.saturating_add(1),
                round_start: None,
                rows_before: row.rows_before.saturating_add(1),
                rows_after: row.rows_after,
                protected: 0,
                candidates: 0,
                score_seconds: 0.0,
                reduce_seconds: 0.0,
                select_seconds: 0.0,
                gather_seconds: 0.0,
                dump: None,
            });
        }
        events
    }
}
