//! `bench run` and `bench merge`: what a bench comes to does not depend on how it was cut, killed or batched.

use std::fs;
use std::path::Path;
use std::process::Stdio;
use std::thread::sleep;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::kit::{Ran, Scratch, binary, ledger, lockstep, ran, tasks};

/// Six small problems, some tokens of each: past the first compactions of a budget of 64.
const ROWS: &str = "0-5";
const POLICY: [&str; 6] =
    ["--kv-budget", "64", "--divide-length", "16", "--protect-prefill", "false"];

fn args<'a>(out: &'a str, extra: &[&'a str]) -> Vec<&'a str> {
    let mut args =
        vec!["bench", "run", "--dataset", "ledger", "--model", "ledger", "--device", "cpu"];
    args.extend(["--format", "json", "--out", out]);
    if !extra.contains(&"--max-new-tokens") {
        args.extend(["--max-new-tokens", "40"]);
    }
    args.extend(extra);
    args
}

#[track_caller]
fn bench(out: &str, extra: &[&str]) -> Value {
    lockstep(args(out, extra)).expect(0).json()
}

/// A run folder's samples and rows are those of another, bit for bit.
#[track_caller]
fn identical(left: &str, right: &str) {
    let diff = lockstep(["diff", left, right, "--format", "json"]).expect(0).json();
    assert_eq!(diff["verdict"]["kind"], "identical", "{left} {right}: {diff:#}");
    assert!(diff["counts"]["rows_compared"].as_u64().expect("a count") > 0);
}

/// What a bench says about its rows, without times and without where they came from.
fn rows(summary: &Value, run: usize) -> Vec<Value> {
    let keys = [
        "sample_id",
        "row_index",
        "effective_seed",
        "outcome",
        "finish",
        "answer",
        "generated_tokens",
        "prompt_ids_sha256",
    ];
    let row = |sample: &Value| keys.iter().map(|key| sample[*key].clone()).collect();
    summary["runs"][run]["samples"].as_array().expect("rows").iter().map(row).collect()
}

fn dir(out: &str, run: &str) -> String {
    format!("{out}/{run}")
}

#[test]
fn no_batch_changes_a_bit_of_any_policy() {
    let scratch = Scratch::new();
    let compare = ["--select", ROWS, "--compare", "dense,triattention"];
    let outs: Vec<(String, Value)> = ["1", "2", "4"]
        .iter()
        .map(|batch| {
            let out = scratch.path(&format!("batch{batch}"));
            let extra: Vec<&str> =
                compare.iter().chain(&POLICY).copied().chain(["--batch", batch]).collect();
            let summary = bench(&out, &extra);
            (out, summary)
        })
        .collect();
    let (first, summary) = &outs[0];
    assert!(summary["runs"][1]["compactions"].as_u64().unwrap() >= 6, "{summary:#}");
    for (out, other) in &outs[1..] {
        for (number, run) in ["dense", "triattention"].iter().enumerate() {
            assert_eq!(rows(summary, number), rows(other, number), "{run}");
            identical(&dir(first, run), &dir(out, run));
        }
    }
}

/// Starts a bench and kills it as soon as its cache holds one response more than before.
fn kill_on_the_way(out: &str, extra: &[&str]) {
    let cache = Path::new(out).join("responses/dense.jsonl");
    let lines =
        || fs::read(&cache).map_or(0, |bytes| bytes.iter().filter(|byte| **byte == b'\n').count());
    // The first line of a cache is no response.
    let wanted = lines().max(1) + 1;
    let mut child = binary()
        .args(args(out, extra))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("the binary starts");
    let started = Instant::now();
    while lines() < wanted {
        assert!(started.elapsed() < Duration::from_secs(120), "nothing was recorded");
        assert!(child.try_wait().expect("a child").is_none(), "it ended before it could be killed");
        sleep(Duration::from_millis(2));
    }
    // SIGKILL.
    child.kill().expect("it dies");
    child.wait().expect("it is gone");
}

#[test]
fn a_bench_killed_at_three_points_goes_on_to_the_same_results() {
    let scratch = Scratch::new();
    let (whole, broken) = (scratch.path("whole"), scratch.path("broken"));
    let extra = ["--select", "0-9", "--max-new-tokens", "160"];
    let unbroken = bench(&whole, &extra);
    assert_eq!(
        (&unbroken["runs"][0]["from_cache"], &unbroken["runs"][0]["computed"]),
        (&0.into(), &10.into())
    );
    let resumed: Vec<&str> = extra.iter().copied().chain(["--resume"]).collect();
    for point in 0..3 {
        kill_on_the_way(&broken, if point == 0 { &extra } else { &resumed });
    }
    // A record that was being written when the process died.
    let cache = format!("{broken}/responses/dense.jsonl");
    let kept = fs::read_to_string(&cache).unwrap().lines().count() - 1;
    let mut torn = fs::read(&cache).unwrap();
    torn.extend(b"{\"sum\":\"0123");
    fs::write(&cache, torn).unwrap();
    let last = lockstep(args(&broken, &resumed)).expect(0);
    assert!(last.stderr.contains("cut record"), "{}", last.stderr);
    let last = last.json();
    let run = &last["runs"][0];
    assert!(kept >= 3, "{kept}");
    assert_eq!((&run["from_cache"], &run["computed"]), (&kept.into(), &(10 - kept).into()));
    assert_eq!(rows(&last, 0), rows(&unbroken, 0));
    identical(&dir(&whole, "dense"), &dir(&broken, "dense"));
}

#[test]
fn an_interrupt_leaves_a_bench_to_go_on_with() {
    let scratch = Scratch::new();
    let out = scratch.path("bench");
    let extra = ["--select", "0-9", "--max-new-tokens", "400"];
    let child = binary()
        .args(args(&out, &extra))
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let cache = Path::new(&out).join("responses/dense.jsonl");
    while fs::read(&cache).map_or(0, |bytes| bytes.iter().filter(|byte| **byte == b'\n').count())
        < 2
    {
        sleep(Duration::from_millis(2));
    }
    ran(std::process::Command::new("kill").args(["-INT", &child.id().to_string()])).expect(0);
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(4), "{}", String::from_utf8_lossy(&output.stderr));
    let told: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(told["status"], "incomplete");
    assert!(told["flags"][0].as_str().unwrap().contains("unfinished"), "{told:#}");
    let done = bench(&out, &["--select", "0-9", "--max-new-tokens", "400", "--resume"]);
    assert_eq!((&done["status"], &done["runs"][0]["rows"]), (&"complete".into(), &10.into()));
    assert!(done["runs"][0]["from_cache"].as_u64().unwrap() >= 1);
}

