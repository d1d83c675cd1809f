//! Round trip, cut and damaged files, configurations that differ.

use std::fs;

use super::*;
use crate::manifest::Producer;
use crate::{EventRow, FinishReason, Manifest, Phase, SampleRow, StepRow, TraceError};

/// Turns a manifest into another one.
type Change<'a> = &'a dyn Fn(&mut Manifest);

fn manifest() -> Manifest {
    let producer = Producer { version: "0.1.0".into(), ..Producer::default() };
    let mut manifest = Manifest::new(producer, "cpu");
    manifest.set("sampling.temperature", 0.6, "flag");
    manifest.set("stop.max_new_tokens", 64, "flag");
    manifest.set("run.batch", 1, "flag");
    manifest.set("run.samples", vec!["a"], "flag");
    manifest.set("dataset.sha256", "00", "file");
    manifest.model.weights_sha256.insert("model.safetensors".into(), "aa".into());
    manifest
}

fn identity<'a>(sample_id: &'a str, prompt_ids: &'a [u32]) -> RowIdentity<'a> {
    RowIdentity { sample_id, prompt_ids, effective_seed: Some(7) }
}

fn response(configuration: &Configuration, sample_id: &str) -> Response {
    let step = |position: u32| StepRow {
        sample_id: sample_id.to_owned(),
        position,
        phase: if position < 2 { Phase::Prompt } else { Phase::Decode },
        token_id: position + 10,
        next_token: (position > 0).then_some(position + 11),
        rows_before: position,
        rows_after: position + 1,
        rows_bucketed: None,
        compaction: None,
        rope_index: Some(position),
        argmax: 3,
        top_ids: vec![3, 1],
        // What JSON numbers cannot hold.
        top_logits: vec![f32::INFINITY, f32::from_bits(0x3f80_0001)],
        logsumexp: Some(f64::from_bits(0x3ff0_0000_0000_0001)),
        top2_margin: None,
        finite: false,
        logits_hash: Some([u64::MAX, 1]),
        rng_offset: Some(4),
        uniform: Some(0.25),
    };
    let event = EventRow {
        sample_id: sample_id.to_owned(),
        ordinal: 1,
        absolute_position: 3,
        round_start: None,
        rows_before: 3,
        rows_after: 2,
        protected: 1,
        candidates: 2,
        score_seconds: 0.5,
        reduce_seconds: 0.0,
        select_seconds: 0.0,
        gather_seconds: 0.0,
        dump: None,
    };
    let sample = SampleRow {
        prompt_ids: vec![10, 11],
        generated_ids: vec![12, 13],
        text: Some("a \"quoted\"\nline \u{1}".into()),
        finish: FinishReason::Eos,
        decode_seconds: 0.125,
        ..SampleRow::bare(sample_id)
    };
    Response {
        key: configuration.key(identity(sample_id, &[10, 11])),
        sample,
        steps: (0..3).map(step).collect(),
        events: vec![event],
    }
}

struct Fixture {
    dir: tempfile::TempDir,
    configuration: Configuration,
}

impl Fixture {
    fn new() -> Self {
        Self { dir: tempfile::tempdir().unwrap(), configuration: Configuration::of(&manifest()) }
    }

    fn path(&self) -> std::path::PathBuf {
        self.dir.path().join("dense.jsonl")
    }

    fn open(&self) -> Result<ResponseCache, TraceError> {
        ResponseCache::open(&self.path(), &self.configuration, Some("b1"))
    }

    /// A cache of these samples.
    fn filled(&self, ids: &[&str]) {
        let mut cache = self.open().unwrap();
        for id in ids {
            cache.append(&response(&self.configuration, id)).unwrap();
        }
    }
}

