//! Public bug reports as small files (`tests/data/cases`), and the same files with other numbers.

use std::path::PathBuf;

use lockstep_traces::{Cause, Verdict};
use serde_json::{Value, json};

use crate::sampler::{explain_kept, explain_logprobs, file_report, read_devices, read_file};

fn case(name: &str) -> PathBuf {
    lockstep_testkit::data().join("cases").join(name)
}

fn object(name: &str) -> Value {
    serde_json::from_slice(&std::fs::read(case(name)).unwrap()).unwrap()
}

#[test]
fn kept_sets_are_explained_by_the_order_of_the_filters() {
    let path = case("29/case.json");
    let found = explain_kept(&path, &object("29/case.json")).unwrap().unwrap();
    for (found, want) in
        found.probabilities.iter().zip([0.2594, 0.2124, 0.1739, 0.1424, 0.1166, 0.0954])
    {
        assert!((found - want).abs() < 5e-5);
    }
    let list = |name: &str| found.lists.iter().find(|list| list.name == name).unwrap();
    let x = list("engine_kept.x");
    assert_eq!((x.answer, x.fault), ("identified", false));
    assert_eq!(x.fits, ["top-k 3, top-p 0.7 on the renormalised top-k"]);
    let y = list("engine_kept.y");
    assert_eq!((y.answer, y.fault), ("identified", true));
    assert_eq!(y.fits, ["top-p 0.7 on the full distribution, then cut to top-k 3"]);
    let x = list("engine_min_p_kept.x");
    assert_eq!(
        (x.fits.as_slice(), x.fault),
        (["min-p 0.6 on probabilities".to_owned()].as_slice(), false)
    );
    let y = list("engine_min_p_kept.y");
    assert_eq!(
        (y.fits.as_slice(), y.fault),
        (["min-p 0.6 on raw logits".to_owned()].as_slice(), true)
    );
}

#[test]
fn other_kept_sets_get_other_answers() {
    let path = case("29/case.json");
    let mut other = object("29/case.json");
    // At 0.5 two of the six reach top-p on the full distribution (0.47 does not), and so do two of the three.
    other["top_p"] = json!(0.45);
    other["engine_kept"] = json!({"x": [0, 1], "z": [0, 2]});
    let found = explain_kept(&path, &other).unwrap().unwrap();
    let list = |name: &str| found.lists.iter().find(|list| list.name == name).unwrap();
    // 0.2594 + 0.2124 = 0.4718; of the three best 0.40 + 0.33: both orders keep two.
    assert_eq!(list("engine_kept.x").answer, "not_decidable");
    assert_eq!(list("engine_kept.z").answer, "none_fits");
    other["engine_min_p_kept"] = json!([5, 4, 3, 2, 1, 0]);
    other["min_p"] = json!(0.3);
    // exp(-1) = 0.37 of the largest: all six on probabilities; 2.0 * 0.3 = 0.6 is below every logit too.
    let found = explain_kept(&path, &other).unwrap().unwrap();
    assert_eq!(found.lists.last().unwrap().fits.len(), 2);
    assert!(explain_kept(&path, &json!({"logits": [1.0]})).unwrap().is_none());
    assert!(explain_kept(&path, &json!({"kept": [0], "top_k": 1})).is_err());
    assert!(explain_kept(&path, &json!({"logits": [1.0], "kept": [0]})).is_err());
}

fn report(folder: &str) -> Vec<(String, lockstep_traces::CheckReport)> {
    let (spec, tokens) =
        (case(&format!("{folder}/spec.json")), case(&format!("{folder}/tokens.json")));
    file_report(&read_file(&spec, Some(&tokens)).unwrap())
}

#[test]
fn a_generator_made_anew_at_every_step_is_named() {
    let reports = report("31");
    let (name, reference) = &reports[0];
    assert_eq!((name.as_str(), &reference.verdict), ("reference", &Verdict::Identical));
    assert_eq!(reference.detail["sampler"]["sampler"], "running-sum");
    assert_eq!(reference.detail["reproduced"], 10);
    let numbers = reference.detail["given_numbers"].as_str().unwrap();
    assert!(numbers.starts_with("Philox4x32-10"), "{numbers}");
    let (name, engine) = &reports[1];
    assert_eq!((name.as_str(), &engine.verdict), ("engine", &Verdict::Diverged));
    assert_eq!(engine.findings[0].cause, Some(Cause::RngFrozen));
    assert_eq!(engine.detail["sampler"]["pattern"], "frozen");
    assert_eq!(engine.detail["reproduced"], 10);
    assert_eq!(engine.detail["against_baseline"]["first_sampled_split"], 1);
    assert_eq!(engine.detail["against_baseline"]["rows_equal"], true);
}

#[test]
fn a_stream_shifted_by_one_draw_is_named() {
    let reports = report("32");
    let (_, engine) = &reports[1];
    assert_eq!(engine.verdict, Verdict::Diverged);
    assert_eq!(engine.findings[0].cause, Some(Cause::DrawDiscarded));
    let sampler = &engine.detail["sampler"];
    assert_eq!((&sampler["pattern"], &sampler["shift"]), (&json!("advancing"), &json!(1)));
    assert_eq!(engine.detail["against_baseline"]["first_sampled_split"], 0);
    assert_eq!(engine.detail["against_baseline"]["agree"], 1);
    // The only shift of -3..4 that fits all ten.
    let listed = engine.detail["hypotheses"].as_array().unwrap();
    let fitting: Vec<_> = listed
        .iter()
        .filter(|one| one["reproduced"] == 10)
        .map(|one| &one["hypothesis"]["shift"])
        .collect();
    assert_eq!(fitting, [&json!(1)]);
}

