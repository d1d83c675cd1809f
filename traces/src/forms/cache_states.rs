//! What a cache held after each step, under a stated rule.

use std::path::Path;

use super::fields::{Field, root};
use crate::TraceError;

/// Tokens of a file at most: every policy is stepped through all of them.
const MOST_TOKENS: u64 = 1 << 20;
/// Tokens times rows of the rule at most.
const MOST_WORK: u64 = 1 << 30;

/// Rows of a cache after each step. The JSON:
///
/// `{"window": W, "steps": [{"after_tokens": n, NAME: [position | null, ..], ..}, ..]}` or
/// `{"sink": S, "recent": R, "start": [position, ..], "steps": [{"new": position | [..], NAME: [..]}, ..]}`
///
/// The rule is either a window (the last W rows) or sinks (the first S rows for ever) and the last R others. A step says which rows it
/// appended: `new`, their positions, or `after_tokens`, how many tokens have been fed since position 0. Each other member is the state of
/// the implementation of that name: a list of positions by slot, `null` for a slot that was never written. `start` is what lay in the
/// cache before the first step (nothing without it).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CacheStates {
    /// Rows kept for ever at the front.
    pub sink: usize,
    /// Rows kept at the end.
    pub recent: usize,
    /// The rule was written as a window.
    pub window: bool,
    /// Rows before the first step.
    pub start: Vec<u64>,
    /// Steps in order.
    pub steps: Vec<CacheStep>,
    /// Implementations in the order of their first state.
    pub names: Vec<String>,
}

/// One step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CacheStep {
    /// Positions appended in this step.
    pub fed: Vec<u64>,
    /// Rows ever appended, those of the start among them.
    pub tokens: u64,
    /// States by implementation.
    pub states: Vec<CacheState>,
}

/// The state of one implementation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CacheState {
    /// Implementation.
    pub name: String,
    /// Position by slot; `None`: never written.
    pub slots: Vec<Option<u64>>,
}

impl CacheStates {
    /// Reads a file.
    ///
    /// # Errors
    /// [`TraceError`] with the place of what is missing, unknown or contradicts the rest.
    pub fn read(path: &Path) -> Result<Self, TraceError> {
        let node = root(path)?;
        let form = Field::root(path, &node);
        form.only(&[
            "window",
            "sliding_window",
            "sink",
            "sinks",
            "recent",
            "start",
            "steps",
            "note",
        ])?;
        let (sink, recent, window) = rule(&form)?;
        let start = form.get(&["start"]).map_or(Ok(Vec::new()), |field| {
            let rows = field.indices()?;
            rising(&field, None, &rows)?;
            Ok(rows)
        })?;
        if start.len() > sink + recent {
            let what = format!("holds {} rows; the rule keeps {}", start.len(), sink + recent);
            return Err(form.need(&["start"])?.fault(what));
        }
        let mut out = Self { sink, recent, window, start, steps: Vec::new(), names: Vec::new() };
        let mut last = out.start.last().copied();
        let mut tokens = out.start.len() as u64;
        for step in form.need(&["steps"])?.list()? {
            let fed = fed(&step, last, tokens)?;
            tokens += fed.len() as u64;
            if tokens.saturating_mul((sink + recent) as u64) > MOST_WORK {
                return Err(step.fault("too many tokens for rows of this number; split the file"));
            }
            last = fed.last().copied().or(last);
            let states = states(&step)?;
            for state in &states {
                if !out.names.contains(&state.name) {
                    out.names.push(state.name.clone());
                }
            }
            out.steps.push(CacheStep { fed, tokens, states });
        }
        Ok(out)
    }
}

fn rule(form: &Field<'_>) -> Result<(usize, usize, bool), TraceError> {
    let size = |field: Field<'_>| {
        let value = field.index()?;
        usize::try_from(value)
            .ok()
            .filter(|value| *value as u64 <= MOST_TOKENS)
            .ok_or_else(|| field.fault(format!("{value} rows; up to {MOST_TOKENS} are checked")))
    };
    let window = form.get(&["window", "sliding_window"]);
    let sink = form.get(&["sink", "sinks"]);
    let (sink, recent, is_window) = match (window, sink) {
        (Some(_), Some(_)) => {
            return Err(
                form.fault("`window` and `sink` both stand here: write sinks with `recent`")
            );
        }
        (Some(window), None) => (0, size(window)?, true),
        (None, Some(sink)) => (size(sink)?, size(form.need(&["recent"])?)?, false),
        (None, None) => return Err(form.fault("`window`, or `sink` and `recent`, is missing")),
    };
    if recent == 0 {
        return Err(form.fault("the rule keeps no recent row"));
    }
    Ok((sink, recent, is_window))
}

/// Positions that a step appended.
fn fed(step: &Field<'_>, last: Option<u64>, before: u64) -> Result<Vec<u64>, TraceError> {
    match (step.get(&["new"]), step.get(&["after_tokens"])) {
        (Some(new), None) => {
            let rows = if new.node.list().is_some() { new.indices()? } else { vec![new.index()?] };
            rising(&new, last, &rows)?;
            Ok(rows)
        }
        (None, Some(after)) => {
            if before != last.map_or(0, |last| last + 1) {
                return Err(after.fault("rows are missing before this step: say which are `new`"));
            }
            let tokens = after.index()?;
            if tokens < before {
                let what = format!("{tokens} tokens after a step that had {before}");
                return Err(after.fault(what));
            }
            if tokens > MOST_TOKENS {
                return Err(after.fault(format!("up to {MOST_TOKENS} tokens are checked")));
            }
            Ok((before..tokens).collect())
        }
        _ => Err(step.fault("exactly one of `new` and `after_tokens` is expected")),
    }
}

fn rising(field: &Field<'_>, last: Option<u64>, rows: &[u64]) -> Result<(), TraceError> {
    let mut before = last;
    for row in rows {
        if before.is_some_and(|before| before >= *row) {
            return Err(
                field.fault(format!("position {row} does not come after the one before it"))
            );
        }
        before = Some(*row);
    }
    Ok(())
}

fn states(step: &Field<'_>) -> Result<Vec<CacheState>, TraceError> {
    let mut states = Vec::new();
    for (name, field) in step.members()? {
        if !["new", "after_tokens", "note"].contains(&name) {
            let slots = field
                .list()?
                .iter()
                .map(|slot| slot.maybe(Field::index))
                .collect::<Result<Vec<_>, _>>()?;
            states.push(CacheState { name: name.to_owned(), slots });
        }
    }
    Ok(states)
}
