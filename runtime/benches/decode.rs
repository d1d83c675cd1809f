//! Decode speed on the CPU against the read bandwidth of the same machine in the same process.
//!
//! Writes a random Qwen3 directory of about 500 MB (bf16), reads its weights with all threads as fast as plain sums go, then decodes with
//! tracing on. Bytes of one token are every projection, the head and the live cache. Prints the ratio; nothing is asserted.
//! Run with `cargo bench -p lockstep-runtime --bench decode`.
#![expect(clippy::print_stdout, reason = "a benchmark prints its figures")]

use std::fs::File;
use std::io::{BufWriter, Write as _};
use std::ops::ControlFlow;
use std::path::Path;
use std::time::Instant;

use lockstep_runtime::{Engine, LoadOptions, Request, RunOptions};
use lockstep_traces::{MemorySink, RecordPlan};
use rayon::prelude::*;

const LAYERS: usize = 14;
const HIDDEN: usize = 1024;
const INNER: usize = 3072;
const HEADS: usize = 16;
const KV_HEADS: usize = 8;
const DIM: usize = 128;
const VOCAB: usize = 32_768;
const PROMPT: usize = 256;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let dir = tempfile::tempdir()?;
    write_model(dir.path())?;
    let engine = Engine::load(dir.path(), &LoadOptions::default())?;
    let weights = std::fs::read(dir.path().join("model.safetensors"))?;
    let requests: Vec<Request> = (0..1)
        .map(|sample| Request {
            sample_id: format!("sample {sample}"),
            prompt_ids: (0..PROMPT as u32).map(|id| (id * 37 + sample) % VOCAB as u32).collect(),
            ..Request::default()
        })
        .collect();
    let options =
        RunOptions { max_new_tokens: 64, stop_ids: Some(Vec::new()), ..RunOptions::default() };
    println!("threads {}, isa {}", rayon::current_num_threads(), engine.model().isa().name());
    for round in 1..=3 {
        let read = read_bandwidth(&weights);
        let plan = RecordPlan { top_k: 8, ..RecordPlan::default() };
        let mut sink = MemorySink { plan, ..MemorySink::default() };
        let mut last = Instant::now();
        let mut fastest = f64::INFINITY;
        let mut go = |progress: &lockstep_runtime::Progress<'_>| {
            if progress.fed > PROMPT as u64 {
                fastest = fastest.min(last.elapsed().as_secs_f64());
            }
            last = Instant::now();
            ControlFlow::Continue(())
        };
        let summary = engine.run(&requests, &options, &mut sink, &mut go)?;
        let bytes = summary.weight_bytes * summary.decode_passes + summary.kv_bytes;
        let decode = bytes as f64 / summary.decode_seconds;
        println!(
            "round {round}: read {:.2} GB/s; prefill {:.1} tok/s; decode {:.1} tok/s, {:.2} GB/s, ratio {:.2} (fastest token {:.2})",
            read / 1e9,
            summary.prompt_tokens as f64 / summary.prefill_seconds,
            summary.decode_tokens as f64 / summary.decode_seconds,
            decode / 1e9,
            decode / read,
            bytes as f64 / summary.decode_passes as f64 / fastest / read
        );
    }
    Ok(())
}

/// Best of five passes of all threads over `bytes`.
fn read_bandwidth(bytes: &[u8]) -> f64 {
    let mut best = 0.0_f64;
    for _ in 0..5 {
        let started = Instant::now();
        let sum = bytes
            .par_chunks(1 << 20)
            .map(|chunk| {
                let (words, _) = chunk.as_chunks::<8>();
                words.iter().fold(0_u64, |sum, word| sum.wrapping_add(u64::from_le_bytes(*word)))
            })
            .reduce(|| 0, u64::wrapping_add);
        std::hint::black_box(sum);
        best = best.max(bytes.len() as f64 / started.elapsed().as_secs_f64());
    }
    best
}

fn write_model(dir: &Path) -> Result<(), Box<dyn std::error::Error>> {
    let config = serde_json::json!({
        "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "dtype": "bfloat16",
        "vocab_size": VOCAB, "hidden_size": HIDDEN, "intermediate_size": INNER,
        "num_hidden_layers": LAYERS, "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS, "head_dim": DIM, "rms_norm_eps": 1e-6,
        "rope_theta": 1e6, "tie_word_embeddings": true, "hidden_act": "silu"
    });
    std::fs::write(dir.join("config.json"), config.to_string())?;
    let mut shapes = vec![("model.embed_tokens.weight".to_owned(), vec![VOCAB, HIDDEN])];
    for layer in 0..LAYERS {
        for (part, shape) in [
            ("input_layernorm", vec![HIDDEN]),
            ("self_attn.q_proj", vec![HEADS * DIM, HIDDEN]),
            ("self_attn.k_proj", vec![KV_HEADS * DIM, HIDDEN]),
            ("self_attn.v_proj", vec![KV_HEADS * DIM, HIDDEN]),
            ("self_attn.o_proj", vec![HIDDEN, HEADS * DIM]),
            ("self_attn.q_norm", vec![DIM]),
            ("self_attn.k_norm", vec![DIM]),
            ("post_attention_layernorm", vec![HIDDEN]),
            ("mlp.gate_proj", vec![INNER, HIDDEN]),
            ("mlp.up_proj", vec![INNER, HIDDEN]),
            ("mlp.down_proj", vec![HIDDEN, INNER]),
        ] {
            shapes.push((format!("model.layers.{layer}.{part}.weight"), shape));
        }
    }
    shapes.push(("model.norm.weight".to_owned(), vec![HIDDEN]));
    let mut header = serde_json::Map::new();
    let mut end = 0;
    for (name, shape) in &shapes {
        let start = end;
        end += 2 * shape.iter().product::<usize>();
        let entry =
            serde_json::json!({"dtype": "BF16", "shape": shape, "data_offsets": [start, end]});
        header.insert(name.clone(), entry);
    }
    let mut header = serde_json::Value::Object(header).to_string().into_bytes();
    header.resize(header.len().next_multiple_of(8), b' ');
    let mut file = BufWriter::new(File::create(dir.join("model.safetensors"))?);
    file.write_all(&(header.len() as u64).to_le_bytes())?;
    file.write_all(&header)?;
    let mut state = 1_u64;
    for (_, shape) in &shapes {
        let norm = shape.len() == 1;
        for _ in 0..shape.iter().product::<usize>() {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let uniform = (state >> 40) as f32 / 8_388_608.0 - 1.0;
            let value = if norm { 1.0 + 0.1 * uniform } else { 0.04 * uniform };
            file.write_all(&half::bf16::from_f32(value).to_le_bytes())?;
        }
    }
    Ok(file.flush()?)
}
