//! `diff kld`, and `import` and `export` of llama.cpp's evidence files, through the binary.

use crate::kit::{Scratch, ledger, lockstep, text};

fn data(name: &str) -> String {
    text(&lockstep_testkit::data().join("interop/llamacpp").join(name))
}

/// What llama-perplexity printed for this pair, line for line.
#[test]
fn the_figures_are_those_that_llama_perplexity_printed() {
    let ran = lockstep(["diff", "kld", &data("base.kld"), &data("target.npy")]).expect(1);
    let printed = std::fs::read_to_string(data("kld.log")).unwrap();
    let wanted: Vec<_> = printed.lines().collect();
    assert_eq!(wanted.len(), 37);
    let found: Vec<_> = ran.stdout.lines().collect();
    for line in wanted {
        assert!(found.contains(&line), "`{line}` is not in:\n{}", ran.stdout);
    }
    for part in [
        "KL(base || target): a log-probability of the base is off by at most 1.",
        "Errors by chunk (15 chunks",
        "chunk error",
        "first row that differs beyond that: chunk 1, position 8",
    ] {
        assert!(ran.stdout.contains(part), "`{part}` is not in:\n{}", ran.stdout);
    }
}

/// A target in codes: the same pair, off by no more than the codes of both can hide.
#[test]
fn a_target_in_codes_gives_figures_within_its_bounds() {
    let pair = |target: &str| {
        let ran = lockstep(["diff", "kld", &data("base.kld"), &data(target), "--format", "json"]);
        ran.expect(1).json()
    };
    let (exact, coded) = (pair("target.npy"), pair("target.kld"));
    let number =
        |report: &serde_json::Value, path: &str| report.pointer(path).unwrap().as_f64().unwrap();
    let off = number(&exact, "/figures/kld/value") - number(&coded, "/figures/kld/value");
    let bound = number(&coded, "/coding/kld_rounding") + number(&coded, "/coding/kld_tail");
    assert!(off.abs() <= bound && bound < 0.01, "{off} {bound}");
    assert_eq!(coded["direction"], "KL(base || target)");
    assert_eq!(coded["by_chunks"].as_array().unwrap().len(), 15);
    let clean =
        lockstep(["diff", "kld", &data("base.kld"), &data("base.npy"), "--by-chunk"]).expect(0);
    assert!(
        clean.stdout.contains("all 105 rows agree as far as codes can show"),
        "{}",
        clean.stdout
    );
}

#[test]
fn cut_and_lying_files_are_said_and_refused() {
    let home = Scratch::new();
    let bytes = std::fs::read(data("base.kld")).unwrap();
    let (cut, lie) = (home.path("cut.kld"), home.path("lie.kld"));
    std::fs::write(&cut, &bytes[..bytes.len() - 10]).unwrap();
    for target in ["base.npy", "base.kld"] {
        let ran = lockstep(["diff", "kld", &cut, &data(target)]).expect(4);
        assert!(ran.stdout.contains("14 of 15 chunks are whole"), "{}", ran.stdout);
        assert!(ran.stdout.contains("all 98 rows agree"), "{}", ran.stdout);
    }
    let mut wrong = bytes;
    wrong[12..16].copy_from_slice(&(i32::MAX).to_le_bytes());
    std::fs::write(&lie, &wrong).unwrap();
    for args in [
        ["diff", "kld", &lie, &data("base.npy")].as_slice(),
        &["import", "llama-kld", &lie, "--out", &home.path("run")],
    ] {
        lockstep(args).expect_refusal(3, &["lie.kld", "n_vocab at byte 12"]);
    }
    let other = data("kld.log");
    lockstep(["import", "llama-kld", &other, "--out", &home.path("run")])
        .expect_refusal(3, &["no KLD base file"]);
}

#[test]
fn files_are_recognised_and_imported() {
    let home = Scratch::new();
    let (kld, results, row) = (home.path("kld"), home.path("results"), home.path("row"));
    let ran = lockstep(["import", &data("base.kld"), "--out", &kld, "--top-k", "19"]).expect(0);
    assert!(ran.stdout.contains("read as llama-kld"), "{}", ran.stdout);
    let shown = lockstep(["inspect", &kld, "--format", "json"]).expect(0).json();
    assert_eq!((shown["encoding"].as_str(), shown["steps"].as_u64()), (Some("codes16"), Some(240)));
    let ran =
        lockstep(["import", &data("results/llama-results.gguf"), "--out", &results]).expect(0);
    assert!(ran.stdout.contains("stand the other way round"), "{}", ran.stdout);
    let debug = data("results/llamacpp-base.bin");
    lockstep(["import", "llama-debug", &debug, "--out", &row]).expect_refusal(3, &["--vocab 19"]);
    lockstep(["import", "llama-debug", &debug, "--out", &row, "--vocab", "19"]).expect(0);
    // The row against itself, and the vocabulary of a model that is another one.
    lockstep(["diff", "kld", &debug, &debug, "--vocab", "19"]).expect(0);
    lockstep(["import", "llama-debug", &debug, "--out", &home.path("no"), "--model", &ledger()])
        .expect_refusal(3, &["not one row of"]);
}

#[test]
fn a_run_with_its_logits_becomes_a_base_file_and_agrees_with_it() {
    let home = Scratch::new();
    let (with, without, file) = (home.path("with"), home.path("without"), home.path("run.kld"));
    let (ledger, prompt) = (ledger(), lockstep_testkit::task("ledger_05").prompt);
    let run = |out: &str, extra: &[&str]| {
        let mut args = vec!["run", "--model", &ledger, "--prompt", &prompt, "--dtype", "f32"];
        args.extend(["--max-new-tokens", "40", "--device", "cpu", "--out", out]);
        args.extend(extra);
        lockstep(args).expect(0)
    };
    run(&with, &["--record-logits", "all"]);
    run(&without, &[]);
    lockstep(["export", "llama-kld", &without, "--out", &file])
        .expect_refusal(3, &["no logits of the whole vocabulary", "--record-logits all"]);
    let args = ["export", "llama-kld", &with, "--out", &file, "--chunk-tokens", "6"];
    let ran = lockstep(args).expect(0);
    assert!(ran.stdout.contains("chunks of 6 tokens, 2 of each scored"), "{}", ran.stdout);
    let ran = lockstep(["diff", "kld", &file, &with]).expect(0);
    assert!(ran.stdout.contains("agree as far as codes can show"), "{}", ran.stdout);
    // The run as the base is coded in memory: the same records.
    lockstep(["diff", "kld", &with, &file]).expect(0);
    lockstep(["diff", "kld", &file, &without]).expect_refusal(3, &["--record-logits all"]);
}

/// Counted by a script of `struct.unpack` over the file.
#[test]
fn a_base_file_is_inspected() {
    let shown = lockstep(["inspect", &data("base.kld"), "--format", "json"]).expect(0).json();
    for (key, value) in [
        ("n_ctx", 16),
        ("n_vocab", 19),
        ("chunks", 15),
        ("scored", 7),
        ("top_is_next", 6),
        ("cut_below", 7),
    ] {
        assert_eq!(shown[key], value, "{key}");
    }
    assert!((shown["widest_range"].as_f64().unwrap() - 16.0).abs() < 1e-5);
    // A file for which there is no view of its own says where it is read.
    let samples = text(&lockstep_testkit::data().join("interop/lm-eval/samples_gen.jsonl"));
    lockstep(["inspect", &samples])
        .expect_refusal(2, &[&samples, "no trace but lm-eval", "lockstep import lm-eval"]);
}
