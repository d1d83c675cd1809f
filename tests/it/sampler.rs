//! The sampler through the command line: clean runs are what they claim, other evidence is named, thin evidence is not.

use std::fs;

use serde_json::{Value, json};

use crate::kit::{Ran, Scratch, ledger, lockstep, text};

/// Settings under which the embedded model's draws are a matter of chance.
const WARM: [&str; 8] =
    ["--temperature", "6", "--top-k", "40", "--top-p", "0.9", "--min-p", "0.02"];

/// Records two short problems with full logits.
#[track_caller]
fn sampled(out: &str, sampler: &str, extra: &[&str]) -> Ran {
    let (ledger, tasks) = (ledger(), crate::kit::tasks());
    let mut args =
        vec!["run", "--model", &ledger, "--dataset", &tasks, "--select", "0-1", "--dtype", "f32"];
    args.extend(["--device", "cpu", "--max-new-tokens", "40", "--stop-ids", "1", "--seed", "1234"]);
    args.extend(["--record-logits", "all", "--sampler", sampler, "--out", out]);
    args.extend(extra);
    lockstep(args)
}

fn check(path: &str, extra: &[&str]) -> Ran {
    let mut args = vec!["check", "sampler", path, "--format", "json"];
    args.extend(extra);
    lockstep(args)
}

#[test]
fn every_sampler_of_a_clean_run_is_named_and_agrees() {
    let scratch = Scratch::new();
    for (sampler, filters) in [
        ("torch-cuda", "native"),
        ("torch-cuda-slice", "native"),
        ("torch-cpu", "hf"),
        ("gumbel", "hf"),
        ("xorshift", "native"),
    ] {
        let out = scratch.path(sampler);
        let extra: Vec<&str> = WARM.into_iter().chain(["--filters", filters]).collect();
        sampled(&out, sampler, &extra).expect(0);
        let answer = check(&out, &[]).expect(0).json();
        let detail = &answer["detail"];
        assert_eq!(detail["answer"], "claimed", "{answer:#}");
        assert_eq!(detail["sampler"]["sampler"], sampler);
        assert_eq!(detail["sampler"]["filters"], filters);
        assert_eq!((&answer["compared"], &answer["different"]), (&json!(80), &json!(0)));
        let counters = &detail["recorded_counters"];
        assert_eq!((&counters["agree"], &counters["compared"]), (&json!(80), &json!(80)));
        assert!(detail["sensitivity"]["with_choice"].as_u64().unwrap() > 40, "{answer:#}");
        // The same tokens under another claim: the claim is refuted and the sampler named.
        let other = if sampler == "gumbel" { "xorshift" } else { "gumbel" };
        let answer = check(&out, &["--sampler", other]).expect(1).json();
        assert_eq!(answer["detail"]["sampler"]["sampler"], sampler, "{answer:#}");
        let answer = check(&out, &["--seed", "99"]).expect(1).json();
        assert_eq!(answer["detail"]["answer"], "none_fits", "{answer:#}");
    }
    let run = scratch.path("torch-cuda");
    let shown = lockstep(["replay", "sampler", &run]).expect(0).stdout;
    for part in ["torch-cuda", "base + index", "80 of 80", "decision edge"] {
        assert!(shown.contains(part), "`{part}`: {shown}");
    }
    let line = lockstep(["check", "sampler", &run, "--format", "jsonl"]).expect(0).stdout;
    assert_eq!(line.trim().lines().count(), 1);
}

