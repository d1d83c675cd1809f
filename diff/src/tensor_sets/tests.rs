//! Hand-worked figures, planted mistakes of layout, and what may never pass.

use std::collections::BTreeMap;
use std::path::PathBuf;

use half::bf16;
use lockstep_traces::store::write_safetensors;
use lockstep_traces::tensor_files::{ReadOptions, TensorSet, read};
use lockstep_traces::{DType, Tensor, Verdict};

use super::*;

mod faults;
mod judged;

struct Home(tempfile::TempDir);

impl Home {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn set(&self, name: &str, tensors: &[Tensor]) -> TensorSet {
        let path: PathBuf = self.0.path().join(format!("{name}.safetensors"));
        write_safetensors(&path, &BTreeMap::new(), tensors).unwrap();
        read(&path, &ReadOptions::default()).unwrap()
    }
}

fn f32s(name: &str, shape: &[usize], values: &[f32]) -> Tensor {
    Tensor::from_f32(name, shape.to_vec(), values)
}

fn bf16s(name: &str, shape: &[usize], values: &[f32]) -> Tensor {
    let data = values.iter().flat_map(|value| bf16::from_f32(*value).to_le_bytes()).collect();
    Tensor { name: name.into(), dtype: DType::Bf16, shape: shape.to_vec(), data }
}

/// Values without a pattern.
fn noise(n: usize, seed: u32) -> Vec<f32> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / 16_777_216.0 - 0.5
    };
    (0..n).map(|_| next() + next() + next()).collect()
}

fn mapped(yaml: &str) -> SetOptions<'static> {
    SetOptions { map: NameMap::parse(yaml, "map.yaml").unwrap(), ..SetOptions::default() }
}

#[track_caller]
fn compared(left: &TensorSet, right: &TensorSet, options: &SetOptions<'_>) -> SetsReport {
    compare(left, right, options).unwrap()
}

#[test]
fn figures_are_the_hand_worked_ones() {
    let home = Home::new();
    let left = home.set("a", &[f32s("t", &[2, 2], &[3.0, 4.0, 0.0, -1.0])]);
    let right = home.set("b", &[f32s("t", &[2, 2], &[3.0, 4.5, 0.25, -1.0])]);
    let report = compared(&left, &right, &SetOptions::default());
    let pair = &report.pairs[0];
    let found = &pair.figures;
    assert_eq!((found.elements, found.equal, found.first.clone()), (4, 2, Some(vec![0, 1])));
    assert_eq!(
        (found.max_abs, found.mean_abs, found.max_rel),
        (Some(0.5), Some(0.1875), Some(0.125))
    );
    // Three baseline values are not 0; one of them differs, by an eighth.
    assert_eq!(found.mean_rel, Some(0.125 / 3.0));
    let near = |found: Option<f64>, expected: f64| {
        assert!((found.unwrap() - expected).abs() < 1e-15, "{found:?} {expected}");
    };
    // Squares: differences 0.25 + 0.0625, left 9 + 16 + 1, right 9 + 20.25 + 0.0625 + 1, product 9 + 18 + 1.
    near(found.relative_l2, (0.3125_f64 / 26.0).sqrt());
    near(found.deepgemm, 1.0 - 2.0 * 28.0 / (26.0 + 30.3125));
    near(found.cosine, 28.0 / (26.0_f64 * 30.3125).sqrt());
    near(found.rmse, (0.3125_f64 / 4.0).sqrt());
    let q = found.abs_quantiles.clone().unwrap();
    assert_eq!((q.n, q.p50, q.p90, q.max), (4, 0.0, 0.5, 0.5));
    // 4 to 4.5 are 2^20 steps of 2^-21; 0 to 0.25 is every f32 up to it.
    let far = u64::from(0.25_f32.to_bits());
    let bins: Vec<(u64, u64)> =
        found.ulp_histogram.iter().map(|bin| (bin.to, bin.elements)).collect();
    assert_eq!((bins, found.max_ulp), (vec![(0, 2), (1 << 20, 1), (1 << 30, 1)], Some(far)));
    let worst = found.worst.clone().unwrap();
    assert_eq!(
        (worst.index, worst.left, worst.right, worst.abs),
        (vec![0, 1], Some(4.0), Some(4.5), Some(0.5))
    );
    assert_eq!((report.verdict, report.first.as_deref()), (Verdict::Diverged, Some("t")));
}

