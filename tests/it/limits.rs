//! Runs whose source could not say everything, and Parquet files as traces, by the ordinary commands: what is not available is said,
//! and never counted as equal.

use std::fs;
use std::path::Path;

use lockstep_traces::limits::{TokenIds, Values};
use lockstep_traces::manifest::Producer;
use lockstep_traces::store::{RunWriter, write_dump};
use lockstep_traces::{
    DType, Dump, DumpId, Manifest, Phase, RecordPlan, SampleRow, StepRow, Tensor, TokenTexts,
    TraceSink as _,
};
use serde_json::{Value, json};

use crate::kit::{Scratch, ledger, lockstep, text};

/// Rows of a run.
const ROWS: u32 = 14;

/// A run that fed `8 + position` (`L0`, `L1`, ... of the ledger's vocabulary), changed before it is written.
fn run(out: &Path, change: impl FnOnce(&mut Manifest, &mut Vec<StepRow>)) -> String {
    let mut manifest =
        Manifest::new(Producer { name: "test".to_owned(), ..Producer::default() }, "cpu");
    let mut rows: Vec<StepRow> = (0..ROWS).map(row).collect();
    change(&mut manifest, &mut rows);
    let mut writer =
        RunWriter::create(out, manifest, RecordPlan { top_k: 2, ..RecordPlan::default() })
            .expect("a run");
    let generated = rows.iter().filter_map(|row| row.next_token).collect();
    for row in rows {
        writer.step(row).expect("a row");
    }
    let sample = SampleRow { generated_ids: generated, ..SampleRow::bare("a") };
    writer.sample(sample).expect("a sample");
    writer.finish().expect("a finished run");
    text(out)
}

fn row(position: u32) -> StepRow {
    let next = 9 + position;
    StepRow {
        sample_id: "a".to_owned(),
        position,
        phase: if position < 2 { Phase::Prompt } else { Phase::Decode },
        token_id: 8 + position,
        next_token: (position > 0).then_some(next),
        rows_before: position,
        rows_after: position + 1,
        rows_bucketed: None,
        compaction: None,
        rope_index: None,
        argmax: next,
        top_ids: vec![next, 7],
        top_logits: vec![-0.25, -3.5],
        logsumexp: Some(0.0),
        top2_margin: Some(3.25),
        finite: true,
        logits_hash: None,
        rng_offset: None,
        uniform: None,
    }
}

/// The same as a server would give it: log-probabilities, no row counts.
fn served(manifest: &mut Manifest) {
    manifest.limits.values = Values::Logprobs;
    manifest.limits.rows = false;
}

/// Numbers `L0`, `L1`, ... in the order of their first appearance, which is not that of the vocabulary.
fn as_texts(out: &Path, change: impl FnOnce(&mut Vec<StepRow>)) -> String {
    let mut texts = TokenTexts::new();
    for id in (0..40).rev() {
        texts.number(&format!("L{id}"), None);
    }
    let other = texts.number("?", None);
    let path = run(out, |manifest, rows| {
        served(manifest);
        manifest.limits.token_ids = TokenIds::Invented;
        for row in rows.iter_mut() {
            let number = |id: u32| if id == 7 { other } else { 39 - (id - 8) };
            row.token_id = number(row.token_id);
            row.next_token = row.next_token.map(number);
            row.argmax = number(row.argmax);
            row.top_ids.iter_mut().for_each(|id| *id = number(*id));
        }
        change(rows);
    });
    texts.write(out).expect("texts");
    path
}

fn json_of(args: &[&str], code: i32) -> Value {
    lockstep(args.iter().chain(&["--format", "json"])).expect(code).json()
}

#[test]
fn rows_that_no_source_counted_are_not_available_anywhere() {
    let scratch = Scratch::new();
    let whole =
        run(&scratch.file("whole"), |manifest, _| manifest.limits.values = Values::Logprobs);
    let served_run = run(&scratch.file("served"), |manifest, _| served(manifest));
    let answer = json_of(&["diff", &whole, &served_run], 0);
    assert_eq!(answer["available"]["rows"], "not available on the right");
    assert_eq!(answer["verdict"]["kind"], "within_noise");
    let printed = lockstep(["diff", &whole, &served_run]).expect(0).stdout;
    assert!(printed.contains("rows: not available on the right"), "{printed}");
    let planted = run(&scratch.file("planted"), |manifest, rows| {
        served(manifest);
        rows[6].top_logits[1] = -3.25;
        rows[6].top2_margin = Some(3.0);
    });
    let answer = json_of(&["diff", &whole, &planted], 1);
    assert_eq!(answer["splits"]["logit"]["position"], 6);
    lockstep(["check", "positions", &served_run]).expect(4);
    let shown = lockstep(["inspect", &served_run, "--positions", "3"]).expect(0).stdout;
    assert!(
        shown.contains("row counts are not available") && shown.contains("rows ? next 12"),
        "{shown}"
    );
    assert_eq!(json_of(&["inspect", &served_run], 0)["limits"]["rows"], false);
    for verb in [vec!["audit"], vec!["report", "--out"]] {
        let out = scratch.path("page");
        let mut args = verb.clone();
        if verb.len() > 1 {
            args.push(&out);
        }
        args.push(&served_run);
        let ran = lockstep(&args);
        assert!(ran.code < 5 && !ran.stderr.contains("panicked"), "{ran:?}");
        assert!(!ran.stdout.contains("rows_before = position"), "{ran:?}");
    }
}