/// Every plantable mistake of the sampler from 64 tokens of one sample, with settings under which it shows.
#[test]
fn every_planted_mistake_is_named_from_64_tokens() {
    let wide: &[&str] = &WARM;
    let floor = ["--temperature", "6", "--top-k", "40", "--min-p", "0.000000001"];
    let high = ["--temperature", "6", "--top-k", "40", "--top-p", "0.9", "--min-p", "0.2"];
    // Coarse logits tie; among three that are alike a tie decides.
    let ties = ["--dtype", "bf16", "--temperature", "30", "--top-k", "3"];
    let other = |sampler: &'static str| -> Vec<&'static str> {
        WARM.into_iter().chain(["--sampler", sampler]).collect()
    };
    let (xorshift, cpu, gumbel) = (other("xorshift"), other("torch-cpu"), other("gumbel"));
    let table: [(&str, &str, &[&str]); 14] = [
        ("seed-index-twice", "2", wide),
        ("one-seed-for-all", "2", wide),
        ("race-over-slice", "2", wide),
        ("rng-frozen", "2", wide),
        ("rng-reseeded", "2", wide),
        ("draw-discarded", "2", wide),
        ("draw-discarded-each-step", "2", wide),
        ("top-p-before-top-k", "2", wide),
        ("temperature-after-filters", "2", &floor),
        ("min-p-on-logits", "2", &high),
        ("top-k-ties", "0", &ties),
        ("rng-frozen", "2", &xorshift),
        ("draw-discarded", "2", &cpu),
        ("rng-reseeded", "2", &gumbel),
    ];
    let scratch = Scratch::new();
    let (ledger, tasks) = (ledger(), crate::kit::tasks());
    for (number, (cause, select, settings)) in table.into_iter().enumerate() {
        let out = scratch.path(&number.to_string());
        let mut args = vec!["run", "--model", &ledger, "--dataset", &tasks, "--select", select];
        args.extend(["--device", "cpu", "--max-new-tokens", "64", "--stop-ids", "1"]);
        args.extend(["--seed", "1234", "--record-logits", "all", "--plant", cause, "--out", &out]);
        args.extend(settings);
        lockstep(args).expect(0);
        let answer = check(&out, &[]).expect(1).json();
        assert_eq!(answer["findings"][0]["cause"], cause, "{answer:#}");
        assert_eq!(answer["detail"]["reproduced"], 64, "{cause}");
        let claimed = answer["detail"]["claimed"]["reproduced"].as_u64().unwrap();
        assert!(claimed < 64 && answer["detail"]["first_misfit"]["draw"].is_u64(), "{cause}");
    }
    // Index 0 added twice is index 0: the run is what it claims, and the rules that mean the same are said.
    let out = scratch.path("same");
    let mut args = vec!["run", "--model", &ledger, "--dataset", &tasks, "--select", "0"];
    args.extend(["--device", "cpu", "--max-new-tokens", "64", "--stop-ids", "1", "--seed", "1234"]);
    args.extend(["--record-logits", "all", "--plant", "seed-index-twice", "--out", &out]);
    args.extend(WARM);
    lockstep(args).expect(0);
    let answer = check(&out, &[]).expect(0).json();
    assert_eq!(answer["detail"]["same_seeds"].as_array().unwrap().len(), 2, "{answer:#}");
}

#[test]
fn draws_without_a_choice_decide_nothing() {
    let scratch = Scratch::new();
    let out = scratch.path("sure");
    sampled(&out, "torch-cuda", &["--temperature", "0.1", "--top-p", "0.9"]).expect(0);
    let answer = check(&out, &[]).expect(4).json();
    assert_eq!(answer["detail"]["answer"], "not_decidable", "{answer:#}");
    assert_eq!(answer["verdict"]["kind"], "incomparable");
    let greedy = scratch.path("greedy");
    sampled(&greedy, "argmax", &["--temperature", "0"]).expect(0);
    let answer = check(&greedy, &[]).expect(0).json();
    assert_eq!(answer["detail"]["sampler"]["sampler"], "argmax");
}

#[test]
fn a_trace_of_top_k_alone_serves_where_it_covers_the_survivors() {
    let scratch = Scratch::new();
    let (covered, short) = (scratch.path("covered"), scratch.path("short"));
    let warm = ["--temperature", "6", "--top-k", "8", "--record-logits", "none"];
    let (ledger, tasks) = (ledger(), crate::kit::tasks());
    for (out, k) in [(&covered, "8"), (&short, "4")] {
        let mut args = vec!["run", "--model", &ledger, "--dataset", &tasks, "--select", "0"];
        args.extend(["--dtype", "f32", "--device", "cpu", "--max-new-tokens", "48"]);
        args.extend(["--seed", "7", "--trace-top-k", k, "--stop-ids", "1", "--out", out]);
        args.extend(warm);
        lockstep(args).expect(0);
    }
    let answer = check(&covered, &[]).expect(0).json();
    assert_eq!((&answer["compared"], &answer["skipped"]), (&json!(48), &json!(0)));
    let answer = check(&short, &[]).expect(4).json();
    assert_eq!(answer["skipped"], 48, "{answer:#}");
    assert_eq!(answer["detail"]["answer"], "not_decidable");
}

