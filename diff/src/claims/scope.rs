//! A claim's scope against what its evidence covers.

use std::collections::BTreeSet;

use lockstep_traces::claims::{Coverage, Scope, Window};

use super::Wider;

/// Modes that evidence states in these words. Where it states another word of the same row, the claim goes beyond it.
const KINDS: [&[&str]; 6] = [
    &["greedy", "sampled"],
    &["f32", "f16", "bf16", "f64"],
    &["cpu", "cuda", "candle-cpu"],
    &["dense", "recent", "random", "triattention"],
    &["trt", "hf", "vllm", "sglang"],
    &["compressed"],
];

/// Parts of `scope` that `covers` does not reach, and what the evidence leaves open.
pub(super) fn wider(scope: &Scope, covers: &Coverage) -> (Vec<Wider>, Vec<String>) {
    let mut found = Vec::new();
    let mut add = |dimension: &str, claimed: Vec<String>, covered: Vec<String>| {
        if !claimed.is_empty() {
            found.push(Wider { dimension: dimension.to_owned(), claimed, covered });
        }
    };
    let samples = scope.samples.iter().filter(|id| !covers.samples.contains(*id)).cloned();
    add("samples", samples.collect(), covers.samples.iter().cloned().collect());
    let ordinals = scope.ordinals.iter().filter(|n| !covers.ordinals.contains(n));
    add("ordinals", ordinals.map(u32::to_string).collect(), strings(&covers.ordinals));
    let windows = merged(&covers.windows);
    let outside = |window: &&Window| {
        !windows.iter().any(|have| have.first <= window.first && window.last <= have.last)
    };
    let beyond = scope.windows.iter().filter(outside);
    add("windows", beyond.map(Window::to_string).collect(), strings(&windows));
    let (modes, notes) = modes(scope, covers);
    add("modes", modes, covers.modes.iter().cloned().collect());
    (found, notes)
}

fn strings<'a, T: ToString + 'a>(values: impl IntoIterator<Item = &'a T>) -> Vec<String> {
    values.into_iter().map(ToString::to_string).collect()
}

/// Windows that touch or overlap are one.
fn merged(windows: &BTreeSet<Window>) -> Vec<Window> {
    let mut out: Vec<Window> = Vec::new();
    for window in windows {
        match out.last_mut() {
            Some(last) if window.first <= last.last.saturating_add(1) => {
                last.last = last.last.max(window.last);
            }
            _ => out.push(*window),
        }
    }
    out
}

/// Modes that the evidence contradicts or does not reach, and those on which it is silent because nothing records them.
fn modes(scope: &Scope, covers: &Coverage) -> (Vec<String>, Vec<String>) {
    let (mut beyond, mut notes) = (Vec::new(), Vec::new());
    for mode in &scope.modes {
        let word = mode.to_lowercase();
        if covers.modes.contains(&word) {
            continue;
        }
        if KINDS.iter().any(|kind| kind.contains(&word.as_str())) {
            beyond.push(mode.clone());
        } else {
            notes.push(format!("no cited artifact states the mode `{mode}`"));
        }
    }
    (beyond, notes)
}
