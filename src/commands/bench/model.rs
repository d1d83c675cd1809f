//! A random Qwen3 checkpoint of a wanted size, so that anyone can repeat the figures without one.

use std::fs;
use std::io::{BufWriter, Write as _};
use std::path::Path;

use anyhow::Context as _;
use serde_json::json;

const HIDDEN: usize = 1024;
const INTERMEDIATE: usize = 3072;
const HEADS: usize = 16;
const KV_HEADS: usize = 8;
const HEAD_DIM: usize = 128;
const VOCAB: usize = 32_768;

/// Shape of the made model.
#[derive(Debug, Clone, Copy)]
pub(super) struct Shape {
    /// Layers.
    pub(super) layers: usize,
    /// Bytes of all weights (bf16).
    pub(super) weight_bytes: u64,
    /// Bytes of K and V of one row over all layers (bf16).
    pub(super) kv_row_bytes: u64,
    /// Vocabulary.
    pub(super) vocab: usize,
}

fn tensors(layers: usize) -> Vec<(String, Vec<usize>)> {
    let mut list = vec![("model.embed_tokens.weight".to_owned(), vec![VOCAB, HIDDEN])];
    for layer in 0..layers {
        let mut add = |name: &str, shape: Vec<usize>| {
            list.push((format!("model.layers.{layer}.{name}.weight"), shape));
        };
        add("input_layernorm", vec![HIDDEN]);
        add("self_attn.q_proj", vec![HEADS * HEAD_DIM, HIDDEN]);
        add("self_attn.k_proj", vec![KV_HEADS * HEAD_DIM, HIDDEN]);
        add("self_attn.v_proj", vec![KV_HEADS * HEAD_DIM, HIDDEN]);
        add("self_attn.q_norm", vec![HEAD_DIM]);
        add("self_attn.k_norm", vec![HEAD_DIM]);
        add("self_attn.o_proj", vec![HIDDEN, HEADS * HEAD_DIM]);
        add("post_attention_layernorm", vec![HIDDEN]);
        add("mlp.gate_proj", vec![INTERMEDIATE, HIDDEN]);
        add("mlp.up_proj", vec![INTERMEDIATE, HIDDEN]);
        add("mlp.down_proj", vec![HIDDEN, INTERMEDIATE]);
    }
    list.push(("model.norm.weight".to_owned(), vec![HIDDEN]));
    list
}

fn bytes_of(layers: usize) -> u64 {
    tensors(layers).iter().map(|(_, shape)| 2 * shape.iter().product::<usize>() as u64).sum()
}

/// Writes config.json and model.safetensors of about `megabytes` (10^6) of bf16 weights.
pub(super) fn write(dir: &Path, megabytes: u64) -> anyhow::Result<Shape> {
    let layers = (1..200)
        .find(|&layers| bytes_of(layers) >= megabytes * 1_000_000)
        .context("model too large")?;
    fs::create_dir_all(dir)?;
    let config = json!({
        "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "vocab_size": VOCAB, "hidden_size": HIDDEN,
        "intermediate_size": INTERMEDIATE, "num_hidden_layers": layers, "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS, "head_dim": HEAD_DIM, "rms_norm_eps": 1e-6, "hidden_act": "silu",
        "max_position_embeddings": 40_960, "tie_word_embeddings": true, "attention_bias": false, "dtype": "bfloat16",
        "rope_parameters": {"rope_type": "default", "rope_theta": 1_000_000.0}, "bos_token_id": 1, "eos_token_id": 2,
    });
    fs::write(dir.join("config.json"), serde_json::to_vec_pretty(&config)?)?;
    write_weights(&dir.join("model.safetensors"), layers)?;
    Ok(Shape {
        layers,
        weight_bytes: bytes_of(layers),
        kv_row_bytes: (layers * 2 * KV_HEADS * HEAD_DIM * 2) as u64,
        vocab: VOCAB,
    })
}

fn write_weights(path: &Path, layers: usize) -> anyhow::Result<()> {
    let list = tensors(layers);
    let mut header = serde_json::Map::new();
    let mut offset = 0_u64;
    for (name, shape) in &list {
        let end = offset + 2 * shape.iter().product::<usize>() as u64;
        header.insert(
            name.clone(),
            json!({"dtype": "BF16", "shape": shape, "data_offsets": [offset, end]}),
        );
        offset = end;
    }
    let mut text = serde_json::to_vec(&header)?;
    while !text.len().is_multiple_of(8) {
        text.push(b' ');
    }
    let mut out = BufWriter::with_capacity(1 << 20, fs::File::create(path)?);
    out.write_all(&(text.len() as u64).to_le_bytes())?;
    out.write_all(&text)?;
    let mut state = 0x5eed_u64;
    for (name, shape) in &list {
        let norm = name.contains("norm");
        for _ in 0..shape.iter().product::<usize>() {
            let bits = if norm { 0x3f80_u16 } else { small_bf16(&mut state) };
            out.write_all(&bits.to_le_bytes())?;
        }
    }
    Ok(out.flush()?)
}

/// A bf16 of random sign and mantissa with magnitude in [1/64, 1/32).
fn small_bf16(state: &mut u64) -> u16 {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    let bits = (*state >> 48) as u16;
    (bits & 0x807f) | 0x3c80
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn random_weights_have_the_stated_magnitude() {
        let mut state = 1;
        for _ in 0..1000 {
            let value = f32::from_bits(u32::from(small_bf16(&mut state)) << 16).abs();
            assert!((1.0 / 64.0..1.0 / 32.0).contains(&value), "{value}");
        }
    }

    #[test]
    fn the_size_is_reached_and_not_passed_by_more_than_a_layer() {
        let dir = tempfile::tempdir().unwrap();
        let shape = write(dir.path(), 70).unwrap();
        let file = fs::metadata(dir.path().join("model.safetensors")).unwrap().len();
        assert!(file > shape.weight_bytes && file < shape.weight_bytes + 100_000);
        assert!((70_000_000..110_000_000).contains(&shape.weight_bytes), "{}", shape.weight_bytes);
    }
}