#[test]
fn a_response_comes_back_bit_for_bit_after_the_file_was_closed() {
    let fixture = Fixture::new();
    fixture.filled(&["a", "b"]);
    let mut cache = fixture.open().unwrap();
    assert_eq!((cache.len(), cache.remarks().len()), (2, 0));
    for id in ["b", "a"] {
        let expected = response(&fixture.configuration, id);
        let found = cache.get(&expected.key).unwrap().unwrap();
        assert_eq!(found, expected);
        let bits = |rows: &[StepRow]| rows[0].top_logits[1].to_bits();
        assert_eq!(bits(&found.steps), 0x3f80_0001);
    }
    assert_eq!(cache.get("none").unwrap(), None);
    // Appending goes on behind what was read.
    cache.append(&response(&fixture.configuration, "c")).unwrap();
    assert!(cache.append(&response(&fixture.configuration, "c")).is_err(), "one response a key");
    drop(cache);
    assert_eq!(fixture.open().unwrap().len(), 3);
}

#[test]
fn lines_are_json_with_the_published_sum_of_their_body() {
    let fixture = Fixture::new();
    fixture.filled(&["a"]);
    let text = fs::read_to_string(fixture.path()).unwrap();
    let lines: Vec<serde_json::Value> =
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines[0]["body"]["kind"], "header");
    assert_eq!(lines[0]["body"]["configuration"]["sampling.temperature"], "0.6");
    assert_eq!(lines[1]["body"]["sample"]["generated_ids"], serde_json::json!([12, 13]));
    for (line, json) in text.lines().zip(&lines) {
        let start = line.find("\"body\":").unwrap() + 7;
        let sum = crate::hash::sha256_hex(&line.as_bytes()[start..line.len() - 1]);
        assert_eq!(json["sum"], sum.as_str());
    }
}

#[test]
fn a_file_cut_at_any_byte_keeps_every_whole_response() {
    let fixture = Fixture::new();
    fixture.filled(&["a", "b"]);
    let whole = fs::read(fixture.path()).unwrap();
    let ends: Vec<usize> = whole
        .iter()
        .enumerate()
        .filter(|(_, byte)| **byte == b'\n')
        .map(|(at, _)| at + 1)
        .collect();
    for cut in (0..whole.len()).step_by(37).chain(ends.iter().flat_map(|end| [end - 1, *end])) {
        fs::write(fixture.path(), &whole[..cut]).unwrap();
        let mut cache = fixture.open().unwrap();
        let lines = ends.iter().filter(|end| **end <= cut).count();
        assert_eq!(cache.len(), lines.saturating_sub(1), "cut at {cut}");
        let clean = cut == 0 || ends.contains(&cut);
        assert_eq!(cache.remarks().is_empty(), clean, "cut at {cut}: {:?}", cache.remarks());
        // What was lost is computed again, and the file is as if nothing had happened.
        for id in ["a", "b"] {
            let again = response(&fixture.configuration, id);
            if !cache.has(&again.key) {
                cache.append(&again).unwrap();
            }
        }
        drop(cache);
        assert_eq!(fs::read(fixture.path()).unwrap(), whole, "cut at {cut}");
    }
}

#[test]
fn damage_before_the_end_is_an_error_with_its_place() {
    let fixture = Fixture::new();
    fixture.filled(&["a", "b"]);
    let whole = fs::read(fixture.path()).unwrap();
    let second = whole.iter().position(|byte| *byte == b'\n').unwrap() + 1;
    let mut damaged = whole.clone();
    damaged[second + 200] ^= 1;
    fs::write(fixture.path(), &damaged).unwrap();
    let error = fixture.open().unwrap_err();
    assert!(matches!(error, TraceError::Line { line: 3, .. }), "{error}");
    assert_eq!(fs::read(fixture.path()).unwrap(), damaged, "nothing was cut");
    // The same damage in the last line is a cut end.
    let last = whole.len() - 50;
    let mut damaged = whole.clone();
    damaged[last] ^= 1;
    fs::write(fixture.path(), &damaged).unwrap();
    assert_eq!(fixture.open().unwrap().len(), 1);
}

#[test]
fn a_key_that_comes_twice_is_refused_not_taken_last() {
    let fixture = Fixture::new();
    fixture.filled(&["a"]);
    let text = fs::read_to_string(fixture.path()).unwrap();
    let line = text.lines().nth(1).unwrap();
    fs::write(fixture.path(), format!("{text}{line}\n")).unwrap();
    let error = fixture.open().unwrap_err().to_string();
    assert!(error.contains(":3:") && error.contains("line 2"), "{error}");
}

