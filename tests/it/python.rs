//! The recorders in Python: their own tests, and a live transformers model held against the runtime.
//!
//! The tests of the standard library's part need `python3` with `venv`. Those of a live model need torch and transformers, which are
//! not installed here: `LOCKSTEP_PYTHON_ENV` names a virtual environment that has them (else `~/.cache/lockstep/live` is looked at).
//! Without them they say `skipped` and prove nothing.

#![expect(clippy::unwrap_used, reason = "what is missing fails the test")]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use lockstep_traces::hash::logits_hash;
use lockstep_traces::manifest::ValueEncoding;
use lockstep_traces::store::{RunReader, StepColumns};
use lockstep_traces::{DumpId, StepQuery, UNKNOWN_TOKEN};

use crate::kit::{Ran, Scratch, ledger, lockstep, text};

/// Top-8 logits of two f32 implementations of 4 layers: sums of at most 768 products in another order differ by less than
/// 768 x 2^-24 of values near 30, a few times in a row; the largest seen is 1.9e-5.
const TOP8: f32 = 2e-4;
/// Relative L2 of hidden states and cached rows, for the same reason: 768 x 2^-24. The largest seen is 1.0e-6.
const HIDDEN: f64 = 5e-5;
/// Tokens generated.
const TOKENS: usize = 100;
/// Position after which the cache is dumped.
const CACHED: u32 = 79;

fn package() -> PathBuf {
    lockstep_testkit::root().join("traces").join("python")
}

fn said(output: &Output) -> String {
    format!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    )
}

/// A Python that writes nothing beside the sources and asks no index.
fn python(program: &Path) -> Command {
    let mut command = Command::new(program);
    command.env("PYTHONDONTWRITEBYTECODE", "1").env_remove("PYTHONPATH");
    command
}

/// `python3` of a fresh virtual environment, or why there is none.
fn fresh(scratch: &Scratch) -> Result<PathBuf, String> {
    let folder = scratch.file("venv");
    let made = python(Path::new("python3")).args(["-m", "venv"]).arg(&folder).output();
    match made {
        Err(error) => Err(format!("no python3: {error}")),
        Ok(output) if !output.status.success() => {
            Err(format!("python3 -m venv: {}", said(&output)))
        }
        Ok(_) => Ok(folder.join("bin/python")),
    }
}

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy(&entry.path(), &target);
        } else {
            std::fs::copy(entry.path(), target).unwrap();
        }
    }
}

/// Runs unit tests of the package with `program`; their output where they fail, and the number that ran.
fn unit_tests(program: &Path, packages: &Path, modules: &[&str]) -> String {
    let output = python(program)
        .args(["-m", "unittest", "-v"])
        .args(modules)
        .env("PYTHONPATH", packages)
        .current_dir(package().join("tests"))
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", said(&output));
    said(&output)
}

#[test]
fn the_client_and_the_writer_need_nothing_but_the_standard_library() {
    let scratch = Scratch::new();
    let program = match fresh(&scratch) {
        Ok(program) => program,
        Err(why) => return eprintln!("skipped: {why}"),
    };
    let out = unit_tests(&program, &package(), &["test_client", "test_files"]);
    assert!(out.contains("Ran 12 tests"), "{out}");
    let (source, target) = (scratch.file("source"), scratch.file("target"));
    copy(&package(), &source);
    let mut install = python(&program);
    install.args(["-m", "pip", "install", "--quiet", "--retries", "1", "--timeout", "20"]);
    let output = install.arg("--target").arg(&target).arg(&source).output().unwrap();
    if !output.status.success() {
        // Its build backend comes from an index, which may be out of reach.
        return eprintln!("skipped: pip install: {}", said(&output));
    }
    unit_tests(&program, &target, &["test_client", "test_files"]);
}

/// A Python with torch and transformers, or why there is none.
fn live() -> Result<PathBuf, String> {
    let folder = match std::env::var_os("LOCKSTEP_PYTHON_ENV") {
        Some(folder) => PathBuf::from(folder),
        None => match std::env::var_os("HOME") {
            Some(home) => Path::new(&home).join(".cache/lockstep/live"),
            None => return Err("no LOCKSTEP_PYTHON_ENV and no home".to_owned()),
        },
    };
    let program = folder.join("bin/python");
    if !program.is_file() {
        return Err(format!(
            "no virtual environment in {}: make one and pip install torch, transformers and safetensors",
            folder.display()
        ));
    }
    let output = python(&program).args(["-c", "import torch, transformers, safetensors"]).output();
    match output {
        Ok(output) if output.status.success() => Ok(program),
        Ok(output) => Err(format!("{}: {}", folder.display(), said(&output).trim())),
        Err(error) => Err(format!("{}: {error}", folder.display())),
    }
}

/// Recordings of the ledger model, and the runtime's own run on the same prompt.
struct Live {
    scratch: Scratch,
}

