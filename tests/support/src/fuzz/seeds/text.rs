//! Texts: traces, documents, logs.

use super::{data, gzip, small, texts};

const STEP: &str = r#"{"position_before":0,"token_id":1,"decoder_idx":0,"rows_before":32,"rows_after":32,"argmax_token":1,"argmax_logit":1,"top_ids":[1,2],"top_logits":[1,-0.5]}
{"position_before":1,"token_id":7,"decoder_idx":0,"rows_before":32,"rows_after":32,"argmax_token":2,"argmax_logit":3.25,"top_ids":[2,1],"top_logits":[3.25,NaN]}
"#;
const REPLAY: &str = r#"{"position_before":319,"token_id":220,"rows_before":320,"rows_after":256,"argmax_token":16,"argmax_logit":24.109375,"top_ids":[16,17],"top_logits":[24.109375,NaN],"comp_before":{"absolute_position":320,"cache_positions_len":320,"prefix_length":41},"comp_after":{"absolute_position":321,"cache_positions_len":256,"prefix_length":41}}
"#;
const NEUTRAL: &str = r#"{"position":0,"token_id":1,"rows_before":0,"rows_after":1,"top":[[1,-Infinity],[2,0.5]]}
{"position":1,"token_id":2,"rows_before":1,"rows_after":1,"top":[[1,4e-3],[2,0.5]]}
"#;

pub(in crate::fuzz) fn trace() -> Vec<Vec<u8>> {
    let mut seeds = texts(&[STEP, REPLAY, NEUTRAL]);
    for case in ["01", "04", "11", "25", "36", "43", "57", "66"] {
        seeds.extend(small(&format!("cases/{case}"), &[".jsonl"]));
    }
    seeds.push(gzip(STEP.as_bytes()));
    let long = crate::gunzip(&crate::golden().join("traces/compressed/ledger_01.k.jsonl.gz"));
    let some: Vec<&str> = long.split_inclusive('\n').take(6).collect();
    seeds.push(some.concat().into_bytes());
    seeds
}

pub(in crate::fuzz) fn logprobs() -> Vec<Vec<u8>> {
    let mut seeds = texts(&[
        r#"{"choices":[{"index":0,"logprobs":{"content":[{"token":"a","bytes":[97],"logprob":-0.25,"top_logprobs":[{"token":"a","bytes":[97],"logprob":-0.25},{"token":"b","logprob":-9999.0}]}]}}],"usage":{"completion_tokens":1}}"#,
        r#"{"choices":[{"index":0,"text":"ab","logprobs":{"tokens":["a","b"],"token_logprobs":[null,-0.5],"top_logprobs":[null,{"b":-0.5,"token_id:7":-1e1}],"text_offset":[0,1]}}]}"#,
        r#"{"prompt_logprobs":[null,{"5":{"logprob":-0.5,"rank":1,"decoded_token":"x"},"5":{"logprob":-2,"rank":2,"decoded_token":"y"}}]}"#,
        r#"{"text":"t","meta_info":{"output_token_logprobs":[[-0.5,5,"x"]],"output_top_logprobs":[[[-0.5,5,"x"],[-1.5,6,null]]],"input_token_logprobs":[[null,1,"s"]],"completion_tokens":1}}"#,
        r#"{"content":"a","completion_probabilities":[{"content":"a","probs":[{"tok_str":"a","prob":0.5},{"tok_str":"b","prob":0}]}]}"#,
        r#"{"completion_probabilities":[{"id":1,"token":"a","bytes":[97],"logprob":-0.1,"top_logprobs":[{"id":1,"token":"\ud83d\ude00","logprob":-Infinity}]}]}"#,
        r#"{"logits":[1.0,2.0,-1],"logprobs":[-1.4,-0.4,-3.4],"temperature":0.7,"top_p":1}"#,
        "data: {\"choices\":[{\"index\":0,\"logprobs\":{\"content\":[{\"token\":\"a\",\"logprob\":-1}]}}]}\n\ndata: [DONE]\n",
        "\u{feff}[{\"choices\":[]},NaN,[[[[]]]],{\"a\":\"\\u00e9\\n\"}]",
    ]);
    for case in ["40", "45", "47", "49", "51"] {
        seeds.extend(small(&format!("cases/{case}"), &[".json"]));
    }
    seeds.push(gzip(&seeds[0]));
    seeds
}

