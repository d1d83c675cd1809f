//! `bench score` as a user types it: the public cases, varied, and what must be refused.

use std::fs;

use serde_json::Value;

use crate::kit::{Ran, Scratch, lockstep, record, text};

fn case(name: &str) -> String {
    text(&lockstep_testkit::data().join("cases").join(name))
}

fn score(args: &[&str]) -> Ran {
    lockstep([&["bench", "score"], args].concat())
}

fn json(args: &[&str], code: i32) -> Value {
    score(&[args, &["--format", "json"]].concat()).expect(code).json()
}

/// `FILTER HITS/CASES` of the first input.
fn scores(answer: &Value) -> Vec<String> {
    answer["inputs"][0]["filters"]
        .as_array()
        .expect("the answer's own keys")
        .iter()
        .map(|one| {
            format!(
                "{} {}/{}",
                one["filter"].as_str().expect("the answer's own keys"),
                one["score"]["hits"],
                one["score"]["n"]
            )
        })
        .collect()
}

fn outcomes(answer: &Value) -> Vec<String> {
    let rows = answer["inputs"][0]["entries"].as_array().expect("the answer's own keys");
    rows.iter()
        .map(|one| {
            format!(
                "{} {}",
                one["id"].as_str().expect("the answer's own keys"),
                one["outcome"].as_str().expect("the answer's own keys")
            )
        })
        .collect()
}

#[test]
fn public_cases_are_answered() {
    for (args, wanted) in [
        (&["61/samples_new.jsonl"][..], &["strict-match 1/3", "flexible-extract 2/3"][..]),
        (&["61/samples_old.jsonl"], &["pass 1 1/3", "pass 2 2/3"]),
        (&["61/samples_resumed.jsonl"], &["strict-match 1/3"]),
        (&["63/answers.jsonl", "--normalise", "integer:0..999"], &["all rows 4/8"]),
        (&["63/answers.jsonl", "--normalise", "number"], &["all rows 6/8"]),
        (&["63/answers.jsonl", "--normalise", "text"], &["all rows 1/8"]),
        (&["64/responses.jsonl"], &["all rows 4/9"]),
        (&["64/responses.jsonl", "--rule", "strict-boxed-fbox"], &["all rows 5/9"]),
        (&["64/responses.jsonl", "--rule", "trtmc-cpp"], &["all rows 6/9"]),
    ] {
        let path = case(args[0]);
        assert_eq!(scores(&json(&[&[path.as_str()], &args[1..]].concat(), 0)), wanted, "{args:?}");
    }
    let text = score(&[&case("61/samples_old.jsonl")]).expect(0).stdout;
    assert!(text.contains("6 rows of lm-eval-no-filter, 3 questions"), "{text}");
    assert!(
        text.contains("note: 2 rows per document, filter unknown")
            && text.contains("document 1 shows"),
        "{text}"
    );
    let text = score(&[&case("61/samples_resumed.jsonl")]).expect(0).stdout;
    assert!(text.contains("duplicate, counted once: (1, strict-match) on lines 2, 3"), "{text}");
    assert!(
        text.contains(
            "strict-match: 1/3 = 33.3 % [6.1, 79.2]; wrong 1, no-answer 1; recorded exact_match 1/3"
        ),
        "{text}"
    );
    let text =
        score(&[&case("63/answers.jsonl"), "--normalise", "integer:0..999"]).expect(0).stdout;
    assert!(text.contains("as plain text only 1 would be"), "{text}");
    assert!(
        text.contains("7 [all rows] line 7: wrong, answer 5.0, gold 005 (equal as numbers, not by"),
        "{text}"
    );
    let text = score(&[&case("64/responses.jsonl")]).expect(0).stdout;
    for line in [
        "4 [all rows] line 4: cut-off, answer none, gold 7 (the last box is never closed)",
        "5 [all rows] line 5: no-answer, answer none, gold 8",
        "9 [all rows] line 9: empty, answer none, gold 4 (the last box is empty; an earlier box holds `4`",
    ] {
        assert!(text.contains(line), "`{line}` is not in: {text}");
    }
}

/// Rows of a plain file: id, gold, prediction.
fn plain(scratch: &Scratch, name: &str, wrong: impl Fn(u32) -> bool, rows: u32) -> String {
    let body: String = (0..rows)
        .map(|id| {
            format!(
                "{{\"id\":{id},\"gold\":\"5\",\"pred\":\"{}\"}}\n",
                if wrong(id) { 4 } else { 5 }
            )
        })
        .collect();
    fs::write(scratch.file(name), body).expect("scratch is writable");
    scratch.path(name)
}

#[test]
fn pairs_rank_only_what_they_can_show() {
    let scratch = Scratch::new();
    let base = plain(&scratch, "base", |id| id < 2, 30);
    let near = plain(&scratch, "near", |id| id == 5, 30);
    let far = plain(&scratch, "far", |id| id < 9, 30);
    let (same, few) =
        (plain(&scratch, "same", |id| id < 2, 30), plain(&scratch, "few", |_| false, 5));
    for (target, code, word) in [
        (&near, 4, "no ranking"),
        (&far, 1, "base is better"),
        (&same, 0, "equal on every pair"),
        (&few, 4, "can show no difference at all"),
    ] {
        let text = score(&[&base, target]).expect(code).stdout;
        assert!(text.contains(word), "{target}: {text}");
    }
    let answer = json(&["--baseline", &base, &far, &near], 1);
    let pair = &answer["versus"][0]["pairs"][0]["scores"];
    assert_eq!(
        (pair["left_only"].as_u64(), pair["right_only"].as_u64(), pair["n"].as_u64()),
        (Some(7), Some(0), Some(30))
    );
    // 2 / 2^7.
    assert!((pair["p_value"].as_f64().unwrap() - 0.015_625).abs() < 1e-12);
    assert_eq!(
        (answer["inputs"].as_array().unwrap().len(), answer["versus"].as_array().unwrap().len()),
        (3, 2)
    );
}

