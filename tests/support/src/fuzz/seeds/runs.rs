//! Runs, dumps, caches of responses, keep dumps: by their writers.

use std::path::Path;

use lockstep_traces::manifest::Producer;
use lockstep_traces::responses::{Configuration, Response, ResponseCache};
use lockstep_traces::store::write_dump;
use lockstep_traces::{
    Dump, DumpId, EventRow, FinishReason, Manifest, Phase, RecordPlan, RunReader, RunWriter,
    SampleRow, StepRow, Tensor, TraceSink as _,
};

use super::small;
use crate::fuzz::{place, seal};

/// Keys of the seeds' responses.
pub(in crate::fuzz) const RESPONSE_KEYS: [&str; 2] = ["00", "11"];

fn a_manifest() -> Manifest {
    let producer = Producer { name: "seed".to_owned(), ..Producer::default() };
    let mut manifest = Manifest::new(producer, "cpu");
    manifest.set("policy.kv_budget", 96, "flag");
    manifest.remarks.push("made for a fuzzer".to_owned());
    manifest
}

pub(super) fn step(sample_id: &str, position: u32) -> StepRow {
    let odd = position % 2 == 1;
    StepRow {
        sample_id: sample_id.to_owned(),
        position,
        phase: if position < 1 { Phase::Prompt } else { Phase::Decode },
        token_id: 1000 + position,
        next_token: odd.then_some(2000 + position),
        rows_before: position,
        rows_after: position + 1,
        rows_bucketed: odd.then_some(16),
        compaction: odd.then_some(1),
        rope_index: odd.then_some(position),
        argmax: 3000 + position,
        top_ids: vec![position, 70_000 + position],
        top_logits: vec![position as f32 + 0.5, f32::NEG_INFINITY],
        logsumexp: odd.then_some(f64::from(position) / 3.0),
        top2_margin: odd.then_some(0.125),
        finite: !odd,
        logits_hash: odd.then_some([u64::MAX, 7]),
        rng_offset: odd.then_some(1 << 40),
        uniform: odd.then_some(0.75),
    }
}

fn event(sample_id: &str) -> EventRow {
    EventRow {
        sample_id: sample_id.to_owned(),
        ordinal: 1,
        absolute_position: 101,
        round_start: Some(91),
        rows_before: 128,
        rows_after: 112,
        protected: 12,
        candidates: 116,
        score_seconds: 0.25,
        reduce_seconds: 0.5,
        select_seconds: 1.0,
        gather_seconds: 2.0,
        dump: Some(format!("tensors/{sample_id}/compaction_0001.safetensors")),
    }
}

fn sample(sample_id: &str) -> SampleRow {
    SampleRow {
        sample_id: sample_id.to_owned(),
        prompt_ids: vec![5, 70_000],
        prompt_ids_sha256: "00".to_owned(),
        prompt_text_sha256: None,
        prompt_len: Some(2),
        base_seed: Some(u64::MAX),
        seed_index: None,
        effective_seed: Some(1),
        generated_ids: vec![],
        text: Some("a \u{1F600} <b>".to_owned()),
        gold: None,
        answer: Some(String::new()),
        answer_rule: Some("boxed".to_owned()),
        finish: FinishReason::CacheFull,
        prefill_seconds: 0.5,
        decode_seconds: 2.0,
    }
}

fn a_dump(sample_id: &str) -> Dump {
    Dump {
        id: DumpId::Compaction { sample_id: sample_id.to_owned(), ordinal: 1 },
        metadata: [("rows".to_owned(), "2".to_owned())].into(),
        tensors: vec![
            Tensor::from_f32("pre.k.layer00", vec![1, 2, 2], &[1.0, -0.0, f32::NAN, 4.0]),
            Tensor::from_i32("keep.layer00", vec![1, 2], &[0, 1]),
        ],
    }
}

/// A run of two samples: complete, or as a killed writer leaves it.
fn written(dir: &Path, finish: bool) {
    let plan = RecordPlan::default();
    let mut writer = RunWriter::create(dir, a_manifest(), plan).expect("a new run");
    for name in ["a", "b"] {
        for position in 0..3 {
            writer.step(step(name, position)).expect("a row");
        }
        writer.event(event(name)).expect("a compaction");
        writer.sample(sample(name)).expect("a sample");
    }
    write_dump(dir, &a_dump("a")).expect("a dump");
    if finish {
        writer.finish().expect("an end");
    } else {
        writer.flush().expect("a batch");
    }
}

/// Complete and incomplete.
pub(in crate::fuzz) fn run() -> Vec<Vec<u8>> {
    let one = |finish| {
        let home = place::folder();
        let dir = home.path().join("run");
        written(&dir, finish);
        place::pack_folder(&dir)
    };
    [true, false].map(one).into()
}

pub(in crate::fuzz) fn manifest() -> Vec<Vec<u8>> {
    let home = place::folder();
    let dir = home.path().join("run");
    written(&dir, true);
    let run = RunReader::open(&dir).expect("a run");
    vec![serde_json::to_vec_pretty(run.manifest()).expect("a manifest is JSON")]
}

