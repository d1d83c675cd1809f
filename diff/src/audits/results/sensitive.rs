//! Audit of choices that rounding can turn.

use lockstep_traces::DType;

use super::super::facts::{Evidence, Kind};
use super::super::{Audit, Control, Note, Outcome, Pair, Subject};
use super::made::{dense, row, traced};
use super::rows::compared;
use crate::report::Split;

/// A choice that rounding can turn.
pub(super) static SENSITIVE: Audit = Audit {
    number: 41,
    slug: "sampling-sensitive",
    title: "the tokens part where one ULP in one logit is enough to turn the choice",
    compares: "the margin of the deciding row, or the distance of its random number to the nearest edge, with what one ULP moves",
    needs: "rows of both sides whose tokens part; of sampled runs the random number and all logits that the sampler sees",
    gate: false,
    each: None,
    pair: Some(sensitive),
    whole: None,
    controls: sensitive_controls,
};

fn sensitive(pair: &Pair<'_, '_>) -> Vec<Note> {
    let Some(report) = compared(pair) else { return Vec::new() };
    let mut notes = Vec::new();
    for sample in &report.samples {
        let Some(split) = &sample.splits.token else { continue };
        let place = format!("{} position {}", sample.sample_id, split.position);
        let note = match (pair.left.greedy(), pair.right.greedy()) {
            (Some(false), _) | (_, Some(false)) => drawn(pair, split),
            _ => chosen(split),
        };
        notes.push(note.at(place));
    }
    notes
}

fn chosen(split: &Split) -> Note {
    let Some(steps) = split.margin_ulps else {
        return Note::no_evidence("the gap between the two choices is not recorded on both sides");
    };
    let said = format!(
        "the choices are {steps:.2} ULP of {} apart at row {}",
        split.ulp_dtype, split.position
    );
    if steps <= 1.0 {
        return Note::flag(format!("sampling-sensitive: {said}"))
            .remedy("count it as rounding unless a same-dtype reference says otherwise");
    }
    Note::pass(said)
}

/// A draw by cumulative sums: u against the nearest edge. One ULP d in one logit moves a sum of softmax probabilities at
/// temperature T by at most p(1-p)d/T, which is at most d/(4T).
fn drawn(pair: &Pair<'_, '_>, split: &Split) -> Note {
    let sides = [(pair.left, &split.left), (pair.right, &split.right)];
    let mut least: Option<(f64, f64)> = None;
    for (subject, view) in sides {
        let Some(found) = view.as_ref().and_then(|view| distance(subject, view, &split.ulp_dtype))
        else {
            continue;
        };
        if least.is_none_or(|(distance, _)| found.0 < distance) {
            least = Some(found);
        }
    }
    match least {
        None => Note::no_evidence(
            "`uniform`, the temperature or logits that the sampler sees are not recorded, or the draw is no cumulative sum",
        ),
        Some((distance, reach)) => {
            let said = format!(
                "the random number lies {distance:.2e} from the nearest edge, one ULP moves an edge by up to {reach:.2e}"
            );
            if distance <= reach {
                Note::flag(format!("sampling-sensitive: {said}"))
                    .remedy("count it as rounding unless a same-dtype reference says otherwise")
            } else {
                Note::pass(said)
            }
        }
    }
}

/// Distance of u to the nearest edge and how far one ULP moves an edge; `None` unless the sampler adds probabilities up in
/// order of size over ids that are all stored.
fn distance(
    subject: &Subject<'_>,
    view: &crate::report::RowView,
    dtype: &str,
) -> Option<(f64, f64)> {
    let cumulative =
        matches!(subject.text("sampling.sampler").as_deref(), Some("xorshift" | "top_k"));
    let temperature = subject.number("sampling.temperature").filter(|value| *value > 0.0)?;
    let seen = usize::try_from(subject.count("sampling.top_k")?).ok()?;
    let uniform = f64::from(view.uniform?);
    if !cumulative || seen == 0 || seen > view.top.len() {
        return None;
    }
    let logits: Option<Vec<f64>> =
        view.top.iter().take(seen).map(|entry| entry.logit.map(f64::from)).collect();
    let logits = logits?;
    let largest = logits.first().copied()?;
    let weights: Vec<f64> =
        logits.iter().map(|logit| ((logit - largest) / temperature).exp()).collect();
    let total: f64 = weights.iter().sum();
    let mut sum = 0.0;
    let mut nearest = f64::INFINITY;
    for weight in weights.iter().take(seen - 1) {
        sum += weight / total;
        nearest = nearest.min((uniform - sum).abs());
    }
    let known = [DType::F32, DType::F16, DType::Bf16, DType::F64];
    let dtype = known.into_iter().find(|known| known.name() == dtype)?;
    let step = crate::ulp::ulp(dtype, largest)?;
    nearest.is_finite().then_some((nearest, step / (4.0 * temperature)))
}

fn sensitive_controls() -> Vec<Control> {
    let side = |label: &str, chosen: u32, logits: [f32; 2], uniform: Option<f32>| {
        let mut rows = dense(0..9);
        if let Some(last) = rows.get_mut(6) {
            *last = lockstep_traces::StepRow {
                next_token: Some(chosen),
                top_ids: vec![5, 6],
                top_logits: logits.to_vec(),
                argmax: if logits[0] >= logits[1] { 5 } else { 6 },
                uniform,
                ..row(6)
            };
        }
        if let Some(fed) = rows.get_mut(7) {
            fed.token_id = chosen;
        }
        let mut subject = traced(label, Kind::Run, &rows, Vec::new());
        if let Some(trace) = &mut subject.trace {
            let manifest = trace.manifest.to_mut();
            manifest.dtype = Some(DType::F16);
            if uniform.is_some() {
                manifest.set("sampling.temperature", 1.0, "flag");
            }
        }
        match uniform {
            None => subject,
            Some(_) => subject
                .with("sampling.sampler", "xorshift", "flag")
                .with("sampling.temperature", 1.0, "flag")
                .with("sampling.top_k", 2, "flag"),
        }
    };
    let greedy = |gap: f32| {
        let left = side("left", 5, [16.0 + gap, 16.0], None);
        let mut right = side("right", 6, [16.0, 16.0 + gap], None);
        if let Some(trace) = &mut right.trace {
            let steps = trace.steps.to_mut();
            if let (Some(ids), Some(logits)) =
                (steps.top_ids.get_mut(12..14), steps.top_logits.get_mut(12..14))
            {
                ids.reverse();
                logits.reverse();
            }
        }
        Evidence::pair(left, right)
    };
    // Logits 16 and 16: the only edge is at 1/2; fp16 has steps of 1/64 there, an edge moves by 1/256.
    let sampled = |u: f32| {
        Evidence::pair(
            side("left", 5, [16.0, 16.0], Some(u)),
            side("right", 6, [16.0, 16.0], Some(u)),
        )
    };
    vec![
        Control::planted("one step of fp16", greedy(0.015_625), Outcome::Flag, "1.00 ULP"),
        Control::planted(
            "the draw falls beside the edge",
            sampled(0.499),
            Outcome::Flag,
            "1.00e-3 from the nearest edge",
        ),
        Control::clean("a clear preference", greedy(4.0), "ULP of f16 apart at row 6"),
        Control::clean(
            "the draw falls far from the edge",
            sampled(0.25),
            "2.50e-1 from the nearest edge",
        ),
    ]
}
