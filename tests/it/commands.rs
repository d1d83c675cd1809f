//! Every plantable mistake by the ordinary commands, as a user has them: record, then check. And the same commands on clean runs.

use lockstep_traces::Cause;

use crate::kit::{Ran, Scratch, ledger, lockstep, record, text};

/// Budget and window at which `ledger_05` compacts twice and both choose among many rows.
const COMPRESSED: [&str; 16] = [
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
    "--record-scores",
    "all",
    "--record-hidden",
    "1,103,104,291,292,324",
];

fn stats() -> String {
    text(&lockstep_testkit::data().join("golden/traces/stats/ledger_stats_decode_only.safetensors"))
}

/// Records `ledger_05`, compressed or dense, with `plant` if given.
fn recorded(scratch: &Scratch, compressed: bool, plant: Option<Cause>) -> String {
    let (out, stats) = (scratch.path("run"), stats());
    let mut flags: Vec<&str> = Vec::new();
    if compressed {
        flags.extend(COMPRESSED);
        flags.extend(["--stats", &stats]);
    } else {
        flags.extend(["--record-hidden", "1,103,104"]);
    }
    if let Some(cause) = plant {
        flags.extend(["--plant", cause.slug()]);
    }
    record(&out, "ledger_05", &flags).expect(0);
    out
}

fn replay(scratch: &Scratch, run: &str, plant: Option<Cause>) -> Ran {
    let (model, out) = (ledger(), scratch.path("replay"));
    let mut args = vec![
        "replay", "forward", run, "--model", &model, "--policy", "recorded", "--out", &out,
        "--format", "json",
    ];
    if let Some(cause) = plant {
        args.extend(["--plant", cause.slug()]);
    }
    lockstep(args)
}

fn check(what: &str, run: &str) -> Ran {
    lockstep(["check", what, run, "--format", "json"])
}

/// Causes named, in the order of the findings.
fn causes(answer: &serde_json::Value) -> Vec<&str> {
    answer["findings"]
        .as_array()
        .expect("findings")
        .iter()
        .filter_map(|finding| finding["cause"].as_str())
        .collect()
}

#[track_caller]
fn names(run: Ran, cause: Cause) {
    let answer = run.expect(1).json();
    let found = causes(&answer);
    assert_eq!(found.first(), Some(&cause.slug()), "{answer:#}");
    assert!(found.iter().all(|slug| *slug == cause.slug()), "another cause beside it: {found:?}");
}

#[test]
fn mistakes_of_the_forward_pass_are_named_by_a_replay() {
    for cause in [
        Cause::RotaryBase,
        Cause::QkNormSkipped,
        Cause::NormEpsilon,
        Cause::CausalMask,
        Cause::GqaTile,
    ] {
        let scratch = Scratch::new();
        let run = recorded(&scratch, false, Some(cause));
        names(replay(&scratch, &run, None), cause);
    }
}

#[test]
fn mistakes_of_the_cache_are_named_by_its_checks() {
    for (cause, what) in [
        (Cause::PhysicalPositions, "positions"),
        (Cause::WindowRowLost, "positions"),
        (Cause::ValueNotGathered, "gather"),
        (Cause::StaleRow, "gather"),
    ] {
        let scratch = Scratch::new();
        let run = recorded(&scratch, true, Some(cause));
        names(check(what, &run), cause);
    }
}

#[test]
fn mistakes_of_the_selector_are_named_by_its_check() {
    for cause in [
        Cause::RoundStartRows,
        Cause::ZscoreRows,
        Cause::ZscorePopulation,
        Cause::LayerMax,
        Cause::WindowRowLost,
    ] {
        let scratch = Scratch::new();
        let run = recorded(&scratch, true, Some(cause));
        names(check("selector", &run), cause);
    }
}

#[test]
fn a_wrong_round_start_is_invisible_at_the_first_compaction_and_named_at_the_second() {
    let scratch = Scratch::new();
    let run = recorded(&scratch, true, Some(Cause::RoundStartRows));
    let first = lockstep(["check", "selector", &run, "--ordinals", "1", "--format", "json"])
        .expect(0)
        .json();
    assert!(causes(&first).is_empty(), "{first:#}");
    let second = lockstep(["check", "selector", &run, "--ordinals", "2", "--format", "json"])
        .expect(1)
        .json();
    assert_eq!(second["findings"][0]["location"]["ordinal"], 2, "{second:#}");
}

