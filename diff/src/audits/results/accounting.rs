//! Audits of how a trace or a replay counts prompt rows.

use super::super::facts::{Evidence, Kind};
use super::super::{Audit, Control, Note, Outcome, Subject};
use super::made::{dense, prompted, row, traced};
use super::rows::{Counted, Track, prompt, tracks};

/// Rows of a replay that hold more than their positions.
pub(super) static COUNTED_TWICE: Audit = Audit {
    number: 25,
    slug: "prompt-twice",
    title: "a replay holds more rows than there are tokens: the prompt was fed twice, or rows are shifted",
    compares: "rows_before with position, over the rows before the first compaction",
    needs: "exact `rows_before` of a trace or replay that starts before its first compaction",
    gate: false,
    each: None,
    pair: None,
    whole: Some(counted_twice),
    controls: twice_controls,
};

fn counted_twice(evidence: &Evidence<'_>) -> Vec<Note> {
    let mut notes = Vec::new();
    for subject in &evidence.subjects {
        let Some(trace) = &subject.trace else { continue };
        if !trace.manifest.limits.rows {
            let why = "rows: not available: the source does not count them";
            notes.push(Note::no_evidence(why).of([subject.label.as_str()]));
            continue;
        }
        if !trace.manifest.rows_exact {
            let why = "`rows_before` is rounded up to a bucket: single rows cannot be counted";
            notes.push(Note::no_evidence(why).of([subject.label.as_str()]));
            continue;
        }
        for track in tracks(subject) {
            let length = prompt(evidence, subject, track.id);
            notes.extend(shifted(&track, length).map(|note| note.of([subject.label.as_str()])));
        }
    }
    notes
}

/// What the rows before the first compaction say; `None` where rows were dropped before the window.
fn shifted(track: &Track<'_>, prompt: Option<u32>) -> Option<Note> {
    let before: Vec<Counted> = track.rows().scan(false, until_compaction).collect();
    let shift = |row: &Counted| i64::from(row.before) - i64::from(row.position);
    let first = before.first().map(shift).filter(|first| *first >= 0)?;
    let odd = before.iter().find(|row| shift(row) != first);
    let place = |position| format!("{} position {position}", track.id);
    let start = before.first().map_or(0, |row| row.position);
    if let Some(row) = odd {
        let text = format!(
            "rows_before - position is {first}, then {} from position {}",
            shift(row),
            row.position
        );
        let why = if shift(row) == first + 1 && prompt == Some(row.position) {
            "the last prompt row was fed again"
        } else {
            "rows were fed twice or lost there"
        };
        let note = Note::void(format!("{text}: {why}")).at(place(row.position));
        return Some(note.remedy("feed each recorded row once"));
    }
    if first == 0 {
        return Some(Note::pass(format!(
            "rows_before = position in {} rows of {}",
            before.len(),
            track.id
        )));
    }
    let said = format!(
        "rows_before - position = {first} in all {} rows before a compaction",
        before.len()
    );
    let why = match prompt {
        Some(length) if i64::from(length) == first => {
            format!("{said}, which is the prompt's length: the prompt was fed twice")
        }
        Some(length) => format!("{said}: offset {first}; the prompt has {length} tokens"),
        None => format!("{said}: offset {first}, the prompt fed twice if that is its length"),
    };
    Some(
        Note::void(why)
            .at(place(start))
            .remedy("feed each recorded row once: the trace already holds the prompt"),
    )
}

/// Rows up to the one that compacts, itself included.
fn until_compaction(done: &mut bool, row: Counted) -> Option<Counted> {
    if *done {
        return None;
    }
    *done = row.compaction.is_some();
    Some(row)
}

fn twice_controls() -> Vec<Control> {
    let replay = |shift: u32, from: u32| {
        let mut rows = dense(0..20);
        for row in rows.iter_mut().filter(|row| row.position >= from) {
            row.rows_before += shift;
            row.rows_after += shift;
        }
        Evidence::one(prompted(traced("replay", Kind::Replay, &rows, Vec::new()), 6))
    };
    let window = {
        let mut rows = dense(7150..7190);
        for row in &mut rows {
            row.rows_before += 157;
            row.rows_after += 157;
        }
        traced("replay", Kind::Trace, &rows, Vec::new())
    };
    vec![
        Control::planted(
            "the harness prefills and then feeds every row",
            replay(6, 0),
            Outcome::Void,
            "fed twice",
        ),
        Control::planted(
            "the last prompt row is fed again",
            replay(1, 6),
            Outcome::Void,
            "last prompt row",
        ),
        Control::planted(
            "a window, the prompt's length unknown",
            Evidence::one(window),
            Outcome::Void,
            "offset 157",
        ),
        Control::clean("one row a position", replay(0, 0), "rows_before = position in 20 rows"),
    ]
}

