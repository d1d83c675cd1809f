//! Tolerances, the control, order of execution and roots.

use super::*;

fn rounded(values: &[f32]) -> Vec<f32> {
    values.iter().map(|value| bf16::from_f32(*value).to_f32()).collect()
}

#[test]
fn a_control_of_the_same_dtype_judges_by_ratio() {
    let home = Home::new();
    let truth_values = noise(4096, 21);
    let truth = home.set("truth", &[f32s("h", &[4096], &truth_values)]);
    let control = home.set("control", &[bf16s("h", &[4096], &truth_values)]);
    // Pushed away from the truth before it is rounded: up to a step and a half off, where one rounding leaves half a step.
    let twice: Vec<f32> =
        rounded(&truth_values).iter().zip(&truth_values).map(|(r, t)| t + 2.4 * (r - t)).collect();
    let target = home.set("target", &[bf16s("h", &[4096], &twice)]);
    let with = SetOptions { control: Some(&control), ..SetOptions::default() };
    let report = compared(&truth, &target, &with);
    let pair = &report.pairs[0];
    assert_eq!(
        (pair.status, report.verdict.clone()),
        (Status::Within, Verdict::WithinNoise),
        "{}",
        pair.why
    );
    let metrics = &pair.control.as_ref().unwrap().metrics;
    assert_eq!(metrics.iter().map(|metric| metric.allowed).collect::<Vec<_>>(), [3.0, 3.0, 5.0]);
    assert!(metrics.iter().all(|metric| metric.ratio.unwrap() > 1.0 && !metric.reason.is_empty()));
    // Ten times the control's error is beyond it, and named with the ratio.
    let far: Vec<f32> =
        rounded(&truth_values).iter().zip(&truth_values).map(|(r, t)| t + 10.0 * (r - t)).collect();
    let far = home.set("far", &[bf16s("h", &[4096], &far)]);
    let pair = compared(&truth, &far, &with).pairs.remove(0);
    assert!(
        pair.status == Status::Diverged && pair.why.contains("times the control's"),
        "{}",
        pair.why
    );
    let ratio = pair.judged.unwrap().value.unwrap();
    assert!((9.0..11.5).contains(&ratio), "{ratio}");
    // A control that is no bf16 arithmetic at all cannot judge.
    let broken: Vec<f32> = truth_values.iter().map(|v| v * 0.5).collect();
    let broken = home.set("broken", &[bf16s("h", &[4096], &broken)]);
    let report =
        compared(&truth, &far, &SetOptions { control: Some(&broken), ..SetOptions::default() });
    assert_eq!((report.pairs[0].status, report.verdict.exit_code()), (Status::Incomparable, 4));
    // A control without this tensor judges nothing, and that is said.
    let other = home.set("other", &[bf16s("g", &[4096], &truth_values)]);
    let report =
        compared(&truth, &target, &SetOptions { control: Some(&other), ..SetOptions::default() });
    assert_eq!(report.verdict, Verdict::Diverged);
    assert!(report.limits.iter().any(|limit| limit.contains("no control")), "{:?}", report.limits);
}

