//! Which transform of the logits gives a list of log-probabilities, and whether it can be brought back to the plain one.
//!
//! With logits z, temperature T and the softmax's logarithm L(z) = z - ln(sum(exp z)), servers write L(z), L(z/T), L(z/T)
//! over the kept set of top-p, or L(z)/T, which is no distribution. Everything is computed here in f64.

use lockstep_traces::Verdict;
use lockstep_traces::logprobs::{Logprob, LogprobFile, Part, Sequence, State};
use serde::Serialize;

/// Rounding of values that were computed in f32 and printed.
const F32_SLACK: f64 = 2e-6;
/// By how much the probabilities of a distribution may miss 1.
const SUM_SLACK: f64 = 1e-3;

/// Sampler settings that a transform may have used.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Settings {
    /// Temperature; 1 changes nothing.
    pub temperature: f64,
    /// Top-p; 1 keeps everything.
    pub top_p: f64,
}

impl Default for Settings {
    fn default() -> Self {
        Self { temperature: 1.0, top_p: 1.0 }
    }
}

/// What a list may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Convention {
    /// Log-softmax of the logits.
    Raw,
    /// Log-softmax of the logits over T.
    Temperature,
    /// The same over the kept set of top-p only, normalised again; other ids cannot come.
    TemperatureTopP,
    /// The same over the kept set, not normalised again: no distribution.
    TemperatureTopPOpen,
    /// Log-softmax of the logits over the kept set of top-p at temperature 1.
    TopP,
    /// Log-softmax of the logits, divided by T: no distribution.
    Scaled,
    /// The logits themselves.
    Logits,
    /// The logits over T.
    ScaledLogits,
}

impl Convention {
    const ALL: [Self; 8] = [
        Self::Raw,
        Self::Temperature,
        Self::TemperatureTopP,
        Self::TemperatureTopPOpen,
        Self::TopP,
        Self::Scaled,
        Self::Logits,
        Self::ScaledLogits,
    ];

    /// In words.
    #[must_use]
    pub const fn words(self) -> &'static str {
        match self {
            Self::Raw => "log-softmax of the logits",
            Self::Temperature => "after temperature",
            Self::TemperatureTopP => "after temperature and top-p, renormalised over the kept ids",
            Self::TemperatureTopPOpen => {
                "after temperature and top-p, not renormalised: no distribution"
            }
            Self::TopP => "after top-p at temperature 1, renormalised over the kept ids",
            Self::Scaled => "log-softmax divided by the temperature: no distribution",
            Self::Logits => "logits, not log-probabilities",
            Self::ScaledLogits => "logits over the temperature, not log-probabilities",
        }
    }

    /// The list that this convention gives, `[vocab]`; `None` for ids that cannot come.
    #[must_use]
    pub fn expected(self, logits: &[f64], settings: Settings) -> Vec<Option<f64>> {
        let Settings { temperature, top_p } = settings;
        let over = |t: f64| -> Vec<f64> { logits.iter().map(|z| z / t).collect() };
        let all = |list: Vec<f64>| list.into_iter().map(Some).collect();
        match self {
            Self::Raw => all(log_softmax(logits)),
            Self::Temperature => all(log_softmax(&over(temperature))),
            Self::TemperatureTopP => kept(&log_softmax(&over(temperature)), top_p, true),
            Self::TemperatureTopPOpen => kept(&log_softmax(&over(temperature)), top_p, false),
            Self::TopP => kept(&log_softmax(logits), top_p, true),
            Self::Scaled => all(log_softmax(logits).into_iter().map(|v| v / temperature).collect()),
            Self::Logits => all(logits.to_vec()),
            Self::ScaledLogits => all(over(temperature)),
        }
    }
}

/// `z - ln(sum(exp z))`, shifted by the maximum; values that are no number are left out of the sum.
fn log_softmax(logits: &[f64]) -> Vec<f64> {
    let finite = || logits.iter().copied().filter(|z| !z.is_nan());
    let largest = finite().fold(f64::NEG_INFINITY, f64::max);
    let sum: f64 = finite().map(|z| (z - largest).exp()).sum();
    logits.iter().map(|z| z - largest - sum.ln()).collect()
}

/// The kept set of top-p: ids by falling probability (lower id first where equal) up to and including the one with which
/// the sum reaches p.
fn kept(list: &[f64], top_p: f64, renormalised: bool) -> Vec<Option<f64>> {
    let mut order: Vec<usize> =
        (0..list.len()).filter(|id| list.get(*id).is_some_and(|v| !v.is_nan())).collect();
    order.sort_by(|a, b| list[*b].total_cmp(&list[*a]).then(a.cmp(b)));
    let mut out = vec![None; list.len()];
    let mut mass = 0.0;
    for id in order {
        if mass >= top_p {
            break;
        }
        mass += list[id].exp();
        out[id] = Some(list[id]);
    }
    if renormalised {
        out.iter_mut().flatten().for_each(|value| *value -= mass.ln());
    }
    out
}

