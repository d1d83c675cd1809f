//! `export` for CI and for time lines: what is written is read with another reader and held against the run.

#![expect(clippy::unwrap_used, reason = "what is missing fails the test")]

use std::fs;

use roxmltree::Document;
use serde_json::Value;

use crate::kit::{Scratch, lockstep, record};

fn export(kind: &str, source: &str, out: &str) {
    lockstep(["export", kind, source, "--out", out]).expect(0);
}

/// A JUnit file as `(suite, class, name, outcome)`, after its counts were held against its cases.
fn cases(path: &str) -> Vec<(String, String, String, String)> {
    let text = fs::read_to_string(path).expect("it was written");
    let document = Document::parse(&text).unwrap_or_else(|error| panic!("{error}: {text}"));
    let root = document.root_element();
    assert_eq!(root.tag_name().name(), "testsuites");
    let (mut out, mut all) = (Vec::new(), [0_usize; 4]);
    let stated = |node: roxmltree::Node<'_, '_>| {
        ["tests", "failures", "errors", "skipped"]
            .map(|name| node.attribute(name).unwrap().parse::<usize>().unwrap())
    };
    for suite in root.children().filter(roxmltree::Node::is_element) {
        assert_eq!(suite.tag_name().name(), "testsuite");
        let mut own = [0_usize; 4];
        for case in suite.children().filter(roxmltree::Node::is_element) {
            assert_eq!(case.tag_name().name(), "testcase");
            let children: Vec<&str> = case
                .children()
                .filter(roxmltree::Node::is_element)
                .map(|n| n.tag_name().name())
                .collect();
            assert!(children.len() <= 1, "{children:?}");
            let outcome = *children.first().unwrap_or(&"passed");
            own[0] += 1;
            match outcome {
                "failure" => own[1] += 1,
                "error" => own[2] += 1,
                "skipped" => own[3] += 1,
                "passed" | "system-out" => {}
                other => panic!("{other}"),
            }
            let text = |name: &str| case.attribute(name).unwrap().to_owned();
            let outcome = if outcome == "system-out" { "passed" } else { outcome };
            out.push((
                suite.attribute("name").unwrap().to_owned(),
                text("classname"),
                text("name"),
                outcome.to_owned(),
            ));
        }
        assert_eq!(stated(suite), own);
        all = std::array::from_fn(|at| all[at] + own[at]);
    }
    assert_eq!(stated(root), all);
    out
}

fn outcome_of<'c>(cases: &'c [(String, String, String, String)], name: &str) -> Option<&'c str> {
    cases.iter().find(|case| case.2 == name).map(|case| case.3.as_str())
}

fn write(scratch: &Scratch, name: &str, text: &str) -> String {
    fs::write(scratch.file(name), text).expect("scratch is writable");
    scratch.path(name)
}

#[test]
fn answers_of_rows_become_cases_and_only_right_ones_pass() {
    let scratch = Scratch::new();
    let rows = write(
        &scratch,
        "rows",
        "{\"id\":\"right\",\"gold\":\"5\",\"pred\":\"5\"}\n{\"id\":\"wrong\",\"gold\":\"5\",\"pred\":\"6 < 7\"}\n{\"id\":\"open\",\"pred\":\"6\"}\n",
    );
    let answer = lockstep(["bench", "score", &rows, "--format", "json"]).expect(0).stdout;
    let answer = write(&scratch, "answer.json", &answer);
    let out = scratch.path("junit.xml");
    export("junit", &answer, &out);
    let found = cases(&out);
    assert_eq!(outcome_of(&found, "right"), Some("passed"));
    assert_eq!(outcome_of(&found, "wrong"), Some("failure"));
    assert_eq!(outcome_of(&found, "open"), Some("skipped"));
    // Two inputs that show nothing: an error, not a pass.
    let answer = lockstep(["bench", "score", &rows, &rows, "--format", "json"]).expect(4).stdout;
    let answer = write(&scratch, "pair.json", &answer);
    export("junit", &answer, &out);
    assert!(cases(&out).iter().any(|case| case.1 == "versus" && case.3 == "error"));
    let junk = write(&scratch, "junk.json", "{\"a\":1}");
    lockstep(["export", "junit", &junk, "--out", &out])
        .expect_refusal(3, &["junk.json", "no answer of"]);
}