#[test]
fn one_ulp_far_in_is_found_at_its_coordinate() {
    let home = Home::new();
    let mut values = noise(300_000, 1);
    let left = home.set("a", &[f32s("t", &[30, 100, 100], &values)]);
    values[123_456] = f32::from_bits(values[123_456].to_bits() + 1);
    let right = home.set("b", &[f32s("t", &[30, 100, 100], &values)]);
    let pair = compared(&left, &right, &SetOptions::default()).pairs.remove(0);
    assert_eq!((pair.figures.max_ulp, pair.figures.equal), (Some(1), 299_999));
    assert_eq!(pair.figures.first, Some(vec![12, 34, 56]));
    assert_eq!(pair.figures.worst.unwrap().index, [12, 34, 56]);
    assert!(pair.hints.is_empty(), "{:?}", pair.hints);
    assert_eq!(compared(&left, &left, &SetOptions::default()).verdict, Verdict::Identical);
}

#[test]
fn nan_is_a_difference_on_one_side_and_undecided_on_both() {
    let home = Home::new();
    let clean = home.set("a", &[f32s("t", &[4], &[1.0, 2.0, 3.0, 4.0])]);
    let broken = home.set("b", &[f32s("t", &[4], &[1.0, 2.0, f32::NAN, 4.0])]);
    let loose = SetOptions { preset: Preset::Torch, ..SetOptions::default() };
    let pair = compared(&clean, &broken, &loose).pairs.remove(0);
    assert_eq!(
        (pair.status, pair.figures.nan_left, pair.figures.nan_right),
        (Status::Diverged, 0, 1)
    );
    assert!(pair.why.contains("NaN 0 and 1") && pair.why.contains("[2]"), "{}", pair.why);
    assert_eq!(pair.figures.worst.unwrap().index, [2]);
    let both = compared(&broken, &broken, &SetOptions::default());
    assert_eq!((both.pairs[0].status, both.verdict.exit_code()), (Status::Incomparable, 4));
    let allowed =
        compared(&broken, &broken, &SetOptions { nan_equal: true, ..SetOptions::default() });
    assert_eq!(allowed.verdict, Verdict::Identical);
    let masked = home.set("c", &[f32s("t", &[2], &[f32::NEG_INFINITY, 1.0])]);
    let other = home.set("d", &[f32s("t", &[2], &[f32::INFINITY, 1.0])]);
    assert_eq!(compared(&masked, &masked, &SetOptions::default()).verdict, Verdict::Identical);
    assert_eq!(compared(&masked, &other, &SetOptions::default()).verdict, Verdict::Diverged);
}

#[test]
fn what_has_no_partner_never_passes_and_nothing_compared_fails() {
    let home = Home::new();
    let left = home.set("a", &[f32s("x", &[1], &[1.0]), f32s("rank0.y", &[1], &[2.0])]);
    let right = home.set("b", &[f32s("x", &[1], &[1.0]), f32s("z", &[1], &[2.0])]);
    let report = compared(&left, &right, &SetOptions::default());
    assert_eq!(
        (report.verdict.exit_code(), report.left_only.len(), report.right_only.len()),
        (4, 1, 1)
    );
    let allow =
        SetOptions { allow_skip: vec!["z".into(), r"rank\d+\.y".into()], ..SetOptions::default() };
    let report = compared(&left, &right, &allow);
    assert_eq!((report.verdict.clone(), report.skipped.len()), (Verdict::Identical, 2));
    // A part of a name allows nothing.
    let part = SetOptions { allow_skip: vec!["z".into(), "rank".into()], ..SetOptions::default() };
    assert_eq!(compared(&left, &right, &part).verdict.exit_code(), 4);
    let all = SetOptions {
        allow_skip: vec![".*".into()],
        only: Some("^[yz]".into()),
        ..SetOptions::default()
    };
    let report = compared(&left, &right, &all);
    assert_eq!((report.verdict.exit_code(), report.pairs.len()), (4, 0));
    assert!(
        report.limits.iter().any(|limit| limit.contains("3 tensors lie outside")),
        "{:?}",
        report.limits
    );
    // Two lone tensors are meant for one another; an empty one shows nothing.
    let (a, b) = (
        home.set("c", &[f32s("x", &[2], &[1.0, 2.0])]),
        home.set("d", &[f32s("y", &[2], &[1.0, 2.0])]),
    );
    assert_eq!(compared(&a, &b, &SetOptions::default()).verdict, Verdict::Identical);
    let empty = home.set("e", &[f32s("x", &[0, 2], &[])]);
    assert_eq!(compared(&empty, &empty, &SetOptions::default()).verdict.exit_code(), 4);
}

