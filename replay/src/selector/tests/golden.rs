//! Upstream's own caches of a real model: `golden/traces/compressed`.

use std::path::{Path, PathBuf};

use lockstep_reference::select::{TieBreak, best, widen};
use lockstep_testkit::golden;
use lockstep_traces::manifest::Producer;
use lockstep_traces::store::{DumpFile, RunReader, RunWriter};
use lockstep_traces::{Dump, DumpId, EventRow, Manifest, RecordPlan, Tensor, TraceSink, Verdict};

use crate::selector::{SelectorDetail, SelectorOptions, check};

const PROMPT: usize = 52;

fn i32s(file: &DumpFile, name: &str) -> Vec<i32> {
    let view = file.get(name).unwrap();
    widen(view.dtype, view.bytes).into_iter().map(|value| value as i32).collect()
}

/// Positions before the compaction with this 0-based number: those after the one before, then the new rows.
fn positions(keeps: &DumpFile, number: usize, n: i32, rows: usize) -> Vec<i32> {
    let rows = i32::try_from(rows).unwrap();
    if number == 0 {
        return (0..rows).chain(0..rows).collect();
    }
    let after = i32s(keeps, &format!("c{:03}.positions_after", number - 1));
    let grown = |held: &[i32]| {
        let new = rows - i32::try_from(held.len()).unwrap();
        held.iter().copied().chain(n - new..n).collect::<Vec<i32>>()
    };
    after.chunks_exact(after.len() / 2).flat_map(grown).collect()
}

fn snapshot(number: usize) -> PathBuf {
    golden().join(format!("traces/compressed/ledger_01.k.kv_c{number:03}.safetensors"))
}

fn dump(keeps: &DumpFile, number: usize, n: usize) -> Dump {
    let file = DumpFile::open(&snapshot(number)).unwrap();
    let keys = file.get("k_before").unwrap();
    let [layers, heads, rows, width] = keys.shape[..] else { panic!("{:?}", keys.shape) };
    let keep = i32s(&file, "keep");
    let scores = file.get("aggregated_scores_decode_rows").unwrap();
    let before = positions(keeps, number, i32::try_from(n).unwrap(), rows);
    let mut tensors = vec![
        Tensor::from_i32("positions.pre", vec![heads, rows], &before),
        Tensor::from_i32("keep", vec![heads, keep.len() / heads], &keep),
        Tensor {
            name: "scores.final".to_owned(),
            dtype: scores.dtype,
            shape: scores.shape.clone(),
            data: scores.bytes.to_vec(),
        },
    ];
    for (layer, bytes) in keys.bytes.chunks_exact(keys.bytes.len() / layers).enumerate() {
        let name = format!("pre.k.layer{layer:02}");
        tensors.push(Tensor {
            name,
            dtype: keys.dtype,
            shape: vec![heads, rows, width],
            data: bytes.to_vec(),
        });
    }
    let ordinal = u32::try_from(number + 1).unwrap();
    let metadata = [
        ("absolute_position", n.to_string()),
        ("rows_before", rows.to_string()),
        ("prompt_len", PROMPT.to_string()),
        ("score_row_offset", PROMPT.to_string()),
    ];
    Dump {
        id: DumpId::Compaction { sample_id: "ledger_01".to_owned(), ordinal },
        metadata: metadata.into_iter().map(|(key, value)| (key.to_owned(), value)).collect(),
        tensors,
    }
}

fn event(ordinal: u32, n: u32) -> EventRow {
    EventRow {
        sample_id: "ledger_01".to_owned(),
        ordinal,
        absolute_position: n,
        round_start: None,
        rows_before: 128,
        rows_after: 112,
        protected: 52,
        candidates: 76,
        score_seconds: 0.0,
        reduce_seconds: 0.0,
        select_seconds: 0.0,
        gather_seconds: 0.0,
        dump: None,
    }
}

