//! Defaults, sources, and what is refused by name.

use super::*;

fn config(text: &str) -> ModelConfig {
    let mut value = serde_json::json!({
        "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "vocab_size": 10,
        "hidden_size": 8, "intermediate_size": 12, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2
    });
    let extra: Value = serde_json::from_str(text).unwrap();
    for (key, entry) in extra.as_object().unwrap() {
        value[key] = entry.clone();
    }
    serde_json::from_value(value).unwrap()
}

fn resolve(text: &str) -> Result<Hyper, RuntimeError> {
    Hyper::resolve(&config(text), Path::new("m/config.json"))
}

fn field(text: &str) -> String {
    match resolve(text) {
        Err(RuntimeError::Config { field, .. }) => field,
        other => panic!("{text}: {other:?}"),
    }
}

#[test]
fn defaults_are_recorded_as_defaults() {
    let hyper = resolve("{}").unwrap();
    assert_eq!(hyper.head_dim, 2);
    assert!((hyper.rope_theta - 10_000.0).abs() < 1e-9);
    assert!(hyper.qk_norm && !hyper.tie_word_embeddings);
    assert_eq!(hyper.settings["model.head_dim"].source, "default");
    assert_eq!(hyper.settings["model.hidden_size"].source, "config.json");
    assert_eq!(hyper.settings["model.rope_theta"].value, 10_000.0);
}

#[test]
fn llama_has_no_qk_norm_and_may_have_bias() {
    let llama = r#"{"architectures": ["LlamaForCausalLM"], "model_type": "llama",
        "attention_bias": true, "mlp_bias": true}"#;
    let hyper = resolve(llama).unwrap();
    assert!(!hyper.qk_norm && hyper.attention_bias && hyper.mlp_bias);
}

