//! Audits of dataset rows: the file itself, and which row a sample was.

use super::facts::{Evidence, Kind, Lines};
use super::{Audit, Control, Note, Outcome, Sample, Subject, seeds};

/// A line that is no row.
pub(super) static POLLUTED: Audit = Audit {
    number: 10,
    slug: "polluted-file",
    title: "a file of rows holds lines that are none",
    compares: "each line that is not empty with what a row must be",
    needs: "`lines` of a dataset or benchmark file",
    gate: false,
    each: Some(polluted),
    pair: None,
    whole: None,
    controls: polluted_controls,
};

fn polluted(subject: &Subject<'_>) -> Vec<Note> {
    let Some(lines) = &subject.lines else {
        let of_lines = matches!(subject.kind, Kind::Dataset | Kind::Benchmark);
        return if of_lines { vec![Note::missing("lines", &subject.label)] } else { Vec::new() };
    };
    if let Some((line, what)) = lines.damaged.first() {
        let (bad, all) = (lines.damaged.len(), lines.read);
        let note = Note::void(format!("{bad} of {all} lines are no rows; line {line}: {what}"));
        return vec![
            note.at(format!("line {line}")).remedy("remove the line, or write the file again"),
        ];
    }
    if lines.read == 0 {
        return vec![Note::void("the file holds no row")];
    }
    vec![Note::pass(format!("{} lines are rows", lines.read))]
}

fn polluted_controls() -> Vec<Control> {
    let file = |damaged: &[(u64, &str)]| {
        let mut file = Subject::new("aime25_09.jsonl", Kind::Dataset);
        let damaged = damaged.iter().map(|(line, what)| (*line, (*what).to_owned())).collect();
        file.lines = Some(Lines { read: 2, damaged });
        Evidence::one(file)
    };
    vec![
        Control::planted(
            "a progress bar on the first line",
            file(&[(1, "not a JSON object: `Generating test split: 100%`")]),
            Outcome::Void,
            "line 1: not a JSON object",
        ),
        Control::clean("two rows", file(&[]), "2 lines are rows"),
    ]
}

/// A sample that was taken out of its file has lost its row number.
pub(super) static ROW_INDEX: Audit = Audit {
    number: 14,
    slug: "row-index",
    title: "a sample run alone was drawn with another seed than in the full run",
    compares: "effective seed (or else row index) of each sample in the run of most samples with the same sample elsewhere",
    needs: "`effective_seed` or `row_index` of a sample in a full and in a smaller run",
    gate: false,
    each: None,
    pair: None,
    whole: Some(row_index),
    controls: row_index_controls,
};

fn row_index(evidence: &Evidence<'_>) -> Vec<Note> {
    let size = |subject: &&Subject<'_>| subject.samples.as_ref().map_or(0, Vec::len);
    let runs = || evidence.subjects.iter().filter(|subject| subject.kind.is_run());
    let Some(full) = runs().max_by_key(size).filter(|full| size(full) > 1) else {
        return Vec::new();
    };
    let smaller = runs().filter(|run| size(run) < size(&full));
    let mut notes = Vec::new();
    for run in smaller {
        for sample in run.samples.iter().flatten() {
            if let Some(whole) = full.sample(&sample.id) {
                let note = extracted((full, whole), (run, sample));
                notes
                    .push(note.at(sample.id.clone()).of([full.label.as_str(), run.label.as_str()]));
            }
        }
    }
    notes
}

fn extracted(
    (full, whole): (&Subject<'_>, &Sample),
    (run, alone): (&Subject<'_>, &Sample),
) -> Note {
    let index = |sample: &Sample| sample.seed_index.or(sample.row_index);
    if full.greedy() == Some(true) && run.greedy() == Some(true) {
        return Note::pass("both take the largest logit: the row index is without effect");
    }
    let words = |index: Option<u64>| {
        index.map_or_else(|| "not recorded".to_owned(), |index| index.to_string())
    };
    let told =
        format!("row index {} in the full run, {} alone", words(index(whole)), words(index(alone)));
    match (seeds::effective(full, whole), seeds::effective(run, alone)) {
        (Some(l), Some(r)) if l == r => Note::pass(format!("effective seed {l} in both; {told}")),
        (Some(l), Some(r)) => {
            Note::void(format!("effective seed {l} in the full run, {r} alone; {told}"))
                .remedy(format!("run the sample alone with an effective seed of {l}"))
        }
        _ => match (index(whole), index(alone)) {
            (Some(l), Some(r)) if l == r => Note::pass(told),
            (Some(_), Some(_)) => {
                Note::void(told).remedy("give the extracted row the index that it had in its file")
            }
            _ => Note::no_evidence(format!(
                "`effective_seed` is not recorded in both, nor `row_index`: {told}"
            )),
        },
    }
}

fn row_index_controls() -> Vec<Control> {
    let row = |id: &str, base: u64, index: u64| Sample {
        base_seed: Some(base),
        seed_index: Some(index),
        effective_seed: Some(base + index),
        ..Sample::new(id)
    };
    let sampled =
        |label: &str| Subject::new(label, Kind::Run).with("sampling.temperature", 0.6, "flag");
    let full = || {
        sampled("full").with_sample(row("aime25_8", 1234, 8)).with_sample(row("aime25_9", 1234, 9))
    };
    let alone = |base, index| {
        Evidence::all(vec![full(), sampled("alone").with_sample(row("aime25_9", base, index))])
    };
    let only_rows = |index| {
        let of = |id: &str, index| Sample { row_index: Some(index), ..Sample::new(id) };
        let full = sampled("full").with_sample(of("a", 8)).with_sample(of("b", 9));
        Evidence::all(vec![full, sampled("alone").with_sample(of("b", index))])
    };
    vec![
        Control::planted(
            "row 9 became row 0",
            alone(1234, 0),
            Outcome::Void,
            "effective seed 1243 in the full run, 1234 alone",
        ),
        Control::planted(
            "only the row numbers are known",
            only_rows(0),
            Outcome::Void,
            "row index 9 in the full run, 0 alone",
        ),
        Control::clean("the index was kept", alone(1234, 9), "effective seed 1243 in both"),
        Control::clean("the base makes up for it", alone(1243, 0), "effective seed 1243 in both"),
    ]
}