fn case(name: &str) -> String {
    text(&lockstep_testkit::data().join("cases").join(name))
}

#[test]
fn public_reports_are_answered_from_their_files() {
    let (spec, tokens) = (case("31/spec.json"), case("31/tokens.json"));
    let answer = check(&spec, &["--tokens", &tokens]).expect(1).json();
    assert_eq!(answer[0]["verdict"]["kind"], "identical");
    assert_eq!(answer[1]["findings"][0]["cause"], "rng-frozen");
    let shown = lockstep(["check", "sampler", &spec, "--tokens", &tokens]).expect(1).stdout;
    for part in ["engine: ", "draw 0", "step 1", "no logit or argmax split"] {
        assert!(shown.contains(part), "`{part}`: {shown}");
    }
    let (spec, tokens) = (case("32/spec.json"), case("32/tokens.json"));
    let answer = lockstep(["replay", "sampler", &spec, "--tokens", &tokens, "--format", "json"]);
    let answer = answer.expect(1).json();
    assert_eq!(answer[1]["detail"]["sampler"]["shift"], 1);

    let shown = lockstep(["check", "sampler", &case("29/case.json")]).expect(1).stdout;
    for part in
        ["engine_kept.x [0, 1]: top-k 3, top-p 0.7 on the renormalised", "raw logits (a fault)"]
    {
        assert!(shown.contains(part), "`{part}`: {shown}");
    }
    let shown = lockstep(["replay", "sampler", &case("34/devices.json")]).expect(1).stdout;
    for part in
        ["40960 is the first that differs", "0.8534690", "0.2066173", "160 blocks", "196 blocks"]
    {
        assert!(shown.contains(part), "`{part}`: {shown}");
    }
    let flags = ["--devices", "40x1024,58x1536", "--elements", "40960", "--seed", "1234"];
    lockstep(["replay", "sampler"].into_iter().chain(flags)).expect(0);
    let shown = lockstep(["check", "sampler", &case("49/case.json")]).expect(1).stdout;
    for part in ["w: log-softmax of the logits", "exp sums to 0.479361", "lost ids [2, 3]"] {
        assert!(shown.contains(part), "`{part}`: {shown}");
    }
}

#[test]
fn golden_draws_and_filters_run_on_both_sides() {
    let golden = text(&lockstep_testkit::golden());
    for (folder, group, least) in
        [("sampler", "cuda_multinomial_sparse", 3), ("filters", "filters", 932)]
    {
        let dir = format!("{golden}/{folder}");
        let answer = lockstep(["conformance", &dir, "--format", "json"]).expect(0).json();
        for side in ["runtime", "reference"] {
            assert_eq!(answer[side]["failed"], 0, "{answer:#}");
            assert_eq!(answer[side]["groups"][group]["cases"], least, "{folder} {side}");
            let totals = &answer[side]["groups"][group];
            assert!(totals["max_agg_abs"].as_f64().is_none_or(|error| error <= 1e-6));
        }
    }
}

#[test]
fn wrong_calls_are_refused_in_one_line() {
    let scratch = Scratch::new();
    let nothing = scratch.path("nothing");
    check(&nothing, &[]).expect_refusal(3, &["nothing"]);
    lockstep(["check", "sampler"]).expect(2);
    let file = scratch.file("rows.json");
    fs::write(&file, json!({"logits": [[0.0, 1.0]], "tokens": [1]}).to_string()).unwrap();
    let file = text(&file);
    check(&file, &["--sampler", "dice"]).expect_refusal(2, &["dice", "torch-cuda"]);
    check(&file, &["--temperature", "0"]).expect_refusal(2, &["temperature"]);
    check(&file, &["--filters", "none"]).expect_refusal(2, &["filters"]);
    lockstep(["replay", "sampler", "--devices", "4x1024", "--elements", "10"])
        .expect_refusal(2, &["two"]);
    lockstep(["replay", "sampler", "--devices", "4by4,1x1", "--elements", "10"]).expect(2);
    let out = scratch.path("run");
    sampled(&out, "dice", &[]).expect_refusal(2, &["dice", "gumbel"]);
    sampled(&out, "torch-cuda", &["--temperature", "1", "--plant", "min-p-on-logits"])
        .expect_refusal(2, &["min-p"]);
    let value: Value = check(&file, &[]).expect(4).json();
    assert_eq!(value["detail"]["answer"], "not_decidable");
}

