//! Audits of what a difference between two traces is called.

use super::super::facts::{Evidence, Kind};
use super::super::{Audit, Control, Note, Outcome, Pair};
use super::made::{claimed, dense, traced};
use super::rows::{claims, compared};
use crate::report::{SampleDiff, Split, SplitAt};

/// One first difference where there are four.
pub(super) static ORDER: Audit = Audit {
    number: 35,
    slug: "structural-first",
    title: "a numeric difference is called the first though rows or compactions part earlier",
    compares: "the first structural, logit, argmax and token differences, each on its own, with the claims about the first difference",
    needs: "rows of both sides",
    gate: false,
    each: None,
    pair: Some(order),
    whole: None,
    controls: order_controls,
};

fn order(pair: &Pair<'_, '_>) -> Vec<Note> {
    let Some(report) = compared(pair) else { return Vec::new() };
    if report.counts.rows_compared == 0 {
        return vec![Note::no_evidence("no row of the two sides could be compared")];
    }
    let splits = &report.splits;
    let at = |split: &Option<SplitAt>| {
        split.as_ref().map_or_else(|| "none".to_owned(), |split| split.position.to_string())
    };
    let said = format!(
        "first differences: structural {}, logit {}, argmax {}, token {}",
        at(&splits.structural),
        at(&splits.logit),
        at(&splits.argmax),
        at(&splits.token)
    );
    let labels = [pair.left.label.as_str(), pair.right.label.as_str()];
    let structural = splits.structural.as_ref().map(|split| split.position);
    for claim in claims(pair.evidence, &["first-difference"], &labels) {
        if let (Some((position, _)), Some(first)) = (claim.scope.window, structural)
            && first < position
        {
            let note =
                Note::flag(format!("{said}; claim `{}` names position {position}", claim.id));
            return vec![
                note.at(format!("position {first}")).remedy("report the four firsts apart"),
            ];
        }
    }
    vec![Note::pass(said)]
}

/// Two sides that part in rows at 12, in logits at 13 and in tokens at 16.
fn parting() -> Evidence<'static> {
    let mut rows = dense(0..20);
    for row in &mut rows {
        if row.position >= 12 {
            row.rows_after -= 4;
        }
        if row.position > 12 {
            row.rows_before -= 4;
            if let Some(logit) = row.top_logits.first_mut() {
                *logit -= 1.0;
            }
        }
        if row.position >= 16 {
            row.next_token = Some(7);
            row.argmax = 7;
            row.top_logits = vec![10.0, 12.0];
            row.top_ids.swap(0, 1);
            row.top_logits.swap(0, 1);
        }
        if row.position > 16 {
            row.token_id = 7;
        }
    }
    let right = traced("target", Kind::Trace, &rows, Vec::new());
    Evidence::pair(traced("baseline", Kind::Trace, &dense(0..20), Vec::new()), right)
}

fn order_controls() -> Vec<Control> {
    vec![
        Control::planted(
            "the token split is called the first difference",
            claimed(parting(), "first-difference", Some((16, 16))),
            Outcome::Flag,
            "structural 12, logit 13, argmax 16, token 16",
        ),
        Control::clean(
            "the row count is called the first difference",
            claimed(parting(), "first-difference", Some((12, 12))),
            "structural 12",
        ),
        Control::clean("nothing is claimed", parting(), "token 16"),
    ]
}

/// Equal logits are no preference.
pub(super) static TIE: Audit = Audit {
    number: 36,
    slug: "tie-as-split",
    title: "two sides chose between equal logits: a tie, not a split",
    compares: "the two largest logits of both sides at every row at which they chose otherwise, in ULPs of the declared dtype",
    needs: "rows of both sides",
    gate: false,
    each: None,
    pair: Some(tie),
    whole: None,
    controls: tie_controls,
};

fn tie(pair: &Pair<'_, '_>) -> Vec<Note> {
    let Some(report) = compared(pair) else { return Vec::new() };
    if report.counts.rows_compared == 0 {
        return Vec::new();
    }
    for sample in &report.samples {
        if let Some(note) = tied(sample) {
            return vec![note];
        }
    }
    let rows = report.ties.rows;
    vec![Note::pass(format!("at none of {rows} rows did the sides choose between equal logits"))]
}

fn tied(sample: &SampleDiff) -> Option<Note> {
    let remedy = "call it a tie; look for the first split behind it";
    if let Some(flip) = sample.ties.entries.iter().find(|entry| entry.chose_otherwise) {
        let text = format!(
            "the sides chose otherwise between equal logits (ids {:?} against {:?}) at row {}: a tie, not a split",
            flip.left_ids, flip.right_ids, flip.position
        );
        return Some(
            Note::flag(text)
                .at(format!("{} position {}", sample.sample_id, flip.position))
                .remedy(remedy),
        );
    }
    if let Some(parting) = &sample.tie_parting {
        let text = format!(
            "the streams part at row {} between exactly equal logits: a tie, not a split",
            parting.position
        );
        return Some(
            Note::flag(text)
                .at(format!("{} position {}", sample.sample_id, parting.position))
                .remedy(remedy),
        );
    }
    let near = [&sample.splits.argmax, &sample.splits.token]
        .into_iter()
        .flatten()
        .find(|split| split.near_tie)?;
    same_two(near).then(|| {
        let text = format!(
            "the sides part at row {} between the same two ids, {:.2} ULP of {} apart: within rounding",
            near.position, near.margin_ulps.unwrap_or(0.0), near.ulp_dtype
        );
        Note::flag(text).at(format!("{} position {}", sample.sample_id, near.position)).remedy("call it a near tie; it shows no defect")
    })
}

