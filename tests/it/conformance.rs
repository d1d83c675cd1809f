//! The golden selector vectors through the command line: runtime and reference, reported apart.

use std::fs;

use crate::kit::{Scratch, lockstep, text};

fn golden() -> String {
    text(&lockstep_testkit::golden().join("triattention"))
}

#[test]
fn every_case_of_the_golden_folder_agrees_on_both_sides() {
    let cases: serde_json::Value = serde_json::from_slice(
        &fs::read(lockstep_testkit::golden().join("triattention/cases.json")).unwrap(),
    )
    .unwrap();
    let listed = cases["cases"].as_array().unwrap();
    let ruled = ["vllm_selector", "hf", "sglang", "hf_lifecycle", "vllm_lifecycle"];
    let ruled =
        listed.iter().filter(|case| ruled.iter().any(|impl_| case["impl"] == *impl_)).count();
    let answer = lockstep(["conformance", &golden(), "--format", "json"]).expect(0).json();
    // The reference runs every listed case; the runtime those of the four rule sets.
    assert_eq!(answer["reference"]["cases"], listed.len(), "{answer:#}");
    assert_eq!(answer["runtime"]["cases"], ruled, "{answer:#}");
    for side in ["reference", "runtime"] {
        assert_eq!(answer[side]["failed"], 0, "{answer:#}");
        let ties = answer[side]["tie_equivalent"].as_array().unwrap();
        assert!(
            ties.iter().all(|tie| tie["name"].as_str().unwrap().starts_with("v17")),
            "only v17 is all ties: {ties:?}"
        );
    }
}

#[test]
fn a_listed_case_without_its_file_fails_by_name() {
    let scratch = Scratch::new();
    let source = lockstep_testkit::data().join("golden/triattention");
    let target = scratch.file("golden");
    for part in ["inputs", "stats", "expected", "pt"] {
        fs::create_dir_all(target.join(part)).unwrap();
        for file in fs::read_dir(source.join(part)).unwrap() {
            let file = file.unwrap();
            fs::copy(file.path(), target.join(part).join(file.file_name())).unwrap();
        }
    }
    fs::copy(source.join("cases.json"), target.join("cases.json")).unwrap();
    fs::remove_file(target.join("expected/h02_perhead_prefix.safetensors")).unwrap();
    let run = lockstep(["conformance", &text(&target)]).expect(1);
    assert!(run.stdout.contains("h02_perhead_prefix"), "{}", run.stdout);
}

#[test]
fn an_empty_folder_proves_nothing() {
    let scratch = Scratch::new();
    fs::create_dir_all(scratch.file("empty")).unwrap();
    lockstep(["conformance", &scratch.path("empty")]).expect_refusal(3, &["cases.json"]);
}
