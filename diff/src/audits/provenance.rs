//! Audits of where evidence comes from: is it of the code under test, is it of one piece.

use super::facts::{Evidence, Kind};
use super::{Audit, Control, Note, Outcome, Pair, Subject, short};

/// Evidence of an older build.
pub(super) static STALE: Audit = Audit {
    number: 1,
    slug: "stale-artifact",
    title: "evidence was made by another build than the run under test",
    compares: "binary hash and commit of a dump, answer or replay against those of the run; a replay's parent against the run",
    needs: "a dump, an answer or a replay beside a run",
    gate: true,
    each: None,
    pair: Some(stale_replay),
    whole: Some(stale),
    controls: stale_controls,
};

/// A replay names the manifest that it replayed; a run that was recorded again since has another.
fn stale_replay(pair: &Pair<'_, '_>) -> Vec<Note> {
    let (run, replay) = match (pair.left.kind, pair.right.kind) {
        (Kind::Run, Kind::Replay) => (pair.left, pair.right),
        (Kind::Replay, Kind::Run) => (pair.right, pair.left),
        _ => return Vec::new(),
    };
    let Some(parent) = &replay.parent else {
        return vec![Note::missing("parent", &replay.label)];
    };
    let Some(identity) = &run.identity else {
        return vec![Note::missing("manifest hash", &run.label)];
    };
    let said =
        format!("parent {} of the replay, manifest {} of the run", short(parent), short(identity));
    if parent == identity {
        return vec![Note::pass(said)];
    }
    let note = Note::flag(format!(
        "the replay is of another run, or of this one before it was recorded again: {said}"
    ));
    vec![note.remedy("replay the run that stands here now")]
}

/// Dumps and answers beside the run under test (the target, or the only run), and every run against the history.
fn stale(evidence: &Evidence<'_>) -> Vec<Note> {
    let mut runs = evidence.right.iter().filter_map(|index| evidence.subjects.get(*index));
    let run = runs.next().or_else(|| {
        let mut all = evidence.subjects.iter().filter(|subject| subject.kind.is_run());
        all.next().filter(|_| all.next().is_none())
    });
    let artifacts =
        evidence.subjects.iter().filter(|subject| matches!(subject.kind, Kind::Dump | Kind::Check));
    let mut notes = Vec::new();
    for run in evidence.subjects.iter().filter(|subject| subject.kind.is_run()) {
        notes.extend(of_commit(run, evidence).map(|note| note.of([run.label.as_str()])));
    }
    for artifact in artifacts {
        notes.push(match run {
            Some(run) => of_build(artifact, run, evidence),
            None => Note::no_evidence("no run that the evidence is used for was given")
                .of([artifact.label.as_str()]),
        });
    }
    notes
}

fn of_build(artifact: &Subject<'_>, run: &Subject<'_>, evidence: &Evidence<'_>) -> Note {
    let labels = [artifact.label.as_str(), run.label.as_str()];
    if let (Some(made), Some(under_test)) = (&artifact.made.binary_sha256, &run.made.binary_sha256)
    {
        let said =
            format!("binary {} of the evidence, {} of the run", short(made), short(under_test));
        return if made == under_test {
            Note::pass(said).of(labels)
        } else {
            Note::void(format!("another build made it: {said}"))
                .remedy("make it again with the build under test")
                .of(labels)
        };
    }
    if let Some(note) = of_commit(artifact, evidence) {
        return note.of(labels);
    }
    match (&artifact.made.created_at, &artifact.made.modified_at) {
        (None, Some(time)) => Note::flag(format!(
            "only the file's modification time {time} is known of its age; neither binary nor commit is recorded"
        ))
        .remedy("record the binary's hash or the commit with it")
        .of(labels),
        _ => Note::no_evidence("neither `binary_sha256` of both nor `commit` with a history is recorded")
            .of(labels),
    }
}

/// Older than the commit that last touched what is checked?
fn of_commit(artifact: &Subject<'_>, evidence: &Evidence<'_>) -> Option<Note> {
    let history = evidence.history.as_ref()?;
    let (made, touched) = (artifact.made.commit.as_ref()?, history.touched.as_ref()?);
    let at = |wanted: &String| {
        history.commits.iter().position(|commit| commit.starts_with(wanted.as_str()))
    };
    let said = format!("commit {} of the evidence, last change in {}", short(made), short(touched));
    Some(match (at(made), at(touched)) {
        (Some(made), Some(touched)) if made < touched => {
            Note::void(format!("it is older than the last change of what it checks: {said}"))
                .remedy("make it again")
        }
        (Some(_), Some(_)) => Note::pass(said),
        _ => Note::no_evidence(format!("the history does not hold both commits: {said}")),
    })
}

