//! Audits of the reference that a run is held against.

use lockstep_traces::{CheckKind, CheckReport, StepColumns, Verdict};

use super::facts::{Evidence, Kind, Reference, RowsBySample, Trace};
use super::{Audit, Control, Note, Outcome, Pair, Subject};

/// Two dtypes.
pub(super) static DTYPE: Audit = Audit {
    number: 22,
    slug: "reference-dtype",
    title: "a split is laid to the engine though the reference computes in another dtype",
    compares: "dtypes of both sides; where they differ and a choice parts, a reference in the same dtype at that row",
    needs: "`dtype` and rows of both sides",
    gate: false,
    each: None,
    pair: Some(dtype),
    whole: None,
    controls: dtype_controls,
};

fn dtype(pair: &Pair<'_, '_>) -> Vec<Note> {
    let (left, right) = match pair.both("dtype", |side| side.engine.dtype.clone()) {
        Ok(both) => both,
        Err(note) => return if pair.left.kind.is_run() { vec![note] } else { Vec::new() },
    };
    if left == right {
        return vec![Note::pass(format!("{left} on both sides"))];
    }
    let told = format!("{left} against {right}");
    let (l, r) = match pair.both("rows", |side| side.trace.as_ref()) {
        Ok(both) => both,
        Err(note) => return vec![note],
    };
    let Some(split) = first_choice(l, r) else {
        return vec![Note::pass(format!("{told}; no choice differs"))];
    };
    let told = format!(
        "{told}; at position {} token {} against {}",
        split.position, split.left, split.right
    );
    let at = format!("{}, position {}", split.sample, split.position);
    // A third trace in the dtype of one side speaks about that side.
    for (side, dtype, choice) in [(pair.right, &right, split.right), (pair.left, &left, split.left)]
    {
        let others = pair.evidence.subjects.iter().filter(|other| {
            other.label != pair.left.label
                && other.label != pair.right.label
                && other.engine.dtype.as_ref() == Some(dtype)
        });
        for other in others {
            let Some(third) = other.trace.as_ref().and_then(|trace| choice_at(trace, &split))
            else {
                continue;
            };
            let note = if third == choice {
                Note::flag(format!(
                    "precision-sensitive: {told}; {} in {dtype} chooses {third} as well as {}",
                    other.label, side.label
                ))
                .remedy("do not lay this split to the engine")
            } else {
                Note::pass(format!("{told}; {} in {dtype} disagrees too with {third}", other.label))
            };
            return vec![note.at(at)];
        }
    }
    vec![
        Note::flag(format!(
            "precision-sensitive: {told}; no reference in the same dtype was given"
        ))
        .at(at)
        .remedy(format!(
            "replay in {right} (`lockstep replay forward --dtype {right}`) and audit with it"
        )),
    ]
}

struct Choice {
    sample: String,
    position: u32,
    left: u32,
    right: u32,
}

/// The first row with equal fed tokens up to it whose largest logit is of another token.
fn first_choice(left: &Trace<'_>, right: &Trace<'_>) -> Option<Choice> {
    let (l, r) = (&left.steps, &right.steps);
    let (lefts, rights) = (RowsBySample::of(l), RowsBySample::of(r));
    let lone = l.sample_ids.len() == 1 && r.sample_ids.len() == 1;
    for id in &l.sample_ids {
        let other = if lone { r.sample_ids.first() } else { Some(id) };
        let Some(other) = other else { continue };
        for row in lefts.rows(id) {
            let position = l.position.get(row).copied()?;
            let Some(twin) = rights.at(other, position) else { continue };
            if l.token_id.get(row) != r.token_id.get(twin) {
                break;
            }
            let (one, two) = (l.argmax.get(row).copied()?, r.argmax.get(twin).copied()?);
            let chosen = |steps: &StepColumns, row| steps.next_token.get(row).copied().flatten();
            // Rows inside the prompt choose nothing.
            if one != two && (chosen(l, row).is_some() || chosen(r, twin).is_some()) {
                return Some(Choice { sample: id.clone(), position, left: one, right: two });
            }
        }
    }
    None
}

fn choice_at(trace: &Trace<'_>, split: &Choice) -> Option<u32> {
    let steps = &trace.steps;
    let row = (0..steps.len).find(|&row| {
        steps.position.get(row) == Some(&split.position)
            && (steps.sample_ids.len() == 1 || steps.sample_id(row) == Some(split.sample.as_str()))
    })?;
    steps.argmax.get(row).copied()
}

fn in_dtype(label: &str, dtype: &str, odd: Option<(usize, u32)>) -> Subject<'static> {
    let mut subject = Subject::new(label, Kind::Run);
    subject.engine.dtype = Some(dtype.to_owned());
    let mut trace = Trace::made(60, &[]);
    if let Some((row, token)) = odd
        && let Some(argmax) = trace.steps.to_mut().argmax.get_mut(row)
    {
        *argmax = token;
    }
    subject.trace = Some(trace);
    subject
}

