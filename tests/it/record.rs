//! What is left of a recording that was interrupted, killed, or ran out of disk; and going on with it.

use std::fs;
use std::process::Stdio;
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::kit::{Scratch, binary, ledger, lockstep, ran, record, tasks, text};

const SAMPLES: &str = "ledger_05,ledger_09,ledger_13";

fn steps(run: &str) -> u64 {
    lockstep(["inspect", run, "--format", "json"]).expect(0).json()["steps"]
        .as_u64()
        .expect("a count")
}

fn start(out: &str) -> std::process::Child {
    binary()
        .args([
            "run",
            "--model",
            &ledger(),
            "--dataset",
            &tasks(),
            "--select",
            SAMPLES,
            "--dtype",
            "f32",
            "--batch",
            "1",
        ])
        .args(["--max-new-tokens", "2000", "--out", out])
        .stderr(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .expect("the binary starts")
}

/// Waits until the run has written something of substance.
fn wait_for_rows(out: &str) {
    let started = Instant::now();
    let streamed = || {
        fs::read_dir(out)
            .ok()
            .into_iter()
            .flatten()
            .flatten()
            .filter_map(|entry| entry.metadata().ok())
            .any(|m| m.len() > 200_000)
    };
    while !streamed() {
        assert!(started.elapsed() < Duration::from_secs(120), "nothing was recorded");
        sleep(Duration::from_millis(5));
    }
}

fn signal(child: &std::process::Child, name: &str) {
    ran(std::process::Command::new("kill").args([name, &child.id().to_string()])).expect(0);
}

#[test]
fn kill_nine_leaves_a_run_that_opens_as_incomplete() {
    let scratch = Scratch::new();
    let out = scratch.path("killed");
    let mut child = start(&out);
    wait_for_rows(&out);
    signal(&child, "-KILL");
    child.wait().unwrap();
    let answer = lockstep(["inspect", &out, "--format", "json"]).expect(0).json();
    assert_eq!(answer["status"], "incomplete", "{answer:#}");
    assert!(answer["steps"].as_u64().unwrap() > 100, "{answer:#}");
    // What it holds agrees with itself, and is not the whole.
    lockstep(["diff", &out, &out]).expect(4);
    lockstep(["check", "positions", &out]).expect(4);
}

#[test]
fn an_interrupted_run_goes_on_and_ends_as_an_unbroken_one() {
    let scratch = Scratch::new();
    let (whole, broken) = (scratch.path("whole"), scratch.path("broken"));
    record(&whole, SAMPLES, &["--batch", "1"]).expect(0);
    let mut child = start(&broken);
    wait_for_rows(&broken);
    signal(&child, "-INT");
    let status = child.wait().unwrap();
    assert_eq!(status.code(), Some(4), "interrupted is inconclusive");
    let before = lockstep(["inspect", &broken, "--format", "json"]).expect(0).json();
    assert_eq!(before["status"], "incomplete");
    record(&broken, SAMPLES, &["--batch", "1", "--resume"]).expect(0);
    assert_eq!(steps(&broken), steps(&whole));
    let diff = lockstep(["diff", &whole, &broken, "--format", "json"]).expect(0).json();
    assert_eq!(diff["verdict"]["kind"], "identical", "{diff:#}");
}

#[test]
fn resuming_with_other_settings_is_refused_by_key() {
    let scratch = Scratch::new();
    let out = scratch.path("run");
    let mut child = start(&out);
    wait_for_rows(&out);
    signal(&child, "-INT");
    child.wait().unwrap();
    record(&out, SAMPLES, &["--batch", "1", "--resume", "--temperature", "0.5"])
        .expect_refusal(3, &["sampling."]);
    record(&out, "ledger_05", &["--batch", "1", "--resume"]).expect_refusal(3, &["run.samples"]);
}

#[test]
fn a_full_disk_keeps_what_was_written() {
    let scratch = Scratch::new();
    let out = scratch.path("full");
    // 60 blocks of 1024 bytes: enough for some batches, too little for the run. The signal is ignored so that
    // the write itself fails, as on a full disk.
    let script = format!(
        "trap '' XFSZ; ulimit -f 60; exec {} run --model {} --dataset {} --select {SAMPLES} --dtype f32 --batch 1 --max-new-tokens 2000 --out {out}",
        env!("CARGO_BIN_EXE_lockstep"),
        ledger(),
        tasks(),
    );
    let run = ran(std::process::Command::new("bash").args(["-c", &script]).stdin(Stdio::null()));
    run.expect_refusal(3, &["full"]);
    let answer = lockstep(["inspect", &out, "--format", "json"]).expect(0).json();
    assert_eq!(answer["status"], "incomplete", "{answer:#}");
    assert!(answer["steps"].as_u64().unwrap() > 100, "{answer:#}");
}

#[test]
fn a_run_is_never_written_over_another() {
    let scratch = Scratch::new();
    let out = scratch.path("run");
    record(&out, "ledger_01", &[]).expect(0);
    record(&out, "ledger_01", &[]).expect_refusal(3, &["already holds files"]);
    assert!(text(&scratch.file("run")).ends_with("run"));
}