/// How far a list lies from what a convention gives.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Distance {
    /// Convention.
    pub convention: Convention,
    /// Largest difference over ids measured on both sides; `null` where there is none.
    pub max_error: Option<f64>,
    /// Ids that one side has and the other says cannot come.
    pub misplaced: usize,
    /// Within the printed digits, and every id in its place.
    pub fits: bool,
}

/// The list brought back to the log-softmax of the logits.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ToRaw {
    /// It can be done.
    pub possible: bool,
    /// How, or why not.
    pub why: String,
    /// The result by id, where it can be done; `null` for ids that are not listed.
    pub values: Option<Vec<Option<f64>>>,
    /// Largest difference of the result from the log-softmax of the logits.
    pub max_error: Option<f64>,
}

/// One list, identified.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ListAnswer {
    /// Name of the list.
    pub name: String,
    /// The convention that gives it; `null` where none does or several do that differ.
    pub convention: Option<Convention>,
    /// All conventions that give it: several where the settings make them equal.
    pub fits: Vec<Convention>,
    /// In words.
    pub words: String,
    /// Sum of the probabilities that the list claims.
    pub probability_sum: f64,
    /// They sum to 1.
    pub distribution: bool,
    /// Ids that are measured.
    pub kept: Vec<u32>,
    /// Ids that the list says cannot come.
    pub lost: Vec<u32>,
    /// Distances to every convention.
    pub distances: Vec<Distance>,
    /// The way back.
    pub to_raw: ToRaw,
}

/// Lists of one row, identified against its logits.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Transforms {
    /// Settings that were tried.
    pub settings: Settings,
    /// Lists.
    pub lists: Vec<ListAnswer>,
    /// All lists follow one convention, so that they may be compared as they are.
    pub one_convention: bool,
    /// All lists can be brought to the log-softmax of the logits.
    pub all_to_raw: bool,
    /// `identical` where every list is identified and may be compared, `incomparable` where one lost what a comparison
    /// needs, `diverged` where one is not identified.
    pub verdict: Verdict,
    /// One line for people.
    pub summary: String,
}

/// Identifies every list of a file that has logits. `None` where it has none.
#[must_use]
pub fn identify(file: &LogprobFile, settings: Settings) -> Option<Transforms> {
    if file.logits.is_empty() {
        return None;
    }
    let lists =
        file.sequences.iter().map(|sequence| list(sequence, &file.logits, settings)).collect();
    Some(judged(lists, settings))
}

/// Identifies the candidates of each completion entry against the logits of its row, `rows[entry][vocab]`. Candidates
/// need ids; ids that an entry does not list say nothing.
#[must_use]
pub fn identify_rows(file: &LogprobFile, rows: &[Vec<f64>], settings: Settings) -> Transforms {
    let mut lists = Vec::new();
    for sequence in file.sequences.iter().filter(|sequence| sequence.part == Part::Completion) {
        for (index, (entry, row)) in sequence.entries.iter().zip(rows).enumerate() {
            let name =
                format!("record {} choice {} entry {index}", sequence.record, sequence.choice);
            let one =
                Sequence { name: Some(name), entries: vec![entry.clone()], ..sequence.clone() };
            lists.push(list(&one, row, settings));
        }
    }
    judged(lists, settings)
}

fn judged(lists: Vec<ListAnswer>, settings: Settings) -> Transforms {
    let first = lists.first().map(|list| list.fits.clone()).unwrap_or_default();
    let one_convention = lists.iter().all(|list| list.fits.iter().any(|fit| first.contains(fit)));
    let all_to_raw = lists.iter().all(|list| list.to_raw.possible);
    let unknown: Vec<&str> =
        lists.iter().filter(|list| list.fits.is_empty()).map(|list| list.name.as_str()).collect();
    let stuck: Vec<&str> =
        lists.iter().filter(|list| !list.to_raw.possible).map(|list| list.name.as_str()).collect();
    let (verdict, summary) = if lists.is_empty() {
        let why = "no list stands beside the logits".to_owned();
        (Verdict::Incomparable { why: why.clone() }, why)
    } else if !unknown.is_empty() {
        let what = format!("no known transform of the logits gives {}", unknown.join(", "));
        (Verdict::Diverged, what)
    } else if !stuck.is_empty() && !one_convention {
        let why = format!(
            "{} cannot be brought to the log-softmax of the logits: ids are lost",
            stuck.join(", ")
        );
        (Verdict::Incomparable { why: why.clone() }, why)
    } else {
        (Verdict::Identical, format!("{} lists, each given by a known transform", lists.len()))
    };
    Transforms { settings, lists, one_convention, all_to_raw, verdict, summary }
}

