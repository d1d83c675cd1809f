//! Audits of runs under a cache policy: the control beside them, and when they compacted.

use lockstep_traces::{EventRow, Manifest};

use super::facts::{Evidence, Kind, RowsBySample, Trace};
use super::{Audit, Control, Note, Outcome, Pair, Subject, engine};
use crate::positions::Rules;

/// A claim about a policy needs the same engine with the policy off.
pub(super) static SAME_ENGINE_CONTROL: Audit = Audit {
    number: 7,
    slug: "policy-control",
    title: "a policy is blamed without a run of the same engine that has it switched off",
    compares: "fed tokens and logits before the first compaction with a dense run of the same engine",
    needs: "a dense and a compressed run with their rows",
    gate: false,
    each: None,
    pair: Some(control),
    whole: None,
    controls: control_controls,
};

fn dense(subject: &Subject<'_>) -> bool {
    subject.text("policy.kind").as_deref() == Some("dense")
}

fn control(pair: &Pair<'_, '_>) -> Vec<Note> {
    if pair.lineage() || pair.policies_differ() != Some(true) {
        return Vec::new();
    }
    let (one, other) =
        if dense(pair.right) { (pair.right, pair.left) } else { (pair.left, pair.right) };
    let same = |candidate: &Subject<'_>| {
        let pair = Pair { left: candidate, right: other, evidence: pair.evidence };
        matches!(engine::differing(&pair), Ok(parts) if parts.is_empty())
    };
    let candidates = std::iter::once(one).chain(&pair.evidence.subjects);
    let Some(control) = candidates.filter(|subject| dense(subject)).find(|subject| same(subject))
    else {
        return vec![match engine::differing(pair) {
            Err(note) => note,
            Ok(_) => Note::void(format!("no dense run of the engine of {} was given", other.label))
                .remedy("record it with the policy switched off and nothing else changed"),
        }];
    };
    let (Some(left), Some(right)) = (&control.trace, &other.trace) else {
        let label = if control.trace.is_none() { &control.label } else { &other.label };
        return vec![Note::missing("rows", label)];
    };
    let labels = [control.label.as_str(), other.label.as_str()];
    before_compaction(left, right, other).into_iter().map(|note| note.of(labels)).collect()
}

/// Rows before the first compaction of each sample: fed tokens, and hashes or stored logits.
fn before_compaction(
    dense: &Trace<'_>,
    compressed: &Trace<'_>,
    subject: &Subject<'_>,
) -> Vec<Note> {
    let (l, r) = (&dense.steps, &compressed.steps);
    let hashes = dense.manifest.logits_hash_seeds.is_some()
        && dense.manifest.logits_hash_seeds == compressed.manifest.logits_hash_seeds;
    let (mut rows, mut missing) = (0_u64, 0_u64);
    let lefts = RowsBySample::of(l);
    let mut ended = None;
    for row in 0..r.len {
        let Some(id) = r.sample_id(row) else { continue };
        let position = r.position.get(row).copied().unwrap_or_default();
        let first = subject.events_of(id).map(|event| event.absolute_position).min();
        // The row that reaches N compacts after its own logits are made, so it still belongs to the dense part.
        if first.is_some_and(|first| position + 1 >= first) || ended == Some(id) {
            ended = Some(id);
            continue;
        }
        let Some(other) = lefts.at(id, position) else {
            missing += 1;
            continue;
        };
        if l.token_id.get(other) != r.token_id.get(row) {
            return vec![differs("fed tokens", id, position, first)];
        }
        let equal = if hashes {
            l.logits_hash.get(other) == r.logits_hash.get(row)
        } else {
            (l.ids_of(other), l.logits_of(other)) == (r.ids_of(row), r.logits_of(row))
        };
        if !equal {
            return vec![differs("logits", id, position, first)];
        }
        rows += 1;
    }
    if rows == 0 {
        return vec![Note::no_evidence(
            "no row before a compaction is on both sides: `rows` of none were compared",
        )];
    }
    let what = if hashes { "tokens and logits hashes" } else { "tokens and stored logits" };
    let lacking =
        if missing > 0 { format!("; {missing} rows are on one side only") } else { String::new() };
    vec![Note::pass(format!("{what} of {rows} rows before the first compactions agree{lacking}"))]
}

fn differs(what: &str, id: &str, position: u32, first: Option<u32>) -> Note {
    let compaction = first.map_or_else(
        || "and the run never compacts".to_owned(),
        |first| format!("before the first compaction at position {}", first.saturating_sub(1)),
    );
    Note::void(format!(
        "{what} differ at position {position}, {compaction}: the policy is not what parts them"
    ))
    .at(format!("{id}, position {position}"))
    .remedy("find what else differs between the two runs (`lockstep diff --manifest`)")
}

fn control_controls() -> Vec<Control> {
    let run = |policy: &str, compacts: &[u32], odd: Option<u32>| {
        let mut run = Subject::new(policy, Kind::Run).with("policy.kind", policy, "flag");
        run.made.binary_sha256 = Some("0a".repeat(32));
        let mut trace = Trace::made(40, compacts);
        if let Some(odd) = odd
            && let Some(logit) = trace.steps.to_mut().top_logits.get_mut(odd as usize * 2)
        {
            *logit += 0.5;
        }
        run.events = Some(trace.events.to_vec());
        run.trace = Some(trace);
        run
    };
    let other_engine = || {
        let mut run = run("dense", &[], None);
        run.made.binary_sha256 = Some("0b".repeat(32));
        run
    };
    vec![
        Control::planted(
            "logits part ten rows before the first compaction",
            Evidence::pair(run("dense", &[], None), run("triattention", &[32], Some(21))),
            Outcome::Void,
            "logits differ at position 21",
        ),
        Control::planted(
            "the only dense run is of another engine",
            Evidence::pair(other_engine(), run("triattention", &[32], None)),
            Outcome::Void,
            "no dense run of the engine",
        ),
        Control::clean(
            "equal up to the compaction and different from there",
            Evidence::pair(run("dense", &[], None), run("triattention", &[32], Some(32))),
            "of 31 rows before",
        ),
    ]
}

