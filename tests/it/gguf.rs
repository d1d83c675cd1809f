//! GGUF files and windowed models by the ordinary commands.

use std::path::PathBuf;

use lockstep_testkit::gguf::{Gguf, convert};

use crate::kit::{Ran, Scratch, lockstep, text};

fn folder(name: &str) -> PathBuf {
    lockstep_testkit::data().join("models").join(name)
}

/// The tiny model `name` as a GGUF file, changed by `edit`.
fn tiny(scratch: &Scratch, name: &str, edit: impl FnOnce(&mut Gguf)) -> String {
    let mut file = convert(&folder(name));
    edit(&mut file);
    file.write(&scratch.file("tiny.gguf"));
    scratch.path("tiny.gguf")
}

/// Records 40 prompt tokens and 8 generated ones, then replays them.
fn run_and_replay(scratch: &Scratch, model: &str, extra: &[&str]) -> Ran {
    let ids: Vec<String> = (0..40).map(|i| (i * 37 % 96).to_string()).collect();
    let (prompt, run, out) = (scratch.path("ids.txt"), scratch.path("run"), scratch.path("replay"));
    std::fs::write(&prompt, ids.join(" ")).expect("the scratch folder takes files");
    let mut args = vec!["run", "--model", model, "--prompt-ids", &prompt, "--dtype", "f32"];
    args.extend(["--device", "cpu", "--max-new-tokens", "8", "--stop-ids", "1000", "--out", &run]);
    args.extend(["--record-hidden", "1,20,39,44"]);
    args.extend(extra);
    lockstep(args).expect(0);
    lockstep([
        "replay", "forward", &run, "--model", model, "--policy", "dense", "--out", &out,
        "--format", "json",
    ])
}

#[test]
fn a_gguf_model_runs_and_the_reference_agrees() {
    for name in ["llama_bias_mha", "llama_llama3", "qwen3_theta_sharded"] {
        let scratch = Scratch::new();
        let model = tiny(&scratch, name, |_| {});
        let answer = run_and_replay(&scratch, &model, &[]).expect(0).json();
        assert_eq!(answer["verdict"]["kind"], "within_noise", "{name}: {answer:#}");
        let manifest = std::fs::read_to_string(scratch.file("run/manifest.json")).unwrap();
        assert!(manifest.contains("gguf: general.architecture"), "{manifest}");
    }
}

#[test]
fn windowed_models_run_and_the_reference_agrees() {
    for name in ["mistral_window", "qwen2_sliding"] {
        let scratch = Scratch::new();
        run_and_replay(&scratch, &text(&folder(name)), &[]).expect(0);
    }
}

#[test]
fn a_mistake_is_named_on_a_gguf_model_and_under_a_window() {
    let scratch = Scratch::new();
    let model = tiny(&scratch, "llama_bias_mha", |_| {});
    let found = run_and_replay(&scratch, &model, &["--plant", "rotary-base"]).expect(1);
    assert!(found.stdout.contains("rotary-base"), "{}", found.stdout);
    let scratch = Scratch::new();
    let model = text(&folder("mistral_window"));
    let found = run_and_replay(&scratch, &model, &["--plant", "causal-mask"]).expect(1);
    assert!(found.stdout.contains("causal-mask"), "{}", found.stdout);
}

#[test]
fn a_window_that_the_run_did_not_apply_is_named() {
    let scratch = Scratch::new();
    let (full, source) = (scratch.file("full"), folder("mistral_window"));
    std::fs::create_dir(&full).unwrap();
    let config = std::fs::read_to_string(source.join("config.json")).unwrap();
    let off = config.replace("\"sliding_window\": 24", "\"sliding_window\": null");
    assert_ne!(off, config);
    std::fs::write(full.join("config.json"), off).unwrap();
    std::fs::copy(source.join("model.safetensors"), full.join("model.safetensors")).unwrap();
    run_and_replay(&scratch, &text(&full), &[]).expect(0);
    let (run, model, out) = (scratch.path("run"), text(&source), scratch.path("again"));
    let found = lockstep([
        "replay", "forward", &run, "--model", &model, "--policy", "dense", "--out", &out,
        "--format", "json",
    ])
    .expect(1);
    assert!(found.stdout.contains("the window is not applied"), "{}", found.stdout);
}

