//! Scores as cases: one for each question and filter.

use lockstep_diff::answers::{self, Entry, FilterPair, ScoreReport, Versus};
use lockstep_diff::stats::{Gate, Shown};
use serde::Deserialize;

use super::{Case, Outcome, Suite};

/// Answer of `bench score`.
#[derive(Debug, Deserialize)]
pub(super) struct Scores {
    inputs: Vec<ScoreReport>,
    versus: Vec<Versus>,
    gates: Vec<Gated>,
}

#[derive(Debug, Deserialize)]
struct Gated {
    label: String,
    filter: String,
    gate: Option<Gate>,
}

/// One input: a case for each judged row; what is no measure of the whole (gold echo, a prefix) is a case of its own.
#[must_use]
pub fn of_score(report: &ScoreReport) -> Suite {
    let mut cases: Vec<Case> = report.entries.iter().map(entry).collect();
    if let Some(echo) = &report.gold_echo {
        let message = format!(
            "the prediction is the gold answer in all {} rows, and the texts of {} say otherwise",
            echo.rows,
            echo.contradicted.len()
        );
        cases.push(Case::new(
            "score",
            "predictions are predictions",
            Outcome::error("gold-echo", message),
        ));
    }
    for one in &report.conflicts {
        let message = format!("{} rows of {} say different things", one.lines.len(), one.id);
        cases.push(Case::new("score", &one.id, Outcome::error("conflict", message)));
    }
    if !report.complete {
        let message = "the file or run is a prefix: samples that had not ended are missing";
        cases.push(Case::new(
            "score",
            "the source is whole",
            Outcome::error("incomplete", message),
        ));
    }
    Suite { name: format!("score {}", report.label), cases }
}

fn entry(one: &Entry) -> Case {
    let shown = |text: &Option<String>| text.clone().unwrap_or_else(|| "none".to_owned());
    let mut said = format!("answer {}, gold {}", shown(&one.answer), shown(&one.gold));
    if let Some(note) = &one.note {
        said = format!("{said} ({note})");
    }
    let outcome = match one.outcome {
        answers::Outcome::Correct => Outcome::Passed,
        answers::Outcome::Unscored => Outcome::skipped(said.clone()),
        other => Outcome::failed(other.word(), said.clone()),
    };
    let name = match one.repeat {
        Some(repeat) => format!("{} #{repeat}", one.id),
        None => one.id.clone(),
    };
    let mut case = Case::new(format!("score.{}", one.filter), name, outcome);
    if case.outcome != Outcome::Passed {
        case.lines.push(format!("line {}", one.line));
    }
    case
}

pub(super) fn of_scores(scores: &Scores) -> Vec<Suite> {
    let mut suites: Vec<Suite> = scores.inputs.iter().map(of_score).collect();
    suites.extend(scores.versus.iter().map(versus));
    if !scores.gates.is_empty() {
        let cases = scores.gates.iter().map(gated).collect();
        suites.push(Suite { name: "gates".to_owned(), cases });
    }
    suites
}

/// Equal on every pair passes; a shown difference fails, whichever side is better; what was not shown is an error.
fn versus(one: &Versus) -> Suite {
    let mut cases: Vec<Case> = one.pairs.iter().map(pair).collect();
    for (filters, side) in [(&one.left_filters, &one.left), (&one.right_filters, &one.right)] {
        cases.extend(filters.iter().map(|filter| {
            Case::new("versus", filter, Outcome::error("unpaired", format!("only in {side}")))
        }));
    }
    Suite { name: format!("{} against {}", one.right, one.left), cases }
}

fn pair(pair: &FilterPair) -> Case {
    let said = pair.scores.to_string();
    let unpaired = pair.other_gold.len() + pair.other_prompt.len();
    let outcome = match pair.scores.shown() {
        Shown::Left | Shown::Right => Outcome::failed("differs", said.clone()),
        Shown::Equal if unpaired > 0 => Outcome::error(
            "unpaired",
            format!("{unpaired} questions have another gold answer or prompt and are not paired"),
        ),
        Shown::Equal => Outcome::Passed,
        Shown::Nothing => Outcome::error("inconclusive", said.clone()),
    };
    Case::new("versus", &pair.right_filter, outcome).with([said])
}

fn gated(one: &Gated) -> Case {
    let name = format!("{} ({})", one.label, one.filter);
    let outcome = match &one.gate {
        None => Outcome::error("unscored", "nothing was scored"),
        Some(gate) if gate.passed => Outcome::Passed,
        Some(gate) => Outcome::failed("gate", gate.to_string()),
    };
    Case::new("gate", name, outcome)
}