pub(in crate::fuzz) fn tokens() -> Vec<Vec<u8>> {
    let mut seeds = texts(&[
        "[1,2,70000]",
        r#"{"bos":1,"ids":[1,5],"pieces":["<s>","\u0120a"],"text":"a","a":[[3,4],["<0x0A>","\u2581b"]]}"#,
        r#"{"0":"a","1":"\u0120b","5":"<0xE2>"}"#,
        r#"["a","b"]"#,
        "1 2\n3\t4\n",
        "a plain text\n",
        r#""text""#,
    ]);
    for case in ["31", "41", "44"] {
        seeds.extend(small(&format!("cases/{case}"), &[".json"]));
    }
    seeds
}

pub(in crate::fuzz) fn answers() -> Vec<Vec<u8>> {
    let mut seeds = texts(&[
        r#"{"doc_id":0,"doc":{"question":"q"},"target":"12","arguments":{},"resps":[["12"]],"filtered_resps":["12"],"filter":"none","metrics":["exact_match"],"exact_match":1.0,"doc_hash":"a","prompt_hash":"b","target_hash":"c"}"#,
        r#"{"sample_id":"toy_4","gold_answer":"12","pred_answer":"12","generated_tokens":3,"generated_token_ids":[785,1156,2613],"setup_ms":1.2,"prefill_ms":36.1,"decode_ms":5150.2,"wall_ms":5189.0,"tokens_per_sec":79.9,"text":"First\n\\boxed{12}"}"#,
        r#"{"id":"q0","gold":"1","answer":"1","text":"t"}"#,
    ]);
    for case in ["61", "63", "64"] {
        seeds.extend(small(&format!("cases/{case}"), &[".jsonl"]));
    }
    seeds.push(gzip(&seeds[1]));
    seeds
}

pub(in crate::fuzz) fn dataset() -> Vec<Vec<u8>> {
    texts(&[
        "{\"sample_id\":\"a\",\"answer\":\"1\",\"prompt\":\"p\"}\n{\"sample_id\":\"b\",\"answer\":\"2\",\"prompt\":\"q\"}\n",
        r#"{"problem":"x^2","answer":"\\frac{1}{2}","solution":"s","level":"Level 5","unique_id":"t/1.json","subject":"Algebra"}"#,
        r##"{"question":"q","answer":"so 5\n#### 5"}"##,
        r#"{"messages":[{"role":"user","content":"hi"}],"gold":"1","seed_index":4}"#,
        r#"{"prompt_ids":[1,2,3],"sample_id":"x","gold":"1","prompt":"p"}"#,
        r#"{"ID":"2024-I-1","Problem":"p","Answer":204}"#,
    ])
}

pub(in crate::fuzz) fn artifact() -> Vec<Vec<u8>> {
    let mut seeds = texts(&[
        STEP,
        REPLAY,
        r#"{"dataset":"aime","count":8,"max_new_tokens":12000,"limit":null,"sampling":{"temperature":0.6,"top_k":20,"top_p":0.95,"min_p":0.0,"seed":1234,"chat_template":true,"enable_thinking":true,"hf_dtype":"auto","stop_on_answer":true},"tri":{"count":8,"accuracy":0.625,"hf_agreement":0.75,"total_generated_tokens":9120,"total_wall_ms":118400.5,"samples":[{"sample_id":"a","gold":"1","pred":null,"correct":false,"hf_pred":null,"generated_tokens":5,"wall_ms":1.5,"decode_ms":null}]}}"#,
        r#"{"a":{"b":{"value":1,"source":"bundle default"}},"c":{"value":[1],"source":"flag"}}"#,
        r#"{"id":"q0","model":"m-A","model_sha":"aaa1","prompt_sha256":"7a","response":"text 0","t":1000}"#,
        "50%|###\n{\"sample_id\":\"a\",\"answer\":\"1\",\"prompt\":\"p\"}",
    ]);
    seeds.extend(answers());
    seeds.extend(engine_log());
    seeds.extend(super::keep_dump());
    seeds.extend(bundle());
    seeds
}