fn stale_controls() -> Vec<Control> {
    let built = |label: &str, kind: Kind, hash: &str| {
        let mut subject = Subject::new(label, kind);
        subject.made.binary_sha256 = Some(hash.repeat(32));
        subject
    };
    let with_run =
        |dump: Subject<'static>| Evidence::all(vec![built("run", Kind::Run, "b2"), dump]);
    let by_time = || {
        let mut dump = Subject::new("postcheck.json", Kind::Check);
        dump.made.modified_at = Some("2026-04-17T21:04:00Z".to_owned());
        dump
    };
    let lineage = |parent: &str| {
        let mut run = Subject::new("run", Kind::Run);
        run.identity = Some("5e".repeat(32));
        let mut replay = Subject::new("replay", Kind::Replay);
        replay.parent = Some(parent.repeat(32));
        Evidence::pair(run, replay)
    };
    let by_commit = |kind: Kind, commit: &str| {
        let mut made = Subject::new("keep.json", kind);
        made.made.commit = Some(commit.to_owned());
        let mut evidence = Evidence::all(vec![Subject::new("run", Kind::Run), made]);
        evidence.history = Some(super::facts::History {
            commits: ["8f96feecf", "a29ea59d0", "c880d6243"].map(str::to_owned).to_vec(),
            touched: Some("a29ea59d0".to_owned()),
        });
        evidence
    };
    vec![
        Control::planted(
            "a check's answer from the build before the fix",
            with_run(built("postcheck.json", Kind::Check, "a1")),
            Outcome::Void,
            "another build",
        ),
        Control::planted(
            "a dump from before the fix",
            by_commit(Kind::Dump, "8f96feecf"),
            Outcome::Void,
            "older",
        ),
        Control::planted(
            "a run from before the fix",
            by_commit(Kind::Run, "8f96feecf"),
            Outcome::Void,
            "older",
        ),
        Control::planted(
            "only a modification time",
            with_run(by_time()),
            Outcome::Flag,
            "modification time",
        ),
        Control::planted(
            "a replay of the run before last",
            lineage("77"),
            Outcome::Flag,
            "another run",
        ),
        Control::clean("same build", with_run(built("k.json", Kind::Dump, "b2")), "binary b2b2"),
        Control::clean("after the fix", by_commit(Kind::Dump, "c880d6243"), "last change"),
        Control::clean("a replay of this run", lineage("5e"), "manifest 5e5e"),
    ]
}

/// An artifact put together from parts of others.
pub(super) static GRAFTED: Audit = Audit {
    number: 5,
    slug: "grafted-bundle",
    title: "a bundle was put together from parts of others",
    compares: "the hash of each section with the sections of the other bundles, and the times at which sections were made",
    needs: "`sections` with hashes of a bundle, and its donors or the times of its sections",
    gate: false,
    each: None,
    pair: None,
    whole: Some(grafted),
    controls: grafted_controls,
};

fn grafted(evidence: &Evidence<'_>) -> Vec<Note> {
    let bundles: Vec<&Subject<'_>> =
        evidence.subjects.iter().filter(|subject| sections(subject).is_some()).collect();
    let bare = evidence.subjects.iter().filter(|subject| subject.kind == Kind::Bundle);
    let mut notes: Vec<Note> = bare
        .filter(|subject| sections(subject).is_none())
        .map(|subject| Note::missing("sections", &subject.label).of([subject.label.as_str()]))
        .collect();
    for bundle in &bundles {
        let donors: Vec<_> =
            bundles.iter().filter(|other| other.label != bundle.label).copied().collect();
        notes.push(graft(bundle, &donors).of([bundle.label.as_str()]));
    }
    notes
}

type Sections = std::collections::BTreeMap<String, String>;

fn sections<'s>(subject: &'s Subject<'_>) -> Option<&'s Sections> {
    subject.artifact.as_ref()?.sections.as_ref().filter(|sections| !sections.is_empty())
}