fn dtype_controls() -> Vec<Control> {
    let three = |third: u32| {
        let mut evidence = Evidence::pair(
            in_dtype("reference", "bf16", None),
            in_dtype("native", "f16", Some((48, 29_985))),
        );
        evidence.subjects.push(in_dtype("reference f16", "f16", Some((48, third))));
        evidence
    };
    vec![
        Control::planted(
            "an fp16 engine against a bf16 reference",
            Evidence::pair(
                in_dtype("reference", "bf16", None),
                in_dtype("native", "f16", Some((48, 29_985))),
            ),
            Outcome::Flag,
            "precision-sensitive: bf16 against f16; at position 48 token 149 against 29985",
        ),
        Control::planted(
            "a reference in fp16 chooses as the engine does",
            three(29_985),
            Outcome::Flag,
            "reference f16 in f16 chooses 29985 as well",
        ),
        Control::clean("a reference in fp16 disagrees too", three(149), "disagrees too with 149"),
        Control::clean(
            "one dtype",
            Evidence::pair(in_dtype("l", "f16", None), in_dtype("r", "f16", Some((48, 5)))),
            "f16 on both sides",
        ),
    ]
}

/// Whose rules?
pub(super) static SELECTOR: Audit = Audit {
    number: 23,
    slug: "reference-selector",
    title: "keep-sets were judged by other selection rules than the run follows",
    compares: "the rule set that a selector check or replay followed with the one that the run names",
    needs: "`selector_id` of a replay or a check of keep-sets, and `policy.rule_set` of the run",
    gate: true,
    each: Some(of_checks),
    pair: Some(of_replay),
    whole: None,
    controls: selector_controls,
};

/// Programs whose selection rules are told apart.
const KNOWN: [&str; 4] = ["trt", "hf", "vllm", "sglang"];

fn of_checks(subject: &Subject<'_>) -> Vec<Note> {
    let checks = subject.checks.iter().filter(|check| check.kind == CheckKind::Selector);
    checks
        .map(|check| {
            let judged = check.detail.get("rule_set").and_then(serde_json::Value::as_str);
            match (judged, subject.text("policy.rule_set")) {
                (None, _) => Note::missing("selector_id", &subject.label),
                (Some(judged), None) if KNOWN.contains(&judged) => {
                    Note::missing("policy.rule_set", &subject.label)
                }
                (Some(judged), run) => judge(judged, run.as_deref().unwrap_or("nothing")),
            }
        })
        .collect()
}

fn of_replay(pair: &Pair<'_, '_>) -> Vec<Note> {
    let selector = |side: &Subject<'_>| {
        side.reference.as_ref().and_then(|reference| reference.selector_id.clone())
    };
    let (judged, run) = match (selector(pair.left), selector(pair.right)) {
        (Some(judged), _) => (judged, pair.right),
        (None, Some(judged)) => (judged, pair.left),
        (None, None) => return Vec::new(),
    };
    match run.text("policy.rule_set") {
        _ if !KNOWN.contains(&judged.as_str()) => vec![judge(&judged, "")],
        None => vec![Note::missing("policy.rule_set", &run.label)],
        Some(named) => vec![judge(&judged, &named)],
    }
}

fn judge(judged: &str, run: &str) -> Note {
    if !KNOWN.contains(&judged) {
        return Note::void(format!(
            "`{judged}` names no one program: several have selection rules of their own"
        ))
        .remedy(format!("name one of {}", KNOWN.join(", ")));
    }
    if judged == run {
        return Note::pass(format!("`{judged}` was run and `{judged}` was replayed"));
    }
    Note::void(format!("`{judged}` was replayed, the run follows `{run}`"))
        .remedy(format!("lockstep check selector --rule-set {run}"))
}

fn selector_controls() -> Vec<Control> {
    let run = || Subject::new("run", Kind::Run).with("policy.rule_set", "trt", "flag");
    let replay = |selector: &str| {
        let mut replay = Subject::new("replay", Kind::Replay);
        replay.reference =
            Some(Reference { selector_id: Some(selector.to_owned()), ..Reference::default() });
        Evidence::pair(run(), replay)
    };
    let checked = |rules: &str| {
        let mut run = run();
        run.checks.push(CheckReport {
            kind: CheckKind::Selector,
            verdict: Verdict::Identical,
            compared: 8,
            different: 0,
            skipped: 0,
            unit: "keep-sets".to_owned(),
            findings: Vec::new(),
            limits: Vec::new(),
            detail: serde_json::json!({ "rule_set": rules }),
        });
        Evidence::one(run)
    };
    vec![
        Control::planted("\"upstream\"", replay("upstream"), Outcome::Void, "names no one program"),
        Control::planted(
            "another program's rules",
            replay("hf"),
            Outcome::Void,
            "`hf` was replayed, the run follows `trt`",
        ),
        Control::planted(
            "a check by another rule set",
            checked("vllm"),
            Outcome::Void,
            "the run follows `trt`",
        ),
        Control::clean("its own rules", replay("trt"), "`trt` was replayed"),
        Control::clean("a check by its own rules", checked("trt"), "`trt` was replayed"),
    ]
}