pub(in crate::fuzz) fn bundle() -> Vec<Vec<u8>> {
    let stats = r#"{"version":2,"format":"sampled_head_rkv","head_dim":4,"rope_style":"half","rope_theta":1000000.0,"num_attention_heads":4,"num_key_value_heads":2,"stats_head_count":2,"num_layers":3,"sampled_heads":[[0,1],[2,3]],"inv_freq":[1.0,0.1],"stats":{"layer00_head01":{"q_mean_real":[1,2]},"layer02_head03":{}}}"#;
    let config = r#"{"dynamic_kv_cache":true,"dynamic_kv_profile_rows":[32,64,128],"triattention":{"enabled":true,"kv_budget":32}}"#;
    [b"TRTFB\0\x01\0", b"BUNDLE\x01\0"]
        .into_iter()
        .map(|magic| {
            let header = format!(
                r#"{{"model_id":"toy","precision":"fp16","max_cache_length":4096,"sections":{{"engine_plan":{{"offset":0,"size":3}},"config.json":{{"offset":3,"size":{}}},"triattention_stats.json":{{"offset":{},"size":{}}}}}}}"#,
                config.len(),
                3 + config.len(),
                stats.len()
            );
            let length = (header.len() as u64).to_le_bytes();
            [magic.as_slice(), &length, header.as_bytes(), b"abc", config.as_bytes(), stats.as_bytes()]
                .concat()
        })
        .collect()
}

pub(in crate::fuzz) fn engine_log() -> Vec<Vec<u8>> {
    texts(&["[TRT] engine loaded
[trtf.triattention] init kv_budget=256 divide_length=64 recent_window=128 per_layer_aggregation=mean count_prompt_tokens=1 protect_prefill=1 disable_mlr=0 disable_trig=0 kv_heads=8 query_heads=16 cache_heads=16 score_group=2 layers_with_stats=28
[trtf] KV cache rows=320 (bundle max=4096, row=112.00 KiB, cache=35.00 MiB, state=35.10 MiB) [requested=35M] [clamped-to-bundle-max]
\r 3/30 [trtf.triattention] compact abs_pos=320 old_rows=320 kept_rows=256 kept_prefix=41 first_pos=0 last_pos=319 dropped_pos=50,51
[trtmc.triattention.profile] compact#2 abs_pos=384 old_rows=320 kept_rows=256 reserved=169 candidates=151 sampled_layers=28 sampled_heads=448 host_copy_ms=0 score_ms=1.5
[trtf] Decode: 411 tokens, 5150.22 ms, 79.80 tok/s [CUDA Graph ON]
[trtf.dataset_benchmark] sample=toy_4 generated_tokens=412 decode_ms=5150.22 tok/s=79.99
[cuda_graph] Capture failed, disabling CUDA Graphs
terminate called: TriAttention aborted after keep dump
[trtf.triattention] compact abs_pos=38"])
}

pub(in crate::fuzz) fn claims() -> Vec<Vec<u8>> {
    use lockstep_traces::claims::{ArtifactKind, Cited, Claim, Ledger, Scope, Window};
    let home = super::super::place::folder();
    let path = home.path().join("claims.toml");
    let scope = Scope {
        samples: vec!["s1".to_owned()],
        ordinals: vec![2],
        windows: vec![Window { first: 10, last: 20 }],
        modes: vec!["trt".to_owned()],
    };
    let cited = Cited {
        path: "run/answer.json".to_owned(),
        sha256: "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad".to_owned(),
        kind: ArtifactKind::Answer,
        verdict: Some("identical".to_owned()),
    };
    let first = Claim {
        text: "the gather \"is\" exact".to_owned(),
        date: Some("2025-01-02".to_owned()),
        scope,
        evidence: vec![cited],
        ..Claim::default()
    };
    let first = first.sealed();
    let second = Claim {
        text: "and so\nis this".to_owned(),
        supersedes: vec![first.id.clone()],
        rests_on: vec![first.id.clone()],
        ..Claim::default()
    };
    for claim in [first, second.sealed()] {
        Ledger::append(&path, &claim).expect("a ledger of two");
    }
    vec![
        std::fs::read(&path).expect("the ledger"),
        b"[[claim]]\nid = \"a\"\ntext = \"x\"\ndigest = \"\"\n".to_vec(),
    ]
}

pub(in crate::fuzz) fn claim_evidence() -> Vec<Vec<u8>> {
    let mut seeds = texts(&[
        r#"{"verdict":"identical","check":"gather","samples":["a"],"positions":[1,20],"findings":[{"sample_id":"a","ordinal":1,"name":"x","outcome":"void"}],"audits":[{"name":"n","outcome":"void"}]}"#,
        "{\"verdict\":\"diverged\"}\n{\"sample_id\":\"a\",\"position\":4}\n",
    ]);
    seeds.push(data("golden/traces/stats/calibration.json"));
    seeds
}

pub(in crate::fuzz) fn config() -> Vec<Vec<u8>> {
    small("models", &["config.json"])
}
