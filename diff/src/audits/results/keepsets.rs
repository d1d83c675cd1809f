//! Audits of keep-sets against the selector's rules, and of what such a comparison can show.

use lockstep_traces::{CheckKind, CheckReport, Verdict};
use serde_json::Value;

use super::super::facts::{Dump, Evidence, Kind};
use super::super::{Audit, Control, Note, Outcome, Pair, Sample, Subject};
use super::dumps::of_kind;
use super::made::claimed;
use super::rows::claims;

/// Keep-sets that the rules do not give.
pub(super) static SELECTOR: Audit = Audit {
    number: 45,
    slug: "keep-set",
    title: "keep-sets are not what the rules give, or break what every rule set promises",
    compares: "recorded keep-sets with the selector's rules and a matrix of hypotheses; order, size, prefix and window of each",
    needs: "the answer of `check selector`, or the keep-sets of a dump",
    gate: false,
    each: Some(selector),
    pair: None,
    whole: None,
    controls: selector_controls,
};

fn selector(subject: &Subject<'_>) -> Vec<Note> {
    let mut notes: Vec<Note> = of_kind(subject, CheckKind::Selector).map(judged).collect();
    for dump in subject.dumps.iter().flatten() {
        let Some(keep) = &dump.keep else { continue };
        let fault =
            keep.iter().enumerate().find_map(|(head, rows)| broken(subject, dump, head, rows));
        let size = keep.first().map_or(0, Vec::len);
        notes.push(match fault {
            Some(fault) => Note::void(fault)
                .at(dump.path.clone())
                .remedy("no rule set keeps such rows: look at the selection before the scores"),
            None => Note::pass(format!(
                "{} keep-sets of {size} rows ascend, are unique and hold what is protected",
                keep.len()
            )),
        });
    }
    notes
}

fn judged(check: &CheckReport) -> Note {
    let rules = check.detail.get("rule_set").and_then(Value::as_str).unwrap_or("the");
    let said = format!(
        "{} of {} keep-sets differ from the {rules} rules",
        check.different, check.compared
    );
    match &check.verdict {
        Verdict::Diverged => Note::void(said)
            .at(check.findings.first().map_or_else(String::new, |finding| finding.title.clone()))
            .remedy(hypotheses(&check.detail)),
        Verdict::Incomparable { why } => Note::no_evidence(format!("{said}: {why}")),
        _ if check.compared == 0 => Note::no_evidence("no keep-set was compared"),
        _ => Note::pass(said),
    }
}

/// The hypotheses that reproduce what was recorded, with their figures.
fn hypotheses(detail: &Value) -> String {
    let events = detail.get("by_event").and_then(Value::as_array);
    let all = events
        .into_iter()
        .flatten()
        .filter_map(|event| event.get("hypotheses")?.as_array())
        .flatten();
    let mut named: Vec<String> = all
        .filter(|hypothesis| hypothesis.get("reproduces").and_then(Value::as_bool) == Some(true))
        .filter_map(|hypothesis| {
            let number = |key: &str| hypothesis.get(key).and_then(Value::as_f64);
            let name = hypothesis.get("name")?.as_str()?;
            Some(format!(
                "{name} ({}/{} heads, Jaccard {:.3})",
                number("exact_heads")?,
                number("heads")?,
                number("mean_jaccard")?
            ))
        })
        .collect();
    named.dedup();
    if named.is_empty() {
        return "no hypothesis of the matrix reproduces them".to_owned();
    }
    format!("reproduced by {}", named.join(", "))
}

/// What every rule set promises of one head's rows.
fn broken(subject: &Subject<'_>, dump: &Dump, head: usize, rows: &[u32]) -> Option<String> {
    if let Some(pair) = rows.windows(2).find(|pair| pair[0] >= pair[1]) {
        return Some(format!("head {head}: row {} follows row {}", pair[1], pair[0]));
    }
    let count = |key: &str| subject.count(key).and_then(|value| u32::try_from(value).ok());
    let kept = dump.keep_count.filter(|kept| *kept as usize != rows.len());
    if let Some(kept) = kept {
        return Some(format!("head {head}: {} rows, keep_count is {kept}", rows.len()));
    }
    let before = dump.rows_before?;
    if let Some(last) = rows.last().filter(|last| **last >= before) {
        return Some(format!("head {head}: row {last} of {before}"));
    }
    let window = count("policy.recent_window").unwrap_or(0);
    let length =
        subject.samples.iter().flatten().find_map(|sample| sample.prompt_tokens).unwrap_or(0);
    let prefix = if subject.switch("policy.protect_prefill") == Some(true) { length } else { 0 };
    // With more protected rows than budget the keep-set is the first of them.
    if usize::try_from(window.saturating_add(prefix)).is_ok_and(|protected| protected > rows.len())
    {
        return None;
    }
    let recent =
        (before.saturating_sub(window)..before).find(|row| rows.binary_search(row).is_err());
    if let Some(row) = recent {
        return Some(format!("head {head}: row {row} of the recent window ({window}) was dropped"));
    }
    let positions = dump.positions.as_ref()?.get(head)?;
    let lost = positions
        .iter()
        .zip(0_u32..)
        .find(|(position, row)| **position < prefix && rows.binary_search(row).is_err());
    lost.map(|(position, _)| {
        format!(
            "head {head}: prompt position {position} was dropped though the prompt is protected"
        )
    })
}

