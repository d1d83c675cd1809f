//! Which parts of the evidence two sides have in common, in words.

use lockstep_traces::foreign::UNKNOWN_TOKEN;
use lockstep_traces::limits::{TokenIds, Values};
use lockstep_traces::{SampleRow, StepColumns};
use serde::{Deserialize, Serialize};

use crate::precision::{Precision, Scale};
use crate::side::Side;

/// What was compared, by part: `compared`, `compared as ...`, or `not available on the left`, `... on the right`,
/// `... on the left and right`, with the reason where there is one.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Available {
    /// Cache rows and compactions.
    pub rows: String,
    /// Logits or log-probabilities.
    pub values: String,
    /// Token ids.
    pub tokens: String,
}

const COMPARED: &str = "compared";

impl Available {
    /// `joint`: ids of both sides were brought to one numbering.
    pub(crate) fn of(left: &Side<'_>, right: &Side<'_>, scale: Scale, joint: bool) -> Self {
        let (l, r) = (&left.manifest.limits, &right.manifest.limits);
        let no_ids = |ids: TokenIds| ids == TokenIds::Nothing;
        let tokens = if tokens_comparable(left, right, joint) {
            COMPARED.to_owned()
        } else if no_ids(l.token_ids) || no_ids(r.token_ids) {
            missing(no_ids(l.token_ids), no_ids(r.token_ids))
        } else {
            let invented = |ids: TokenIds| ids == TokenIds::Invented;
            let there = missing(invented(l.token_ids), invented(r.token_ids));
            format!("{there}: its ids only number the texts of that run")
        };
        Self {
            rows: if l.rows && r.rows { COMPARED.to_owned() } else { missing(!l.rows, !r.rows) },
            values: values(left, right, scale),
            tokens,
        }
    }

    /// Parts that were not compared, as the end of a sentence; empty where all were.
    pub(crate) fn lacking(&self) -> String {
        let parts: Vec<String> =
            [("rows", &self.rows), ("values", &self.values), ("tokens", &self.tokens)]
                .into_iter()
                .filter(|(_, state)| !state.starts_with(COMPARED))
                .map(|(part, state)| {
                    // The reason stands among the limits.
                    let place = state.split(':').next().unwrap_or(state);
                    format!("{part} {place}")
                })
                .collect();
        if parts.is_empty() { String::new() } else { format!("; {}", parts.join(", ")) }
    }

    /// One line for each part that was not compared as it stands.
    pub(crate) fn limits(&self) -> Vec<String> {
        [("rows", &self.rows), ("values", &self.values), ("tokens", &self.tokens)]
            .into_iter()
            .filter(|(_, state)| *state != COMPARED)
            .map(|(part, state)| format!("{part}: {state}"))
            .collect()
    }
}

/// Do ids of the two sides mean the same?
pub(crate) fn tokens_comparable(left: &Side<'_>, right: &Side<'_>, joint: bool) -> bool {
    [left, right].iter().all(|side| match side.manifest.limits.token_ids {
        TokenIds::Given | TokenIds::Tokenizer => true,
        TokenIds::Invented => joint,
        TokenIds::Nothing => false,
    })
}

fn missing(left: bool, right: bool) -> String {
    let place = match (left, right) {
        (true, true) => "left and right",
        (true, false) => "left",
        _ => "right",
    };
    format!("not available on the {place}")
}

fn values(left: &Side<'_>, right: &Side<'_>, scale: Scale) -> String {
    let kinds = [left.manifest.limits.values, right.manifest.limits.values];
    let sides = |test: &dyn Fn(&Side<'_>) -> bool| missing(test(left), test(right));
    match scale {
        Scale::Same => COMPARED.to_owned(),
        Scale::Normalised { logits_left } => format!(
            "compared as log-probabilities: the logits of the {} less their log-sum-exp, or, where that is not known, both sides \
             less the largest of the row",
            if logits_left { "left" } else { "right" }
        ),
        Scale::Ranks => {
            let processed =
                |side: &Side<'_>| side.manifest.limits.values == Values::ProcessedLogprobs;
            let how = if kinds == [Values::ProcessedLogprobs; 2] {
                "with other settings on either side"
            } else {
                "and those of the other side do not"
            };
            format!(
                "{}: values after temperature or filters, {how}; ranks and argmax are compared (a temperature keeps them, filters \
                 only cut the list, penalties and biases do change them)",
                sides(&processed)
            )
        }
        Scale::Nothing if kinds.contains(&Values::Nothing) => {
            sides(&|side| side.manifest.limits.values == Values::Nothing)
        }
        Scale::Nothing => {
            let vague = |side: &Side<'_>| matches!(Precision::of(side.manifest), Precision::Within(error) if error == f64::INFINITY);
            format!("{}: their precision is not recorded", sides(&vague))
        }
    }
}

/// Steps whose ids mean nothing to the other side: every id is unknown.
fn without_ids(steps: &StepColumns) -> StepColumns {
    let mut out = steps.clone();
    out.token_id.fill(UNKNOWN_TOKEN);
    out.argmax.fill(UNKNOWN_TOKEN);
    out.next_token.fill(None);
    out.top_ids.fill(UNKNOWN_TOKEN);
    out
}

/// A side whose ids mean nothing to the other one.
pub(crate) struct Masked {
    steps: StepColumns,
    samples: Vec<SampleRow>,
}

impl Masked {
    pub(crate) fn of(side: &Side<'_>) -> Self {
        let samples = side.samples.iter().map(|row| SampleRow {
            prompt_ids: Vec::new(),
            prompt_ids_sha256: String::new(),
            generated_ids: Vec::new(),
            ..row.clone()
        });
        Self { steps: without_ids(side.steps), samples: samples.collect() }
    }

    pub(crate) fn side<'a>(&'a self, side: &Side<'a>) -> Side<'a> {
        Side { samples: &self.samples, steps: &self.steps, ..*side }
    }
}

/// What a source cannot say beyond the parts that are missing.
pub(crate) fn source_limits(side: &Side<'_>, word: &str) -> Vec<String> {
    let limits = &side.manifest.limits;
    let mut out = Vec::new();
    if limits.values == Values::UnsaidLogprobs {
        out.push(format!(
            "the {word} does not say whether its log-probabilities stand before or after temperature and filters"
        ));
    }
    match limits.token_ids {
        TokenIds::Tokenizer => out.push(format!(
            "token ids on the {word} were found by a tokenizer: two ids of equal text cannot be told apart"
        )),
        TokenIds::Invented => out.push(format!(
            "tokens on the {word} are texts: two ids of equal text count as one"
        )),
        TokenIds::Given | TokenIds::Nothing => {}
    }
    out.extend(limits.cannot.iter().map(|line| format!("{word}: {line}")));
    out
}