/// Both sides rank the same two ids on top.
fn same_two(split: &Split) -> bool {
    let two = |view: &Option<crate::report::RowView>| -> Vec<u32> {
        let mut ids: Vec<u32> =
            view.iter().flat_map(|view| view.top.iter().take(2)).map(|entry| entry.id).collect();
        ids.sort_unstable();
        ids
    };
    let left = two(&split.left);
    left.len() == 2 && left == two(&split.right)
}

fn tie_controls() -> Vec<Control> {
    let side = |label: &str, ids: [u32; 2], logits: [f32; 2]| {
        let mut rows = dense(0..10);
        if let Some(row) = rows.get_mut(6) {
            row.top_ids = ids.to_vec();
            row.top_logits = logits.to_vec();
            row.argmax = ids[0];
            row.next_token = Some(ids[0]);
        }
        for row in rows.iter_mut().skip(7).take(1) {
            row.token_id = ids[0];
        }
        let mut subject = traced(label, Kind::Trace, &rows, Vec::new());
        if let Some(trace) = &mut subject.trace {
            trace.manifest.to_mut().dtype = Some(lockstep_traces::DType::F16);
        }
        subject
    };
    let pair = |right: [u32; 2], logits: [f32; 2], other: [f32; 2]| {
        Evidence::pair(side("native", [1477, 7942], logits), side("replay", right, other))
    };
    vec![
        Control::planted(
            "equal top logits, another order",
            pair([7942, 1477], [21.5, 21.5], [21.5, 21.5]),
            Outcome::Flag,
            "at row 6",
        ),
        Control::planted(
            "one ULP apart in fp16",
            pair([7942, 1477], [21.5, 21.484_375], [21.5, 21.484_375]),
            Outcome::Flag,
            "1.00 ULP",
        ),
        Control::clean(
            "a split with a margin",
            pair([7942, 1477], [21.5, 18.0], [21.5, 18.0]),
            "at none of",
        ),
        Control::clean(
            "no difference",
            pair([1477, 7942], [21.5, 21.5], [21.5, 21.5]),
            "at none of",
        ),
    ]
}

/// Rows whose inputs differ already.
pub(super) static DEPENDENT: Audit = Audit {
    number: 37,
    slug: "dependent-rows",
    title: "logits are compared at rows whose fed tokens differ already",
    compares: "the first fed token that differs with the rows that claims compare",
    needs: "rows of both sides whose tokens part",
    gate: false,
    each: None,
    pair: Some(dependent),
    whole: None,
    controls: dependent_controls,
};

fn dependent(pair: &Pair<'_, '_>) -> Vec<Note> {
    let Some(report) = compared(pair) else { return Vec::new() };
    let labels = [pair.left.label.as_str(), pair.right.label.as_str()];
    let compared = claims(pair.evidence, &["argmax-split", "logit-split"], &labels);
    let mut notes = Vec::new();
    for sample in &report.samples {
        let Some(from) = sample.dependent_from else { continue };
        let deciding = from.saturating_sub(1);
        let draws = sample.splits.token.as_ref().map_or_else(String::new, draws);
        let said = format!(
            "fed tokens differ from position {from}: {} rows are dependent; row {deciding} decided{draws}",
            sample.rows_dependent
        );
        let late = compared
            .iter()
            .find(|claim| claim.scope.window.is_some_and(|(start, _)| start >= from));
        notes.push(match late {
            Some(claim) => Note::flag(format!(
                "{said}; claim `{}` compares logits from position {} on",
                claim.id,
                claim.scope.window.map_or(0, |window| window.0)
            ))
            .at(format!("{} position {from}", sample.sample_id))
            .remedy("look at the deciding row; what follows has other inputs"),
            None => Note::pass(said),
        });
    }
    notes
}

/// Margin, both choices and the random numbers of the deciding row.
fn draws(split: &Split) -> String {
    let side = |view: &Option<crate::report::RowView>| {
        let Some(view) = view else { return "no row".to_owned() };
        let chosen = view.chosen.map_or_else(|| "?".to_owned(), |id| id.to_string());
        let margin = view.margin.map_or_else(|| "?".to_owned(), |margin| format!("{margin}"));
        let uniform = view.uniform.map_or_else(String::new, |uniform| format!(", u {uniform}"));
        format!("{chosen} (margin {margin}{uniform})")
    };
    format!(" between {} and {}", side(&split.left), side(&split.right))
}

fn dependent_controls() -> Vec<Control> {
    vec![
        Control::planted(
            "argmax and sampled token are said to part at the same row",
            claimed(parting(), "argmax-split", Some((17, 17))),
            Outcome::Flag,
            "fed tokens differ from position 17",
        ),
        Control::clean(
            "the deciding row is named",
            claimed(parting(), "argmax-split", Some((16, 16))),
            "row 16 decided between 117 (margin 8)",
        ),
    ]
}