impl Live {
    fn record(program: &Path) -> Self {
        let scratch = Scratch::new();
        let tasks = lockstep_testkit::data().join("golden/traces/tasks.jsonl");
        let tasks = std::fs::read_to_string(tasks).unwrap();
        let row: serde_json::Value = serde_json::from_str(tasks.lines().next().unwrap()).unwrap();
        let ids = scratch.file("ids.json");
        std::fs::write(&ids, row["prompt_ids"].to_string()).unwrap();
        let output = python(program)
            .arg("live_ledger.py")
            .args([&ledger(), &text(&ids), &TOKENS.to_string(), &CACHED.to_string()])
            .arg(text(&scratch.file("")))
            .env("PYTHONPATH", package())
            .env("HF_HUB_OFFLINE", "1")
            .current_dir(package().join("tests"))
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", said(&output));
        let live = Self { scratch };
        for name in ["f32", "bf16", "static", "plain", "loop", "batch", "theta"] {
            let (from, out) = (live.path(name), live.path(&format!("{name}_run")));
            lockstep(["import", "lockstep-trace", &from, "--out", &out]).expect(0);
        }
        live.run("ours", &["--dtype", "f32", "--record-hidden", "0,1,20,51,60"]);
        // Keeps every row until the cache has 80, so that the dump before the compaction is a dense cache.
        live.run(
            "ours_cache",
            &[
                "--dtype",
                "f32",
                "--policy",
                "recent",
                "--kv-budget",
                "64",
                "--divide-length",
                "16",
                "--record-cache",
                "1",
            ],
        );
        live
    }

    fn run(&self, name: &str, extra: &[&str]) {
        let (out, tokens) = (self.path(name), TOKENS.to_string());
        let tasks = crate::kit::tasks();
        let model = ledger();
        let mut args = vec!["run", "--model", &model, "--dataset", &tasks, "--select", "0"];
        args.extend(["--device", "cpu", "--max-new-tokens", &tokens, "--out", &out]);
        args.extend(["--record-logits", "20,60"]);
        args.extend(extra);
        lockstep(args).expect(0);
    }

    fn path(&self, name: &str) -> String {
        self.scratch.path(name)
    }

    fn open(&self, name: &str) -> RunReader {
        RunReader::open(&self.scratch.file(name)).unwrap()
    }

    fn steps(&self, name: &str) -> StepColumns {
        let query = StepQuery { sample_id: Some("ledger_01".to_owned()), ..StepQuery::default() };
        self.open(name).steps(&query).unwrap()
    }
}

/// Largest difference of logits that both rows store; the rows must agree in tokens, rows and argmax.
fn agree(ours: &StepColumns, theirs: &StepColumns, name: &str) -> f32 {
    assert_eq!((&ours.position, &ours.token_id), (&theirs.position, &theirs.token_id), "{name}");
    assert_eq!((&ours.rows_before, &ours.rows_after), (&theirs.rows_before, &theirs.rows_after));
    assert_eq!((&ours.phase, &ours.rope_index), (&theirs.phase, &theirs.rope_index), "{name}");
    assert_eq!(ours.next_token, theirs.next_token, "{name}");
    let mut largest = 0.0_f32;
    for row in 0..ours.len {
        let (a, b) = (ours.row(row).unwrap(), theirs.row(row).unwrap());
        if b.argmax == UNKNOWN_TOKEN {
            continue;
        }
        assert_eq!(a.argmax, b.argmax, "{name}, row {row}");
        let left: BTreeMap<_, _> = a.top_ids.iter().zip(&a.top_logits).collect();
        for (id, logit) in b.top_ids.iter().zip(&b.top_logits) {
            if let Some(ours) = left.get(id) {
                largest = largest.max((**ours - logit).abs());
            }
        }
        let sums = a.logsumexp.unwrap() - b.logsumexp.unwrap();
        assert!(sums.abs() < f64::from(TOP8), "{name}, row {row}: {sums}");
    }
    largest
}

#[test]
fn a_live_transformers_model_agrees_with_the_runtime_and_a_planted_mistake_is_named() {
    let program = match live() {
        Ok(program) => program,
        Err(why) => return eprintln!("skipped: {why}"),
    };
    unit_tests(&program, &package(), &["test_live"]);
    let live = Live::record(&program);
    let ours = live.steps("ours");
    for name in ["f32_run", "static_run", "plain_run", "loop_run", "batch_run"] {
        let theirs = live.steps(name);
        let largest = agree(&ours, &theirs, name);
        assert!(largest < TOP8, "{name}: {largest}");
        let without = theirs.argmax.iter().filter(|id| **id == UNKNOWN_TOKEN).count();
        assert_eq!(without, if name == "plain_run" { 51 } else { 0 }, "{name}");
    }
    manifests(&live);
    hashes(&live);
    tensors(&live);
    verdicts(&live);
    planted(&live);
}

