//! Claims, token sequences and files of log-probabilities by the ordinary commands, each answer as exit code and JSON pointers. The
//! inputs are small ones composed from public bug reports, and variations of them.

use std::fs;

use serde_json::{Value, json};

use crate::kit::{Scratch, lockstep, text};

pub(crate) fn case(name: &str) -> String {
    text(&lockstep_testkit::data().join("cases").join(name))
}

pub(crate) fn data(name: &str) -> Value {
    serde_json::from_slice(&fs::read(case(name)).expect("a case file")).expect("a case is JSON")
}

/// Runs a command; fails unless it returns `code` and its answer has these values.
#[track_caller]
pub(crate) fn answers(args: &[&str], code: i32, pointers: &[(&str, Value)]) -> Value {
    let answer = lockstep(args.iter().chain(&["--format", "json"])).expect(code).json();
    for (pointer, expected) in pointers {
        let found = answer.pointer(pointer).unwrap_or(&Value::Null);
        let same = match (found.as_f64(), expected.as_f64()) {
            (Some(l), Some(r)) => (l - r).abs() < 1e-6,
            _ => found == expected,
        };
        assert!(same, "{args:?} {pointer}: {found} and not {expected}\n{answer:#}");
    }
    answer
}

/// The first finding of that name.
#[track_caller]
fn finding<'a>(answer: &'a Value, name: &str) -> &'a Value {
    let list = answer["findings"].as_array().expect("findings");
    list.iter()
        .find(|finding| finding["name"] == name)
        .unwrap_or_else(|| panic!("no {name}: {answer:#}"))
}

fn evidence(finding: &Value, name: &str) -> Value {
    let list = finding["evidence"].as_array().expect("evidence");
    list.iter()
        .find(|evidence| evidence["name"] == name)
        .map_or(Value::Null, |e| e["value"].clone())
}

#[test]
fn a_doubled_start_token_is_told_before_any_logit() {
    let prompts = case("40/prompts.json");
    let part = |key: &str| format!("{prompts}#/{key}");
    let (a, b, c) = (part("a"), part("b"), part("c"));
    answers(
        &["diff", "tokens", &a, &b],
        1,
        &[
            ("/tokens", json!([4, 5])),
            ("/inserted/ids", json!([1])),
            ("/inserted/index", json!(1)),
            ("/inserted/equal", json!(4)),
            ("/inserted/shift", json!(1)),
            ("/inserted/doubled_start", json!(true)),
            ("/findings/0/name", json!("doubled_start")),
        ],
    );
    answers(&["diff", "tokens", &b, &a], 1, &[("/inserted/side", json!("left"))]);
    answers(&["diff", "tokens", &a, &a], 0, &[("/ids_equal", json!(true))]);
    answers(&["check", "tokens", &b], 1, &[("/doubled_start/id", json!(1))]);
    // Two different special tokens at the front are right, whatever is taken for the start token.
    answers(&["check", "tokens", &c], 0, &[("/doubled_start", Value::Null)]);
    answers(&["check", "tokens", &c, "--bos", "90"], 0, &[("/doubled_start", Value::Null)]);
    let scratch = Scratch::new();
    fs::write(scratch.file("ids"), "77 77 77 5 6").unwrap();
    answers(&["check", "tokens", &scratch.path("ids")], 1, &[("/doubled_start/times", json!(3))]);
}

