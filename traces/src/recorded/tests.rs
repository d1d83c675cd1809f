//! Recordings written by hand, after the format's description.

use std::path::Path;

use super::*;
use crate::manifest::ValueEncoding;
use crate::store::RunReader;
use crate::{DType, Phase, StepQuery, TraceError, UNKNOWN_TOKEN};

const HEADER: &str = r#"{"lockstep_trace":"1.0","producer":{"name":"transformers","version":"5.23.0"},"recorder":"lockstep_trace 0.1.0","created_at":"2026-11-30T20:38:23Z","model":{"path":null,"architecture":"Qwen3ForCausalLM","config_sha256":null,"weights_sha256":{},"tokenizer_sha256":null},"dtype":"bf16","cache_dtype":"bf16","device":"cpu","top_k":2,"hash_seeds":["6a09e667f3bcc908","bb67ae8584caa73b"],"settings":{"model.rope_theta":{"value":10000.0,"source":"transformers config"}},"remarks":[]}"#;
const STEPS: [&str; 4] = [
    r#"{"t":"step","sample":"a b","position":0,"phase":"prompt","token":5,"rows":[0,1],"rope":0,"next":null}"#,
    r#"{"t":"step","sample":"a b","position":1,"phase":"prompt","token":6,"rows":[1,2],"rope":1,"argmax":7,"top_ids":[7,3],"top_logits":[9.30293560,-1.17549435e-38],"logsumexp":12.101924572510162,"finite":true,"hash":["7613b0d125c973dc","31ba086d74b39caa"],"next":7}"#,
    r#"{"t":"setting","key":"sampling.temperature","value":0.0,"source":"generate"}"#,
    r#"{"t":"step","sample":"a b","position":2,"phase":"decode","token":7,"rows":[2,2],"rope":null,"argmax":1,"top_ids":[1,0],"top_logits":["Infinity","NaN"],"logsumexp":null,"finite":false,"hash":null,"next":2}"#,
];
// sha256 of the bytes 05 00 00 00 06 00 00 00, by sha256sum.
const SAMPLE: &str = r#"{"t":"sample","sample":"a b","prompt_ids":[5,6],"prompt_ids_sha256":"HASH","generated_ids":[7,2],"text":null,"finish":"eos","prefill_seconds":0.5,"decode_seconds":0.25}"#;
const HASH: &str = "f1833c11f88585608c320b53224d2642b97af5fdb9cae59c13fcab53f37c4b06";
const END: &str = r#"{"t":"end","steps":3,"samples":1}"#;

fn text() -> String {
    let sample = SAMPLE.replace("HASH", HASH);
    [HEADER].iter().chain(&STEPS).chain(&[sample.as_str(), END]).map(|l| format!("{l}\n")).collect()
}

fn import(dir: &Path, text: &str) -> Result<Vec<String>, TraceError> {
    let from = dir.join("from");
    std::fs::create_dir_all(&from).unwrap();
    std::fs::write(from.join("trace.jsonl"), text).unwrap();
    let out = dir.join("run");
    let _ = std::fs::remove_dir_all(&out);
    import_recorded(&from, &out)
}

fn refusal(text: &str) -> String {
    let dir = tempfile::tempdir().unwrap();
    import(dir.path(), text).unwrap_err().to_string()
}

#[test]
fn every_value_of_a_recording_stands_in_the_run() {
    let dir = tempfile::tempdir().unwrap();
    let remarks = import(dir.path(), &text()).unwrap();
    assert_eq!(remarks.len(), 1, "{remarks:?}");
    assert!(remarks[0].starts_with("1 rows have no logits"), "{remarks:?}");
    let run = RunReader::open(&dir.path().join("run")).unwrap();
    assert!(run.is_complete());
    let manifest = run.manifest();
    assert_eq!(
        (manifest.producer.name.as_str(), manifest.dtype, manifest.encoding),
        ("transformers", Some(DType::Bf16), ValueEncoding::Digits9)
    );
    assert_eq!(manifest.logits_hash_seeds, Some(crate::hash::DEFAULT_SEEDS));
    assert_eq!(manifest.get("model.rope_theta"), Some(&10000.0.into()));
    assert_eq!(manifest.config["sampling.temperature"].source, "generate");
    assert_eq!(manifest.limits.cannot, remarks);
    let steps = run.steps(&StepQuery::default()).unwrap();
    let rows: Vec<_> = (0..3).map(|row| steps.row(row).unwrap()).collect();
    assert_eq!(
        (rows[0].argmax, rows[0].top_ids.len(), rows[0].next_token),
        (UNKNOWN_TOKEN, 0, None)
    );
    assert_eq!((rows[0].phase, rows[2].phase), (Phase::Prompt, Phase::Decode));
    let bits: Vec<u32> = rows[1].top_logits.iter().map(|value| value.to_bits()).collect();
    assert_eq!(bits, [0x4114_d8d3, 0x8080_0000]);
    assert_eq!(rows[1].logsumexp.unwrap().to_bits(), 12.101_924_572_510_162_f64.to_bits());
    assert_eq!(rows[1].logits_hash, Some([0x7613_b0d1_25c9_73dc, 0x31ba_086d_74b3_9caa]));
    assert_eq!(
        (rows[1].rope_index, rows[1].next_token, rows[1].compaction),
        (Some(1), Some(7), None)
    );
    assert!(rows[2].top_logits[0].is_infinite() && rows[2].top_logits[1].is_nan());
    assert_eq!((rows[2].finite, rows[2].top2_margin, rows[2].compaction), (false, None, Some(1)));
    let events = run.events(None).unwrap();
    assert_eq!(
        (events.len(), events[0].absolute_position, events[0].rows_before, events[0].rows_after),
        (1, 3, 3, 2)
    );
    let samples = run.samples().unwrap();
    assert_eq!((samples[0].prompt_len, &samples[0].generated_ids[..]), (Some(2), &[7, 2][..]));
    let (loaded, again) = load_recorded(&dir.path().join("from")).unwrap();
    assert_eq!((loaded.steps.len, again), (3, samples));
    assert!(is_recorded(&dir.path().join("from")) && !is_recorded(&dir.path().join("run")));
}

