//! Rows of a cache after each step against its rule.

use lockstep_traces::Verdict;
use lockstep_traces::forms::CacheStates;
use serde::Serialize;

use super::policies::{Fit, Policy, Slots, fit, written};
use super::{StateFinding, ranges};

/// The rule.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Rule {
    /// Rows kept for ever at the front.
    pub sink: usize,
    /// Rows kept at the end.
    pub recent: usize,
    /// Rows at most.
    pub rows: usize,
    /// In words.
    pub words: String,
}

/// One state against the rule.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct StateOfStep {
    /// Step, from 0.
    pub step: usize,
    /// Rows ever appended.
    pub tokens: u64,
    /// Position appended last; `null` where nothing was appended yet.
    pub newest: Option<u64>,
    /// Rows by the rule.
    pub expected: Vec<u64>,
    /// Slots as observed.
    pub observed: Vec<Option<u64>>,
    /// The rows are those of the rule, and no attended slot is unwritten.
    pub right: bool,
    /// Rows of the rule that are not there.
    pub missing: Vec<u64>,
    /// Rows that should not be there.
    pub surplus: Vec<u64>,
    /// Rows that are there more than once.
    pub repeated: Vec<u64>,
    /// Slots that were never written and are attended all the same: those before the number of rows of the rule.
    pub unwritten: Vec<usize>,
    /// Rows of the state before (observed, or the start) that are gone.
    pub dropped: Vec<u64>,
    /// Missing rows that are sinks.
    pub sinks_missing: Vec<u64>,
}

/// The first step that is wrong.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Fault {
    /// Step, from 0.
    pub step: usize,
    /// Rows ever appended.
    pub tokens: u64,
    /// The step at which as many rows were appended as the rule keeps.
    pub length_equals_rows: bool,
    /// One line.
    pub title: String,
}

/// One implementation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Implementation {
    /// Its name.
    pub name: String,
    /// Every state is right.
    pub right: bool,
    /// Its first wrong step.
    pub first_fault: Option<Fault>,
    /// Rows written, by step.
    pub row_counts: Vec<usize>,
    /// The counts are those of the rule at every step.
    pub counts_right: bool,
    /// Steps.
    pub steps: Vec<StateOfStep>,
    /// Mistakes that give every state, where the rule does not; those that give the slots too, where there are any.
    pub recognised: Vec<String>,
    /// Mistakes that would give the same states, where all are right: this evidence does not exclude them.
    pub not_excluded: Vec<String>,
    /// The rule and every mistake with the number of states it gives.
    pub hypotheses: Vec<Fit>,
}

/// Answer.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct CacheReport {
    /// The rule.
    pub rule: Rule,
    /// Steps at which the rule drops a row.
    pub dropping_steps: usize,
    /// Implementations.
    pub implementations: Vec<Implementation>,
    /// Names of those that follow the rule.
    pub right: Vec<String>,
    /// Names of those that do not.
    pub wrong: Vec<String>,
    /// The row counts alone would show every wrong implementation; `null` where none is wrong.
    pub counts_reveal: Option<bool>,
    /// What was found.
    pub findings: Vec<StateFinding>,
    /// What the evidence does not cover.
    pub limits: Vec<String>,
    /// Outcome.
    pub verdict: Verdict,
    /// One line.
    pub summary: String,
}

/// Checks every state against the rule and names mistakes that give the observed states.
#[must_use]
pub fn check(form: &CacheStates) -> CacheReport {
    let rows = form.sink + form.recent;
    let given = Policy::AsStated.states(form);
    let mistakes: Vec<(Policy, Vec<Slots>)> = Policy::MISTAKES
        .into_iter()
        .filter(|policy| applies(*policy, form))
        .map(|policy| (policy, policy.states(form)))
        .collect();
    let implementations: Vec<Implementation> =
        form.names.iter().map(|name| implementation(form, name, &given, &mistakes)).collect();
    let names = |right: bool| {
        let of = implementations.iter().filter(|one| one.right == right);
        of.map(|one| one.name.clone()).collect::<Vec<_>>()
    };
    let (right, wrong) = (names(true), names(false));
    let dropping_steps = form.steps.iter().filter(|step| step.tokens > rows as u64).count();
    let counts_reveal = (!wrong.is_empty())
        .then(|| implementations.iter().all(|one| one.right || !one.counts_right));
    let mut report = CacheReport {
        rule: said(form),
        dropping_steps,
        implementations,
        right,
        wrong,
        counts_reveal,
        findings: Vec::new(),
        limits: Vec::new(),
        verdict: Verdict::Identical,
        summary: String::new(),
    };
    report.findings = findings(&report);
    conclude(form, &mut report);
    report
}

