//! Audits of dumped compactions: are they there, which compaction are they of, do they hold together.

use lockstep_traces::{CheckKind, CheckReport, Verdict};

use super::super::facts::{Dump, Evidence, Gathered, Kind};
use super::super::{Audit, Control, Note, Outcome, Subject};
use super::made::{dense, event, prompted, traced};
use super::rows::prompt;
use super::schedule::Schedule;

/// A dump that was asked for and is not there.
pub(super) static MISSING: Audit = Audit {
    number: 42,
    slug: "dump-missing",
    title: "a dump was asked for and is not there though compactions ran: the hook was not reached",
    compares: "`dump.path` and the compactions of a run with the dumps that were given",
    needs: "`dump.path` of a run that compacts",
    gate: false,
    each: None,
    pair: None,
    whole: Some(missing),
    controls: missing_controls,
};

fn missing(evidence: &Evidence<'_>) -> Vec<Note> {
    let given = evidence
        .subjects
        .iter()
        .any(|subject| subject.dumps.as_ref().is_some_and(|dumps| !dumps.is_empty()));
    let mut notes = Vec::new();
    for subject in &evidence.subjects {
        let Some(path) = subject.text("dump.path").filter(|path| !path.is_empty()) else {
            continue;
        };
        let Some(events) = &subject.events else {
            notes.push(Note::missing("events", &subject.label).of([subject.label.as_str()]));
            continue;
        };
        let said = format!("{} compactions ran, a dump to {path} was asked for", events.len());
        let note = match (events.is_empty(), given) {
            (true, _) => {
                Note::no_evidence(format!("{said}; nothing compacted, so none is expected"))
            }
            (_, true) => Note::pass(format!("{said} and is there")),
            (false, false) => {
                let first = subject.count("dump.index") == Some(1)
                    && subject.switch("dump.profile") != Some(true);
                let hint = if first {
                    "ask for index 0 or switch profiling on: without it the first compaction counts as 2 and index 1 never comes"
                } else {
                    "check that the hook is reached; an absent file is no absent compaction"
                };
                Note::flag(format!("{said} and is not there: the hook was not reached"))
                    .remedy(hint)
            }
        };
        notes.push(note.of([subject.label.as_str()]));
    }
    notes
}

fn missing_controls() -> Vec<Control> {
    let run = |index: u64, dumped: bool, compacted: bool| {
        let events = if compacted { vec![event(1, 320, 320, 256)] } else { Vec::new() };
        let mut subject = traced("run", Kind::Run, &dense(0..4), events)
            .with("dump.path", "keep.json", "flag")
            .with("dump.index", index, "flag");
        if dumped {
            subject.dumps = Some(vec![Dump::default()]);
        }
        Evidence::one(subject)
    };
    vec![
        Control::planted(
            "index 1 without profiling",
            run(1, false, true),
            Outcome::Flag,
            "index 1 never comes",
        ),
        Control::planted(
            "another index",
            run(3, false, true),
            Outcome::Flag,
            "hook was not reached",
        ),
        Control::clean("the dump is there", run(0, true, true), "and is there"),
    ]
}

/// A dump of another compaction than it says.
pub(super) static INDEX: Audit = Audit {
    number: 43,
    slug: "dump-index",
    title: "a dump's index is not its compaction, or its binaries are of another one",
    compares: "the index with (N - first) / divide + 1; all rows after with the kept rows before",
    needs: "`compaction_index` and `absolute_position` of a dump with budget and divide length",
    gate: false,
    each: None,
    pair: None,
    whole: Some(index),
    controls: index_controls,
};

fn index(evidence: &Evidence<'_>) -> Vec<Note> {
    let mut notes = Vec::new();
    for subject in &evidence.subjects {
        for dump in subject.dumps.iter().flatten() {
            let id = dump.sample_id.clone().unwrap_or_default();
            let length = prompt(evidence, subject, &id).or_else(|| {
                subject.samples.as_ref()?.first().and_then(|sample| sample.prompt_tokens)
            });
            let place = dump.path.clone();
            notes.push(
                numbered(subject, dump, length).at(place.clone()).of([subject.label.as_str()]),
            );
            if let Some(gathered) = dump.gathered.as_ref().filter(|gathered| gathered.layers > 0)
                && gathered.different.len() as u64 == gathered.layers
            {
                let text = format!(
                    "in none of {} caches are the rows after the kept rows before: the binaries are of another compaction",
                    gathered.layers
                );
                let note = Note::void(text).at(place).of([subject.label.as_str()]);
                notes.push(note.remedy("dump again and end the run behind the dump: binaries are rewritten at every compaction"));
            }
        }
    }
    notes
}

fn numbered(subject: &Subject<'_>, dump: &Dump, length: Option<u32>) -> Note {
    let Some((written, n)) = dump.ordinal.zip(dump.absolute_position) else {
        return Note::missing("compaction_index", &subject.label);
    };
    let divide =
        subject.count("policy.divide_length").and_then(|divide| u32::try_from(divide).ok());
    let Some((schedule, divide)) = Schedule::of(subject).zip(divide.filter(|divide| *divide > 0))
    else {
        return Note::missing("policy.divide_length", &subject.label);
    };
    let Some(first) = schedule.first(length) else {
        return Note::missing("prompt_tokens", &subject.label);
    };
    let beyond = n.checked_sub(first).filter(|beyond| beyond % divide == 0);
    let Some(beyond) = beyond else {
        return Note::no_evidence(format!(
            "N = {n} lies on no compaction of the schedule ({first}, then every {divide}): which one it is is not recorded"
        ));
    };
    let own = beyond / divide + 1;
    if own == written {
        return Note::pass(format!("N = {n} is compaction {own}, as written"));
    }
    let text = format!("N = {n} is compaction {own}, the dump says {written}");
    Note::flag(text).remedy("use the compaction that the position tells; without profiling the engine writes one too many")
}