#[test]
fn a_cache_of_another_configuration_is_refused_by_its_first_key() {
    let scratch = Scratch::new();
    let (out, other, cache) = (scratch.path("a"), scratch.path("b"), scratch.path("cache"));
    bench(&out, &["--limit", "2", "--cache", &cache]);
    let refuse = |extra: &[&str], words: &str| {
        let all: Vec<&str> =
            ["--limit", "2", "--cache", &cache].iter().chain(extra).copied().collect();
        lockstep(args(&other, &all)).expect_refusal(3, &["dense.jsonl", words]);
        fs::remove_dir_all(&other).unwrap();
    };
    refuse(&["--temperature", "0.5", "--seed", "1"], "`sampling.");
    refuse(&["--stop-on-answer"], "`stop.");
    refuse(&["--dtype", "bf16"], "`cache_dtype`");
    // The same configuration over more rows: those that are there are not computed again, gold answers and all.
    let more = bench(&other, &["--limit", "3", "--cache", &cache, "--batch", "2"]);
    assert_eq!(
        (&more["runs"][0]["from_cache"], &more["runs"][0]["computed"]),
        (&2.into(), &1.into())
    );
    lockstep(args(&other, &["--limit", "3", "--cache", &cache])).expect_refusal(2, &["--resume"]);
}

/// Shards of six sampled rows; the whole beside them.
struct Shards {
    scratch: Scratch,
}

impl Shards {
    fn new() -> Self {
        let shards = Self { scratch: Scratch::new() };
        for (name, shard) in [("whole", None), ("s0", Some("0/2")), ("s1", Some("1/2"))] {
            let mut extra = vec!["--select", ROWS, "--temperature", "1.0", "--seed", "1234"];
            extra.extend(shard.iter().flat_map(|shard| ["--shard", shard]));
            bench(&shards.path(name), &extra);
        }
        shards
    }

    fn path(&self, name: &str) -> String {
        self.scratch.path(name)
    }