#[test]
fn one_text_in_other_ids_is_aligned_by_character() {
    let tokens = case("41/tokens.json");
    let (a, b) = (format!("{tokens}#/a"), format!("{tokens}#/b"));
    answers(
        &["diff", "tokens", &a, &b],
        1,
        &[
            ("/tokens", json!([10, 9])),
            ("/characters", json!([11, 11])),
            ("/text_equal", json!(true)),
            ("/first_token", json!(1)),
            ("/first_char", json!(1)),
            ("/regions/0/left_pieces", json!(["->"])),
            ("/regions/0/right_pieces", json!(["-", ">"])),
            ("/regions/1/first_char", json!(6)),
            ("/regions/1/last_char", json!(8)),
            ("/regions/2", Value::Null),
            ("/per_token_comparable", json!(false)),
            ("/total_comparable", json!(true)),
        ],
    );
    // The same ids with the pieces of a vocabulary beside them.
    let scratch = Scratch::new();
    let spelled = json!({"88": "x", "405": "->", "12": "-", "29": ">"});
    fs::write(scratch.file("pieces.json"), spelled.to_string()).unwrap();
    fs::write(scratch.file("l"), "88 405 88").unwrap();
    fs::write(scratch.file("r"), "88 12 29 88").unwrap();
    let (l, r, pieces) = (scratch.path("l"), scratch.path("r"), scratch.path("pieces.json"));
    answers(
        &["diff", "tokens", &l, &r, "--pieces", &pieces],
        1,
        &[("/findings/0/name", json!("same_text_other_ids")), ("/characters/0", json!(4))],
    );
    answers(&["diff", "tokens", &l, &r], 1, &[("/findings/0/name", json!("ids_differ"))]);
}

#[test]
fn a_drawn_id_that_the_tokenizer_does_not_know_is_located() {
    let (trace, meta) = (case("43/trace.jsonl"), data("43/meta.json"));
    let (size, width) = (meta["tokenizer_size"].to_string(), meta["logits_width"].to_string());
    let base = ["check", "tokens", &trace, "--tokenizer-size", &size, "--logits-width"];
    let with = |last: &'static str| [&base[..], &[last]].concat();
    answers(
        &[&base[..], &[width.as_str()]].concat(),
        1,
        &[
            ("/chosen_outside/0/id", json!(260)),
            ("/chosen_outside/0/position", json!(4)),
            ("/chosen_outside/1", Value::Null),
            ("/listed_outside/0/id", json!(260)),
            ("/listed_outside/1/id", json!(263)),
            ("/beyond_logits", json!([])),
        ],
    );
    lockstep(with("263")).expect_refusal(3, &["trace.jsonl", "id 263", "position 5"]);
    lockstep(["check", "tokens", &trace]).expect_refusal(2, &["--tokenizer"]);
    answers(
        &["check", "tokens", &trace, "--tokenizer-size", "264"],
        0,
        &[("/chosen_outside", json!([]))],
    );
}

#[test]
fn a_stream_that_lost_a_blank_more_is_told_from_the_right_text() {
    let file = case("44/pieces.json");
    let part = |key: &str| format!("{file}#/{key}");
    let (pieces, full, stream) = (part("pieces"), part("full_decode"), part("stream"));
    answers(&["diff", "tokens", &pieces, &full], 0, &[("/rebuilt/0/stripped", json!(1))]);
    answers(
        &["diff", "tokens", &pieces, &stream],
        1,
        &[
            ("/rebuilt/0/joined", json!("  leading x")),
            ("/rebuilt/0/expected", json!(" leading x")),
            ("/rebuilt/0/stripped", json!(2)),
            ("/findings/0/name", json!("leading_blanks")),
        ],
    );
    let both = ["diff", "tokens", &full, &stream, "--pieces", &pieces];
    answers(&both, 1, &[("/rebuilt/0/right", json!(true)), ("/rebuilt/1/right", json!(false))]);
}

