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

/// Dumps and answers beside the run under test: the target, or the only run.
fn stale(evidence: &Evidence<'_>) -> Vec<Note> {
    let mut runs = evidence.right.iter().filter_map(|index| evidence.subjects.get(*index));
    let run = runs.next().or_else(|| {
        let mut all = evidence.subjects.iter().filter(|subject| subject.kind.is_run());
        all.next().filter(|_| all.next().is_none())
    });
    let artifacts =
        evidence.subjects.iter().filter(|subject| matches!(subject.kind, Kind::Dump | Kind::Check));
    let mut notes = Vec::new();
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
    let by_commit = |commit: &str| {
        let mut dump = Subject::new("keep.json", Kind::Dump);
        dump.made.commit = Some(commit.to_owned());
        let mut evidence = Evidence::all(vec![Subject::new("run", Kind::Run), dump]);
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
            by_commit("8f96feecf"),
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
        Control::clean("after the fix", by_commit("c880d6243"), "last change"),
        Control::clean("a replay of this run", lineage("5e"), "manifest 5e5e"),
    ]
}