    fn merge(&self, parts: &[&str], out: &str) -> Ran {
        let parts: Vec<String> = parts.iter().map(|part| self.path(part)).collect();
        let out = self.path(out);
        let mut args = vec!["bench", "merge", "--format", "json", "--out", &out];
        args.extend(parts.iter().map(String::as_str));
        lockstep(args)
    }
}

#[test]
fn shards_add_up_to_the_whole_and_planted_faults_are_named() {
    let shards = Shards::new();
    let merged = shards.merge(&["s1", "s0"], "merged").expect(0).json();
    let whole: Value =
        serde_json::from_slice(&fs::read(shards.path("whole") + "/summary.json").unwrap()).unwrap();
    assert_eq!(rows(&merged, 0), rows(&whole, 0));
    identical(&(shards.path("whole") + "/dense"), &(shards.path("merged") + "/dense"));
    // Seeds follow the row in the dataset, not the place in a shard.
    let seeds: Vec<u64> = merged["runs"][0]["samples"]
        .as_array()
        .unwrap()
        .iter()
        .map(|row| row["effective_seed"].as_u64().unwrap())
        .collect();
    assert_eq!(seeds, [1234, 1235, 1236, 1237, 1238, 1239]);
    // A row that is missing: a shard left out, and a shard with one row less.
    shards.merge(&["s0"], "m1").expect_refusal(4, &["3 of 6", "ledger_02, ledger_04, ledger_06"]);
    bench(
        &shards.path("cut"),
        &["--select", "0,1,2,3,5", "--temperature", "1.0", "--seed", "1234", "--shard", "0/2"],
    );
    shards
        .merge(&["cut", "s1"], "m2")
        .expect_refusal(3, &["selected row 4", "ledger_05", "ledger_06"]);
    // A row that is there twice: the same shard again, and the whole beside a shard.
    shards
        .merge(&["s0", "s1", "s0"], "m3")
        .expect_refusal(3, &["`ledger_01`", "must be there once"]);
    shards.merge(&["whole", "s1"], "m4").expect_refusal(3, &["`ledger_02`", "whole", "s1"]);
    // Another configuration.
    bench(
        &shards.path("hot"),
        &["--select", ROWS, "--temperature", "0.9", "--seed", "1234", "--shard", "1/2"],
    );
    shards.merge(&["s0", "hot"], "m5").expect_refusal(3, &["sampling.temperature", "0.9", "1.0"]);
    for out in ["m1", "m2", "m3", "m4", "m5"] {
        assert!(!Path::new(&shards.path(out)).exists(), "{out}: nothing is written");
    }
}

#[test]
fn an_unfinished_shard_is_missing_its_rows() {
    let shards = Shards::new();
    let extra = ["--select", ROWS, "--temperature", "1.0", "--seed", "1234", "--shard", "1/2"];
    kill_on_the_way(&shards.path("killed"), &extra);
    shards
        .merge(&["s0", "killed"], "merged")
        .expect_refusal(4, &["of 6 rows are in no folder", "ledger_06"]);
}

#[test]
fn dense_policy_and_reference_run_over_the_same_rows() {
    let scratch = Scratch::new();
    let out = scratch.path("bench");
    let extra = [
        "--limit",
        "2",
        "--max-new-tokens",
        "200",
        "--compare",
        "dense,triattention,recent,reference",
        "--sweep",
        "budget=64,96:divide=16",
        "--protect-prefill",
        "false",
        "--stop-on-answer",
        "--stop-check-interval",
        "1",
    ];
    let summary = bench(&out, &extra);
    let names: Vec<&str> = summary["runs"]
        .as_array()
        .unwrap()
        .iter()
        .map(|run| run["name"].as_str().unwrap())
        .collect();
    assert_eq!(
        names,
        [
            "dense",
            "triattention-b64-d16",
            "triattention-b96-d16",
            "recent-b64-d16",
            "recent-b96-d16"
        ]
    );
    // The dense model is exact on these problems, and the reference ranks as it does.
    let dense = &summary["runs"][0];
    assert_eq!(
        (&dense["scores"]["outcomes"]["correct"], &dense["finishes"]["stop"]),
        (&2.into(), &2.into())
    );
    let sample = &dense["samples"][0];
    assert_eq!(
        (&sample["gold"], &sample["answer"], &sample["stopped_by"]),
        (&"89".into(), &"89".into(), &"answer".into())
    );
    // The exact completion has 120 tokens; the last one, the end of sequence, comes behind the closed box.
    assert_eq!(sample["generated_tokens"], 119);
    let reference = &summary["reference"];
    assert_eq!(
        (&reference["samples_equal"], &reference["rows"]),
        (&2.into(), &reference["rows_equal"])
    );
    assert_eq!(summary["pairs"].as_array().unwrap().len(), 4);
    assert_eq!(
        (&summary["pairs"][0]["left"], &summary["pairs"][0]["n"]),
        (&"dense".into(), &2.into())
    );
    // A configuration is a run like any other.
    for verb in [vec!["inspect"], vec!["check", "positions"]] {
        let run = dir(&out, "triattention-b64-d16");
        lockstep(verb.into_iter().chain([run.as_str()])).expect(0);
    }
    let text = fs::read_to_string(out + "/summary.txt").unwrap();
    assert!(text.contains("dense") && text.contains("teacher-forced"), "{text}");
}

