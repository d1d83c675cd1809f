//! Every command of the README, run as it is written.

use std::fs;
use std::path::Path;

use crate::kit::{Scratch, binary, ran};

/// Command lines of the README's shell blocks, the binary's name and `cargo run` taken off.
fn commands() -> Vec<String> {
    let readme = fs::read_to_string(lockstep_testkit::root().join("README.md")).expect("a README");
    let mut inside = false;
    let mut lines = Vec::new();
    for line in readme.lines() {
        if line.starts_with("```") {
            inside = line == "```sh";
        } else if inside && line != "cargo test --workspace" {
            let rest = line
                .strip_prefix("cargo run --release -- ")
                .or_else(|| line.strip_prefix("lockstep "));
            lines.push(rest.unwrap_or_else(|| panic!("what is this: {line}")).to_owned());
        }
    }
    lines
}

/// What the README's text promises of a command that does not return 0.
fn expected(command: &str) -> i32 {
    let differs = [
        "demo --plant round-start-rows",
        "diff runs/dense runs/trt",
        "diff tests/data/golden",
        "diff --manifest",
        "audit runs/dense runs/trt",
    ];
    i32::from(differs.iter().any(|start| command.starts_with(start)))
}

#[test]
fn the_readmes_commands_work_as_written() {
    let scratch = Scratch::new();
    let data = lockstep_testkit::data();
    fs::create_dir_all(scratch.file("tests")).unwrap();
    std::os::unix::fs::symlink(data, scratch.file("tests/data")).unwrap();
    let here = scratch.path("");
    let all = commands();
    assert!(all.len() >= 20, "{all:?}");
    for command in all {
        let words: Vec<_> = command.split(' ').collect();
        let run = ran(binary().args(&words).current_dir(Path::new(&here)));
        assert_eq!(
            run.code,
            expected(&command),
            "lockstep {command}\n{}\n{}",
            run.stdout,
            run.stderr
        );
        assert!(!run.stdout.trim().is_empty(), "lockstep {command} says nothing");
    }
    assert!(scratch.file("lockstep-demo/report/report.html").exists());
    assert!(scratch.file("runs/report/report.html").exists());
}
