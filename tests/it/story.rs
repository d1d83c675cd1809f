//! One investigation as it goes wrong: each group of artifacts carries one fault, and a clean twin without it. The audits
//! find each fault and nothing else.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::Path;

use lockstep_traces::manifest::Producer;
use lockstep_traces::store::RunWriter;
use lockstep_traces::{Manifest, Phase, RecordPlan, SampleRow, StepRow, TraceSink as _};
use serde_json::{Value, json};

use crate::kit::{Scratch, lockstep, text};

/// Audits that flag or void what these paths hold; the exit status agrees.
#[track_caller]
fn found(paths: &[String]) -> BTreeSet<u64> {
    let args = ["audit", "--format", "json"].into_iter().chain(paths.iter().map(String::as_str));
    let ran = lockstep(args);
    let answer = ran.json();
    let bad = |line: &&Value| matches!(line["verdict"].as_str(), Some("void" | "flag"));
    let lines = answer["audits"].as_array().expect("audits");
    let numbers: BTreeSet<u64> =
        lines.iter().filter(bad).filter_map(|line| line["number"].as_u64()).collect();
    assert_eq!(ran.code, i32::from(!numbers.is_empty()), "{answer:#}");
    numbers
}

/// A group of artifacts with its fault planted, or without it.
type Group = fn(&Scratch, bool) -> Vec<String>;