#[test]
fn shared_seeds_and_doubled_beginnings_are_flagged_and_a_clean_bench_has_no_flag() {
    let scratch = Scratch::new();
    let (file, out, clean) =
        (scratch.path("rows.jsonl"), scratch.path("out"), scratch.path("clean"));
    fs::write(
        &file,
        "{\"id\":\"a\",\"prompt_ids\":[1,3,477],\"seed_index\":7}\n{\"id\":\"b\",\"prompt_ids\":[1,1,3],\"seed_index\":7}\n",
    )
    .unwrap();
    let sampled =
        ["--temperature", "1.0", "--seed", "5", "--max-new-tokens", "3", "--format", "json"];
    let run = |out: &str, dataset: &str, more: &[&str]| {
        let mut call = vec!["bench", "run", "--model", "ledger", "--device", "cpu"];
        call.extend(["--dataset", dataset, "--out", out]);
        call.extend(sampled);
        lockstep(call.into_iter().chain(more.iter().copied())).expect(0).json()
    };
    let summary = run(&out, &file, &[]);
    let flags: Vec<&str> =
        summary["flags"].as_array().unwrap().iter().map(|flag| flag.as_str().unwrap()).collect();
    assert_eq!(flags.len(), 2, "{flags:?}");
    assert!(flags[0].contains("1 prompts, first `b`"), "{flags:?}");
    assert!(flags[1].contains("dense: 1 rows share an effective seed"), "{flags:?}");
    let rows = &summary["runs"][0]["samples"];
    assert_eq!(
        (&rows[1]["base_seed"], &rows[1]["seed_index"], &rows[1]["effective_seed"]),
        (&5.into(), &7.into(), &12.into())
    );
    // Without gold answers nothing is scored and nothing is paired.
    assert_eq!(summary["runs"][0]["scores"]["outcomes"]["unscored"], 2);
    assert_eq!(run(&clean, "ledger", &["--limit", "2"])["flags"], serde_json::json!([]));
}

#[test]
fn datasets_that_are_no_datasets_are_refused_with_their_line() {
    let scratch = Scratch::new();
    let (file, out) = (scratch.path("rows.jsonl"), scratch.path("out"));
    let good = fs::read_to_string(tasks()).unwrap();
    let first = good.lines().next().unwrap();
    let cases = [
        (format!("Fetching 3 files: 100%\n{first}\n"), ["rows.jsonl:1", "Fetching 3 files"]),
        (format!("{first}\n{first}\n"), ["rows.jsonl:2", "`ledger_01`"]),
        (
            format!("{first}\n{{\"sample_id\":\"x\",\"prompt\":\"p\"}}\n"),
            ["rows.jsonl:2", "`answer` is missing"],
        ),
        (String::new(), ["rows.jsonl", "no rows"]),
    ];
    for (text, words) in cases {
        fs::write(&file, text).unwrap();
        let model = ledger();
        let call = [
            "bench",
            "run",
            "--dataset",
            &file,
            "--model",
            &model,
            "--device",
            "cpu",
            "--out",
            &out,
        ];
        lockstep(call).expect_refusal(3, &words);
    }
    for (extra, words) in [
        (vec!["--batch", "9"], "1 to 8"),
        (vec!["--select", "41"], "--select 41"),
        (vec!["--compare", "dense,lru"], "lru"),
        (vec!["--chat-template", "model"], "has none"),
        (vec!["--stop", ""], "stop"),
    ] {
        let out = scratch.path(words);
        lockstep(args(&out, &extra)).expect_refusal(2, &[words]);
    }
}