/// A trace that starts somewhere else than it should.
pub(super) static PROMPT_ROWS: Audit = Audit {
    number: 26,
    slug: "prompt-rows",
    title: "it is not known whether a trace holds the prompt's rows, or rows are missing",
    compares: "the first position with 0, the prompt's length and the declared window; positions with one another",
    needs: "rows of a trace",
    gate: false,
    each: None,
    pair: None,
    whole: Some(prompt_rows),
    controls: rows_controls,
};

fn prompt_rows(evidence: &Evidence<'_>) -> Vec<Note> {
    let mut notes = Vec::new();
    for subject in &evidence.subjects {
        for track in tracks(subject) {
            notes.push(starts(evidence, subject, &track).of([subject.label.as_str()]));
        }
    }
    notes
}

fn starts(evidence: &Evidence<'_>, subject: &Subject<'_>, track: &Track<'_>) -> Note {
    let positions: Vec<u32> = track.rows().map(|row| row.position).collect();
    if let Some(pair) = positions.windows(2).find(|pair| !matches!(pair, [a, b] if a + 1 == *b)) {
        return Note::flag(format!(
            "positions of {} go from {} to {}: rows are missing",
            track.id, pair[0], pair[1]
        ))
        .at(format!("{} position {}", track.id, pair[0]))
        .remedy("record every row between, or compare the two stretches apart");
    }
    let Some(first) = track.first() else { return Note::missing("position", &subject.label) };
    let declared = subject.count("trace.start").is_some_and(|start| start == u64::from(first));
    match prompt(evidence, subject, track.id) {
        _ if first == 0 => Note::pass(format!("{} starts at 0: its prompt rows are there", track.id)),
        _ if declared => Note::pass(format!("{} starts at {first}, as declared", track.id)),
        Some(length) if length == first => {
            Note::pass(format!("{} starts at {first}, its prompt's length: prompt rows are not traced", track.id))
        }
        Some(length) => Note::flag(format!(
            "{} starts at {first}, which is neither 0 nor its prompt's length {length} nor a declared window",
            track.id
        ))
        .at(format!("{} position {first}", track.id))
        .remedy("declare the window that was traced"),
        None => Note::no_evidence(format!(
            "`prompt_tokens` of {} is not recorded and the trace starts at {first}",
            track.id
        )),
    }
}

fn rows_controls() -> Vec<Control> {
    let starting = |at: u32, prompt: u32| {
        Evidence::one(prompted(
            traced("trace", Kind::Trace, &dense(at..at + 9), Vec::new()),
            prompt,
        ))
    };
    let gap = {
        let mut rows = dense(0..4);
        rows.extend(dense(6..9));
        Evidence::one(traced("trace", Kind::Trace, &rows, Vec::new()))
    };
    let window = traced("trace", Kind::Trace, &dense(7150..7160), Vec::new()).with(
        "trace.start",
        7150,
        "flag",
    );
    vec![
        Control::planted(
            "starts inside the prompt",
            starting(5, 41),
            Outcome::Flag,
            "neither 0 nor",
        ),
        Control::planted("two rows are missing", gap, Outcome::Flag, "from 3 to 6"),
        Control::clean("starts at 0", starting(0, 4), "prompt rows are there"),
        Control::clean("starts behind the prompt", starting(41, 41), "are not traced"),
        Control::clean("a declared window", Evidence::one(prompted(window, 41)), "as declared"),
    ]
}

/// The row that chooses the first token.
pub(super) static LAST_PROMPT_ROW: Audit = Audit {
    number: 27,
    slug: "last-prompt-row",
    title: "the row that chooses the first token is missing, or is there twice",
    compares: "row P - 1 with the presence of row 0, and the rows held at P with those after P - 1",
    needs: "rows of a trace and `prompt_tokens` of its samples",
    gate: false,
    each: None,
    pair: None,
    whole: Some(last_prompt_row),
    controls: last_controls,
};

fn last_prompt_row(evidence: &Evidence<'_>) -> Vec<Note> {
    let mut notes = Vec::new();
    for subject in &evidence.subjects {
        for track in tracks(subject) {
            let note = match prompt(evidence, subject, track.id) {
                None => Some(Note::no_evidence(format!(
                    "`prompt_tokens` of {} is not recorded",
                    track.id
                ))),
                Some(length) => deciding(subject, &track, length),
            };
            notes.extend(note.map(|note| note.of([subject.label.as_str()])));
        }
    }
    notes
}

