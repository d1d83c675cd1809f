//! Audits through the binary: clean runs pass, void evidence takes the verdict, what is set aside is told.

use serde_json::{Value, json};

use crate::kit::{Ran, Scratch, ledger, lockstep, tasks, text};

/// Records `samples` of the ledger problems with few tokens.
fn short(scratch: &Scratch, name: &str, samples: &str, flags: &[&str]) -> String {
    let (model, tasks, out) = (ledger(), tasks(), scratch.path(name));
    let mut args = vec!["run", "--model", &model, "--dataset", &tasks, "--select", samples];
    args.extend(["--dtype", "f32", "--max-new-tokens", "40", "--device", "cpu", "--out", &out]);
    args.extend(flags);
    lockstep(args).expect(0);
    out
}

/// Budget and divide length at which `ledger_05` compacts within 40 tokens of its prompt.
fn compressed(scratch: &Scratch, name: &str) -> String {
    let stats = text(
        &lockstep_testkit::data().join("golden/traces/stats/ledger_stats_decode_only.safetensors"),
    );
    let mut flags = vec!["--policy", "triattention", "--rule-set", "trt", "--kv-budget", "110"];
    flags.extend(["--divide-length", "16", "--recent-window", "8", "--stats", &stats]);
    short(scratch, name, "ledger_05", &flags)
}

fn audit(args: &[&str]) -> Ran {
    lockstep(["audit", "--format", "json"].iter().chain(args))
}

/// Gravest outcome of an audit.
fn outcome(answer: &Value, number: u64) -> &str {
    let lines = answer["audits"].as_array().expect("audits");
    let line = lines.iter().find(|line| line["number"] == number);
    line.and_then(|line| line["verdict"].as_str()).unwrap_or_else(|| panic!("{number}: {answer:#}"))
}

/// What an audit said, of this outcome.
fn said<'a>(answer: &'a Value, number: u64, verdict: &str) -> &'a str {
    let findings = answer["findings"].as_array().expect("findings");
    let wanted = |one: &&Value| one["audit"] == number && one["verdict"] == verdict;
    let found = findings.iter().find(wanted).and_then(|one| one["compared"].as_str());
    found.unwrap_or_else(|| panic!("audit {number} has no {verdict}: {answer:#}"))
}

#[test]
fn audits_are_listed_and_right_about_their_own_controls() {
    let list = audit(&["--list"]).expect(0).json();
    let list = list.as_array().expect("a list");
    assert!(list.len() >= 24 && list.iter().all(|one| one["compares"].is_string()), "{list:?}");
    let tested = audit(&["--self-test"]).expect(0).json();
    assert_eq!(tested["audits"], list.len());
    assert!(tested["controls"].as_u64().expect("a count") >= 2 * list.len() as u64);
}

