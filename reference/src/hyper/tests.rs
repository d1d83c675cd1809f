//! Defaults, families, and what is refused.

use super::*;

fn qwen() -> ModelConfig {
    ModelConfig {
        architectures: Some(vec!["Qwen3ForCausalLM".to_owned()]),
        vocab_size: Some(10),
        hidden_size: Some(16),
        intermediate_size: Some(24),
        num_hidden_layers: Some(2),
        num_attention_heads: Some(4),
        ..ModelConfig::default()
    }
}

fn resolve(config: &ModelConfig) -> Result<Hyper, ReferenceError> {
    Hyper::resolve(config, Path::new("config.json"))
}

#[test]
fn what_the_file_leaves_out_comes_from_the_family() {
    let hyper = resolve(&qwen()).unwrap();
    assert_eq!((hyper.kv_heads, hyper.head_dim, hyper.tied), (4, 128, false));
    assert!((hyper.norm_eps - 1e-6).abs() < 1e-18);
    assert!(hyper.defaulted.contains(&"head_dim") && hyper.defaulted.contains(&"rope_theta"));
    let llama = ModelConfig { architectures: None, model_type: Some("llama".to_owned()), ..qwen() };
    let hyper = resolve(&llama).unwrap();
    assert_eq!((hyper.head_dim, hyper.qk_norm()), (4, false));
}

#[test]
fn a_missing_size_is_not_guessed() {
    let config = ModelConfig { hidden_size: None, ..qwen() };
    let message = resolve(&config).unwrap_err().to_string();
    assert!(message.contains("hidden_size"), "{message}");
}

#[test]
fn sizes_that_no_model_has_cost_nothing() {
    for (config, word) in [
        (ModelConfig { num_hidden_layers: Some(1 << 24), ..qwen() }, "16777216"),
        (ModelConfig { head_dim: Some(usize::MAX - 1), ..qwen() }, "head_dim"),
        (ModelConfig { head_dim: Some(0), ..qwen() }, "head_dim"),
        (ModelConfig { num_key_value_heads: Some(0), ..qwen() }, "num_key_value_heads"),
    ] {
        let message = resolve(&config).unwrap_err().to_string();
        assert!(message.contains(word), "{message}");
    }
}

#[test]
fn what_is_not_computed_is_refused_by_name() {
    for (config, word) in [
        (ModelConfig { architectures: Some(vec!["Gemma3ForCausalLM".into()]), ..qwen() }, "Gemma3"),
        (ModelConfig { hidden_act: Some("gelu".into()), ..qwen() }, "gelu"),
        (
            ModelConfig { layer_types: Some(vec!["chunked_attention".into(); 2]), ..qwen() },
            "chunked",
        ),
        (ModelConfig { layer_types: Some(vec!["full_attention".into()]), ..qwen() }, "1 of 2"),
        (ModelConfig { partial_rotary_factor: Some(0.5), ..qwen() }, "partial_rotary_factor 0.5"),
        (ModelConfig { num_key_value_heads: Some(3), ..qwen() }, "multiple"),
        (ModelConfig { head_dim: Some(3), ..qwen() }, "even"),
    ] {
        let message = resolve(&config).unwrap_err().to_string();
        assert!(message.contains(word), "{message}");
    }
}

#[test]
fn windows_follow_the_family() {
    let named = |name: &str| ModelConfig { architectures: Some(vec![name.to_owned()]), ..qwen() };
    let mistral = named("MistralForCausalLM");
    let hyper = resolve(&mistral).unwrap_err();
    assert!(hyper.to_string().contains("multiple"), "8 KV heads by default: {hyper}");
    let mistral = ModelConfig { num_key_value_heads: Some(2), ..mistral };
    assert_eq!(resolve(&mistral).unwrap().windows, [Some(4096), Some(4096)]);
    let off = ModelConfig { sliding_window: Some(None), ..mistral };
    assert_eq!(resolve(&off).unwrap().windows, [None, None]);
    let qwen2 = ModelConfig {
        use_sliding_window: Some(true),
        sliding_window: Some(Some(5)),
        max_window_layers: Some(1),
        ..named("Qwen2ForCausalLM")
    };
    let hyper = resolve(&qwen2).unwrap();
    assert_eq!((hyper.windows.clone(), hyper.window(1)), (vec![None, Some(5)], Some(5)));
    assert!(hyper.attention_bias && !hyper.output_bias());
}

#[test]
fn resolved_values_and_their_sources_are_recorded() {
    let mut manifest = Manifest::new(lockstep_traces::manifest::Producer::default(), "candle-cpu");
    resolve(&qwen()).unwrap().describe(&mut manifest);
    assert_eq!(manifest.config["model.head_dim"].source, "default");
    assert_eq!(manifest.config["model.hidden_size"].source, "config.json");
    assert_eq!(
        manifest.get("model.rope_theta").and_then(serde_json::Value::as_f64),
        Some(10_000.0)
    );
}