#[test]
fn impossible_tokens_are_marked_in_every_spelling() {
    let (sentinel, bare) = (case("45/sentinel.json"), case("45/bare.json"));
    let answer =
        answers(&["inspect", &sentinel], 0, &[("/impossible", json!(4)), ("/sentinels", json!(3))]);
    for (choice, written) in ["null", "-9999", "-1000", "-100"].into_iter().enumerate() {
        let b = &answer["sequences"][choice]["shown"][0]["candidates"][1]["logprob"];
        assert_eq!((&b["state"], &b["value"]), (&json!("impossible"), &Value::Null), "{b}");
        assert_eq!((&b["written"], &b["sentinel"]), (&json!(written), &json!(choice > 0)), "{b}");
    }
    answers(
        &["inspect", &bare],
        0,
        &[
            ("/oddity_count", json!(2)),
            ("/oddities/0/path", json!("choices[0].logprobs.content[0].top_logprobs[1].logprob")),
            ("/impossible", json!(1)),
            ("/nan", json!(1)),
            ("/sequences/0/measured", json!(1)),
            ("/sequences/0/total_logprob", json!(0.0)),
            ("/sequences/0/max_logprob", json!(0.0)),
            ("/sequences/0/shown/1/logprob/state", json!("nan")),
        ],
    );
    // Each choice as a file of its own against each other: no difference between two sentinels.
    let scratch = Scratch::new();
    let choices = data("45/sentinel.json")["choices"].as_array().unwrap().clone();
    for (n, choice) in choices.iter().enumerate() {
        let mut choice = choice.clone();
        choice["index"] = json!(0);
        fs::write(scratch.file(&format!("{n}.json")), json!({"choices": [choice]}).to_string())
            .unwrap();
    }
    for (l, r) in [(1, 3), (0, 2), (2, 3)] {
        let (l, r) = (scratch.path(&format!("{l}.json")), scratch.path(&format!("{r}.json")));
        answers(
            &["diff", "logprobs", &l, &r],
            0,
            &[
                ("/both_impossible", json!(1)),
                ("/values", json!(1)),
                ("/max_delta/delta", json!(0.0)),
            ],
        );
    }
}

#[test]
fn keys_that_collide_are_all_kept() {
    let (legacy, request) = (case("47/legacy.json"), case("47/request.json"));
    let answer = answers(
        &["inspect", &legacy, "--request", &request],
        1,
        &[
            ("/sequences/0/asked", json!(5)),
            ("/sequences/0/shown/0/pairs", json!(5)),
            ("/sequences/0/shown/0/distinct", json!(3)),
            ("/sequences/0/shown/0/logprob/value", json!(-0.6)),
        ],
    );
    let keys = evidence(finding(&answer, "duplicate_keys"), "keys");
    assert_eq!((&keys[0]["key"], &keys[0]["map_keeps"]), (&json!("t"), &json!(-6.0)));
    assert_eq!((&keys[1]["key"], &keys[1]["times"]), (&json!("\u{FFFD}"), &json!(2)));
    assert_eq!(evidence(finding(&answer, "own_pair"), "pair"), json!(0));
    // A server that collapsed them itself: an ordinary map of three.
    let scratch = Scratch::new();
    fs::write(scratch.file("map.json"), data("47/legacy.json").to_string()).unwrap();
    let answer = answers(&["inspect", &scratch.path("map.json"), "--request", &request], 1, &[]);
    assert_eq!(evidence(finding(&answer, "fewer_candidates"), "listed"), json!(3));
    finding(&answer, "own_differs");
}