/// Composite: declared so, or two sections that are found in two donors and each in one of them only.
fn graft(bundle: &Subject<'_>, donors: &[&Subject<'_>]) -> Note {
    let Some(own) = sections(bundle) else { return Note::missing("sections", &bundle.label) };
    let artifact = bundle.artifact.as_ref();
    let declared = artifact.and_then(|artifact| artifact.composite) == Some(true);
    let found: Vec<(&str, Vec<&str>)> =
        own.iter().map(|(name, hash)| (name.as_str(), holders(name, hash, donors))).collect();
    let apart = |left: &[&str], right: &[&str]| {
        !left.is_empty() && !right.is_empty() && !left.iter().any(|donor| right.contains(donor))
    };
    let two = found.iter().any(|(_, l)| found.iter().any(|(_, r)| apart(l, r)));
    let list: Vec<String> = found
        .iter()
        .map(|(name, donors)| {
            let from = if donors.is_empty() { "no donor".to_owned() } else { donors.join(", ") };
            format!("{name} from {from}")
        })
        .collect();
    if two || declared {
        let unknown = found.iter().any(|(_, donors)| donors.is_empty());
        let remedy = if unknown {
            "name the donor of every section"
        } else {
            "claim nothing about it that its donors do not show"
        };
        return Note::flag(format!("composite: {}", list.join("; "))).remedy(remedy);
    }
    let times = artifact.map(|artifact| &artifact.section_times).filter(|times| times.len() > 1);
    if let Some(times) = times {
        let distinct: std::collections::BTreeSet<&String> = times.values().collect();
        if distinct.len() > 1 {
            let told: Vec<String> =
                times.iter().map(|(name, time)| format!("{name} {time}")).collect();
            return Note::flag(format!(
                "composite: its sections were made at different times: {}",
                told.join("; ")
            ));
        }
    }
    if donors.is_empty() && times.is_none() {
        return Note::no_evidence(
            "no other bundle and no `section_times` were given: a graft would not show",
        );
    }
    Note::pass(format!("{} sections are of one piece", own.len()))
}

fn holders<'d>(name: &str, hash: &str, donors: &[&'d Subject<'_>]) -> Vec<&'d str> {
    let holds = |donor: &&&Subject<'_>| {
        sections(donor).and_then(|sections| sections.get(name)).is_some_and(|other| other == hash)
    };
    donors.iter().filter(holds).map(|donor| donor.label.as_str()).collect()
}

fn grafted_controls() -> Vec<Control> {
    let bundle = |label: &str, plan: &str, stats: &str| {
        let mut subject = Subject::new(label, Kind::Bundle);
        let section = |name: &str, hash: &str| (name.to_owned(), hash.repeat(32));
        let sections = [
            section("engine_plan", plan),
            section("triattention_stats.json", stats),
            section("tokenizer.json", "77"),
        ];
        subject.artifact = Some(super::facts::Artifact {
            sections: Some(sections.into_iter().collect()),
            ..Default::default()
        });
        subject
    };
    let at = |times: [&str; 2]| {
        let mut subject = bundle("alone", "aa", "bb");
        if let Some(artifact) = &mut subject.artifact {
            for (name, time) in ["engine_plan", "triattention_stats.json"].into_iter().zip(times) {
                artifact.section_times.insert(name.to_owned(), time.to_owned());
            }
        }
        Evidence::one(subject)
    };
    let donors = |third: Subject<'static>| {
        Evidence::all(vec![bundle("dense", "aa", "00"), bundle("tri", "bb", "cc"), third])
    };
    vec![
        Control::planted(
            "the plan of one and the statistics of another",
            donors(bundle("hybrid", "aa", "cc")),
            Outcome::Flag,
            "engine_plan from dense",
        ),
        Control::planted(
            "a section made two days later",
            at(["2026-04-16T10:00:00Z", "2026-04-18T10:00:00Z"]),
            Outcome::Flag,
            "different times",
        ),
        Control::clean(
            "three bundles that share a tokenizer",
            donors(bundle("other", "dd", "ee")),
            "of one piece",
        ),
        Control::clean(
            "made at once",
            at(["2026-04-16T10:00:00Z", "2026-04-16T10:00:00Z"]),
            "of one piece",
        ),
    ]
}
