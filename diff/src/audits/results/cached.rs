//! Audit of outputs that another model wrote and a cache served.

use super::super::facts::{Evidence, Kind};
use super::super::{Audit, Control, Note, Outcome, Pair, Sample, Subject};

/// Results of a model that did not run.
pub(super) static CACHED: Audit = Audit {
    number: 64,
    slug: "cached-outputs",
    title: "outputs are those of another model, served from a cache",
    compares: "texts and times of each sample of both sides, where their models differ; equal text alone is a hint, equal times are proof",
    needs: "texts with times and the model of both sides",
    gate: false,
    each: None,
    pair: Some(cached),
    whole: None,
    controls: cached_controls,
};

/// Model of a row: its own, else the weights of its side.
fn model(subject: &Subject<'_>, sample: &Sample) -> Option<String> {
    let weights = subject
        .engine
        .weights
        .as_ref()
        .map(|files| files.values().cloned().collect::<Vec<_>>().join(" "));
    sample.model.clone().or(weights)
}

/// Bits of every time of a row: time stamp, decode, prefill, wall.
fn times(sample: &Sample) -> Vec<Option<u64>> {
    [sample.recorded_at, sample.decode_seconds, sample.prefill_seconds, sample.wall_seconds]
        .into_iter()
        .map(|time| time.map(f64::to_bits))
        .collect()
}

fn cached(pair: &Pair<'_, '_>) -> Vec<Note> {
    let (mut seen, mut hints, mut same_model, mut copied) = (0, 0, 0, Vec::new());
    for (left, right) in pair.samples() {
        let (Some(l), Some(r)) = (&left.text, &right.text) else { continue };
        if times(left).iter().all(Option::is_none) || times(right).iter().all(Option::is_none) {
            continue;
        }
        let Some((own, other)) = model(pair.left, left).zip(model(pair.right, right)) else {
            continue;
        };
        seen += 1;
        match (own == other, l == r, times(left) == times(right)) {
            (true, _, _) => same_model += 1,
            (false, true, true) => copied.push(right.id.as_str()),
            (false, true, false) => hints += 1,
            (false, false, _) => {}
        }
    }
    if seen == 0 {
        return Vec::new();
    }
    if !copied.is_empty() {
        let text = format!(
            "{} of {seen} rows have text and times of the other side though the models differ: they were copied; a score mixes two models",
            copied.len()
        );
        return vec![
            Note::void(text)
                .at(copied.join(", "))
                .remedy("drop the cache and run again; key it by the model's hash"),
        ];
    }
    let hint = if hints > 0 {
        format!("; {hints} rows have equal text and other times, which may be chance")
    } else {
        String::new()
    };
    vec![Note::pass(if same_model == seen {
        format!("{seen} rows of one model")
    } else {
        format!("none of {seen} rows has text and times of the other model{hint}")
    })]
}

fn cached_controls() -> Vec<Control> {
    let side = |label: &str, sha: &str, rows: &[(&str, f64)]| {
        let mut subject = Subject::new(label, Kind::Benchmark);
        for (at, (text, time)) in rows.iter().enumerate() {
            subject = subject.with_sample(Sample {
                text: Some((*text).to_owned()),
                recorded_at: Some(*time),
                model: Some(sha.to_owned()),
                ..Sample::new(format!("q{at}"))
            });
        }
        subject
    };
    let first =
        || side("run_a", "aaa1", &[("text 0", 1000.0), ("text 1", 1001.0), ("text 2", 1002.0)]);
    let pair = |sha: &str, rows: &[(&str, f64)]| Evidence::pair(first(), side("run_b", sha, rows));
    vec![
        Control::planted(
            "two rows of three were served",
            pair("bbb2", &[("text 0", 1000.0), ("text 1", 1001.0), ("text three", 2002.0)]),
            Outcome::Void,
            "q0, q1",
        ),
        Control::clean(
            "equal text, other times",
            pair("bbb2", &[("text 0", 2000.0), ("other", 2001.0), ("text 2", 2002.0)]),
            "2 rows have equal text and other times",
        ),
        Control::clean(
            "equal times, other text",
            pair("bbb2", &[("x", 1000.0), ("y", 1001.0), ("z", 1002.0)]),
            "none of 3 rows",
        ),
        Control::clean(
            "the same model",
            pair("aaa1", &[("text 0", 1000.0), ("text 1", 1001.0), ("text 2", 1002.0)]),
            "3 rows of one model",
        ),
    ]
}
