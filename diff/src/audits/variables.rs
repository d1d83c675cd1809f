//! Audits of settings: what was changed, and whether what is in force is known.

use super::facts::{Evidence, Kind};
use super::{Audit, Control, Note, Outcome, Pair, Subject};
use crate::settings;

/// One variable at a time.
pub(super) static ONE_VARIABLE: Audit = Audit {
    number: 6,
    slug: "one-variable",
    title: "several things were changed at once, so that nothing can be laid to one of them",
    compares: "every recorded setting of the two sides; times, paths and recording are left out",
    needs: "the effective configuration of both sides",
    gate: false,
    each: None,
    pair: Some(one_variable),
    whole: None,
    controls: one_variable_controls,
};

fn one_variable(pair: &Pair<'_, '_>) -> Vec<Note> {
    if let Err(note) = pair.both("effective_config", |side| settled(side).then_some(())) {
        return vec![note];
    }
    let report = settings::compare(pair.left, pair.right);
    let (changed, unstated): (Vec<_>, Vec<_>) = settings::variables(&report, pair.lineage())
        .into_iter()
        .partition(settings::Variable::stated);
    let beside = match unstated.len() {
        0 => String::new(),
        n => format!("; {n} are stated by one side only, and may have been changed as well"),
    };
    match changed.as_slice() {
        [] => vec![Note::pass(format!(
            "nothing that both sides state was changed; {} settings are equal{beside}",
            report.equal
        ))],
        [one] => vec![Note::pass(format!("one thing was changed, {}{beside}", one.words()))],
        many => {
            let words: Vec<String> = many.iter().map(settings::Variable::words).collect();
            vec![
                Note::flag(format!(
                    "{} things were changed at once: {}{beside}",
                    many.len(),
                    words.join("; ")
                ))
                .remedy("change one of them at a time; until then lay the difference to none"),
            ]
        }
    }
}

/// More than the notes of an importer is recorded.
fn settled(side: &Subject<'_>) -> bool {
    side.settings.iter().flatten().any(|(key, _)| !key.starts_with("trace."))
}

fn one_variable_controls() -> Vec<Control> {
    let run = |graphs: bool, budget: u64| {
        let label = format!("budget {budget}, graphs {graphs}");
        Subject::new(label, Kind::Run)
            .with("policy.kind", "triattention", "flag")
            .with("policy.kv_budget", budget, "flag")
            .with("device.graphs", graphs, "flag")
    };
    vec![
        Control::planted(
            "graphs off and another budget",
            Evidence::pair(run(true, 256), run(false, 128)),
            Outcome::Flag,
            "device.graphs: true against false",
        ),
        Control::clean(
            "another budget",
            Evidence::pair(run(true, 256), run(true, 128)),
            "policy.kv_budget: 256 against 128",
        ),
        Control::clean(
            "a rerun",
            Evidence::pair(run(true, 256), run(true, 256)),
            "nothing that both sides state was changed",
        ),
        Control::clean(
            "a source that states less",
            Evidence::pair(run(true, 256).with("device.kernels", "own", "flag"), run(true, 256)),
            "1 are stated by one side only",
        ),
    ]
}

/// What is in force, and who said so.
pub(super) static OVERRIDES: Audit = Audit {
    number: 8,
    slug: "overrides",
    title: "what was in force is not what the artifact declares, or nobody knows what was in force",
    compares: "each effective policy setting with what the artifact declares",
    needs: "`effective_config` with the source of each value",
    gate: false,
    each: Some(overrides),
    pair: None,
    whole: None,
    controls: overrides_controls,
};

fn overrides(subject: &Subject<'_>) -> Vec<Note> {
    if !matches!(subject.kind, Kind::Run | Kind::Replay | Kind::Benchmark) {
        return Vec::new();
    }
    let policy = || subject.settings.iter().flatten().filter(|(key, _)| key.starts_with("policy."));
    if policy().next().is_none() {
        return vec![Note::missing("effective_config (policy.*)", &subject.label)];
    }
    let unsourced: Vec<&str> = policy()
        .filter(|(_, setting)| setting.source.is_empty())
        .map(|(key, _)| key.as_str())
        .collect();
    if !unsourced.is_empty() {
        return vec![Note::flag(format!("no source is recorded for {}", unsourced.join(", ")))];
    }
    let declared = subject.declared.clone().unwrap_or_default();
    let changed: Vec<String> = policy()
        .filter_map(|(key, setting)| {
            let other =
                declared.get(key).filter(|other| !crate::inputs::equal(other, &setting.value))?;
            Some(format!(
                "{key}: {other} declared, {} in force from `{}`",
                setting.value, setting.source
            ))
        })
        .collect();
    if changed.is_empty() {
        let said =
            if declared.is_empty() { "no artifact declares others" } else { "all as declared" };
        return vec![Note::pass(format!(
            "{} policy settings with their sources; {said}",
            policy().count()
        ))];
    }
    vec![
        Note::flag(changed.join("; "))
            .remedy("compare by what was in force, not by what the artifact says"),
    ]
}

fn overrides_controls() -> Vec<Control> {
    let run = |window: u64, source: &str| {
        let mut run = Subject::new("run", Kind::Run).with("policy.recent_window", window, source);
        run.declared =
            Some([("policy.recent_window".to_owned(), 128.into())].into_iter().collect());
        Evidence::one(run)
    };
    vec![
        Control::planted(
            "an environment variable",
            run(0, "environment"),
            Outcome::Flag,
            "0 in force from `environment`",
        ),
        Control::planted("a value from nowhere", run(128, ""), Outcome::Flag, "no source"),
        Control::clean("as declared", run(128, "bundle"), "all as declared"),
    ]
}