#[test]
fn names_are_matched_by_captures_and_layers_are_chosen() {
    let home = Home::new();
    let value = |layer: usize| noise(8, layer as u32);
    let left: Vec<Tensor> =
        [0, 2, 10].map(|l| f32s(&format!("model.layers.{l}.self_attn.k"), &[8], &value(l))).into();
    let right: Vec<Tensor> =
        [0, 2, 10].map(|l| f32s(&format!("blk.{l:03}.attn_k"), &[8], &value(l))).into();
    let (left, right) = (home.set("a", &left), home.set("b", &right));
    let rule = r"pairs: [{left: 'model\.layers\.(?<l>\d+)\.self_attn\.k', right: 'blk\.(?<l>\d+)\.attn_k'}]";
    let report = compared(&left, &right, &mapped(rule));
    assert_eq!((report.verdict, report.pairs.len()), (Verdict::Identical, 3));
    let names: Vec<&str> = report.pairs.iter().map(|pair| pair.right[0].as_str()).collect();
    assert_eq!(names, ["blk.000.attn_k", "blk.002.attn_k", "blk.010.attn_k"]);
    let two = SetOptions { layers: Some("2-10".parse().unwrap()), ..mapped(rule) };
    assert_eq!(compared(&left, &right, &two).pairs.len(), 2);
    let loose = r"pairs: [{left: 'model\.layers\.\d+\.self_attn\.k', right: 'blk\.\d+\.attn_k'}]";
    let report = compared(&left, &right, &mapped(loose));
    assert!(report.pairs[0].why.contains("both meant"), "{}", report.pairs[0].why);
    assert_eq!(report.verdict.exit_code(), 4);
}

#[test]
fn a_permuted_strided_large_tensor_is_read_in_the_declared_order() {
    let home = Home::new();
    let (rows, heads, dim) = (700, 6, 40);
    let values = noise(rows * heads * dim, 3);
    let mut turned = vec![0.0; values.len()];
    for row in 0..rows {
        for head in 0..heads {
            for d in 0..dim {
                turned[(head * dim + d) * rows + row] = values[(row * heads + head) * dim + d];
            }
        }
    }
    let left = home.set("a", &[f32s("k", &[rows, heads, dim], &values)]);
    let right = home.set("b", &[f32s("k", &[1, heads, dim, rows], &turned)]);
    let dims = "pairs: [{left: k, right: k, left_dims: '[rows][heads][dim]', right_dims: '1 heads dim rows'}]";
    let report = compared(&left, &right, &mapped(dims));
    assert_eq!(
        (report.verdict, report.pairs[0].shape.clone()),
        (Verdict::Identical, vec![rows, heads, dim])
    );
    let steps = "pairs: [{left: k, right: k, right_layout: [{squeeze: 0}, {permute: [2, 0, 1]}]}]";
    assert_eq!(compared(&left, &right, &mapped(steps)).verdict, Verdict::Identical);
    turned[12_345] += 1.0;
    let other = home.set("c", &[f32s("k", &[1, heads, dim, rows], &turned)]);
    let pair = compared(&left, &other, &mapped(dims)).pairs.remove(0);
    // 12345 = (head 0 * 40 + dim 17) * 700 + row 445.
    assert_eq!((pair.status, pair.figures.first), (Status::Diverged, Some(vec![445, 0, 17])));
    let undeclared = compared(&left, &right, &SetOptions::default());
    assert_eq!(undeclared.pairs[0].status, Status::Incomparable);
}