#[test]
fn a_cache_of_another_configuration_is_refused_with_the_first_key() {
    let fixture = Fixture::new();
    fixture.filled(&["a"]);
    let refused = |change: &dyn Fn(&mut Manifest)| {
        let mut other = manifest();
        change(&mut other);
        let other = Configuration::of(&other);
        ResponseCache::open(&fixture.path(), &other, Some("b1"))
            .map(|_| ())
            .map_err(|error| error.to_string())
    };
    let cases: [(Change<'_>, &str); 6] = [
        (
            &|m| m.set("sampling.temperature", 0.7, "flag"),
            "`sampling.temperature` is 0.6 there and 0.7 here",
        ),
        (
            &|m| m.set("stop.rule", "answer", "flag"),
            "`stop.rule` is not set there and \"answer\" here",
        ),
        (
            &|m| {
                m.model.weights_sha256.insert("model.safetensors".into(), "bb".into());
            },
            "`model.weights_sha256`",
        ),
        (&|m| m.dtype = Some(crate::DType::Bf16), "`dtype`"),
        (&|m| m.device = "cuda: a GPU".into(), "`device`"),
        (&|m| m.producer.version = "0.2.0".into(), "`runtime.version`"),
    ];
    for (change, words) in cases {
        let error = refused(change).unwrap_err();
        assert!(error.contains(words), "{words}: {error}");
    }
    // Which rows are run, in which batch and from which file, is no part of it; nor are vector instructions.
    refused(&|m| {
        m.set("run.batch", 8, "flag");
        m.set("run.samples", vec!["b"], "flag");
        m.set("dataset.sha256", "11", "file");
        m.set("policy.stats", "elsewhere", "flag");
        m.kernel_options = vec!["isa=avx2".into()];
    })
    .unwrap();
}

#[test]
fn the_batch_counts_where_it_can_change_a_bit() {
    let configured = |device: &str, deterministic: bool, batch: u64| {
        let mut manifest = manifest();
        manifest.device = device.to_owned();
        if device != "cpu" {
            manifest.set("device.deterministic", deterministic, "flag");
        }
        manifest.set("run.batch", batch, "flag");
        Configuration::of(&manifest)
    };
    assert_eq!(configured("cpu", false, 1), configured("cpu", false, 4));
    assert_eq!(configured("cuda: x", true, 1), configured("cuda: x", true, 4));
    let difference =
        configured("cuda: x", false, 1).first_difference(&configured("cuda: x", false, 4));
    assert_eq!(difference.unwrap().key, "run.batch");
}

#[test]
fn each_part_of_a_row_moves_its_key() {
    let configuration = Configuration::of(&manifest());
    let base = configuration.key(identity("a", &[1, 2]));
    let seeded =
        |seed| configuration.key(RowIdentity { effective_seed: seed, ..identity("a", &[1, 2]) });
    let mut other = manifest();
    other.set("sampling.temperature", 0.7, "flag");
    let keys = [
        configuration.key(identity("b", &[1, 2])),
        configuration.key(identity("a", &[1, 3])),
        configuration.key(identity("a", &[1])),
        seeded(Some(8)),
        seeded(None),
        Configuration::of(&other).key(identity("a", &[1, 2])),
    ];
    let mut all: Vec<&String> = keys.iter().chain([&base]).collect();
    all.sort_unstable();
    all.dedup();
    assert_eq!(all.len(), 7);
    assert_eq!(base, configuration.key(identity("a", &[1, 2])));
    assert_eq!(base.len(), 64);
}

#[test]
fn two_writers_never_share_a_file() {
    let fixture = Fixture::new();
    let first = fixture.open().unwrap();
    let error = fixture.open().unwrap_err().to_string();
    assert!(error.contains("another process"), "{error}");
    drop(first);
    fixture.open().unwrap();
}

#[test]
fn another_build_of_the_same_version_is_said() {
    let fixture = Fixture::new();
    fixture.filled(&["a"]);
    let cache = ResponseCache::open(&fixture.path(), &fixture.configuration, Some("b2")).unwrap();
    assert!(cache.remarks()[0].contains("another build"), "{:?}", cache.remarks());
}