#[test]
fn a_recording_that_was_stopped_is_incomplete_and_says_where() {
    let whole = text();
    let end = whole.find(END).unwrap();
    for (length, says) in [
        (end, "no `end` line"),
        (end - 9, "last line (6) incomplete"),
        (whole.find(STEPS[3]).unwrap() + 40, "last line (5) incomplete"),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let remarks = import(dir.path(), &whole[..length]).unwrap();
        assert!(remarks.iter().any(|remark| remark.contains(says)), "{remarks:?}");
        assert!(!RunReader::open(&dir.path().join("run")).unwrap().is_complete());
    }
}

#[test]
fn damage_and_contradictions_are_refused_with_their_line() {
    let whole = text();
    for (from, to, parts) in [
        (STEPS[0], &STEPS[0][..60], [":2:", "is cut and is not the last"]),
        ("\"steps\":3", "\"steps\":4", [":7:", "counts 4 steps"]),
        (END, "{\"t\":\"end\",\"steps\":3,\"samples\":1}\n{}", [":8:", "after the `end` line"]),
        ("\"argmax\":7", "\"argmax\":3", [":3:", "argmax is 3"]),
        ("\"rows\":[1,2]", "\"rows\":[1,3]", [":3:", "ends with 3"]),
        ("9.30293560", "1e39", [":3:", "no f32 value"]),
        ("7613b0d125c973dc", "7613b0d125c973d", [":3:", "16 hex digits"]),
        ("\"prompt_ids\":[5,6]", "\"prompt_ids\":[5,7]", [":6:", "hash"]),
        ("\"Infinity\"", "\"infinite\"", [":5:", "not valid JSON"]),
        ("\"lockstep_trace\":\"1.0\"", "\"lockstep_trace\":\"2.0\"", ["2.0", "cannot be read"]),
        ("6a09e667f3bcc908", "x", [":1:", "16 hex digits"]),
    ] {
        assert!(whole.contains(from), "{from}");
        let said = refusal(&whole.replacen(from, to, 1));
        for part in parts {
            assert!(said.contains(part), "{to}: {said}");
        }
    }
    assert!(refusal("").contains("empty"));
}

#[test]
fn dumps_are_checked_and_copied() {
    let dir = tempfile::tempdir().unwrap();
    import(dir.path(), &text()).unwrap();
    let folder = dir.path().join("from/tensors/a%20b");
    std::fs::create_dir_all(&folder).unwrap();
    let path = folder.join("step_0000001.safetensors");
    let tensor = crate::Tensor::from_f32("cache.k.layer00", vec![1, 2, 1], &[1.0, 2.0]);
    crate::store::write_safetensors(&path, &std::collections::BTreeMap::new(), &[tensor]).unwrap();
    import(dir.path(), &text()).unwrap();
    let run = RunReader::open(&dir.path().join("run")).unwrap();
    let ids = run.dumps().unwrap();
    let dump = run.dump(&ids[0]).unwrap().unwrap();
    assert_eq!(dump.get("cache.k.layer00").unwrap().to_f64().unwrap(), [1.0, 2.0]);
    let whole = std::fs::read(&path).unwrap();
    std::fs::write(&path, &whole[..whole.len() - 3]).unwrap();
    assert!(matches!(import(dir.path(), &text()), Err(TraceError::Tensor { .. })));
}