#[test]
fn tolerances_stand_with_their_reason_and_hold_by_name() {
    let home = Home::new();
    let left =
        home.set("a", &[f32s("attn.0", &[2], &[1.0, 2.0]), f32s("mlp.0", &[2], &[1.0, 2.0])]);
    let right =
        home.set("b", &[f32s("attn.0", &[2], &[1.001, 2.0]), f32s("mlp.0", &[2], &[1.001, 2.0])]);
    let map = "tolerances: [{names: 'attn.*', metric: max_abs, at_most: 0.002, reason: split-K sums in another order}]";
    let report = compared(&left, &right, &mapped(map));
    let (attn, mlp) = (&report.pairs[0], &report.pairs[1]);
    assert_eq!((attn.status, mlp.status), (Status::Within, Status::Diverged));
    assert!(
        attn.why.contains("split-K") && attn.judged.as_ref().unwrap().at_most == Some(0.002),
        "{}",
        attn.why
    );
    assert_eq!(
        (report.failed.clone(), report.first.as_deref()),
        (vec!["mlp.0".to_owned()], Some("mlp.0"))
    );
    // |d|^2 / (|L|^2 + |R|^2) = 1e-6 / 10.002: far below DeepGEMM's bound and llama.cpp's; torch allows f32 1.3e-6 of 1.
    for (preset, status) in [
        (Preset::DeepGemm, Status::Within),
        (Preset::Nmse, Status::Within),
        (Preset::Torch, Status::Diverged),
    ] {
        let report = compared(&left, &right, &SetOptions { preset, ..SetOptions::default() });
        assert_eq!(report.pairs[0].status, status, "{preset:?}");
    }
    let torch =
        compared(&left, &right, &SetOptions { preset: Preset::Torch, ..SetOptions::default() });
    assert_eq!(torch.pairs[0].figures.beyond, Some(1));
    let near =
        home.set("c", &[f32s("attn.0", &[2], &[1.000_01, 2.0]), f32s("mlp.0", &[2], &[1.0, 2.0])]);
    let torch =
        compared(&left, &near, &SetOptions { preset: Preset::Torch, ..SetOptions::default() });
    assert_eq!((torch.pairs[0].status, torch.verdict), (Status::Within, Verdict::WithinNoise));
    let ulp = "tolerances: [{metric: max_ulp, at_most: 1, reason: x}]";
    assert_eq!(compared(&left, &near, &mapped(ulp)).pairs[0].status, Status::Diverged);
}

#[test]
fn the_root_is_the_call_whose_inputs_agree() {
    let home = Home::new();
    let names = [
        "norm.forward.0.input.0",
        "norm.forward.0.output.0",
        "act.forward.0.input.0",
        "act.forward.0.output.0",
    ];
    let tensors = |values: [f32; 4]| -> Vec<Tensor> {
        names
            .iter()
            .zip(values)
            .map(|(name, value)| f32s(&format!("Module.{name}"), &[1], &[value]))
            .collect()
    };
    let left = home.set("a", &tensors([1.0, 2.0, 3.0, 4.0]));
    let right = home.set("b", &tensors([1.0, 2.5, 3.5, 4.5]));
    let order = r"order: ['Module\.norm.*input.*', 'Module\.norm.*', 'Module\.act.*']";
    let report = compared(&left, &right, &mapped(order));
    assert_eq!((report.order.as_str(), report.failed.len()), ("declared", 3));
    assert_eq!(report.first.as_deref(), Some("Module.norm.forward.0.output.0"));
    // `act` differs too, but so does what it was given.
    assert_eq!(report.roots.len(), 1);
    assert_eq!(
        (report.roots[0].call.as_str(), report.roots[0].order),
        ("Module.norm.forward.0", 1)
    );
    let roles = r"roles: {input: '(?<call>.+)/in\d?', output: '(?<call>.+)/out'}";
    let own = |values: [f32; 4]| -> Vec<Tensor> {
        ["b/in", "b/out", "a/in", "a/out"]
            .iter()
            .zip(values)
            .map(|(name, v)| f32s(name, &[1], &[v]))
            .collect()
    };
    let report = compared(
        &home.set("c", &own([1.0, 2.0, 1.0, 3.0])),
        &home.set("d", &own([1.0, 2.0, 1.0, 9.0])),
        &mapped(roles),
    );
    assert_eq!((report.roots.len(), report.roots[0].call.as_str()), (1, "a"));
    assert!(report.summary.contains("first with equal inputs: a"), "{}", report.summary);
    // An input that only one side has: what `a2` was given is not known.
    let mut left = own([1.0, 2.0, 1.0, 3.0]);
    left.extend(["a2/in0", "a2/in1", "a2/out"].map(|name| f32s(name, &[1], &[1.0])));
    let mut right = own([1.0, 2.0, 1.0, 3.0]);
    right.extend([("a2/in0", 1.0), ("a2/out", 2.0)].map(|(name, v)| f32s(name, &[1], &[v])));
    let report = compared(&home.set("e", &left), &home.set("f", &right), &mapped(roles));
    assert_eq!((report.roots.len(), report.verdict), (0, Verdict::Diverged));
    left.retain(|tensor| tensor.name != "a2/in1");
    let report = compared(&home.set("g", &left), &home.set("h", &right), &mapped(roles));
    assert_eq!(report.roots.iter().map(|root| root.call.as_str()).collect::<Vec<_>>(), ["a2"]);
}