#[test]
fn the_population_deviation_leaves_the_keep_sets_equal_and_is_found_in_the_z_stage() {
    let scratch = Scratch::new();
    let run = recorded(&scratch, true, Some(Cause::ZscorePopulation));
    let answer = check("selector", &run).expect(1).json();
    assert_eq!(answer["findings"][0]["location"]["stage"], "scores.z", "{answer:#}");
    assert_eq!(answer["detail"]["exact"], answer["detail"]["heads"], "{answer:#}");
}

#[test]
fn the_order_of_ties_is_named_on_keys_that_tie() {
    let golden = lockstep_testkit::data().join("golden/triattention");
    let cases: serde_json::Value =
        serde_json::from_slice(&std::fs::read(golden.join("cases.json")).unwrap()).unwrap();
    let tied = cases["cases"]
        .as_array()
        .unwrap()
        .iter()
        .find(|case| case["name"] == "v38_tie_bf16_b51")
        .unwrap();
    let file = |key: &str| text(&golden.join(tied[key].as_str().unwrap()));
    let setting = |key: &str| tied["config"][key].to_string();
    for plant in [None, Some(Cause::TieOrder)] {
        let scratch = Scratch::new();
        let (out, cache, stats) = (scratch.path("run"), file("input"), file("stats"));
        let (budget, window) = (setting("kv_budget"), setting("window_size"));
        let mut args = vec![
            "run",
            "--cache",
            &cache,
            "--stats",
            &stats,
            "--policy",
            "triattention",
            "--kv-budget",
            &budget,
        ];
        args.extend(["--recent-window", &window, "--record-cache", "all", "--out", &out]);
        if let Some(cause) = plant {
            args.extend(["--plant", cause.slug()]);
        }
        lockstep(args).expect(0);
        match plant {
            Some(cause) => names(check("selector", &out), cause),
            None => assert!(causes(&check("selector", &out).expect(0).json()).is_empty()),
        }
    }
}

#[test]
fn mistakes_of_the_replay_are_named_before_any_number() {
    let scratch = Scratch::new();
    let run = recorded(&scratch, false, None);
    for cause in Cause::ALL.into_iter().filter(|cause| cause.is_harness()) {
        let scratch = Scratch::new();
        let answer = replay(&scratch, &run, Some(cause));
        assert_eq!(answer.json()["noise"], serde_json::Value::Null, "no number about the engine");
        names(answer, cause);
    }
}

#[test]
fn clean_runs_of_every_rule_set_pass_every_check() {
    for rule_set in ["trt", "hf", "vllm", "sglang"] {
        let scratch = Scratch::new();
        let (out, stats) = (scratch.path("run"), stats());
        // sglang counts completion rows only towards its trigger.
        let budget = if rule_set == "sglang" { "150" } else { "260" };
        let mut flags = vec![
            "--policy",
            "triattention",
            "--rule-set",
            rule_set,
            "--kv-budget",
            budget,
            "--divide-length",
            "32",
        ];
        flags.extend([
            "--stats",
            &stats,
            "--record-cache",
            "all",
            "--record-hidden",
            "1,104,200,340",
        ]);
        record(&out, "ledger_05", &flags).expect(0);
        for what in ["gather", "positions", "selector"] {
            let answer = check(what, &out).expect(0).json();
            assert!(answer["compared"].as_u64().unwrap() > 0, "{rule_set} {what}: {answer:#}");
            assert!(causes(&answer).is_empty(), "{rule_set} {what}: {answer:#}");
        }
        let answer = replay(&scratch, &out, None).expect(0).json();
        assert!(answer["compactions"].as_u64().unwrap() > 0, "{rule_set}");
        assert!(causes(&answer).is_empty(), "{rule_set}: {answer:#}");
    }
}

#[test]
fn dense_and_compressed_are_bit_identical_up_to_the_first_compaction() {
    let scratch = Scratch::new();
    let run = recorded(&scratch, true, None);
    let dense = scratch.path("dense");
    record(&dense, "ledger_05", &[]).expect(0);
    let answer = lockstep(["diff", &dense, &run, "--format", "json"]).expect(1).json();
    // Budget 260, divide 32, prompt counted: the row at position 291 makes 292 rows; its own logits are from before.
    assert_eq!(answer["splits"]["structural"]["position"], 291, "{:#}", answer["splits"]);
    assert_eq!(answer["splits"]["logit"]["position"], 292, "{:#}", answer["splits"]);
    assert!(answer["proves"].as_str().unwrap().contains("bit equality"), "{}", answer["proves"]);
}
