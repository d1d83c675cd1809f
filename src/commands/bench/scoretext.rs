//! `bench score` on a terminal: scores, what became of the other rows, and pairs.

use lockstep_diff::answers::{
    Entry, FilterPair, FilterScore, Outcome, Repeated, ScoreReport, Versus,
};

use super::score::Answer;

/// Rows listed for each input without `--rows`.
const LISTED: usize = 20;

/// Longest answer that is shown.
const SHOWN: usize = 60;

/// The whole answer; with `all` every row.
pub(super) fn render(answer: &Answer, all: bool) -> String {
    let mut out = Vec::new();
    for input in &answer.inputs {
        self::input(&mut out, input, all);
    }
    for one in &answer.versus {
        versus(&mut out, one);
    }
    for one in &answer.gates {
        let what = one
            .gate
            .as_ref()
            .map_or_else(|| "gate: nothing was scored".to_owned(), ToString::to_string);
        out.push(format!("{} ({}): {what}", one.label, one.filter));
    }
    out.join("\n")
}

fn input(out: &mut Vec<String>, input: &ScoreReport, all: bool) {
    out.push(format!(
        "{}: {} rows of {}, {} questions; answers by {} ({}), equal by {}",
        input.label,
        input.rows,
        input.schema,
        input.documents,
        input.rule,
        input.rule_source,
        input.normalise
    ));
    for filter in &input.filters {
        out.push(format!("  {}", score(filter)));
    }
    for one in &input.duplicates {
        out.push(format!("  duplicate, counted once: {}", repeated(one)));
    }
    if let Some(echo) = &input.gold_echo {
        out.push(format!(
            "  ! gold echo: the prediction is the gold answer in all {} rows, and from the text of {} no rule reads it: {}",
            echo.rows,
            echo.contradicted.len(),
            some(&echo.contradicted)
        ));
    }
    out.extend(input.remarks.iter().map(|line| format!("  note: {line}")));
    let plainly = |one: &&Entry| all || one.outcome != Outcome::Correct || one.note.is_some();
    let listed: Vec<&Entry> = input.entries.iter().filter(plainly).collect();
    let room = if all { listed.len() } else { LISTED };
    out.extend(listed.iter().take(room).map(|one| format!("    {}", row(one))));
    if listed.len() > room {
        out.push(format!("    and {} more rows; --rows lists all", listed.len() - room));
    }
}

/// `strict-match: 1/3 = 33.3 % [6.1, 79.2]; no-answer 1, wrong 1; recorded exact_match 1/3 = ... agrees`.
fn score(filter: &FilterScore) -> String {
    let mut line = format!("{}: {}", filter.filter, filter.score);
    let others: Vec<String> = Outcome::ALL
        .into_iter()
        .filter(|one| *one != Outcome::Correct)
        .filter_map(|one| Some((one, *filter.outcomes.get(&one)?)))
        .filter(|(_, count)| *count > 0)
        .map(|(one, count)| format!("{} {count}", one.word()))
        .collect();
    if !others.is_empty() {
        line = format!("{line}; {}", others.join(", "));
    }
    if filter.without_degenerate.n < filter.score.n {
        line = format!("{line}; without degenerate rows {}", filter.without_degenerate);
    }
    if filter.by_fallback > 0 {
        line = format!("{line}; {} of the correct ones by a fallback", filter.by_fallback);
    }
    if filter.same_text < filter.score.hits {
        line = format!("{line}; as plain text only {} would be", filter.same_text);
    }
    if let Some(recorded) = &filter.recorded {
        let verdict = if recorded.changes.is_empty() {
            "agrees".to_owned()
        } else {
            format!("differs on {}", some(&recorded.changes))
        };
        line = format!("{line}; recorded {} {}, {verdict}", recorded.by, recorded.score);
    }
    line
}

fn row(one: &Entry) -> String {
    let answer = one.answer.as_ref().map_or_else(|| "none".to_owned(), |text| shown(text));
    let gold = one.gold.as_ref().map_or_else(|| "none".to_owned(), |text| shown(text));
    let repeat = one.repeat.map_or_else(String::new, |repeat| format!(" #{repeat}"));
    let note =
        one.note.as_ref().map_or_else(String::new, |note| format!(" ({})", cut(note, 3 * SHOWN)));
    format!(
        "{}{repeat} [{}] line {}: {}, answer {answer}, gold {gold}{note}",
        shown(&one.id),
        shown(&one.filter),
        one.line,
        one.outcome.word()
    )
}

fn versus(out: &mut Vec<String>, one: &Versus) {
    out.push(format!("{} against {}", one.right, one.left));
    for pair in &one.pairs {
        out.push(format!("  {}", pair.scores));
        out.extend(beside(pair).into_iter().map(|line| format!("  note: {line}")));
    }
    if one.pairs.is_empty() {
        out.push("  no filter is on both sides: nothing is compared".to_owned());
    }
    for (side, filters) in [(&one.left, &one.left_filters), (&one.right, &one.right_filters)] {
        if !filters.is_empty() {
            out.push(format!("  note: only in {side}: {}", filters.join(", ")));
        }
    }
    out.extend(one.limits.iter().map(|line| format!("  note: {line}")));
}

fn beside(pair: &FilterPair) -> Vec<String> {
    let mut lines = Vec::new();
    if pair.same_wrong > 0 {
        lines.push(format!(
            "{} pairs share a wrong answer; that is no parity of the runs",
            pair.same_wrong
        ));
    }
    for (ids, what) in [(&pair.other_gold, "gold answer"), (&pair.other_prompt, "prompt")] {
        if !ids.is_empty() {
            lines.push(format!(
                "{} questions have another {what} and are not paired: {}",
                ids.len(),
                some(ids)
            ));
        }
    }
    lines
}

fn repeated(one: &Repeated) -> String {
    let filter = one.filter.as_ref().map_or_else(String::new, |name| format!(", {name}"));
    let lines: Vec<String> = one.lines.iter().map(u64::to_string).collect();
    format!("({}{filter}) on lines {}", one.id, lines.join(", "))
}

/// The first few ids.
fn some(ids: &[String]) -> String {
    const FEW: usize = 5;
    let mut text = ids.iter().take(FEW).map(|id| shown(id)).collect::<Vec<_>>().join(", ");
    if ids.len() > FEW {
        text = format!("{text} and {} more", ids.len() - FEW);
    }
    text
}

fn shown(text: &str) -> String {
    cut(text, SHOWN)
}

/// Outside text: control characters made visible, long ones cut.
fn cut(text: &str, longest: usize) -> String {
    let mut out = String::new();
    for char in text.chars().take(longest) {
        if char.is_control() { out.extend(char.escape_default()) } else { out.push(char) }
    }
    if text.chars().nth(longest).is_some() {
        out.push_str("...");
    }
    out
}