fn dumped(written: u32, gathered: Option<Gathered>) -> Evidence<'static> {
    let mut subject = Subject::new("keep.json", Kind::Dump)
        .with("policy.kv_budget", 256, "dump")
        .with("policy.divide_length", 64, "dump")
        .with("policy.count_prompt_tokens", true, "dump");
    subject = prompted(subject, 41);
    subject.dumps = Some(vec![Dump {
        path: "keep.json".to_owned(),
        ordinal: Some(written),
        absolute_position: Some(384),
        rows_before: Some(320),
        keep_count: Some(256),
        gathered,
        ..Dump::default()
    }]);
    Evidence::one(subject)
}

fn caches(different: &[&str], layers: u64) -> Option<Gathered> {
    let different = different.iter().map(|name| ((*name).to_owned(), 3)).collect();
    Some(Gathered { layers, heads: 8, rows: layers * 8 * 256, different, group: Some(2) })
}

fn index_controls() -> Vec<Control> {
    vec![
        Control::planted(
            "written one too high",
            dumped(3, None),
            Outcome::Flag,
            "is compaction 2, the dump says 3",
        ),
        Control::planted(
            "binaries of the last compaction",
            dumped(2, caches(&["k 0", "v 0"], 2)),
            Outcome::Void,
            "of another compaction",
        ),
        Control::clean("index and position agree", dumped(2, caches(&[], 2)), "is compaction 2"),
    ]
}

/// Rows after that are not the kept rows before.
pub(super) static GATHER: Audit = Audit {
    number: 44,
    slug: "gather-complete",
    title: "the rows after a compaction are not the kept rows, or not every layer was checked",
    compares: "every layer, head and kept row, K and V, bit for bit",
    needs: "dumped caches before and after, or the answer of `check gather`",
    gate: false,
    each: Some(gather),
    pair: None,
    whole: None,
    controls: gather_controls,
};

fn gather(subject: &Subject<'_>) -> Vec<Note> {
    let mut notes: Vec<Note> = of_kind(subject, CheckKind::Gather).map(answered).collect();
    for dump in subject.dumps.iter().flatten() {
        if !dump.files_missing.is_empty() {
            let list = dump.files_missing.join(", ");
            notes.push(
                Note::no_evidence(format!(
                    "{} binaries are missing: {list}",
                    dump.files_missing.len()
                ))
                .at(dump.path.clone()),
            );
        }
        if let Some(gathered) = &dump.gathered {
            notes.push(held(gathered).at(dump.path.clone()));
        }
    }
    notes
}

/// Checks of one kind.
pub(super) fn of_kind<'s>(
    subject: &'s Subject<'_>,
    kind: CheckKind,
) -> impl Iterator<Item = &'s CheckReport> {
    subject.checks.iter().filter(move |check| check.kind == kind)
}

fn answered(check: &CheckReport) -> Note {
    let said = format!(
        "{} {} compared, {} differ, {} skipped",
        check.compared, check.unit, check.different, check.skipped
    );
    match &check.verdict {
        Verdict::Diverged => Note::void(said)
            .at(check.findings.first().map_or_else(String::new, |finding| finding.title.clone()))
            .remedy(
                "the cache after the compaction is not what was kept: look at the gather first",
            ),
        Verdict::Incomparable { why } => Note::no_evidence(format!("{said}: {why}")),
        _ if check.compared == 0 || check.skipped > 0 => {
            Note::no_evidence(format!("{said}: not everything is covered"))
        }
        _ => Note::pass(said),
    }
}

fn held(gathered: &Gathered) -> Note {
    let scope = gathered.group.filter(|group| *group > 1).map_or_else(String::new, |group| {
        format!("; one query head of each {group} was dumped, the others are not covered")
    });
    let said = format!(
        "{} caches (K and V apart) of {} heads, {} rows{scope}",
        gathered.layers, gathered.heads, gathered.rows
    );
    match gathered.different.as_slice() {
        [] if gathered.rows == 0 => Note::no_evidence(
            "no cache after the compaction was dumped: `post_score_cache_files` is missing",
        ),
        [] => Note::pass(format!("{said}: bit for bit")),
        list => {
            let named: Vec<String> =
                list.iter().map(|(name, rows)| format!("{name}: {rows} rows")).collect();
            Note::void(format!("{said}: {} caches differ ({})", list.len(), named.join(", ")))
                .remedy("look at the gather of these layers")
        }
    }
}

fn gather_controls() -> Vec<Control> {
    let check = |verdict: Verdict, different: u64| {
        let mut subject = Subject::new("gather.json", Kind::Check);
        subject.checks.push(CheckReport {
            kind: CheckKind::Gather,
            verdict,
            compared: 576,
            different,
            skipped: 0,
            unit: "heads".to_owned(),
            findings: Vec::new(),
            limits: Vec::new(),
            detail: serde_json::Value::Null,
        });
        Evidence::one(subject)
    };
    vec![
        Control::planted(
            "one layer's V was not gathered",
            dumped(2, caches(&["v 1"], 4)),
            Outcome::Void,
            "v 1: 3 rows",
        ),
        Control::planted(
            "the check says so",
            check(Verdict::Diverged, 8),
            Outcome::Void,
            "576 heads compared, 8 differ",
        ),
        Control::clean("every cache", dumped(2, caches(&[], 4)), "bit for bit"),
        Control::clean("the check passes", check(Verdict::Identical, 0), "0 differ"),
    ]
}
