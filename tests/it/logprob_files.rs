//! Runs to files of log-probabilities and back, through the binary.

use std::fs;

use serde_json::Value;

use crate::kit::{Scratch, ledger, lockstep, tasks};

/// A short dense run of one ledger problem.
fn run(scratch: &Scratch) -> String {
    let out = scratch.path("run");
    lockstep([
        "run",
        "--model",
        &ledger(),
        "--dataset",
        &tasks(),
        "--select",
        "ledger_05",
        "--policy",
        "dense",
        "--dtype",
        "f32",
        "--max-new-tokens",
        "9",
        "--device",
        "cpu",
        "--out",
        &out,
    ])
    .expect(0);
    out
}

fn export(kind: &str, run: &str, out: &str) -> Value {
    lockstep(["export", kind, run, "--out", out, "--model", &ledger(), "--format", "json"])
        .expect(0)
        .json()
}

/// Imports with the layout guessed; the answer says which it was.
fn import(file: &str, out: &str, kind: &str) -> Value {
    let answer = lockstep(["import", file, "--out", out, "--model", &ledger(), "--format", "json"])
        .expect(0)
        .json();
    assert_eq!(answer["kind"], kind);
    answer
}

fn rows(run: &str) -> Vec<Value> {
    let answer =
        lockstep(["inspect", run, "--sample", "ledger_05", "--format", "json"]).expect(0).json();
    answer["rows"].as_array().expect("rows").clone()
}

const KINDS: [&str; 3] = ["openai-chat", "openai-completions", "vllm"];

#[test]
fn a_run_comes_back_from_every_layout_with_its_tokens_and_log_probabilities() {
    let scratch = Scratch::new();
    let run = run(&scratch);
    let recorded = rows(&run);
    for kind in KINDS {
        let (file, back) = (scratch.path(kind), scratch.path(&format!("{kind}.run")));
        export(kind, &run, &file);
        import(&file, &back, kind);
        let found = rows(&back);
        let front = recorded.len() - found.len();
        assert_eq!(front > 0, kind == "openai-chat", "{kind}: only a chat answer lacks the prompt");
        for (row, wanted) in found.iter().zip(&recorded[front..]) {
            for key in ["position", "phase", "next_token", "argmax", "top_ids"] {
                assert_eq!(row[key], wanted[key], "{kind}: {key} at {}", row["position"]);
            }
            let sum = wanted["logsumexp"].as_f64().expect("a logsumexp");
            let values = |row: &Value| -> Vec<f64> {
                row["top_logits"]
                    .as_array()
                    .expect("values")
                    .iter()
                    .filter_map(Value::as_f64)
                    .collect()
            };
            for (value, logit) in values(row).iter().zip(&values(wanted)) {
                // Written in f64 and rounded once, to f32; JSON prints an f32 shortly.
                let value = f64::from(*value as f32);
                let wanted = f64::from(*logit as f32) - sum;
                assert!(
                    (value - wanted).abs() <= wanted.abs() * 6e-8,
                    "{kind}: {value} for {wanted}"
                );
            }
        }
    }
}

#[test]
fn two_files_of_one_run_are_equal_and_a_planted_change_is_found_at_its_row() {
    let scratch = Scratch::new();
    let run = run(&scratch);
    for kind in KINDS {
        let (file, clean) = (scratch.path(kind), scratch.path(&format!("{kind}.clean")));
        export(kind, &run, &file);
        import(&file, &clean, kind);
        let again = scratch.path(&format!("{kind}.again"));
        import(&file, &again, kind);
        lockstep(["diff", &clean, &again]).expect(0);

        // One candidate of the fourth row from the end, 0.125 lower than it was.
        let found = rows(&clean);
        let planted = &found[found.len() - 4];
        let mut document: Value =
            serde_json::from_str(&fs::read_to_string(&file).expect("a file")).expect("JSON");
        let list = top(&mut document, kind);
        let place = list.len() - 4;
        lower(&mut list[place]);
        let (other, changed) =
            (scratch.path(&format!("{kind}.json")), scratch.path(&format!("{kind}.changed")));
        fs::write(&other, document.to_string()).expect("a file");
        import(&other, &changed, kind);
        let answer = lockstep(["diff", &clean, &changed, "--format", "json"]).expect(1).json();
        assert_eq!(answer["splits"]["logit"]["position"], planted["position"], "{kind}");
        assert!(answer["splits"]["token"].is_null(), "{kind}: tokens are as they were");
    }
}

