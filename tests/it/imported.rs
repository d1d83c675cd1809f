//! `import` of artifacts without a trace: the run must be judged as the artifact itself is.

use std::fs;

use serde_json::Value;

use crate::kit::{Ran, Scratch, lockstep, text};

/// Rows of the three dates, of the transformers driver, and rows whose predictions are gold.
const FIRST: &str = r#"{"sample_id":"toy_1","answer":"588","generated_tokens":4,"prefill_ms":20.0,"decode_ms":50.0,"wall_ms":75.0,"tokens_per_sec":80.0,"text":"so the sum is 4"}
{"sample_id":"toy_2","answer":"16","generated_tokens":4,"prefill_ms":20.0,"decode_ms":50.0,"wall_ms":75.0,"tokens_per_sec":80.0,"text":"\\boxed{16}"}
"#;
const SECOND: &str = r#"{"sample_id":"toy_1","gold_answer":"588","pred_answer":"4","generated_tokens":4,"prefill_ms":20.0,"decode_ms":50.0,"wall_ms":75.0,"tokens_per_sec":80.0,"text":"\\boxed{4}"}
{"sample_id":"toy_2","gold_answer":"16","pred_answer":"16","generated_tokens":4,"prefill_ms":20.0,"decode_ms":50.0,"wall_ms":75.0,"tokens_per_sec":80.0,"text":"\\boxed{16}"}
{"sample_id":"toy_3","gold_answer":"7","pred_answer":"","generated_tokens":4,"prefill_ms":20.0,"decode_ms":50.0,"wall_ms":75.0,"tokens_per_sec":80.0,"text":""}
"#;
const THIRD: &str = r#"{"sample_id":"toy_4","gold_answer":"12","pred_answer":"12","generated_tokens":3,"generated_token_ids":[785,1156,2613],"setup_ms":1.2,"prefill_ms":36.1,"decode_ms":50.2,"wall_ms":89.0,"tokens_per_sec":59.8,"effective_seed":1234,"temperature":0.6,"text":"\\boxed{12}"}
{"sample_id":"toy_5","gold_answer":"13","pred_answer":"12","generated_tokens":3,"generated_token_ids":[785,1156,2613],"setup_ms":1.2,"prefill_ms":36.1,"decode_ms":50.2,"wall_ms":89.0,"tokens_per_sec":59.8,"effective_seed":1234,"temperature":0.6,"text":"\\boxed{12}"}
"#;
const HF: &str = r#"{"sample_id":"toy_1","gold_answer":"588","pred_answer":null,"generated_tokens":2,"wall_ms":25.0,"tokens_per_sec":80.0,"text":"Let me."}
{"sample_id":"toy_2","gold_answer":"16","pred_answer":"16","generated_tokens":2,"wall_ms":25.0,"tokens_per_sec":80.0,"text":"\\boxed{16}"}
"#;
const ECHO: &str = r#"{"sample_id":"toy_1","gold_answer":"588","pred_answer":"588","generated_tokens":2,"prefill_ms":1.0,"decode_ms":1.0,"wall_ms":2.0,"tokens_per_sec":1.0,"text":"Let me."}
"#;

fn write(scratch: &Scratch, name: &str, bytes: impl AsRef<[u8]>) -> String {
    fs::write(scratch.file(name), bytes).expect("scratch is writable");
    scratch.path(name)
}

#[track_caller]
fn import(args: &[&str], out: &str) -> Ran {
    lockstep([&["import"], args, &["--out", out]].concat()).expect(0)
}

