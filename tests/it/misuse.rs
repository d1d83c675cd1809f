//! Command lines that ask for what cannot be: one line, the right status, nothing lost.

use std::fs;
use std::os::unix::ffi::OsStrExt as _;

use crate::kit::{Scratch, binary, ledger, lockstep, ran, record};

fn run(scratch: &Scratch, flags: &[&str]) -> crate::kit::Ran {
    record(&scratch.path("run"), "ledger_01", flags)
}

#[test]
fn flags_out_of_range_are_usage_errors() {
    for (flags, part) in [
        (&["--policy", "recent", "--kv-budget", "0"][..], "kv_budget"),
        (&["--temperature", "nan"][..], "temperature"),
        (&["--min-p", "2"][..], "min_p"),
        (&["--batch", "0"][..], "batch"),
        (&["--plant", "prompt-fed-twice"][..], "replay"),
        (&["--policy", "triattention", "--kv-budget", "64"][..], "--stats"),
    ] {
        let scratch = Scratch::new();
        run(&scratch, flags).expect_refusal(2, &[part]);
    }
}

#[test]
fn a_top_k_beyond_the_vocabulary_is_the_vocabulary() {
    let scratch = Scratch::new();
    run(&scratch, &["--trace-top-k", "100000000000"]).expect(0);
    let rows = lockstep(["inspect", &scratch.path("run"), "--positions", "0", "--format", "json"])
        .expect(0)
        .json();
    assert_eq!(rows["rows"][0]["top_ids"].as_array().unwrap().len(), 1152);
}

#[test]
fn a_folder_whose_name_is_no_utf8_is_written_to() {
    let scratch = Scratch::new();
    let mut name = scratch.path("odd").into_bytes();
    name.push(0xff);
    let out = std::ffi::OsStr::from_bytes(&name);
    let run = ran(binary()
        .args([
            "run",
            "--model",
            &ledger(),
            "--prompt",
            "<bos> Solve:",
            "--max-new-tokens",
            "2",
            "--out",
        ])
        .arg(out));
    run.expect(0);
    assert!(std::path::Path::new(out).join("manifest.json").exists());
}

#[test]
fn a_replay_with_other_weights_than_the_runs_is_refused() {
    let scratch = Scratch::new();
    run(&scratch, &[]).expect(0);
    let model = scratch.file("model");
    fs::create_dir_all(&model).unwrap();
    for name in ["config.json", "tokenizer.json", "model.safetensors"] {
        fs::copy(lockstep_testkit::ledger().join(name), model.join(name)).unwrap();
    }
    let path = model.join("model.safetensors");
    let mut weights = fs::read(&path).unwrap();
    let last = weights.len() - 1;
    weights[last] ^= 0x80;
    fs::write(&path, weights).unwrap();
    let (from, to, model) = (scratch.path("run"), scratch.path("replay"), scratch.path("model"));
    lockstep(["replay", "forward", &from, "--model", &model, "--policy", "dense", "--out", &to])
        .expect_refusal(3, &["model.safetensors", "sha256"]);
}

#[test]
fn a_run_that_is_refused_before_its_first_row_leaves_no_folder() {
    let scratch = crate::kit::Scratch::new();
    let (out, ledger, tasks) = (scratch.path("run"), crate::kit::ledger(), crate::kit::tasks());
    let mut args = vec!["run", "--model", &ledger, "--dataset", &tasks, "--select", "0"];
    args.extend(["--dtype", "f32", "--device", "cpu", "--max-new-tokens", "2", "--out", &out]);
    let planted: Vec<&str> = args.iter().copied().chain(["--plant", "tie-order"]).collect();
    let refused = crate::kit::lockstep(planted);
    assert_ne!(refused.code, 0, "{}", refused.stdout);
    assert!(!std::path::Path::new(&out).exists());
    crate::kit::lockstep(args).expect(0);
}
