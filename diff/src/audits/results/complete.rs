//! Audits of whether a run is whole and its code known.

use std::collections::{BTreeMap, BTreeSet};

use super::super::facts::{Evidence, Kind};
use super::super::{Audit, Control, Note, Outcome, Pair, Sample, Subject, short};

/// Code that nobody can get back.
pub(super) static DIRTY: Audit = Audit {
    number: 48,
    slug: "dirty-code",
    title: "a run was made by code with changes that are not recorded",
    compares: "the state of the working tree with the hash of its changes",
    needs: "`code_dirty` of a run",
    gate: true,
    each: Some(dirty),
    pair: None,
    whole: None,
    controls: dirty_controls,
};

fn dirty(subject: &Subject<'_>) -> Vec<Note> {
    let made = &subject.made;
    let commit = made.commit.as_deref().map_or("an unknown commit", short);
    vec![match (made.dirty, &made.diff_sha256) {
        (None, _) => return Vec::new(),
        (Some(false), _) => Note::pass(format!("built from {commit}, no changes")),
        (Some(true), Some(hash)) => {
            Note::pass(format!("built from {commit} with changes {}", short(hash)))
        }
        (Some(true), None) => {
            Note::void(format!("built from {commit} with changes that are not recorded"))
                .remedy("run it again from a clean tree, or record the changes")
        }
    }]
}

fn dirty_controls() -> Vec<Control> {
    let run = |dirty: bool, diff: Option<&str>| {
        let mut subject = Subject::new("run", Kind::Run);
        subject.made.commit = Some("a29ea59d0".to_owned());
        subject.made.dirty = Some(dirty);
        subject.made.diff_sha256 = diff.map(str::to_owned);
        Evidence::one(subject)
    };
    vec![
        Control::planted(
            "a patch that was tried and taken back",
            run(true, None),
            Outcome::Void,
            "not recorded",
        ),
        Control::clean("a clean tree", run(false, None), "no changes"),
        Control::clean("the patch is recorded", run(true, Some("d1ff")), "with changes d1ff"),
    ]
}

/// Part of a run.
pub(super) static PARTIAL: Audit = Audit {
    number: 49,
    slug: "partial-run",
    title: "an unfinished run is used as though it were whole",
    compares: "finished samples with those expected: named by the run, or all of a dataset that holds them; and with the other side's",
    needs: "`expected_ids` or the state of a run, or its dataset",
    gate: false,
    each: None,
    pair: Some(intersection),
    whole: Some(partial),
    controls: partial_controls,
};

/// Ids of finished samples.
fn finished<'s>(subject: &'s Subject<'_>) -> BTreeSet<&'s str> {
    let ids = subject.samples.iter().flatten().map(|sample| sample.id.as_str());
    match subject.trace.as_ref().filter(|trace| !trace.rows.is_empty()) {
        Some(trace) => trace.rows.iter().map(|row| row.sample_id.as_str()).collect(),
        None => ids.collect(),
    }
}

/// Ids that should be there: as the run says, else those of a dataset that holds every sample of it.
fn expected<'e>(evidence: &'e Evidence<'_>, subject: &'e Subject<'_>) -> Option<BTreeSet<&'e str>> {
    if let Some(ids) = &subject.state.expected_ids {
        return Some(ids.iter().map(String::as_str).collect());
    }
    let own = finished(subject);
    let datasets = evidence.subjects.iter().filter(|other| other.kind == Kind::Dataset);
    datasets.map(finished).find(|ids| !own.is_empty() && own.is_subset(ids))
}

fn partial(evidence: &Evidence<'_>) -> Vec<Note> {
    let runs = evidence.subjects.iter().filter(|subject| subject.kind.is_run());
    runs.filter_map(|subject| {
        let own = finished(subject);
        let complete = subject.state.complete;
        let note = match expected(evidence, subject) {
            Some(expected) => {
                let missing: Vec<&str> = expected.difference(&own).copied().collect();
                let there = expected.len() - missing.len();
                let said = format!("{there} of {} samples are finished", expected.len());
                if missing.is_empty() && complete != Some(false) {
                    Note::pass(said)
                } else {
                    let named: Vec<&str> = missing.iter().take(5).copied().collect();
                    let rest = missing.len().saturating_sub(named.len());
                    let more = if rest > 0 { format!(" and {rest} more") } else { String::new() };
                    Note::flag(format!("{said}: totals are of these only"))
                        .at(format!("missing: {}{more}", named.join(", ")))
                        .remedy("finish the run, or print n/N and compare finished samples only")
                }
            }
            None => match complete {
                Some(false) => {
                    Note::flag(format!("the file ends early: {} samples are there", own.len()))
                        .remedy("finish the run, or compare what both sides have")
                }
                Some(true) => {
                    Note::pass(format!("it says that it is complete, {} samples", own.len()))
                }
                None if own.is_empty() => return None,
                None => Note::missing("expected_ids", &subject.label),
            },
        };
        Some(note.of([subject.label.as_str()]))
    })
    .collect()
}

