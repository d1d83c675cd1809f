//! Bodies of the readers that stand above the traces crate: models, maps, answers, evidence of samplers.
//!
//! They are here, and not in the test kit, since the kit may depend on nothing above `traces`; the fuzz binary takes this file in by path.

#[path = "checks.rs"]
mod checks;

use std::path::Path;

use lockstep_diff::answers::{
    Normalise, Rule, compare as same_answer, degenerate_text, extract, normalise,
};
use lockstep_diff::tensor_sets::{NameMap, SetOptions, compare};
use lockstep_runtime::chat::{ChatFlags, ChatTemplate};
use lockstep_runtime::tokenize::Found;
use lockstep_runtime::weights::{ModelWeights, WeightFiles};
use lockstep_testkit::fuzz::{TARGETS as TRACES, Target, place};
use lockstep_traces::dataset::Message;
use lockstep_traces::tensor_files::{ReadOptions, read};
use lockstep_traces::{DType, Verdict};

/// Readers above the traces crate.
const ABOVE: &[Target] = &[
    Target { name: "model_gguf", body: model_gguf, seeds: gguf_seeds },
    Target { name: "model_folder", body: model_folder, seeds: folder_seeds },
    Target { name: "tokenizer", body: tokenizer, seeds: tokenizer_seeds },
    Target { name: "chat_template", body: chat_template, seeds: chat_seeds },
    Target { name: "name_map", body: name_map, seeds: map_seeds },
    Target { name: "tensor_sets", body: tensor_sets, seeds: set_seeds },
    Target { name: "answer_text", body: answer_text, seeds: text_seeds },
    Target { name: "sampler_file", body: sampler_file, seeds: sampler_seeds },
];

/// Every target.
pub(crate) fn targets() -> impl Iterator<Item = &'static Target> {
    TRACES.iter().chain(ABOVE).chain(checks::CHECKS)
}

/// Elements of two sets that are compared: a tensor may stand for more of them than its bytes hold.
const MOST_ELEMENTS: u64 = 1 << 16;

/// A GGUF file as a model, in the runtime and in the reference.
fn model_gguf(data: &[u8]) {
    place::file("model.gguf", data, model);
}

/// A folder of configuration, weights, tokenizer and template.
fn model_folder(data: &[u8]) {
    place::tree(data, model);
}

fn model(path: &Path) {
    let hyper = lockstep_runtime::Hyper::read(path);
    if let Ok(files) = WeightFiles::open(path) {
        let names: Vec<String> = files.names().map(str::to_owned).collect();
        for name in &names {
            let _ = files.stored_name(name);
            if let (Some(bytes), Ok(tensor)) = (files.bytes(name), files.tensor(name)) {
                let elements = tensor.elements();
                assert_eq!(elements.len(), tensor.shape().iter().product::<usize>());
                assert!(elements.is_empty() || !bytes.is_empty());
                let _ = elements.get(elements.len().saturating_sub(1));
                assert!(elements.get(elements.len()).is_none());
            }
        }
        if let Ok(hyper) = &hyper {
            let _ = ModelWeights::take(&files, hyper, DType::F32);
        }
    }
    let _ = lockstep_reference::Hyper::read(path);
    if let Ok(weights) = lockstep_reference::weights::Weights::open(path) {
        let names: Vec<String> = weights.names().map(str::to_owned).collect();
        for name in names {
            let _ = weights.check(&name, &[32]);
            let _ = weights.widen(&name, &[32], lockstep_reference::forward::Precision::F32);
        }
    }
    words(path);
}

fn words(path: &Path) {
    if let Ok(Found::Tokenizer(tokenizer)) = lockstep_runtime::Tokenizer::find(path) {
        for text in ["", "a 12 <s>\n", "\u{1F600}\u{e9} 1234"] {
            let _ = (tokenizer.encode(text), tokenizer.encode_as_is(text));
        }
        let _ = tokenizer.id("a");
    }
}

/// `tokenizer.json`.
fn tokenizer(data: &[u8]) {
    place::file("tokenizer.json", data, |path| words(path.parent().expect("a folder")));
}

/// `chat_template.jinja` or `tokenizer_config.json`, rendered.
fn chat_template(data: &[u8]) {
    place::tree(data, |dir| {
        let Ok(Some(template)) = ChatTemplate::read(dir) else { return };
        let turn = |role: &str, content: &str| Message {
            role: role.to_owned(),
            content: content.to_owned(),
        };
        let turns = [turn("system", "be brief"), turn("user", "1 + 1?")];
        let _ = template.render(&turns, ChatFlags::default());
    });
}

