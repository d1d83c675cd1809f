//! Files and folders of other tools, as they are imported.

use std::path::Path;

use lockstep_traces::hash::{DEFAULT_SEEDS, ids_sha256};
use lockstep_traces::llamacpp::{KldExport, export_kld};
use lockstep_traces::manifest::Producer;
use lockstep_traces::{
    Dump, DumpId, Manifest, Phase, RecordPlan, RunWriter, SampleRow, StepRow, Tensor, TokenTexts,
    TraceSink as _,
};

use super::{answers, artifact, bundle, data, gzip, logprobs, small, stats_dense, tensor_folder};
use crate::fuzz::place;

/// Ids of the vocabulary whose rows of logits are written.
const VOCABULARY: usize = 11;
/// Tokens of the sample.
const TOKENS: u32 = 6;

/// Writes a run of one sample with whole logits of every row.
fn with_logits(dir: &Path) {
    let producer = Producer { name: "seed".to_owned(), ..Producer::default() };
    let mut manifest = Manifest::new(producer, "cpu");
    manifest.logits_hash_seeds = Some(DEFAULT_SEEDS);
    let mut writer =
        RunWriter::create(dir, manifest, RecordPlan::default()).expect("a place for a run");
    for position in 0..TOKENS {
        let logits: Vec<f32> = (0..VOCABULARY)
            .map(|id| ((id * 7 + position as usize * 5) % 13) as f32 * 0.75 - 2.0)
            .collect();
        let order = |left: &usize, right: &usize| logits[*right].total_cmp(&logits[*left]);
        let best = (0..VOCABULARY).min_by(order).unwrap_or(0);
        let id = DumpId::Step { sample_id: "a".to_owned(), position };
        let tensors = vec![Tensor::from_f32("logits", vec![VOCABULARY], &logits)];
        writer.dump(Dump { id, metadata: [].into(), tensors }).expect("a dump");
        let row = StepRow {
            phase: if position < 2 { Phase::Prompt } else { Phase::Decode },
            token_id: position % 4,
            next_token: (position + 1 < TOKENS).then_some((position + 1) % 4),
            argmax: best as u32,
            top_ids: vec![best as u32],
            top_logits: vec![logits[best]],
            finite: true,
            ..super::runs::step("a", position)
        };
        writer.step(row).expect("a row");
    }
    let sample = SampleRow {
        prompt_len: Some(2),
        prompt_ids: vec![0, 1],
        prompt_ids_sha256: ids_sha256(&[0, 1]),
        generated_ids: (2..TOKENS).map(|at| at % 4).collect(),
        text: Some("2301".to_owned()),
        ..SampleRow::bare("a")
    };
    writer.sample(sample).expect("a sample");
    writer.finish().expect("an end");
}

/// Runs to be written in the formats of other tools.
pub(in crate::fuzz) fn exports() -> Vec<Vec<u8>> {
    let home = place::folder();
    let dir = home.path().join("run");
    with_logits(&dir);
    let mut seeds = vec![place::pack_folder(&dir)];
    seeds.extend(super::run());
    seeds
}

pub(in crate::fuzz) fn llama_kld() -> Vec<Vec<u8>> {
    let mut seeds = small("interop/llamacpp", &[".kld"]);
    let home = place::folder();
    let (dir, base) = (home.path().join("run"), home.path().join("base.kld"));
    with_logits(&dir);
    for chunk_tokens in [None, Some(3)] {
        export_kld(&dir, KldExport { chunk_tokens }, &base).expect("a base file");
        seeds.push(std::fs::read(&base).expect("it was written"));
    }
    seeds
}

pub(in crate::fuzz) fn llama_results() -> Vec<Vec<u8>> {
    small("interop/llamacpp/results", &[".gguf"])
}

pub(in crate::fuzz) fn llama_debug() -> Vec<Vec<u8>> {
    let read = |name: &str| data(&format!("interop/llamacpp/{name}"));
    let (row, tokens) =
        (read("results/llamacpp-base.bin"), read("results/llamacpp-base-tokens.bin"));
    vec![
        place::pack([("llamacpp-base.bin", row.as_slice()), ("llamacpp-base-tokens.bin", &tokens)]),
        place::pack([("llamacpp-base.bin", row.as_slice()), ("logits.npy", &read("edges.npy"))]),
    ]
}

pub(in crate::fuzz) fn parquet() -> Vec<Vec<u8>> {
    small("cases/59", &[".parquet"])
}

