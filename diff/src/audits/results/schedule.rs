//! When a policy compacts first, and audits of whether both sides agree about it.

use super::super::facts::{Believed, Evidence, Kind};
use super::super::{Audit, Control, Note, Outcome, Pair, Subject};
use super::made::{claimed, compressed, dense, event, prompted, traced};
use super::rows::{claims, compared, prompt, tracks};

/// Budget and divide length of a policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Schedule {
    /// Rows at which it compacts, the prompt counted.
    pub(super) trigger: u32,
    /// The prompt counts; `None` where not recorded.
    pub(super) counts_prompt: Option<bool>,
}

impl Schedule {
    /// As the subject's settings say; `None` where they do not.
    pub(super) fn of(subject: &Subject<'_>) -> Option<Self> {
        let count = |key: &str| u32::try_from(subject.count(key)?).ok();
        let trigger = count("policy.kv_budget")?.checked_add(count("policy.divide_length")?)?;
        Some(Self { trigger, counts_prompt: subject.switch("policy.count_prompt_tokens") })
    }

    /// N of the first compaction: position of the next token. A prompt that reaches the trigger compacts at its first
    /// decode row.
    pub(super) fn first(self, prompt: Option<u32>) -> Option<u32> {
        let uncounted = if self.counts_prompt.unwrap_or(true) { 0 } else { prompt? };
        let first = self.trigger.checked_add(uncounted)?;
        Some(
            prompt.map_or(
                first,
                |length| if length >= first { length.saturating_add(1) } else { first },
            ),
        )
    }
}

/// Does the prompt count?
pub(super) static PROMPT_COUNTED: Audit = Audit {
    number: 29,
    slug: "prompt-accounting",
    title: "the first compaction contradicts what is said about counting the prompt",
    compares: "N of the first compaction with budget + divide length, with and without the prompt's length; the result with the flag and the claims",
    needs: "the first compaction of a run with `policy.kv_budget`, `policy.divide_length` and `prompt_tokens`",
    gate: false,
    each: None,
    pair: None,
    whole: Some(prompt_counted),
    controls: counted_controls,
};

fn prompt_counted(evidence: &Evidence<'_>) -> Vec<Note> {
    let mut notes = Vec::new();
    for subject in &evidence.subjects {
        let firsts = subject.events.iter().flatten().filter(|event| event.ordinal == 1);
        for first in firsts {
            let note = match (Schedule::of(subject), prompt(evidence, subject, &first.sample_id)) {
                (None, _) => Note::missing("policy.divide_length", &subject.label),
                (_, None) => Note::missing("prompt_tokens", &subject.label),
                (Some(schedule), Some(length)) => {
                    counted(evidence, subject, schedule, length, first.absolute_position)
                }
            };
            notes.push(
                note.at(format!("{} compaction 1", first.sample_id)).of([subject.label.as_str()]),
            );
        }
    }
    notes
}

fn counted(
    evidence: &Evidence<'_>,
    subject: &Subject<'_>,
    schedule: Schedule,
    length: u32,
    n: u32,
) -> Note {
    let trigger = schedule.trigger;
    let counts = match n {
        _ if n == trigger && length > 0 && length < trigger => true,
        _ if n == trigger.saturating_add(length) && length > 0 => false,
        _ => {
            return Note::no_evidence(format!(
                "N = {n} fits neither {trigger} (prompt counted) nor {} (not counted): what counts is not recorded",
                trigger.saturating_add(length)
            ));
        }
    };
    let mode = if counts { "prompt-inclusive" } else { "decode-only" };
    let said = format!(
        "the first compaction at N = {n} with trigger {trigger} and prompt {length} is {mode}"
    );
    if let Some(flag) = schedule.counts_prompt.filter(|flag| *flag != counts) {
        return Note::flag(format!("{said}, `policy.count_prompt_tokens` is {flag}"))
            .remedy("trust the row, not the flag, and find out which code ran");
    }
    let contrary = if counts { "decode-only" } else { "prompt-inclusive" };
    match claims(evidence, &[contrary], &[subject.label.as_str()]).first() {
        Some(claim) => Note::flag(format!("{said}, claim `{}` says {contrary}", claim.id))
            .remedy("withdraw the claim"),
        None => Note::pass(said),
    }
}

