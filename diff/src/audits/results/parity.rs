//! Audits of answers of two sides: when they may be compared, and what equal or wrong ones show.

use super::super::facts::{Evidence, Kind};
use super::super::{Audit, Control, Note, Outcome, Pair, Sample, Subject, registry};
use super::made::claimed;
use super::rows::claims;
use super::text::same_completion;
use crate::answers::{Normalise, compare};
use crate::stats::{Bootstrap, Case, Names, PairedScores, Shown};

/// Is the answer of a sample right? As recorded, else by comparison with gold as numbers, else as text.
fn right(sample: &Sample) -> Option<bool> {
    let (gold, pred) = (sample.gold.as_ref()?, sample.pred.as_ref());
    sample.correct.or_else(|| {
        let Some(pred) = pred else { return Some(false) };
        let whole = compare(gold, pred, Normalise::Integer { range: None });
        Some(whole.equal.unwrap_or(whole.same_text))
    })
}

/// Two runs that were stopped by different rules.
pub(super) static STOP: Audit = Audit {
    number: 56,
    slug: "stop-rule",
    title: "answers are compared of runs that were stopped otherwise",
    compares: "`stop.rule`, `stop.interval`, `stop.max_new_tokens` and `stop.ids` of both sides",
    needs: "`stop.max_new_tokens` of both sides",
    gate: false,
    each: None,
    pair: Some(stop),
    whole: None,
    controls: stop_controls,
};

fn stop(pair: &Pair<'_, '_>) -> Vec<Note> {
    const KEYS: [&str; 4] = ["stop.rule", "stop.interval", "stop.max_new_tokens", "stop.ids"];
    if !pair.left.kind.is_run() || !pair.right.kind.is_run() || pair.lineage() {
        return Vec::new();
    }
    let known: Vec<(&str, String, String)> = KEYS
        .into_iter()
        .filter_map(|key| Some((key, pair.left.text(key)?, pair.right.text(key)?)))
        .collect();
    let differing: Vec<String> = known
        .iter()
        .filter(|(_, l, r)| l != r)
        .map(|(key, l, r)| format!("{key} {l} against {r}"))
        .collect();
    if !differing.is_empty() {
        return vec![Note::void(format!("answers were cut by other rules: {}", differing.join(", ")))
            .remedy("compare answers of runs with one stop rule and one cap; token streams may still be compared up to the first stop")];
    }
    match pair.both("stop.max_new_tokens", |side| side.text("stop.max_new_tokens")) {
        Err(note) => vec![note],
        Ok(_) => vec![Note::pass(format!("{} stop settings are equal", known.len()))],
    }
}

fn stop_controls() -> Vec<Control> {
    let side = |label: &str, cap: u64, interval: u64| {
        Subject::new(label, Kind::Benchmark).with("stop.max_new_tokens", cap, "flag").with(
            "stop.interval",
            interval,
            "flag",
        )
    };
    let pair =
        |cap, interval| Evidence::pair(side("native", 38912, 16), side("upstream", cap, interval));
    vec![
        Control::planted(
            "another cap",
            pair(8192, 16),
            Outcome::Void,
            "stop.max_new_tokens 38912 against 8192",
        ),
        Control::planted(
            "another interval",
            pair(38912, 4),
            Outcome::Void,
            "stop.interval 16 against 4",
        ),
        Control::clean("one rule", pair(38912, 16), "2 stop settings are equal"),
    ]
}

/// A wrong answer that both give.
pub(super) static COMMON_WRONG: Audit = Audit {
    number: 57,
    slug: "common-wrong-answer",
    title: "both sides are wrong in the same way, which is no parity",
    compares: "wrong answers that both sides give with their ids, or else their texts",
    needs: "gold and predicted answers of both sides",
    gate: false,
    each: None,
    pair: Some(common_wrong),
    whole: None,
    controls: wrong_controls,
};

fn common_wrong(pair: &Pair<'_, '_>) -> Vec<Note> {
    let (mut seen, mut apart) = (0, Vec::new());
    for (left, other) in pair.samples() {
        let (Some(l), Some(r)) = (right(left), right(other)) else { continue };
        seen += 1;
        if !l
            && !r
            && left.pred.is_some()
            && left.pred == other.pred
            && same_completion(pair, left, other) != Some(true)
        {
            apart.push(format!("{} (both {})", left.id, left.pred.as_deref().unwrap_or("")));
        }
    }
    vec![match (seen, apart.len()) {
        (0, _) => return Vec::new(),
        (_, 0) => Note::pass(format!("of {seen} samples none is wrong alike with other tokens")),
        (_, count) => Note::flag(format!("{count} of {seen} samples are wrong alike without the same tokens: that clears neither side"))
            .at(apart.join(", "))
            .remedy("show token or keep-set agreement before a side is called innocent"),
    }]
}

fn scored(label: &str, answers: &[(&str, &str)]) -> Subject<'static> {
    let mut subject = Subject::new(label, Kind::Benchmark);
    for (at, (pred, text)) in answers.iter().enumerate() {
        subject = subject.with_sample(Sample {
            gold: Some("62".to_owned()),
            pred: Some((*pred).to_owned()),
            text: Some((*text).to_owned()),
            ..Sample::new(format!("toy_{at}"))
        });
    }
    subject
}