/// The lists of candidates of the completion.
fn top<'a>(document: &'a mut Value, kind: &str) -> &'a mut Vec<Value> {
    let logprobs = &mut document["choices"][0]["logprobs"];
    let list = if kind == "openai-chat" {
        &mut logprobs["content"]
    } else {
        &mut logprobs["top_logprobs"]
    };
    list.as_array_mut().expect("a list")
}

/// Takes 0.125 from the least likely candidate of an entry.
fn lower(entry: &mut Value) {
    let value = match entry.get_mut("top_logprobs").and_then(Value::as_array_mut) {
        Some(list) => &mut list.last_mut().expect("candidates")["logprob"],
        None => {
            let map = entry.as_object_mut().expect("a map");
            map.values_mut()
                .min_by(|a, b| a.as_f64().unwrap_or(0.0).total_cmp(&b.as_f64().unwrap_or(0.0)))
                .expect("candidates")
        }
    };
    *value = Value::from(value.as_f64().expect("a number") - 0.125);
}

#[test]
fn another_token_is_found_at_the_row_that_chose_it() {
    let scratch = Scratch::new();
    let run = run(&scratch);
    let (file, clean) = (scratch.path("file"), scratch.path("clean"));
    export("vllm", &run, &file);
    import(&file, &clean, "vllm");
    let mut document: Value =
        serde_json::from_str(&fs::read_to_string(&file).expect("a file")).expect("JSON");
    let choice = &mut document["choices"][0];
    let place = choice["token_ids"].as_array().expect("ids").len() - 3;
    let old = choice["token_ids"][place].as_u64().expect("an id");
    let new = if old == 5 { 6 } else { 5 };
    choice["token_ids"][place] = new.into();
    choice["logprobs"]["tokens"][place] = format!("token_id:{new}").into();
    let (other, changed) = (scratch.path("file.json"), scratch.path("changed"));
    fs::write(&other, document.to_string()).expect("a file");
    import(&other, &changed, "vllm");
    let found = rows(&clean);
    let answer = lockstep(["diff", &clean, &changed, "--format", "json"]).expect(1).json();
    assert_eq!(answer["splits"]["token"]["position"], found[found.len() - 3]["position"]);
}

#[test]
fn a_neutral_trace_of_a_run_is_equal_to_it() {
    let scratch = Scratch::new();
    let run = run(&scratch);
    let (file, back) = (scratch.path("n.jsonl"), scratch.path("back"));
    export("neutral-jsonl", &run, &file);
    let prompt = rows(&run).iter().filter(|row| row["phase"] == "prompt").count().to_string();
    lockstep(["import", &file, "--prompt-len", &prompt, "--out", &back]).expect(0);
    let answer =
        lockstep(["diff", &run, &back, "--pair-by-order", "--format", "json"]).expect(0).json();
    assert_eq!(answer["counts"]["rows_compared"], rows(&run).len());
}

#[test]
fn csv_and_missing_texts() {
    let scratch = Scratch::new();
    let run = run(&scratch);
    let file = scratch.path("t.csv");
    export("csv", &run, &file);
    let text = fs::read_to_string(&file).expect("a file");
    assert_eq!(text.split("\r\n").count(), rows(&run).len() + 2, "a header, the rows, the end");
    let width = |line: &str| line.split(',').count();
    let header = text.split("\r\n").next().expect("a header");
    assert!(
        text.split("\r\n").filter(|line| !line.is_empty()).all(|line| width(line) == width(header))
    );
    lockstep(["export", "openai-chat", &run, "--out", &scratch.path("x")])
        .expect_refusal(2, &["--model with the run's tokenizer"]);
}

#[test]
fn texts_without_a_tokenizer_number_themselves_and_go_out_again() {
    let scratch = Scratch::new();
    let run = run(&scratch);
    let (file, back, again) = (scratch.path("a"), scratch.path("back"), scratch.path("b"));
    export("openai-chat", &run, &file);
    lockstep(["import", "openai-chat", &file, "--out", &back]).expect(0);
    // No --model: the run came with its texts.
    lockstep(["export", "openai-chat", &back, "--out", &again]).expect(0);
    let content = |path: &str| -> Value {
        let document: Value =
            serde_json::from_str(&fs::read_to_string(path).expect("a file")).expect("JSON");
        document["choices"][0].clone()
    };
    let texts = |choice: &Value| -> Vec<Value> {
        let list = choice["logprobs"]["content"].as_array().expect("entries");
        list.iter().map(|entry| entry["bytes"].clone()).collect()
    };
    let (first, second) = (content(&file), content(&again));
    assert_eq!(texts(&first), texts(&second));
    assert_eq!(first["message"], second["message"]);
    lockstep(["export", "vllm", &back, "--out", &scratch.path("v")])
        .expect_refusal(3, &["those of no vocabulary"]);
}
