//! Does a run's list of largest values agree with itself?

use std::collections::BTreeMap;

use lockstep_traces::limits::{TokenIds, Values};
use lockstep_traces::{Evidence, Finding, Location, UNKNOWN_TOKEN, Verdict};
use serde::{Deserialize, Serialize};

use crate::side::{Row, Side, Track};

/// What is wrong with a list.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ListFaultKind {
    /// It holds one id twice.
    Twice,
    /// A value is larger than the one before it.
    Order,
    /// The recorded argmax is not the largest of the list.
    Argmax,
    /// The value that a foreign trace gives for the argmax is not the first of the list.
    ArgmaxValue,
    /// The recorded margin is not that of the two first values.
    Margin,
    /// It holds fewer entries than other rows of the run.
    Short,
    /// A run that takes the largest value chose another token.
    Greedy,
}

impl ListFaultKind {
    /// The run contradicts itself: one of two things that it says is false. The others are facts about an engine or gaps.
    #[must_use]
    pub const fn contradiction(self) -> bool {
        matches!(self, Self::Twice | Self::Order | Self::Argmax | Self::ArgmaxValue | Self::Margin)
    }
}

/// Rows of one side with one kind of fault.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ListFault {
    /// `left` or `right`.
    pub side: String,
    /// What is wrong.
    pub kind: ListFaultKind,
    /// First row: sample; `null` where only the line of a file is known.
    pub sample_id: Option<String>,
    /// First row: position.
    pub position: Option<u32>,
    /// Rows.
    pub rows: u64,
    /// The first in words.
    pub what: String,
}

/// All faults of a side, one entry for each kind.
pub(crate) fn faults(side: &Side<'_>, name: &str) -> Vec<ListFault> {
    let logits = side.manifest.limits.values == Values::Logits;
    // A source of texts may list two tokens that read alike.
    let own_ids = side.manifest.limits.token_ids == TokenIds::Given;
    let usual = usual_length(side);
    let mut found: BTreeMap<ListFaultKind, ListFault> = BTreeMap::new();
    for track in side.tracks() {
        for at in 0..track.len {
            let Some(row) = track.row(at) else { continue };
            let mut add = |kind, what: String| {
                let fault = found.entry(kind).or_insert_with(|| ListFault {
                    side: name.to_owned(),
                    kind,
                    sample_id: Some(track.id.to_owned()),
                    position: Some(row.position),
                    rows: 0,
                    what,
                });
                fault.rows += 1;
            };
            let nan = row.stored_nan();
            if let Some(id) = twice(row.ids).filter(|_| own_ids) {
                add(ListFaultKind::Twice, format!("id {id} stands twice in its list"));
            }
            if logits && let Some((a, b)) = rising(&row).filter(|_| !nan) {
                add(ListFaultKind::Order, format!("its list goes from {a} up to {b}"));
            }
            if let Some(what) = argmax(&row).filter(|_| !nan) {
                add(ListFaultKind::Argmax, what);
            }
            if let Some(what) = margin(&row).filter(|_| !nan) {
                add(ListFaultKind::Margin, what);
            }
            if logits && !row.ids.is_empty() && row.ids.len() < usual {
                let what = format!("its list holds {} entries, others {usual}", row.ids.len());
                add(ListFaultKind::Short, what);
            }
            if side.greedy() == Some(true)
                && let Some(what) = greedy(&track, at, &row).filter(|_| !nan)
            {
                add(ListFaultKind::Greedy, what);
            }
        }
    }
    found.into_values().chain(argmax_value(side, name)).collect()
}

/// The longest list of the run.
fn usual_length(side: &Side<'_>) -> usize {
    let longest = side.steps.top_len.iter().copied().max().unwrap_or(0);
    usize::try_from(longest).unwrap_or(usize::MAX)
}

fn twice(ids: &[u32]) -> Option<u32> {
    // Lists of a few entries need no set; whole vocabularies do.
    if ids.len() <= 64 {
        let again =
            |(at, id): (usize, &u32)| ids.iter().take(at).any(|other| other == id).then_some(*id);
        return ids.iter().enumerate().filter(|(_, id)| **id != UNKNOWN_TOKEN).find_map(again);
    }
    let mut seen = std::collections::BTreeSet::new();
    ids.iter().copied().find(|id| *id != UNKNOWN_TOKEN && !seen.insert(*id))
}

fn rising(row: &Row<'_>) -> Option<(f32, f32)> {
    let pairs = row.logits.iter().zip(row.logits.iter().skip(1));
    pairs.map(|(a, b)| (*a, *b)).find(|(a, b)| b > a)
}

