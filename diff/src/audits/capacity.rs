//! Audits of ladders of row counts and of capacities.

use super::facts::{Artifact, Evidence, Kind};
use super::{Audit, Control, Note, Outcome, Pair, Subject, engine};

/// Ladders of row counts.
pub(super) static LADDER: Audit = Audit {
    number: 3,
    slug: "profile-ladder",
    title: "the two sides round row counts up to different ladders, so that other kernels ran",
    compares: "the row counts of the optimization profiles or recorded graphs of both sides",
    needs: "`profile_rows` of both sides",
    gate: true,
    each: None,
    pair: Some(ladder),
    whole: None,
    controls: ladder_controls,
};

fn profile<'s>(subject: &'s Subject<'_>) -> Option<&'s Vec<u64>> {
    subject.artifact.as_ref()?.profile_rows.as_ref()
}

fn ladder(pair: &Pair<'_, '_>) -> Vec<Note> {
    if pair.left.artifact.is_none() && pair.right.artifact.is_none() {
        return Vec::new();
    }
    if pair.lineage() {
        return vec![Note::pass("one side replays the other: a reference has no ladder")];
    }
    let (left, right) = match pair.both("profile_rows", |side| profile(side)) {
        Ok(both) => both,
        Err(note) => return vec![note],
    };
    let Some((first, last)) = affected(left, right) else {
        return vec![Note::pass(format!("{} profiles on both sides: {}", left.len(), list(left)))];
    };
    let said = format!(
        "{} profiles ({}) against {} ({})",
        left.len(),
        list(left),
        right.len(),
        list(right)
    );
    let at = format!("rows {first} to {last}");
    let fixed = |side: &Subject<'_>| side.switch("device.deterministic") == Some(true);
    if fixed(pair.left) && fixed(pair.right) {
        return vec![Note::pass(format!(
            "{said}; splits are fixed on both sides, so that the ladder moves no bit"
        ))];
    }
    if pair.policies_differ() == Some(false) {
        return vec![
            Note::flag(said).at(at).remedy("use one ladder; bits may differ where the rungs do"),
        ];
    }
    vec![Note::void(said).at(at).remedy("run both sides with one ladder")]
}

fn list(rows: &[u64]) -> String {
    rows.iter().map(u64::to_string).collect::<Vec<_>>().join(",")
}

/// First and last row count that the two ladders serve with different profiles. A profile serves every count up to its own
/// that no smaller one serves.
fn affected(left: &[u64], right: &[u64]) -> Option<(u64, u64)> {
    let mut edges: Vec<u64> = left.iter().chain(right).copied().collect();
    edges.sort_unstable();
    edges.dedup();
    let serving =
        |ladder: &[u64], rows: u64| ladder.iter().copied().filter(|rung| *rung >= rows).min();
    let mut range: Option<(u64, u64)> = None;
    let mut from = 1;
    for edge in edges {
        if serving(left, edge) != serving(right, edge) {
            range = Some((range.map_or(from, |(first, _)| first), edge));
        }
        from = edge + 1;
    }
    range
}

fn with(label: &str, profile_rows: &[u64], capacity: Option<u64>) -> Subject<'static> {
    let mut subject = Subject::new(label, Kind::Bundle);
    subject.artifact = Some(Artifact {
        sections: Some([("engine_plan".to_owned(), "5a".repeat(32))].into_iter().collect()),
        profile_rows: Some(profile_rows.to_vec()),
        capacity_rows: capacity,
        ..Artifact::default()
    });
    subject
}

fn ladder_controls() -> Vec<Control> {
    let doubling = [32, 64, 128, 256, 512];
    vec![
        Control::planted(
            "a dense ladder from 32 against one from the budget",
            Evidence::pair(with("dense", &doubling, None), with("tri", &[128, 256, 512], None)),
            Outcome::Void,
            "rows 1 to 64",
        ),
        Control::planted(
            "one rung more at the end",
            Evidence::pair(
                with("dense", &doubling, None),
                with("long", &[32, 64, 128, 256, 512, 1024], None),
            ),
            Outcome::Void,
            "rows 513 to 1024",
        ),
        Control::clean(
            "one ladder",
            Evidence::pair(with("dense", &doubling, None), with("tri", &doubling, None)),
            "5 profiles",
        ),
    ]
}