/// What both sides say of the model is the same, and the recording says what it is.
fn manifests(live: &Live) {
    let (run, ours) = (live.open("f32_run"), live.open("ours"));
    let (theirs, ours) = (run.manifest(), ours.manifest());
    assert_eq!(theirs.model.weights_sha256, ours.model.weights_sha256);
    assert_eq!(theirs.model.config_sha256, ours.model.config_sha256);
    assert_eq!(theirs.model.tokenizer_sha256, ours.model.tokenizer_sha256);
    assert_eq!(theirs.model.architecture, ours.model.architecture);
    assert_eq!(theirs.encoding, ValueEncoding::Digits9);
    for (key, setting) in theirs.config.iter().filter(|(key, _)| key.starts_with("model.")) {
        assert_eq!(Some(&setting.value), ours.get(key), "{key}");
    }
    let samples = run.samples().unwrap();
    assert_eq!((samples[0].prompt_len, samples[0].generated_ids.len()), (Some(52), TOKENS));
    let batch = live.open("batch_run").samples().unwrap();
    assert_eq!(batch.len(), 2);
}

/// The hash of a row is Lockstep's hash of the logits that were dumped.
fn hashes(live: &Live) {
    let run = live.open("bf16_run");
    let steps = live.steps("bf16_run");
    for position in [20, 60] {
        let id = DumpId::Step { sample_id: "ledger_01".to_owned(), position };
        let dump = run.dump(&id).unwrap().unwrap();
        let logits: Vec<f32> =
            dump.get("logits").unwrap().to_f64().unwrap().iter().map(|v| *v as f32).collect();
        let seeds = run.manifest().logits_hash_seeds.unwrap();
        let row = usize::try_from(position).unwrap();
        assert_eq!(steps.logits_hash[row], Some(logits_hash(&logits, seeds)));
    }
}

/// Hidden states and caches.
fn tensors(live: &Live) {
    let map = live.path("map.yaml");
    std::fs::write(
        &map,
        format!(
            "pairs:\n- {{left: 'cache\\.(?<kv>[kv])\\.layer(?<layer>[0-9]+)', right: 'pre\\.(?<kv>[kv])\\.layer(?<layer>[0-9]+)'}}\n\
             allow_skip: ['post.*', 'positions.*', 'keep.*', 'scores.*']\n\
             tolerances: [{{metric: relative_l2, at_most: {HIDDEN}, reason: two orders of summation in f32}}]\n"
        ),
    )
    .unwrap();
    let step = |name: &str, position: u32| {
        live.path(&format!("{name}/tensors/ledger_01/step_{position:07}.safetensors"))
    };
    for position in [0, 1, 20, 51, 60] {
        let report = lockstep([
            "diff",
            "tensors",
            &step("f32_run", position),
            &step("ours", position),
            "--map",
            &map,
            "--format",
            "json",
        ])
        .expect(0)
        .json();
        let pairs = report["pairs"].as_array().unwrap().len();
        let whole = 4 * 13 + 2 + usize::from(position == 20 || position == 60);
        assert_eq!(pairs, whole, "position {position}");
    }
    let dump = live.path("ours_cache/tensors/ledger_01/compaction_0001.safetensors");
    let report = lockstep([
        "diff",
        "tensors",
        &step("f32_run", CACHED),
        &dump,
        "--map",
        &map,
        "--format",
        "json",
    ])
    .expect(0)
    .json();
    assert_eq!(report["pairs"].as_array().unwrap().len(), 8, "{report:#}");
    // In the padded batch the same rows lie at the same places.
    lockstep(["diff", "tensors", &step("batch_run", CACHED), &dump, "--map", &map]).expect(0);
    lockstep(["diff", "tensors", &step("theta_run", CACHED), &dump, "--map", &map]).expect(1);
}

/// `diff` takes a recording as it is, and an import.
fn verdicts(live: &Live) {
    let (ours, run) = (live.path("ours"), live.path("f32_run"));
    for theirs in [&run, &live.path("f32")] {
        let report = lockstep(["diff", &ours, theirs, "--format", "json"]).expect(1).json();
        // Bits differ, so the comparison is not parity; it splits nowhere.
        assert!(report["splits"]["argmax"].is_null() && report["splits"]["token"].is_null());
        assert_eq!(report["counts"]["rows_compared"], 151, "{report:#}");
        assert_eq!(report["inputs"]["model_equal"], true);
    }
    replay(live, "f32_run").expect(0);
}

/// Another rotary base: the configurations differ, and a replay names the stage.
fn planted(live: &Live) {
    let (ours, run) = (live.path("ours"), live.path("theta_run"));
    let report = lockstep(["diff", &ours, &run, "--format", "json"]).expect(1).json();
    let keys: Vec<_> = report["inputs"]["differences"].as_array().unwrap().iter().collect();
    assert!(keys.iter().any(|one| one["key"] == "model.rope_theta"), "{keys:#?}");
    let replay = replay(live, "theta_run").expect(1);
    assert!(replay.stdout.contains("rotary-base"), "{}", replay.stdout);
}

/// The reference executes a recording again.
fn replay(live: &Live, name: &str) -> Ran {
    let (run, out) = (live.path(name), live.path(&format!("{name}_again")));
    lockstep([
        "replay",
        "forward",
        &run,
        "--model",
        &ledger(),
        "--policy",
        "dense",
        "--out",
        &out,
        "--format",
        "json",
    ])
}
