//! The native filters against kept sets of transformers: the same wherever nothing ties. Its own rules are run by `conformance`.

use std::collections::BTreeSet;
use std::path::PathBuf;

use safetensors::SafeTensors;
use serde_json::Value;

use super::filter::{Filters, Survivors};

fn folder(name: &str) -> PathBuf {
    let path = lockstep_testkit::golden().join(name);
    assert!(path.is_dir(), "the golden folder has no {name}");
    path
}

fn json(path: PathBuf) -> Value {
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

/// Elements of `N` bytes.
fn elements<const N: usize, T>(
    tensors: &SafeTensors<'_>,
    name: &str,
    element: impl Fn([u8; N]) -> T,
) -> Vec<T> {
    let tensor = tensors.tensor(name).unwrap();
    tensor.data().chunks_exact(N).map(|bytes| element(bytes.try_into().unwrap())).collect()
}

fn floats(tensors: &SafeTensors<'_>, name: &str) -> Vec<f32> {
    elements(tensors, name, f32::from_le_bytes)
}

#[derive(Default)]
struct Tally {
    equal: usize,
    tied: usize,
    near: usize,
    differ: Vec<String>,
}

#[test]
fn every_filter_case_of_transformers_keeps_the_same_ids_where_nothing_is_tied() {
    let folder = folder("filters");
    let cases = json(folder.join("cases.json"));
    let read = |name: &str| std::fs::read(folder.join(name)).unwrap();
    let (logits, expected) = (read("logits.safetensors"), read("expected.safetensors"));
    let logits = SafeTensors::deserialize(&logits).unwrap();
    let expected = SafeTensors::deserialize(&expected).unwrap();
    let kept = elements(&expected, "kept_ids", |bytes| u32::from(u16::from_le_bytes(bytes)));
    let probabilities = floats(&expected, "probs");
    let mut tally = Tally::default();
    for (number, case) in cases["cases"].as_array().unwrap().iter().enumerate() {
        let row = floats(&logits, &format!("logits_{:02}", case["vector"].as_u64().unwrap()));
        let at = usize::try_from(case["offset"].as_u64().unwrap()).unwrap();
        let count = usize::try_from(case["kept"].as_u64().unwrap()).unwrap();
        let range = at..at + count;
        filter_case(number, case, &row, (&kept[range.clone()], &probabilities[range]), &mut tally);
    }
    let Tally { equal, tied, near, differ } = tally;
    assert!(differ.is_empty(), "{} differ: {differ:#?}", differ.len());
    assert!(equal >= 860, "equal {equal}, tied {tied}, at an edge {near}");
    assert_eq!(equal + tied + near, 932);
}

/// Among ties other ids may stand in for each other, and transformers keeps all that are tied at rank k: the logits
/// that survive here are those that survive there, or the larger ones of them.
fn tied_alike(row: &[f32], found: &Survivors, want: &[u32]) -> bool {
    let falling = |ids: &[u32]| {
        let mut logits: Vec<f32> = ids.iter().map(|&id| row[id as usize]).collect();
        logits.sort_by(|a, b| b.total_cmp(a));
        logits
    };
    let (ours, theirs) = (falling(&found.ids), falling(want));
    let cut_at_k = found.margins.top_k == Some(0.0);
    (cut_at_k || ours.len() == theirs.len())
        && ours.iter().zip(&theirs).all(|(a, b)| a.total_cmp(b).is_eq())
}

fn filter_case(
    number: usize,
    case: &Value,
    row: &[f32],
    want: (&[u32], &[f32]),
    tally: &mut Tally,
) {
    let value = |key: &str| case[key].as_f64().map(|value| value as f32);
    let top_k = usize::try_from(case["top_k"].as_u64().unwrap()).unwrap();
    let filters = Filters {
        temperature: value("temperature").unwrap(),
        top_k: if top_k == 0 { row.len() } else { top_k },
        top_p: value("top_p").unwrap(),
        min_p: value("min_p").unwrap_or(0.0),
    };
    let mut found = Survivors::default();
    filters.apply(row, &mut found);
    let mass: f32 = found.probabilities.iter().sum();
    assert!((mass - 1.0).abs() < 1e-5, "case {number}: {mass}");
    let same_ids = found.ids.iter().collect::<BTreeSet<_>>() == want.0.iter().collect();
    let tie = found.margins.top_k == Some(0.0) || case["tie_split"] == true;
    let edge = |key: &str, limit: f64| case[key].as_f64().is_some_and(|margin| margin < limit);
    if same_ids {
        // transformers divides by the temperature before it subtracts the maximum, so that the quotient's rounding
        // error, relative to 1, is an error of the exponent; sums over thousands of terms differ in order.
        let largest = row.iter().copied().fold(f32::NEG_INFINITY, f32::max).abs();
        let relative = 2e-5 + 2.0 * f32::EPSILON * largest / filters.temperature;
        let close = want.0.iter().zip(want.1).all(|(id, want)| {
            let place = found.ids.iter().position(|found| found == id).unwrap();
            (found.probabilities[place] - want).abs() <= 1e-7 + relative * want
        });
        if close {
            tally.equal += 1;
        } else {
            tally.differ.push(format!("case {number}: probabilities; {case}"));
        }
    } else if tie && tied_alike(row, &found, want.0) {
        tally.tied += 1;
    } else if edge("top_p_margin", 1e-6) || edge("min_p_rel_margin", 1e-6) {
        tally.near += 1;
    } else {
        let ours = found.ids.len();
        tally
            .differ
            .push(format!("case {number}: {ours} kept, margins {:?}; {case}", found.margins));
    }
}
