//! GGUF files against transformers: tiny models written in that format, and SmolLM2-135M-Instruct in Q4_1 where it has been fetched.

use std::ops::ControlFlow;
use std::path::Path;

use lockstep_testkit as kit;
use lockstep_testkit::gguf::{Gguf, Value as Kv};
use lockstep_traces::hash::sha256_hex;
use lockstep_traces::{DType, Manifest, MemorySink, PolicyKind, PolicySpec};
use serde_json::Value;

use super::golden::{golden_rows, list, number, plan, run, tiny};
use crate::weights::WeightFiles;
use crate::{Engine, LoadOptions, Request, RunOptions, RuntimeError, Tokenizer};

fn model(name: &str) -> std::path::PathBuf {
    kit::data().join("models").join(name)
}

fn load(path: &Path) -> Result<Engine, RuntimeError> {
    Engine::load(path, &LoadOptions { dtype: Some(DType::F32), ..LoadOptions::default() })
}

/// The tiny model `name` as a GGUF file, changed by `edit`, loaded.
fn edited(name: &str, edit: impl FnOnce(&mut Gguf)) -> Result<Engine, RuntimeError> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("tiny.gguf");
    let mut file = kit::gguf::convert(&model(name));
    edit(&mut file);
    file.write(&path);
    load(&path)
}

#[test]
fn tiny_models_as_gguf_give_the_logits_of_transformers() {
    let dir = tempfile::tempdir().unwrap();
    for name in ["llama_bias_mha", "llama_linear", "llama_llama3", "qwen3_theta_sharded"] {
        let path = dir.path().join(format!("{name}.gguf"));
        kit::gguf::convert(&model(name)).write(&path);
        tiny(&path, &model(name));
    }
}

#[test]
fn values_are_recorded_with_the_keys_that_told_them() {
    let engine = edited("llama_llama3", |_| {}).unwrap();
    let settings = &engine.hyper().settings;
    for (key, source) in [
        ("model.architecture", "gguf: general.architecture"),
        ("model.num_hidden_layers", "gguf: llama.block_count"),
        ("model.rms_norm_eps", "gguf: llama.attention.layer_norm_rms_epsilon"),
        ("model.rope_theta", "gguf: llama.rope.freq_base"),
        ("model.rope_type", "gguf: rope_freqs.weight"),
        ("model.vocab_size", "gguf: token_embd.weight"),
        ("model.tie_word_embeddings", "gguf: output.weight"),
        ("model.attention_bias", "gguf: no blk.0.attn_q.bias"),
    ] {
        assert_eq!(settings[key].source, source, "{key}");
    }
    assert_eq!(settings["model.rope_type"].value, "factors");
    let mut manifest = Manifest::new(lockstep_traces::manifest::Producer::default(), "cpu");
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("tiny.gguf");
    kit::gguf::convert(&model("llama_linear")).write(&path);
    load(&path).unwrap().describe(&RunOptions::default(), &mut manifest).unwrap();
    let hash = lockstep_traces::hash::sha256_file(&path).unwrap();
    assert_eq!(manifest.model.weights_sha256["tiny.gguf"], hash);
    assert_eq!((manifest.model.config_sha256, manifest.model.tokenizer_sha256), (None, None));
}

/// The bias of q left where the Hugging Face layout has it, the weights moved: the logits must part from transformers'.
#[test]
fn rows_that_are_not_put_back_change_the_logits() {
    let logits = |edit: &dyn Fn(&mut Gguf)| {
        let engine = edited("llama_bias_mha", edit).unwrap();
        let request =
            Request { sample_id: "a".into(), prompt_ids: vec![5, 9, 17, 33], ..Request::default() };
        let options = RunOptions { max_new_tokens: 1, ..RunOptions::default() };
        run(&engine, &[request], &options, plan()).steps[3].top_logits.clone()
    };
    let sound = logits(&|_| {});
    let other = logits(&|file| {
        let bias =
            file.tensors.iter_mut().find(|tensor| tensor.name == "blk.0.attn_q.bias").unwrap();
        bias.data.rotate_left(4);
    });
    assert!(sound.iter().zip(&other).any(|(a, b)| (a - b).abs() > 1e-3), "{sound:?} {other:?}");
}