const RECORDED: &str = concat!(
    r#"{"lockstep_trace":"1.0","producer":{"name":"transformers","version":"5.23.0"},"recorder":"lockstep_trace 0.1.0","created_at":"2026-11-30T20:38:23Z","model":{"path":null,"architecture":"Qwen3ForCausalLM","config_sha256":null,"weights_sha256":{},"tokenizer_sha256":null},"dtype":"bf16","cache_dtype":"bf16","device":"cpu","top_k":2,"hash_seeds":["6a09e667f3bcc908","bb67ae8584caa73b"],"settings":{"model.rope_theta":{"value":10000.0,"source":"transformers config"}},"remarks":[]}"#,
    "\n",
    r#"{"t":"step","sample":"a","position":0,"phase":"prompt","token":5,"next":null,"rows":[0,1],"rope":null}"#,
    "\n",
    r#"{"t":"step","sample":"a","position":1,"phase":"prompt","token":6,"next":7,"rows":[1,2],"rope":1,"argmax":7,"top_ids":[7,2],"top_logits":[9.30290127,"-Infinity"],"logsumexp":12.10192457251016,"finite":true,"hash":["7613b0d125c973dc","31ba086d74b39caa"]}"#,
    "\n",
    r#"{"t":"sample","sample":"a","prompt_ids":[5,6],"prompt_ids_sha256":"f1833c11f88585608c320b53224d2642b97af5fdb9cae59c13fcab53f37c4b06","generated_ids":[7],"text":"x","finish":"length","prefill_seconds":0.5,"decode_seconds":0.0}"#,
    "\n",
    r#"{"t":"end","steps":2,"samples":1}"#,
    "\n",
);

pub(in crate::fuzz) fn recording() -> Vec<Vec<u8>> {
    let cut = &RECORDED[..RECORDED.len() - 60];
    let dump = small("cases/52", &["bf16.safetensors"]);
    vec![
        place::pack([("trace.jsonl", RECORDED.as_bytes())]),
        place::pack([
            ("trace.jsonl", cut.as_bytes()),
            ("tensors/a/step_0000001.safetensors", dump[0].as_slice()),
        ]),
    ]
}

pub(in crate::fuzz) fn forms() -> Vec<Vec<u8>> {
    let mut seeds = Vec::new();
    for case in ["06", "10", "14", "15", "18", "20"] {
        seeds.extend(small(&format!("cases/{case}"), &[".json"]));
    }
    seeds
}

pub(in crate::fuzz) fn token_texts() -> Vec<Vec<u8>> {
    let home = place::folder();
    let mut texts = TokenTexts::new();
    for (text, bytes) in [
        (" the", None),
        ("\u{fffd}", Some(b"\xe2\x96".as_slice())),
        ("", Some(b"")),
        ("\u{fffd}", None),
    ] {
        texts.number(text, bytes);
    }
    texts.write(home.path()).expect("a file of texts");
    vec![std::fs::read(home.path().join("token_texts.json")).expect("it was written")]
}

pub(in crate::fuzz) fn logprob_import() -> Vec<Vec<u8>> {
    let mut seeds = logprobs();
    seeds.push(
        br#"{"rank":0,"logprob_entries":[[{"position":0,"logprob":-0.5,"token_id":3,"global_position":0},{"logprob":null,"token_id":4}]]}"#
            .to_vec(),
    );
    seeds
}

pub(in crate::fuzz) fn lm_eval_import() -> Vec<Vec<u8>> {
    let mut seeds = small("interop/lm-eval", &[".jsonl"]);
    seeds.extend(answers());
    seeds
}

pub(in crate::fuzz) fn trtmc_import() -> Vec<Vec<u8>> {
    let ladder = r#"{"dynamic_kv_cache":true,"dynamic_kv_profile_rows":[32,64,128],"triattention":{"enabled":true,"kv_budget":32}}"#;
    let mut seeds = vec![ladder.as_bytes().to_vec(), gzip(ladder.as_bytes())];
    seeds.extend(artifact());
    seeds.extend(bundle());
    seeds.extend(stats_dense());
    seeds
}

const MAP: &[u8] = br"sample: a
prompt_len: 1
rules:
- {names: '(?<what>[a-z_]+)', to: logits, position: 0, element: f32}
- {names: 'step_(?<step>[0-9]+)/logits', to: logits, position: '{step}-1', sample: b}
- {names: 'ids', to: token_id, position: 0, rows: true}
- {names: 'k(?<layer>[0-9]+)', to: 'pre.k.layer{layer}', compaction: 1, absolute_position: 3, permute: [1, 0, 2]}
";

pub(in crate::fuzz) fn tensor_import() -> Vec<Vec<u8>> {
    let home = place::folder();
    let dir = home.path().join("run");
    with_logits(&dir);
    let run = lockstep_traces::RunReader::open(&dir).expect("a run");
    let one = home.path().join("all.safetensors");
    lockstep_traces::tensor_runs::export_safetensors(&run, None, &one).expect("its tensors");
    let bytes = std::fs::read(one).expect("they were written");
    let row = data("interop/llamacpp/edges.npy");
    let mut seeds = tensor_folder();
    seeds.push(place::pack([("all.safetensors", bytes.as_slice())]));
    seeds.push(place::pack([("map.yaml", MAP), ("row.npy", &row), ("ids.npy", &row)]));
    seeds
}