#[test]
fn maps_that_are_none_are_refused_with_their_reason() {
    for (yaml, part) in [
        ("", "is empty"),
        ("pairs: [{left: '(', right: x}]", "no regular expression"),
        ("pairs: [{left: a, right: b, colour: red}]", "colour"),
        ("tolerances: [{metric: max_abs, at_most: 1}]", "reason"),
        ("tolerances: [{metric: max_abs, at_most: 1, reason: ' '}]", "a reason"),
        ("tolerances: [{metric: mad, at_most: 1, reason: x}]", "no metric `mad`"),
        ("elements: [{names: x, element: f7}]", "unknown element type"),
        ("roles: {input: 'a', output: 'b'}", "no capture"),
        ("pairs: [{left: a, right: b, left_layout: [{squeeze: 0, merge: 1}]}]", "2 keys"),
        ("pairs: [{left: a, right: b, left_dims: x}]", "or neither"),
        ("raw: ['f32']", "write [FILES=]TYPE:SHAPE"),
        ("- 1", ""),
    ] {
        let error = NameMap::parse(yaml, "map.yaml").unwrap_err().to_string();
        assert!(
            error.contains(part) && error.starts_with("map.yaml: ") && !error.contains('\n'),
            "{yaml}: {error}"
        );
    }
    let json = r#"{"pairs": [{"left": "a", "right": "b"}], "order": ["a"]}"#;
    assert!(NameMap::parse(json, "map.json").is_ok());
}

#[test]
fn whole_numbers_beyond_the_fraction_of_f64_are_told_apart() {
    let home = Home::new();
    let set = |name: &str, text: &str| {
        let path = home.0.path().join(name);
        std::fs::write(&path, text).unwrap();
        read(&path, &ReadOptions::default()).unwrap()
    };
    // 2^53 + 1 against 2^53: equal as f64.
    let (odd, even) =
        (set("a.json", "[9007199254740993, 1]"), set("b.json", "[9007199254740992, 1]"));
    let pair = compared(&odd, &even, &SetOptions::default()).pairs.remove(0);
    assert_eq!((pair.status, pair.figures.equal), (Status::Diverged, 1), "{}", pair.why);
    assert_eq!(compared(&even, &odd, &SetOptions::default()).verdict, Verdict::Diverged);
    let (a, b) = (set("c.json", "[9007199254740993, 2]"), set("d.json", "[9007199254740993, 2]"));
    assert_eq!(compared(&a, &b, &SetOptions::default()).verdict, Verdict::Identical);
}

/// Figures of two lists, by plain loops in f64 over a full sort.
fn by_loops(left: &[f32], right: &[f32]) -> Figures {
    let pairs: Vec<(f64, f64)> =
        left.iter().zip(right).map(|(a, b)| (f64::from(*a), f64::from(*b))).collect();
    let finite: Vec<(f64, f64)> =
        pairs.iter().copied().filter(|(a, b)| a.is_finite() && b.is_finite()).collect();
    let mut apart: Vec<f64> = finite.iter().map(|(a, b)| (a - b).abs()).collect();
    let nonzero: Vec<f64> = finite
        .iter()
        .filter(|(a, _)| a.abs() > 0.0)
        .map(|(a, b)| (a - b).abs() / a.abs())
        .collect();
    let sum: f64 = apart.iter().sum();
    let n = finite.len() as f64;
    apart.sort_by(f64::total_cmp);
    let rank = |per_mille: usize| apart[(finite.len() * per_mille).div_ceil(1000) - 1];
    Figures {
        elements: pairs.len() as u64,
        equal: left.iter().zip(right).filter(|(a, b)| a.to_bits() == b.to_bits()).count() as u64,
        mean_abs: Some(sum / n),
        mean_rel: Some(nonzero.iter().sum::<f64>() / nonzero.len() as f64),
        max_rel: nonzero.iter().copied().reduce(f64::max),
        max_abs: apart.last().copied(),
        abs_quantiles: Some(crate::report::Quantiles {
            n: finite.len() as u64,
            mean: sum / n,
            p50: rank(500),
            p90: rank(900),
            p95: rank(950),
            p99: rank(990),
            p999: rank(999),
            max: apart.last().copied().unwrap(),
        }),
        ..Figures::default()
    }
}

