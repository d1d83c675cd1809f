//! SmolLM2-135M-Instruct in Q4_1 against transformers, where it has been fetched; candle's blocks against golden values everywhere.

use lockstep_testkit::gguf::{Gguf, Value as Kv};
use lockstep_testkit::{data, golden, gunzip, smollm2};
use lockstep_traces::hash::sha256_hex;
use serde_json::Value;

use super::{Chunk, Model, Precision, Watch};
use crate::ReferenceError;
use crate::weights::Weights;

fn bytes(tensor: &candle_core::Tensor) -> Vec<u8> {
    let values = tensor.flatten_all().unwrap().to_vec1::<f32>().unwrap();
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

/// Random blocks of each format in a file, against the values that the `gguf` Python package makes of them.
#[test]
fn blocks_have_the_bits_of_the_golden_values() {
    let stored = std::fs::read(data().join("golden/gguf/quants.safetensors")).unwrap();
    let stored = safetensors::SafeTensors::deserialize(&stored).unwrap();
    let kinds = [("Q8_0", 8), ("Q4_0", 2), ("Q4_1", 3), ("Q4_K", 12), ("Q5_K", 13), ("Q6_K", 14)];
    let mut file = Gguf::default();
    file.value("general.architecture", Kv::Text("qwen3".into()));
    for (name, id) in kinds.into_iter().chain([("F16", 1), ("BF16", 30)]) {
        let raw = stored.tensor(&format!("{name}.raw")).unwrap();
        file.tensor(name, &[512, 4], id, raw.data().to_vec());
    }
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("blocks.gguf");
    file.write(&path);
    let weights = Weights::open(&path).unwrap();
    for name in kinds.iter().map(|(name, _)| *name).chain(["F16", "BF16"]) {
        let wanted = stored.tensor(&format!("{name}.values")).unwrap();
        let wanted: Vec<f32> =
            wanted.data().as_chunks().0.iter().map(|b| f32::from_le_bytes(*b)).collect();
        let whole = weights.widen(name, &[4, 512], Precision::F32).unwrap();
        let found = whole.flatten_all().unwrap().to_vec1::<f32>().unwrap();
        assert_eq!(found.len(), wanted.len());
        for (a, b) in found.iter().zip(&wanted) {
            // One value for -0 and +0.
            assert_eq!((a + 0.0).to_bits(), (b + 0.0).to_bits(), "{name}");
        }
        let rows = weights.widen_rows(name, [4, 512], 2..3, Precision::F64).unwrap();
        let rows = rows.flatten_all().unwrap().to_vec1::<f64>().unwrap();
        assert!(rows.iter().zip(&wanted[1024..]).all(|(a, b)| (a - f64::from(*b)).abs() < 1e-30));
    }
}

#[test]
fn what_cannot_be_computed_is_one_line_with_file_and_tensor() {
    let refused = |edit: &dyn Fn(&mut Gguf)| {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("tiny.gguf");
        let mut file = lockstep_testkit::gguf::convert(&data().join("models/llama_bias_mha"));
        edit(&mut file);
        file.write(&path);
        let text = Model::load(&path, Precision::F32).unwrap_err().to_string();
        assert!(text.contains("tiny.gguf") && !text.contains('\n'), "{text}");
        text
    };
    let set = |file: &mut Gguf, key: &str, value: Kv| {
        file.values.retain(|(known, _)| known != key);
        file.value(key, value);
    };
    for (edit, part) in [
        (&(|f: &mut Gguf| f.tensors[0].element = 99) as &dyn Fn(&mut Gguf), "element type 99"),
        (&|f: &mut Gguf| f.tensors[1].offset = Some(0), "shares data bytes"),
        (&|f: &mut Gguf| drop(f.tensors.pop()), "is missing"),
        (
            &|f: &mut Gguf| {
                f.f32s("blk.0.extra.weight", &[1], &[1.0]);
            },
            "blk.0.extra.weight",
        ),
        (&|f: &mut Gguf| set(f, "general.architecture", Kv::Text("gemma3".into())), "gemma3"),
        (&|f: &mut Gguf| set(f, "llama.block_count", Kv::Bool(true)), "llama.block_count"),
        (&|f: &mut Gguf| set(f, "llama.expert_count", Kv::U32(8)), "experts"),
        (&|f: &mut Gguf| set(f, "llama.rope.dimension_count", Kv::U32(8)), "dimension_count"),
        (&|f: &mut Gguf| set(f, "llama.attention.sliding_window", Kv::U32(9)), "sliding_window"),
    ] {
        let text = refused(edit);
        assert!(text.contains(part), "{part}: {text}");
    }
}

#[test]
fn smollm2_weights_are_those_of_transformers() {
    let Some(path) = smollm2() else { return };
    let weights = Weights::open(&path).unwrap();
    let text = std::fs::read(golden().join("traces/smol/weights_checksums.json")).unwrap();
    let checksums: Value = serde_json::from_slice(&text).unwrap();
    let mut seen = 0;
    for row in checksums["hf_tensors"].as_array().unwrap() {
        let name = row["name"].as_str().unwrap();
        if name == "lm_head.weight" {
            continue;
        }
        let shape = row["shape"].as_array().unwrap().iter();
        let shape: Vec<usize> = shape.map(|size| size.as_u64().unwrap() as usize).collect();
        let tensor = weights.widen(name, &shape, Precision::F32).unwrap();
        assert_eq!(sha256_hex(&bytes(&tensor)), row["sha256_f32_le"].as_str().unwrap(), "{name}");
        seen += 1;
    }
    assert_eq!((seen, weights.names().count()), (272, 272));
}

/// Logits of every row of a token stream, in chunks.
fn replay(model: &Model, ids: &[u32]) -> Result<Vec<Vec<f32>>, ReferenceError> {
    let mut cache = model.new_cache()?;
    let mut logits = Vec::new();
    for (number, part) in ids.chunks(128).enumerate() {
        let first = number as u32 * 128;
        let positions: Vec<u32> = (first..first + part.len() as u32).collect();
        let wanted: Vec<usize> = (0..part.len()).collect();
        let chunk = Chunk { ids: part, positions: &positions, logits: &wanted };
        logits.extend(
            model.feed(&mut cache, &chunk, Watch::default())?.logits.rows().map(<[f32]>::to_vec),
        );
    }
    Ok(logits)
}

fn argmax(logits: &[f32]) -> u64 {
    let best = logits.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1).then(b.0.cmp(&a.0)));
    best.unwrap().0 as u64
}

