//! The golden traces and the case files, judged by what their makers say of them.

use super::load;
use crate::Status;
use crate::manifest::ValueEncoding;

fn golden(path: &str) -> std::path::PathBuf {
    lockstep_testkit::golden().join("traces").join(path)
}

#[test]
fn golden_traces_load_with_their_schedule() {
    let dense = load(&golden("dense/ledger_05.fp32.jsonl.gz")).unwrap();
    assert_eq!((dense.steps.len, dense.steps.top_k), (353, 8));
    assert_eq!(dense.manifest.encoding, ValueEncoding::Digits9);
    assert!(dense.manifest.rows_exact && dense.events.is_empty());
    assert_eq!(dense.steps.logits_of(0)[1].to_bits(), 9.725_658_f32.to_bits());
    assert_eq!(dense.steps.rows_before, dense.steps.position);

    for (name, encoding) in
        [("bf16", ValueEncoding::SnappedBf16), ("fp16", ValueEncoding::SnappedF16)]
    {
        let rounded = load(&golden(&format!("dense/ledger_05.{name}.jsonl.gz"))).unwrap();
        assert_eq!(rounded.manifest.encoding, encoding);
    }

    let cut = load(&golden("compressed/ledger_05.b.jsonl.gz")).unwrap();
    let seen: Vec<_> = cut
        .events
        .iter()
        .map(|event| (event.ordinal, event.absolute_position, event.rows_before, event.rows_after))
        .collect();
    assert_eq!(seen, [(1, 311, 311, 279), (2, 343, 311, 279)]);
}

#[test]
fn every_golden_compressed_trace_shows_the_compactions_of_its_summary() {
    let text = std::fs::read_to_string(golden("compressed/summary.json")).unwrap();
    let summary: serde_json::Value = serde_json::from_str(&text).unwrap();
    let mut read = 0;
    for run in summary["runs"].as_array().unwrap() {
        let (sample, config) =
            (run["sample_id"].as_str().unwrap(), run["config"].as_str().unwrap());
        let path = golden(&format!("compressed/{sample}.{config}.jsonl.gz"));
        if !path.exists() {
            continue;
        }
        read += 1;
        let loaded = load(&path).unwrap();
        assert_eq!(loaded.steps.len as u64, run["fed_rows"].as_u64().unwrap(), "{sample}.{config}");
        let found: Vec<[u32; 4]> = loaded
            .events
            .iter()
            .map(|e| [e.ordinal, e.absolute_position, e.rows_before, e.rows_after])
            .collect();
        let number = |event: &serde_json::Value, key: &str| {
            u32::try_from(event[key].as_u64().unwrap()).unwrap()
        };
        let wanted: Vec<[u32; 4]> = run["events"]
            .as_array()
            .unwrap()
            .iter()
            .map(|e| {
                let n = |key| number(e, key);
                [
                    n("compaction") + 1,
                    n("absolute_position_N"),
                    n("rows_before_compaction"),
                    n("rows_after_compaction"),
                ]
            })
            .collect();
        assert_eq!(found, wanted, "{sample}.{config}");
        let generated: Vec<u32> = run["generated_ids"]
            .as_array()
            .unwrap()
            .iter()
            .map(|id| u32::try_from(id.as_u64().unwrap()).unwrap())
            .collect();
        let prompt = number(run, "prompt_len") as usize;
        let fed = &loaded.steps.token_id[prompt..];
        assert_eq!(fed, &generated[..fed.len()], "{sample}.{config}");
    }
    assert!(read >= 10, "{read} traces found");
}

/// Records, and whether the file is whole; `None` where it must be refused.
const CASES: [(&str, Option<(usize, bool)>); 13] = [
    ("04/trace_nan.jsonl", Some((4, true))),
    ("04/trace_null.jsonl", Some((4, true))),
    ("11/evict_after.jsonl", Some((8, true))),
    ("11/evict_before.jsonl", Some((8, true))),
    ("25/row0_padded.jsonl", Some((2, true))),
    ("36/last_wins.jsonl", Some((2, true))),
    ("43/trace.jsonl", Some((3, true))),
    ("57/middle_damaged.jsonl", None),
    ("57/no_final_newline.jsonl", Some((4, true))),
    ("57/nul_tail.jsonl", Some((3, false))),
    ("57/partial_tail.jsonl", Some((3, false))),
    ("57/partial_then_blank.jsonl", Some((3, false))),
    ("66/run_a.jsonl", None),
];

#[test]
fn the_case_files_read_as_their_answers_say() {
    let mut read = 0;
    for (name, wanted) in CASES {
        let path = lockstep_testkit::data().join("cases").join(name);
        if !path.exists() {
            continue;
        }
        read += 1;
        let found = load(&path)
            .ok()
            .map(|loaded| (loaded.steps.len, loaded.manifest.status == Status::Complete));
        assert_eq!(found, wanted, "{name}");
    }
    assert!(read >= 5, "{read} case files found");
}