fn largest(row: &Row<'_>) -> Option<(u32, f32)> {
    let entries = row.ids.iter().copied().zip(row.logits.iter().copied());
    entries.fold(None, |best: Option<(u32, f32)>, entry| match best {
        Some(best) if best.1 >= entry.1 => Some(best),
        _ => Some(entry),
    })
}

fn argmax(row: &Row<'_>) -> Option<String> {
    let (id, value) = largest(row)?;
    let best = row.best()?;
    match row.logit(best) {
        Some(own) if own >= f64::from(value) => None,
        Some(own) => {
            Some(format!("argmax {best} ({own}) is below id {id} ({value}) of its own list"))
        }
        None if row.ids.contains(&UNKNOWN_TOKEN) => None,
        None => Some(format!("argmax {best} is not in its own list, which begins with id {id}")),
    }
}

fn margin(row: &Row<'_>) -> Option<String> {
    let stored = row.stored_margin.filter(|margin| margin.is_finite())?;
    let [(_, a), (_, b)] = row.top2()?;
    let listed = a - b;
    // The difference of two f32 values, rounded once; printed values are rounded as well before they are subtracted.
    let rounding = a.abs().max(b.abs()) * f64::from(f32::EPSILON);
    let off = listed.is_finite() && (f64::from(stored) - listed).abs() > rounding;
    off.then(|| format!("its margin of the two largest is {stored}, that of its list {listed}"))
}

fn greedy(track: &Track<'_>, at: usize, row: &Row<'_>) -> Option<String> {
    if track.taught {
        return None;
    }
    let chosen = track.chosen(at)?;
    let (id, value) = largest(row)?;
    match row.logit(chosen) {
        Some(own) if own >= f64::from(value) => None,
        Some(own) => Some(format!("chose {chosen} ({own}) though id {id} ({value}) is larger")),
        None if row.ids.contains(&UNKNOWN_TOKEN) => None,
        None => Some(format!("chose {chosen}, which is not in its list; id {id} is its largest")),
    }
}

/// What the importer of a foreign trace saw of `argmax_logit`, which no table keeps.
fn argmax_value(side: &Side<'_>, name: &str) -> Option<ListFault> {
    let seen = side.manifest.get("trace.argmax_logit_differs")?;
    let number = |key: &str| seen.get(key).and_then(serde_json::Value::as_u64);
    Some(ListFault {
        side: name.to_owned(),
        kind: ListFaultKind::ArgmaxValue,
        sample_id: None,
        position: number("position").and_then(|position| u32::try_from(position).ok()),
        rows: number("rows").unwrap_or(1),
        what: format!(
            "argmax_logit is not the largest of top_logits (line {})",
            number("line").unwrap_or(0)
        ),
    })
}

/// A run that contradicts itself agrees with nothing, and one that shows less of some rows than of others is not identical.
pub(crate) fn with_faults(
    verdict: Verdict,
    summary: String,
    faults: &[ListFault],
) -> (Verdict, String) {
    if verdict.exit_code() != 0 {
        return (verdict, summary);
    }
    if let Some(fault) = faults.iter().find(|fault| fault.kind.contradiction()) {
        let why = words(fault);
        return (Verdict::Incomparable { why: why.clone() }, why);
    }
    match faults.iter().find(|fault| fault.kind == ListFaultKind::Short) {
        Some(fault) if verdict == Verdict::Identical => {
            (Verdict::WithinNoise, format!("{summary}; less is stored of {}", words(fault)))
        }
        _ => (verdict, summary),
    }
}

fn words(fault: &ListFault) -> String {
    let place = match (&fault.sample_id, fault.position) {
        (Some(sample), Some(position)) => format!(" (sample `{sample}`, position {position})"),
        (_, Some(position)) => format!(" (position {position})"),
        _ => String::new(),
    };
    let end = if fault.kind.contradiction() { ": the trace contradicts itself" } else { "" };
    let rows = if fault.rows == 1 {
        "a row".to_owned()
    } else {
        format!("{} rows, the first", fault.rows)
    };
    format!("{rows} of the {} side{place}: {}{end}", fault.side, fault.what)
}

pub(crate) fn finding(fault: &ListFault) -> Finding {
    Finding {
        cause: None,
        title: words(fault),
        location: Location {
            sample_id: fault.sample_id.clone(),
            position: fault.position,
            stage: Some("logits".to_owned()),
            ..Location::default()
        },
        evidence: vec![
            figure("side", fault.side.as_str()),
            figure("rows", fault.rows),
            figure("fault", serde_json::to_value(fault.kind).unwrap_or_default()),
        ],
    }
}

fn figure(name: &str, value: impl Into<serde_json::Value>) -> Evidence {
    Evidence { name: name.to_owned(), value: value.into() }
}