#[test]
fn qwen2_has_biases_on_q_k_and_v_only() {
    let engine = edited("qwen2_sliding", |_| {}).unwrap();
    let hyper = engine.hyper();
    assert!(hyper.attention_bias && !hyper.output_bias && hyper.window().is_none());
    let missing =
        edited("qwen2_sliding", |file| file.tensors.retain(|t| t.name != "blk.1.attn_k.bias"));
    let text = missing.unwrap_err().to_string();
    assert!(text.contains("tiny.gguf: tensor `blk.1.attn_k.bias`"), "{text}");
}

#[test]
fn what_a_file_asks_for_in_vain_is_one_line_with_its_key_or_tensor() {
    let value = |key: &'static str, value: Kv| {
        move |file: &mut Gguf| {
            file.values.retain(|(known, _)| known != key);
            file.value(key, value);
        }
    };
    type Edit = Box<dyn FnOnce(&mut Gguf)>;
    let cases: Vec<(Edit, &str)> = vec![
        (Box::new(value("general.architecture", Kv::Text("gemma3".into()))), "`gemma3`"),
        (Box::new(value("llama.block_count", Kv::Text("2".into()))), "`llama.block_count`"),
        (Box::new(value("llama.block_count", Kv::U32(3))), "`blk.2.attn_norm.weight`"),
        (Box::new(value("llama.block_count", Kv::U32(1))), "`blk.1."),
        (Box::new(value("llama.attention.head_count", Kv::I32s(vec![4, 4]))), "head_count"),
        (
            Box::new(value("llama.attention.head_count", Kv::U32(7))),
            "`llama.attention.head_count_kv`",
        ),
        (Box::new(value("llama.expert_count", Kv::U32(8))), "`llama.expert_count`"),
        (Box::new(value("llama.attention.sliding_window", Kv::U32(16))), "sliding_window"),
        (Box::new(value("llama.rope.dimension_count", Kv::U32(8))), "dimension_count"),
        (
            Box::new(value("llama.rope.scaling.type", Kv::Text("longrope".into()))),
            "`llama.rope.scaling.type`",
        ),
        (Box::new(value("split.count", Kv::U32(2))), "one of 2 parts"),
        (
            Box::new(|f: &mut Gguf| {
                f.f32s("blk.0.extra.weight", &[1], &[1.0]);
            }),
            "`blk.0.extra.weight`",
        ),
        (
            Box::new(|f: &mut Gguf| {
                let norm = f.tensors.iter_mut().find(|t| t.name == "output_norm.weight").unwrap();
                (norm.element, norm.ne, norm.data) = (10, vec![256], vec![0; 84]);
            }),
            "`output_norm.weight`: element type Q2_K is not supported",
        ),
    ];
    for (edit, part) in cases {
        let text = edited("llama_bias_mha", edit).unwrap_err().to_string();
        assert!(text.contains("tiny.gguf") && text.contains(part), "{part}: {text}");
        assert!(!text.contains('\n'));
    }
}

#[test]
fn a_model_with_windows_runs_dense_on_the_cpu_and_nothing_else() {
    let engine = load(&model("mistral_window")).unwrap();
    let policy =
        PolicySpec { kind: Some(PolicyKind::Recent), kv_budget: Some(8), ..PolicySpec::default() };
    let options = RunOptions { policy, ..RunOptions::default() };
    let request = Request { sample_id: "a".into(), prompt_ids: vec![1], ..Request::default() };
    let mut sink = MemorySink::default();
    let mut go = |_: &crate::Progress<'_>| ControlFlow::Continue(());
    let error = engine.run(&[request], &options, &mut sink, &mut go).unwrap_err().to_string();
    assert!(error.contains("last 24 rows"), "{error}");
    let device =
        LoadOptions { device: crate::engine::DeviceChoice::Emulated, ..LoadOptions::default() };
    let error = Engine::load(&model("mistral_window"), &device).unwrap_err().to_string();
    assert!(error.contains("no sliding-window attention") && error.contains("layer 0"), "{error}");
}