#[test]
fn gates_print_their_formula_and_decide_the_status() {
    let scratch = Scratch::new();
    let base = plain(&scratch, "base", |_| false, 30);
    let target = plain(&scratch, "target", |id| id < 6, 30);
    // 80 against 100 - 21.23, and against 100.
    let text = score(&[&base, &target, "--gate", "baseline"]).expect(0).stdout;
    assert!(
        text.contains(
            "gate passed: 80.00 >= 78.77 = 100.00 - 1.6449 sqrt(2 50^2 / 30) (alpha 0.05)"
        ),
        "{text}"
    );
    assert!(text.contains("a loss under 32.1 points"), "{text}");
    score(&[&target, "--gate", "100"]).expect(0);
    score(&[&target, "--gate", "100", "--gate-sigma", "40"]).expect(1);
    score(&[&target, "--gate", "baseline"])
        .expect_refusal(2, &["--gate baseline needs a baseline"]);
}

#[test]
fn runs_are_scored_like_files() {
    let scratch = Scratch::new();
    let run = scratch.path("run");
    record(&run, "ledger_01", &[]).expect(0);
    let answer = json(&[&run], 0);
    assert_eq!(scores(&answer), ["all rows 1/1"]);
    let input = &answer["inputs"][0];
    assert_eq!(
        (input["schema"].as_str(), input["rule"].as_str()),
        (Some("run"), Some("strict-boxed"))
    );
    assert_eq!(
        (input["entries"][0]["gold"].as_str(), input["entries"][0]["answer"].as_str()),
        (Some("89"), Some("89"))
    );
    assert_eq!(input["filters"][0]["recorded"]["score"]["hits"].as_u64(), Some(1));
    let text = score(&[&run, &run]).expect(4).stdout;
    assert!(text.contains("1 pairs can show no difference at all; no ranking"), "{text}");
}

#[test]
fn what_cannot_be_scored_is_refused_or_left_open() {
    let scratch = Scratch::new();
    let write = |name: &str, body: &str| {
        fs::write(scratch.file(name), body).unwrap();
        scratch.path(name)
    };
    let row = "{\"id\":1,\"gold\":\"5\",\"pred\":\"5\"}\n";
    let polluted = write("polluted", &format!("100%|####| 1/1\n{row}"));
    score(&[&polluted]).expect_refusal(3, &["polluted:1:", "no JSON object"]);
    let conflict = write("conflict", &format!("{row}{}", row.replace("pred\":\"5", "pred\":\"6")));
    score(&[&conflict]).expect_refusal(3, &["lines 1, 2 hold (1)", "different content"]);
    score(&[&write("empty", "")]).expect_refusal(3, &["no row of answers"]);
    score(&[&scratch.path("absent")]).expect_refusal(3, &["absent"]);
    score(&[&write("nogold", "{\"id\":1,\"pred\":\"5\"}\n")]).expect(4);
    let one = write("one", row);
    score(&[&one, "--rule", "boxed"]).expect(2);
    score(&[&one, "--normalise", "integer:9..0"]).expect(2);
    score(&[&one, "--resamples", "10"]).expect_refusal(2, &["--resamples 10"]);
    score(&[&one, "--gold-field", "truth"]).expect_refusal(3, &["one:1:", "`truth`"]);
    score(&[&one, "--answer-field", "gold", "--gold-field", "pred"]).expect(0);
    let echo = "{\"sample_id\":\"a\",\"gold_answer\":\"588\",\"pred_answer\":\"588\",\"generated_tokens\":2,\"prefill_ms\":1.0,\"decode_ms\":1.0,\"wall_ms\":2.0,\"tokens_per_sec\":1.0,\"text\":\"Let me.\"}";
    let text = score(&[&write("echo", echo)]).expect(1).stdout;
    assert!(text.contains("gold echo"), "{text}");
    lockstep(["bench"]).expect(2);
    lockstep(["bench", "--self", "--only", "nothing"]).expect(2);
}

#[test]
fn outcomes_of_rows_are_stable_words() {
    let answer = json(&[&case("64/responses.jsonl")], 0);
    assert_eq!(
        outcomes(&answer),
        [
            "1 correct",
            "2 correct",
            "3 correct",
            "4 cut-off",
            "5 no-answer",
            "6 no-answer",
            "7 no-answer",
            "8 correct",
            "9 empty"
        ]
    );
    let input = &answer["inputs"][0];
    assert_eq!(
        (input["rule"].as_str(), input["normalise"].as_str()),
        (Some("strict-boxed"), Some("number"))
    );
    assert_eq!(input["filters"][0]["outcomes"]["cut-off"].as_u64(), Some(1));
}