fn ids(row: &Value, key: &str) -> Vec<u32> {
    row[key].as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect()
}

#[test]
fn smollm2_logits_are_those_of_transformers() {
    let Some(path) = smollm2() else { return };
    let model = Model::load(&path, Precision::F32).unwrap();
    for prompt in [1, 2] {
        let file = golden().join(format!("traces/smol/prompt_{prompt}.fp32.jsonl.gz"));
        let rows: Vec<Value> =
            gunzip(&file).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let fed: Vec<u32> =
            rows.iter().map(|row| row["token_id"].as_u64().unwrap() as u32).collect();
        let logits = replay(&model, &fed).unwrap();
        for (row, logits) in rows.iter().zip(&logits) {
            assert_eq!(argmax(logits), row["argmax_token"].as_u64().unwrap(), "{prompt}: {row}");
            for (id, logit) in ids(row, "top_ids").iter().zip(row["top_logits"].as_array().unwrap())
            {
                let off = (f64::from(logits[*id as usize]) - logit.as_f64().unwrap()).abs();
                // Logits near 30 from 30 layers of f32 sums in another order.
                assert!(off < 5e-4, "{prompt}: {off} at {row}");
            }
        }
    }
    // The third prompt by what it generates.
    let prompts = std::fs::read_to_string(golden().join("traces/smol/prompts.jsonl")).unwrap();
    let third: Value = serde_json::from_str(prompts.lines().nth(2).unwrap()).unwrap();
    let (prompt, generated) = (ids(&third, "prompt_ids"), ids(&third, "generated_ids"));
    let fed = [&prompt[..], &generated[..generated.len() - 1]].concat();
    let logits = replay(&model, &fed).unwrap();
    let chosen: Vec<u64> = logits[prompt.len() - 1..].iter().map(|row| argmax(row)).collect();
    assert_eq!(chosen, generated.iter().map(|id| u64::from(*id)).collect::<Vec<_>>());
}
