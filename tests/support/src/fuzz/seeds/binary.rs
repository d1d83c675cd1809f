//! Tensor files, statistics, GGUF.

use super::{MOST, data, small, texts};
use crate::fuzz::{place, seal};
use crate::gguf::{Gguf, Value};

pub(in crate::fuzz) fn npy() -> Vec<Vec<u8>> {
    small("tensors/npy", &[".npy"])
}

pub(in crate::fuzz) fn zip() -> Vec<Vec<u8>> {
    let mut seeds = small("tensors", &[".npz"]);
    seeds.push(data("tensors/pt/lone.pt"));
    seeds.push(data("tensors/pt/nested.pt"));
    seeds
}

/// The entries of stored archives.
pub(in crate::fuzz) fn zip_entries() -> Vec<Vec<u8>> {
    let names =
        ["pt/lone.pt", "pt/nested.pt", "pt/state.pt", "pt/state_protocol4.pt", "stored.npz"];
    names.iter().map(|name| opened(&data(&format!("tensors/{name}")))).collect()
}

fn opened(archive: &[u8]) -> Vec<u8> {
    let entries = seal::entries(archive);
    place::pack(entries.iter().map(|(name, bytes)| (name.as_str(), bytes.as_slice())))
}

pub(in crate::fuzz) fn pickle() -> Vec<Vec<u8>> {
    vec![data("tensors/pt/state_bare.pt"), b"\x80\x02]q\x00h\x00a.".to_vec()]
}

pub(in crate::fuzz) fn safetensors() -> Vec<Vec<u8>> {
    let mut seeds = vec![data("tensors/plain.safetensors")];
    for case in ["21", "52", "54", "56"] {
        seeds.extend(small(&format!("cases/{case}"), &[".safetensors"]));
    }
    seeds
}

pub(in crate::fuzz) fn tensor_json() -> Vec<Vec<u8>> {
    let mut seeds = texts(&[
        r#"{"a":[1,2.5,-3e4],"b":{"c":[[1,2],[3,4]]},"d":null,"e":"text"}"#,
        r#"{"metadata":{},"weight_map":{"a":"model-00001-of-00002.safetensors"}}"#,
    ]);
    seeds.push(data("tensors/polygraphy.json"));
    seeds
}

pub(in crate::fuzz) fn tensor_raw() -> Vec<Vec<u8>> {
    let values: Vec<u8> = (0..32_u8).collect();
    ["f32:2x4", "*.bin=bf16:4x4", "k.bin=f32:7:big:+4", "i64:4", "f16:2x0x4", "f32:9"]
        .iter()
        .map(|spec| [spec.as_bytes(), b"\n", &values].concat())
        .collect()
}

pub(in crate::fuzz) fn tensor_folder() -> Vec<Vec<u8>> {
    let folder = |name: &str| place::pack_folder(&crate::data().join("tensors").join(name));
    let mut seeds: Vec<_> = ["msprobe", "sglang", "trtllm", "sharded"].map(folder).into();
    let npy = data("tensors/npy/f32.npy");
    seeds.push(place::pack([("a.npy", npy.as_slice()), ("b/c.npy", &npy), ("raw.bin", b"1234")]));
    seeds
}

pub(in crate::fuzz) fn stats_dense() -> Vec<Vec<u8>> {
    let mut seeds = small("golden/triattention/stats", &["g1.safetensors", "life.safetensors"]);
    seeds.extend(small("golden/traces/stats", &["decode_only.safetensors"]));
    seeds.retain(|bytes| bytes.len() <= MOST);
    seeds
}

pub(in crate::fuzz) fn stats_torch() -> Vec<Vec<u8>> {
    ["calibrate_tiny.pt", "syn_g4.pt"]
        .iter()
        .map(|name| opened(&data(&format!("golden/triattention/pt/{name}"))))
        .collect()
}

/// A small file with every part that a model's file has.
pub(in crate::fuzz) fn gguf() -> Vec<Vec<u8>> {
    let texts = |list: &[&str]| Value::Texts(list.iter().map(|text| (*text).to_owned()).collect());
    let mut file = Gguf::default();
    file.value("general.architecture", Value::Text("llama".into()))
        .value("general.alignment", Value::U32(32))
        .value("llama.block_count", Value::U32(1))
        .value("llama.context_length", Value::U32(64))
        .value("llama.embedding_length", Value::U32(32))
        .value("llama.feed_forward_length", Value::U32(32))
        .value("llama.attention.head_count", Value::U32(2))
        .value("llama.attention.head_count_kv", Value::U32(1))
        .value("llama.attention.layer_norm_rms_epsilon", Value::F32(1e-5))
        .value("llama.rope.freq_base", Value::F32(10_000.0))
        .value("tokenizer.ggml.model", Value::Text("gpt2".into()))
        .value("tokenizer.ggml.pre", Value::Text("smollm".into()))
        .value("tokenizer.ggml.tokens", texts(&["1", "2", "12", "Ġ", "a", "Ġa", "<s>", "</s>"]))
        .value("tokenizer.ggml.token_type", Value::I32s(vec![1, 1, 1, 1, 1, 1, 3, 3]))
        .value("tokenizer.ggml.merges", texts(&["1 2", "Ġ a"]))
        .value("tokenizer.ggml.bos_token_id", Value::U32(6))
        .value("tokenizer.ggml.eos_token_id", Value::U32(7))
        .value("tokenizer.ggml.add_bos_token", Value::Bool(true))
        // Arrays inside an array.
        .value("nested", Value::Raw(9, nested()));
    let values: Vec<f32> = (0..32).map(|at| at as f32 / 8.0).collect();
    file.f32s("token_embd.weight", &[32, 8], &values.repeat(8))
        .f32s("output_norm.weight", &[32], &values)
        .f32s("rope_freqs.weight", &[8], &values[..8]);
    for (name, element, bytes) in [("q4_0", 2, 18), ("q4_1", 3, 20), ("q8_0", 8, 34)] {
        let block: Vec<u8> = (0..bytes).collect();
        file.tensor(&format!("blk.0.{name}.weight"), &[32, 1], element, block);
    }
    let whole = file.bytes();
    let mut old = Gguf { version: 1, ..Gguf::default() };
    old.value("a", Value::F32(1.0)).f32s("t", &[2, 2], &values[..4]);
    vec![whole, old.bytes(), Gguf::default().bytes()]
}

/// An array of two arrays of one byte each.
fn nested() -> Vec<u8> {
    let inner = [0_u32.to_le_bytes().as_slice(), &1_u64.to_le_bytes(), &[7]].concat();
    [9_u32.to_le_bytes().as_slice(), &2_u64.to_le_bytes(), &inner, &inner].concat()
}