#[test]
fn a_run_that_cannot_be_fed_again_is_refused_in_one_line() {
    let scratch = Scratch::new();
    let (model, out) = (ledger(), scratch.path("replay"));
    let served_run = run(&scratch.file("served"), |manifest, _| served(manifest));
    lockstep([
        "replay",
        "forward",
        &served_run,
        "--model",
        &model,
        "--policy",
        "recorded",
        "--out",
        &out,
    ])
    .expect_refusal(4, &["does not count cache rows", "--policy dense"]);
    let texts = as_texts(&scratch.file("texts"), |_| {});
    lockstep(["replay", "forward", &texts, "--model", &model, "--policy", "dense", "--out", &out])
        .expect_refusal(4, &["only number texts"]);
    let processed = run(&scratch.file("processed"), |manifest, _| {
        manifest.limits.values = Values::ProcessedLogprobs;
    });
    lockstep(["check", "sampler", &processed]).expect_refusal(3, &["after temperature or filters"]);
}

#[test]
fn texts_are_compared_with_texts_and_with_ids_through_a_vocabulary() {
    let scratch = Scratch::new();
    let texts = as_texts(&scratch.file("texts"), |_| {});
    let twin = as_texts(&scratch.file("twin"), |_| {});
    let planted = as_texts(&scratch.file("planted"), |rows| {
        rows[7].next_token = Some(3);
        rows[8].token_id = 3;
    });
    let ids = run(&scratch.file("ids"), |manifest, _| served(manifest));
    let answer = json_of(&["diff", &texts, &twin], 0);
    assert_eq!(answer["available"]["tokens"], "compared");
    assert_eq!(json_of(&["diff", &texts, &planted], 1)["splits"]["token"]["position"], 7);
    lockstep(["diff", &texts, &ids])
        .expect_refusal(4, &["gives texts and no token ids", "--model"]);
    let model = ledger();
    let answer = json_of(&["diff", &ids, &texts, "--model", &model], 0);
    let limits = answer["limits"].to_string();
    assert!(limits.contains("held against the vocabulary by their bytes"), "{limits}");
    let answer = json_of(&["diff", &ids, &planted, "--model", &model], 1);
    assert_eq!(answer["splits"]["token"]["position"], 7);
    fs::remove_file(scratch.file("twin").join("token_texts.json")).expect("the file");
    lockstep(["diff", &texts, &twin]).expect_refusal(3, &["token_texts.json is missing"]);
}

#[test]
fn a_run_that_contradicts_itself_is_answered_and_refused() {
    let scratch = Scratch::new();
    let clean = run(&scratch.file("clean"), |_, _| {});
    for (name, change, words) in [
        ("twice", (|row| row.top_ids[1] = row.top_ids[0]) as fn(&mut StepRow), "stands twice"),
        ("order", |row| row.top_logits[1] = -0.125, "goes from -0.25 up to -0.125"),
        ("argmax", |row| row.argmax = 7, "argmax 7 (-3.5) is below id"),
        ("margin", |row| row.top2_margin = Some(1.0), "margin of the two largest is 1"),
    ] {
        let planted = run(&scratch.file(name), |_, rows| change(&mut rows[9]));
        let ran = lockstep(["diff", &clean, &planted, "--format", "json"]);
        let answer = ran.json();
        assert_eq!(answer["list_faults"][0]["position"], 9, "{answer:#}");
        ran.expect_refusal(3, &["position 9", words]);
    }
    lockstep(["diff", &clean, &clean]).expect(0);
}