/// An answer with every path replaced by one word, and its exit status.
fn judged(verb: &[&str], path: &str) -> (i32, Value) {
    let ran = lockstep([verb, &[path, "--format", "json"]].concat());
    let text = ran.stdout.replace(path, "INPUT");
    (ran.code, serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {ran:?}")))
}

#[test]
fn rows_of_every_date_are_scored_and_audited_alike_as_file_and_as_run() {
    let scratch = Scratch::new();
    let files =
        [("first", FIRST), ("second", SECOND), ("third", THIRD), ("hf", HF), ("echo", ECHO)];
    for (name, rows) in files {
        let file = write(&scratch, name, rows);
        let run = scratch.path(&format!("{name}.run"));
        import(&["trtmc-rows", &file], &run);
        for verb in [&["bench", "score"][..], &["bench", "score", "--rule", "recorded"], &["audit"]]
        {
            assert_eq!(judged(verb, &run), judged(verb, &file), "{name}: {verb:?}");
        }
        let inspected = lockstep(["inspect", &run]).expect(0).stdout;
        assert!(inspected.contains("toy_"), "{inspected}");
    }
    // By hand: of the second date one of three is right, one has no answer at all.
    let (_, answer) = judged(&["bench", "score"], &scratch.path("second.run"));
    let score = &answer["inputs"][0]["filters"][0]["score"];
    assert_eq!((score["hits"].as_u64(), score["n"].as_u64()), (Some(1), Some(3)));
}

#[test]
fn a_cut_file_is_an_incomplete_run_and_is_still_scored() {
    let scratch = Scratch::new();
    let file = write(&scratch, "rows", &SECOND[..SECOND.len() - 30]);
    let run = scratch.path("run");
    import(&[&file], &run);
    assert_eq!(judged(&["bench", "score"], &run), judged(&["bench", "score"], &file));
    let text = lockstep(["inspect", &run]).expect(0).stdout;
    assert!(text.contains("INCOMPLETE"), "{text}");
}

#[test]
fn pairs_of_rows_are_told_apart_by_their_samples_seeds_and_gold_answers() {
    let scratch = Scratch::new();
    let rows = |range: std::ops::Range<u32>, gold: &str| -> String {
        range
            .map(|at| {
                format!(
                    "{{\"sample_id\":\"toy_{at}\",\"gold_answer\":\"{gold}\",\"pred_answer\":\"5\",\"generated_tokens\":2,\"decode_ms\":1.0,\
                     \"effective_seed\":{},\"temperature\":0.6,\"text\":\"it is 5\"}}\n",
                    1234 + at
                )
            })
            .collect()
    };
    let all = write(&scratch, "all", rows(0..40, "6"));
    let half = write(&scratch, "half", rows(0..20, "6"));
    let other = write(&scratch, "other", rows(0..40, "9"));
    let flagged = |left: &str, right: &str| -> Vec<String> {
        let answer = lockstep(["audit", left, right, "--format", "json"]).json();
        let findings = answer["findings"].as_array().unwrap().clone();
        findings
            .iter()
            .filter(|one| one["verdict"] == "flag")
            .map(|one| {
                format!("{} {}", one["slug"].as_str().unwrap(), one["compared"].as_str().unwrap())
            })
            .collect()
    };
    let has = |list: &[String], part: &str| list.iter().any(|line| line.contains(part));
    let found = flagged(&all, &half);
    assert!(
        has(&found, "partial-run 20 samples are finished on both sides, of 40 and 20"),
        "{found:?}"
    );
    let found = flagged(&all, &other);
    assert!(has(&found, "id-reused different gold answers: `6`"), "{found:?}");
    let clean = flagged(&all, &all);
    assert!(!has(&clean, "partial-run") && !has(&clean, "id-reused"), "{clean:?}");
    // Seeds and temperature are read: one seed for two rows is void.
    let third = write(&scratch, "third", THIRD);
    let answer =
        lockstep(["audit", &third, "--only", "one-seed", "--format", "json"]).expect(1).json();
    assert_eq!(answer["findings"][0]["compared"], "2 of 2 rows were drawn with seed 1234");
}

#[test]
fn samples_of_lm_eval_are_scored_alike_and_every_filter_counts() {
    let scratch = Scratch::new();
    let folder = lockstep_testkit::data().join("interop/lm-eval");
    for name in ["gen", "choice", "chat"] {
        let file = text(&folder.join(format!("samples_{name}.jsonl")));
        let run = scratch.path(name);
        let said = import(&[&file], &run).stdout;
        assert!(said.contains("read as lm-eval"), "{said}");
        assert_eq!(judged(&["bench", "score"], &run), judged(&["bench", "score"], &file), "{name}");
        lockstep(["audit", &run, "--only", "sample-ids,empty-run"]).expect(0);
    }
    // What lm-eval's own results file says: 0.25 and 0.5 of four; 0.5 of two choices.
    let (_, answer) = judged(&["bench", "score"], &scratch.path("gen"));
    let filters = answer["inputs"][0]["filters"].as_array().unwrap();
    let hits: Vec<(&str, u64)> = filters
        .iter()
        .map(|one| (one["filter"].as_str().unwrap(), one["score"]["hits"].as_u64().unwrap()))
        .collect();
    assert_eq!(hits, [("strict-match", 1), ("flexible-extract", 2)]);
    let (_, answer) = judged(&["bench", "score"], &scratch.path("choice"));
    assert_eq!(answer["inputs"][0]["filters"][0]["score"]["hits"], 1);
    let file = text(&folder.join("samples_gen.jsonl"));
    let refused = scratch.path("refused");
    lockstep(["import", "lm-eval", &file, "--filter", "loose", "--out", &refused])
        .expect_refusal(3, &["no filter `loose`", "strict-match, flexible-extract"]);
}

const SUMMARY: &str = r#"{"dataset":"toy.jsonl","count":2,"max_new_tokens":64,
 "sampling":{"temperature":0.6,"top_k":20,"top_p":0.95,"min_p":0.0,"seed":1234,"hf_dtype":"bfloat16","stop_on_answer":true},
 "dense":{"count":2,"accuracy":1.0,"samples":[
  {"sample_id":"a","gold":"1","pred":"1","correct":true},{"sample_id":"b","gold":"2","pred":"2","correct":true}]},
 "tri":{"count":2,"accuracy":0.5,"samples":[
  {"sample_id":"a","gold":"1","pred":"1","correct":true},{"sample_id":"b","gold":"2","pred":null,"correct":false}]}}"#;