fn wrong_controls() -> Vec<Control> {
    let pair = |text: &str| {
        Evidence::pair(scored("native", &[("5", "so 5")]), scored("upstream", &[("5", text)]))
    };
    vec![
        Control::planted("upstream also fails", pair("thus 5"), Outcome::Flag, "toy_0 (both 5)"),
        Control::clean("the same text", pair("so 5"), "none is wrong alike"),
    ]
}

/// A control that fails as well.
pub(super) static WRONG_CONTROL: Audit = Audit {
    number: 58,
    slug: "wrong-control",
    title: "a sample is taken to isolate a fault though its control is wrong too, or does not differ",
    compares: "the control's answer with gold and with the treated run's, and audits 11, 16, 20 and 22 of the pair",
    needs: "gold and predicted answers of both sides",
    gate: false,
    each: None,
    pair: Some(wrong_control),
    whole: None,
    controls: control_controls,
};

fn wrong_control(pair: &Pair<'_, '_>) -> Vec<Note> {
    let labels = [pair.left.label.as_str(), pair.right.label.as_str()];
    let judged: Vec<(&Sample, bool, bool)> =
        pair.samples().into_iter().filter_map(|(l, r)| Some((l, right(l)?, right(r)?))).collect();
    if judged.is_empty() {
        return Vec::new();
    }
    let good: Vec<&str> = judged
        .iter()
        .filter(|(_, l, r)| *l && !*r)
        .map(|(sample, _, _)| sample.id.as_str())
        .collect();
    let targets = claims(pair.evidence, &["isolation-target"], &labels);
    for id in targets.iter().flat_map(|claim| &claim.scope.samples) {
        let Some((_, control, treated)) = judged.iter().find(|(sample, _, _)| sample.id == *id)
        else {
            continue;
        };
        if !control || control == treated {
            let words = if *control { "right, as is the treated run" } else { "wrong too" };
            return vec![
                Note::flag(format!("the control of {id} is {words}: it isolates nothing"))
                    .at(id.clone())
                    .remedy(format!("take one of: {}", good.join(", "))),
            ];
        }
    }
    if let (false, Some(voided)) = (targets.is_empty(), void_gate(pair)) {
        return vec![
            Note::flag(format!("audit {voided} voids the pair: no sample of it isolates a fault"))
                .remedy("mend the pair first"),
        ];
    }
    let named = if good.is_empty() { "none".to_owned() } else { good.join(", ") };
    vec![Note::pass(format!(
        "control right and treated run wrong: {named} (of {} samples)",
        judged.len()
    ))]
}

/// First of the audits that must hold and is void for this pair.
fn void_gate(pair: &Pair<'_, '_>) -> Option<u8> {
    ["11", "16", "20", "22"].into_iter().filter_map(registry::find).find_map(|audit| {
        let notes = (audit.pair?)(pair);
        notes.iter().any(|note| note.outcome == Outcome::Void).then_some(audit.number)
    })
}

fn control_controls() -> Vec<Control> {
    let pair = |control: &str| {
        let mut evidence = claimed(
            Evidence::pair(
                scored("dense", &[(control, "x"), ("62", "x")]),
                scored("tri", &[("5", "y"), ("7", "y")]),
            ),
            "isolation-target",
            None,
        );
        for claim in evidence.subjects.iter_mut().flat_map(|subject| &mut subject.claims) {
            claim.scope.samples = vec!["toy_0".to_owned()];
        }
        evidence
    };
    vec![
        Control::planted(
            "dense is wrong too",
            pair("9"),
            Outcome::Flag,
            "the control of toy_0 is wrong too",
        ),
        Control::clean("dense is right", pair("62"), "toy_0, toy_1 (of 2 samples)"),
    ]
}

/// One row more.
pub(super) static SMALL_N: Audit = Audit {
    number: 59,
    slug: "small-n",
    title: "two scores are ranked though their difference could be chance",
    compares: "answers of both sides, sample by sample: exact McNemar",
    needs: "gold and predicted answers of both sides",
    gate: false,
    each: None,
    pair: Some(small_n),
    whole: None,
    controls: small_controls,
};

fn small_n(pair: &Pair<'_, '_>) -> Vec<Note> {
    let judged: Vec<(String, bool, bool)> = pair
        .samples()
        .into_iter()
        .filter_map(|(l, r)| Some((l.id.clone(), right(l)?, right(r)?)))
        .collect();
    if judged.is_empty() {
        return Vec::new();
    }
    let cases: Vec<Case<'_>> = judged
        .iter()
        .map(|(prompt, left, right)| Case { prompt, left: *left, right: *right })
        .collect();
    let names = Names { what: "answers", left: &pair.left.label, right: &pair.right.label };
    let scores = PairedScores::of(names, &cases, Bootstrap::default());
    let said = scores.to_string();
    if scores.left_only != scores.right_only && scores.shown() == Shown::Nothing {
        return vec![Note::flag(said).remedy("rank nothing: p is above 0.05")];
    }
    vec![Note::pass(said)]
}

fn small_controls() -> Vec<Control> {
    let side = |label: &str, right: usize| {
        let answers: Vec<(&str, &str)> =
            (0..30).map(|at| (if at < right { "62" } else { "5" }, "x")).collect();
        scored(label, &answers)
    };
    let pair = |l, r| Evidence::pair(side("dense", l), side("tri", r));
    vec![
        Control::planted("0.700 against 0.667", pair(20, 21), Outcome::Flag, "21/30"),
        Control::clean("ten rows", pair(10, 20), "20/30"),
        Control::clean("the same rows", pair(20, 20), "20/30"),
    ]
}