#[test]
fn dumps_that_were_not_compared_are_named() {
    let scratch = Scratch::new();
    let [left, right] = ["left", "right"].map(|name| {
        let path = run(&scratch.file(name), |_, _| {});
        let logits = Tensor {
            name: "logits".to_owned(),
            dtype: DType::F32,
            shape: vec![1],
            data: vec![0; 4],
        };
        let id = DumpId::Step { sample_id: "a".to_owned(), position: 3 };
        let dump = Dump { id, metadata: Default::default(), tensors: vec![logits] };
        write_dump(&scratch.file(name), &dump).expect("a dump");
        path
    });
    let bare = run(&scratch.file("bare"), |_, _| {});
    let limits = json_of(&["diff", &left, &right], 0)["limits"].to_string();
    assert!(
        limits.contains("1 on the left, 1 on the right")
            && limits.contains("lockstep diff tensors"),
        "{limits}"
    );
    assert!(!json_of(&["diff", &left, &bare], 0)["limits"].to_string().contains("diff tensors"));
}

#[test]
fn a_greedy_token_that_is_not_the_largest_of_its_list_is_a_difference() {
    let scratch = Scratch::new();
    let greedy = |manifest: &mut Manifest| {
        manifest.set("sampling.temperature", 0.0, "flag");
        manifest.set("model.vocab_size", 1152, "config.json");
    };
    let clean = run(&scratch.file("clean"), |manifest, _| greedy(manifest));
    lockstep(["check", "sampler", &clean]).expect(0);
    for (name, id) in [("second", 7), ("unlisted", 900)] {
        let planted = run(&scratch.file(name), |manifest, rows| {
            greedy(manifest);
            rows[9].next_token = Some(id);
            rows[10].token_id = id;
        });
        let answer = json_of(&["check", "sampler", &planted], 1);
        assert_eq!(answer["findings"][0]["location"]["position"], 9, "{answer:#}");
        let answer = json_of(&["diff", &planted, &planted], 0);
        assert_eq!(answer["list_faults"][0]["kind"], "greedy");
    }
}

fn case(name: &str) -> String {
    text(&lockstep_testkit::data().join("cases/59").join(name))
}

#[test]
fn case_59_each_file_read_as_a_trace() {
    let scratch = Scratch::new();
    let ok = case("ok.parquet");
    let shown = json_of(&["inspect", &ok], 0);
    assert_eq!((&shown["steps"], &shown["limits"]["rows"]), (&json!(3), &json!(true)));
    assert!(shown["remarks"].to_string().contains("missing, not 0"), "{shown:#}");
    let without = case("no_rows_after.parquet");
    let shown = json_of(&["inspect", &without], 0);
    assert_eq!((&shown["steps"], &shown["limits"]["rows"]), (&json!(3), &json!(false)));
    let answer = json_of(&["diff", &ok, &without], 0);
    assert_eq!(answer["available"]["rows"], "not available on the right");
    let out = scratch.path("run");
    let imported = json_of(&["import", &ok, "--out", &out], 0);
    assert_eq!(imported["kind"], "parquet-trace");
    let answer = json_of(&["diff", &ok, &out], 0);
    assert_eq!(answer["counts"]["rows_compared"], 3);
    for (name, words) in [
        ("token_as_text.parquet", vec!["`token_id`", "Utf8", "whole numbers"]),
        ("no_footer.parquet", vec!["truncated or still being written"]),
        ("footer_len_lies.parquet", vec!["footer claims", "bytes"]),
        ("hollow.parquet", vec!["footer claims", "damaged"]),
    ] {
        for verb in [vec!["inspect"], vec!["diff", &ok]] {
            let path = case(name);
            lockstep(verb.iter().copied().chain([path.as_str()])).expect_refusal(3, &words);
        }
        let path = case(name);
        lockstep(["import", "parquet-trace", &path, "--out", &scratch.path(name)])
            .expect_refusal(3, &words);
    }
}

#[test]
fn the_step_table_of_a_run_is_a_trace_of_its_own() {
    let scratch = Scratch::new();
    let whole = run(&scratch.file("whole"), |_, _| {});
    let planted = run(&scratch.file("planted"), |_, rows| {
        rows[6].top_logits[1] = -3.25;
        rows[6].top2_margin = Some(3.0);
    });
    let table = |name: &str| text(&scratch.file(name).join("steps.parquet"));
    let answer = json_of(&["diff", &table("whole"), &whole], 0);
    assert_eq!(answer["counts"]["rows_compared"], ROWS);
    assert_eq!(json_of(&["diff", &table("whole"), &planted], 1)["splits"]["logit"]["position"], 6);
    let samples = text(&scratch.file("whole").join("samples.parquet"));
    lockstep(["diff", &samples, &whole]).expect_refusal(3, &["no table of step rows"]);
}