#[test]
fn the_transform_behind_each_list_is_named() {
    let lists = case("49/case.json");
    let answer = answers(
        &["inspect", &lists],
        4,
        &[
            ("/transforms/lists/0/convention", json!("raw")),
            ("/transforms/lists/1/convention", json!("temperature")),
            ("/transforms/lists/2/convention", json!("temperature_top_p")),
            ("/transforms/lists/2/kept", json!([0, 1])),
            ("/transforms/lists/2/to_raw/possible", json!(false)),
            ("/transforms/lists/3/convention", json!("scaled")),
            ("/transforms/lists/3/distribution", json!(false)),
            ("/transforms/all_to_raw", json!(false)),
        ],
    );
    let sum = answer["transforms"]["lists"][3]["probability_sum"].as_f64().unwrap();
    assert!((sum - 0.479_361).abs() < 1e-5, "{sum}");
    let raw = answer["transforms"]["lists"][1]["to_raw"]["values"][2].as_f64().unwrap();
    assert!((raw + 2.44019).abs() < 1e-5, "{raw}");
    // Two at a time, without the logits.
    for (list, kind) in [("x", "temperature"), ("z", "scaled"), ("y", "temperature")] {
        let (w, other) = (format!("{lists}#w"), format!("{lists}#{list}"));
        let answer = answers(
            &["diff", "logprobs", &w, &other, "--temperature", "0.5"],
            4,
            &[("/relation/kind", json!(kind))],
        );
        let temperature = answer["relation"]["temperature"].as_f64().unwrap();
        assert!((temperature - 0.5).abs() < 1e-4 && answer["max_delta"].is_null(), "{answer:#}");
        assert_eq!(answer["relation"]["lost"], if list == "y" { 2 } else { 0 });
    }
    // Two ids that are left lie on a line with any two others: without a known temperature they only differ.
    let (w, y) = (format!("{lists}#w"), format!("{lists}#y"));
    answers(&["diff", "logprobs", &w, &y], 1, &[("/relation/kind", json!("unknown"))]);
    // Another temperature than the file says: nothing fits any more.
    let found = answers(&["inspect", &lists, "--temperature", "0.7"], 1, &[]);
    assert_eq!(found["transforms"]["lists"][1]["convention"], Value::Null);
    lockstep(["inspect", &lists, "--temperature", "0"]).expect_refusal(2, &["--temperature"]);
    // A server's own layout against logits in a file beside it.
    let scratch = Scratch::new();
    fs::write(scratch.file("logits.json"), json!({"logits": [[3.0, 2.0, 1.0, 0.0]]}).to_string())
        .unwrap();
    let top = json!([[-0.145_078, 0, "a"], [-2.145_078, 1, "b"]]);
    let served = json!({"meta_info": {"output_token_logprobs": [[-0.145_078, 0, "a"]], "output_top_logprobs": [top]}});
    fs::write(scratch.file("served.json"), served.to_string()).unwrap();
    let (served, logits) = (scratch.path("served.json"), scratch.path("logits.json"));
    answers(
        &["inspect", &served, "--logits", &logits, "--temperature", "0.5"],
        0,
        &[("/transforms/lists/0/convention", json!("temperature"))],
    );
}

#[test]
fn two_positions_merged_into_one_entry_are_found() {
    let response = case("51/resp.json");
    let answer = answers(&["inspect", &response], 1, &[("/sequences/0/entries", json!(2))]);
    let counts = finding(&answer, "count_disagrees");
    assert_eq!((evidence(counts, "entries"), evidence(counts, "usage")), (json!(2), json!(3)));
    let gap = finding(&answer, "text_gap");
    assert_eq!((evidence(gap, "text"), evidence(gap, "offset")), (json!("!"), json!(5)));
    let more = finding(&answer, "more_candidates");
    assert_eq!((evidence(more, "listed"), evidence(more, "asked")), (json!(4), json!(2)));
    let sum = evidence(finding(&answer, "probabilities_above_one"), "sum").as_f64().unwrap();
    assert!((sum - 1.9087).abs() < 1e-4, "{sum}");
    let merged = finding(&answer, "merged_entries");
    assert_eq!((evidence(merged, "shifted_from"), evidence(merged, "shift")), (json!(1), json!(1)));
    // The same response as it should have been.
    let scratch = Scratch::new();
    let mut whole = data("51/resp.json");
    let lists = &mut whole["choices"][0]["logprobs"];
    lists["tokens"] = json!(["Hello", "!", " there"]);
    lists["token_logprobs"] = json!([-0.1, -0.2, -0.3]);
    lists["top_logprobs"] = json!([{"Hello": -0.1, " Hello": -3.0}, {"!": -0.2, " you": -2.0}, {" there": -0.3, " hi": -2.2}]);
    lists["text_offset"] = json!([0, 5, 6]);
    fs::write(scratch.file("whole.json"), whole.to_string()).unwrap();
    answers(&["inspect", &scratch.path("whole.json")], 0, &[("/findings", json!([]))]);
}