/// A mistake about sinks needs sinks.
fn applies(policy: Policy, form: &CacheStates) -> bool {
    match policy {
        Policy::OldestGoes | Policy::NoSinks => form.sink > 0,
        Policy::SinksWithinRecent => form.sink > 0 && form.recent > form.sink,
        Policy::OneLess => form.recent > 1,
        _ => true,
    }
}

fn said(form: &CacheStates) -> Rule {
    let rows = form.sink + form.recent;
    let words = if form.window {
        format!("the last {rows} rows, the newest among them")
    } else {
        format!(
            "the first {} rows for ever and the last {} of the others, the newest among them",
            form.sink, form.recent
        )
    };
    Rule { sink: form.sink, recent: form.recent, rows, words }
}

fn implementation(
    form: &CacheStates,
    name: &str,
    given: &[Slots],
    mistakes: &[(Policy, Vec<Slots>)],
) -> Implementation {
    let observed: Vec<Option<&Slots>> = form
        .steps
        .iter()
        .map(|step| step.states.iter().find(|state| state.name == name).map(|state| &state.slots))
        .collect();
    let mut steps = Vec::new();
    let mut before = form.start.clone();
    for (step, (given, slots)) in given.iter().zip(&observed).enumerate() {
        if let Some(slots) = slots {
            steps.push(state(form, step, given, slots, &before));
            before = written(slots);
        }
    }
    let own = fit(Policy::AsStated, given, &observed);
    let mut hypotheses = vec![own];
    hypotheses.extend(mistakes.iter().map(|(policy, given)| fit(*policy, given, &observed)));
    let right = steps.iter().all(|step| step.right);
    let others = &hypotheses[1..];
    let exact = others.iter().any(Fit::all_slots);
    let fitting: Vec<String> = others
        .iter()
        .filter(|fit| if exact && !right { fit.all_slots() } else { fit.all_rows() })
        .map(|fit| fit.name.clone())
        .collect();
    let first = steps.iter().find(|step| !step.right);
    let first_fault = first.map(|step| Fault {
        step: step.step,
        tokens: step.tokens,
        length_equals_rows: step.tokens == (form.sink + form.recent) as u64,
        title: fault_words(step),
    });
    let row_counts: Vec<usize> =
        steps.iter().map(|step| step.observed.iter().flatten().count()).collect();
    let counts_right =
        steps.iter().zip(&row_counts).all(|(step, count)| step.expected.len() == *count);
    let (recognised, not_excluded) =
        if right { (Vec::new(), fitting) } else { (fitting, Vec::new()) };
    Implementation {
        name: name.to_owned(),
        right,
        first_fault,
        row_counts,
        counts_right,
        steps,
        recognised,
        not_excluded,
        hypotheses,
    }
}

fn state(
    form: &CacheStates,
    step: usize,
    given: &[Option<u64>],
    slots: &[Option<u64>],
    before: &[u64],
) -> StateOfStep {
    let (expected, rows) = (written(given), written(slots));
    let without = |list: &[u64], other: &[u64]| -> Vec<u64> {
        list.iter().filter(|row| other.binary_search(row).is_err()).copied().collect()
    };
    let missing = without(&expected, &rows);
    let mut surplus = without(&rows, &expected);
    surplus.dedup();
    let mut repeated: Vec<u64> =
        rows.windows(2).filter(|pair| pair[0] == pair[1]).map(|pair| pair[0]).collect();
    repeated.dedup();
    let unwritten: Vec<usize> = slots
        .iter()
        .enumerate()
        .filter(|(at, slot)| *at < expected.len() && slot.is_none())
        .map(|(at, _)| at)
        .collect();
    let sinks = expected.get(..form.sink.min(expected.len())).unwrap_or_default();
    let sinks_missing = missing.iter().filter(|row| sinks.contains(row)).copied().collect();
    let fed = form.steps.get(step);
    StateOfStep {
        step,
        tokens: fed.map_or(0, |step| step.tokens),
        newest: fed.and_then(|step| step.fed.last().copied()),
        right: missing.is_empty()
            && surplus.is_empty()
            && repeated.is_empty()
            && unwritten.is_empty(),
        dropped: without(before, &rows),
        expected,
        observed: slots.to_vec(),
        missing,
        surplus,
        repeated,
        unwritten,
        sinks_missing,
    }
}