#[test]
fn dense_and_compressed_runs_of_one_engine_pass_and_their_replay_is_one_lineage() {
    let scratch = Scratch::new();
    let (dense, run) = (short(&scratch, "dense", "ledger_05", &[]), compressed(&scratch, "run"));
    let answer = audit(&[&dense, &run]).expect(0).json();
    for number in [2, 6, 7, 8, 9, 11, 19, 20, 24] {
        assert_eq!(outcome(&answer, number), "pass", "audit {number}: {answer:#}");
    }
    assert!(said(&answer, 6, "pass").contains("policy: dense against triattention"));
    assert!(said(&answer, 9, "pass").contains("at position 125, as configured"));
    assert_eq!(outcome(&answer, 3), "no_evidence");

    let (model, replay) = (ledger(), scratch.path("replay"));
    let replayed =
        ["replay", "forward", &run, "--model", &model, "--policy", "recorded", "--out", &replay];
    lockstep(replayed).expect(0);
    let answer = audit(&[&run, &replay]).expect(0).json();
    assert!(said(&answer, 1, "pass").contains("parent"), "{answer:#}");
    assert!(said(&answer, 2, "pass").contains("one side replays the other"), "{answer:#}");
    assert!(said(&answer, 6, "pass").contains("implementation"), "{answer:#}");

    std::fs::remove_dir_all(&run).expect("the run is there");
    let again = compressed(&scratch, "run");
    // Another time and commit, so that this is another recording even where the first took no second.
    let file = format!("{again}/manifest.json");
    let manifest = std::fs::read_to_string(&file).expect("a manifest");
    let mut manifest: Value = serde_json::from_str(&manifest).expect("JSON");
    manifest["created_at"] = "2001-01-01T00:00:00Z".into();
    manifest["config"]["producer.commit"] = json!({"value": "8f96feecf", "source": "build"});
    std::fs::write(&file, manifest.to_string()).expect("a manifest");
    let answer = audit(&[&again, &replay]).expect(1).json();
    assert!(said(&answer, 1, "flag").contains("of another run"), "{answer:#}");

    let history = scratch.path("history");
    std::fs::write(&history, "c880d6243 later\na29ea59d0 the fix\n8f96feecf before\n")
        .expect("a file");
    let since = |commit: &str| {
        let args = [&again, "--only", "1", "--history", &history, "--touched", commit];
        audit(&args)
    };
    let answer = since("a29ea59d0").expect(1).json();
    assert!(said(&answer, 1, "void").contains("commit 8f96feecf of the evidence"), "{answer:#}");
    since("8f96feecf").expect(0);
}

#[test]
fn void_evidence_takes_the_verdict_of_a_comparison_until_it_is_set_aside_with_a_reason() {
    let scratch = Scratch::new();
    let greedy = short(&scratch, "greedy", "ledger_05", &[]);
    let sampled = short(&scratch, "sampled", "ledger_05", &["--temperature", "0.9", "--seed", "5"]);
    let answer = lockstep(["diff", &greedy, &sampled, "--format", "json"]).expect(4).json();
    let why = answer["verdict"]["why"].as_str().expect("a reason");
    assert!(why.contains("audit 20 (sampler-kind) is void: `argmax` against"), "{why}");
    assert_eq!(outcome(&answer["audits"], 20), "void");

    let text = lockstep(["diff", &greedy, &sampled]).expect(4).stdout;
    assert!(text.contains("! audit 20 (sampler-kind) void"), "{text}");
    let page = scratch.path("page");
    let report = lockstep(["report", &greedy, &sampled, "--out", &page, "--format", "json"]);
    assert_eq!(report.expect(0).json()["verdict"]["kind"], "incomparable");

    let aside = ["--ignore-audit", "20=only logits are read", "--ignore-audit", "24=as above"];
    let args = ["diff", &greedy, &sampled, "--format", "json"].into_iter().chain(aside);
    let answer = lockstep(args).expect(0).json();
    let limits = answer["limits"].to_string();
    assert!(
        limits.contains("audit 20 (sampler-kind) was set aside: only logits are read"),
        "{limits}"
    );
    lockstep(["diff", &greedy, &sampled, "--ignore-audit", "20"]).expect(2);
    lockstep(["diff", &greedy, &sampled, "--ignore-audit", "nothing=x"]).expect(2);
}

#[test]
fn rows_that_share_one_seed_are_void_and_a_seed_gives_each_its_own() {
    let scratch = Scratch::new();
    let both = "ledger_05,ledger_07";
    let shared = short(&scratch, "shared", both, &["--temperature", "0.9"]);
    let answer = audit(&[&shared, "--only", "one-seed"]).expect(1).json();
    assert!(
        said(&answer, 16, "void").contains("2 of 2 rows were drawn with seed 42"),
        "{answer:#}"
    );
    let own = short(&scratch, "own", both, &["--temperature", "0.9", "--seed", "7"]);
    let answer = audit(&[&own, "--only", "16,17"]).expect(0).json();
    assert!(said(&answer, 16, "pass").contains("2 rows have 2 seeds"), "{answer:#}");
    // Draws are not made again here: asked for alone, that audit has no evidence.
    let answer = audit(&[&own, "--only", "19"]).expect(4).json();
    assert!(said(&answer, 19, "no_evidence").contains("sampler verdict"), "{answer:#}");
}