#[test]
fn inspect_shows_keys_tensors_and_types() {
    let scratch = Scratch::new();
    let model = tiny(&scratch, "llama_bias_mha", |_| {});
    let answer = lockstep(["inspect", &model, "--format", "json"]).expect(0).json();
    assert_eq!((answer["kind"].as_str(), answer["version"].as_u64()), (Some("gguf"), Some(3)));
    assert_eq!(answer["metadata"]["general.architecture"], "llama");
    assert_eq!(answer["metadata"]["llama.block_count"], 2);
    let tensors = answer["tensors"].as_array().unwrap();
    assert_eq!(answer["types"]["F32"]["tensors"], tensors.len());
    let embedding = tensors.iter().find(|row| row["name"] == "token_embd.weight").unwrap();
    assert_eq!(embedding["shape"], serde_json::json!([96, 64]));
    assert_eq!(
        (embedding["type"].as_str(), embedding["bytes"].as_u64()),
        (Some("F32"), Some(96 * 64 * 4))
    );
    let text = lockstep(["inspect", &model]).expect(0).stdout;
    assert!(
        text.contains("llama.block_count = 2") && text.contains("token_embd.weight: F32 [96, 64]")
    );
}

#[test]
fn damaged_files_are_one_line_with_file_and_tensor() {
    type Edit = fn(&mut Gguf);
    let cases: [(Edit, &str); 6] = [
        (|f| f.tensors[2].element = 77, "element type 77"),
        (|f| f.tensors[2].offset = Some(0), "shares data bytes"),
        (|f| f.tensors[2].offset = Some(1 << 40), "the file has"),
        (|f| f.tensors[2].ne[0] = 1 << 50, "takes"),
        (|f| f.count = Some(1 << 50), "number of tensors"),
        (|f| f.count = Some(3), "count of tensors is too low"),
    ];
    for (edit, part) in cases {
        let scratch = Scratch::new();
        let mut name = String::new();
        let model = tiny(&scratch, "llama_bias_mha", |file| {
            edit(file);
            if file.count.is_none() {
                name.clone_from(&file.tensors[2].name);
            }
        });
        lockstep(["inspect", &model]).expect_refusal(3, &[&model, part, &name]);
        let out = scratch.path("run");
        let ids = scratch.path("ids.txt");
        std::fs::write(&ids, "1 2").unwrap();
        let run =
            ["run", "--model", &model, "--prompt-ids", &ids, "--device", "cpu", "--out", &out];
        lockstep(run).expect_refusal(3, &[&model, part, &name]);
    }
    let scratch = Scratch::new();
    let model = tiny(&scratch, "llama_bias_mha", |_| {});
    let bytes = std::fs::read(&model).unwrap();
    for length in [0, 3, 20, 500, bytes.len() - 1] {
        std::fs::write(&model, &bytes[..length]).unwrap();
        lockstep(["inspect", &model]).expect_refusal(3, &[&model]);
    }
}

#[test]
fn a_quantised_model_answers_text_and_the_reference_agrees() {
    let Some(path) = lockstep_testkit::smollm2() else { return };
    let scratch = Scratch::new();
    let (model, run, out) = (text(&path), scratch.path("run"), scratch.path("replay"));
    let mut args =
        vec!["run", "--model", &model, "--prompt", "The capital of France is", "--device", "cpu"];
    args.extend(["--max-new-tokens", "4", "--out", &run]);
    lockstep(args).expect(0);
    let shown = lockstep(["inspect", &run]).expect(0).stdout;
    assert!(shown.contains("dtype f32"), "{shown}");
    lockstep(["replay", "forward", &run, "--model", &model, "--policy", "dense", "--out", &out])
        .expect(0);
}
