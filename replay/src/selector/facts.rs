//! What a dump and a table say of one compaction beside its numbers: metadata against the file's name, the event row and
//! the manifest, files that are named and not there, and round starts that can be read off.

use lockstep_traces::store::{DumpFile, RunReader};
use lockstep_traces::{Cause, EventRow, Finding, Location, RuleSet};

use super::event::Event;
use super::findings::{Ledger, fact, slug};

/// One key of a dump's metadata that says something else than the rest of the run.
#[derive(Debug)]
pub(super) struct Claim {
    pub(super) finding: Finding,
    /// The tensors can be judged all the same, by what the event row or the manifest says.
    pub(super) harmless: bool,
}

/// Passes over the compactions whose event names a dump that is not there.
pub(super) fn absent(run: &RunReader, events: &[EventRow], ledger: &mut Ledger) {
    for event in events {
        let Some(name) = &event.dump else { continue };
        if !run.dir().join(name).is_file() {
            let why = format!("dump `{name}` is named by events and is not there");
            ledger.skip_sets(&event.sample_id, event.ordinal, 1, &why);
        }
    }
}

/// Metadata that contradict the file's name, the event row or the recorded rule set.
pub(super) fn claims(
    file: &DumpFile,
    sample_id: &str,
    ordinal: u32,
    event: Option<&EventRow>,
    rule_set: Option<RuleSet>,
) -> Vec<Claim> {
    let known = [
        ("sample_id", Some(sample_id.to_owned()), false),
        ("ordinal", Some(ordinal.to_string()), false),
        ("rows_before", event.map(|event| event.rows_before.to_string()), false),
        ("absolute_position", event.map(|event| event.absolute_position.to_string()), true),
        ("rule_set", rule_set.map(|rule_set| slug(rule_set).to_owned()), true),
    ];
    let mut claims = Vec::new();
    for (key, expected, harmless) in known {
        let (Some(said), Some(expected)) = (file.metadata().get(key), expected) else { continue };
        if *said == expected {
            continue;
        }
        let title = if harmless {
            format!("dump metadata `{key}` is {said}, the run records {expected}")
        } else {
            format!("dump of another compaction: metadata `{key}` is {said}, not {expected}")
        };
        let finding = Finding {
            cause: None,
            title,
            location: Location {
                sample_id: Some(sample_id.to_owned()),
                position: event.and_then(|event| event.absolute_position.checked_sub(1)),
                ordinal: Some(ordinal),
                stage: Some("metadata".to_owned()),
                ..Location::default()
            },
            evidence: vec![
                fact("key", key),
                fact("metadata", said.as_str()),
                fact("expected", expected),
                fact("file", file.path().display().to_string()),
            ],
        };
        claims.push(Claim { finding, harmless });
    }
    claims
}

/// Where a compaction stands: N and the rows before it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Moved<'a> {
    sample_id: &'a str,
    ordinal: u32,
    absolute_position: u32,
    rows_before: u32,
}

impl<'a> Moved<'a> {
    pub(super) fn of(event: &'a EventRow) -> Self {
        Self {
            sample_id: &event.sample_id,
            ordinal: event.ordinal,
            absolute_position: event.absolute_position,
            rows_before: event.rows_before,
        }
    }

    pub(super) fn at(event: &'a Event) -> Self {
        let narrow = |value: usize| u32::try_from(value).unwrap_or(u32::MAX);
        Self {
            sample_id: &event.sample_id,
            ordinal: event.ordinal,
            absolute_position: narrow(event.absolute_position),
            rows_before: narrow(event.rows_before),
        }
    }

    /// R as recorded against the rule set's: N, in `sglang` N or N + 1 (`TRIATTENTION.md` 7.3 leaves that open). Where the
    /// row count is N as well nothing can show.
    pub(super) fn round_start(
        self,
        rule_set: Option<RuleSet>,
        recorded: Option<u32>,
    ) -> Option<Finding> {
        let (recorded, rule_set) = (recorded?, rule_set?);
        let n = self.absolute_position;
        let later = rule_set == RuleSet::Sglang && Some(recorded) == n.checked_add(1);
        if recorded == n || later {
            return None;
        }
        let cause = (recorded == self.rows_before).then_some(Cause::RoundStartRows);
        let title = cause.map_or_else(
            || format!("the round start is not that of rule set {}", slug(rule_set)),
            |cause| cause.title().to_owned(),
        );
        Some(Finding {
            cause,
            title,
            location: Location {
                sample_id: Some(self.sample_id.to_owned()),
                position: n.checked_sub(1),
                ordinal: Some(self.ordinal),
                stage: Some("round_start".to_owned()),
                ..Location::default()
            },
            evidence: vec![
                fact("rule_set", slug(rule_set)),
                fact("compactions", 1),
                fact("round_start_recorded", recorded),
                fact("absolute_position", n),
                fact("rows_before", self.rows_before),
            ],
        })
    }
}