fn deciding(subject: &Subject<'_>, track: &Track<'_>, length: u32) -> Option<Note> {
    let (first, last) = (track.first()?, track.last()?);
    let row = length.checked_sub(1)?;
    let place = format!("{} position {row}", track.id);
    if first > 0 && first == row && length > 1 {
        let text = format!(
            "row {row} is there though the prompt is not: it was fed again after a prefill"
        );
        return Some(
            Note::flag(text).at(place).remedy("start the trace at 0 or at the prompt's length"),
        );
    }
    if first == 0 && last < row {
        let text = format!(
            "the trace ends at {last}, inside its prompt of {length}: nothing was chosen yet"
        );
        return Some(Note::flag(text).at(place));
    }
    if first > row {
        return (first == length).then(|| {
            Note::pass(format!("the prompt of {} and its last row {row} are not traced", track.id))
        });
    }
    let exact = subject
        .trace
        .as_ref()
        .is_some_and(|trace| trace.manifest.rows_exact && trace.manifest.limits.rows);
    let at = |position: u32| track.rows().find(|row| row.position == position);
    if let (true, Some(own), Some(next)) = (exact, at(row), at(length))
        && next.before > own.after
    {
        let text = format!(
            "row {row} leaves {} rows and row {length} finds {}: the last prompt row was fed again",
            own.after, next.before
        );
        return Some(Note::void(text).at(place).remedy("feed it once: it chooses the first token"));
    }
    Some(Note::pass(format!("row {row} of {} is there once", track.id)))
}

fn last_controls() -> Vec<Control> {
    let known = |rows: &[lockstep_traces::StepRow]| {
        Evidence::one(prompted(traced("trace", Kind::Trace, rows, Vec::new()), 6))
    };
    let again = {
        let mut rows = dense(0..12);
        for row in rows.iter_mut().skip(6) {
            row.rows_before += 1;
            row.rows_after += 1;
        }
        rows
    };
    vec![
        Control::planted("fed again after the prefill", known(&again), Outcome::Void, "fed again"),
        Control::planted(
            "a trace of decode rows that starts one early",
            known(&dense(5..12)),
            Outcome::Flag,
            "row 5 is there",
        ),
        Control::planted("cut inside the prompt", known(&dense(0..4)), Outcome::Flag, "ends at 3"),
        Control::clean("prompt and decode", known(&dense(0..12)), "there once"),
        Control::clean("decode only", known(&dense(6..12)), "are not traced"),
    ]
}

/// A file to which a second sample was appended.
pub(super) static SEVERAL_SAMPLES: Audit = Audit {
    number: 28,
    slug: "several-samples",
    title: "several samples stand in one trace without a mark",
    compares: "falls of position with the samples that the file names",
    needs: "rows of a trace",
    gate: false,
    each: Some(several_samples),
    pair: None,
    whole: None,
    controls: several_controls,
};

fn several_samples(subject: &Subject<'_>) -> Vec<Note> {
    let Some(trace) = &subject.trace else { return Vec::new() };
    let count = trace.steps.sample_ids.len();
    let invented = trace.manifest.get("trace.sample_ids").and_then(serde_json::Value::as_str)
        == Some("invented");
    let starts: Vec<String> = tracks(subject)
        .iter()
        .skip(1)
        .filter_map(|track| Some(format!("{} from position {}", track.id, track.first()?)))
        .collect();
    vec![match (count, invented) {
        (0, _) => Note::no_evidence("the trace holds no row"),
        (1, _) => Note::pass("one sample, its positions never fall"),
        (_, false) => Note::pass(format!("{count} samples, each with its id")),
        (_, true) => Note::flag(format!(
            "positions fall {} times without a mark: {count} samples were appended",
            count - 1
        ))
        .at(starts.join(", "))
        .remedy("pair them by order, and record one file a sample"),
    }]
}

fn several_controls() -> Vec<Control> {
    let two = |invented: bool| {
        let mut rows = dense(0..5);
        rows.extend(
            (0..4).map(|at| lockstep_traces::StepRow { sample_id: "t".to_owned(), ..row(at) }),
        );
        let mut subject = traced("trace", Kind::Trace, &rows, Vec::new());
        if let (true, Some(trace)) = (invented, &mut subject.trace) {
            trace.manifest.to_mut().set("trace.sample_ids", "invented", "imported");
        }
        Evidence::one(subject)
    };
    vec![
        Control::planted(
            "the engine appends every sample",
            two(true),
            Outcome::Flag,
            "2 samples were appended",
        ),
        Control::clean("samples with ids", two(false), "2 samples, each with its id"),
        Control::clean(
            "one sample",
            Evidence::one(traced("t", Kind::Trace, &dense(0..3), Vec::new())),
            "one sample",
        ),
    ]
}