/// Samples that both sides finished.
fn intersection(pair: &Pair<'_, '_>) -> Vec<Note> {
    let (left, right) = (finished(pair.left), finished(pair.right));
    // Traces from outside name no samples: they are held against each other by their order.
    let invented = [pair.left, pair.right].iter().any(|side| {
        let manifest = side.trace.as_ref().map(|trace| &trace.manifest);
        manifest.is_some_and(|manifest| manifest.get("trace.sample_ids").is_some())
    });
    if left.is_empty() || right.is_empty() || invented || (left.len() == 1 && right.len() == 1) {
        return Vec::new();
    }
    let common = left.intersection(&right).count();
    let said = format!(
        "{common} samples are finished on both sides, of {} and {}",
        left.len(),
        right.len()
    );
    let alone = |own: &BTreeSet<&str>, other: &BTreeSet<&str>| -> Vec<String> {
        own.difference(other).take(NAMED).map(|id| (*id).to_owned()).collect()
    };
    vec![if common == 0 {
        Note::void(said).remedy("compare runs of the same samples")
    } else if left.len() == right.len() && common == left.len() {
        Note::pass(said)
    } else if pair.lineage() {
        // A replay of a part of a run is held against that part.
        Note::pass(said)
    } else {
        let named = [alone(&left, &right), alone(&right, &left)].concat();
        Note::flag(format!("{said}: totals of the two are of different samples"))
            .at(format!("on one side only, for instance: {}", named.join(", ")))
            .remedy("compare the common samples, and print n/N beside each total")
    }]
}

/// Ids that a note names of each side.
const NAMED: usize = 3;

fn answered(label: &str, kind: Kind, ids: std::ops::Range<u32>) -> Subject<'static> {
    let samples = ids.map(|id| Sample::new(format!("toy_{id}"))).collect();
    let mut subject = Subject::new(label, kind);
    subject.samples = Some(samples);
    subject
}

fn partial_controls() -> Vec<Control> {
    let with_dataset = |ids| {
        Evidence::all(vec![
            answered("rows.jsonl", Kind::Benchmark, ids),
            answered("data.jsonl", Kind::Dataset, 0..30),
        ])
    };
    let mut killed = answered("run", Kind::Run, 0..3);
    killed.state.complete = Some(false);
    let whole = |label, ids| {
        let mut side = answered(label, Kind::Benchmark, ids);
        side.state.complete = Some(true);
        side
    };
    let pair = |from| Evidence::pair(whole("left", 0..9), whole("right", from..from + 9));
    vec![
        Control::planted("9 of 30 rows", with_dataset(0..9), Outcome::Flag, "9 of 30 samples"),
        Control::planted("a killed run", Evidence::one(killed), Outcome::Flag, "ends early"),
        Control::planted(
            "no sample in common",
            pair(40),
            Outcome::Void,
            "0 samples are finished on both",
        ),
        Control::planted(
            "40 rows against 20",
            Evidence::pair(
                answered("left", Kind::Benchmark, 0..40),
                answered("right", Kind::Benchmark, 0..20),
            ),
            Outcome::Flag,
            "20 samples are finished on both sides, of 40 and 20",
        ),
        Control::clean("all rows", with_dataset(0..30), "30 of 30 samples"),
        Control::clean("the same rows on both sides", pair(0), "9 samples are finished on both"),
    ]
}

/// Nothing at all.
pub(super) static EMPTY: Audit = Audit {
    number: 50,
    slug: "empty-run",
    title: "a run that wrote nothing is used as evidence",
    compares: "rows written with 0",
    needs: "`rows_written` of a run",
    gate: true,
    each: Some(empty),
    pair: None,
    whole: None,
    controls: empty_controls,
};