fn list(sequence: &Sequence, logits: &[f64], settings: Settings) -> ListAnswer {
    let mut values: Vec<Logprob> = vec![Logprob::ABSENT; logits.len()];
    for candidate in sequence.entries.iter().flat_map(|entry| &entry.candidates) {
        let id = candidate.token.id.and_then(|id| usize::try_from(id).ok());
        if let Some(place) = id.and_then(|id| values.get_mut(id)) {
            *place = candidate.logprob;
        }
    }
    let ids = |state: State| -> Vec<u32> {
        let of = (0_u32..).zip(&values).filter(|(_, value)| value.state == state);
        of.map(|(id, _)| id).collect()
    };
    let sum: f64 = values.iter().filter_map(Logprob::value).map(f64::exp).sum();
    let distances: Vec<Distance> = Convention::ALL
        .into_iter()
        .map(|convention| distance(convention, &convention.expected(logits, settings), &values))
        .collect();
    let fits: Vec<Convention> = distances
        .iter()
        .filter(|distance| distance.fits)
        .map(|distance| distance.convention)
        .collect();
    // Settings that change nothing make several conventions the same list: the plainest is named.
    let convention = fits.first().copied();
    let words = match (convention, fits.len()) {
        (None, _) => "none of the known transforms".to_owned(),
        (Some(convention), 1) => convention.words().to_owned(),
        (Some(convention), n) => {
            format!(
                "{} ({n} transforms give the same list under these settings)",
                convention.words()
            )
        }
    };
    let to_raw = to_raw(convention, &values, logits, settings);
    ListAnswer {
        name: sequence.name.clone().unwrap_or_default(),
        convention,
        fits,
        words,
        probability_sum: sum,
        distribution: (sum - 1.0).abs() <= SUM_SLACK,
        kept: ids(State::Measured),
        lost: ids(State::Impossible),
        distances,
        to_raw,
    }
}

fn distance(convention: Convention, expected: &[Option<f64>], values: &[Logprob]) -> Distance {
    let (mut max_error, mut misplaced, mut within) = (None::<f64>, 0, true);
    for (expected, found) in expected.iter().zip(values) {
        match (expected, found.state) {
            (Some(expected), State::Measured) => {
                let error = (expected - found.written).abs();
                let slack = 0.5 * 10_f64.powi(-i32::from(found.decimals));
                within &= error <= slack + F32_SLACK * (1.0 + expected.abs());
                max_error = Some(max_error.map_or(error, |max| max.max(error)));
            }
            (Some(_), State::Impossible | State::Nan) | (None, State::Measured) => misplaced += 1,
            _ => {}
        }
    }
    let fits = within && misplaced == 0 && max_error.is_some();
    Distance { convention, max_error, misplaced, fits }
}

fn to_raw(
    convention: Option<Convention>,
    values: &[Logprob],
    logits: &[f64],
    settings: Settings,
) -> ToRaw {
    let no =
        |why: &str| ToRaw { possible: false, why: why.to_owned(), values: None, max_error: None };
    let Some(convention) = convention else {
        return no("the transform is not known");
    };
    let measured: Vec<Option<f64>> = values.iter().map(Logprob::value).collect();
    let full: Option<Vec<f64>> = measured.iter().copied().collect();
    let t = settings.temperature;
    let scaled = |list: &[f64]| -> Vec<f64> { list.iter().map(|value| value * t).collect() };
    let whole = |list: Vec<f64>| list.into_iter().map(Some).collect();
    let (why, list): (_, Vec<Option<f64>>) = match (convention, full) {
        (Convention::Raw, _) => ("it is the log-softmax already", measured),
        (Convention::Scaled, _) => (
            "times the temperature",
            measured.into_iter().map(|value| value.map(|value| value * t)).collect(),
        ),
        (Convention::Temperature | Convention::ScaledLogits, Some(list)) => (
            "times the temperature, then normalised over the whole vocabulary",
            whole(log_softmax(&scaled(&list))),
        ),
        (Convention::Logits, Some(list)) => {
            ("normalised over the whole vocabulary", whole(log_softmax(&list)))
        }
        (Convention::TemperatureTopP | Convention::TemperatureTopPOpen | Convention::TopP, _) => {
            return no(
                "ids outside the kept set are lost, and with them the normaliser: only differences between kept ids are known",
            );
        }
        (_, None) => {
            return no("not every id is listed, and with the others the normaliser is lost");
        }
    };
    let errors = log_softmax(logits)
        .into_iter()
        .zip(&list)
        .filter_map(|(raw, value)| Some((raw - (*value)?).abs()));
    let error = errors.fold(0.0, f64::max);
    ToRaw { possible: true, why: why.to_owned(), values: Some(list), max_error: Some(error) }
}