#[test]
fn methods_of_a_summary_are_runs_with_one_configuration() {
    let scratch = Scratch::new();
    let file = write(&scratch, "summary.json", SUMMARY);
    let out = scratch.path("none");
    lockstep(["import", &file, "--out", &out]).expect_refusal(3, &["dense, tri", "--method"]);
    let (dense, tri) = (scratch.path("dense"), scratch.path("tri"));
    import(&[&file, "--method", "dense"], &dense);
    import(&[&file, "--method", "tri"], &tri);
    let hits = |run: &str| {
        let answer = lockstep(["bench", "score", run, "--format", "json"]).json();
        answer["inputs"][0]["filters"][0]["score"]["hits"].as_u64()
    };
    assert_eq!((hits(&dense), hits(&tri)), (Some(2), Some(1)));
    let answer = lockstep(["diff", "--manifest", &dense, &tri, "--format", "json"]).json();
    let keys: Vec<&str> = answer["groups"]
        .as_array()
        .unwrap()
        .iter()
        .flat_map(|group| group["differences"].as_array().unwrap())
        .map(|one| one["key"].as_str().unwrap())
        .collect();
    assert_eq!(keys, ["trace.summary.accuracy", "trace.summary.method"]);
    // No rows of logits: nothing can be called equal.
    lockstep(["diff", &dense, &tri]).expect(4);
    lockstep(["audit", &dense, &tri, "--only", "partial-run"]).expect(0);
}