pub(in crate::fuzz) fn dump() -> Vec<Vec<u8>> {
    let home = place::folder();
    let path = write_dump(home.path(), &a_dump("a")).expect("a dump");
    let bytes = std::fs::read(path).expect("the dump");
    let parts = Dump { metadata: [("parts".to_owned(), "2".to_owned())].into(), ..a_dump("b") };
    let path = write_dump(home.path(), &parts).expect("a dump that says it has parts");
    let first = std::fs::read(path).expect("its first part");
    let rest = small("cases/52", &["bf16.safetensors"]);
    vec![
        place::pack([("compaction_0001.safetensors", bytes.as_slice())]),
        place::pack([
            ("compaction_0001.safetensors", first.as_slice()),
            ("compaction_0001.part_1.safetensors", rest[0].as_slice()),
        ]),
    ]
}

/// The bodies of a cache with two responses.
#[must_use]
pub(in crate::fuzz) fn response_bodies() -> Vec<u8> {
    let home = place::folder();
    let path = home.path().join("cache.jsonl");
    let mut cache =
        ResponseCache::open(&path, &Configuration::default(), None).expect("a new cache");
    for (key, name) in RESPONSE_KEYS.into_iter().zip(["a", "b"]) {
        let steps = (0..2).map(|position| step(name, position)).collect();
        let response = Response {
            key: key.to_owned(),
            sample: sample(name),
            steps,
            events: vec![event(name)],
        };
        cache.append(&response).expect("a response");
    }
    drop(cache);
    seal::bodies(&std::fs::read(&path).expect("the cache"))
}

pub(in crate::fuzz) fn responses() -> Vec<Vec<u8>> {
    vec![response_bodies()]
}

/// The Arrow stream inside of a response.
pub(in crate::fuzz) fn response_rows() -> Vec<Vec<u8>> {
    let bodies = response_bodies();
    let line = bodies.split(|byte| *byte == b'\n').nth(1).expect("a response");
    let body: serde_json::Value = serde_json::from_slice(line).expect("JSON");
    vec![seal::from_base64(body["steps"].as_str().unwrap_or_default())]
}

/// Budget 8, window 2, two heads; bins of one layer.
const KEEP: &str = r#"{
  "compaction_index": 2,
  "absolute_position": 6,
  "cache_length_before": 6,
  "keep_count": 4,
  "prompt_end_position": 2,
  "planned_prompt_length": 2,
  "protect_prefill": true,
  "recent_window": 1,
  "kv_budget": 4,
  "count_prompt_tokens": true,
  "cache_positions": [0, 1, 2, 3, 4, 5],
  "cache_positions_per_head": [[0, 1, 2, 3, 4, 5], [0, 1, 2, 3, 4, 5]],
  "new_positions_by_head": [[0, 1, 3, 5], [0, 1, 2, 5]],
  "keep_indices_by_head": [[0, 1, 3, 5], [0, 1, 2, 5]]"#;

const BINS: &str = r#",
  "score_cache_shape": [6, 2, 1],
  "score_cache_dtype": "float32",
  "score_cache_files": ["/x/keep.layer00.bin"],
  "value_cache_files": ["/x/keep.v.layer00.bin"],
  "post_score_cache_shape": [4, 2, 1],
  "post_score_cache_files": ["/x/keep.post.layer00.bin"],
  "post_value_cache_files": ["/x/keep.post.v.layer00.bin"]"#;

const PROFILE: &str = r#",
  "profile": {"reserved_count": 3, "candidate_count": 3, "sampled_layers": 1, "sampled_heads": 2, "score_ms": 1.5, "combine_ms": 0.5, "select_ms": 0.25, "repack_ms": 2.0}"#;

pub(in crate::fuzz) fn keep_dump() -> Vec<Vec<u8>> {
    ["", PROFILE, BINS].iter().map(|more| format!("{KEEP}{more}\n}}\n").into_bytes()).collect()
}

pub(in crate::fuzz) fn keep_dump_tree() -> Vec<Vec<u8>> {
    let floats = |rows: &[[u8; 2]]| -> Vec<u8> {
        let values = rows.iter().flatten().map(|value| f32::from(*value));
        values.flat_map(f32::to_le_bytes).collect()
    };
    let before: Vec<[u8; 2]> = (0..6).map(|row| [row, 10 + row]).collect();
    let after: Vec<[u8; 2]> =
        [0, 1, 3, 5].into_iter().zip([0, 1, 2, 5]).map(|(a, b)| [a, 10 + b]).collect();
    let (before, after) = (floats(&before), floats(&after));
    let json = format!("{KEEP}{PROFILE}{BINS}\n}}\n");
    vec![
        place::pack([
            ("keep.json", json.as_bytes()),
            ("keep.layer00.bin", before.as_slice()),
            ("keep.v.layer00.bin", &before),
            ("keep.post.layer00.bin", &after),
            ("keep.post.v.layer00.bin", &after),
        ]),
        place::pack([("keep.json", format!("{KEEP}\n}}\n").as_bytes())]),
    ]
}