#[test]
fn every_fault_of_the_story_is_found_and_nothing_else() {
    let groups: [(u64, Group); 9] = [
        (1, replay_of_another_run),
        (3, bundles),
        (11, prompts),
        (16, seeds),
        (25, counted_twice),
        (31, boundary),
        (36, tie),
        (49, partial),
        (52, echo),
    ];
    let mut wrong = Vec::new();
    for (audit, group) in groups {
        for planted in [true, false] {
            let scratch = Scratch::new();
            let seen = found(&group(&scratch, planted));
            let wanted: BTreeSet<u64> = planted.then_some(audit).into_iter().collect();
            if seen != wanted {
                wrong.push(format!("audit {audit}, planted {planted}: {seen:?}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn a_gold_answer_beside_a_loop_without_a_box_is_an_echo_and_degenerate() {
    let scratch = Scratch::new();
    let loops = format!("There are 4 cases to look at. {}", "Let me. ".repeat(400));
    let row = first_schema("toy_2", "588", &loops);
    assert_eq!(found(&[write(&scratch, "rows.jsonl", &row)]), BTreeSet::from([52, 53]));
}

#[test]
fn outputs_of_another_model_are_found_by_their_times() {
    let case = lockstep_testkit::data().join("cases/66");
    let paths = ["run_a.jsonl", "run_b.jsonl"].map(|name| text(&case.join(name)));
    assert_eq!(found(&paths), BTreeSet::from([64]));
    let ran = lockstep(["audit", &paths[0], &paths[1]]).expect(1);
    assert!(
        ran.stdout.contains("3 of 4 rows have text and times of the other side"),
        "{}",
        ran.stdout
    );
    assert!(ran.stdout.contains("at q0, q1, q2"), "{}", ran.stdout);
    // Equal text with other times is a hint and no more.
    let scratch = Scratch::new();
    let later =
        std::fs::read_to_string(&paths[1]).expect("the case").replace("\"t\": 100", "\"t\": 900");
    assert_eq!(found(&[paths[0].clone(), write(&scratch, "later.jsonl", &later)]), BTreeSet::new());
}

fn write(scratch: &Scratch, name: &str, content: impl AsRef<[u8]>) -> String {
    std::fs::write(scratch.file(name), content).expect("a scratch file");
    scratch.path(name)
}

/// A run of ours with three rows a sample; seeds are those in force.
fn record(out: &Path, producer: &str, parent: Option<&str>, samples: &[(&str, Option<u64>)]) {
    let named = Producer { name: producer.to_owned(), ..Producer::default() };
    let mut manifest = Manifest::new(named, "cpu");
    manifest.parent = parent.map(str::to_owned);
    manifest.set("policy.kind", "dense", "flag");
    let sampled = samples.iter().any(|(_, seed)| seed.is_some());
    manifest.set("sampling.sampler", if sampled { "torch-cuda" } else { "argmax" }, "flag");
    manifest.set("sampling.temperature", if sampled { 0.6 } else { 0.0 }, "flag");
    let plan = RecordPlan { top_k: 2, ..RecordPlan::default() };
    let mut writer = RunWriter::create(out, manifest, plan).expect("a run");
    for (first, (id, seed)) in (1_u32..).zip(samples) {
        for position in 0..3 {
            writer.step(step(id, first * 100, position)).expect("a row");
        }
        let prompt_ids = vec![first * 100, first * 100 + 1];
        let sample = SampleRow {
            prompt_ids_sha256: lockstep_traces::hash::ids_sha256(&prompt_ids),
            prompt_ids,
            prompt_len: Some(2),
            effective_seed: *seed,
            generated_ids: vec![first * 100 + 2, first * 100 + 3],
            ..SampleRow::bare(*id)
        };
        writer.sample(sample).expect("a sample");
    }
    writer.finish().expect("a finished run");
}

/// Feeds `first + position` and chooses the next of that row.
fn step(id: &str, first: u32, position: u32) -> StepRow {
    let next = first + position + 1;
    StepRow {
        sample_id: id.to_owned(),
        position,
        phase: if position < 2 { Phase::Prompt } else { Phase::Decode },
        token_id: first + position,
        next_token: (position > 0).then_some(next),
        rows_before: position,
        rows_after: position + 1,
        rows_bucketed: None,
        compaction: None,
        rope_index: Some(position),
        argmax: next,
        top_ids: vec![next, 7],
        top_logits: vec![20.0, 12.0],
        logsumexp: None,
        top2_margin: Some(8.0),
        finite: true,
        logits_hash: None,
        rng_offset: None,
        uniform: None,
    }
}

/// 1: the replay is of the run that stood here before.
fn replay_of_another_run(scratch: &Scratch, planted: bool) -> Vec<String> {
    let (run, replay) = (scratch.file("run"), scratch.file("replay"));
    record(&run, "lockstep-runtime", None, &[("a", None)]);
    let identity =
        lockstep_traces::hash::sha256_file(run.join("manifest.json")).expect("a manifest");
    let parent = if planted { "5e".repeat(32) } else { identity };
    record(&replay, "lockstep-reference", Some(&parent), &[("a", None)]);
    vec![text(&run), text(&replay)]
}

/// 3: one engine plan under two ladders of profiles.
fn bundles(scratch: &Scratch, planted: bool) -> Vec<String> {
    let ladder = |rows: &[u32]| {
        json!({"dynamic_kv_cache": true, "dynamic_kv_profile_rows": rows}).to_string()
    };
    let dense = ladder(&[32, 64, 128, 256]);
    let tri = if planted { ladder(&[96, 192, 256]) } else { dense.clone() };
    [("dense.trtfb", dense), ("tri.trtfb", tri)]
        .map(|(name, config)| {
            write(scratch, name, bundle(&[("engine_plan", "plan"), ("config.json", &config)]))
        })
        .to_vec()
}

fn bundle(sections: &[(&str, &str)]) -> Vec<u8> {
    let mut offset = 0;
    let mut table = serde_json::Map::new();
    for (name, content) in sections {
        table.insert((*name).to_owned(), json!({"offset": offset, "size": content.len()}));
        offset += content.len();
    }
    let header = json!({
        "model_id": "toy", "precision": "fp16", "trt_version": "10.1", "gpu_name": "one GPU", "max_cache_length": 256,
        "created_at": "2026-04-17T08:00:00Z", "sections": table
    });
    let header = header.to_string();
    let mut bytes = b"TRTFB\0\x01\0".to_vec();
    bytes.extend((header.len() as u64).to_le_bytes());
    bytes.extend(header.bytes());
    bytes.extend(sections.iter().flat_map(|(_, content)| content.bytes()));
    bytes
}

fn dataset_row(id: &str, answer: &str, prompt: &str) -> String {
    json!({"sample_id": id, "answer": answer, "prompt": prompt}).to_string() + "\n"
}

fn bench_row(id: &str, gold: &str, body: &str) -> String {
    let row = json!({
        "sample_id": id, "gold_answer": gold, "pred_answer": gold, "generated_tokens": 400, "prefill_ms": 30.5,
        "decode_ms": 5000.0, "wall_ms": 5031.0, "tokens_per_sec": 80.0, "text": body
    });
    row.to_string() + "\n"
}

fn first_schema(id: &str, answer: &str, body: &str) -> String {
    let row = json!({
        "sample_id": id, "answer": answer, "generated_tokens": 400, "prefill_ms": 30.5, "decode_ms": 5000.0,
        "wall_ms": 5031.0, "tokens_per_sec": 80.0, "text": body
    });
    row.to_string() + "\n"
}

/// 11: a sample taken out of its file was given another prompt.
fn prompts(scratch: &Scratch, planted: bool) -> Vec<String> {
    let usual = "How many triples?\n\nReason step by step and box the final answer.";
    let other = if planted { "You are given a math problem. How many triples?" } else { usual };
    let side = |name: &str, id: &str, prompt: &str| {
        let rows =
            write(scratch, &format!("{name}.rows.jsonl"), bench_row(id, "62", "so \\boxed{62}"));
        let data = write(scratch, &format!("{name}.data.jsonl"), dataset_row(id, "62", prompt));
        format!("{rows}+{data}")
    };
    vec![side("full", "toy_9", usual), side("alone", "repro_9", other)]
}

/// 16: the harness gives every row the base seed.
fn seeds(scratch: &Scratch, planted: bool) -> Vec<String> {
    let run = scratch.file("run");
    let second = if planted { 1234 } else { 1235 };
    record(&run, "lockstep-runtime", None, &[("a", Some(1234)), ("b", Some(second))]);
    vec![text(&run)]
}

/// Rows of the engine: counts rounded up to 32; token 100 + position, the next one on top.
fn native(rows: u32) -> String {
    (0..rows).fold(String::new(), |mut out, position| {
        let up = |rows: u32| rows.max(1).div_ceil(32) * 32;
        let (next, before, after) = (101 + position, up(position), up(position + 1));
        let _ = writeln!(
            out,
            "{{\"position_before\":{position},\"token_id\":{},\"decoder_idx\":0,\"rows_before\":{before},\"rows_after\":{after},\"argmax_token\":{next},\"argmax_logit\":21.5,\"top_ids\":[{next},7],\"top_logits\":[21.5,18.25]}}",
            100 + position
        );
        out
    })
}

/// One row of the replay harness.
fn replayed(position: u32, before: u32, after: u32, top: f64, believed: Option<u32>) -> String {
    let next = 101 + position;
    let mut row = json!({
        "position_before": position, "token_id": 100 + position, "rows_before": before, "rows_after": after,
        "argmax_token": next, "argmax_logit": top, "top_ids": [next, 7], "top_logits": [top, 18.25]
    });
    if let Some(at) = believed {
        let state = |at: u32, rows: u32| json!({"absolute_position": at, "cache_positions_len": rows, "prefix_length": 6});
        row["comp_before"] = state(at, before);
        row["comp_after"] = state(at + 1, after);
    }
    row.to_string() + "\n"
}

/// 25: the replay prefills the prompt and then feeds every row of a trace that holds it already.
fn counted_twice(scratch: &Scratch, planted: bool) -> Vec<String> {
    let shift = if planted { 157 } else { 0 };
    let replay: String = (0..70)
        .map(|position| replayed(position, position + shift, position + shift + 1, 21.5, None))
        .collect();
    vec![write(scratch, "native.jsonl", native(70)), write(scratch, "replay.jsonl", replay)]
}

/// 31: the compressing replay never reaches its trigger within the window that is compared.
fn boundary(scratch: &Scratch, planted: bool) -> Vec<String> {
    let dense: String =
        (0..60).map(|position| replayed(position, position, position + 1, 21.5, None)).collect();
    let mut held = 0;
    let tri: String = (0..60)
        .map(|position| {
            let before = held;
            held = if !planted && before + 1 == 40 { 32 } else { before + 1 };
            let top = if !planted && position > 39 { 21.0 } else { 21.5 };
            replayed(position, before, held, top, Some(position))
        })
        .collect();
    vec![write(scratch, "dense.jsonl", dense), write(scratch, "tri.jsonl", tri)]
}

/// 36: the sides choose otherwise between two logits that are equal on both; in the twin they are apart and both choose alike.
fn tie(scratch: &Scratch, planted: bool) -> Vec<String> {
    let tied = |chosen: u32| {
        let second = if planted { "21.5" } else { "18.5" };
        let mut lines: Vec<String> = native(12).lines().map(str::to_owned).collect();
        lines[7] = lines[7]
            .replace("\"argmax_token\":108", "\"argmax_token\":1477")
            .replace("[108,7]", "[1477,7942]")
            .replace("[21.5,18.25]", &format!("[21.5,{second}]"));
        lines[8] = lines[8].replace("\"token_id\":108", &format!("\"token_id\":{chosen}"));
        lines.join("\n")
    };
    let other = if planted { 7942 } else { 1477 };
    vec![write(scratch, "native.jsonl", tied(1477)), write(scratch, "replay.jsonl", tied(other))]
}

/// 49: nine of thirty rows.
fn partial(scratch: &Scratch, planted: bool) -> Vec<String> {
    let count = if planted { 9 } else { 30 };
    let body = |id: u32| format!("so \\boxed{{{id}}}");
    let rows: String =
        (0..count).map(|id| bench_row(&format!("toy_{id}"), &id.to_string(), &body(id))).collect();
    let data: String = (0..30)
        .map(|id| dataset_row(&format!("toy_{id}"), &id.to_string(), &format!("problem {id}")))
        .collect();
    vec![write(scratch, "rows.jsonl", rows), write(scratch, "data.jsonl", data)]
}

/// 52: rows of the schema that copies the gold answer, beside a text that boxes another number.
fn echo(scratch: &Scratch, planted: bool) -> Vec<String> {
    let body = if planted { "so \\boxed{4}" } else { "so \\boxed{588}" };
    vec![write(scratch, "rows.jsonl", first_schema("toy_2", "588", body))]
}