fn counted_controls() -> Vec<Control> {
    let run = |n: u32, counts: bool| {
        let subject = traced("run", Kind::Run, &dense(0..4), vec![event(1, n, 7168, 7040)]);
        prompted(subject, 157)
            .with("policy.kv_budget", 7040, "flag")
            .with("policy.divide_length", 128, "flag")
            .with("policy.count_prompt_tokens", counts, "flag")
    };
    vec![
        Control::planted(
            "the flag says that the prompt does not count",
            Evidence::one(run(7168, false)),
            Outcome::Flag,
            "prompt-inclusive",
        ),
        Control::planted(
            "a claim says that it does not",
            claimed(Evidence::one(run(7168, true)), "decode-only", None),
            Outcome::Flag,
            "claim-1",
        ),
        Control::planted(
            "the flag says that it counts",
            Evidence::one(run(7325, true)),
            Outcome::Flag,
            "decode-only",
        ),
        Control::clean("flag and row agree", Evidence::one(run(7168, true)), "prompt-inclusive"),
        Control::clean("not counted, and said so", Evidence::one(run(7325, false)), "decode-only"),
    ]
}

/// A replay whose own position is off.
pub(super) static CANCELLING: Audit = Audit {
    number: 30,
    slug: "cancelling-errors",
    title: "a replay's own position is not the trace's: two errors that cancel in the row count",
    compares: "the position that a replay's policy counts with the position of the row; N of each compaction with its row",
    needs: "`comp_before.absolute_position` of a replay, or compactions beside their rows",
    gate: false,
    each: Some(cancelling),
    pair: None,
    whole: None,
    controls: cancelling_controls,
};

fn cancelling(subject: &Subject<'_>) -> Vec<Note> {
    let mut notes = Vec::new();
    if let Some(believed) = &subject.believed {
        notes.push(match believed.iter().find(|one| one.absolute_position != one.position) {
            None if believed.is_empty() => Note::missing("comp_before.absolute_position", &subject.label),
            None => Note::pass(format!("the replay's own position is the trace's in {} rows", believed.len())),
            Some(Believed { position, absolute_position }) => Note::void(format!(
                "at position {position} the replay counts {absolute_position}, {} too many; rows_after alone would not show it",
                i64::from(*absolute_position) - i64::from(*position)
            ))
            .at(format!("position {position}"))
            .remedy("correct the replay's position before anything is compared"),
        });
    }
    for track in tracks(subject) {
        let rows: Vec<(u32, u32)> =
            track.rows().filter_map(|row| Some((row.compaction?, row.position))).collect();
        for event in subject.events_of(track.id) {
            let Some((_, position)) = rows.iter().find(|(ordinal, _)| *ordinal == event.ordinal)
            else {
                continue;
            };
            let place = format!("{} compaction {}", track.id, event.ordinal);
            let n = event.absolute_position;
            notes.push(if n == position + 1 {
                Note::pass(format!(
                    "compaction {} at N = {n} follows row {position}",
                    event.ordinal
                ))
            } else {
                Note::void(format!(
                    "compaction {} says N = {n}, its row has position {position}",
                    event.ordinal
                ))
                .at(place)
                .remedy("correct the position that the policy counts")
            });
        }
    }
    notes
}

fn cancelling_controls() -> Vec<Control> {
    let believing = |shift: u32| {
        let mut subject = traced("replay", Kind::Replay, &dense(7160..7170), Vec::new());
        let believed =
            (7160..7170).map(|position| Believed { position, absolute_position: position + shift });
        subject.believed = Some(believed.collect());
        Evidence::one(subject)
    };
    let events = |shift: u32| {
        let (rows, mut events) = compressed(30, 12, 8);
        for event in &mut events {
            event.absolute_position += shift;
        }
        Evidence::one(traced("replay", Kind::Replay, &rows, events))
    };
    vec![
        Control::planted(
            "the prompt is counted twice and not counted",
            believing(157),
            Outcome::Void,
            "counts 7317, 157 too many",
        ),
        Control::planted(
            "compactions are shifted",
            events(3),
            Outcome::Void,
            "N = 15, its row has position 11",
        ),
        Control::clean("positions agree", believing(0), "in 10 rows"),
        Control::clean("compactions follow their rows", events(0), "N = 12 follows row 11"),
    ]
}

/// Nothing was compressed on a side.
pub(super) static VACUOUS: Audit = Audit {
    number: 31,
    slug: "vacuous-boundary",
    title: "a compressed path was compared although no compaction happened on a side",
    compares: "compactions of both sides at or before the last row that both have",
    needs: "two traces, one of them of a run that compresses",
    gate: false,
    each: None,
    pair: Some(vacuous),
    whole: None,
    controls: vacuous_controls,
};