fn fault_words(step: &StateOfStep) -> String {
    let mut parts = Vec::new();
    if !step.missing.is_empty() {
        parts.push(format!("lacks {}", ranges(&step.missing)));
    }
    if !step.surplus.is_empty() {
        parts.push(format!("still has {}", ranges(&step.surplus)));
    }
    if !step.repeated.is_empty() {
        parts.push(format!("has {} twice", ranges(&step.repeated)));
    }
    if !step.unwritten.is_empty() {
        let slots: Vec<u64> = step.unwritten.iter().map(|slot| *slot as u64).collect();
        parts.push(format!("attends slot {} that was never written", ranges(&slots)));
    }
    format!("after {} tokens it {}", step.tokens, parts.join(" and "))
}

fn findings(report: &CacheReport) -> Vec<StateFinding> {
    let mut out = Vec::new();
    for one in report.implementations.iter().filter(|one| !one.right) {
        let of = one.name.as_str();
        if let Some(fault) = &one.first_fault {
            let full = if fault.length_equals_rows {
                ", the step at which the length equals the rows of the rule"
            } else {
                ""
            };
            out.push(StateFinding::new("first_fault", of, format!("{}{full}", fault.title)));
        }
        let unwritten = one.steps.iter().filter(|step| !step.unwritten.is_empty());
        if unwritten.count() > 0 {
            let title = "an attended slot that was never written is an error by itself, whatever the window";
            out.push(StateFinding::new("unwritten_attended", of, title));
        }
        let any = |test: &dyn Fn(&&StateOfStep) -> bool| one.steps.iter().find(|step| test(step));
        if let Some(step) = any(&|step| !step.sinks_missing.is_empty()) {
            let title = format!(
                "sink {} is lost after {} tokens",
                ranges(&step.sinks_missing),
                step.tokens
            );
            out.push(StateFinding::new("sink_lost", of, title));
        }
        if let Some(step) = any(&|step| step.missing.len() > step.sinks_missing.len()) {
            let recent: Vec<u64> = step
                .missing
                .iter()
                .filter(|row| !step.sinks_missing.contains(row))
                .copied()
                .collect();
            let title =
                format!("recent row {} is lost after {} tokens", ranges(&recent), step.tokens);
            out.push(StateFinding::new("recent_lost", of, title));
        }
        for name in &one.recognised {
            let words = one.hypotheses.iter().find(|fit| fit.name == *name);
            let words = words.map_or("", |fit| fit.title.as_str());
            out.push(StateFinding::new(name, of, words));
        }
    }
    if report.counts_reveal == Some(false) {
        let hidden: Vec<&str> = report
            .implementations
            .iter()
            .filter(|one| !one.right && one.counts_right)
            .map(|one| one.name.as_str())
            .collect();
        let title = format!(
            "the row counts of {} are those of the rule: counts do not reveal it",
            hidden.join(", ")
        );
        out.push(StateFinding::new("counts_equal", "", title));
    }
    out
}

fn conclude(form: &CacheStates, report: &mut CacheReport) {
    let short: Vec<&Implementation> =
        report.implementations.iter().filter(|one| one.steps.len() < form.steps.len()).collect();
    for one in &short {
        report.limits.push(format!(
            "{} has a state at {} of {} steps",
            one.name,
            one.steps.len(),
            form.steps.len()
        ));
    }
    for one in report.implementations.iter().filter(|one| !one.not_excluded.is_empty()) {
        let list = one.not_excluded.join(", ");
        report.limits.push(format!("{}: these states would also come from {list}", one.name));
    }
    let ordered = |one: &&Implementation| one.recognised.is_empty() && !one.right;
    for one in report.implementations.iter().filter(ordered) {
        report.limits.push(format!("{}: no known mistake gives all of its states", one.name));
    }
    let why = if report.implementations.is_empty() {
        Some("no step holds a state".to_owned())
    } else if report.dropping_steps == 0 {
        Some(format!("no step has more than {} tokens, so that no row had to go", report.rule.rows))
    } else {
        (!short.is_empty()).then(|| "states are missing at some steps".to_owned())
    };
    report.verdict = match (report.wrong.is_empty(), why) {
        (false, _) => Verdict::Diverged,
        (true, Some(why)) => Verdict::Incomparable { why },
        (true, None) => Verdict::Identical,
    };
    report.summary = match &report.verdict {
        Verdict::Incomparable { why } => why.clone(),
        Verdict::Diverged => {
            let list: Vec<String> = report
                .implementations
                .iter()
                .filter_map(|one| {
                    Some(format!("{}: {}", one.name, one.first_fault.as_ref()?.title))
                })
                .collect();
            list.join("; ")
        }
        _ => format!("{} holds at every step: {}", report.right.join(", "), report.rule.words),
    };
}