fn bundle(plan: &[u8], ladder: &str) -> Vec<u8> {
    let config = format!(
        "{{\"dynamic_kv_profile_rows\":{ladder},\"triattention\":{{\"enabled\":true,\"kv_budget\":32}}}}"
    );
    let header = format!(
        "{{\"model_id\":\"toy\",\"precision\":\"fp16\",\"max_cache_length\":128,\"sections\":{{\"engine_plan\":{{\"offset\":0,\"size\":{}}},\
         \"config.json\":{{\"offset\":{0},\"size\":{}}}}}}}",
        plan.len(),
        config.len()
    );
    let mut bytes = b"BUNDLE\x01\0".to_vec();
    bytes.extend((header.len() as u64).to_le_bytes());
    bytes.extend(header.as_bytes());
    bytes.extend(plan);
    bytes.extend(config.as_bytes());
    bytes
}

#[test]
fn bundles_ladders_configurations_and_statistics_are_manifests() {
    let scratch = Scratch::new();
    let one = write(&scratch, "one.bundle", bundle(b"plan one", "[32,64,128]"));
    let two = write(&scratch, "two.bundle", bundle(b"plan two", "[32,128]"));
    let (a, b) = (scratch.path("a"), scratch.path("b"));
    assert!(import(&[&one], &a).stdout.contains("read as trtmc-bundle"));
    import(&["trtmc-bundle", &two], &b);
    let text = lockstep(["diff", "--manifest", &a, &b]).expect(1).stdout;
    assert!(
        text.contains("artifact.engine_plan") && text.contains("artifact.profile_rows"),
        "{text}"
    );
    lockstep(["diff", &a, &b]).expect(4);
    lockstep(["bench", "score", &a]).expect(4);
    // The engine pair and its ladders are judged as in the files.
    let pair = |left: &str, right: &str| {
        let ran = lockstep(["audit", left, right, "--format", "json"]);
        let text = ran.stdout.replace(left, "LEFT").replace(right, "RIGHT");
        (ran.code, serde_json::from_str::<Value>(&text).unwrap())
    };
    assert_eq!(pair(&a, &b), pair(&one, &two));
    let ladder = write(
        &scratch,
        "config.json",
        "{\"dynamic_kv_profile_rows\":[32,64],\"precision\":\"bf16\"}",
    );
    let said = import(&[&ladder], &scratch.path("ladder")).stdout;
    assert!(said.contains("read as trtmc-ladder"), "{said}");
    let config = write(
        &scratch,
        "effective.json",
        "{\"triattention\":{\"kv_budget\":{\"value\":3072,\"source\":\"bundle default\"}}}",
    );
    let run = scratch.path("config");
    assert!(import(&[&config], &run).stdout.contains("read as trtmc-config"));
    let same = scratch.path("same");
    import(&[&config], &same);
    lockstep(["diff", "--manifest", &run, &same]).expect(0);
    let stats =
        text_of(&lockstep_testkit::data().join("calibration/calib_ledger_05_all.safetensors"));
    let run = scratch.path("stats");
    assert!(import(&[&stats], &run).stdout.contains("read as trtmc-stats"));
    assert!(scratch.file("stats").join("statistics.safetensors").exists());
}

fn text_of(path: &std::path::Path) -> String {
    text(path)
}

#[test]
fn what_is_no_artifact_is_refused() {
    let scratch = Scratch::new();
    let out = scratch.path("out");
    let plain = write(&scratch, "plain", "hello\n");
    lockstep(["import", &plain, "--out", &out]).expect_refusal(2, &["no layout that is known"]);
    for kind in [
        "trtmc-rows",
        "trtmc-summary",
        "trtmc-bundle",
        "trtmc-ladder",
        "trtmc-stats",
        "trtmc-config",
        "lm-eval",
    ] {
        lockstep(["import", kind, &plain, "--out", &out]).expect_refusal(3, &["plain"]);
    }
    // A kept source that was changed afterwards is not scored.
    let rows = write(&scratch, "rows", SECOND);
    let run = scratch.path("run");
    import(&[&rows], &run);
    fs::write(scratch.file("run").join("source.jsonl.gz"), SECOND.replace("588", "4")).unwrap();
    lockstep(["bench", "score", &run]).expect_refusal(3, &["source.jsonl.gz", "sha256"]);
}