#[test]
fn figures_over_many_blocks_are_those_of_plain_loops() {
    let home = Home::new();
    let n = 3 * 65_536 + 777;
    let base = noise(n, 31);
    // A block of equal values, one of small noise, one of unrelated values, a rest with values that are not finite.
    let other = noise(n, 32);
    let target: Vec<f32> = (0..n)
        .map(|at| match at / 65_536 {
            0 => base[at],
            1 => base[at] * (1.0 + 0.01 * other[at]),
            _ if at % 301 == 0 && at > 3 * 65_536 => f32::NEG_INFINITY,
            _ => other[at],
        })
        .collect();
    type Make = fn(&str, &[usize], &[f32]) -> Tensor;
    let half = |values: &[f32]| -> Vec<f32> {
        values.iter().map(|value| bf16::from_f32(*value).to_f32()).collect()
    };
    let cases: [(&str, Make, Vec<f32>, Vec<f32>); 2] = [
        ("single", f32s, base.clone(), target.clone()),
        ("brain", bf16s, half(&base), half(&target)),
    ];
    for (name, make, left, right) in cases {
        let expected = by_loops(&left, &right);
        let (a, b) = (
            home.set(&format!("{name}_a"), &[make("t", &[n], &base)]),
            home.set(&format!("{name}_b"), &[make("t", &[n], &target)]),
        );
        let pair = compared(&a, &b, &SetOptions::default()).pairs.remove(0);
        let found = &pair.figures;
        let near = |a: Option<f64>, b: Option<f64>, most: f64| {
            let (a, b) = (a.unwrap(), b.unwrap());
            assert!((a - b).abs() <= most * b.abs(), "{name}: {a} {b}");
        };
        assert_eq!((found.elements, found.equal), (expected.elements, expected.equal), "{name}");
        // Sums of n positive terms in another order: n roundings at most, of 1.1e-16 each.
        near(found.mean_abs, expected.mean_abs, 2e-11);
        // Quotients are rounded to f32, four roundings of 2^-24 each.
        near(found.mean_rel, expected.mean_rel, 2f64.powi(-22));
        assert_eq!((found.max_abs, found.max_rel), (expected.max_abs, expected.max_rel), "{name}");
        let (q, e) = (found.abs_quantiles.clone().unwrap(), expected.abs_quantiles.unwrap());
        assert_eq!(
            (q.n, q.p50, q.p90, q.p95, q.p99, q.p999, q.max),
            (e.n, e.p50, e.p90, e.p95, e.p99, e.p999, e.max),
            "{name}"
        );
        // Distances, counted one by one: both patterns as ranks.
        let rank = |value: &f32| {
            let bits = if name == "single" {
                i64::from(value.to_bits())
            } else {
                i64::from(bf16::from_f32(*value).to_bits())
            };
            let top = if name == "single" { 1_i64 << 31 } else { 1 << 15 };
            if bits & top == 0 { bits } else { -(bits & (top - 1)) }
        };
        for bin in &found.ulp_histogram {
            let within = left.iter().zip(&right).filter(|(a, b)| {
                let distance = rank(a).abs_diff(rank(b));
                a.is_finite() && b.is_finite() && (bin.from..=bin.to).contains(&distance)
            });
            assert_eq!(within.count() as u64, bin.elements, "{name} {}..={}", bin.from, bin.to);
        }
        let counted: u64 = found.ulp_histogram.iter().map(|bin| bin.elements).sum();
        assert_eq!(counted, q.n, "{name}");
        let odd = (3 * 65_536 + 1..n).find(|at| at % 301 == 0).unwrap() as u64;
        assert_eq!(found.worst.as_ref().unwrap().index, [odd], "{name}");
    }
}
