//! The event and sample tables by themselves and against the step rows: cover, round starts, self-contradictions.

use std::collections::{BTreeMap, BTreeSet};

use lockstep_traces::hash::ids_sha256;
use lockstep_traces::store::StepColumns;
use lockstep_traces::{Cause, EventRow, FinishReason, Location, SampleRow};

use super::collect::{Collector, Rule};
use super::rules::Rules;
use super::steps::Table;

/// Checks both tables.
pub(crate) fn check(table: &Table<'_>, rules: &Rules, found: &mut Collector) {
    let rows = by_sample(table.columns);
    for sample in table.samples {
        if !rows.contains_key(sample.sample_id.as_str()) {
            let name = &sample.sample_id;
            found.skip(format!("`{name}` is in the samples table and has no step rows"));
        }
        prompt(sample, found);
        generated(sample, rows.get(sample.sample_id.as_str()), table.columns, found);
    }
    let mut seen = BTreeSet::new();
    for event in table.events {
        cover(event, rows.get(event.sample_id.as_str()), table.columns, found);
        if !seen.insert((event.sample_id.as_str(), event.ordinal)) {
            let title = format!("compaction {} is in the event table twice", event.ordinal);
            found.add(Rule::EventTable, None, at(event, "events"), title, Vec::new());
        }
    }
    round_starts(table.events, rules, found);
}

/// Index of the row of each position, by sample.
type Rows<'a> = BTreeMap<&'a str, BTreeMap<u32, usize>>;

fn by_sample(columns: &StepColumns) -> Rows<'_> {
    let mut rows = Rows::new();
    for (row, position) in columns.position.iter().enumerate().take(columns.len) {
        if let Some(id) = columns.sample_id(row) {
            rows.entry(id).or_default().insert(*position, row);
        }
    }
    rows
}

fn at(event: &EventRow, stage: &str) -> Location {
    Location {
        sample_id: Some(event.sample_id.clone()),
        ordinal: Some(event.ordinal),
        stage: Some(stage.to_owned()),
        ..Location::default()
    }
}

/// The step rows reach the compaction. Rows that go beyond it and do not carry it are another rule's.
fn cover(
    event: &EventRow,
    rows: Option<&BTreeMap<u32, usize>>,
    columns: &StepColumns,
    found: &mut Collector,
) {
    let (name, ordinal) = (&event.sample_id, event.ordinal);
    let Some((last, _)) = rows.and_then(BTreeMap::last_key_value) else {
        found.skip(format!("`{name}` has compactions and no step rows"));
        return;
    };
    // A full cache may compact twice in one step, whose row carries the later ordinal only.
    let carried = |row: &usize| {
        columns.compaction.get(*row).copied().flatten().is_some_and(|last| last >= ordinal)
    };
    if *last < event.absolute_position && !rows.into_iter().flatten().any(|(_, row)| carried(row)) {
        found.skip(format!(
            "`{name}`: step rows end at position {last}, before compaction {ordinal} (N = {})",
            event.absolute_position
        ));
    }
}

/// R of the selector: N, also where `sglang` counts the row of the step; never the rows held.
fn round_starts(events: &[EventRow], rules: &Rules, found: &mut Collector) {
    let Some(rule_set) = rules.rule_set.as_deref() else { return };
    let sglang = match rule_set {
        "hf" | "trt" | "vllm" => false,
        "sglang" => true,
        _ => return,
    };
    let (mut unknown, mut blind) = (0, 0);
    for event in events {
        let (next, rows) = (event.absolute_position, event.rows_before);
        let Some(start) = event.round_start else {
            unknown += 1;
            continue;
        };
        if start == next || (sglang && next.checked_add(1) == Some(start)) {
            blind += usize::from(rows == start);
            continue;
        }
        let cause = (start == rows).then_some(Cause::RoundStartRows);
        let words = if start == rows { ", the rows held" } else { "" };
        let title = format!(
            "compaction {} scored from round start {start}{words}, where N is {next}",
            event.ordinal
        );
        let evidence = vec![
            ("round_start", start.into()),
            ("absolute_position", next.into()),
            ("rows_before", rows.into()),
        ];
        found.add(Rule::RoundStart, cause, at(event, "round_start"), title, evidence);
    }
    if unknown > 0 {
        found.limit(format!("{unknown} compactions do not record their round start: not checked"));
    }
    if blind > 0 {
        found.limit(format!(
            "{blind} compactions hold as many rows as N: a round start counted by rows cannot be told there"
        ));
    }
}

/// Prompt ids against their hash and their number.
fn prompt(sample: &SampleRow, found: &mut Collector) {
    if sample.prompt_ids.is_empty() {
        return;
    }
    let hash = ids_sha256(&sample.prompt_ids);
    if hash != sample.prompt_ids_sha256 {
        let title = format!(
            "the prompt ids hash to {hash}, the samples table says `{}`",
            sample.prompt_ids_sha256
        );
        found.add(Rule::SampleTable, None, of(sample, None, "prompt_ids"), title, Vec::new());
    }
    let length = u32::try_from(sample.prompt_ids.len()).ok();
    if sample.prompt_len.is_some() && sample.prompt_len != length {
        let title = format!(
            "the prompt has {} ids, `prompt_len` says {}",
            sample.prompt_ids.len(),
            sample.prompt_len.unwrap_or(0)
        );
        found.add(Rule::SampleTable, None, of(sample, None, "prompt_len"), title, Vec::new());
    }
}

/// Generated id `i` is what the row at `prompt_len - 1 + i` chose, unless a teacher fed the sample.
fn generated(
    sample: &SampleRow,
    rows: Option<&BTreeMap<u32, usize>>,
    columns: &StepColumns,
    found: &mut Collector,
) {
    let (Some(first), Some(rows)) = (sample.prompt_len.and_then(|len| len.checked_sub(1)), rows)
    else {
        return;
    };
    // A teacher's ids are not the rows' own choices; a full cache may end a sample with a teacher or without one.
    if matches!(sample.finish, FinishReason::Forced | FinishReason::CacheFull) {
        if !sample.generated_ids.is_empty() {
            let name = &sample.sample_id;
            found.limit(format!(
                "`{name}` may follow a teacher: its generated ids were not held against its choices"
            ));
        }
        return;
    }
    for (position, id) in (first..).zip(&sample.generated_ids) {
        let row = rows.get(&position).and_then(|row| columns.next_token.get(*row));
        let Some(chosen) = row.copied().flatten().filter(|chosen| chosen != id) else { continue };
        let title = format!(
            "the row at position {position} chose {chosen}, the samples table generates {id}"
        );
        let location = of(sample, Some(position), "generated_ids");
        found.add(Rule::SampleTable, None, location, title, Vec::new());
    }
}

fn of(sample: &SampleRow, position: Option<u32>, stage: &str) -> Location {
    Location {
        sample_id: Some(sample.sample_id.clone()),
        position,
        stage: Some(stage.to_owned()),
        ..Location::default()
    }
}