/// Writes the compactions whose caches are there; returns how many.
fn write(run: &Path) -> u64 {
    let mut manifest = Manifest::new(Producer::default(), "upstream");
    manifest.set("policy.rule_set", "hf", "imported");
    manifest.set("policy.kv_budget", 112, "imported");
    manifest.set("policy.divide_length", 16, "imported");
    manifest.set("model.num_attention_heads", 8, "imported");
    let keeps =
        DumpFile::open(&golden().join("traces/compressed/ledger_01.k.keep.safetensors")).unwrap();
    let mut writer = RunWriter::create(run, manifest, RecordPlan::default()).unwrap();
    for (ordinal, n) in [(1, 128), (2, 144), (3, 160)] {
        writer.event(event(ordinal, n)).unwrap();
    }
    let mut dumped = 0;
    for (number, n) in [(0, 128), (1, 144), (2, 160)] {
        if snapshot(number).is_file() {
            writer.dump(dump(&keeps, number, n)).unwrap();
            dumped += 1;
        }
    }
    writer.finish().unwrap();
    dumped
}

#[test]
fn upstreams_selection_on_a_real_model_is_reproduced_from_its_cache() {
    let dir = tempfile::tempdir().unwrap();
    let run = dir.path().join("run");
    let dumped = write(&run);
    assert!(dumped >= 1, "no cache of the golden run is there");
    let options = SelectorOptions {
        stats: Some(golden().join("traces/stats/ledger_stats.safetensors")),
        ..SelectorOptions::default()
    };
    let report = check(&RunReader::open(&run).unwrap(), &options).unwrap();
    assert_eq!(report.verdict, Verdict::WithinNoise, "{report:#?}");
    let detail: SelectorDetail = serde_json::from_value(report.detail).unwrap();
    assert_eq!((detail.events, detail.heads, detail.exact), (dumped, 2 * dumped, 2 * dumped));
    for event in &detail.by_event {
        let stage = &event.stages[0];
        assert_eq!((stage.stage.as_str(), stage.compared), ("scores.final", 152));
        assert!(stage.error < 2e-4, "the page gives 1.9e-4 between f32 and f64: {stage:?}");
    }
}

/// Every stored score row, put through the rule's choice, gives the stored keep-set in the stored order.
#[test]
fn stored_score_rows_give_the_stored_keep_sets() {
    let folder = golden().join("traces/compressed");
    let mut rows_checked = 0;
    for entry in std::fs::read_dir(&folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        let Some(stem) = name.strip_suffix(".scores.safetensors") else { continue };
        let scores = DumpFile::open(&path).unwrap();
        let keeps = DumpFile::open(&folder.join(format!("{stem}.keep.safetensors"))).unwrap();
        let union = stem.ends_with(".lib");
        for event in scores.names() {
            let view = scores.get(event).unwrap();
            let keep = i32s(&keeps, &format!("{event}.keep"));
            let cols = *view.shape.last().unwrap();
            let values = widen(view.dtype, view.bytes);
            let sets = values.len() / cols;
            for (row, keep) in values.chunks_exact(cols).zip(keep.chunks_exact(keep.len() / sets)) {
                // Kept rows in front of the scored ones are the prompt.
                let first = keep.iter().zip(0..).take_while(|(row, at)| **row == *at).count();
                let prompt = if stem.ends_with(".u") { 0 } else { prompt_of(stem).min(first) };
                let mut chosen = best(row, keep.len() - prompt, TieBreak::LowerRow);
                if union {
                    chosen.sort_unstable();
                }
                let ours: Vec<i32> = (0..prompt)
                    .chain(chosen.into_iter().map(|row| row + prompt))
                    .map(|row| i32::try_from(row).unwrap())
                    .collect();
                assert_eq!(ours, keep, "{stem} {event}");
                rows_checked += 1;
            }
        }
    }
    assert!(rows_checked >= 40, "only {rows_checked} score rows found");
}

fn prompt_of(stem: &str) -> usize {
    let id = stem.split('.').next().unwrap();
    lockstep_testkit::task(id).prompt_ids.len()
}
