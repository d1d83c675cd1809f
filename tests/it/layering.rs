//! The crate graph is the architecture: an edge that is not in this table is a defect.

use std::collections::BTreeSet;
use std::process::Command;

const ALLOWED: [(&str, &[&str]); 8] = [
    ("lockstep-traces", &[]),
    ("lockstep-runtime", &["lockstep-traces"]),
    ("lockstep-reference", &["lockstep-traces"]),
    ("lockstep-replay", &["lockstep-traces", "lockstep-reference"]),
    ("lockstep-diff", &["lockstep-traces"]),
    ("lockstep-reports", &["lockstep-diff", "lockstep-traces"]),
    // Its fuzz bodies call the readers of traces. Nobody depends on the kit but tests.
    ("lockstep-testkit", &["lockstep-traces"]),
    (
        "lockstep",
        &[
            "lockstep-traces",
            "lockstep-runtime",
            "lockstep-reference",
            "lockstep-replay",
            "lockstep-diff",
            "lockstep-reports",
        ],
    ),
];

fn metadata() -> serde_json::Value {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--format-version", "1", "--locked"])
        .current_dir(lockstep_testkit::root())
        .output()
        .expect("cargo runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("cargo metadata is JSON")
}

/// Edges of normal and build dependencies that leave the table.
fn forbidden(metadata: &serde_json::Value) -> Vec<String> {
    let mut wrong = Vec::new();
    for package in metadata["packages"].as_array().expect("packages") {
        let name = package["name"].as_str().expect("name");
        if !name.starts_with("lockstep") {
            continue;
        }
        let allowed =
            ALLOWED.iter().find(|(package, _)| *package == name).map(|(_, allowed)| *allowed);
        let Some(allowed) = allowed else {
            wrong.push(format!("{name} is not in the table"));
            continue;
        };
        for dependency in package["dependencies"].as_array().expect("dependencies") {
            let target = dependency["name"].as_str().expect("name");
            let dev = dependency["kind"] == "dev";
            if target.starts_with("lockstep") && !dev && !allowed.contains(&target) {
                wrong.push(format!("{name} must not depend on {target}"));
            }
            // Tests may use the kit, and nothing else of ours that the crate itself may not use.
            if dev
                && target.starts_with("lockstep")
                && target != "lockstep-testkit"
                && !allowed.contains(&target)
            {
                wrong.push(format!("tests of {name} must not depend on {target}"));
            }
        }
    }
    wrong
}

#[test]
fn crates_depend_on_each_other_only_as_the_table_says() {
    assert_eq!(forbidden(&metadata()), Vec::<String>::new());
}

#[test]
fn a_forbidden_edge_is_named() {
    let mut metadata = metadata();
    for package in metadata["packages"].as_array_mut().expect("packages") {
        if package["name"] == "lockstep-reference" {
            let edge = serde_json::json!({"name": "lockstep-runtime", "kind": null});
            package["dependencies"].as_array_mut().expect("dependencies").push(edge);
        }
    }
    assert_eq!(forbidden(&metadata), ["lockstep-reference must not depend on lockstep-runtime"]);
}

#[test]
fn one_version_each_of_the_shared_formats() {
    let metadata = metadata();
    for name in ["arrow", "parquet", "half", "tokenizers", "safetensors"] {
        let versions: BTreeSet<_> = metadata["packages"]
            .as_array()
            .expect("packages")
            .iter()
            .filter(|package| package["name"] == name)
            .map(|package| package["version"].to_string())
            .collect();
        assert_eq!(versions.len(), 1, "{name}: {versions:?}");
    }
}

#[test]
fn candle_is_built_without_its_cuda_feature() {
    let metadata = metadata();
    for node in metadata["resolve"]["nodes"].as_array().expect("nodes") {
        if node["id"].as_str().is_some_and(|id| id.contains("candle-core")) {
            let features = node["features"].as_array().expect("features");
            assert!(!features.iter().any(|feature| feature == "cuda"), "{features:?}");
        }
    }
}