#[test]
fn logits_of_another_row_or_of_none_and_a_changed_seed_are_no_evidence() {
    let scratch = Scratch::new();
    let extra: Vec<&str> = WARM.into_iter().chain(["--filters", "native"]).collect();
    let run = scratch.path("run");
    let folder = || {
        let _ = fs::remove_dir_all(&run);
        sampled(&run, "torch-cuda", &extra).expect(0);
        let sample = fs::read_dir(scratch.file("run/tensors")).unwrap().next().unwrap().unwrap();
        let mut files: Vec<_> =
            fs::read_dir(sample.path()).unwrap().map(|file| file.unwrap().path()).collect();
        files.sort();
        files.split_off(files.len() - 20)
    };
    let files = folder();
    fs::copy(&files[1], &files[0]).unwrap();
    check(&run, &[]).expect_refusal(3, &["step_", "hash"]);
    for file in folder() {
        fs::remove_file(file).unwrap();
    }
    let answer = check(&run, &[]).expect(4).json();
    assert!(answer["verdict"]["why"].as_str().unwrap().contains("not covered"), "{answer:#}");
    folder();
    let path = scratch.file("run/manifest.json");
    let mut manifest: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    manifest["config"]["sampling.seed"]["value"] = json!(1235);
    fs::write(&path, manifest.to_string()).unwrap();
    check(&run, &[]).expect_refusal(3, &["1235", "1234"]);
    let refused = lockstep([
        "replay",
        "sampler",
        "--devices",
        "40x1024,58x1536",
        "--elements",
        "99999999999999",
    ]);
    refused.expect_refusal(2, &["elements"]);
}

#[test]
fn a_trace_that_lacks_first_rows_and_not_just_the_prompt_is_not_equal() {
    let scratch = Scratch::new();
    let (run, trace) = (scratch.path("run"), scratch.path("trace.jsonl"));
    crate::kit::record(&run, "ledger_05", &[]).expect(0);
    lockstep(["export", "trtmc-trace", &run, "--out", &trace]).expect(0);
    let whole = fs::read_to_string(&trace).unwrap();
    let shown = lockstep(["inspect", &run, "--format", "json"]).expect(0).json();
    let prompt = shown["samples"][0]["prompt_len"].as_u64().unwrap() as usize;
    for (cut, code) in [(0, 0), (prompt, 0), (prompt - 20, 4)] {
        let rest: Vec<&str> = whole.lines().skip(cut).collect();
        fs::write(&trace, rest.join("\n") + "\n").unwrap();
        lockstep(["diff", &run, &trace]).expect(code);
    }
}

#[test]
fn several_samples_without_a_seed_are_warned_of() {
    let scratch = Scratch::new();
    let (ledger, tasks) = (ledger(), crate::kit::tasks());
    let run = |out: &str, extra: &[&str]| {
        let mut args = vec!["run", "--model", &ledger, "--dataset", &tasks, "--dtype", "f32"];
        args.extend(["--device", "cpu", "--max-new-tokens", "2", "--out", out]);
        args.extend(extra);
        lockstep(args).expect(0).stderr
    };
    let warned = |out: &str, extra: &[&str]| run(&scratch.path(out), extra).contains("no --seed");
    assert!(warned("two", &["--select", "0-1", "--temperature", "1"]));
    assert!(!warned("seeded", &["--select", "0-1", "--temperature", "1", "--seed", "7"]));
    assert!(!warned("one", &["--select", "0", "--temperature", "1"]));
    assert!(!warned("greedy", &["--select", "0-1"]));
}