/// "The capacity never mattered."
pub(super) static CAPACITY: Audit = Audit {
    number: 4,
    slug: "capacity-inactive",
    title: "two capacities were called alike because they were never reached",
    compares: "live rows over the whole run with both capacities, on one engine and one ladder",
    needs: "`capacity_rows` of both sides and the rows of a trace",
    gate: false,
    each: None,
    pair: Some(capacity),
    whole: None,
    controls: capacity_controls,
};

fn capacity(pair: &Pair<'_, '_>) -> Vec<Note> {
    let rows =
        |side: &Subject<'_>| side.artifact.as_ref().and_then(|artifact| artifact.capacity_rows);
    if rows(pair.left).is_none() && rows(pair.right).is_none() {
        return Vec::new();
    }
    let (left, right) = match pair.both("capacity_rows", rows) {
        Ok(both) => both,
        Err(note) => return vec![note],
    };
    if left == right {
        return vec![Note::pass(format!("both capacities are {left} rows"))];
    }
    let said = format!("capacities of {left} and {right} rows");
    if let Ok(parts) = engine::differing(pair)
        && !parts.is_empty()
    {
        return vec![
            Note::void(format!("{said}, and the engines differ: {}", parts.join("; ")))
                .remedy("compare on one engine"),
        ];
    }
    if let (Some(l), Some(r)) = (profile(pair.left), profile(pair.right))
        && let Some((first, last)) = affected(l, r)
    {
        return vec![
            Note::void(format!("{said}, and the ladders differ for rows {first} to {last}"))
                .remedy("compare on one ladder"),
        ];
    }
    let Some(most) = [pair.left, pair.right].into_iter().filter_map(most_rows).max() else {
        return vec![Note::no_evidence(format!(
            "{said}; `rows_after` over the whole run is not recorded"
        ))];
    };
    if most >= left.min(right) {
        let note =
            Note::void(format!("{said}; the run held {most} rows: the smaller one was reached"));
        return vec![note.remedy("give both sides one capacity")];
    }
    vec![Note::pass(format!("{said}; the run held {most} rows at most"))]
}

/// Most live rows over the whole run.
fn most_rows(subject: &Subject<'_>) -> Option<u64> {
    let steps = subject.trace.as_ref()?;
    let after = steps.steps.rows_after.iter().chain(&steps.steps.rows_before).max().copied();
    let before = subject.events.iter().flatten().map(|event| event.rows_before).max();
    after.max(before).map(u64::from)
}

fn capacity_controls() -> Vec<Control> {
    let side = |label: &str, capacity: u64, held: u32| {
        let mut side = with(label, &[32, 64, 128], Some(capacity));
        side.kind = Kind::Run;
        side.trace = Some(super::facts::Trace::made(held, &[]));
        side
    };
    let mut other = side("tri", 96, 40);
    if let Some(sections) = other.artifact.as_mut().and_then(|artifact| artifact.sections.as_mut())
    {
        sections.insert("engine_plan".to_owned(), "6b".repeat(32));
    }
    vec![
        Control::planted(
            "a prompt shorter than the capacity and a run longer than it",
            Evidence::pair(side("dense", 128, 100), side("tri", 96, 100)),
            Outcome::Void,
            "the run held 100 rows",
        ),
        Control::planted(
            "short enough, but on two engines",
            Evidence::pair(side("dense", 128, 40), other),
            Outcome::Void,
            "the engines differ",
        ),
        Control::clean(
            "one engine, short enough",
            Evidence::pair(side("dense", 128, 40), side("tri", 96, 40)),
            "held 40 rows at most",
        ),
    ]
}

#[cfg(test)]
mod tests {
    use super::affected;

    #[test]
    fn the_range_is_what_another_rung_serves() {
        // 32 serves 1..=32 on the left; on the right 64 does. From 33 on both take 64, then 128.
        assert_eq!(affected(&[32, 64, 128], &[64, 128]), Some((1, 32)));
        assert_eq!(affected(&[64, 128], &[64, 96, 128]), Some((65, 96)));
        assert_eq!(affected(&[64], &[64]), None);
        assert_eq!(affected(&[], &[64]), Some((1, 64)));
    }
}