#[test]
fn a_claim_falls_with_its_evidence_and_its_scope_is_held_against_it() {
    let scratch = Scratch::new();
    let prompts = case("40/prompts.json");
    let ledger = scratch.path("claims.toml");
    let write = |verdict: &str| {
        let answer = json!({"audits": [{"id": 11, "outcome": verdict}], "verdict": "pass", "samples": [{"sample_id": "s1", "ordinal": 2}]});
        fs::write(scratch.file("audit.json"), answer.to_string()).unwrap();
    };
    write("pass");
    let (audit, out) = (scratch.path("audit.json"), scratch.path("out"));
    let add = |text: &str, extra: &[&str], code: i32| {
        let args =
            ["claim", "add", text, "--ledger", &ledger, "--evidence", &audit, "--format", "json"];
        lockstep(args.iter().chain(extra)).expect(code).json()["id"].as_str().unwrap().to_owned()
    };
    let check = |code: i32, pointers: &[(&str, Value)]| {
        answers(&["claim", "check", "--ledger", &ledger], code, pointers)
    };
    let first = add(
        "prompts are equal",
        &["--samples", "s1", "--ordinals", "2", "--evidence", &prompts],
        0,
    );
    let before = fs::read_to_string(&ledger).unwrap();
    check(
        0,
        &[
            ("/claims/0/status", json!("supported")),
            ("/claims/0/scope_line", json!("samples s1; ordinals 2")),
            ("/claims/0/evidence/0/path", json!("audit.json")),
            ("/claims/0/evidence/0/cited_verdict", json!("pass")),
        ],
    );
    add("selector cleared", &["--samples", "s1,s2", "--ordinals", "1-2", "--rests-on", &first], 1);
    check(
        1,
        &[
            ("/claims/1/wider/0/claimed", json!(["s2"])),
            ("/claims/1/wider/1/claimed", json!(["1"])),
            ("/wider", json!(1)),
        ],
    );
    assert!(fs::read_to_string(&ledger).unwrap().starts_with(&before), "records are appended");
    write("void");
    let answer = check(
        1,
        &[
            ("/claims/0/reasons/0/kind", json!("changed")),
            ("/claims/0/reasons/1/kind", json!("void")),
        ],
    );
    assert!(answer["claims"][1]["reasons"].to_string().contains("rests_on_unsupported"));
    lockstep(["report", "--claims", &ledger, "--out", &out]).expect(0);
    let page = fs::read_to_string(scratch.file("out/report.html")).unwrap();
    assert!(page.contains("holds a void: 11") && page.contains("[samples s1; ordinals 2]"));
    let report: Value =
        serde_json::from_slice(&fs::read(scratch.file("out/report.json")).unwrap()).unwrap();
    assert_eq!(report["claims"]["claims"][0]["status"], "unsupported");
    write("pass");
    let second = answer["claims"][1]["id"].as_str().unwrap().to_owned();
    add(
        "selector cleared at ordinal 2",
        &["--samples", "s1", "--ordinals", "2", "--supersedes", &second],
        0,
    );
    check(0, &[("/claims/1/reasons/0/kind", json!("superseded")), ("/superseded", json!(1))]);
    fs::remove_file(scratch.file("audit.json")).unwrap();
    check(1, &[("/claims/0/reasons/0/kind", json!("missing"))]);
    lockstep(["claim", "check", "--ledger", &scratch.path("none.toml")])
        .expect_refusal(3, &["none.toml"]);
    fs::write(&ledger, before + "[[claim]]\nid = 5\n").unwrap();
    lockstep(["claim", "list", "--ledger", &ledger]).expect_refusal(3, &["claims.toml:"]);
    lockstep(["claim", "add", "x", "--evidence", &prompts, "--ledger", &out])
        .expect_refusal(2, &["scope"]);
}