fn empty(subject: &Subject<'_>) -> Vec<Note> {
    if !subject.kind.is_run() {
        return Vec::new();
    }
    match subject.state.rows_written {
        None => vec![Note::missing("rows_written", &subject.label)],
        Some(0) => vec![
            Note::void("0 rows were written")
                .remedy("run it again: an empty run proves nothing either way"),
        ],
        Some(rows) => vec![Note::pass(format!("{rows} rows were written"))],
    }
}

fn empty_controls() -> Vec<Control> {
    let run = |rows| {
        let mut run = Subject::new("run", Kind::Run);
        run.state.rows_written = Some(rows);
        Evidence::one(run)
    };
    vec![
        Control::planted("the process died while it loaded", run(0), Outcome::Void, "0 rows"),
        Control::clean("rows are there", run(7), "7 rows"),
    ]
}

/// Ids that stand twice, and ids that a whole run lacks.
pub(super) static IDS: Audit = Audit {
    number: 51,
    slug: "sample-ids",
    title: "a sample stands twice, or not at all, in a run that counts as whole",
    compares: "sample ids (and filters) with one another and with those expected",
    needs: "samples of a run or a dataset",
    gate: false,
    each: None,
    pair: None,
    whole: Some(ids),
    controls: id_controls,
};

fn ids(evidence: &Evidence<'_>) -> Vec<Note> {
    let lists = evidence
        .subjects
        .iter()
        .filter(|subject| subject.kind.is_run() || subject.kind == Kind::Dataset);
    lists
        .filter_map(|subject| {
            let samples = subject.samples.as_ref().filter(|samples| !samples.is_empty())?;
            Some(each_once(evidence, subject, samples).of([subject.label.as_str()]))
        })
        .collect()
}

fn each_once(evidence: &Evidence<'_>, subject: &Subject<'_>, samples: &[Sample]) -> Note {
    let mut counts: BTreeMap<(&str, Option<&str>), usize> = BTreeMap::new();
    for sample in samples {
        *counts.entry((&sample.id, sample.filter.as_deref())).or_default() += 1;
    }
    let twice: Vec<String> = counts
        .iter()
        .filter(|(_, count)| **count > 1)
        .map(|((id, _), count)| format!("{id} ({count} times)"))
        .collect();
    if !twice.is_empty() {
        let text = format!(
            "{} of {} ids stand more than once: a total would count them so",
            twice.len(),
            counts.len()
        );
        return Note::void(text)
            .at(twice.join(", "))
            .remedy("keep one row a sample, and say which");
    }
    let own: BTreeSet<&str> = samples.iter().map(|sample| sample.id.as_str()).collect();
    if let Some(expected) =
        expected(evidence, subject).filter(|_| subject.state.complete == Some(true))
    {
        let missing: Vec<&str> = expected.difference(&own).copied().collect();
        let extra: Vec<&str> = own.difference(&expected).copied().collect();
        if !missing.is_empty() || !extra.is_empty() {
            return Note::flag(format!(
                "{} expected ids are missing, {} were not expected, though the run counts as whole",
                missing.len(),
                extra.len()
            ))
            .at([missing, extra].concat().join(", "));
        }
    }
    Note::pass(format!("{} ids, each once", counts.len()))
}

fn id_controls() -> Vec<Control> {
    let twice = answered("rows.jsonl", Kind::Benchmark, 0..3).with_sample(Sample::new("toy_1"));
    let filters = |one: &str, other: &str| {
        let row = |filter: &str| Sample { filter: Some(filter.to_owned()), ..Sample::new("q") };
        Evidence::one(
            Subject::new("samples.jsonl", Kind::Benchmark)
                .with_sample(row(one))
                .with_sample(row(other)),
        )
    };
    let mut lacking = answered("run", Kind::Run, 0..3);
    lacking.state.complete = Some(true);
    lacking.state.expected_ids = Some((0..4).map(|id| format!("toy_{id}")).collect());
    vec![
        Control::planted(
            "two shards hold a sample",
            Evidence::one(twice),
            Outcome::Void,
            "toy_1 (2 times)",
        ),
        Control::planted(
            "one filter twice",
            filters("strict", "strict"),
            Outcome::Void,
            "q (2 times)",
        ),
        Control::planted(
            "a whole run lacks a sample",
            Evidence::one(lacking),
            Outcome::Flag,
            "toy_3",
        ),
        Control::clean(
            "each once",
            Evidence::one(answered("rows.jsonl", Kind::Benchmark, 0..3)),
            "3 ids, each once",
        ),
        Control::clean(
            "two filters of one question",
            filters("strict", "flexible"),
            "2 ids, each once",
        ),
    ]
}