fn vacuous(pair: &Pair<'_, '_>) -> Vec<Note> {
    let (lefts, rights) = (tracks(pair.left), tracks(pair.right));
    let lone = lefts.len() == 1 && rights.len() == 1;
    let mut notes = Vec::new();
    for left in &lefts {
        let Some(right) = rights.iter().find(|right| lone || right.id == left.id) else { continue };
        let Some(end) = left.last().zip(right.last()).map(|(l, r)| l.min(r)) else { continue };
        let until = |subject: &Subject<'_>, id: &str| {
            subject.events_of(id).filter(|event| event.absolute_position <= end + 1).count()
        };
        let counts = [until(pair.left, left.id), until(pair.right, right.id)];
        notes.extend(boundary(pair, left.id, end, counts));
    }
    notes
}

fn boundary(pair: &Pair<'_, '_>, id: &str, end: u32, counts: [usize; 2]) -> Option<Note> {
    let said = format!("{} against {} compactions up to position {end}", counts[0], counts[1]);
    let compresses = |subject: &Subject<'_>| {
        subject.text("policy.kind").is_some_and(|kind| kind != "dense" && kind != "recorded")
    };
    let declared = compresses(pair.left) || compresses(pair.right);
    match counts {
        [0, 0] if declared && pair.policies_differ() != Some(false) => Some(
            Note::flag(format!("{said}: neither side compressed anything, their agreement says nothing about the policy"))
                .at(id.to_owned())
                .remedy("compare past the first compaction"),
        ),
        [0, 0] => None,
        [0, _] | [_, 0] => Some(one_sided(pair, id, &said, counts)),
        _ => Some(Note::pass(format!("{said}: both sides compressed"))),
    }
}

/// One side compacted. If the other gives the same logits behind that, it is not what it is taken for.
fn one_sided(pair: &Pair<'_, '_>, id: &str, said: &str, counts: [usize; 2]) -> Note {
    let first = |subject: &Subject<'_>| {
        subject.events.iter().flatten().map(|event| event.absolute_position).min()
    };
    let at = if counts[0] > 0 { first(pair.left) } else { first(pair.right) };
    let Some(report) = compared(pair) else {
        return Note::missing("steps", &pair.right.label);
    };
    let sample =
        report.samples.iter().find(|sample| sample.sample_id == id).or(report.samples.first());
    let behind = |position: u32| at.is_some_and(|at| position >= at);
    let differs = sample.is_some_and(|sample| {
        sample.splits.logit.as_ref().is_some_and(|split| split.position >= at.unwrap_or(0))
            || sample.dependent_from.is_some()
    });
    let rows = sample.map_or(0, |sample| {
        sample.series.points.iter().filter(|point| behind(point.position)).count()
    });
    if rows == 0 {
        return Note::no_evidence(format!(
            "{said}, and no row behind the compaction is on both sides"
        ));
    }
    if differs {
        return Note::pass(format!("{said}: the sides differ behind the compaction"));
    }
    let at = at.unwrap_or(0);
    Note::flag(format!("{said}, yet all values behind N = {at} are equal: the side that compressed did not use what it kept, or was compared with itself"))
        .at(format!("{id} position {at}"))
        .remedy("check that the compressing path really ran, and compact on both sides")
}

fn vacuous_controls() -> Vec<Control> {
    let policy = |subject: Subject<'static>, kind: &str| subject.with("policy.kind", kind, "flag");
    let quiet = |label: &str, kind: &str| {
        policy(traced(label, Kind::Replay, &dense(0..30), Vec::new()), kind)
    };
    let tri = |changed: bool| {
        let (mut rows, events) = compressed(30, 12, 8);
        for row in rows.iter_mut().filter(|row| changed && row.position >= 12) {
            if let Some(logit) = row.top_logits.first_mut() {
                *logit += 0.5;
            }
        }
        policy(traced("tri", Kind::Replay, &rows, events), "triattention")
    };
    vec![
        Control::planted(
            "the compressing reference never reached its trigger",
            Evidence::pair(quiet("dense", "dense"), quiet("tri", "triattention")),
            Outcome::Flag,
            "neither side compressed",
        ),
        Control::planted(
            "no difference behind a compaction of one side",
            Evidence::pair(quiet("dense", "dense"), tri(false)),
            Outcome::Flag,
            "behind N = 12 are equal",
        ),
        Control::clean(
            "dense against compressed, which differs",
            Evidence::pair(quiet("dense", "dense"), tri(true)),
            "differ behind",
        ),
        Control::clean(
            "both compress",
            Evidence::pair(tri(false), tri(false)),
            "both sides compressed",
        ),
    ]
}