fn smol_lines(name: &str) -> Vec<Value> {
    let path = kit::golden().join("traces/smol").join(name);
    let text = std::fs::read_to_string(path).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn ids(row: &Value, key: &str) -> Vec<u32> {
    list(row, key, |id| u32::try_from(id.as_u64()?).ok())
}

#[test]
fn smollm2_weights_are_those_of_transformers() {
    let Some(path) = kit::smollm2() else { return };
    let files = WeightFiles::open(&path).unwrap();
    let text = std::fs::read(kit::golden().join("traces/smol/weights_checksums.json")).unwrap();
    let golden: Value = serde_json::from_slice(&text).unwrap();
    let mut seen = 0;
    for row in golden["hf_tensors"].as_array().unwrap() {
        let name = row["name"].as_str().unwrap();
        if name == "lm_head.weight" {
            continue;
        }
        let tensor = files.tensor(name).unwrap();
        let shape = list(row, "shape", |size| usize::try_from(size.as_u64()?).ok());
        assert_eq!(tensor.shape(), shape, "{name}");
        assert_eq!(
            sha256_hex(tensor.elements().bytes()),
            row["sha256_f32_le"].as_str().unwrap(),
            "{name}"
        );
        seen += 1;
    }
    assert_eq!((seen, files.names().count()), (272, 272));
}

#[test]
fn smollm2_text_becomes_the_golden_ids() {
    let Some(path) = kit::smollm2() else { return };
    let tokenizer = Tokenizer::read(&path).unwrap().unwrap();
    let mut as_transformers = 0;
    let rows = smol_lines("tokenizer.jsonl");
    for row in &rows {
        let text = row["text"].as_str().unwrap();
        let found = tokenizer.encode(text).unwrap();
        assert_eq!(found, ids(row, "ids_smollm_pretokenizer"), "{text}");
        as_transformers += usize::from(found == ids(row, "ids_hf_from_gguf"));
        // Decoding leaves special tokens out (the first 17 ids here); the golden text has them.
        if found.iter().all(|id| *id >= 17) {
            assert_eq!(
                tokenizer.decode(&found).unwrap(),
                row["decoded"].as_str().unwrap(),
                "{text}"
            );
        }
    }
    // transformers ignores the pre-tokenizer's name and merges over the digits of one string.
    assert_eq!((rows.len(), as_transformers), (20, 19));
    for row in smol_lines("prompts.jsonl") {
        let text = row["text"].as_str().unwrap();
        assert_eq!(tokenizer.encode(text).unwrap(), ids(&row, "prompt_ids"));
    }
}

#[test]
fn smollm2_greedy_runs_are_those_of_transformers() {
    let Some(path) = kit::smollm2() else { return };
    let engine = load(&path).unwrap();
    let prompts = smol_lines("prompts.jsonl");
    let requests: Vec<Request> = prompts
        .iter()
        .map(|row| Request {
            sample_id: row["prompt"].to_string(),
            prompt_ids: ids(row, "prompt_ids"),
            ..Request::default()
        })
        .collect();
    let options = RunOptions {
        max_new_tokens: 128,
        stop_ids: Some(Vec::new()),
        batch: 3,
        ..RunOptions::default()
    };
    let sink = run(&engine, &requests, &options, plan());
    for (row, sample) in prompts.iter().zip(&requests) {
        let found = sink.samples.iter().find(|found| found.sample_id == sample.sample_id).unwrap();
        assert_eq!(found.generated_ids, ids(row, "generated_ids"), "prompt {}", sample.sample_id);
    }
    for prompt in ["1", "2"] {
        let golden = golden_rows(&format!("smol/prompt_{prompt}.fp32.jsonl.gz"));
        let steps: Vec<_> = sink.steps.iter().filter(|row| row.sample_id == prompt).collect();
        assert_eq!(golden.len(), steps.len());
        for (wanted, row) in golden.iter().zip(steps) {
            let at = row.position;
            assert_eq!(number(wanted, "token_id"), u64::from(row.token_id), "{prompt} {at}");
            assert_eq!(number(wanted, "argmax_token"), u64::from(row.argmax), "{prompt} {at}");
            let top = ids(wanted, "top_ids");
            let logits = list(wanted, "top_logits", Value::as_f64);
            for (id, logit) in row.top_ids.iter().zip(&row.top_logits) {
                let place = top.iter().position(|wanted| wanted == id);
                let wanted = place.map_or(logits[7], |place| logits[place]);
                // Logits near 30 from 30 layers of f32 sums in another order; transformers' own two orders differ by 3e-5 at the top.
                assert!(
                    (f64::from(*logit) - wanted).abs() < 5e-4,
                    "{prompt} {at} {id}: {logit} {wanted}"
                );
            }
        }
    }
}
