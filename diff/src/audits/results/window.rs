//! Audits of stretches of rows: warm-up chunks, compactions while the prompt is filled, windows that miss the event.

use super::super::facts::{Evidence, Kind, Reference};
use super::super::{Audit, Control, Note, Outcome, Pair, Subject};
use super::made::{claimed, compressed, dense, event, prompted, traced};
use super::rows::{claims, compared, prompt, tracks};
use super::schedule::Schedule;

/// A chunk that ends behind a compaction that belongs into it.
pub(super) static CHUNKS: Audit = Audit {
    number: 32,
    slug: "chunked-warmup",
    title: "a warm-up chunk of the reference straddles a compaction",
    compares: "ends of the warm-up chunks with N of each compaction of the reference",
    needs: "`chunk_edges` of a reference that compacts",
    gate: false,
    each: Some(chunks),
    pair: None,
    whole: None,
    controls: chunk_controls,
};

fn chunks(subject: &Subject<'_>) -> Vec<Note> {
    let Some(edges) =
        subject.reference.as_ref().and_then(|reference| reference.chunk_edges.as_ref())
    else {
        return Vec::new();
    };
    let Some(events) = &subject.events else {
        return vec![Note::missing("events", &subject.label)];
    };
    let last = edges.iter().copied().max().unwrap_or(0);
    let inside = events
        .iter()
        .find(|event| event.absolute_position < last && !edges.contains(&event.absolute_position));
    vec![match inside {
        Some(event) => {
            let n = event.absolute_position;
            let start = edges.iter().copied().filter(|edge| *edge < n).max().unwrap_or(0);
            let end = edges.iter().copied().filter(|edge| *edge > n).min().unwrap_or(last);
            Note::void(format!(
                "the chunk {start}..{end} straddles compaction {} at N = {n}: its later rows saw rows that were dropped",
                event.ordinal
            ))
            .at(format!("{} compaction {}", event.sample_id, event.ordinal))
            .remedy("end a chunk at every compaction")
        }
        None => Note::pass(format!(
            "{} chunks straddle none of {} compactions",
            edges.len(),
            events.len()
        )),
    }]
}

fn chunk_controls() -> Vec<Control> {
    let reference = |edges: &[u32]| {
        let (rows, events) = compressed(40, 12, 8);
        let mut subject = traced("replay", Kind::Replay, &rows, events);
        let edges = Some(edges.to_vec());
        subject.reference = Some(Reference { chunk_edges: edges, ..Reference::default() });
        Evidence::one(subject)
    };
    vec![
        Control::planted(
            "chunks of 10 rows",
            reference(&[10, 20]),
            Outcome::Void,
            "10..20 straddles compaction 1 at N = 12",
        ),
        Control::clean(
            "a chunk ends at each compaction",
            reference(&[10, 12, 16, 20]),
            "straddle none",
        ),
    ]
}

/// The policy acted before there was anything to decode.
pub(super) static IN_PREFILL: Audit = Audit {
    number: 33,
    slug: "compaction-in-prefill",
    title: "the cache was compacted while the prompt was still being filled",
    compares: "N of each compaction with the prompt's length, and the prompt rows that were kept",
    needs: "compactions of a run and `prompt_tokens` of its samples",
    gate: false,
    each: None,
    pair: None,
    whole: Some(in_prefill),
    controls: prefill_controls,
};

fn in_prefill(evidence: &Evidence<'_>) -> Vec<Note> {
    let mut notes = Vec::new();
    for subject in &evidence.subjects {
        for event in subject.events.iter().flatten().filter(|event| event.ordinal == 1) {
            let place = format!("{} compaction 1", event.sample_id);
            let n = event.absolute_position;
            let note = match prompt(evidence, subject, &event.sample_id) {
                None => Note::missing("prompt_tokens", &subject.label),
                Some(length) if n > length => Note::pass(format!(
                    "the first compaction is at N = {n}, the prompt ends at {length}"
                )),
                Some(length) => {
                    let told = subject.kept_prefix.as_ref().and_then(|kept| kept.get(&n)).copied();
                    let kept = told.unwrap_or(event.rows_after);
                    let said = format!("compaction at N = {n} inside a prompt of {length}");
                    if kept < length.min(n) {
                        Note::void(format!("{said}; at most {kept} of its rows are left")).remedy(
                            "give the cache room for the prompt; claim nothing about quality",
                        )
                    } else {
                        Note::flag(said).remedy("compact behind the prompt only")
                    }
                }
            };
            notes.push(note.at(place).of([subject.label.as_str()]));
        }
    }
    notes
}