#[test]
fn theta_is_read_from_any_of_its_three_places() {
    for text in [
        r#"{"rope_theta": 5e5}"#,
        r#"{"rope_parameters": {"rope_theta": 5e5, "rope_type": "default"}}"#,
        r#"{"rope_scaling": {"rope_theta": 5e5, "type": "linear", "factor": 2.0}}"#,
    ] {
        assert!((resolve(text).unwrap().rope_theta - 5e5).abs() < 1e-9, "{text}");
    }
    assert_eq!(
        field(r#"{"rope_theta": 1e4, "rope_parameters": {"rope_theta": 5e5}}"#),
        "rope_theta"
    );
}

#[test]
fn yarn_takes_its_defaults_from_the_paper_and_the_context_from_the_model() {
    let hyper = resolve(
        r#"{"max_position_embeddings": 4096, "rope_scaling": {"rope_type": "yarn", "factor": 4.0}}"#,
    )
    .unwrap();
    let RopeScaling::Yarn { original_max_position, beta_fast, truncate, attention_factor, .. } =
        hyper.rope
    else {
        panic!("{:?}", hyper.rope)
    };
    assert!((original_max_position - 4096.0).abs() < 1e-9 && (beta_fast - 32.0).abs() < 1e-9);
    assert!(truncate && (attention_factor - (0.1 * 4_f64.ln() + 1.0)).abs() < 1e-12);
    assert_eq!(hyper.settings["model.attention_factor"].source, "default");
}

#[test]
fn a_number_of_layers_that_no_model_has_costs_nothing() {
    // Mistral's window is written down for each layer.
    for family in ["Qwen3ForCausalLM", "MistralForCausalLM"] {
        let text = format!(
            r#"{{"architectures": ["{family}"], "model_type": null, "num_hidden_layers": 2147483648}}"#
        );
        assert_eq!(field(&text), "num_hidden_layers");
    }
}

#[test]
fn what_is_not_supported_is_refused_by_name() {
    for (text, wanted) in [
        (r#"{"architectures": ["Gemma3ForCausalLM"]}"#, "architectures"),
        (r#"{"architectures": ["LlamaForCausalLM"]}"#, "model_type"),
        (r#"{"hidden_act": "gelu"}"#, "hidden_act"),
        (r#"{"layer_types": ["full_attention", "chunked_attention"]}"#, "layer_types"),
        (r#"{"layer_types": ["full_attention"]}"#, "layer_types"),
        (
            r#"{"layer_types": ["full_attention", "sliding_attention"], "sliding_window": null}"#,
            "sliding_window",
        ),
        (
            r#"{"use_sliding_window": true, "sliding_window": 0, "max_window_layers": 1}"#,
            "sliding_window",
        ),
        (r#"{"partial_rotary_factor": 0.5}"#, "partial_rotary_factor"),
        (r#"{"rope_parameters": {"partial_rotary_factor": 0.5}}"#, "partial_rotary_factor"),
        (r#"{"rope_scaling": {"rope_type": "longrope"}}"#, "rope_type"),
        (r#"{"rope_scaling": {"rope_type": "linear"}}"#, "factor"),
        (r#"{"rope_scaling": {"rope_type": "linear", "factor": 0.0}}"#, "factor"),
        (r#"{"hidden_size": null}"#, "hidden_size"),
        (r#"{"num_key_value_heads": 3}"#, "num_key_value_heads"),
        (r#"{"num_key_value_heads": 0}"#, "num_key_value_heads"),
        (r#"{"head_dim": 3}"#, "head_dim"),
        (r#"{"dtype": "float8_e4m3fn"}"#, "dtype"),
        (r#"{"vocab_size": 0}"#, "vocab_size"),
    ] {
        assert_eq!(field(text), wanted, "{text}");
    }
}

#[test]
fn windows_are_resolved_by_family_and_layer() {
    let mistral = r#""architectures": ["MistralForCausalLM"], "model_type": "mistral""#;
    let qwen2 = r#""architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2""#;
    for (text, wanted) in [
        (r#"{"use_sliding_window": false, "sliding_window": 4096}"#.to_owned(), [None, None]),
        (r#"{"use_sliding_window": true, "sliding_window": 7}"#.to_owned(), [None, None]),
        (
            r#"{"use_sliding_window": true, "sliding_window": 7, "max_window_layers": 1}"#
                .to_owned(),
            [None, Some(7)],
        ),
        (
            r#"{"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 9}"#
                .to_owned(),
            [Some(9), None],
        ),
        (format!(r#"{{{mistral}, "sliding_window": 5}}"#), [Some(5), Some(5)]),
        (format!(r#"{{{mistral}}}"#), [Some(4096), Some(4096)]),
        (format!(r#"{{{mistral}, "sliding_window": null}}"#), [None, None]),
        (format!(r#"{{{qwen2}, "sliding_window": 5}}"#), [None, None]),
    ] {
        assert_eq!(resolve(&text).unwrap().windows, wanted, "{text}");
    }
    let hyper = resolve(&format!(r#"{{{qwen2}}}"#)).unwrap();
    assert!(hyper.attention_bias && !hyper.output_bias && !hyper.qk_norm);
    assert_eq!(hyper.settings["model.attention_bias"].source, "architecture");
    assert_eq!(hyper.settings["model.sliding_windows"].value, serde_json::json!([]));
}

#[test]
fn generation_config_decides_where_generation_ends() {
    let dir = tempfile::tempdir().unwrap();
    let text = serde_json::to_string(&config(r#"{"eos_token_id": 2}"#)).unwrap();
    std::fs::write(dir.path().join("config.json"), text).unwrap();
    assert_eq!(Hyper::read(dir.path()).unwrap().eos_ids, [2]);
    std::fs::write(dir.path().join("generation_config.json"), r#"{"eos_token_id": [5, 7]}"#)
        .unwrap();
    let hyper = Hyper::read(dir.path()).unwrap();
    assert_eq!(hyper.eos_ids, [5, 7]);
    assert_eq!(hyper.settings["model.eos_token_id"].source, "generation_config.json");
}