#[test]
fn answers_of_audit_check_and_diff_become_cases() {
    let scratch = Scratch::new();
    let run = scratch.path("run");
    let stats =
        lockstep_testkit::data().join("golden/traces/stats/ledger_stats_decode_only.safetensors");
    record(
        &run,
        "ledger_05",
        &[
            "--policy",
            "triattention",
            "--rule-set",
            "trt",
            "--kv-budget",
            "260",
            "--divide-length",
            "32",
            "--recent-window",
            "32",
            "--record-cache",
            "all",
            "--stats",
            stats.to_str().unwrap(),
        ],
    )
    .expect(0);
    let out = scratch.path("junit.xml");
    let audit = lockstep(["audit", &run, "--format", "json"]);
    let counts = audit.json()["counts"].clone();
    let audits = audit.json()["audits"].as_array().unwrap().len();
    let answer = write(&scratch, "audit.json", &audit.stdout);
    export("junit", &answer, &out);
    let found = cases(&out);
    let count = |outcome: &str| found.iter().filter(|case| case.3 == outcome).count() as u64;
    assert_eq!(found.len(), audits);
    assert_eq!(
        [count("passed"), count("failure"), count("error"), count("skipped")],
        ["pass", "flag", "void", "no_evidence"].map(|key| counts[key].as_u64().unwrap())
    );
    let check = lockstep(["check", "gather", &run, "--format", "json"]).expect(0).stdout;
    let answer = write(&scratch, "check.json", &check);
    export("junit", &answer, &out);
    assert_eq!(outcome_of(&cases(&out), "verdict"), Some("passed"));
    let diff = lockstep(["diff", &run, &run, "--format", "json"]).expect(0).stdout;
    let answer = write(&scratch, "diff.json", &diff);
    export("junit", &answer, &out);
    let found = cases(&out);
    assert_eq!(outcome_of(&found, "ledger_05"), Some("passed"));
    let other = scratch.path("other");
    record(&other, "ledger_01", &[]).expect(0);
    let diff = lockstep(["diff", &run, &other, "--format", "json"]).stdout;
    let answer = write(&scratch, "apart.json", &diff);
    export("junit", &answer, &out);
    let found = cases(&out);
    assert_eq!(outcome_of(&found, "verdict"), Some("error"), "{found:?}");
    // Two runs of one sample are held against each other whatever their ids.
    assert_eq!(outcome_of(&found, "ledger_05"), Some("error"));
    export("junit", &run, &out);
    let found = cases(&out);
    assert_eq!((found.len(), found[0].2.as_str()), (1, "ledger_05"));
    timeline(&scratch, &run);
    samples(&scratch, &run);
}

/// The timeline of a recorded run against its tables.
fn timeline(scratch: &Scratch, run: &str) {
    use lockstep_traces::store::RunReader;
    let out = scratch.path("timeline.json");
    export("perfetto", run, &out);
    let document: Value = serde_json::from_slice(&fs::read(&out).unwrap()).unwrap();
    let drawn = document["traceEvents"].as_array().unwrap();
    for one in drawn {
        let number =
            |key: &str| one[key].as_f64().is_some_and(|value| value.is_finite() && value >= 0.0);
        match one["ph"].as_str().unwrap() {
            "X" => assert!(number("ts") && number("dur"), "{one}"),
            "C" => assert!(number("ts") && one["args"].is_object(), "{one}"),
            "M" => assert!(one["args"].is_object(), "{one}"),
            other => panic!("phase {other}"),
        }
    }
    let run = RunReader::open(run.as_ref()).unwrap();
    let (steps, events) =
        (run.steps(&lockstep_traces::StepQuery::default()).unwrap(), run.events(None).unwrap());
    let of = |phase: &str, start: &str| -> Vec<&Value> {
        drawn
            .iter()
            .filter(|one| one["ph"] == phase && one["name"].as_str().unwrap().starts_with(start))
            .collect()
    };
    let live: Vec<u64> =
        of("C", "live").iter().map(|one| one["args"]["rows"].as_u64().unwrap()).collect();
    let wanted: Vec<u64> = steps.rows_after.iter().map(|rows| u64::from(*rows)).collect();
    assert_eq!(live, wanted);
    let compactions = of("X", "compaction ");
    assert!(!events.is_empty() && compactions.len() == events.len());
    for (drawn, event) in compactions.iter().zip(&events) {
        let seconds = event.score_seconds
            + event.reduce_seconds
            + event.select_seconds
            + event.gather_seconds;
        assert!((drawn["dur"].as_f64().unwrap() - seconds * 1e6).abs() < 1e-6);
        assert_eq!(drawn["args"]["rows_after"], event.rows_after);
    }
    let sample = &run.samples().unwrap()[0];
    let decode = of("X", "decode")[0]["dur"].as_f64().unwrap();
    assert!((decode - sample.decode_seconds * 1e6).abs() < 1e-6);
}

/// Samples in lm-eval's form, read back.
fn samples(scratch: &Scratch, run: &str) {
    let out = scratch.path("samples.jsonl");
    export("lm-eval", run, &out);
    let back = scratch.path("back");
    lockstep(["import", "lm-eval", &out, "--out", &back]).expect(0);
    let answers = |path: &str| {
        let run = lockstep_traces::store::RunReader::open(path.as_ref()).unwrap();
        let rows = run.samples().unwrap();
        rows.into_iter()
            .map(|row| (row.sample_id, row.gold, row.answer, row.answer_rule, row.text))
            .collect::<Vec<_>>()
    };
    assert_eq!(answers(&back), answers(run));
}