#[test]
fn two_configurations_are_compared_by_key_value_and_source() {
    let scratch = Scratch::new();
    let (dense, run) = (short(&scratch, "dense", "ledger_05", &[]), compressed(&scratch, "run"));
    let answer =
        lockstep(["diff", "--manifest", &dense, &run, "--format", "json"]).expect(1).json();
    let groups: Vec<_> =
        answer["groups"].as_array().expect("groups").iter().map(|one| &one["group"]).collect();
    assert_eq!(groups, ["policy"], "{answer:#}");
    let kind = &answer["groups"][0]["differences"];
    let kind = kind.as_array().expect("a list").iter().find(|one| one["key"] == "policy.kind");
    let kind = kind.expect("the policy differs");
    assert_eq!((&kind["left"], &kind["right"]), (&"dense".into(), &"triattention".into()));
    assert!(kind["left_source"].is_string() && kind["right_source"].is_string(), "{kind}");
    let text = lockstep(["diff", "--manifest", &dense, &run]).expect(1).stdout;
    assert!(text.contains("policy.kv_budget: not recorded against 110 (flag)"), "{text}");
    lockstep(["diff", "--manifest", &run, &run]).expect(0);
}

#[test]
fn what_cannot_be_read_or_asked_for_is_said_in_one_line() {
    let scratch = Scratch::new();
    let (folder, junk) = (scratch.path("folder"), scratch.path("junk.json"));
    std::fs::create_dir(&folder).expect("a folder");
    std::fs::write(&junk, "{\"neither\": 1}").expect("a file");
    audit(&[&scratch.path("absent")]).expect_refusal(3, &["absent"]);
    audit(&[&folder]).expect_refusal(3, &["folder: no run"]);
    audit(&[&junk]).expect_refusal(3, &["junk.json"]);
    audit(&[&junk, "--only", "99"]).expect_refusal(2, &["no audit `99`", "--list"]);
    let trace = scratch.path("trace.jsonl");
    let row = "{\"position\":0,\"token_id\":5,\"rows_before\":1,\"rows_after\":1,\"top\":[[5,2.0],[6,1.0]]}\n";
    std::fs::write(&trace, row).expect("a file");
    let answer = audit(&[&trace, &trace, "--only", "2,16,20"]).expect(4).json();
    assert_eq!(answer["verdict"], "no_evidence", "{answer:#}");
}

#[test]
fn a_ledger_of_claims_is_audited_with_what_it_cites() {
    let scratch = Scratch::new();
    let (ledger, answer) = (scratch.path("claims.toml"), scratch.path("answer.json"));
    let write = |verdict: &str, ordinal: u32| {
        let text = format!(
            "{{\"verdict\": \"{verdict}\", \"samples\": [{{\"sample_id\": \"s1\", \"ordinal\": {ordinal}}}]}}"
        );
        std::fs::write(&answer, text).expect("a scratch file");
    };
    let claim = |text: &str, ordinals: &str| {
        let scope = ["--samples", "s1", "--ordinals", ordinals];
        let add = ["claim", "add", text, "--ledger", &ledger, "--evidence", &answer];
        lockstep(add.iter().chain(&scope));
    };
    let audits = |code: i32| {
        let args = ["audit", &ledger, "--only", "62,63", "--format", "json"];
        let found = lockstep(args).expect(code).json();
        [62, 63].map(|number| outcome(&found, number).to_owned())
    };
    write("pass", 2);
    claim("the selector is right at the second compaction", "2");
    assert_eq!(audits(0), ["pass", "pass"]);
    claim("the selector is right", "1-3");
    assert_eq!(audits(1), ["pass", "flag"]);
    write("void", 2);
    assert_eq!(audits(1)[0], "flag");
}