fn kept(heads: Vec<Vec<u32>>) -> Subject<'static> {
    let mut subject = Subject::new("keep.json", Kind::Dump)
        .with("policy.recent_window", 2, "dump")
        .with("policy.protect_prefill", true, "dump")
        .with_sample(Sample { prompt_tokens: Some(3), ..Sample::new("s") });
    let positions = vec![(0..12).collect(); heads.len()];
    subject.dumps = Some(vec![Dump {
        path: "keep.json".to_owned(),
        ordinal: Some(1),
        rows_before: Some(12),
        keep_count: Some(8),
        keep: Some(heads),
        positions: Some(positions),
        ..Dump::default()
    }]);
    subject
}

fn check(kind: CheckKind, verdict: Verdict, different: u64, detail: Value) -> Subject<'static> {
    let mut subject = Subject::new("check.json", Kind::Check);
    let unit = "keep-sets".to_owned();
    let (findings, limits) = (Vec::new(), Vec::new());
    subject.checks.push(CheckReport {
        kind,
        verdict,
        compared: 8,
        different,
        skipped: 0,
        unit,
        findings,
        limits,
        detail,
    });
    subject
}

fn selector_controls() -> Vec<Control> {
    let good = || vec![0, 1, 2, 4, 7, 8, 10, 11];
    let one = |rows: Vec<u32>| Evidence::one(kept(vec![good(), rows]));
    let detail = serde_json::json!({"rule_set": "trt", "by_event": [{"hypotheses": [
        {"name": "round start = rows", "exact_heads": 8, "heads": 8, "mean_jaccard": 1.0, "reproduces": true},
        {"name": "n", "exact_heads": 0, "heads": 8, "mean_jaccard": 0.778, "reproduces": false}]}]});
    vec![
        Control::planted(
            "a row of the window is gone",
            one(vec![0, 1, 2, 3, 4, 7, 8, 11]),
            Outcome::Void,
            "row 10 of the recent window",
        ),
        Control::planted(
            "a prompt row is gone",
            one(vec![0, 2, 3, 4, 7, 8, 10, 11]),
            Outcome::Void,
            "prompt position 1",
        ),
        Control::planted(
            "a row stands twice",
            one(vec![0, 1, 2, 4, 4, 8, 10, 11]),
            Outcome::Void,
            "row 4 follows row 4",
        ),
        Control::planted(
            "a row is missing",
            one(vec![0, 1, 2, 4, 7, 10, 11]),
            Outcome::Void,
            "7 rows, keep_count is 8",
        ),
        Control::planted(
            "the rules give other rows",
            Evidence::one(check(CheckKind::Selector, Verdict::Diverged, 8, detail)),
            Outcome::Void,
            "reproduced by round start = rows (8/8 heads, Jaccard 1.000)",
        ),
        Control::clean(
            "sound keep-sets",
            Evidence::one(kept(vec![good(), good()])),
            "2 keep-sets of 8 rows",
        ),
        Control::clean(
            "the rules agree",
            Evidence::one(check(
                CheckKind::Selector,
                Verdict::Identical,
                0,
                serde_json::json!({"rule_set": "trt"}),
            )),
            "0 of 8 keep-sets differ from the trt rules",
        ),
    ]
}

/// Position handling shows from the second compaction on.
pub(super) static FIRST_IS_BLIND: Audit = Audit {
    number: 46,
    slug: "first-compaction-blind",
    title: "positions are called right on the evidence of first compactions, before which rows and positions agree",
    compares: "the compaction ordinals that dumps and selector checks cover with claims about positions",
    needs: "compaction ordinals of dumps or of the answer of `check selector`",
    gate: false,
    each: None,
    pair: None,
    whole: Some(first_is_blind),
    controls: blind_controls,
};