/// A map of names for `diff tensors`.
fn name_map(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let Ok(map) = NameMap::parse(text, "names.yaml") else { return };
    // A map is the user's own: it may ask for a comparison of any length.
    let long = |word: &str| word.len() > 4 && word.bytes().all(|byte| byte.is_ascii_digit());
    if text.split(|char: char| !char.is_ascii_alphanumeric()).any(long) {
        return;
    }
    place::file("tensor.npy", include_bytes!("../data/tensors/npy/f32.npy"), |path| {
        let set = read(path, &ReadOptions::default()).expect("an array");
        let _ = compare(&set, &set, &SetOptions { map, ..SetOptions::default() });
    });
}

/// Tensors of a folder, held against themselves.
fn tensor_sets(data: &[u8]) {
    place::tree(data, |dir| {
        let Ok(set) = read(dir, &ReadOptions::default()) else { return };
        let elements = set.tensors.iter().map(|t| t.elements()).fold(0, u64::saturating_add);
        if elements > MOST_ELEMENTS {
            return;
        }
        let options = SetOptions { nan_equal: true, ..SetOptions::default() };
        if let Ok(report) = compare(&set, &set, &options) {
            assert_ne!(report.verdict, Verdict::Diverged, "a set differs from itself");
            serde_json::to_string(&report).expect("a report is printed");
        }
    });
}

/// A completion that is searched for its answer; a line of it that is made comparable.
fn answer_text(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let hows = [Normalise::Integer { range: Some((0, 999)) }, Normalise::Number, Normalise::Text];
    let _ = degenerate_text(None, Some(text));
    for rule in Rule::ALL {
        let found = extract(text, rule);
        for how in hows {
            let _ = normalise(found.answer.as_deref().unwrap_or_default(), how);
        }
    }
    let (gold, answer) = text.split_once('\n').unwrap_or((text, text));
    for how in hows {
        let _ = same_answer(gold, answer, how);
        assert_ne!(
            same_answer(gold, gold, how).equal,
            Some(false),
            "an answer differs from itself"
        );
    }
}

/// Evidence of a sampler.
fn sampler_file(data: &[u8]) {
    place::file("evidence.json", data, |path| {
        let _ = lockstep_replay::sampler::read_file(path, None);
        let value = serde_json::from_slice(data).unwrap_or(serde_json::Value::Null);
        // More elements are compared one by one, which the caller asked for.
        if value["numel"].as_u64().is_none_or(|numel| numel < 1 << 20) {
            let _ = lockstep_replay::sampler::read_devices(path, &value);
        }
    });
}

fn texts(list: &[&str]) -> Vec<Vec<u8>> {
    list.iter().map(|text| text.as_bytes().to_vec()).collect()
}

fn gguf_seeds() -> Vec<Vec<u8>> {
    let of = |name: &str| TRACES.iter().find(|target| target.name == name);
    of("gguf").map(|target| (target.seeds)()).unwrap_or_default()
}

fn folder_seeds() -> Vec<Vec<u8>> {
    let cases = lockstep_testkit::data().join("cases/56");
    let mut seeds: Vec<_> = ["tied_but_both", "tied_ok", "untied_missing"]
        .iter()
        .map(|name| place::pack_folder(&cases.join(name)))
        .collect();
    let read =
        |name: &str| std::fs::read(lockstep_testkit::data().join(name)).expect("a test file");
    for model in ["llama_llama3", "qwen3_yarn", "qwen2_sliding", "mistral_window", "llama_linear"] {
        let config = read(&format!("models/{model}/config.json"));
        let generation = read(&format!("models/{model}/generation_config.json"));
        seeds.push(place::pack([
            ("config.json", config.as_slice()),
            ("generation_config.json", &generation),
            ("model.safetensors", &read("cases/56/tied_ok/model.safetensors")),
        ]));
    }
    seeds
}