fn prefill_controls() -> Vec<Control> {
    let run = |n: u32, after: u32, kept: Option<u32>| {
        let subject = traced("run", Kind::Run, &dense(0..3), vec![event(1, n, n, after)]);
        let mut subject = prompted(subject, 500);
        subject.kept_prefix = kept.map(|kept| [(n, kept)].into());
        Evidence::one(subject)
    };
    vec![
        Control::planted(
            "a full cache while the prompt is filled",
            run(320, 256, None),
            Outcome::Void,
            "at most 256",
        ),
        Control::planted(
            "the log says how much of the prompt was kept",
            run(500, 500, Some(41)),
            Outcome::Void,
            "at most 41",
        ),
        Control::planted(
            "inside the prompt, nothing lost yet",
            run(320, 320, Some(320)),
            Outcome::Flag,
            "inside a prompt of 500",
        ),
        Control::clean("behind the prompt", run(600, 256, None), "the prompt ends at 500"),
    ]
}

/// A conclusion about what happened before a split, drawn from rows that start later.
pub(super) static WINDOW: Audit = Audit {
    number: 34,
    slug: "window-misses-event",
    title: "the compared window starts behind the compaction that could have caused the split",
    compares: "the rows that both sides have with those from the first compaction to the split",
    needs: "two traces whose tokens part, and a compaction or the policy's settings",
    gate: false,
    each: None,
    pair: Some(window),
    whole: None,
    controls: window_controls,
};

/// Row of the first compaction that anything given knows of.
fn first_compaction(pair: &Pair<'_, '_>, id: &str) -> Option<u32> {
    let rows = pair.evidence.subjects.iter().flat_map(|subject| {
        let own = subject.events_of(id).map(|event| event.absolute_position);
        let planned = subject.text("policy.kind").is_none_or(|kind| kind != "dense");
        let length = prompt(pair.evidence, subject, id);
        let schedule = Schedule::of(subject).filter(|_| planned);
        own.chain(schedule.and_then(|schedule| schedule.first(length))).collect::<Vec<_>>()
    });
    rows.min()?.checked_sub(1)
}

fn window(pair: &Pair<'_, '_>) -> Vec<Note> {
    let (Some(left), Some(right)) =
        (tracks(pair.left).first().cloned(), tracks(pair.right).first().cloned())
    else {
        return Vec::new();
    };
    let (Some(start), Some(end)) =
        (left.first().max(right.first()), left.last().zip(right.last()).map(|(l, r)| l.min(r)))
    else {
        return Vec::new();
    };
    let Some(event) = first_compaction(pair, left.id) else { return Vec::new() };
    let Some(report) = compared(pair) else { return Vec::new() };
    let split = report.splits.token.as_ref().map(|split| split.position);
    let labels = [pair.left.label.as_str(), pair.right.label.as_str()];
    let claim = claims(pair.evidence, &["no-drift"], &labels).first().copied();
    let said =
        format!("rows {start}..={end} are on both sides, the first compaction is in row {event}");
    let Some(split) = split.or_else(|| claim.map(|_| end)) else {
        return vec![Note::no_evidence(format!("{said}; no token parts within them"))];
    };
    if split < event {
        return vec![Note::pass(format!("{said}; the tokens part before it, at row {split}"))];
    }
    if start <= event {
        return vec![Note::pass(format!(
            "{said}; the tokens part at row {split}, all rows between are there"
        ))];
    }
    let note = Note::flag(format!(
        "{said}; the tokens part at row {split}: rows {event}..{start} are missing, so nothing is known of drift before the split"
    ));
    vec![
        note.at(format!("{} positions {event}..{start}", left.id))
            .remedy("trace and replay from the compaction to the split"),
    ]
}

fn window_controls() -> Vec<Control> {
    let side = |label: &str, from: u32, parts: bool| {
        let mut rows = dense(from..60);
        for row in rows.iter_mut().filter(|row| parts && row.position >= 50) {
            row.token_id += u32::from(row.position > 50) * 1000;
            row.next_token = Some(9);
            row.argmax = 9;
            row.top_ids = vec![9, 7];
        }
        traced(label, Kind::Trace, &rows, Vec::new()).with("policy.kv_budget", 20, "flag").with(
            "policy.divide_length",
            4,
            "flag",
        )
    };
    let pair = |from| Evidence::pair(side("native", from, false), side("replay", from, true));
    let equal = claimed(
        Evidence::pair(side("native", 40, false), side("replay", 40, false)),
        "no-drift",
        None,
    );
    vec![
        Control::planted(
            "the replay starts shortly before the split",
            pair(40),
            Outcome::Flag,
            "rows 23..40 are missing",
        ),
        Control::planted(
            "no drift is claimed of a window behind the event",
            equal,
            Outcome::Flag,
            "rows 23..40",
        ),
        Control::clean("everything from the compaction on", pair(20), "all rows between"),
    ]
}