#[test]
fn tokens_of_another_seed_fit_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let mut spec = object("31/spec.json");
    spec["seed"] = json!(4321);
    spec["draws"] = json!([]);
    spec["tokens"] = object("31/tokens.json")["reference"].clone();
    let path = folder.path().join("spec.json");
    std::fs::write(&path, spec.to_string()).unwrap();
    let reports = file_report(&read_file(&path, None).unwrap());
    assert_eq!(reports[0].1.verdict, Verdict::Diverged);
    assert_eq!(reports[0].1.detail["answer"], "none_fits");
}

#[test]
fn two_devices_part_at_the_first_element_beyond_the_smaller_grid() {
    let path = case("34/devices.json");
    let split = read_devices(&path, &object("34/devices.json")).unwrap().unwrap();
    assert_eq!((split.first_different, split.different), (Some(40_960), 50_000 - 40_960));
    assert!(split.same_advance);
    let [a, b] = &split.places[..] else { panic!("two devices") };
    assert_eq!((a.blocks, a.threads, a.advance), (160, 40_960, 4));
    assert_eq!((b.blocks, b.threads, b.advance), (196, 50_176, 4));
    assert_eq!((a.thread, a.component), (Some(0), Some(1)));
    assert_eq!((b.thread, b.component), (Some(40_960), Some(0)));
    assert!((a.uniform.unwrap() - 0.853_469_0).abs() < 5e-8);
    assert!((b.uniform.unwrap() - 0.206_617_3).abs() < 5e-8);
}

#[test]
fn other_devices_part_elsewhere_or_nowhere() {
    let path = case("34/devices.json");
    let mut same = object("34/devices.json");
    same["numel"] = json!(40_960);
    let split = read_devices(&path, &same).unwrap().unwrap();
    assert_eq!((split.first_different, split.different), (None, 0));
    // 20 multiprocessors of 1024 threads: 20,480 threads.
    same["a"]["sm"] = json!(20);
    let split = read_devices(&path, &same).unwrap().unwrap();
    assert_eq!(split.first_different, Some(20_480));
    same["c"] = json!({"sm": 1, "threads_per_sm": 1024});
    assert!(read_devices(&path, &same).unwrap_err().to_string().contains("3 devices"));
    let none = json!({"numel": 5, "a": {"sm": 1, "threads_per_sm": 100}, "b": {"sm": 1, "threads_per_sm": 512}});
    assert!(read_devices(&path, &none).unwrap_err().to_string().contains("no block"));
}

#[test]
fn reported_log_probabilities_are_named_by_their_transform() {
    let path = case("49/case.json");
    let found = explain_logprobs(&path, &object("49/case.json")).unwrap().unwrap();
    let list = |name: &str| found.lists.iter().find(|list| list.name == name).unwrap();
    for (name, transform) in [
        ("w", "log-softmax of the logits"),
        ("x", "after temperature 0.5"),
        ("y", "after temperature 0.5 and top-p 0.9, renormalised"),
        ("z", "log-softmax divided by the temperature 0.5"),
    ] {
        assert_eq!(list(name).transform.as_deref(), Some(transform), "{name}");
        assert_eq!(list(name).answer, "identified");
    }
    assert_eq!(list("y").lost, [2, 3]);
    assert!(!list("z").is_distribution);
    assert!((list("z").mass - 0.479_361).abs() < 1e-6);
    assert!(!found.one_convention);
    assert!(found.remedy.contains("y: ids are lost"), "{}", found.remedy);
}

#[test]
fn other_log_probabilities_get_other_answers() {
    let path = case("49/case.json");
    let mut other = object("49/case.json");
    // ln of 0.864955 and 0.117059, what temperature 0.5 gives the two that top-p keeps, not renormalised.
    other["reported"] =
        json!({"u": [-0.145_078, -2.145_078, null, null], "v": [-0.4, -1.4, -2.4, -3.4]});
    let found = explain_logprobs(&path, &other).unwrap().unwrap();
    assert_eq!(
        found.lists[0].transform.as_deref(),
        Some("after temperature 0.5 and top-p 0.9, not renormalised")
    );
    assert_eq!((found.lists[1].answer, &found.lists[1].transform), ("none_fits", &None));
    // At temperature 1 the first two transforms are one.
    other["temperature"] = json!(1.0);
    other["reported"] = json!({"a": [-0.44019, -1.44019, -2.44019, -3.44019]});
    let found = explain_logprobs(&path, &other).unwrap().unwrap();
    assert_eq!(found.lists[0].transform.as_deref(), Some("log-softmax of the logits"));
    assert!(found.one_convention);
    other["reported"] = json!({"a": [-0.4]});
    assert!(explain_logprobs(&path, &other).is_err());
}

#[test]
fn numbers_of_no_known_generator_are_used_as_given() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("spec.json");
    let row = json!([0.25, 0.25, 0.25, 0.25]);
    let draws: Vec<f64> = (0..40).map(|i| f64::from(i * 37 % 101) / 101.0).collect();
    let tokens: Vec<u32> = draws.iter().map(|u| (u * 4.0).floor() as u32).collect();
    let spec = json!({"seed": 3, "probabilities": vec![row; 40], "draws": draws, "tokens": tokens});
    std::fs::write(&path, spec.to_string()).unwrap();
    let reports = file_report(&read_file(&path, None).unwrap());
    let detail = &reports[0].1.detail;
    assert_eq!(detail["given_numbers"], "of no known generator");
    // Equal probabilities lie alike in order of rank and of ids.
    assert!(detail["also_fit"].as_array().unwrap().len() <= 2, "{detail:#}");
    assert!(
        detail["hypotheses"][0]["hypothesis"]["convention"].as_str().unwrap().contains("given")
    );
}