fn ordinals(subject: &Subject<'_>) -> Vec<u32> {
    let dumps = subject.dumps.iter().flatten().filter_map(|dump| dump.ordinal);
    let checks = of_kind(subject, CheckKind::Selector).flat_map(|check| {
        let events = check.detail.get("by_event").and_then(Value::as_array);
        let ordinal = |event: &Value| {
            event
                .get("ordinal")
                .and_then(Value::as_u64)
                .and_then(|ordinal| u32::try_from(ordinal).ok())
        };
        events.into_iter().flatten().filter_map(ordinal).collect::<Vec<_>>()
    });
    dumps.chain(checks).collect()
}

fn first_is_blind(evidence: &Evidence<'_>) -> Vec<Note> {
    let mut notes = Vec::new();
    for subject in &evidence.subjects {
        let Some(last) = ordinals(subject).into_iter().max() else { continue };
        let label = subject.label.as_str();
        let said = format!("compactions up to {last} are covered");
        let note = match claims(evidence, &["position-handling"], &[label]).first() {
            _ if last >= 2 => Note::pass(said),
            Some(claim) => Note::flag(format!("{said}; claim `{}` is about positions, which the first compaction cannot tell from row numbers", claim.id))
                .remedy("show a compaction of ordinal 2 or more"),
            None => Note::no_evidence(format!("{said}: nothing of `position` handling shows before compaction 2")),
        };
        notes.push(note.of([label]));
    }
    notes
}

fn blind_controls() -> Vec<Control> {
    let of = |ordinals: &[u32]| {
        let events: Vec<Value> =
            ordinals.iter().map(|ordinal| serde_json::json!({"ordinal": ordinal})).collect();
        let detail = serde_json::json!({"rule_set": "trt", "by_event": events});
        claimed(
            Evidence::one(check(CheckKind::Selector, Verdict::Identical, 0, detail)),
            "position-handling",
            None,
        )
    };
    vec![
        Control::planted(
            "one compaction proves positions",
            of(&[1]),
            Outcome::Flag,
            "cannot tell from row numbers",
        ),
        Control::clean("the third one too", of(&[1, 3]), "up to 3"),
    ]
}

/// Two paths that share their logic.
pub(super) static SHARED_LOGIC: Audit = Audit {
    number: 47,
    slug: "shared-logic",
    title: "a host and a device path agree, and the logic that both share is called right",
    compares: "the settings in which the two sides differ: only where the work is done",
    needs: "`device.select` or `device` of both sides",
    gate: false,
    each: None,
    pair: Some(shared_logic),
    whole: None,
    controls: shared_controls,
};

fn shared_logic(pair: &Pair<'_, '_>) -> Vec<Note> {
    let place = |subject: &Subject<'_>| {
        subject.text("device.select").or_else(|| subject.engine.device.clone())
    };
    let Ok((left, right)) = pair.both("device.select", place) else { return Vec::new() };
    if left == right || pair.lineage() || pair.left.made.producer != pair.right.made.producer {
        return Vec::new();
    }
    let labels = [pair.left.label.as_str(), pair.right.label.as_str()];
    let reference = pair.evidence.subjects.iter().any(|subject| {
        subject.kind == Kind::Replay || of_kind(subject, CheckKind::Selector).next().is_some()
    });
    let said = format!("{left} against {right}, one code base: agreement clears the kernels only");
    vec![match claims(pair.evidence, &["correct"], &labels).first() {
        Some(claim) if !reference => {
            Note::flag(format!("{said}; claim `{}` says that the logic is right", claim.id))
                .remedy("hold one of them against an independent reference")
        }
        Some(_) => Note::pass(format!("{said}; an independent reference is there")),
        None => Note::pass(said),
    }]
}

fn shared_controls() -> Vec<Control> {
    let side = |label: &str, device: &str| {
        Subject::new(label, Kind::Run).with("device.select", device, "flag")
    };
    let pair = || Evidence::pair(side("host", "host"), side("gpu", "gpu"));
    let mut with_reference = claimed(pair(), "correct", None);
    with_reference.subjects.push(Subject::new("replay", Kind::Replay));
    vec![
        Control::planted(
            "the hosts-only run agrees",
            claimed(pair(), "correct", None),
            Outcome::Flag,
            "clears the kernels only; claim",
        ),
        Control::clean("a reference is there too", with_reference, "independent reference"),
        Control::clean("nothing more is claimed", pair(), "clears the kernels only"),
    ]
}
