//! The op catalog and the machine's report, as a user asks for them. Nothing here needs a GPU, and nothing claims one.

use serde_json::Value;

use crate::kit::{Scratch, binary, lockstep, ran};

/// Is there a GPU to run on? By the tool's own word.
fn gpu() -> bool {
    lockstep(["doctor", "--format", "json"]).expect(0).json()["cuda"]["error"].is_null()
}

/// Is there a compiler for the emulator?
fn emulator() -> bool {
    let there = lockstep(["doctor", "--format", "json"]).json()["emulator"]["there"] == true;
    if !there {
        eprintln!("skipped: no C++ compiler");
    }
    there
}

fn rows<'a>(value: &'a Value, key: &str) -> &'a Vec<Value> {
    value[key].as_array().unwrap_or_else(|| panic!("no list `{key}`: {value}"))
}

#[test]
fn the_catalog_is_listed_with_contracts_and_what_is_known() {
    let all = lockstep(["ops", "--format", "json"]).expect(0).json();
    let entries = rows(&all, "entries");
    assert!(entries.len() >= 8, "{}", entries.len());
    for entry in entries {
        assert!(!rows(entry, "cells").is_empty(), "{}", entry["name"]);
        assert!(!rows(entry, "raises").is_empty(), "{}", entry["name"]);
        let sources: Vec<_> = rows(entry, "sources").iter().filter_map(Value::as_str).collect();
        let kernel = format!("kernels/{}", entry["file"].as_str().unwrap());
        for path in ["kernels/common.cuh", &kernel, "src/cuda/catalog/run.rs"] {
            assert!(sources.contains(&path), "{}: {sources:?}", entry["name"]);
        }
        for path in sources {
            assert!(lockstep_testkit::root().join("runtime").join(path).is_file(), "{path}");
        }
        for status in rows(entry, "status") {
            assert_eq!(status["status"] == "unknown", status["why"].is_string());
            assert!(status["status"] == "unknown" || status["receipt"].is_object());
        }
    }
    let cells: usize = entries.iter().map(|entry| rows(entry, "cells").len()).sum();
    assert_eq!(all["cells"], cells);
    let text = lockstep(["ops"]).expect(0).stdout;
    let total = format!("{} entries of {} kernel files", entries.len(), all["files"]);
    assert!(text.contains(&total), "{text}");
}

#[test]
fn a_name_or_a_kernel_file_asks_for_the_whole_contract() {
    let text = lockstep(["ops", "rms_norm"]).expect(0).stdout;
    for part in
        ["shapes", "refuses", "silent", "rounding", "reference", "tolerance", "rows 3 width 257"]
    {
        assert!(text.contains(part), "{part}: {text}");
    }
    let file = lockstep(["ops", "embed", "--format", "json"]).expect(0).json();
    let names: Vec<_> =
        rows(&file, "entries").iter().map(|entry| entry["name"].as_str().unwrap()).collect();
    assert!(names.contains(&"embed_rows") && names.contains(&"random_fill"), "{names:?}");
    assert!(!names.contains(&"rms_norm"), "{names:?}");
    lockstep(["ops", "rms_norm", "no_such"]).expect_refusal(2, &["no_such", "lockstep ops"]);
}

#[test]
fn the_emulator_runs_an_entry_and_every_check_is_told() {
    if !emulator() {
        return;
    }
    let args =
        ["ops", "add_rows", "embed_rows", "--run", "--device", "emulated", "--format", "json"];
    let answer = lockstep(args).expect(0).json();
    assert_eq!(answer["device"]["emulated"], true);
    assert_eq!((&answer["failed"], &answer["passed"]), (&Value::from(0), &Value::from(2)));
    assert!(answer["receipts"].is_null());
    for entry in rows(&answer, "entries") {
        assert_eq!(entry["verdict"], "passes");
        for cell in rows(entry, "cells") {
            let checks = cell["checks"].as_object().unwrap();
            for check in ["canaries", "control", "device", "misuse", "reference", "replay", "rerun"]
            {
                assert!(checks[check].is_null(), "{check}: {cell}");
            }
            assert_eq!(cell["replays"], 4);
            assert!(cell["control"].as_f64() > cell["bound"].as_f64(), "{cell}");
        }
        for cell in rows(entry, "skipped") {
            assert_eq!(cell["why"], "too large for the emulator");
        }
        assert!(!rows(entry, "skipped").is_empty());
    }
    let text = lockstep(&args[..6]).expect(0).stdout;
    assert!(text.contains("2 of 2 entries pass"), "{text}");
}

#[test]
fn what_cannot_run_is_refused_in_one_line() {
    let scratch = Scratch::new();
    let folder = scratch.path("receipts");
    let write = ["ops", "--run", "--write-receipts", &folder];
    for extra in [["--device", "emulated"], ["--cells", "quick"]] {
        let refused = lockstep(write.iter().chain(&extra));
        refused.expect_refusal(2, &["--write-receipts", "GPU"]);
    }
    assert!(!scratch.file("receipts").exists());
    assert_eq!(lockstep(["ops", "--device", "emulated"]).code, 2);
    let no_compiler = ["ops", "--run", "--device", "emulated"];
    let refused = ran(binary().args(no_compiler).env("CXX", scratch.path("no-compiler")));
    refused.expect_refusal(2, &["C++ compiler", "install"]);
    if !gpu() {
        lockstep(write).expect_refusal(2, &["was not found"]);
        assert!(!scratch.file("receipts").exists());
    }
}

#[test]
fn the_machine_is_reported_with_or_without_a_gpu() {
    let scratch = Scratch::new();
    let mut command = binary();
    command.args(["doctor", "--format", "json"]).env("LOCKSTEP_CACHE", scratch.path("cache"));
    let report = ran(command.env("CXX", scratch.path("no-compiler"))).expect(0).json();
    for key in ["version", "schema", "cpu", "cuda", "reference", "emulator"] {
        assert!(!report[key].is_null(), "{key}: {report}");
    }
    assert_eq!(report["emulator"]["there"], false);
    assert!(report["emulator"]["error"].as_str().unwrap().contains("C++ compiler"));
    let cuda = &report["cuda"];
    for library in ["driver", "nvrtc", "cublas"] {
        assert!(cuda["libraries"][library]["found"].is_boolean(), "{cuda}");
        assert!(cuda["libraries"][library]["remedy"].as_str().unwrap().starts_with("install"));
    }
    assert!(cuda["cache"].as_str().unwrap().starts_with(&scratch.path("cache")));
    let entries = rows(&lockstep(["ops", "--format", "json"]).json(), "entries").len();
    for counts in cuda["receipts"].as_object().unwrap().values() {
        let sum = counts["works"].as_u64().unwrap() + counts["unknown"].as_u64().unwrap();
        assert_eq!(sum, entries as u64);
    }
    // A device is there with everything about it, or not at all and with the reason.
    let there = cuda["error"].is_null();
    for key in ["device", "kernels", "launch"] {
        assert_eq!(cuda[key].is_object(), there, "{key}: {cuda}");
    }
    assert!(there || cuda["backend"] == false);
    let text = lockstep(["doctor"]).expect(0).stdout;
    assert!(text.contains("cuda backend") && text.contains("emulator"), "{text}");
}