fn tokenizer_seeds() -> Vec<Vec<u8>> {
    texts(&[
        r#"{"version":"1.0","truncation":null,"padding":null,"added_tokens":[{"id":0,"content":"<s>","single_word":false,"lstrip":false,"rstrip":false,"normalized":false,"special":true}],"normalizer":null,"pre_tokenizer":{"type":"ByteLevel","add_prefix_space":false,"trim_offsets":true,"use_regex":true},"post_processor":null,"decoder":{"type":"ByteLevel"},"model":{"type":"BPE","dropout":null,"unk_token":null,"continuing_subword_prefix":null,"end_of_word_suffix":null,"fuse_unk":false,"byte_fallback":false,"vocab":{"<s>":0,"a":1,"1":2,"2":3,"12":4},"merges":[["1","2"]]}}"#,
        r#"{"version":"1.0","added_tokens":[],"normalizer":{"type":"NFC"},"pre_tokenizer":{"type":"Whitespace"},"model":{"type":"WordLevel","vocab":{"a":0,"b":1,"<unk>":2},"unk_token":"<unk>"}}"#,
    ])
}

fn chat_seeds() -> Vec<Vec<u8>> {
    let template = "{{ bos_token }}{% for m in messages %}{% if m['role'] == 'user' %}[{{ m.content | trim }}]{% else %}{{ raise_exception('no') if false else m.content[:2] }}{% endif %}{% endfor %}{% if add_generation_prompt %}>{% endif %}";
    let config = format!(
        r#"{{"bos_token":"<s>","eos_token":{{"content":"</s>"}},"chat_template":{}}}"#,
        serde_json::Value::from(template)
    );
    vec![
        place::pack([("tokenizer_config.json", config.as_bytes())]),
        place::pack([
            ("chat_template.jinja", template.as_bytes()),
            ("tokenizer_config.json", br#"{"bos_token":null}"#.as_slice()),
        ]),
    ]
}

fn map_seeds() -> Vec<Vec<u8>> {
    texts(&[
        "pairs:\n  - left: '(t)ensor'\n    right: '$1ensor'\n    left_layout: [{permute: [1, 0]}, {shape: [2, 6]}, {merge: 0}]\n    right_layout: [{permute: [1, 0]}, {shape: [12]}]\norder: ['ten.*']\nallow_skip: ['rope.*']\n",
        "pairs:\n  - {left: tensor, right: tensor, left_layout: [{take: {axis: 0, rows: [2, 0]}}, {slice: {axis: 1, from: 1, to: 3}}, {expand: {axis: 0, times: 2}}, {split: {axis: 0, sizes: [2, 2]}}], right_layout: [{squeeze: 0}]}\n",
        "identity: false\npairs:\n  - left: tensor\n    right: tensor\n    left_dims: '[a][b]'\n    right_dims: '[b][a]'\n    left_layout: [{pages: {axis: 0, table: [2, 1, 0], rows: 3}}]\n    left_join: {axis: 0, by: '1', stack: true}\n",
        "tolerances:\n  - {names: '.*', metric: relative_l2, at_most: 0.01, reason: bf16}\nelements:\n  - {names: tensor, side: left, element: i32}\nraw: ['*.bin=f32:2x2']\nroles: {input: '.*in', output: '.*out'}\n",
    ])
}

fn set_seeds() -> Vec<Vec<u8>> {
    let folder =
        |name: &str| place::pack_folder(&lockstep_testkit::data().join("tensors").join(name));
    ["npy", "sharded", "sglang", "trtllm"].map(folder).into()
}

fn text_seeds() -> Vec<Vec<u8>> {
    texts(&[
        "<think>so \\boxed{3}</think>\nThe answer is \\boxed{\\frac{1}{2}}.",
        "0.5\n\\dfrac12",
        "1,000\n1e3",
        "\\fbox{a\\}{b}} Final answer: $12\\text{ cm}^2$",
        "#### 5\n10/2",
    ])
}

fn sampler_seeds() -> Vec<Vec<u8>> {
    texts(&[
        r#"{"seed":1234,"seed_index":0,"temperature":0.6,"top_k":20,"top_p":0.95,"min_p":0.0,"sampler":"torch-cuda","filters":"hf","sm_count":132,"vocab":4,"draws":[0.12],"logits":[[1,2,null,"-Infinity"]],"tokens":{"a":[1],"b":[0]}}"#,
        r#"{"vocab":9,"top":[[[3,1.5],[4,0.5]]],"tokens":[3]}"#,
        "{\"seed\":1,\"vocab\":3}\n{\"sample_id\":\"a\",\"token\":1,\"probabilities\":[0.25,0.5,0.25],\"position\":4,\"rng_offset\":8}\n",
        include_str!("../data/cases/34/devices.json"),
    ])
}
