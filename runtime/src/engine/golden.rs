//! The engine against runs of Hugging Face transformers (golden folder) and against tiny models made by it.

use std::ops::ControlFlow;
use std::path::Path;

use lockstep_testkit as kit;
use lockstep_traces::store::DumpFile;
use lockstep_traces::{Choice, DType, DumpId, FinishReason, MemorySink, RecordPlan};
use serde_json::Value;

use crate::cache::{CacheShape, KvCache};
use crate::cpu::{Arithmetic, Segment, Taps, WantedRow};
use crate::{Engine, LoadOptions, Request, RunOptions};

pub(super) fn ledger(dtype: DType) -> Engine {
    let options = LoadOptions { dtype: Some(dtype), ..LoadOptions::default() };
    Engine::load(&kit::ledger(), &options).unwrap()
}

pub(super) fn request(task: &kit::Task) -> Request {
    Request {
        sample_id: task.sample_id.clone(),
        prompt_ids: task.prompt_ids.clone(),
        prompt_text: Some(task.prompt.clone()),
        gold: Some(task.answer.clone()),
        seed_index: None,
    }
}

pub(super) fn run(
    engine: &Engine,
    requests: &[Request],
    options: &RunOptions,
    plan: RecordPlan,
) -> MemorySink {
    let mut sink = MemorySink { plan, ..MemorySink::default() };
    let mut go = |_: &crate::Progress<'_>| ControlFlow::Continue(());
    engine.run(requests, options, &mut sink, &mut go).unwrap();
    sink
}

pub(super) fn plan() -> RecordPlan {
    RecordPlan { top_k: 8, ..RecordPlan::default() }
}