/// The first compaction comes when the settings say.
pub(super) static TRIGGER: Audit = Audit {
    number: 9,
    slug: "trigger",
    title: "the first compaction is not where the settings put it",
    compares: "position of the first compaction with budget, divide length and prompt length under the rule set in force",
    needs: "`policy.kv_budget`, `policy.divide_length`, `policy.count_prompt_tokens` and the compactions of a run",
    gate: false,
    each: Some(trigger),
    pair: None,
    whole: None,
    controls: trigger_controls,
};

fn rules(subject: &Subject<'_>) -> Rules {
    let mut manifest = Manifest::new(lockstep_traces::manifest::Producer::default(), "unknown");
    manifest.config = subject.settings.clone().unwrap_or_default();
    Rules::of(&manifest)
}

fn trigger(subject: &Subject<'_>) -> Vec<Note> {
    let (Some(events), Some(samples)) = (&subject.events, &subject.samples) else {
        return Vec::new();
    };
    if !subject.kind.is_run() || dense(subject) {
        return Vec::new();
    }
    if subject.text("policy.kind").is_none() {
        return vec![Note::missing("policy.kind", &subject.label)];
    }
    let rules = rules(subject);
    let rows = subject.trace.as_ref().map(|trace| RowsBySample::of(&trace.steps));
    let mut notes = Vec::new();
    for sample in samples {
        let of_sample: Vec<&EventRow> =
            events.iter().filter(|event| event.sample_id == sample.id).collect();
        if let Some(note) =
            of_sample_note(sample, &rules, &of_sample, (rows.as_ref(), &subject.label))
        {
            notes.push(note.at(sample.id.clone()));
        }
    }
    notes
}

/// `None`: the sample's rows are not known and it did not compact.
fn of_sample_note(
    sample: &super::Sample,
    rules: &Rules,
    events: &[&EventRow],
    (rows, label): (Option<&RowsBySample<'_>>, &str),
) -> Option<Note> {
    let Some(prompt) = sample.prompt_tokens else {
        return Some(Note::missing("prompt_tokens", label));
    };
    let before = u32::from(!rules.compacts_before());
    let first = events.iter().min_by_key(|event| event.ordinal);
    let first = first.map(|event| (event.ordinal, event.absolute_position.saturating_sub(before)));
    let last = match first {
        Some((_, position)) => position,
        None => rows?.last_position(&sample.id)?,
    };
    let (mut expected, mut known) = (None, false);
    for position in prompt..=last {
        match rules.due(position.into(), position.into(), prompt.into()) {
            Some(true) => {
                (expected, known) = (Some(position), true);
                break;
            }
            Some(false) => known = true,
            None => {}
        }
    }
    if !known && first.is_none() && last < prompt {
        return Some(Note::pass(format!("the run ends at position {last}, inside the prompt")));
    }
    if !known && first.is_none_or(|(_, position)| position >= prompt) {
        return Some(Note::no_evidence(
            "the trigger is not known: `policy.kv_budget`, `policy.divide_length`, `policy.count_prompt_tokens` or `policy.rule_set` is not recorded",
        ));
    }
    let due = |position: Option<u32>| {
        position.map_or_else(|| "none up to there".to_owned(), |position| position.to_string())
    };
    Some(match (first, expected) {
        (Some((ordinal, _)), _) if ordinal != 1 => Note::no_evidence(format!(
            "the first recorded compaction is number {ordinal}: `compaction 1` is not in the trace"
        )),
        (Some((_, position)), Some(expected)) if position == expected => {
            Note::pass(format!("compaction 1 at position {position}, as configured"))
        }
        (Some((_, position)), expected) => Note::flag(format!(
            "compaction 1 at position {position}, configured: {}",
            due(expected)
        ))
        .remedy("look for an override (audit 8) or prompt rows counted otherwise"),
        (None, Some(expected)) => Note::flag(format!(
            "no compaction though one was due at position {expected}; the run ends at {last}"
        )),
        (None, None) => {
            Note::pass(format!("no compaction was due up to position {last}, none happened"))
        }
    })
}

fn trigger_controls() -> Vec<Control> {
    // Budget 256, divide 64, prompt 41: 320 rows are reached by the row at position 319, or 360 without the prompt.
    let run = |position: u32, counted: bool| {
        let sample = super::Sample { prompt_tokens: Some(41), ..super::Sample::new("s") };
        let mut run = Subject::new("run", Kind::Run)
            .with("policy.kind", "triattention", "flag")
            .with("policy.rule_set", "trt", "flag")
            .with("policy.kv_budget", 256, "flag")
            .with("policy.divide_length", 64, "flag")
            .with("policy.count_prompt_tokens", counted, "flag")
            .with_sample(sample);
        let trace = Trace::made(400, &[position + 1]);
        run.events = Some(trace.events.to_vec());
        run.trace = Some(trace);
        Evidence::one(run)
    };
    vec![
        Control::planted(
            "fires as though the prompt were not counted",
            run(360, true),
            Outcome::Flag,
            "configured: 319",
        ),
        Control::planted("fires a row late", run(320, true), Outcome::Flag, "position 320"),
        Control::clean("prompt counted", run(319, true), "position 319, as configured"),
        Control::clean("prompt not counted", run(360, false), "position 360, as configured"),
    ]
}
