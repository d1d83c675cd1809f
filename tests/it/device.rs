//! The CUDA backend by its commands, on the emulator; the same commands run on a GPU.

use std::process::Command;

use serde_json::Value;

use crate::kit::{Scratch, lockstep, ran, text};

/// A run of the smallest random shape on the emulator; false, with a word, where there is none.
#[expect(clippy::print_stderr, reason = "a skipped test says why")]
fn tiny(scratch: &Scratch, name: &str, extra: &[&str]) -> bool {
    let ids = scratch.path("ids.txt");
    std::fs::write(&ids, "5 17 33 2").expect("a scratch file");
    let out = scratch.path(name);
    let mut args = vec!["run", "--random", "qwen3-tiny", "--device", "emulated", "--dtype", "f32"];
    args.extend(["--prompt-ids", &ids, "--max-new-tokens", "6", "--out", &out]);
    args.extend(extra);
    let run = lockstep(args);
    if run.code == 2 && run.stderr.contains("compiler") {
        eprintln!("skipped: no C++ compiler");
        return false;
    }
    run.expect(0);
    true
}

/// The comparison of two of those runs: its verdict, and the settings that differ.
fn compared(scratch: &Scratch, a: &str, b: &str) -> (String, Vec<String>) {
    let answer = lockstep(["diff", &scratch.path(a), &scratch.path(b), "--format", "json"]).json();
    let differences = answer["inputs"]["differences"].as_array().expect("a list");
    let keys = differences.iter().filter_map(|difference| difference["key"].as_str());
    let verdict = answer["verdict"]["kind"].as_str().expect("a word").to_owned();
    (verdict, keys.map(ToOwned::to_owned).collect())
}

#[test]
fn graphs_change_nothing_and_a_coarser_ladder_is_named() {
    let scratch = Scratch::new();
    let coarse = ["--row-buckets", "32,4096"];
    let fixed = ["--deterministic", "--row-buckets", "32,4096"];
    if !tiny(&scratch, "graphs", &[]) {
        return;
    }
    tiny(&scratch, "eager", &["--no-cuda-graph"]);
    tiny(&scratch, "coarse", &coarse);
    tiny(&scratch, "deterministic", &["--deterministic"]);
    tiny(&scratch, "deterministic-coarse", &fixed);
    let same = |keys: &str| ("identical".to_owned(), vec![keys.to_owned()]);
    assert_eq!(compared(&scratch, "graphs", "eager"), same("device.graphs"));
    // Sums are grouped by the bucket: other bits, and the setting that did it is on record on both sides.
    let other = ("diverged".to_owned(), vec!["device.row_buckets".to_owned()]);
    assert_eq!(compared(&scratch, "graphs", "coarse"), other);
    let fixed = compared(&scratch, "deterministic", "deterministic-coarse");
    assert_eq!(fixed, same("device.row_buckets"));
}

#[test]
fn the_device_check_prints_its_table() {
    let scratch = Scratch::new();
    let script = lockstep_testkit::root().join("scripts/device-check");
    let mut python = Command::new("python3");
    python
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .arg(text(&script))
        .arg(env!("CARGO_BIN_EXE_lockstep"));
    if Command::new("python3").arg("--version").output().is_err() {
        eprintln!("skipped: no python3");
        return;
    }
    python.args(["--out", &scratch.path("out"), "--device", "cpu", "--only", "doctor,golden"]);
    let run = ran(&mut python).expect(0);
    for trace in ["ledger_01", "ledger_05", "ledger_17"] {
        let row = run.stdout.lines().find(|line| line.contains(trace)).unwrap();
        assert!(row.contains(" ok "), "{row}");
    }
    let shown = std::fs::read_to_string(scratch.path("out/doctor.json")).unwrap();
    assert!(serde_json::from_str::<Value>(&shown).is_ok(), "{shown}");
}