pub(super) fn golden_rows(name: &str) -> Vec<Value> {
    let path = kit::golden().join("traces").join(name);
    kit::gunzip(&path).lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

pub(super) fn number(row: &Value, key: &str) -> u64 {
    row[key].as_u64().unwrap_or_else(|| panic!("{key} in {row}"))
}

pub(super) fn list<T>(row: &Value, key: &str, of: impl Fn(&Value) -> Option<T>) -> Vec<T> {
    row[key].as_array().unwrap().iter().map(|value| of(value).unwrap()).collect()
}

fn greedy(max_new_tokens: usize) -> RunOptions {
    RunOptions { max_new_tokens, ..RunOptions::default() }
}

/// Compares every row; returns the positions whose argmax differs and whose own gap is below 4e-4.
fn compare_dense(name: &str) -> Vec<u32> {
    let task = kit::task(name);
    let engine = ledger(DType::F32);
    let sink = run(&engine, &[request(&task)], &greedy(4000), plan());
    let sample = &sink.samples[0];
    assert_eq!(sample.generated_ids, task.completion_ids);
    assert_eq!(sample.answer.as_ref(), Some(&task.answer));
    assert_eq!(sample.finish, FinishReason::Eos);
    let rows = golden_rows(&format!("dense/{name}.fp32.jsonl.gz"));
    assert_eq!(rows.len(), sink.steps.len());
    let mut near_ties = Vec::new();
    for (wanted, row) in rows.iter().zip(&sink.steps) {
        let at = row.position;
        assert_eq!(number(wanted, "position_before"), u64::from(at));
        assert_eq!(number(wanted, "token_id"), u64::from(row.token_id));
        assert_eq!(number(wanted, "rows_before"), u64::from(row.rows_before));
        assert_eq!(number(wanted, "rows_after"), u64::from(row.rows_after));
        assert_eq!((row.rope_index, row.finite, row.compaction), (Some(at), true, None));
        let ids = list(wanted, "top_ids", Value::as_u64);
        let logits = list(wanted, "top_logits", Value::as_f64);
        if number(wanted, "argmax_token") != u64::from(row.argmax) {
            assert!(logits[0] - logits[1] < 4e-4, "{name} row {at}");
            near_ties.push(at);
        }
        for (id, logit) in row.top_ids.iter().zip(&row.top_logits) {
            // An id that fell out of the eight must be within the tolerance of the eighth.
            let place = ids.iter().position(|wanted| *wanted == u64::from(*id));
            let wanted = place.map_or(logits[7], |place| logits[place]);
            assert!((f64::from(*logit) - wanted).abs() < 2e-4, "{name} row {at} id {id}");
        }
    }
    near_ties
}

#[test]
fn dense_f32_runs_are_those_of_transformers() {
    let near_ties: Vec<u32> =
        ["ledger_05", "ledger_17"].into_iter().flat_map(compare_dense).collect();
    assert!(near_ties.len() <= 1, "{near_ties:?}");
}

/// Every stage of every position in `<name>.fp32.hidden.safetensors`.
fn compare_hidden(name: &str) {
    let file = format!("traces/dense/{name}.fp32.hidden.safetensors");
    let golden = DumpFile::open(&kit::golden().join(file)).unwrap();
    let positions = golden.get("positions").unwrap().to_i32().unwrap();
    let positions: Vec<u32> =
        positions.into_iter().map(|position| u32::try_from(position).unwrap()).collect();
    let plan = RecordPlan {
        hidden: Choice::These(positions.clone()),
        hidden_layers: Choice::All,
        ..plan()
    };
    let sink = run(&ledger(DType::F32), &[request(&kit::task(name))], &greedy(4000), plan);
    assert_eq!(sink.dumps.len(), positions.len());
    let mut compared = 0;
    for (index, position) in positions.iter().enumerate() {
        let id = DumpId::Step { sample_id: name.to_owned(), position: *position };
        let dump = sink.dumps.iter().find(|dump| dump.id == id).unwrap();
        for stage in golden.names().filter(|stage| *stage != "positions") {
            let wanted = golden.get(stage).unwrap().to_f32().unwrap();
            let width = wanted.len() / positions.len();
            let wanted = &wanted[index * width..(index + 1) * width];
            let ours = our_name(stage);
            let tensor = dump.tensors.iter().find(|tensor| tensor.name == ours).unwrap();
            let values = tensor.data.chunks_exact(4);
            assert_eq!(values.len(), width, "{ours}");
            let (mut error, mut size) = (0.0, 0.0);
            for (bytes, wanted) in values.zip(wanted) {
                let value = f32::from_le_bytes(bytes.try_into().unwrap());
                error += f64::from(value - wanted).powi(2);
                size += f64::from(*wanted).powi(2);
            }
            // Two f32 evaluations of four layers differ by the order of their sums; the largest seen is 1e-6.
            let relative = (error / size).sqrt();
            assert!(relative < 5e-6, "{name} {ours} at {position}: {relative}");
            compared += 1;
        }
    }
    assert_eq!(compared, 8 * (4 * 8 + 2));
}

#[test]
fn hidden_states_are_those_of_transformers() {
    let mut seen = 0;
    for entry in std::fs::read_dir(kit::golden().join("traces/dense")).unwrap() {
        let file = entry.unwrap().file_name().into_string().unwrap();
        if let Some(name) = file.strip_suffix(".fp32.hidden.safetensors") {
            compare_hidden(name);
            seen += 1;
        }
    }
    assert!(seen > 0, "no hidden states in the golden folder");
}

/// `layer3.out` is `hidden.layer03.out` here.
fn our_name(golden: &str) -> String {
    match golden.strip_prefix("layer").and_then(|rest| rest.split_once('.')) {
        Some((layer, stage)) => format!("hidden.layer{:02}.{stage}", layer.parse::<u32>().unwrap()),
        None => format!("hidden.{golden}"),
    }
}

#[test]
fn sixteen_bit_runs_give_the_gold_completions() {
    for name in ["ledger_05", "ledger_17"] {
        for (dtype, suffix) in [(DType::F16, "fp16"), (DType::Bf16, "bf16")] {
            let task = kit::task(name);
            let engine = ledger(dtype);
            assert_eq!(engine.cache_dtype(), dtype);
            let sink = run(&engine, &[request(&task)], &greedy(4000), plan());
            assert_eq!(sink.samples[0].generated_ids, task.completion_ids, "{name} {suffix}");
            let rows = golden_rows(&format!("dense/{name}.{suffix}.jsonl.gz"));
            let mut furthest = 0.0_f64;
            for (wanted, row) in rows.iter().zip(&sink.steps) {
                if row.next_token.is_some() {
                    let logit = wanted["argmax_logit"].as_f64().unwrap();
                    furthest = furthest.max((f64::from(row.top_logits[0]) - logit).abs());
                }
            }
            // Another order of sums moves 16-bit logits by a few of their steps (1/16 for bf16 near 16); transformers' own
            // distance to f32 is up to 1.16 here.
            let bound = if dtype == DType::F16 { 0.5 } else { 1.5 };
            assert!(furthest < bound, "{name} {suffix}: {furthest}");
        }
    }
}

pub(super) fn tiny(dir: &Path, golden: &Path) {
    let name = dir.display();
    let golden = DumpFile::open(&golden.join("golden.safetensors")).unwrap();
    let values = |name: &str| golden.get(name).unwrap().to_f32().unwrap();
    let ids = golden.get("input_ids").unwrap().to_i32().unwrap();
    let ids: Vec<u32> = ids.into_iter().map(|id| u32::try_from(id).unwrap()).collect();
    let options = LoadOptions { dtype: Some(DType::F32), ..LoadOptions::default() };
    let engine = Engine::load(dir, &options).unwrap();
    let hyper = engine.hyper();
    let arithmetic = Arithmetic::of(hyper, DType::F32);
    let inv_freq = values("inv_freq");
    assert_eq!(arithmetic.rotary.inv_freq.len(), inv_freq.len());
    for (found, wanted) in arithmetic.rotary.inv_freq.iter().zip(&inv_freq) {
        assert!((found - wanted).abs() <= wanted * 2.5e-7, "{name}: {found} {wanted}");
    }
    let scaling: f32 = golden.metadata()["attention_scaling"].parse().unwrap();
    assert!((arithmetic.rotary.attention_scaling - scaling).abs() < 1e-7);

    // The first 100 tokens in two chunks, the rest one by one.
    let mut cache = KvCache::new(CacheShape {
        layers: hyper.layers,
        kv_heads: hyper.kv_heads,
        head_dim: hyper.head_dim,
        dtype: DType::F32,
        capacity: ids.len(),
    });
    let mut logits = Vec::new();
    let mut hidden = Vec::new();
    let mut position = 0;
    let (prompt, rest) = ids.split_at(100);
    for tokens in prompt.chunks(64).chain(rest.chunks(1)) {
        let segment = Segment { tokens, position, rope_index: position, cache: &mut cache };
        let ends = WantedRow { ends: true, layers: Vec::new() };
        let wanted = (0..tokens.len()).map(|row| (row, ends.clone())).collect();
        let mut taps = Taps { wanted, ..Taps::default() };
        logits.extend(engine.cpu().unwrap().forward(&arithmetic, &mut [segment], &mut taps));
        for (_, stages) in taps.taken {
            let last = stages.into_iter().find(|(name, _)| name == "hidden.final_norm");
            hidden.extend(last.unwrap().1);
        }
        position += u32::try_from(tokens.len()).unwrap();
    }
    for (found, wanted) in [(&logits, values("logits")), (&hidden, values("last_hidden"))] {
        assert_eq!(found.len(), wanted.len());
        for (found, wanted) in found.iter().zip(&wanted) {
            assert!((found - wanted).abs() < 2e-4, "{name}: {found} {wanted}");
        }
    }
}

#[test]
fn tiny_models_of_every_variant_give_the_logits_of_transformers() {
    let mut seen = 0;
    for entry in std::fs::read_dir(kit::data().join("models")).unwrap() {
        let dir = entry.unwrap().path();
        if dir.join("golden.safetensors").is_file() {
            tiny(&dir, &dir);
            seen += 1;
        }
    }
    assert!(seen >= 8, "{seen} tiny models");
}
